"""Deletes rows so that the file keeps to its bounds: the least recently used, the oldest, the expired ones.

The file's thread uses it. Invariants: a commit leaves the tables within their bounds (after a bound was lowered: some ticks
later); no step takes long; a record that is dropped before its time is logged and counted, and a tenant with more than its
share loses its own records first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from gateway.core.ports import TENANTS_SHARE
from gateway.core.types.process import StoreBounds
from gateway.drivers.sqlite.file import Total
from gateway.features.reuse.memory.early_evictions import EarlyEvictions
from gateway.products.jobs.sqlite_rows.jobs import Rest

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
    """Keeps the file to its bounds; another thread may call `configure`."""

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
