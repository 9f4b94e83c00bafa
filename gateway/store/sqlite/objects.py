"""Whose the objects at providers are, in the file: the tenant of each, and when it was last asked for.

Nobody else has the file, so what was read or written once is in this process's memory besides, as far as there is room, and
while the disk fails that is what counts. Invariants: what is owned survives the process when that is said; a disk that says
nothing is not taken for one that has nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

from gateway.ports import Later
from gateway.store.memory.objects import MemoryObjects, say_that_objects_go
from gateway.store.sqlite.file import File
from gateway.store.sqlite.thread import FileThread

FRONT = 65_536
"""In memory, at most."""
USED_AGAIN_S = 86_400.0
"""That one was asked for is written down so often: it decides only which go first."""
SLACK = 256
"""When some have to go, so many go with them."""
BYTES = 128
"""What one takes while it waits to be written."""


class SqliteObjects:
    """`gateway.ports.Objects`."""

    def __init__(self, thread: FileThread, file: File, wall: Callable[[], float], bound: int) -> None:
        self._thread = thread
        self._file = file
        self._wall = wall
        self._bound = bound
        self._front = MemoryObjects(min(bound, FRONT), says=False)
        self._has_warned = False
        self.lost = 0

    def configure(self, bound: int) -> None:
        """Keep to so many."""
        self._has_warned = self._has_warned and bound == self._bound
        self._bound = bound
        self._front.configure(min(bound, FRONT))

    @property
    def entries(self) -> int:
        """As of the last write."""
        return next((entries for name, entries, _ in self._file.totals if name == "objects"), 0)

    def own(self, objects: Sequence[bytes], tenant: str) -> Later[Sequence[str] | None]:
        """They are this tenant's from now on, unless they are somebody's; done when the disk has it."""
        known = self._front.owners(objects)
        if None not in known:
            return [owner for owner in known if owner is not None]
        now = self._wall()
        future: asyncio.Future[Sequence[str] | None] = asyncio.get_running_loop().create_future()

        def written(owners: Sequence[str] | None) -> None:
            if owners is None:  # it is owed to the disk; until then it is known here
                owners = self._front.own(objects, tenant)
            for one, owner in zip(objects, owners, strict=True):
                self._front.own((one,), owner)
            if not future.done():
                future.set_result(owners)

        self._thread.ask(
            lambda db: self._write(db, objects, tenant, now), None, written, "durable", BYTES * len(objects)
        )
        return future

    def owners(self, objects: Sequence[bytes]) -> Later[Sequence[str | None] | None]:
        """Whose each is."""
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
                self._thread.tell(lambda db: _use(db, late, now), BYTES * len(late))
            if not future.done():
                future.set_result(self._front.owners(objects))

        self._thread.ask(lambda db: _look(db, objects), None, looked)
        return future

    def disown(self, objects: Sequence[bytes]) -> Later[bool]:
        """They are nobody's any more."""
        self._front.disown(objects)
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def gone(is_done: bool) -> None:
            self._front.disown(objects)  # somebody may have looked meanwhile
            if not future.done():
                future.set_result(is_done)

        self._thread.ask(lambda db: _drop(db, objects), False, gone, "durable", BYTES * len(objects))
        return future

    # From here on: the thread.

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
            say_that_objects_go(self._bound)


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
