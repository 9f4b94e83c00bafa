"""A local share is one of N equal parts of a limit, for a replica that cannot hear what the others use.

It begins with what the replica held, and its part of the unleased amount that the store told last: that is borrowed, and
owed when the store is back. It must not know the store. Invariant: all parts together let no more through than the limit
would have.
"""

from __future__ import annotations

from math import floor

from gateway.core.limits.bucket.bucket import Bucket, Limit
from gateway.core.limits.bucket.windows import Slots, Window
from gateway.fleet.lease.lease.lease import LimitKind


class LocalShare:
    """Holds the share as a limit of its own, and since when the replica lives on it."""

    __slots__ = ("_kind", "_knows_level", "borrowed", "limit", "rate_per_s", "since")

    def __init__(self, kind: LimitKind, limit: Limit, free: float, borrowed: float | None, now: float) -> None:
        """`free` is its level now, `borrowed` the part of it that was unleased; None: the store was never heard."""
        self.limit = limit
        self.rate_per_s = limit.rate_per_s if isinstance(limit, Bucket) else 0.0
        self.since = now
        self._kind = kind
        self._knows_level = borrowed is not None
        self.borrowed = borrowed or 0.0
        if kind != "slots":
            limit.correct(free, now)

    def wait_s(self, cost: float, now: float, keep: float, most: float) -> float | None:
        """Returns what `Limit.wait_s` does; a call larger than the share, but not than the limit (`most`), has to save up."""
        if self.limit.capacity < cost <= most:
            return (cost - self.limit.level_at(now)) / self.rate_per_s if self.rate_per_s else None
        return self.limit.wait_s(cost, now, min(keep, self.limit.capacity))

    def want(self, cost: float, now: float, most: float) -> None:
        """Saves up from now on for a call larger than the share, but not than the limit (`most`)."""
        if self.limit.capacity < cost <= most:
            self.limit.resize(self.rate_per_s, cost, now)

    def resize(self, change_rate: float, change_capacity: float, now: float) -> None:
        """Scales the share with its limit, which is now so many times as fast and as large."""
        self.rate_per_s *= change_rate
        self.limit.resize(self.rate_per_s, self.limit.capacity * change_capacity, now)

    def correct(self, level: float, now: float) -> None:
        """Sets the level; a loss was not used by anybody here, so that much of what was borrowed is not owed."""
        before = self.limit.level_at(now)
        self.limit.correct(level, now)
        self._forgive(before, now)

    def reconcile(self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float) -> None:
        """Does what `Limit.reconcile` does; a loss is not owed."""
        before = self.limit.level_at(now)
        self.limit.reconcile(remaining, now, sent_at, taken_since, grain)
        self._forgive(before, now)

    def _forgive(self, before: float, now: float) -> None:
        lost = before - self.limit.level_at(now)
        if lost > 0 and self._kind != "slots":
            self.borrowed = max(0.0, self.borrowed - lost)

    def left(self, now: float) -> float:
        """Returns what the replica brings back to the store, below 0 what it owes; slots in use are counted apart."""
        return self.limit.level_at(now) if self._kind != "slots" and self._knows_level else 0.0

    def used(self, now: float) -> float:
        """Returns what the present window has let through, if one has begun since."""
        return self.limit.capacity - self.limit.level_at(now)


def own_bucket(
    rate_per_s: float, capacity: float, held: float, common: float | None, replicas: int, now: float
) -> LocalShare:
    """Returns the local share of a bucket; `common` is the unleased amount; if None, never heard of, the share begins full."""
    part = capacity / replicas
    free, borrowed = _free(part, held, common, replicas)
    return LocalShare("bucket", Bucket(rate_per_s / replicas, part, now), free, borrowed, now)


def own_window(
    window_s: float, ends_in_s: float, capacity: float, held: float, common: float | None, replicas: int, now: float
) -> LocalShare:
    """Returns the local share of a window, which begins in the one that ends in `ends_in_s`; at least one call fits."""
    part = max(1.0, capacity / replicas)
    if ends_in_s <= 0:  # none is open
        return LocalShare("window", Window(part, window_s, now), part, 0.0, now)
    free, borrowed = _free(part, held, common, replicas)
    window = Window(part, window_s, now)
    window.force(0.0, now)  # it has begun
    window.align(ends_in_s, now, now)
    return LocalShare("window", window, free, borrowed, now)


def own_slots(capacity: float, in_use: float, replicas: int, now: float) -> LocalShare:
    """Returns the local share of slots, at least one; those in use are its own."""
    slots = Slots(max(1.0, floor(capacity / replicas)))
    slots.force(in_use, now)
    return LocalShare("slots", slots, 0.0, None, now)


def _free(part: float, held: float, common: float | None, replicas: int) -> tuple[float, float | None]:
    if common is None:
        return part, None
    free = min(part, held + max(0.0, common) / replicas)
    return free, max(0.0, free - held)
