"""Idempotency records in this process's memory: claims, and the answers of completed ones.

It must not know requests or answers. Invariants: a record has one holder at a time; fences only grow, over all records; a
completed record never changes; a running one is never dropped; completed ones are evicted in the order of completion, those
of a tenant with more than its share first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from gateway.core.ports import TENANTS_SHARE, Claim
from gateway.core.types.words import Kept
from gateway.drivers.lru import Lru
from gateway.features.reuse.memory.early_evictions import EarlyEvictions
from gateway.features.reuse.memory.entry_codec import pack, unpack

_FINGERPRINT = 32
_ID = 32
"""The length of a record's id; the bytes behind it name the tenant, which the answer names as well."""
_ABANDONED_S = 86_400.0
"""Seconds after the end of its lease in which a holder may still complete its record."""
_LOOKED_AT = 256
"""Claims that one tick examines, at most."""


class RunningRecord:
    """The claim of the caller that runs the request: its fence, the request's fingerprint, and the end of its lease."""

    __slots__ = ("fence", "fingerprint", "until")

    def __init__(self, fence: int, fingerprint: bytes, until: float) -> None:
        self.fence = fence
        self.fingerprint = fingerprint
        self.until = until


class MemoryRecords:
    """Implements `gateway.core.ports.Records`."""

    __slots__ = ("_done", "_early", "_fence", "_running", "_wall")

    def __init__(self, bound: int, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._running: OrderedDict[bytes, RunningRecord] = OrderedDict()
        self._done = Lru(bound, self._lost, TENANTS_SHARE)
        self._fence = 0
        self._early = EarlyEvictions(bound)

    def claim(self, record: bytes, fingerprint: bytes, lease_s: float) -> Claim:
        """Takes the record if it is free or its lease has ended."""
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
        """Extends the lease; returns False when another caller holds the record by now, or it is complete."""
        if (lease := self._held(record, fence)) is None:
            return False
        lease.until = self._wall() + lease_s
        return True

    def complete(self, record: bytes, fence: int, kept: Kept) -> bool:
        """Keeps the answer; returns False as `renew` does, or when there is no room for it, which frees the record."""
        if (lease := self._held(record, fence)) is None:
            return False
        del self._running[record]
        is_kept = self._done.put(record[:_ID], lease.fingerprint + pack(kept), kept.fresh_until, (kept.tenant, ""))
        if not is_kept:
            self._lost(kept.fresh_until)
        return is_kept

    def release(self, record: bytes, fence: int) -> None:
        """Gives up the claim without an answer, so that the next caller runs the request."""
        if self._held(record, fence) is not None:
            del self._running[record]

    def configure(self, bound: int) -> None:
        """Bounds the answers to so many bytes; a new bound that is too low is logged again."""
        self._done.bound = self._early.bound = bound

    def tick(self) -> None:
        """Drops some expired answers and leases, and some answers above the bound."""
        now = self._wall()
        self._done.sweep(now)
        for record in [*islice(self._running, _LOOKED_AT)]:
            if self._running[record].until + _ABANDONED_S < now:
                del self._running[record]
            else:
                self._running.move_to_end(record)

    def stats(self) -> dict[str, int]:
        """Returns the number of records, running and completed, the bytes of the completed ones, and the early evictions."""
        return {
            "entries": len(self._running) + self._done.entries,
            "bytes": self._done.taken,
            "early": self._early.count,
        }

    def _held(self, record: bytes, fence: int) -> RunningRecord | None:
        lease = self._running.get(record)
        return lease if lease is not None and lease.fence == fence else None

    def _lost(self, fresh_until: float) -> None:
        if fresh_until >= self._wall():
            self._early.note()
