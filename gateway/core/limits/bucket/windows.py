"""Limits that do not refill all the time: windows, and calls at a time.

The same promises as of `bucket.py`, whose `Limit` they are: a microsecond early counts as on time, and a window grants at most
its capacity. It must not know headers, calls or queues.
"""

from __future__ import annotations

from math import ceil, inf, isfinite

from gateway.core.limits.bucket.bucket import EARLY_S, ROUNDING

_FIRST_RELEASES = 20


class Window:
    """`capacity` units in each `window_s` seconds. A window opens with its first use and is forgotten when it ends.

    Nothing of it is carried over: neither what was left, nor what was used too much. Raises ValueError as `Bucket`.
    """

    __slots__ = ("_at", "_ends_at", "_shortest_s", "_used", "capacity", "window_s")

    def __init__(self, capacity: float, window_s: float, now: float) -> None:
        _check_capacity(capacity)
        if not 0 < window_s < inf:
            raise ValueError(f"no window is {window_s} seconds long")
        self.capacity = capacity
        self.window_s = self._shortest_s = window_s
        self._at = now
        self._used = 0.0
        self._ends_at = -inf

    def level_at(self, now: float) -> float:
        if now > self._at:
            self._at = now
        if self._at + EARLY_S >= self._ends_at:
            self._used = 0.0
            self._ends_at = -inf
        return self.capacity - self._used

    def wait_s(self, cost: float, now: float, keep: float = 0.0) -> float:
        if cost > self.capacity:
            return inf
        # A full window is fresh and gives anything that fits at all, so only one in use can make a caller wait.
        if min(cost + keep, self.capacity) <= self.level_at(now) + self.capacity * ROUNDING:
            return 0.0
        return self._ends_at - self._at

    def ready_at(self, cost: float, now: float, ahead: float = 0.0, keep: float = 0.0) -> float:
        """Exact when those ahead fill each window to the brim; larger calls leave gaps and take longer."""
        if cost > self.capacity:
            return inf
        need = min(cost + keep, self.capacity)
        slack = self.capacity * ROUNDING
        left = self.level_at(now) - ahead
        if need <= left + slack:
            return now
        ends_at = self._ends_at if self._ends_at > -inf else self._at + self.window_s
        further = max(0, ceil((-left - slack) / self.capacity))  # windows that those ahead still fill, in whole or part
        if further and need <= left + further * self.capacity + slack:
            further -= 1
        return ends_at + further * self.window_s

    def drain_s(self, ahead: float) -> float:
        return ahead / self.capacity * self.window_s

    def take(self, cost: float, now: float) -> None:
        self.level_at(now)
        if self._ends_at == -inf:
            self._ends_at = self._at + self.window_s
        self._used += cost

    force = take

    def give_back(self, cost: float, now: float, taken_at: float | None = None) -> None:
        """Does nothing for what was taken in a window that has ended."""
        self.level_at(now)
        if taken_at is None or self._began_by(taken_at):
            self._used = max(0.0, self._used - cost)

    def correct(self, level: float, now: float) -> None:
        self.level_at(now)
        if isfinite(level):
            self._used = max(0.0, self.capacity - level)
            if self._used and self._ends_at == -inf:
                self._ends_at = self._at + self.window_s

    def reconcile(self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float) -> None:
        level = self.level_at(now)
        if self._began_by(sent_at):
            self.correct(min(max(level, remaining - taken_since), remaining + grain), now)

    def align(self, reset_s: float, now: float, sent_at: float) -> None:
        """Moves the end of the open window to where the provider says it is.

        `reset_s` is in whole seconds, rounded up, and was true at some moment between `sent_at` and now.
        """
        self.level_at(now)
        if self._ends_at > -inf and reset_s <= self.window_s + 1.0 and self._began_by(sent_at):
            self._ends_at = min(max(self._ends_at, sent_at + reset_s - 1.0), now + reset_s)

    def resize(self, rate_per_s: float, capacity: float, now: float) -> None:
        """`rate_per_s` only matters below one unit per window: then the next window lasts as long as that unit takes."""
        _check_capacity(capacity)
        self.level_at(now)
        self.capacity = capacity
        self.window_s = max(self._shortest_s, 1 / rate_per_s) if rate_per_s and capacity <= 1 else self._shortest_s

    def _began_by(self, moment: float) -> bool:
        return moment >= self._ends_at - self.window_s - EARLY_S > -inf


class Slots:
    """At most `capacity` at a time. When all are held nobody knows when one comes free: `wait_s` is None.

    Whoever gets None waits for the next `give_back`, not for a timer. `ready_at` is an estimate from how long slots
    are held on average, and `now` as long as none was ever given back. Raises ValueError as `Bucket`.
    """

    __slots__ = ("_at", "_busy_s", "_hold_s", "_releases", "_used", "capacity")

    def __init__(self, capacity: float) -> None:
        _check_capacity(capacity)
        self.capacity = capacity
        self._used = 0.0
        self._at = inf
        self._busy_s = 0.0
        self._hold_s = 0.0
        self._releases = 0

    def level_at(self, now: float) -> float:
        """Negative after a resize to fewer than are held."""
        return self.capacity - self._used

    def wait_s(self, cost: float, now: float, keep: float = 0.0) -> float | None:
        if cost > self.capacity:
            return inf
        return 0.0 if min(cost + keep, self.capacity) <= self.capacity - self._used else None

    def ready_at(self, cost: float, now: float, ahead: float = 0.0, keep: float = 0.0) -> float:
        if cost > self.capacity:
            return inf
        releases = ahead + min(cost + keep, self.capacity) - self.level_at(now)
        return now + max(0.0, releases) * self._hold_s / self.capacity

    def drain_s(self, ahead: float) -> float:
        return ahead * self._hold_s / self.capacity

    def take(self, cost: float, now: float) -> None:
        self._pass(now)
        self._used += cost

    force = take

    def give_back(self, cost: float, now: float, taken_at: float | None = None) -> None:
        self._pass(now)
        self._used = max(0.0, self._used - cost)
        # Slot-seconds per release are the mean time a slot is held (Little's law); nobody's start need be remembered.
        self._releases = min(self._releases + 1, _FIRST_RELEASES)
        self._hold_s += (self._busy_s - self._hold_s) / self._releases
        self._busy_s = 0.0

    def correct(self, level: float, now: float) -> None:
        """Does nothing: what is held is known here better than anywhere."""

    def reconcile(self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float) -> None:
        """Does nothing, for the same reason."""

    def resize(self, rate_per_s: float, capacity: float, now: float) -> None:
        """`rate_per_s` means nothing here; what is held stays held."""
        _check_capacity(capacity)
        self.capacity = capacity

    def _pass(self, now: float) -> None:
        if now > self._at:
            self._busy_s += self._used * (now - self._at)
        self._at = now


def _check_capacity(capacity: float) -> None:
    if not 0 < capacity < inf:
        raise ValueError(f"no limit has capacity {capacity}")
