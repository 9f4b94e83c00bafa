"""The exact cache: hot answers in memory, all answers in the file.

Invariants: a hit in memory neither asks the file nor writes to it; a call never waits for a write; answers go in the order of
their last use, with one approximation: an answer that is far from eviction is not marked as used again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence

from gateway.core.ports import Later
from gateway.core.types.words import Kept
from gateway.drivers.sqlite.thread import FileThread
from gateway.drivers.sqlite_store.eviction.schema import taken
from gateway.features.reuse.memory.answers import MemoryAnswers
from gateway.features.reuse.memory.entry_codec import about, restored
from gateway.products.jobs.sqlite_rows.jobs import Rest

Use = tuple[int, bytes, str]
"""The number of a use, which is higher than that of every earlier one; the answer's key and group."""

ROWS_AT_ONCE = 500
"""One step of a purge deletes at most this many rows."""
MARKED = 20_000
"""The last mark of at most this many answers is remembered."""
UNMARKED_PART = 8
"""An answer among the newest eighth of the entries is not marked again."""


class SqliteAnswers:
    """Implements `gateway.core.ports.Answers`; `front` is its part in memory."""

    def __init__(
        self,
        thread: FileThread,
        front: MemoryAnswers,
        wall: Callable[[], float],
        uses: Iterable[int],
        bounds: Mapping[str, int],
    ) -> None:
        self._thread = thread
        self._front = front
        self._wall = wall
        self._uses = iter(uses)
        self._bounds = bounds
        self._puts = 0
        self._spared = 0
        """An answer that was marked no more puts ago than this is not marked again."""
        self._marked: dict[tuple[bytes, str], int] = {}
        """The value of `_puts` when each answer was last marked."""
        self._to_mark: dict[tuple[bytes, str], int] = {}

    def configure(self, bounds: Mapping[str, int]) -> None:
        """Bounds each group to its number of bytes."""
        self._bounds = bounds

    def get(self, key: bytes, group: str) -> Later[Kept | None]:
        """Returns the answer unless it is past its `stale_until`: at once where it is in memory, else once the file is read."""
        hot = self._front.get(key, group)
        if hot is not None:
            self._used((key, group))
            return hot
        if group not in self._bounds:
            return None
        future: asyncio.Future[Kept | None] = asyncio.get_running_loop().create_future()
        now = self._wall()
        self._thread.ask(
            lambda db: _read(db, key, group, now), None, lambda found: self._found(future, key, group, found)
        )
        return future

    def put(self, key: bytes, kept: Kept) -> None:
        """Keeps the answer in place of an earlier one: in memory at once, in the file soon."""
        self._front.put(key, kept)
        bound = self._bounds.get(kept.group)
        if bound is None:
            return
        self._puts += 1
        known, uses = about(kept), self._take_uses()
        size = taken(key, known, kept.body)
        row = (key, kept.group, kept.tenant, kept.model, next(self._uses), kept.stale_until, size, known, kept.body)
        if size <= bound:
            self._thread.tell(lambda db: _write(db, row, uses), size)
        else:
            self._thread.tell(lambda db: _drop(db, key, kept.group), len(key))

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """Forgets every answer that matches all given arguments and returns their number.

        Where the disk fails, the file's rows are deleted when it works again.
        """
        hot = self._front.forget(key=key, model=model, tenant=tenant)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def forgotten(count: int) -> None:
            self._front.forget(
                key=key, model=model, tenant=tenant
            )  # a read of the file may have brought it back meanwhile
            if not future.done():
                future.set_result(max(count, hot))

        where, values = matching(key, model, tenant)
        self._thread.ask(lambda db: forget(db, "answers", where, values), 0, forgotten, "durable")
        return future

    def tick(self, entries: int) -> None:
        """Writes the marks of used answers though nothing was put; `entries` is the number of answers in the file."""
        self._spared = entries // UNMARKED_PART
        if uses := self._take_uses():
            self._thread.tell(lambda db: _mark(db, uses), 100 * len(uses))

    def _found(self, future: asyncio.Future[Kept | None], key: bytes, group: str, found: Kept | None) -> None:
        newer = self._front.get(key, group)
        if newer is None and found is not None:
            self._front.put(key, found)
            self._used((key, group))
        if not future.done():
            future.set_result(newer or found)

    def _used(self, name: tuple[bytes, str]) -> None:
        """Remembers to mark the answer, unless it is certainly far from eviction."""
        if self._puts - self._marked.get(name, -self._spared - 1) <= self._spared:
            return
        if len(self._marked) >= MARKED:
            self._marked.clear()
        self._marked[name] = self._puts
        self._to_mark[name] = next(self._uses)

    def _take_uses(self) -> list[Use]:
        uses, self._to_mark = self._to_mark, {}
        return [(use, key, group) for (key, group), use in uses.items()]


def _read(db: sqlite3.Connection, key: bytes, group: str, now: float) -> Kept | None:
    row = db.execute(
        "SELECT about, body FROM answers WHERE key = ? AND grp = ? AND expires > ?", (key, group, now)
    ).fetchone()
    return None if row is None else restored(*row)


def _mark(db: sqlite3.Connection, uses: Sequence[Use]) -> None:
    if uses:
        db.executemany("UPDATE answers SET used = ? WHERE key = ? AND grp = ?", uses)


def _drop(db: sqlite3.Connection, key: bytes, group: str) -> None:
    db.execute("DELETE FROM answers WHERE key = ? AND grp = ?", (key, group))


def _write(db: sqlite3.Connection, row: Sequence[object], uses: Sequence[Use]) -> None:
    _mark(db, uses)
    db.execute(
        "REPLACE INTO answers (key, grp, tenant, model, used, expires, bytes, about, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        row,
    )


def matching(key: bytes | None, model: str | None, tenant: str | None) -> tuple[str, list[object]]:
    """Returns an SQL condition on rows, and its values; an argument that is None matches every row."""
    given = {"key": key, "model": model, "tenant": tenant}
    named = {name: value for name, value in given.items() if value is not None}
    return "".join(f" AND {name} = ?" for name in named), list(named.values())


def forget(
    db: sqlite3.Connection, table: str, where: str, values: Sequence[object], last: int | None = None, count: int = 0
) -> int | Rest:
    """Deletes one step's worth of the rows that existed when the purge began.

    Returns the number of deleted rows when none is left, else the rest of the work; `last` is the highest id to delete, and
    `count` the rows that earlier steps deleted.
    """
    if last is None:
        (last,) = db.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()
    gone = db.execute(
        f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE id <= ?{where} LIMIT {ROWS_AT_ONCE})",
        (last, *values),
    ).rowcount
    count += gone
    return count if gone < ROWS_AT_ONCE else Rest(lambda db: forget(db, table, where, values, last, count))
