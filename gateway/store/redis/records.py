"""Idempotency records, shared: who runs a request is known to the store, and what came of it is kept there.

While the store is out of reach claims are given here, and answers that were paid for are kept here until the store has them.
Invariants: among replicas that reach the store a record has one holder at a time, and what its winner completed is changed
by nobody; who comes too late is refused; a claim whose answer was lost is its holder's still; nobody waits for the store
twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from secrets import token_bytes
from typing import Any

from gateway.ports import Claim, Later
from gateway.store.redis.lru import Now, shelf_script
from gateway.store.redis.offline_records import ABANDONED_S, FIRST_SHARED_FENCE, HeldRecord, OfflineRecords
from gateway.store.redis.tenants import ID_BYTES, Tenants, TenantShelf
from gateway.store.redis.values import ENTRY_BYTES, MOST_BYTES, ChunkedValue, framed, is_head, moved, unframed
from gateway.store.redis_link.link import BackgroundTasks, Link, StoreGone
from gateway.words import Kept

log = logging.getLogger("gateway.store")

LONG_READ_S = 1.0
"""So much longer a call waits for an answer that does not fit into one operation: its parts come one after another."""
CLAIM = shelf_script("records_claim", "records")
RENEW = shelf_script("records_renew", "records")
COMPLETE = shelf_script("records_complete", "records")
RELEASE = shelf_script("records_release", "records")

FENCES_S = 30 * 86_400
"""So long the last fence is remembered."""
LARGEST_PART = 4
"""What is more than a quarter of all that may be kept is not: too much would have to go for it."""
MOST_TURNS = 1000
"""A completion makes room in so many steps at most."""
OWED_BYTES = 64 * 1024 * 1024
"""No more than this is kept here for the store."""
TOLD_AT_ONCE = 16
"""Of what is owed to the store, so many are told in a tick: it has just come back, and to all replicas at once."""


class RedisRecords:
    """`gateway.ports.Records`. Those of one tenant are in one slot, for a claim has to be one step."""

    def __init__(self, link: Link, chores: BackgroundTasks, wall: Callable[[], float], now: Now, bound: int) -> None:
        self._link = link
        self._chores = chores
        self._wall = wall
        self._now = now
        self._early = 0
        self._has_warned = False
        self._tenants = Tenants(link, now, bound)
        self._parts = ChunkedValue(link)
        self._ledger = OfflineRecords(min(bound, OWED_BYTES), self._warn)

    def configure(self, bound: int) -> None:
        """Keep to so many bytes; of a bound that turns out too low as well, it is said again."""
        if bound != self._tenants.bound:
            self._tenants.bound, self._has_warned = bound, False
            self._ledger.bound = min(bound, OWED_BYTES)

    @property
    def owed(self) -> int:
        """How many answers the store has still to be told of."""
        return len(self._ledger.owed)

    def claim(self, record: bytes, fingerprint: bytes, lease_s: float) -> Later[Claim]:
        """Take the record if it is free, or its lease has ended; who stops waiting for the answer takes nothing."""
        known = self._ledger.look(record, fingerprint, self._wall(), is_alone=not self._link.is_up)
        if known is not None:
            return known
        nonce = token_bytes(12)
        if not self._link.is_up:
            return self._ledger.take(record, fingerprint, nonce, self._wall() + lease_s)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Claim] = loop.create_future()
        asked = self._run_claim(record, fingerprint, nonce, lease_s)
        by = loop.time() + self._link.timeout_s
        asked.add_done_callback(partial(self._claimed, future, record, fingerprint, nonce, lease_s, by))
        return future

    def renew(self, record: bytes, fence: int, lease_s: float) -> Later[bool]:
        """False: somebody else has it by now, or it is complete."""
        held = self._ledger.holder(record, fence)
        if held is not None:
            held.until = self._wall() + lease_s
        if (held is None and fence < FIRST_SHARED_FENCE) or not self._link.is_up:
            return held is not None
        if held is not None and held.is_local:  # so that others hear of it, now that they can
            self._run_claim(record, held.asked, held.nonce, lease_s)
            return True
        return self._chores.start(self._renewed(record, fence, held, lease_s))

    def complete(self, record: bytes, fence: int, kept: Kept) -> Later[bool]:
        """Keep what came of it. False: as with `renew`, or there is no room for it: then the record is free."""
        held = self._ledger.holder(record, fence)
        if held is None and (fence < FIRST_SHARED_FENCE or not self._link.is_up):
            return False
        return self._chores.start(self._completed(record, fence, held, kept))

    def release(self, record: bytes, fence: int) -> Later[None]:
        """Nothing came of it that could be given again: the next caller runs."""
        held = self._ledger.holder(record, fence)
        self._ledger.drop(record, held)
        if not self._link.is_up or (held is None and fence < FIRST_SHARED_FENCE):
            return None
        return self._chores.start(self._released(record, fence, held.nonce if held is not None else b""))

    def sweeps(self) -> Iterator[Callable[[], Any]]:
        """What has to be done now and then, a tenant at a time; each may raise StoreGone."""
        for tenant in self._tenants.all():
            yield partial(self._sweep, tenant)

    async def discover(self) -> None:
        """Learn of some of the tenants that other replicas serve: they are looked through as well. Raises StoreGone."""
        await self._tenants.discover()

    def came_back(self) -> None:
        """The store is within reach again, and may have lost what it had."""
        self._tenants.lost()

    async def catch_up(self) -> None:
        """Tell the store some of what it missed, the oldest first."""
        for record, debt in [*islice(self._ledger.owed.items(), TOLD_AT_ONCE)]:
            left_s = debt.kept.fresh_until - self._wall()
            try:
                if left_s > 0 and self._link.is_up:
                    await self._run_complete(record, debt.held.fence, debt.held, framed(debt.kept), left_s)
            except StoreGone:
                return
            if self._link.is_up and self._ledger.owed.get(record) is debt:
                self._ledger.settle(record)

    def tick(self) -> None:
        """What is here of it is kept in order."""
        self._ledger.tick(self._wall())

    def stats(self) -> dict[str, int]:
        """Those that run and those that are done, and the bytes that the latter take: as last told, and what is here.

        `early` counts those that went before their time at this replica's doing.
        """
        ledger, early = self._ledger, self._early
        entries, taken = len(ledger.owed), ledger.owed_bytes
        if not self._link.is_up:
            return {"entries": len(ledger.held) + entries, "bytes": taken, "early": early}
        return {"entries": self._tenants.entries + entries, "bytes": self._tenants.bytes + taken, "early": early}

    async def _sweep(self, tenant: TenantShelf) -> None:
        """Some of what has run out or is too much goes. Raises StoreGone."""
        lost = await tenant.shelf.sweep(self._tenants.bound_of(tenant), tenant.running, late_s=ABANDONED_S)
        self._tenants.told(tenant, tenant.shelf.entries, tenant.shelf.bytes)
        if lost:
            self._warn(lost)

    def _keys(self, record: bytes) -> tuple[bytes, ...]:
        return self._tenants.shelf_of(record).keys(record)

    def _parts_of(self, record: bytes) -> bytes:
        return self._tenants.shelf_of(record).shelf.parts(record[:ID_BYTES])

    def _run_claim(self, record: bytes, asked: bytes, nonce: bytes, lease_s: float) -> asyncio.Future[Any]:
        return self._link.run(
            CLAIM, self._keys(record), (self._now(), record[:ID_BYTES], asked, nonce, lease_s, ABANDONED_S, FENCES_S)
        )

    def _claimed(
        self,
        future: asyncio.Future[Claim],
        record: bytes,
        fingerprint: bytes,
        nonce: bytes,
        lease_s: float,
        by: float,
        asked: asyncio.Future[Any],
    ) -> None:
        """The store has answered a claim, or it is ours to answer."""
        until = self._wall() + lease_s
        try:
            reply = asked.result()
        except (StoreGone, asyncio.CancelledError):
            self._fall_back(future, record, HeldRecord(fingerprint, 0, nonce, until))
            return
        if reply[0] == b"done" and is_head(reply[2]):
            self._chores.start(self._read_long(future, record, HeldRecord(fingerprint, 0, nonce, until), by, reply))
            return
        claim = self._claim_of(reply)
        if claim.fence and future.done():  # nobody is left who would run
            self._chores.start(self._released(record, claim.fence, nonce))
            return
        if claim.fence:
            self._ledger.held[record] = HeldRecord(fingerprint, claim.fence, nonce, until)
        _resolve(future, claim)

    def _fall_back(self, future: asyncio.Future[Claim], record: bytes, claimed: HeldRecord) -> None:
        """The claim is answered here; by its nonce it is known in the store, if that has heard of it."""
        if not future.done():
            known = self._ledger.look(record, claimed.asked, self._wall(), is_alone=True)
            future.set_result(known or self._ledger.take(record, claimed.asked, claimed.nonce, claimed.until))

    async def _read_long(
        self, future: asyncio.Future[Claim], record: bytes, claimed: HeldRecord, by: float, reply: Sequence[bytes]
    ) -> None:
        """Where it does not come by then the call runs, as if nobody had answered; but it is there, and was paid for."""
        try:
            value = await self._parts.read(self._parts_of(record), reply[2], by + LONG_READ_S)
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
                if kept is None:  # nobody can read it: whoever asks runs, and keeps nothing
                    return Claim("claimed")
                return Claim("done", kept=moved(kept, self._wall() + float(reply[1]) - kept.fresh_until))
        return Claim("mismatch")

    async def _renewed(self, record: bytes, fence: int, held: HeldRecord | None, lease_s: float) -> bool:
        asked, nonce = (held.asked, held.nonce) if held is not None else (b"", b"")
        try:
            is_ours = await self._link.run(
                RENEW, self._keys(record), (self._now(), record[:ID_BYTES], asked, nonce, fence, lease_s, ABANDONED_S)
            )
        except StoreGone:
            return held is not None
        if not is_ours:
            self._ledger.drop(record, held)
        return bool(is_ours)

    async def _completed(self, record: bytes, fence: int, held: HeldRecord | None, kept: Kept) -> bool:
        value = framed(kept)
        size = len(value) + ENTRY_BYTES
        if size > min(self._tenants.bound // LARGEST_PART, MOST_BYTES):
            value = b""
            self._warn()
        if self._link.is_up:
            try:
                is_kept = await self._run_complete(record, fence, held, value, kept.fresh_until - self._wall())
            except StoreGone:
                pass  # whether or not it has heard: it is told again, and knows it by its nonce
            else:
                self._ledger.drop(record, held)
                return is_kept
        if held is None or not value:
            self._ledger.drop(record, held)
            return False
        self._ledger.owe(record, held, kept, size)
        return True

    async def _run_complete(
        self, record: bytes, fence: int, held: HeldRecord | None, value: bytes, left_s: float
    ) -> bool:
        """Whether the store keeps it. Raises StoreGone."""
        asked, nonce = (held.asked, held.nonce) if held is not None else (b"", b"")
        size = len(value) + ENTRY_BYTES
        tenant = self._tenants.shelf_of(record)
        await self._tenants.note(tenant, left_s)
        value, staged = await self._parts.stage(self._parts_of(record), value)
        keys, id = (*tenant.keys(record), staged), record[:ID_BYTES]
        for _ in range(MOST_TURNS):
            bound = self._tenants.bound_of(tenant)
            reply = await self._link.run(
                COMPLETE, keys, (self._now(), id, asked, nonce, fence, left_s, size, bound, value)
            )
            state, entries, taken, lost, gone = reply
            self._tenants.told(tenant, entries, taken)
            if lost:
                self._warn(int(lost))
            if gone:
                self._chores.start(self._drop(tenant, gone))
            if state == b"lost":
                raise StoreGone("what was put aside is gone")
            if state != b"again":
                return bool(state == b"kept")
        return False

    async def _drop(self, tenant: TenantShelf, gone: Sequence[bytes]) -> None:
        with suppress(StoreGone):  # whoever sweeps next finds them
            await tenant.shelf.drop(gone)

    async def _released(self, record: bytes, fence: int, nonce: bytes) -> None:
        try:
            entries, taken = await self._link.run(RELEASE, self._keys(record), (record[:ID_BYTES], nonce, fence))
        except StoreGone:
            return  # its lease ends by itself
        self._tenants.told(self._tenants.shelf_of(record), entries, taken)

    def _warn(self, count: int = 1) -> None:
        """So many answers go although they were to be given again: counted, and said once."""
        self._early += count
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "No room for all answers that are to be replayed to those who repeat an Idempotency-Key: the oldest are "
                "dropped early, and such a call would be paid for again. Raise idempotency.max_bytes in cache.yaml (now %d).",
                self._tenants.bound,
            )


def _resolve(future: asyncio.Future[Claim], claim: Claim) -> None:
    if not future.done():
        future.set_result(claim)
