"""The tables of the jobs file, and the work on it.

In this order: jobs as rows; lists; and the tables. Small rows that are searched lie apart from bodies that are only fetched: a
million payloads stay out of the way of a claim. What waits is found in partial indexes, each of which has the pieces of one
state only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.drivers.sqlite import Rest
from gateway.drivers.sqlite_file import FileKind
from gateway.products.jobs import transitions
from gateway.products.jobs.model import (
    STATE_OF_STATUS,
    Job,
    JobError,
    JobKind,
    JobPage,
    JobQuery,
    JobState,
    LineResult,
    Stage,
    StoredAnswer,
    Tally,
)
from gateway.products.jobs.transitions import PieceState, is_past_stopping

# --- jobs as rows: what is searched in columns, the rest as one JSON array ---

_COLUMNS = "seq, id, tenant, kind, state, ended, parent, body"
LINE_COLUMNS = "line, failed, text, input, cached, output, cost, reasoning"
_TABLES = ("payloads", "answers", "pieces", "plans", "lines", "chunks", "dedupe", "debounce", "event_logs", "events")
"""The tables of what belongs to a job, by the column `job`."""


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
    fields = [job.key, job.lane, job.segment, job.is_urgent, job.model, job.created_at, job.run_at, job.deadline]
    now = [job.stage, job.ends_as, job.is_paused, job.attempts, job.started_at, list(job.tally), error, job.marks]
    return orjson.dumps([*fields, job.max_attempts, job.about, *now, job.revision])


def _due(job: Job) -> float | None:
    return None if is_past_stopping(job) else job.deadline


def _is_held(job: Job) -> bool:
    return job.is_paused or job.ends_as is not None


# --- lists of jobs, and jobs that are forgotten; long work in steps, between which others have their turn ---

ROWS_AT_ONCE = 500
"""The rows that one step of a list looks at."""
FORGOTTEN_AT_ONCE = 100
_PAST = (
    "SELECT seq FROM jobs WHERE ended < ? AND dead = 0 AND (parent = '' OR NOT EXISTS "
    "(SELECT 1 FROM jobs AS run WHERE run.id = jobs.parent AND run.ended IS NULL)) ORDER BY ended LIMIT ?"
)
"""A run whose children are older than jobs are kept is rare: they are few that are looked at in vain."""


def page_of(db: sqlite3.Connection, query: JobQuery) -> JobPage | Rest:
    """Returns a page of jobs, newest first; an empty one behind an id that is not there."""
    before = 2**62
    if query.after is not None:
        after = find(db, query.after, query.tenant)
        if after is None:
            return JobPage([], has_more=False)
        before = after.seq
    return _go_on(db, query, before, [])


def _go_on(db: sqlite3.Connection, query: JobQuery, before: int, found: Sequence[Job]) -> JobPage | Rest:
    is_plain = not (query.statuses or query.metadata or query.parent is not None) and (
        query.tenant is not None or query.kind is None
    )
    step = query.limit + 1 if is_plain else ROWS_AT_ONCE
    rows = _rows(db, query, before, step)
    states = {STATE_OF_STATUS.get(status, status) for status in query.statuses}
    fitting = [row for row in rows if not states or row[4] in states]
    jobs = list(found)
    for row in fitting:
        job = job_row(row).job
        if transitions.matches(job, query):
            jobs.append(job)
            if len(jobs) > query.limit:
                return JobPage(jobs[: query.limit], has_more=True)
    if len(rows) < step:
        return JobPage(jobs, has_more=False)
    return Rest(lambda db: _go_on(db, query, rows[-1][0], jobs))


def _rows(db: sqlite3.Connection, query: JobQuery, before: int, most: int) -> list[Any]:
    """Returns the next rows of the run or the tenant; the index has those by kind."""
    if query.parent:
        of_run = select("parent = ? AND parent != '' AND tenant = coalesce(?, tenant) AND seq < ?")
        return db.execute(of_run, (query.parent, query.tenant, before, most)).fetchall()
    if query.tenant is None:
        return db.execute(select("seq < ?"), (before, most)).fetchall()
    one_kind = select("tenant = ? AND kind = ? AND seq < ?")
    kinds = JobKind if query.kind is None else [query.kind]
    rows = [row for kind in kinds for row in db.execute(one_kind, (query.tenant, kind, before, most)).fetchall()]
    return sorted(rows, key=lambda row: -row[0])[:most]


def identity_of(db: sqlite3.Connection) -> str:
    """Returns what distinguishes this file from all others."""
    return str(db.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()[0])


def forget_ended(db: sqlite3.Connection, before: float, most: int, count: int = 0) -> int | Rest:
    """Forgets the jobs that ended first, before `before`; `count` were forgotten in earlier steps."""
    step = min(most - count, FORGOTTEN_AT_ONCE)
    gone = db.execute(_PAST, (before, step)).fetchall()
    for (seq,) in gone:
        remove(db, seq)
    count += len(gone)
    if not gone or count == most:
        return count
    return Rest(lambda db: forget_ended(db, before, most, count))


STATES: Final[tuple[PieceState, ...]] = ("ready", "later", "claimed", "withheld")
"""The states of pieces; a row has their index."""
READY, LATER, CLAIMED, WITHHELD = range(4)
OPEN = "open"
"""The name of the row of `totals` that counts open jobs; the others count pieces by segment, lane and state."""

APPLICATION_ID: Final = 0x4C4C474A
"""The application id in the header of jobs files: `LLGJ`."""

_PIECE = "{0}.segment || '/' || ({0}.rank >> 1) || '/' || {0}.state"


def _count(name: str, change: int) -> str:
    return (
        f"INSERT INTO totals VALUES ({name}, {change}, 0) "
        "ON CONFLICT (name) DO UPDATE SET entries = entries + excluded.entries"
    )


_OPENED = (
    "INSERT INTO tenants VALUES (NEW.tenant, 1) ON CONFLICT (tenant) DO UPDATE SET open = open + 1",
    _count(f"'{OPEN}'", 1),
)
_ENDED = (
    "UPDATE tenants SET open = open - 1 WHERE tenant = OLD.tenant",
    "DELETE FROM tenants WHERE tenant = OLD.tenant AND open <= 0",
    _count(f"'{OPEN}'", -1),
)

_FIRST = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO meta VALUES ('starts', 0), ('probes', 0)",
    "CREATE TABLE totals (name TEXT PRIMARY KEY, entries INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID",
    # `held`: it is paused, or to stop. `due` is the deadline while it has a say, `taken` the number of the accept that it
    # came with. AUTOINCREMENT: a page that goes on behind the last job must not find a newer one in its place.
    "CREATE TABLE jobs (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, "
    "kind TEXT NOT NULL, state TEXT NOT NULL, held INTEGER NOT NULL, due REAL, ended REAL, reads TEXT NOT NULL, "
    "taken INTEGER NOT NULL, "
    "body BLOB NOT NULL)",
    "CREATE INDEX jobs_tenant ON jobs (tenant, kind)",
    "CREATE INDEX jobs_due ON jobs (due) WHERE due IS NOT NULL",
    "CREATE INDEX jobs_ended ON jobs (ended) WHERE ended IS NOT NULL",
    "CREATE INDEX jobs_reads ON jobs (reads) WHERE reads != '' AND ended IS NULL",
    "CREATE TABLE tenants (tenant TEXT PRIMARY KEY, open INTEGER NOT NULL) WITHOUT ROWID",
    f"CREATE TRIGGER jobs_in AFTER INSERT ON jobs BEGIN {'; '.join(_OPENED)}; END",
    "CREATE TRIGGER jobs_end AFTER UPDATE OF ended ON jobs WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL "
    f"BEGIN {'; '.join(_ENDED)}; END",
    f"CREATE TRIGGER jobs_out AFTER DELETE ON jobs WHEN OLD.ended IS NULL BEGIN {'; '.join(_ENDED)}; END",
    "CREATE TABLE payloads (job INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE answers (job INTEGER PRIMARY KEY, about BLOB NOT NULL, body BLOB NOT NULL)",
    # `rank` is twice the lane's, one more for what is not urgent; `turn` grows with each piece that begins to wait.
    "CREATE TABLE pieces (job INTEGER NOT NULL, piece INTEGER NOT NULL, segment TEXT NOT NULL, rank INTEGER NOT NULL, "
    "state INTEGER NOT NULL, ready_at REAL NOT NULL, turn INTEGER NOT NULL, claims INTEGER NOT NULL, "
    "fence INTEGER NOT NULL, PRIMARY KEY (job, piece)) WITHOUT ROWID",
    *(
        f"CREATE INDEX pieces_{name} ON pieces (segment, rank, ready_at, turn) WHERE state = {state}"
        for state, name in enumerate(STATES)
    ),
    f"CREATE TRIGGER pieces_in AFTER INSERT ON pieces BEGIN {_count(_PIECE.format('NEW'), 1)}; END",
    f"CREATE TRIGGER pieces_out AFTER DELETE ON pieces BEGIN {_count(_PIECE.format('OLD'), -1)}; END",
    "CREATE TRIGGER pieces_on AFTER UPDATE OF state ON pieces WHEN NEW.state != OLD.state "
    f"BEGIN {_count(_PIECE.format('OLD'), -1)}; {_count(_PIECE.format('NEW'), 1)}; END",
    "CREATE TABLE plans (job INTEGER PRIMARY KEY, total INTEGER NOT NULL, lines INTEGER NOT NULL, "
    "parallel INTEGER NOT NULL, next INTEGER NOT NULL)",
    "CREATE TABLE lines (job INTEGER NOT NULL, chunk INTEGER NOT NULL, line INTEGER NOT NULL, failed INTEGER NOT NULL, "
    "input INTEGER NOT NULL, cached INTEGER NOT NULL, output INTEGER NOT NULL, cost REAL NOT NULL, text BLOB NOT NULL, "
    "PRIMARY KEY (job, chunk, line)) WITHOUT ROWID",
    "CREATE TABLE chunks (job INTEGER NOT NULL, chunk INTEGER NOT NULL, output TEXT NOT NULL, "
    "output_bytes INTEGER NOT NULL, errors TEXT NOT NULL, errors_bytes INTEGER NOT NULL, PRIMARY KEY (job, chunk)) "
    "WITHOUT ROWID",
    "CREATE TABLE dedupe (key BLOB PRIMARY KEY, job INTEGER NOT NULL, fingerprint BLOB NOT NULL, until REAL NOT NULL) "
    "WITHOUT ROWID",
    "CREATE INDEX dedupe_job ON dedupe (job)",
    "CREATE INDEX dedupe_until ON dedupe (until)",
    "CREATE TABLE debounce (key BLOB PRIMARY KEY, job INTEGER NOT NULL, times INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX debounce_job ON debounce (job)",
    # `gone` is when a file was removed: its row keeps its place for a while, so that a list can go on behind it.
    "CREATE TABLE files (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, "
    "purpose TEXT NOT NULL, filename TEXT NOT NULL, bytes INTEGER NOT NULL, created REAL NOT NULL, expires REAL, "
    "blob TEXT NOT NULL, gone REAL)",
    "CREATE INDEX files_tenant ON files (tenant)",
    "CREATE INDEX files_blob ON files (blob) WHERE gone IS NULL",
    "CREATE INDEX files_expires ON files (expires) WHERE gone IS NULL AND expires IS NOT NULL",
    "CREATE INDEX files_gone ON files (gone) WHERE gone IS NOT NULL",
    "CREATE TABLE garbage (blob TEXT PRIMARY KEY) WITHOUT ROWID",
)

_DEAD_LETTERS = (
    # `dead`: the job has a dead letter that can be redriven; it is not forgotten.
    "ALTER TABLE jobs ADD COLUMN dead INTEGER NOT NULL DEFAULT 0",
    "DROP INDEX jobs_ended",
    "CREATE INDEX jobs_ended ON jobs (ended) WHERE ended IS NOT NULL AND dead = 0",
    # `open`: it is counted in its group, `grp`.
    "CREATE TABLE dead (id TEXT PRIMARY KEY, grp TEXT NOT NULL, at REAL NOT NULL, open INTEGER NOT NULL, "
    "bytes INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE INDEX dead_group ON dead (grp, at, id) WHERE open = 1",
    "CREATE INDEX dead_at ON dead (at, id)",
    "CREATE INDEX dead_bytes ON dead (at, id) WHERE bytes > 0",
    "CREATE TABLE dead_groups (id TEXT PRIMARY KEY, kind TEXT NOT NULL, class TEXT NOT NULL, model TEXT NOT NULL, "
    "template TEXT NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID",
)


def _file_bytes(row: str, sign: str) -> str:
    """Counts the bytes of a row of `files`, which has not gone, for its tenant and for all."""
    return "; ".join(
        f"INSERT INTO file_bytes SELECT {whose}, {sign}{row}.bytes WHERE {row}.gone IS NULL "
        "ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes"
        for whose in (f"{row}.tenant", "''")
    )


_TOTALS = (
    "ALTER TABLE lines ADD COLUMN reasoning INTEGER NOT NULL DEFAULT 0",
    # Tells this file from all others: blobs that it does not know are only garbage where nobody else keeps any.
    "INSERT INTO meta VALUES ('identity', random() & 9223372036854775807)",
    # Under '' are the bytes of everybody, which no tenant is called.
    "CREATE TABLE file_bytes (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO file_bytes SELECT tenant, sum(bytes) FROM files WHERE gone IS NULL GROUP BY tenant",
    "INSERT INTO file_bytes SELECT '', sum(bytes) FROM file_bytes HAVING count(*) > 0",
    f"CREATE TRIGGER files_in AFTER INSERT ON files BEGIN {_file_bytes('NEW', '')}; END",
    f"CREATE TRIGGER files_out AFTER DELETE ON files BEGIN {_file_bytes('OLD', '-')}; END",
    "CREATE TRIGGER files_on AFTER UPDATE OF tenant, bytes, gone ON files "
    f"BEGIN {_file_bytes('OLD', '-')}; {_file_bytes('NEW', '')}; END",
    "CREATE TRIGGER file_bytes_on AFTER UPDATE ON file_bytes WHEN NEW.bytes = 0 "
    "BEGIN DELETE FROM file_bytes WHERE tenant = NEW.tenant; END",
)


def _response_bytes(row: str, sign: str) -> str:
    return (
        f"INSERT INTO response_bytes VALUES ({row}.tenant, {sign}{row}.bytes) "
        "ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes"
    )


_RESPONSES = (
    # `next` is the first event that the log lacks; `cut`: it has no parts, and gets none from this claim.
    "CREATE TABLE event_logs (job INTEGER PRIMARY KEY, fence INTEGER NOT NULL, next INTEGER NOT NULL, "
    "bytes INTEGER NOT NULL, cut INTEGER NOT NULL)",
    "CREATE TABLE events (job INTEGER NOT NULL, last INTEGER NOT NULL, first INTEGER NOT NULL, frames BLOB NOT NULL, "
    "PRIMARY KEY (job, last)) WITHOUT ROWID",
    # One that is put again is a new row, the last of all; none changes.
    "CREATE TABLE responses (seq INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, id TEXT NOT NULL, "
    "created REAL NOT NULL, keep_until REAL NOT NULL, previous TEXT NOT NULL, bytes INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX responses_id ON responses (tenant, id)",
    "CREATE INDEX responses_first ON responses (tenant)",
    "CREATE INDEX responses_over ON responses (keep_until)",
    "CREATE TABLE response_bodies (response INTEGER PRIMARY KEY, body BLOB NOT NULL, input BLOB NOT NULL)",
    "CREATE TABLE response_bytes (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID",
    f"CREATE TRIGGER responses_in AFTER INSERT ON responses BEGIN {_response_bytes('NEW', '')}; END",
    f"CREATE TRIGGER responses_out AFTER DELETE ON responses BEGIN {_response_bytes('OLD', '-')}; END",
    "CREATE TRIGGER response_bytes_on AFTER UPDATE ON response_bytes WHEN NEW.bytes <= 0 AND NOT EXISTS "
    "(SELECT 1 FROM responses WHERE tenant = NEW.tenant) "
    "BEGIN DELETE FROM response_bytes WHERE tenant = NEW.tenant; END",
    "CREATE TABLE removed_responses (tenant TEXT NOT NULL, id TEXT NOT NULL, until REAL NOT NULL, "
    "PRIMARY KEY (tenant, id)) WITHOUT ROWID",
    "CREATE INDEX removed_responses_over ON removed_responses (until)",
)

_RUNS = (
    "CREATE TABLE runs (seq INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, run TEXT NOT NULL, "
    "created REAL NOT NULL, touched REAL NOT NULL, bytes INTEGER NOT NULL, steps INTEGER NOT NULL, record BLOB NOT NULL, "
    "UNIQUE (tenant, run))",
    "CREATE INDEX runs_tenant ON runs (tenant)",
    "CREATE INDEX runs_touched ON runs (touched)",
    "CREATE INDEX runs_oldest ON runs (tenant, touched)",
    "CREATE TABLE steps (seq INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL, step TEXT NOT NULL, "
    "until REAL NOT NULL, bytes INTEGER NOT NULL, about BLOB NOT NULL, UNIQUE (run, step))",
    "CREATE INDEX steps_run ON steps (run)",
    "CREATE TABLE step_bodies (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE run_bytes (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID",
    # A step's bytes are counted in its run, a run's for its tenant; what goes takes with it what it had.
    "CREATE TRIGGER runs_in AFTER INSERT ON runs BEGIN INSERT INTO run_bytes VALUES (NEW.tenant, NEW.bytes) "
    "ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes; END",
    "CREATE TRIGGER runs_on AFTER UPDATE OF bytes ON runs BEGIN "
    "UPDATE run_bytes SET bytes = bytes + NEW.bytes - OLD.bytes WHERE tenant = NEW.tenant; END",
    "CREATE TRIGGER runs_out AFTER DELETE ON runs BEGIN "
    "UPDATE run_bytes SET bytes = bytes - OLD.bytes WHERE tenant = OLD.tenant; "
    "DELETE FROM run_bytes WHERE tenant = OLD.tenant AND bytes <= 0; "
    "DELETE FROM steps WHERE run = OLD.seq; END",
    "CREATE TRIGGER steps_in AFTER INSERT ON steps BEGIN "
    "UPDATE runs SET bytes = bytes + NEW.bytes, steps = steps + 1 WHERE seq = NEW.run; END",
    "CREATE TRIGGER steps_out AFTER DELETE ON steps BEGIN DELETE FROM step_bodies WHERE seq = OLD.seq; "
    "UPDATE runs SET bytes = bytes - OLD.bytes, steps = steps - 1 WHERE seq = OLD.run; END",
)

_PARENTS = (
    "ALTER TABLE jobs ADD COLUMN parent TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX jobs_parent ON jobs (parent) WHERE parent != ''",
    # `news`: a child of a claimed run has ended since it was claimed, or it was told to stop.
    "ALTER TABLE pieces ADD COLUMN news INTEGER NOT NULL DEFAULT 0",
    # What is a step of a run counts as open with the run.
    *(f"DROP TRIGGER jobs_{name}" for name in ("in", "end", "out")),
    f"CREATE TRIGGER jobs_in AFTER INSERT ON jobs WHEN NEW.parent = '' BEGIN {'; '.join(_OPENED)}; END",
    "CREATE TRIGGER jobs_end AFTER UPDATE OF ended ON jobs "
    "WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL AND OLD.parent = '' "
    f"BEGIN {'; '.join(_ENDED)}; END",
    "CREATE TRIGGER jobs_out AFTER DELETE ON jobs WHEN OLD.ended IS NULL AND OLD.parent = '' "
    f"BEGIN {'; '.join(_ENDED)}; END",
)

_OPEN_BODY = ", ".join(f"'$[{at}]', json_extract(CAST(body AS TEXT), '$[{at}]') + :by_s" for at in (5, 6, 7, 14))
"""The moved times of `_body`: created, to begin, deadline, started."""
_MOVES = (
    "UPDATE pieces SET ready_at = ready_at + :by_s",
    "UPDATE jobs SET due = due + :by_s, body = CAST(json_set(CAST(body AS TEXT), " + _OPEN_BODY + ") AS BLOB) "
    "WHERE ended IS NULL",
    "UPDATE jobs SET ended = ended + :by_s WHERE ended IS NOT NULL",
    "UPDATE dedupe SET until = until + :by_s",
    "UPDATE files SET created = created + :by_s, expires = expires + :by_s, gone = gone + :by_s",
    "UPDATE dead SET at = at + :by_s",
    "UPDATE responses SET created = created + :by_s, keep_until = keep_until + :by_s",
    "UPDATE removed_responses SET until = until + :by_s",
    "UPDATE runs SET created = created + :by_s, touched = touched + :by_s",
    "UPDATE steps SET until = until + :by_s",
)

JOBS_FILE = FileKind(
    name="jobs file",
    setting="`jobs.store`",
    application_id=APPLICATION_ID,
    migrations=(_FIRST, _DEAD_LETTERS, _TOTALS, _RESPONSES, _RUNS, _PARENTS),
    when_damaged="Put a backup in its place (`gateway jobs backup FILE` makes one), without the -wal file beside it, or try "
    "`sqlite3 FILE .recover`. Moved away, with the -wal file, it is replaced by an empty one: then the jobs in it are lost, "
    "with their answers.",
    when_failing="Jobs are refused with 503 jobs_unavailable until the file works again; plain calls go on. "
    "There has to be room on a disk that works; a broken file is to be replaced by a backup, or moved away.",
    when_stalled="jobs are refused until it answers; plain calls go on.",
    when_replaced="Stop the gateway first.",
    page_bytes=8192,
    moves=_MOVES,
)
"""Pages are twice as large as usual: payloads of about 1 KB, of which most jobs consist, fill them with less left over."""
