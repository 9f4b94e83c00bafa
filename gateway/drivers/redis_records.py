"""Idempotency records in Redis: the store decides which replica runs a request, and keeps its answer.

In this order: the records of each tenant; the records of this process while the store is out of reach, when it grants claims
itself; the answers, which are kept here until the store has them; and the port that has these parts. Invariants: among replicas
that reach the store a record has one holder at a time; a completed record never changes; a holder that is too late is refused;
a claim whose reply was lost still belongs to its holder; no caller waits for the store twice.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from secrets import token_bytes
from typing import Any

from gateway.core.ports import Later
from gateway.core.types import Kept
from gateway.drivers.memory import EarlyEvictions, moved
from gateway.drivers.redis.link import BackgroundTasks, Link, StoreGone, StoreRefused
from gateway.drivers.redis.lru import SharedLru, WallTime, lru_script
from gateway.drivers.redis_answers import ENTRY_BYTES, MOST_BYTES, ChunkedValue, framed, is_head, unframed
from gateway.drivers.store import TENANTS_SHARE, Claim
from gateway.fleet.redis import Registry

# --- the records of each tenant, each in a slot of its own, and the bound of each ---

MOST_KNOWN = 4096
"""Tenants whose sizes this process knows, at most; the longest unused are forgotten first."""
ID_BYTES = 32
"""The length of a record's id; the bytes behind it name the tenant."""


class TenantRecords:
    """The records of one tenant."""

    __slots__ = ("bytes", "entries", "fence", "lru", "name", "running")

    def __init__(self, link: Link, name: bytes, now: WallTime) -> None:
        base = link.key("records", name)
        self.name = name
        self.lru = SharedLru(link, base, now)
        self.running, self.fence = base + b":running", base + b":fence"
        """The keys of the claims and of the last fence."""
        self.entries = self.bytes = 0
        """The size that `Tenants` counts."""

    def keys(self, record: bytes) -> tuple[bytes, ...]:
        """Returns the keys of a script on this record."""
        lru, id = self.lru, record[:ID_BYTES]
        return (*lru.keys, lru.value(id), self.running, self.fence, lru.parts(id))


class Tenants:
    """The records of all known tenants.

    In a cluster the tenants spread over the servers, and no script sees two of them. So this process adds up the sizes as last
    reported, and a tenant above its bound shrinks with its next record, or with a sweep. Invariant: the bounds of all tenants
    add up to the whole, except for tenants that this process does not know yet.
    """

    def __init__(self, link: Link, now: WallTime, bound: int) -> None:
        self.bound = bound
        """The bytes of all tenants together, at most."""
        self.entries = 0
        self.bytes = 0
        """The bytes of the known tenants, as last reported."""
        self._link = link
        self._now = now
        self._known: OrderedDict[bytes, TenantRecords] = OrderedDict()
        self._registry = Registry(link, link.key("record_tenants"), now)

    def records_of(self, record: bytes) -> TenantRecords:
        """Returns the tenant's part of the store that keeps a record."""
        return self._records(record[ID_BYTES:])

    def note_size(self, tenant: TenantRecords, entries: int, taken: int) -> None:
        """Notes a tenant's size; one with entries is known from now on."""
        self._forget(tenant.name)
        if not entries:
            return
        tenant.entries, tenant.bytes = entries, taken
        self._known[tenant.name] = tenant
        self.entries += entries
        self.bytes += taken
        if len(self._known) > MOST_KNOWN:
            self._forget(next(iter(self._known)))

    def bound_of(self, tenant: TenantRecords) -> int:
        """Returns a tenant's bound: the bytes that others leave, up to the tenants' share, and an equal part at least."""
        known = self._known.get(tenant.name)
        others = self.bytes - (0 if known is None else known.bytes)
        if others <= 0:
            return self.bound
        count = len(self._known) + (known is None)
        return int(max(self.bound / count, min(TENANTS_SHARE * self.bound, self.bound - others)))

    async def note(self, tenant: TenantRecords, left_s: float) -> None:
        """Registers a tenant with records for `left_s` seconds, so that other replicas find it. Raises StoreGone."""
        try:
            await self._registry.note(tenant.name, left_s)
        except StoreRefused:  # there are too many tenants to register: the records of this one end by themselves
            return

    def lost(self) -> None:
        """Has all tenants registered anew, because the store may have lost its data."""
        self._registry.lost()

    async def discover(self) -> None:
        """Finds some of the tenants that other replicas serve. Raises StoreGone."""
        await self._registry.discover()

    def all(self) -> Iterator[TenantRecords]:
        """Yields the known tenants and those found last."""
        for name in dict.fromkeys((*self._known, *self._registry.found)):
            yield self._records(name)

    def _forget(self, name: bytes) -> None:
        """Removes a tenant from the count."""
        gone = self._known.pop(name, None)
        if gone is not None:
            self.entries -= gone.entries
            self.bytes -= gone.bytes

    def _records(self, name: bytes) -> TenantRecords:
        return self._known.get(name) or TenantRecords(self._link, name, self._now)


# --- records without the store: those that this replica runs, and answers that the store has not taken yet ---

FIRST_SHARED_FENCE = 1 << 40
"""The store's lowest fence; lower ones are of a process. Keep in sync with `lua/records_claim.lua`."""
ABANDONED_S = 86_400.0
"""Seconds after the end of its lease in which a holder may still complete its record."""
LOOKED_AT = 256
"""Claims that one tick examines, at most."""


@dataclass(slots=True)
class HeldRecord:
    """A claim of this process; its nonce identifies it to the store even where the reply to the claim was lost."""

    fingerprint: bytes
    fence: int
    nonce: bytes
    until: float

    @property
    def is_local(self) -> bool:
        """Returns whether the store has not confirmed the claim."""
        return self.fence < FIRST_SHARED_FENCE


@dataclass(frozen=True, slots=True)
class UnsyncedRecord:
    """The answer of a record that the store still has to take."""

    held: HeldRecord
    kept: Kept
    size: int


class OfflineRecords:
    """The claims and owed answers of one process; `lost` is called when an owed answer is dropped.

    Invariants: a record has one holder in this process at a time; an answer that the store has to take is replayed from here
    meanwhile; such answers keep to their bytes, and the oldest are dropped first; a fence of this process is lower than any of
    the store's.
    """

    __slots__ = ("_fences", "_lost", "bound", "held", "owed", "owed_bytes")

    def __init__(self, bound: int, lost: Callable[[], None]) -> None:
        self.bound = bound
        """The bound of the owed answers, in bytes."""
        self.held: dict[bytes, HeldRecord] = {}
        self.owed: dict[bytes, UnsyncedRecord] = {}
        self.owed_bytes = 0
        self._fences = count(1)
        self._lost = lost

    def look(self, record: bytes, fingerprint: bytes, now: float, *, is_alone: bool) -> Claim | None:
        """Returns the claim's result if this process alone can tell it, else None; `is_alone`: the store does not answer."""
        if (unsynced := self.owed.get(record)) is not None and unsynced.kept.fresh_until > now:
            return (
                Claim("done", kept=replace(unsynced.kept))
                if unsynced.held.fingerprint == fingerprint
                else Claim("mismatch")
            )
        held = self.held.get(record)
        if held is None or held.until <= now or not (is_alone or held.is_local):
            return None
        return Claim("running", lease_left_s=held.until - now) if held.fingerprint == fingerprint else Claim("mismatch")

    def take(self, record: bytes, fingerprint: bytes, nonce: bytes, until: float) -> Claim:
        """Claims the record in this process, without the store."""
        fence = next(self._fences)
        self.held[record] = HeldRecord(fingerprint, fence, nonce, until)
        return Claim("claimed", fence=fence)

    def holder(self, record: bytes, fence: int) -> HeldRecord | None:
        """Returns the claim of this process with this fence, else None."""
        held = self.held.get(record)
        return held if held is not None and held.fence == fence else None

    def drop(self, record: bytes, held: HeldRecord | None) -> None:
        """Removes the claim, unless another caller has the record by now."""
        if held is not None and self.held.get(record) is held:
            del self.held[record]

    def owe(self, record: bytes, held: HeldRecord, kept: Kept, size: int) -> None:
        """Ends the claim and keeps its answer until the store takes it."""
        self.drop(record, held)
        self.settle(record)
        if size > self.bound:
            self._lost()
            return
        self.owed[record] = UnsyncedRecord(held, kept, size)
        self.owed_bytes += size
        while self.owed_bytes > self.bound:
            self._lost()
            self.settle(next(iter(self.owed)))

    def settle(self, record: bytes) -> None:
        """Removes the record's owed answer."""
        if (unsynced := self.owed.pop(record, None)) is not None:
            self.owed_bytes -= unsynced.size

    def tick(self, now: float) -> None:
        """Drops some leases that ended long ago and some expired answers."""
        for _ in range(min(LOOKED_AT, len(self.held))):
            record = next(iter(self.held))
            held = self.held.pop(record)
            if held.until + ABANDONED_S > now:
                self.held[record] = held  # moves to the end: the next tick examines the others
        for record in [one for one, unsynced in self.owed.items() if unsynced.kept.fresh_until <= now][:LOOKED_AT]:
            self.settle(record)


# --- the answers of completed records: they go to the store, and are kept here while it is out of reach ---

COMPLETE = lru_script("records_complete", "records")
LARGEST_PART = 4
"""An answer larger than a quarter of the bound is not kept: it would evict too many others."""
MOST_STEPS = 1000
"""Steps in which a completion makes room, at most."""
SENT_AT_ONCE = 16
"""Owed answers that one tick sends, at most: the store has just come back, for all replicas at once."""


class RecordAnswers:
    """Sends the answers of one process's records.

    Invariants: an answer that was paid for is sent until the store has it or its time is over; the store makes room in bounded
    steps, so that no completion keeps it from other callers.
    """

    def __init__(
        self,
        link: Link,
        background: BackgroundTasks,
        wall: Callable[[], float],
        now: WallTime,
        tenants: Tenants,
        offline: OfflineRecords,
        early: EarlyEvictions,
    ) -> None:
        self._link = link
        self._background = background
        self._wall = wall
        self._now = now
        self._tenants = tenants
        self._offline = offline
        self._early = early
        self._parts = ChunkedValue(link)

    async def read(self, record: bytes, head: bytes, by: float) -> bytes | None:
        """Returns a long answer, None where its chunks are gone. Raises StoreGone, also when it has not arrived by `by`."""
        return await self._parts.read(self._parts_of(record), head, by)

    async def complete(self, record: bytes, fence: int, held: HeldRecord | None, kept: Kept) -> bool:
        """Completes the record with the answer; returns False when it belongs to another caller or there is no room."""
        value = framed(kept)
        size = len(value) + ENTRY_BYTES
        if size > min(self._tenants.bound // LARGEST_PART, MOST_BYTES):
            value = b""
            self._early.note()
        if self._link.is_up:
            try:
                is_kept = await self._send(record, fence, held, value, kept.fresh_until - self._wall())
            except StoreGone:
                pass  # the answer is sent again, and the nonce shows whether it arrived the first time
            else:
                self._offline.drop(record, held)
                return is_kept
        if held is None or not value:
            self._offline.drop(record, held)
            return False
        self._offline.owe(record, held, kept, size)
        return True

    async def catch_up(self) -> None:
        """Sends some of the owed answers to the store, oldest first."""
        for record, unsynced in [*islice(self._offline.owed.items(), SENT_AT_ONCE)]:
            left_s = unsynced.kept.fresh_until - self._wall()
            try:
                if left_s > 0 and self._link.is_up:
                    await self._send(record, unsynced.held.fence, unsynced.held, framed(unsynced.kept), left_s)
            except StoreGone:
                return
            if self._link.is_up and self._offline.owed.get(record) is unsynced:
                self._offline.settle(record)

    async def _send(self, record: bytes, fence: int, held: HeldRecord | None, value: bytes, left_s: float) -> bool:
        """Sends the answer; returns whether the store keeps it. Raises StoreGone."""
        fingerprint, nonce = (held.fingerprint, held.nonce) if held is not None else (b"", b"")
        size = len(value) + ENTRY_BYTES
        tenant = self._tenants.records_of(record)
        await self._tenants.note(tenant, left_s)
        value, staged = await self._parts.stage(self._parts_of(record), value)
        keys, id = (*tenant.keys(record), staged), record[:ID_BYTES]
        for _ in range(MOST_STEPS):
            bound = self._tenants.bound_of(tenant)
            reply = await self._link.run(
                COMPLETE, keys, (self._now(), id, fingerprint, nonce, fence, left_s, size, bound, value)
            )
            state, entries, taken, lost, gone = reply
            self._tenants.note_size(tenant, entries, taken)
            if lost:
                self._early.note(int(lost))
            if gone:
                self._background.start(self._drop(tenant, gone))
            if state == b"lost":
                raise StoreGone("what was put aside is gone")
            if state != b"again":
                return bool(state == b"kept")
        return False

    async def _drop(self, tenant: TenantRecords, gone: Sequence[bytes]) -> None:
        with suppress(StoreGone):  # a later sweep finds the values
            await tenant.lru.drop(gone)

    def _parts_of(self, record: bytes) -> bytes:
        return self._tenants.records_of(record).lru.parts(record[:ID_BYTES])


# --- the port ---

LONG_READ_S = 1.0
"""Seconds that a call waits in addition for a long answer, whose chunks arrive one after another."""
CLAIM = lru_script("records_claim", "records")
RENEW = lru_script("records_renew", "records")
RELEASE = lru_script("records_release", "records")

FENCES_S = 30 * 86_400
"""Seconds for which a tenant's last fence is remembered."""
OWED_BYTES = 64 * 1024 * 1024
"""The cap on the bytes of answers that this process keeps for the store."""


class RedisRecords:
    """Implements `gateway.drivers.store.Records`; a tenant's records share one slot, because a claim has
    to be one atomic step."""

    def __init__(
        self, link: Link, background: BackgroundTasks, wall: Callable[[], float], now: WallTime, bound: int
    ) -> None:
        self._link = link
        self._background = background
        self._wall = wall
        self._now = now
        self._early = EarlyEvictions(bound)
        self._tenants = Tenants(link, now, bound)
        self._offline = OfflineRecords(min(bound, OWED_BYTES), self._early.note)
        self._kept = RecordAnswers(link, background, wall, now, self._tenants, self._offline, self._early)

    def configure(self, bound: int) -> None:
        """Bounds the answers to so many bytes; a new bound that is too low is logged again."""
        self._tenants.bound = self._early.bound = bound
        self._offline.bound = min(bound, OWED_BYTES)

    @property
    def owed(self) -> int:
        """Returns the number of answers that the store still has to take."""
        return len(self._offline.owed)

    def claim(self, record: bytes, fingerprint: bytes, lease_s: float) -> Later[Claim]:
        """Takes the record if it is free or its lease has ended; a caller that cancels the future takes nothing."""
        known = self._offline.look(record, fingerprint, self._wall(), is_alone=not self._link.is_up)
        if known is not None:
            return known
        nonce = token_bytes(12)
        if not self._link.is_up:
            return self._offline.take(record, fingerprint, nonce, self._wall() + lease_s)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Claim] = loop.create_future()
        reply = self._run_claim(record, fingerprint, nonce, lease_s)
        by = loop.time() + self._link.timeout_s
        reply.add_done_callback(partial(self._claimed, future, record, fingerprint, nonce, lease_s, by))
        return future

    def renew(self, record: bytes, fence: int, lease_s: float) -> Later[bool]:
        held = self._offline.holder(record, fence)
        if held is not None:
            held.until = self._wall() + lease_s
        if (held is None and fence < FIRST_SHARED_FENCE) or not self._link.is_up:
            return held is not None
        if held is not None and held.is_local:  # claims it in the store as well, so that other replicas see the claim
            self._run_claim(record, held.fingerprint, held.nonce, lease_s)
            return True
        return self._background.start(self._renewed(record, fence, held, lease_s))

    def complete(self, record: bytes, fence: int, kept: Kept) -> Later[bool]:
        """Keeps the answer; returns False as `renew` does, or when there is no room for it, which frees the record."""
        held = self._offline.holder(record, fence)
        if held is None and (fence < FIRST_SHARED_FENCE or not self._link.is_up):
            return False
        return self._background.start(self._kept.complete(record, fence, held, kept))

    def release(self, record: bytes, fence: int) -> Later[None]:
        held = self._offline.holder(record, fence)
        self._offline.drop(record, held)
        if not self._link.is_up or (held is None and fence < FIRST_SHARED_FENCE):
            return None
        return self._background.start(self._released(record, fence, held.nonce if held is not None else b""))

    def sweeps(self) -> Iterator[Callable[[], Any]]:
        """Yields one sweep per tenant; each may raise StoreGone."""
        for tenant in self._tenants.all():
            yield partial(self._sweep, tenant)

    async def discover(self) -> None:
        """Finds some of the tenants that other replicas serve, whose records are swept as well. Raises StoreGone."""
        await self._tenants.discover()

    def came_back(self) -> None:
        """Prepares for a store that may have lost its data while it was out of reach."""
        self._tenants.lost()

    async def catch_up(self) -> None:
        """Sends some of the owed answers to the store, oldest first."""
        await self._kept.catch_up()

    def tick(self) -> None:
        """Sweeps the claims and answers in this process's memory."""
        self._offline.tick(self._wall())

    def stats(self) -> dict[str, int]:
        """Returns the number of records and their bytes: those that the store last reported, and those owed to it.

        `early` counts the answers that this replica evicted before their time.
        """
        offline, early = self._offline, self._early.count
        entries, taken = len(offline.owed), offline.owed_bytes
        if not self._link.is_up:
            return {"entries": len(offline.held) + entries, "bytes": taken, "early": early}
        return {"entries": self._tenants.entries + entries, "bytes": self._tenants.bytes + taken, "early": early}

    async def _sweep(self, tenant: TenantRecords) -> None:
        """Drops some of a tenant's expired records and some above its bound. Raises StoreGone."""
        lost = await tenant.lru.sweep(self._tenants.bound_of(tenant), tenant.running, late_s=ABANDONED_S)
        self._tenants.note_size(tenant, tenant.lru.entries, tenant.lru.bytes)
        if lost:
            self._early.note(lost)

    def _keys(self, record: bytes) -> tuple[bytes, ...]:
        return self._tenants.records_of(record).keys(record)

    def _run_claim(self, record: bytes, fingerprint: bytes, nonce: bytes, lease_s: float) -> asyncio.Future[Any]:
        return self._link.run(
            CLAIM,
            self._keys(record),
            (self._now(), record[:ID_BYTES], fingerprint, nonce, lease_s, ABANDONED_S, FENCES_S),
        )

    def _claimed(
        self,
        future: asyncio.Future[Claim],
        record: bytes,
        fingerprint: bytes,
        nonce: bytes,
        lease_s: float,
        by: float,
        claiming: asyncio.Future[Any],
    ) -> None:
        """Resolves a claim by the store's reply, or in this process where there is none."""
        until = self._wall() + lease_s
        try:
            reply = claiming.result()
        except (StoreGone, asyncio.CancelledError):
            self._fall_back(future, record, HeldRecord(fingerprint, 0, nonce, until))
            return
        if reply[0] == b"done" and is_head(reply[2]):
            self._background.start(self._read_long(future, record, HeldRecord(fingerprint, 0, nonce, until), by, reply))
            return
        claim = self._claim_of(reply)
        if claim.fence and future.done():  # the caller has left, so the record has to be free again
            self._background.start(self._released(record, claim.fence, nonce))
            return
        if claim.fence:
            self._offline.held[record] = HeldRecord(fingerprint, claim.fence, nonce, until)
        _resolve(future, claim)

    def _fall_back(self, future: asyncio.Future[Claim], record: bytes, claimed: HeldRecord) -> None:
        """Resolves the claim without the store, which recognises its nonce if the command has reached it."""
        if not future.done():
            known = self._offline.look(record, claimed.fingerprint, self._wall(), is_alone=True)
            future.set_result(known or self._offline.take(record, claimed.fingerprint, claimed.nonce, claimed.until))

    async def _read_long(
        self, future: asyncio.Future[Claim], record: bytes, claimed: HeldRecord, by: float, reply: Sequence[bytes]
    ) -> None:
        """Reads a long answer; if it does not arrive in time the call runs again, as without the store.

        It is worth the longer wait, because the answer exists and was paid for.
        """
        try:
            value = await self._kept.read(record, reply[2], by + LONG_READ_S)
        except StoreGone:
            self._fall_back(future, record, claimed)
            return
        _resolve(future, self._claim_of((*reply[:2], value or b"")))

    def _claim_of(self, reply: Sequence[bytes]) -> Claim:
        match reply[0]:
            case b"claimed":
                return Claim("claimed", fence=int(reply[1]))
            case b"running":
                return Claim("running", lease_left_s=float(reply[1]))
            case b"done":
                kept = unframed(reply[2])
                if kept is None:  # it is unreadable: the caller runs the request, and keeps no answer (no fence)
                    return Claim("claimed")
                return Claim("done", kept=moved(kept, self._wall() + float(reply[1]) - kept.fresh_until))
        return Claim("mismatch")

    async def _renewed(self, record: bytes, fence: int, held: HeldRecord | None, lease_s: float) -> bool:
        fingerprint, nonce = (held.fingerprint, held.nonce) if held is not None else (b"", b"")
        try:
            is_ours = await self._link.run(
                RENEW,
                self._keys(record),
                (self._now(), record[:ID_BYTES], fingerprint, nonce, fence, lease_s, ABANDONED_S),
            )
        except StoreGone:
            return held is not None
        if not is_ours:
            self._offline.drop(record, held)
        return bool(is_ours)

    async def _released(self, record: bytes, fence: int, nonce: bytes) -> None:
        try:
            entries, taken = await self._link.run(RELEASE, self._keys(record), (record[:ID_BYTES], nonce, fence))
        except StoreGone:
            return  # its lease ends by itself
        self._tenants.note_size(self._tenants.records_of(record), entries, taken)


def _resolve(future: asyncio.Future[Claim], claim: Claim) -> None:
    if not future.done():
        future.set_result(claim)
