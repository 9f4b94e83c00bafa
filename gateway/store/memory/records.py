"""Idempotency records in this process's memory: who runs what, and what came of it.

It must not know requests or answers. Invariants: a record has one holder at a time; fences only grow, over all records; what
was completed is changed by nobody; what runs is never dropped; what is done goes in the order of completion, but of one tenant
who has more than a share of the room before of others.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from gateway.ports import TENANTS_SHARE, Claim
from gateway.store.entry_codec import pack, unpack
from gateway.store.memory.lru import Lru
from gateway.words import Kept

log = logging.getLogger("gateway.store")

_FINGERPRINT = 32
_ID = 32
"""Of a record's id; what stands behind it names the tenant, whom the answer names as well."""
_ABANDONED_S = 86_400.0
"""So long after its lease has ended, nobody will come back to complete a record; until then an answer is not refused."""
_LOOKED_AT = 256
"""So many claims are looked at in one go."""


class RunningRecord:
    """Who runs a record, what it was asked, and until when nobody else may."""

    __slots__ = ("fence", "fingerprint", "until")

    def __init__(self, fence: int, fingerprint: bytes, until: float) -> None:
        self.fence = fence
        self.fingerprint = fingerprint
        self.until = until


class MemoryRecords:
    """`gateway.ports.Records`."""

    __slots__ = ("_done", "_early", "_fence", "_has_warned", "_running", "_wall")

    def __init__(self, bound: int, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._running: OrderedDict[bytes, RunningRecord] = OrderedDict()
        self._done = Lru(bound, self._lost, TENANTS_SHARE)
        self._fence = 0
        self._has_warned = False
        self._early = 0

    def claim(self, record: bytes, fingerprint: bytes, lease_s: float) -> Claim:
        """Take the record if it is free, or its lease has ended."""
        now = self._wall()
        lease = self._running.get(record)
        if lease is not None and lease.until > now:
            if lease.fingerprint != fingerprint:
                return Claim("mismatch")
            return Claim("running", lease_left_s=lease.until - now)
        if (blob := self._done.get(record[:_ID], now, is_use=False)) is not None:
            if blob[:_FINGERPRINT] != fingerprint:
                return Claim("mismatch")
            return Claim("done", kept=unpack(blob[_FINGERPRINT:]))
        self._fence += 1
        self._running[record] = RunningRecord(self._fence, fingerprint, now + lease_s)
        return Claim("claimed", fence=self._fence)

    def renew(self, record: bytes, fence: int, lease_s: float) -> bool:
        """False: somebody else has it by now, or it is complete."""
        if (lease := self._held(record, fence)) is None:
            return False
        lease.until = self._wall() + lease_s
        return True

    def complete(self, record: bytes, fence: int, kept: Kept) -> bool:
        """Keep what came of it. False: as with `renew`, or there is no room for it: then the record is free."""
        if (lease := self._held(record, fence)) is None:
            return False
        del self._running[record]
        is_kept = self._done.put(record[:_ID], lease.fingerprint + pack(kept), kept.fresh_until, (kept.tenant, ""))
        if not is_kept:
            self._lost(kept.fresh_until)
        return is_kept

    def release(self, record: bytes, fence: int) -> None:
        """Nothing came of it that could be given again: the next caller runs."""
        if self._held(record, fence) is not None:
            del self._running[record]

    def configure(self, bound: int) -> None:
        """Keep to so many bytes; of a bound that turns out too low as well, it is said again."""
        if bound != self._done.bound:
            self._done.bound, self._has_warned = bound, False

    def tick(self) -> None:
        """Some of what has run out or is too much goes."""
        now = self._wall()
        self._done.sweep(now)
        for record in [*islice(self._running, _LOOKED_AT)]:
            if self._running[record].until + _ABANDONED_S < now:
                del self._running[record]
            else:
                self._running.move_to_end(record)

    def stats(self) -> dict[str, int]:
        """Those that run and those that are done, and the bytes that the latter take."""
        return {
            "entries": len(self._running) + self._done.entries,
            "bytes": self._done.taken,
            "early": self._early,
        }

    def _held(self, record: bytes, fence: int) -> RunningRecord | None:
        lease = self._running.get(record)
        return lease if lease is not None and lease.fence == fence else None

    def _lost(self, fresh_until: float) -> None:
        """Said once: an answer goes although it was to be given again."""
        if fresh_until < self._wall():
            return
        self._early += 1
        if self._has_warned:
            return
        self._has_warned = True
        log.warning(
            "No room for all answers that are to be replayed to those who repeat an Idempotency-Key: the oldest are dropped "
            "early, and such a call would be paid for again. Raise idempotency.max_bytes in cache.yaml (now %d).",
            self._done.bound,
        )
