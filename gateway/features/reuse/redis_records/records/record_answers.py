"""The answers of completed idempotency records: they go to the store, and are kept here while it is out of reach.

Invariants: an answer that was paid for is sent until the store has it or its time is over; a completed record never changes;
the store makes room in bounded steps, so that no completion keeps it from other callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

from gateway.core.types.words import Kept
from gateway.drivers.redis.link import BackgroundTasks, Link, StoreGone
from gateway.drivers.redis_store.tenants import ID_BYTES, TenantRecords, Tenants
from gateway.features.reuse.memory.early_evictions import EarlyEvictions
from gateway.features.reuse.redis.answers.values import ENTRY_BYTES, MOST_BYTES, ChunkedValue, framed
from gateway.features.reuse.redis.lru import Now, lru_script
from gateway.features.reuse.redis_records.offline_records import HeldRecord, OfflineRecords

COMPLETE = lru_script("records_complete", "records")
LARGEST_PART = 4
"""An answer larger than a quarter of the bound is not kept: it would evict too many others."""
MOST_STEPS = 1000
"""Steps in which a completion makes room, at most."""
SENT_AT_ONCE = 16
"""Owed answers that one tick sends, at most: the store has just come back, for all replicas at once."""


class RecordAnswers:
    """Sends the answers of one process's records."""

    def __init__(
        self,
        link: Link,
        background: BackgroundTasks,
        wall: Callable[[], float],
        now: Now,
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
        asked, nonce = (held.asked, held.nonce) if held is not None else (b"", b"")
        size = len(value) + ENTRY_BYTES
        tenant = self._tenants.records_of(record)
        await self._tenants.note(tenant, left_s)
        value, staged = await self._parts.stage(self._parts_of(record), value)
        keys, id = (*tenant.keys(record), staged), record[:ID_BYTES]
        for _ in range(MOST_STEPS):
            bound = self._tenants.bound_of(tenant)
            reply = await self._link.run(
                COMPLETE, keys, (self._now(), id, asked, nonce, fence, left_s, size, bound, value)
            )
            state, entries, taken, lost, gone = reply
            self._tenants.told(tenant, entries, taken)
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
