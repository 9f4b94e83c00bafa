"""Jobs as rows: what is searched in columns, the rest as one JSON array."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.products.jobs.model.job import Job, JobError, JobKind, JobState, Stage, StoredAnswer, Tally
from gateway.products.jobs.model.lines import LineResult
from gateway.products.jobs.transitions.transitions import is_past_stopping

_COLUMNS = "seq, id, tenant, kind, state, ended, parent, body"
LINE_COLUMNS = "line, failed, text, input, cached, output, cost, reasoning"
_TABLES = ("payloads", "answers", "pieces", "plans", "lines", "chunks", "dedupe", "debounce", "event_logs", "events")
"""What belongs to a job, by the column `job`."""


@dataclass(slots=True)
class JobRow:
    """A job and the number of its row."""

    seq: int
    job: Job


def find(db: sqlite3.Connection, job_id: str, tenant: str | None = None) -> JobRow | None:
    """Returns a job, of that tenant if one is named."""
    row = db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return None if row is None or tenant not in (None, row[2]) else job_row(row)


def get(db: sqlite3.Connection, seq: int) -> JobRow:
    """Returns the job of a row that is there."""
    return job_row(db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE seq = ?", (seq,)).fetchone())


def insert(db: sqlite3.Connection, job: Job, payload: bytes, reads: str, taken: int) -> JobRow:
    """Adds a job."""
    values = (job.id, job.tenant, job.kind, job.state, _is_held(job), _due(job), reads, taken, job.parent, _body(job))
    cursor = db.execute(
        "INSERT INTO jobs (id, tenant, kind, state, held, due, reads, taken, parent, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        values,
    )
    row = JobRow(cursor.lastrowid or 0, job)
    if payload:
        put_payload(db, row, payload)
    return row


def keep(db: sqlite3.Connection, row: JobRow, job: Job) -> None:
    """Writes a job that has changed."""
    if job is not row.job:
        row.job = job
        db.execute(
            "UPDATE jobs SET tenant = ?, kind = ?, state = ?, held = ?, due = ?, ended = ?, body = ? WHERE seq = ?",
            (job.tenant, job.kind, job.state, _is_held(job), _due(job), job.ended_at, _body(job), row.seq),
        )


def remove(db: sqlite3.Connection, seq: int) -> None:
    """Removes a job and all that belongs to it."""
    for table in _TABLES:
        db.execute(f"DELETE FROM {table} WHERE job = ?", (seq,))
    db.execute("DELETE FROM jobs WHERE seq = ?", (seq,))


def put_payload(db: sqlite3.Connection, row: JobRow, payload: bytes) -> None:
    """Keeps the payload of a job in place of an earlier one."""
    if payload:
        db.execute("REPLACE INTO payloads (job, body) VALUES (?, ?)", (row.seq, payload))
    else:
        drop_payload(db, row)


def drop_payload(db: sqlite3.Connection, row: JobRow) -> None:
    """Forgets the payload of a job."""
    db.execute("DELETE FROM payloads WHERE job = ?", (row.seq,))


def payload_of(db: sqlite3.Connection, row: JobRow) -> bytes:
    """Returns the payload of a job."""
    found = db.execute("SELECT body FROM payloads WHERE job = ?", (row.seq,)).fetchone()
    return b"" if found is None else bytes(found[0])


def payload_bytes(db: sqlite3.Connection, row: JobRow) -> int:
    """Returns the length of the payload of a job."""
    found = db.execute("SELECT length(body) FROM payloads WHERE job = ?", (row.seq,)).fetchone()
    return 0 if found is None else int(found[0])


def put_answer(db: sqlite3.Connection, row: JobRow, answer: StoredAnswer) -> None:
    """Keeps the answer of a job."""
    about = orjson.dumps([answer.status, [list(header) for header in answer.headers]])
    db.execute("REPLACE INTO answers (job, about, body) VALUES (?, ?, ?)", (row.seq, about, answer.body))


def answer_of(db: sqlite3.Connection, row: JobRow) -> StoredAnswer | None:
    """Returns the answer of a job that has one."""
    found = db.execute("SELECT about, body FROM answers WHERE job = ?", (row.seq,)).fetchone()
    if found is None:
        return None
    status, headers = orjson.loads(found[0])
    return StoredAnswer(status, [(name, value) for name, value in headers], found[1])


def line_result(row: Sequence[Any]) -> LineResult:
    """Returns the result of a row with `LINE_COLUMNS`."""
    line, failed, text, *counts = row
    return LineResult(line, bool(failed), text, *counts)


def job_row(row: Sequence[Any]) -> JobRow:
    """Returns the job of a row with the columns of `select`."""
    seq, job_id, tenant, kind, state, ended, parent, body = row
    key, lane, segment, urgent, model, created, run_at, deadline, most, about, *rest = orjson.loads(body)
    stage, ends_as, paused, attempts, started, tally, error, marks, revision = rest
    return JobRow(
        seq,
        Job(
            id=job_id,
            kind=JobKind(kind),
            tenant=tenant,
            key=key,
            lane=lane,
            segment=segment,
            is_urgent=urgent,
            model=model,
            state=JobState(state),
            created_at=created,
            run_at=run_at,
            deadline=deadline,
            max_attempts=most,
            about=about,
            stage=Stage(stage),
            ends_as=None if ends_as is None else JobState(ends_as),
            is_paused=paused,
            attempts=attempts,
            started_at=started,
            ended_at=ended,
            tally=Tally(*tally),
            last_error=None if error is None else JobError(*error),
            marks=marks,
            revision=revision,
            parent=parent,
        ),
    )


def select(condition: str) -> str:
    """Returns a query for jobs on a condition, newest first, of which it takes as many as its last parameter says."""
    return f"SELECT {_COLUMNS} FROM jobs WHERE {condition} ORDER BY seq DESC LIMIT ?"


def _body(job: Job) -> bytes:
    error = None if job.last_error is None else list(job.last_error)
    asked = [job.key, job.lane, job.segment, job.is_urgent, job.model, job.created_at, job.run_at, job.deadline]
    now = [job.stage, job.ends_as, job.is_paused, job.attempts, job.started_at, list(job.tally), error, job.marks]
    return orjson.dumps([*asked, job.max_attempts, job.about, *now, job.revision])


def _due(job: Job) -> float | None:
    return None if is_past_stopping(job) else job.deadline


def _is_held(job: Job) -> bool:
    return job.is_paused or job.ends_as is not None
