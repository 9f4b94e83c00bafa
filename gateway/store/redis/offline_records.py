"""What this replica runs, and what came of it while the store was away: its part of the truth, until the store has it.

It must not know the store. Invariants: a record has one holder here at a time; what is owed to the store is answered from
here meanwhile, and keeps to its bytes: the oldest go first; a fence that was given here is lower than any of the store's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from gateway.ports import Claim
from gateway.words import Kept

FIRST_SHARED_FENCE = 1 << 40
"""Those below were given here. Keep in sync with `lua/records_claim.lua`."""
ABANDONED_S = 86_400.0
"""So long after its lease has ended, nobody will come back to complete a record; until then an answer is not refused."""
LOOKED_AT = 256
"""Of those who run, so many are looked at in one tick."""


@dataclass(slots=True)
class HeldRecord:
    """Somebody here runs it. With its nonce it is known to the store even where nobody heard the answer to its claim."""

    asked: bytes
    fence: int
    nonce: bytes
    until: float

    @property
    def is_local(self) -> bool:
        """The store has not said that it is ours."""
        return self.fence < FIRST_SHARED_FENCE


@dataclass(frozen=True, slots=True)
class UnsyncedRecord:
    """What came of a record, for the store to keep."""

    held: HeldRecord
    kept: Kept
    size: int


class OfflineRecords:
    """Of one process. `lost` is called when a debt goes that was still of use."""

    __slots__ = ("_fences", "_lost", "bound", "held", "owed", "owed_bytes")

    def __init__(self, bound: int, lost: Callable[[], None]) -> None:
        self.bound = bound
        """Bytes that may be owed."""
        self.held: dict[bytes, HeldRecord] = {}
        self.owed: dict[bytes, UnsyncedRecord] = {}
        self.owed_bytes = 0
        self._fences = count(1)
        self._lost = lost

    def look(self, record: bytes, asked: bytes, now: float, *, is_alone: bool) -> Claim | None:
        """What has to be said of it here, whatever the store says; `is_alone`: the store says nothing."""
        if (debt := self.owed.get(record)) is not None and debt.kept.fresh_until > now:
            return Claim("done", kept=replace(debt.kept)) if debt.held.asked == asked else Claim("mismatch")
        held = self.held.get(record)
        if held is None or held.until <= now or not (is_alone or held.is_local):
            return None
        return Claim("running", lease_left_s=held.until - now) if held.asked == asked else Claim("mismatch")

    def take(self, record: bytes, asked: bytes, nonce: bytes, until: float) -> Claim:
        """It is claimed here, without the store."""
        fence = next(self._fences)
        self.held[record] = HeldRecord(asked, fence, nonce, until)
        return Claim("claimed", fence=fence)

    def holder(self, record: bytes, fence: int) -> HeldRecord | None:
        """Who runs it here with this fence."""
        held = self.held.get(record)
        return held if held is not None and held.fence == fence else None

    def drop(self, record: bytes, held: HeldRecord | None) -> None:
        """It does not run any more, unless somebody else has it."""
        if held is not None and self.held.get(record) is held:
            del self.held[record]

    def owe(self, record: bytes, held: HeldRecord, kept: Kept, size: int) -> None:
        """It is done; the store has to be told."""
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
        """Nothing is owed for it any more."""
        if (debt := self.owed.pop(record, None)) is not None:
            self.owed_bytes -= debt.size

    def tick(self, now: float) -> None:
        """Some of what ran out long ago is forgotten."""
        for _ in range(min(LOOKED_AT, len(self.held))):
            record = next(iter(self.held))
            held = self.held.pop(record)
            if held.until + ABANDONED_S > now:
                self.held[record] = held  # behind the others: next time those are looked at
        for record in [one for one, debt in self.owed.items() if debt.kept.fresh_until <= now][:LOOKED_AT]:
            self.settle(record)
