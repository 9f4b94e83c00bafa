"""Answers and idempotency records in the file: first the exact cache, then the records."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gateway.core.ports import Later
from gateway.core.types import Kept
from gateway.drivers.memory import EarlyEvictions, MemoryAnswers, about, moved, restored
from gateway.drivers.sqlite import OWED_BYTES, FileThread, Rest, taken
from gateway.drivers.store import Claim

# --- the exact cache: hot answers in memory, all answers in the file ---

Use = tuple[int, bytes, str]
"""The number of a use, which is higher than that of every earlier one; the answer's key and group."""

ROWS_AT_ONCE = 500
"""One step of a purge deletes at most this many rows."""
MARKED = 20_000
"""The last mark of at most this many answers is remembered."""
UNMARKED_PART = 8
"""An answer among the newest eighth of the entries is not marked again."""


class SqliteAnswers:
    """Implements `gateway.drivers.store.Answers`; `front` is its part in memory.

    Invariants: a hit in memory neither asks the file nor writes to it; a call never waits for a write; answers go in the order
    of their last use, with one approximation: an answer that is far from eviction is not marked as used again.
    """

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
        self._thread.submit(
            lambda db: _read_answer(db, key, group, now), None, lambda found: self._found(future, key, group, found)
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
            self._thread.queue_write(lambda db: _write_answer(db, row, uses), size)
        else:
            self._thread.queue_write(lambda db: _drop(db, key, kept.group), len(key))

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """Forgets every answer that matches all given arguments and returns their number.

        Where the disk fails, the file's rows are deleted when it works again.
        """
        hot = self._front.forget(key=key, model=model, tenant=tenant)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def forgotten(count: int) -> None:
            # A read of the file may have brought it back to memory meanwhile.
            self._front.forget(key=key, model=model, tenant=tenant)
            if not future.done():
                future.set_result(max(count, hot))

        where, values = matching(key, model, tenant)
        self._thread.submit(lambda db: forget(db, "answers", where, values), 0, forgotten, "durable")
        return future

    def tick(self, entries: int) -> None:
        """Writes the marks of used answers though nothing was put; `entries` is the number of answers in the file."""
        self._spared = entries // UNMARKED_PART
        if uses := self._take_uses():
            self._thread.queue_write(lambda db: _mark(db, uses), 100 * len(uses))

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


def _read_answer(db: sqlite3.Connection, key: bytes, group: str, now: float) -> Kept | None:
    row = db.execute(
        "SELECT expires, about, body FROM answers WHERE key = ? AND grp = ? AND expires > ?", (key, group, now)
    ).fetchone()
    if row is None:
        return None
    kept = restored(row[1], row[2])
    return moved(kept, row[0] - kept.stale_until)  # the columns are by the clock of this process


def _mark(db: sqlite3.Connection, uses: Sequence[Use]) -> None:
    if uses:
        db.executemany("UPDATE answers SET used = ? WHERE key = ? AND grp = ?", uses)


def _drop(db: sqlite3.Connection, key: bytes, group: str) -> None:
    db.execute("DELETE FROM answers WHERE key = ? AND grp = ?", (key, group))


def _write_answer(db: sqlite3.Connection, row: Sequence[object], uses: Sequence[Use]) -> None:
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


# --- the records: claims in memory, answers in the file ---

T = TypeVar("T")

Found = tuple[bytes, Kept]
"""The fingerprint of a request, and its answer."""

LOOKED_AT = 256
"""Claims that one tick examines, at most."""
ID_BYTES = 32
"""The length of a record's id; the bytes behind it name the tenant, which the row has in a column."""
ABANDONED_S = 86_400.0
"""Seconds after the end of its lease in which a holder may still complete its record."""


@dataclass(slots=True)
class _Held:
    """The claim of the caller that runs the request; `until` is the wall time at which its lease ends."""

    fingerprint: bytes
    fence: int
    until: float


class _RecordRow(NamedTuple):
    """A row of the table `records`, without its id."""

    record: bytes
    fingerprint: bytes
    expires: float
    size: int
    about: bytes
    body: bytes
    tenant: str


class SqliteRecords:
    """Implements `gateway.drivers.store.Records`.

    Claims are in memory, answers in the file. A claim needs no write: no other process has the file, so a process that died
    took its claims with it. Invariants: a record has one holder at a time, whatever the disk does; an answer is replayed only
    after the disk has it; an answer that a failing disk did not take stays in memory until it does.
    """

    def __init__(
        self, thread: FileThread, early: EarlyEvictions, wall: Callable[[], float], fences: Iterable[int], bound: int
    ) -> None:
        self._thread = thread
        self._early = early
        self._wall = wall
        self._fences = iter(fences)
        self._bound = bound
        self._held: dict[bytes, _Held] = {}
        self._busy: dict[bytes, list[Callable[[], None]]] = {}
        """Records that the file is reading or writing, and the claims to try when that is done."""
        self._unsaved: dict[bytes, tuple[Found, int]] = {}
        """Answers that the file did not take, with their bytes, oldest first."""
        self._unsaved_bytes = 0

    def configure(self, bound: int) -> None:
        self._bound = bound

    @property
    def running(self) -> int:
        return len(self._held)

    def claim(self, record: bytes, fingerprint: bytes, lease_s: float) -> Later[Claim]:
        """Takes the record if it is free or its lease has ended; a caller that cancels the future takes nothing."""
        now = self._wall()
        if (waiting := self._busy.get(record)) is not None:
            return self._after(waiting, record, fingerprint, lease_s)
        held = self._held.get(record)
        if held is not None and held.until > now:
            return _of_held(held, fingerprint, now)
        if (unsaved := self._unsaved.get(record)) is not None and unsaved[0][1].fresh_until > now:
            return _of_found(unsaved[0], fingerprint)
        return self._look_up(record, fingerprint, lease_s, now)

    def renew(self, record: bytes, fence: int, lease_s: float) -> bool:
        held = self._holder(record, fence)
        if held is None:
            return False
        held.until = self._wall() + lease_s
        return True

    def complete(self, record: bytes, fence: int, kept: Kept) -> Later[bool]:
        """Keeps the answer, and is done when the disk has it; returns False as `renew` does, or when it exceeds the bound."""
        if (held := self._holder(record, fence)) is None or record in self._busy:
            return False
        fingerprint, known = held.fingerprint, about(kept)
        size = taken(record[:ID_BYTES], fingerprint, known, kept.body)
        if size > self._bound:
            del self._held[record]
            self._early.note()
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._busy[record] = []

        def written(is_saved: bool) -> None:
            self._held.pop(record, None)
            if not is_saved:
                self._remember(record, (fingerprint, kept), size)
            _resolve(future, True)
            self._end(record)

        self._thread.submit(
            lambda db: _write_record(
                db, _RecordRow(record[:ID_BYTES], fingerprint, kept.fresh_until, size, known, kept.body, kept.tenant)
            ),
            False,
            written,
            "durable",
            size,
        )
        return future

    def release(self, record: bytes, fence: int) -> None:
        if self._holder(record, fence) is not None and record not in self._busy:
            del self._held[record]

    def tick(self) -> None:
        """Drops leases that ended long ago, and unsaved answers once the file has taken them."""
        now = self._wall()
        for _ in range(min(LOOKED_AT, len(self._held))):
            record = next(iter(self._held))
            held = self._held.pop(record)
            if held.until + ABANDONED_S > now or record in self._busy:
                self._held[record] = held  # moves to the end: the next tick examines the others
        if self._unsaved and self._thread.is_well:
            self._unsaved.clear()
            self._unsaved_bytes = 0

    def _holder(self, record: bytes, fence: int) -> _Held | None:
        held = self._held.get(record)
        return held if held is not None and held.fence == fence else None

    def _look_up(self, record: bytes, fingerprint: bytes, lease_s: float, now: float) -> asyncio.Future[Claim]:
        future: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()
        self._busy[record] = []

        def looked(found: Found | None) -> None:
            if not future.done():  # a caller that left must not take the record
                future.set_result(_of_found(found, fingerprint) if found else self._take(record, fingerprint, lease_s))
            self._end(record)

        self._thread.submit(lambda db: _read_record(db, record[:ID_BYTES], now), None, looked)
        return future

    def _take(self, record: bytes, fingerprint: bytes, lease_s: float) -> Claim:
        now = self._wall()
        held = self._held.get(record)
        if held is not None and held.until > now:  # its holder came back while the file was asked
            return _of_held(held, fingerprint, now)
        fence = next(self._fences)
        self._held[record] = _Held(fingerprint, fence, now + lease_s)
        return Claim("claimed", fence=fence)

    def _after(
        self, waiting: list[Callable[[], None]], record: bytes, fingerprint: bytes, lease_s: float
    ) -> asyncio.Future[Claim]:
        """Claims the record once the file's read or write under way has ended."""
        future: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()

        def go() -> None:
            if future.done():
                return
            later = self.claim(record, fingerprint, lease_s)
            if isinstance(later, asyncio.Future):  # the first caller has left, so this one reads the file in its place
                later.add_done_callback(lambda done: self._pass_on(record, done.result(), future))
            else:
                future.set_result(later)

        waiting.append(go)
        return future

    def _pass_on(self, record: bytes, claim: Claim, future: asyncio.Future[Claim]) -> None:
        if not future.done():
            future.set_result(claim)
        elif claim.state == "claimed":  # this caller has left as well
            self.release(record, claim.fence)

    def _end(self, record: bytes) -> None:
        for go in self._busy.pop(record):
            go()

    def _remember(self, record: bytes, found: Found, size: int) -> None:
        self._unsaved_bytes += size - self._unsaved.pop(record, (None, 0))[1]
        self._unsaved[record] = found, size
        while self._unsaved_bytes > OWED_BYTES:
            self._unsaved_bytes -= self._unsaved.pop(next(iter(self._unsaved)))[1]


def _of_held(held: _Held, fingerprint: bytes, now: float) -> Claim:
    if held.fingerprint != fingerprint:
        return Claim("mismatch")
    return Claim("running", lease_left_s=held.until - now)


def _of_found(found: Found, fingerprint: bytes) -> Claim:
    return Claim("done", kept=found[1]) if found[0] == fingerprint else Claim("mismatch")


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _read_record(db: sqlite3.Connection, record: bytes, now: float) -> Found | None:
    row = db.execute(
        "SELECT fingerprint, expires, about, body FROM records WHERE record = ? AND expires > ?", (record, now)
    ).fetchone()
    if row is None:
        return None
    kept = restored(row[2], row[3])
    return row[0], moved(kept, row[1] - kept.fresh_until)


def _write_record(db: sqlite3.Connection, row: _RecordRow) -> bool:
    db.execute(
        "REPLACE INTO records (record, fingerprint, expires, bytes, about, body, tenant) VALUES (?, ?, ?, ?, ?, ?, ?)",
        row,
    )
    return True
