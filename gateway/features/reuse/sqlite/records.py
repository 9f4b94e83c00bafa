"""Idempotency records: claims are in memory, answers in the file.

A claim needs no write: no other process has the file, so a process that died took its claims with it. Invariants: a record
has one holder at a time, whatever the disk does; an answer is replayed only after the disk has it; an answer that a failing
disk did not take stays in memory until it does.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gateway.core.ports import Claim, Later
from gateway.core.types.words import Kept
from gateway.drivers.sqlite.disk_trouble import OWED_BYTES
from gateway.drivers.sqlite.thread import FileThread
from gateway.drivers.sqlite_store.eviction.eviction import Eviction
from gateway.drivers.sqlite_store.eviction.schema import taken
from gateway.features.reuse.memory.entry_codec import about, restored

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
    """Implements `gateway.core.ports.Records`."""

    def __init__(
        self, thread: FileThread, eviction: Eviction, wall: Callable[[], float], fences: Iterable[int], bound: int
    ) -> None:
        self._thread = thread
        self._eviction = eviction
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
        """Bounds the answers to so many bytes."""
        self._bound = bound

    @property
    def running(self) -> int:
        """Returns the number of held records."""
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
        """Extends the lease; returns False when another caller holds the record by now, or it is complete."""
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
            self._eviction.early.note()
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._busy[record] = []

        def written(is_saved: bool) -> None:
            self._held.pop(record, None)
            if not is_saved:
                self._remember(record, (fingerprint, kept), size)
            _resolve(future, True)
            self._end(record)

        self._thread.ask(
            lambda db: _write(
                db, _RecordRow(record[:ID_BYTES], fingerprint, kept.fresh_until, size, known, kept.body, kept.tenant)
            ),
            False,
            written,
            "durable",
            size,
        )
        return future

    def release(self, record: bytes, fence: int) -> None:
        """Gives up the claim without an answer, so that the next caller runs the request."""
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

        self._thread.ask(lambda db: _read(db, record[:ID_BYTES], now), None, looked)
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


def _read(db: sqlite3.Connection, record: bytes, now: float) -> Found | None:
    row = db.execute(
        "SELECT fingerprint, about, body FROM records WHERE record = ? AND expires > ?", (record, now)
    ).fetchone()
    return None if row is None else (row[0], restored(row[1], row[2]))


def _write(db: sqlite3.Connection, row: _RecordRow) -> bool:
    db.execute(
        "REPLACE INTO records (record, fingerprint, expires, bytes, about, body, tenant) VALUES (?, ?, ?, ?, ?, ?, ?)",
        row,
    )
    return True
