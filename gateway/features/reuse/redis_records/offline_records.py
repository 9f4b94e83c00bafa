"""The records that this replica runs, and the answers that it got while the store was gone, until the store has them.

It must not know the store. Invariants: a record has one holder in this process at a time; an answer that the store has to
take is replayed from here meanwhile; such answers keep to their bytes, and the oldest are dropped first; a fence of this
process is lower than any of the store's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from gateway.core.ports import Claim
from gateway.core.types import Kept

FIRST_SHARED_FENCE = 1 << 40
"""The store's lowest fence; lower ones are of a process. Keep in sync with `lua/records_claim.lua`."""
ABANDONED_S = 86_400.0
"""Seconds after the end of its lease in which a holder may still complete its record."""
LOOKED_AT = 256
"""Claims that one tick examines, at most."""


@dataclass(slots=True)
class HeldRecord:
    """A claim of this process; its nonce identifies it to the store even where the reply to the claim was lost."""

    asked: bytes
    fence: int
    nonce: bytes
    until: float

    @property
    def is_local(self) -> bool:
        """Tells whether the store has not confirmed the claim."""
        return self.fence < FIRST_SHARED_FENCE


@dataclass(frozen=True, slots=True)
class UnsyncedRecord:
    """The answer of a record that the store still has to take."""

    held: HeldRecord
    kept: Kept
    size: int


class OfflineRecords:
    """The claims and owed answers of one process; `lost` is called when an owed answer is dropped."""

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
                Claim("done", kept=replace(unsynced.kept)) if unsynced.held.asked == fingerprint else Claim("mismatch")
            )
        held = self.held.get(record)
        if held is None or held.until <= now or not (is_alone or held.is_local):
            return None
        return Claim("running", lease_left_s=held.until - now) if held.asked == fingerprint else Claim("mismatch")

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
