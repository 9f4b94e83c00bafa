"""What has to go from the file, so that it keeps to its bounds: the least recently used, the oldest, what has run out.

Used by the thread that has the file. Invariants: what is committed is within the bounds, unless one was lowered, which takes
some ticks; nothing takes long; a record that was still wanted does not go unsaid, nor for a tenant with more than its share.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence

from gateway.policy.snapshot import StoreBounds
from gateway.ports import TENANTS_SHARE
from gateway.store.sqlite.file import Total
from gateway.store.sqlite.jobs import Rest

log = logging.getLogger("gateway.store")

VECTOR_BYTES = 1024 * 1024 * 1024
"""Of all partitions together."""
SLACK = 64
"""When something has to go, this part of the bound goes with it, so that not every write has to make room."""
ROWS_AT_ONCE, STEPS = 200, 20
"""Dropped in one step, and steps in one transaction."""
FREE_PAGES, FREED_PAGES = 256, 256
"""So many unused pages are left for new rows, or a quarter of the file; of more, some are given back at a time."""

_FIRST_TO_GO = {
    "records": "SELECT id, bytes, expires FROM records WHERE ? = '' ORDER BY id LIMIT ?",
    "answers": "SELECT id, bytes, 0 FROM answers WHERE grp = ? ORDER BY used LIMIT ?",
    "vectors": "SELECT id, bytes, 0 FROM vectors WHERE ? = '' ORDER BY id LIMIT ?",
}
_FIRST_OF_TENANT = "SELECT id, bytes, expires FROM records WHERE tenant = ? ORDER BY id LIMIT ?"
_GREEDY = "SELECT tenant, bytes FROM shares WHERE bytes > ? AND (SELECT COUNT(*) FROM shares) > 1 LIMIT 1"
_DROP = {table: f"DELETE FROM {table} WHERE id = ?" for table in _FIRST_TO_GO}  # noqa: S608 - names from above
_EXPIRE = {
    table: f"DELETE FROM {table} WHERE id IN "  # noqa: S608
    f"(SELECT id FROM {table} WHERE expires <= ? ORDER BY expires LIMIT {ROWS_AT_ONCE})"
    for table in _FIRST_TO_GO
}


class Eviction:
    """Makes room in the file; `configure` may be called from elsewhere."""

    def __init__(self, bounds: StoreBounds, wall: Callable[[], float]) -> None:
        self._bounds = bounds
        self._wall = wall
        self._is_over = False
        """More has to go than could in one transaction."""
        self._is_told = False
        self.early = 0
        """Records that went before their time, since the start."""

    def configure(self, bounds: StoreBounds) -> None:
        """Keep to these; of a bound for records that turns out too low as well, it is said again."""
        self._is_told = self._is_told and bounds.records == self._bounds.records
        self._bounds = bounds

    def keep_to_bounds(self, db: sqlite3.Connection, totals: Sequence[Total]) -> bool:
        """Called before a commit; whether something had to go."""
        over = [(name, size - self._bound_of(name)) for name, _, size in totals if size > self._bound_of(name)]
        self._is_over = False
        for name, size in over:
            self._drop(db, name, size + self._bound_of(name) // SLACK)
        return bool(over)

    def tidy(self, db: sqlite3.Connection, now: float) -> Rest | None:
        """Do a part of what has to be done now and then; or what is left of it."""
        is_more = self._is_over
        for expire in _EXPIRE.values():
            is_more = db.execute(expire, (now,)).rowcount >= ROWS_AT_ONCE or is_more
        is_more = _give_back(db) or is_more
        return Rest(lambda db: self.tidy(db, now)) if is_more else None

    def records_go(self) -> None:
        """An answer goes although it was to be given again: said once, and counted."""
        self.early += 1
        if not self._is_told:
            self._is_told = True
            log.warning(
                "No room for all answers that are to be replayed to those who repeat an Idempotency-Key: the oldest are "
                "dropped early, and such a call would be paid for again. Raise idempotency.max_bytes in cache.yaml (now %d).",
                self._bounds.records,
            )

    def _bound_of(self, name: str) -> int:
        table, _, group = name.partition("/")
        if table == "answers":
            return self._bounds.answers.get(group, 0)
        return self._bounds.records if table == "records" else VECTOR_BYTES

    def _drop(self, db: sqlite3.Connection, name: str, size: int) -> None:
        """Let so many bytes go, or as many as can in bounded time."""
        table, _, group = name.partition("/")
        for _ in range(STEPS):
            most = size
            first = db.execute(_FIRST_TO_GO[table], (group, ROWS_AT_ONCE))
            if table == "records" and (greedy := self._greedy(db)) is not None:
                most = min(size, greedy[1])
                first = db.execute(_FIRST_OF_TENANT, (greedy[0], ROWS_AT_ONCE))
            gone = []
            for row, row_size, expires in first:
                if most <= 0:
                    break
                gone.append((row,))
                most -= row_size
                size -= row_size
                if table == "records" and expires > self._wall():
                    self.records_go()
            db.executemany(_DROP[table], gone)
            if size <= 0 or not gone:
                return
        self._is_over = True

    def _greedy(self, db: sqlite3.Connection) -> tuple[str, int] | None:
        """Of several tenants with records the one who has more than a share of the room, and how much of it may go."""
        bound = self._bounds.records
        found = db.execute(_GREEDY, (int(bound * TENANTS_SHARE),)).fetchone()
        return None if found is None else (found[0], found[1] - int(bound * TENANTS_SHARE) + bound // SLACK)


def _give_back(db: sqlite3.Connection) -> bool:
    """Make the file smaller, where a good part of it is unused; whether there is more to do."""
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    if free <= max(FREE_PAGES, pages // 4):
        return False
    db.execute(f"PRAGMA incremental_vacuum({FREED_PAGES})").fetchall()
    return True
