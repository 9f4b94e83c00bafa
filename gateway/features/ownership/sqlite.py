"""The owners of objects at providers, in the file: the tenant of each, and the time of its last use.

No other process has the file, so owners that were read or written are also kept in memory, up to `FRONT`, and while the disk
fails memory decides. Invariants: an owner that was confirmed survives the process; a disk that does not answer is not taken
for an empty one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

from gateway.core.ports import Later
from gateway.drivers.sqlite import File, FileThread
from gateway.features.ownership.memory import MemoryObjects, warn_of_evictions

FRONT = 65_536
"""Objects in memory, at most."""
USED_AGAIN_S = 86_400.0
"""A use is written at most once in this many seconds, because it decides only the order of eviction."""
SLACK = 256
"""Objects that an eviction drops on top, so that not every write has to evict."""
BYTES = 128
"""The memory of one object that waits to be written."""


class SqliteObjects:
    """Implements `gateway.features.ownership.store.Objects`."""

    def __init__(self, thread: FileThread, file: File, wall: Callable[[], float], bound: int) -> None:
        self._thread = thread
        self._file = file
        self._wall = wall
        self._bound = bound
        self._front = MemoryObjects(min(bound, FRONT), is_logged=False)
        self._has_warned = False
        self.lost = 0

    def configure(self, bound: int) -> None:
        self._has_warned = self._has_warned and bound == self._bound
        self._bound = bound
        self._front.configure(min(bound, FRONT))

    @property
    def entries(self) -> int:
        """Returns the number of objects as of the last write."""
        return next((entries for name, entries, _ in self._file.totals if name == "objects"), 0)

    def own(self, objects: Sequence[bytes], tenant: str) -> Later[Sequence[str] | None]:
        """Makes the tenant the owner of objects that have none; returns the owner of each once the disk has it."""
        known = self._front.owners(objects)
        if None not in known:
            return [owner for owner in known if owner is not None]
        now = self._wall()
        future: asyncio.Future[Sequence[str] | None] = asyncio.get_running_loop().create_future()

        def written(owners: Sequence[str] | None) -> None:
            if owners is None:  # the disk takes it later; until then memory has the only copy
                owners = self._front.own(objects, tenant)
            for one, owner in zip(objects, owners, strict=True):
                self._front.own((one,), owner)
            if not future.done():
                future.set_result(owners)

        self._thread.submit(
            lambda db: self._write(db, objects, tenant, now), None, written, "durable", BYTES * len(objects)
        )
        return future

    def owners(self, objects: Sequence[bytes]) -> Later[Sequence[str | None] | None]:
        known = self._front.owners(objects)
        if None not in known:
            return known
        now = self._wall()
        future: asyncio.Future[Sequence[str | None] | None] = asyncio.get_running_loop().create_future()

        def looked(found: dict[bytes, tuple[str, float]] | None) -> None:
            if found is None:
                if not future.done():
                    future.set_result(None)
                return
            for one, (owner, _) in found.items():
                self._front.own((one,), owner)
            late = [one for one, (_, used) in found.items() if used < now - USED_AGAIN_S]
            if late:
                self._thread.queue_write(lambda db: _use(db, late, now), BYTES * len(late))
            if not future.done():
                future.set_result(self._front.owners(objects))

        self._thread.submit(lambda db: _look(db, objects), None, looked)
        return future

    def disown(self, objects: Sequence[bytes]) -> Later[bool]:
        self._front.disown(objects)
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def gone(is_done: bool) -> None:
            self._front.disown(objects)  # a look-up may have brought an owner back meanwhile
            if not future.done():
                future.set_result(is_done)

        self._thread.submit(lambda db: _drop(db, objects), False, gone, "durable", BYTES * len(objects))
        return future

    # The methods below run in the thread.

    def _write(self, db: sqlite3.Connection, objects: Sequence[bytes], tenant: str, now: float) -> list[str]:
        db.executemany(
            "INSERT INTO objects (object, tenant, used) VALUES (?, ?, ?) ON CONFLICT (object) DO NOTHING",
            [(one, tenant, now) for one in objects],
        )
        found = _look(db, objects)
        self._make_room(db)
        return [found[one][0] for one in objects]

    def _make_room(self, db: sqlite3.Connection) -> None:
        row = db.execute("SELECT entries FROM totals WHERE name = 'objects'").fetchone()
        over = (row[0] if row else 0) - self._bound
        if over <= 0:
            return
        spare = min(SLACK, self._bound // 16)
        db.execute(
            "DELETE FROM objects WHERE id IN (SELECT id FROM objects ORDER BY used, id LIMIT ?)", (over + spare,)
        )
        self.lost += over + spare
        if not self._has_warned:
            self._has_warned = True
            warn_of_evictions(self._bound)


def _look(db: sqlite3.Connection, objects: Sequence[bytes]) -> dict[bytes, tuple[str, float]]:
    found = {}
    for one in objects:
        row = db.execute("SELECT tenant, used FROM objects WHERE object = ?", (one,)).fetchone()
        if row is not None:
            found[one] = row
    return found


def _use(db: sqlite3.Connection, objects: Sequence[bytes], now: float) -> None:
    db.executemany("UPDATE objects SET used = ? WHERE object = ?", [(now, one) for one in objects])


def _drop(db: sqlite3.Connection, objects: Sequence[bytes]) -> bool:
    db.executemany("DELETE FROM objects WHERE object = ?", [(one,) for one in objects])
    return True
