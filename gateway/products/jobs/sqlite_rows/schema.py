"""The tables of the jobs file.

Small rows that are searched lie apart from bodies that are only fetched: a million payloads stay out of the way of a claim.
What waits is found in partial indexes, each of which has the pieces of one state only.
"""

from __future__ import annotations

from typing import Final

from gateway.drivers.sqlite_store.opening import FileKind
from gateway.features.runs.sqlite.sqlite_rows import MIGRATION as RUNS
from gateway.products.jobs.transitions.transitions import PieceState

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
    # `dead`: the job has a dead letter that can be replayed; it is not forgotten.
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

JOBS_FILE = FileKind(
    name="jobs file",
    setting="`jobs.store`",
    application_id=APPLICATION_ID,
    migrations=(_FIRST, _DEAD_LETTERS, _TOTALS, _RESPONSES, RUNS, _PARENTS),
    when_damaged="Put a backup in its place (`gateway jobs backup FILE` makes one), without the -wal file beside it, or try "
    "`sqlite3 FILE .recover`. Moved away, with the -wal file, it is replaced by an empty one: then the jobs in it are lost, "
    "with their answers.",
    when_failing="Jobs are refused with 503 jobs_unavailable until the file works again; plain calls go on. "
    "There has to be room on a disk that works; a broken file is to be replaced by a backup, or moved away.",
    when_stalled="jobs are refused until it answers; plain calls go on.",
    when_replaced="Stop the gateway first.",
    page_bytes=8192,
)
"""Pages are twice as large as usual: payloads of about 1 KB, of which most jobs consist, fill them with less left over."""
