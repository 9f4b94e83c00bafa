"""Predicts how much the calls of one replica will take of one limit in the next moments, from the last ones.

It must not know limits, stores or who waits. Amounts are in the limit's own unit.
"""

from __future__ import annotations

from math import floor, inf

AHEAD_S = 0.5
"""Seconds of demand that are leased ahead of need."""
WARM_S = 30.0
"""Seconds after its last use for which a share of a large limit holds enough for `WARM_CALLS` calls."""
WARM_CALLS = 2
LARGE = 64
"""The calls at once from which on a limit can spare some for every replica."""
SMALL = 8
"""The calls at once below which nothing of a limit is held ahead: the replica that needs the next one gets it."""
PART = 16
"""The divisor of a limit that bounds what is held ahead of it."""
SMOOTH_S = 1.0


class Demand:
    """Counts the calls of one replica and what they take, and smooths both over `SMOOTH_S`."""

    __slots__ = ("_cost", "_per_s", "_since", "_told", "calls", "used_at")

    def __init__(self, now: float) -> None:
        self.calls = 0
        """The calls since the last `observe`."""
        self.used_at = -inf
        self._per_s = 0.0
        self._cost = 1.0
        self._since = now
        self._told = 0.0

    def observe(self, used: float | None, now: float) -> None:
        """Takes the calls since the last time into account.

        `used` is all that calls ever took, in the limit's unit; None where each call takes one and gives it back.
        """
        if self.calls:
            self.used_at = now
            if used is not None:
                self._cost += (max(0.0, used - self._told) / self.calls - self._cost) * 0.5
        span_s = now - self._since
        if span_s > 0:
            self._per_s += (self.calls / span_s - self._per_s) * min(1.0, span_s / SMOOTH_S)
            self.calls, self._since = 0, now
        self._told = used or 0.0

    def ahead(self, capacity: float, now: float, *, is_whole: bool, keeps_warm: bool) -> float:
        """Returns how much to hold of a limit with this capacity: whole calls, because a part of one is of no use.

        `is_whole` limits count whole units; `keeps_warm` holds a little for some time after the last use.
        """
        calls = floor(self._per_s * AHEAD_S)
        if keeps_warm and calls < WARM_CALLS and now - self.used_at < WARM_S and capacity >= LARGE * self._cost:
            calls = WARM_CALLS
        if not is_whole:
            return min(calls * self._cost, capacity / PART)
        return float(min(calls, max(floor(capacity / PART), int(capacity >= SMALL))))

    def end(self) -> None:
        """Forgets the demand: there will be no more calls."""
        self.calls, self._per_s, self.used_at = 0, 0.0, -inf
