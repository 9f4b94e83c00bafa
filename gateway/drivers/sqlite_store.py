"""A store in one file: answers that were paid for outlive the process.

The tables of the file come first, then the eviction of rows that keeps it to its bounds, then the store, which divides memory
and file among its parts. `sqlite_file.py` opens the file, `sqlite.py` runs its thread. Invariants: only opening waits
for the disk, and only opening raises; after that a failing disk costs answers, never calls. Neither prompts nor credentials
are stored: keys are digests.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from gateway.core.clock import Ahead, never_ahead
from gateway.core.types import StoreBounds
from gateway.drivers.memory import EarlyEvictions, MemoryAnswers
from gateway.drivers.sqlite import File, FileThread, Rest, Total, Trouble
from gateway.drivers.sqlite_answers import SqliteAnswers, SqliteRecords
from gateway.drivers.sqlite_file import Connect, FileKind
from gateway.drivers.store import TENANTS_SHARE, Answers, Records

APPLICATION_ID = 0x4C4C4757
"""The application id in the header of the gateway's files: `LLGW`."""


def _counted(table: str, name: str) -> tuple[str, ...]:
    """Returns triggers that keep `totals` true; unlike counters of the process they are rolled back with a transaction."""
    new, old = name.format("NEW"), name.format("OLD")
    added = f"INSERT INTO totals VALUES ({new}, 1, NEW.bytes)"
    counted = "ON CONFLICT (name) DO UPDATE SET entries = entries + 1, bytes = bytes + excluded.bytes"
    removed = f"UPDATE totals SET entries = entries - 1, bytes = bytes - OLD.bytes WHERE name = {old}"
    return (
        f"CREATE TRIGGER {table}_in AFTER INSERT ON {table} BEGIN {added} {counted}; END",
        f"CREATE TRIGGER {table}_out AFTER DELETE ON {table} BEGIN {removed}; END",
    )


_FIRST = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO meta VALUES ('starts', 0), ('probes', 0)",
    "CREATE TABLE totals (name TEXT PRIMARY KEY, entries INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID",
    # What is read to find or to drop a row comes before its body: long bodies lie on pages of their own.
    "CREATE TABLE records (id INTEGER PRIMARY KEY, record BLOB NOT NULL UNIQUE, fingerprint BLOB NOT NULL, "
    "expires REAL NOT NULL, bytes INTEGER NOT NULL, about BLOB NOT NULL, body BLOB NOT NULL)",
    "CREATE INDEX records_expires ON records (expires)",
    *_counted("records", "'records'"),
    "CREATE TABLE answers (id INTEGER PRIMARY KEY, key BLOB NOT NULL, grp TEXT NOT NULL, tenant TEXT NOT NULL, "
    "model TEXT NOT NULL, used INTEGER NOT NULL, expires REAL NOT NULL, bytes INTEGER NOT NULL, about BLOB NOT NULL, "
    "body BLOB NOT NULL, UNIQUE (key, grp))",
    "CREATE INDEX answers_used ON answers (grp, used)",
    "CREATE INDEX answers_expires ON answers (expires)",
    "CREATE INDEX answers_owner ON answers (tenant, model)",
    *_counted("answers", "'answers/' || {}.grp"),
    "CREATE TABLE vectors (id INTEGER PRIMARY KEY, partition BLOB NOT NULL, key BLOB NOT NULL, tenant TEXT NOT NULL, "
    "model TEXT NOT NULL, stored REAL NOT NULL, expires REAL NOT NULL, bytes INTEGER NOT NULL, facts BLOB NOT NULL, "
    "vector BLOB NOT NULL, UNIQUE (partition, key))",
    "CREATE INDEX vectors_partition ON vectors (partition)",
    "CREATE INDEX vectors_key ON vectors (key)",
    "CREATE INDEX vectors_expires ON vectors (expires)",
    "CREATE INDEX vectors_owner ON vectors (tenant, model)",
    *_counted("vectors", "'vectors'"),
    "CREATE TABLE partitions (partition BLOB PRIMARY KEY, entries INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TRIGGER partitions_in AFTER INSERT ON vectors BEGIN INSERT INTO partitions VALUES (NEW.partition, 1) "
    "ON CONFLICT (partition) DO UPDATE SET entries = entries + 1; END",
    "CREATE TRIGGER partitions_out AFTER DELETE ON vectors BEGIN "
    "UPDATE partitions SET entries = entries - 1 WHERE partition = OLD.partition; "
    "DELETE FROM partitions WHERE partition = OLD.partition AND entries <= 0; END",
)

_OBJECTS = (
    "CREATE TABLE objects (id INTEGER PRIMARY KEY, object BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL, used REAL NOT NULL)",
    "CREATE INDEX objects_used ON objects (used)",
    "CREATE TRIGGER objects_in AFTER INSERT ON objects BEGIN INSERT INTO totals VALUES ('objects', 1, 0) "
    "ON CONFLICT (name) DO UPDATE SET entries = entries + 1; END",
    "CREATE TRIGGER objects_out AFTER DELETE ON objects BEGIN "
    "UPDATE totals SET entries = entries - 1 WHERE name = 'objects'; END",
)

_SHARES = (
    # Whose a record is, so that one tenant's take nobody else's room; of those that were there before, nobody's.
    "ALTER TABLE records ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX records_tenant ON records (tenant, id)",
    "CREATE TABLE shares (tenant TEXT PRIMARY KEY, entries INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO shares SELECT tenant, COUNT(*), SUM(bytes) FROM records GROUP BY tenant",
    "CREATE TRIGGER shares_in AFTER INSERT ON records BEGIN INSERT INTO shares VALUES (NEW.tenant, 1, NEW.bytes) "
    "ON CONFLICT (tenant) DO UPDATE SET entries = entries + 1, bytes = bytes + excluded.bytes; END",
    "CREATE TRIGGER shares_out AFTER DELETE ON records BEGIN "
    "UPDATE shares SET entries = entries - 1, bytes = bytes - OLD.bytes WHERE tenant = OLD.tenant; "
    "DELETE FROM shares WHERE tenant = OLD.tenant AND entries <= 0; END",
)

STATE_FILE = FileKind(
    name="state file",
    setting="`state`",
    application_id=APPLICATION_ID,
    migrations=(_FIRST, _OBJECTS, _SHARES),
    moves=(
        "UPDATE records SET expires = expires + :by_s",
        "UPDATE answers SET expires = expires + :by_s",
        "UPDATE vectors SET stored = stored + :by_s, expires = expires + :by_s",
        "UPDATE objects SET used = used + :by_s",
    ),
    when_damaged="Put a backup in its place (`gateway state backup FILE` makes one), without the -wal file beside it, or try "
    "`sqlite3 FILE .recover`. Moved away, with the -wal file, it is replaced by an empty one: then answers that were kept are "
    "paid for again, and a repeated Idempotency-Key runs again.",
    when_failing="Calls go on; what they would leave for others is kept in memory only, until the file works again. "
    "There has to be room on a disk that works; a broken file is to be replaced by a backup, or moved away.",
    when_stalled="calls go on without it.",
    when_replaced="Stop the gateway first, or purge through its admin interface.",
)


# --- the eviction of rows ---

VECTOR_BYTES = 1024 * 1024 * 1024
"""The bound of all partitions of the semantic index together, in bytes."""
SLACK = 64
"""An eviction frees this fraction of the bound on top (1/64), so that not every write has to evict."""
ROWS_AT_ONCE, STEPS = 200, 20
"""Rows that one step drops, and steps in one transaction, at most."""
FREE_PAGES, FREED_PAGES = 256, 256
"""Unused pages left for new rows (or a quarter of the file, if more), and pages given back to the system in one step."""

_FIRST_TO_GO = {
    "records": "SELECT id, bytes, expires FROM records WHERE ? = '' ORDER BY id LIMIT ?",
    "answers": "SELECT id, bytes, 0 FROM answers WHERE grp = ? ORDER BY used LIMIT ?",
    "vectors": "SELECT id, bytes, 0 FROM vectors WHERE ? = '' ORDER BY id LIMIT ?",
}
_FIRST_OF_TENANT = "SELECT id, bytes, expires FROM records WHERE tenant = ? ORDER BY id LIMIT ?"
_LARGEST_TENANT = "SELECT tenant, bytes FROM shares WHERE bytes > ? AND (SELECT COUNT(*) FROM shares) > 1 LIMIT 1"
_DROP = {table: f"DELETE FROM {table} WHERE id = ?" for table in _FIRST_TO_GO}
_EXPIRE = {
    table: f"DELETE FROM {table} WHERE id IN "
    f"(SELECT id FROM {table} WHERE expires <= ? ORDER BY expires LIMIT {ROWS_AT_ONCE})"
    for table in _FIRST_TO_GO
}


class Eviction:
    """Keeps the file to its bounds, in the file's thread; another thread may call `configure`.

    Invariants: a commit leaves the tables within their bounds (after a bound was lowered: some ticks later); no step takes
    long; a record that is dropped before its time is logged and counted, and a tenant with more than its share loses its
    own records first.
    """

    def __init__(self, bounds: StoreBounds, wall: Callable[[], float]) -> None:
        self._bounds = bounds
        self._wall = wall
        self._is_over = False
        """The last transaction could not evict all that is over the bounds."""
        self.early = EarlyEvictions(bounds.records)

    def configure(self, bounds: StoreBounds) -> None:
        """Sets new bounds; a new bound for records that is too low is logged again."""
        self._bounds = bounds
        self.early.bound = bounds.records

    def keep_to_bounds(self, db: sqlite3.Connection, totals: Sequence[Total]) -> bool:
        """Evicts rows of tables over their bounds before a commit, and returns whether there were any."""
        over = [(name, size - self._bound_of(name)) for name, _, size in totals if size > self._bound_of(name)]
        self._is_over = False
        for name, size in over:
            self._drop(db, name, size + self._bound_of(name) // SLACK)
        return bool(over)

    def tidy(self, db: sqlite3.Connection, now: float) -> Rest | None:
        """Deletes some expired rows and gives back some unused pages; returns the rest of the work, None: there is none."""
        is_more = self._is_over
        for expire in _EXPIRE.values():
            is_more = db.execute(expire, (now,)).rowcount >= ROWS_AT_ONCE or is_more
        is_more = _give_back(db) or is_more
        return Rest(lambda db: self.tidy(db, now)) if is_more else None

    def _bound_of(self, name: str) -> int:
        table, _, group = name.partition("/")
        if table == "answers":
            return self._bounds.answers.get(group, 0)
        return self._bounds.records if table == "records" else VECTOR_BYTES

    def _drop(self, db: sqlite3.Connection, name: str, size: int) -> None:
        """Drops rows of at least `size` bytes, or as many as fit into bounded time."""
        table, _, group = name.partition("/")
        for _ in range(STEPS):
            most = size
            first = db.execute(_FIRST_TO_GO[table], (group, ROWS_AT_ONCE))
            if table == "records" and (largest := self._largest_tenant(db)) is not None:
                most = min(size, largest[1])
                first = db.execute(_FIRST_OF_TENANT, (largest[0], ROWS_AT_ONCE))
            gone = []
            for row, row_size, expires in first:
                if most <= 0:
                    break
                gone.append((row,))
                most -= row_size
                size -= row_size
                if table == "records" and expires > self._wall():
                    self.early.note()
            db.executemany(_DROP[table], gone)
            if size <= 0 or not gone:
                return
        self._is_over = True

    def _largest_tenant(self, db: sqlite3.Connection) -> tuple[str, int] | None:
        """Returns a tenant with more than its share, if there are several, and how many bytes to drop; else None."""
        bound = self._bounds.records
        found = db.execute(_LARGEST_TENANT, (int(bound * TENANTS_SHARE),)).fetchone()
        return None if found is None else (found[0], found[1] - int(bound * TENANTS_SHARE) + bound // SLACK)


def _give_back(db: sqlite3.Connection) -> bool:
    """Gives unused pages back where they are a good part of the file; returns whether it did, so that more may follow."""
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    if free <= max(FREE_PAGES, pages // 4):
        return False
    db.execute(f"PRAGMA incremental_vacuum({FREED_PAGES})").fetchall()
    return True


FRONT_PART = 4
FRONT_BYTES = 64 * 1024 * 1024
"""The cap on a group's answers in memory, which are otherwise a quarter of its bytes."""


# --- the store ---


class SqliteStore:
    """Implements `gateway.drivers.store.Store` on a file, for one event loop; the constructor opens it and
    raises StoreUnusable."""

    is_local: bool = False

    def __init__(
        self,
        path: str,
        wall: Callable[[], float],
        bounds: StoreBounds,
        *,
        ahead: Ahead = never_ahead,
        connect: Connect = sqlite3.connect,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._wall = wall
        trouble = Trouble(path, STATE_FILE, monotonic)
        self._room = Eviction(bounds, wall)
        self.file = File(path, STATE_FILE, connect, trouble, self._room.keep_to_bounds, ahead=ahead)
        self.thread = FileThread(self.file, trouble, monotonic)
        self.thread.start()
        self._front = MemoryAnswers(wall)
        self._front.configure(_front_of(bounds.answers))
        self._is_tidying = False
        first = self.file.starts << 32  # so that neither fences nor uses ever go back, whatever was before
        self._records = SqliteRecords(self.thread, self._room.early, wall, count(first), bounds.records)
        self._answers = SqliteAnswers(self.thread, self._front, wall, count(first), bounds.answers)
        self.records: Records = self._records
        self.answers: Answers = self._answers

    def configure(self, bounds: StoreBounds) -> None:
        """Sets new bounds; entries above a lowered bound are evicted step by step."""
        self._room.configure(bounds)
        self._front.configure(_front_of(bounds.answers))
        self._records.configure(bounds.records)
        self._answers.configure(bounds.answers)

    def tick(self) -> None:
        """Is called about once a second: deletes some expired entries, and gives up a disk that does not answer."""
        self.thread.watch()
        self._front.tick()
        self._records.tick()
        self._answers.tick(self.stats()["answers"]["entries"])
        if not self._is_tidying:
            self._is_tidying = True
            now = self._wall()
            self.thread.submit(lambda db: self._room.tidy(db, now), None, self._tidied, "cache")

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Returns the contents of the file as of its last write; while it cannot be used, those of memory."""
        stats = {use: {"entries": 0, "bytes": 0} for use in ("answers", "records", "vectors")}
        for name, entries, size in self.file.totals:
            if name == "objects":
                continue
            one = stats[name.partition("/")[0]]
            one["entries"] += entries
            one["bytes"] += size
        stats["records"]["entries"] += self._records.running
        stats["records"]["early"] = self._room.early.count
        return stats if self.thread.is_well else {**stats, "answers": self._front.stats()}

    @property
    def is_well(self) -> bool:
        """Returns whether an entry that is kept now is expected to outlive the process."""
        return self.thread.is_well

    @property
    def dropped(self) -> int:
        """Returns the number of cache writes that were dropped because the disk was too slow."""
        return self.thread.dropped

    async def backup(self, path: str) -> str | None:
        """Copies the file to `path`, which must not exist, while calls go on; returns an error message or None."""
        return await self.thread.backup(path)

    @property
    def path(self) -> str:
        return self._path

    async def aclose(self) -> None:
        """Takes nothing more, writes all that was taken, if the disk lets it, and closes the file."""
        self._answers.tick(0)
        await self.thread.aclose()

    def _tidied(self, _: None) -> None:
        self._is_tidying = False


def _front_of(bounds: Mapping[str, int]) -> dict[str, int]:
    return {group: min(size // FRONT_PART, FRONT_BYTES) for group, size in bounds.items()}
