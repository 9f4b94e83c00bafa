"""The logs of responses as rows: what is there of one in a row of `event_logs`, its parts in `events`."""

from __future__ import annotations

import sqlite3

from gateway.products.jobs.model.job import ClaimedWork, JobState, WriteResult
from gateway.products.jobs.sqlite.claims import HELD
from gateway.products.jobs.sqlite_rows import job_rows
from gateway.products.jobs.transitions.transitions import NOT_OURS, written
from gateway.products.responses.log.shared_logs.bounds import KeptBounds, place_in_log
from gateway.products.responses.rules.response_object.stored_response import LogPage, LogPart

_KEEP = "REPLACE INTO event_logs (job, fence, next, bytes, cut) VALUES (?, ?, ?, ?, ?)"


def append(db: sqlite3.Connection, work: ClaimedWork, part: LogPart, bounds: KeptBounds) -> WriteResult:
    """Adds a part to the log of a claim that holds; the first of a new generation takes the place of the last one."""
    found = db.execute(HELD, (work.job.id, work.piece, work.fence)).fetchone()
    if found is None:
        return NOT_OURS
    seq, is_held = found
    log = db.execute("SELECT fence, next, bytes, cut FROM event_logs WHERE job = ?", (seq,)).fetchone()
    if log is None or log[0] != work.fence:
        if log is not None:
            db.execute("DELETE FROM events WHERE job = ?", (seq,))
        log = (work.fence, 0, 0, 0)
    _, next_event, size, is_cut = log
    place = "there" if is_cut else place_in_log(part, next_event, size, bounds)
    if place == "next":
        values = (seq, part.last, part.first, part.frames)
        db.execute("INSERT INTO events (job, last, first, frames) VALUES (?, ?, ?, ?)", values)
        db.execute(_KEEP, (seq, work.fence, part.last + 1, size + len(part.frames), 0))
    elif place == "cut":
        db.execute("DELETE FROM events WHERE job = ?", (seq,))
        db.execute(_KEEP, (seq, work.fence, 0, 0, 1))
    return written(job_rows.get(db, seq).job) if is_held else WriteResult(True)


def read(db: sqlite3.Connection, job_id: str, tenant: str, after: int, most_bytes: int) -> LogPage | None:
    """Returns the parts with events behind `after`, until they are too many bytes."""
    job = db.execute("SELECT seq, state FROM jobs WHERE id = ? AND tenant = ?", (job_id, tenant)).fetchone()
    if job is None:
        return None
    seq, has_ended = job[0], JobState(job[1]).is_end
    log = db.execute("SELECT fence, cut FROM event_logs WHERE job = ?", (seq,)).fetchone()
    if log is None:
        return LogPage(0, [], has_ended=has_ended)
    parts: list[LogPart] = []
    query = "SELECT first, last, frames FROM events WHERE job = ? AND last > ? ORDER BY last"
    for first, last, frames in db.execute(query, (seq, after)):
        most_bytes -= len(frames)
        if parts and most_bytes < 0:
            break
        parts.append(LogPart(first, last, frames))
    return LogPage(log[0], parts, bool(log[1]), has_ended)


def drop(db: sqlite3.Connection, job_id: str) -> None:
    """Forgets the log of a job."""
    row = db.execute("SELECT seq FROM jobs WHERE id = ?", (job_id,)).fetchone()
    for table in ("events", "event_logs") if row is not None else ():
        db.execute(f"DELETE FROM {table} WHERE job = ?", row)
