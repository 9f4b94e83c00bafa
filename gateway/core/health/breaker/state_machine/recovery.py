"""The way back of a target that was left alone: a few probes, the least urgent calls first, then growing traffic.

It must not know why the target was ejected, nor what its calls are. Invariants: never more probes out than allowed;
waits are finite and never negative.
"""

from __future__ import annotations

from math import log2

from gateway.core.types.words import LANES

PROBE_GRACE_S = 0.1
"""Seconds for which each lane leaves the probes to the one below it."""
LEAST_RAMP_PER_S = 5.0
"""The calls per second that a slow start lets through at least, however little the traffic was."""
EARLY_S = 1e-6
"""Seconds by which a timer may come too early."""
FIRST_SHARE = 0.1
"""The share of the traffic before the ejection that a slow start begins with."""
DOUBLINGS = 10
_AT_ONCE_S = 0.2
_LN2 = 0.6931471805599453


class Probes:
    """The calls that a half-open breaker lets through from `since` on: one, and one more for each that succeeded."""

    __slots__ = ("good", "out", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.out = 0
        self.good = 0

    def wait_s(self, now: float, rank: int, most: int) -> float | None:
        """Returns the seconds until a call of the lane `rank` may probe; None when one that is out has to end first."""
        if self.out >= min(most, 1 + self.good):
            return None
        grace_s = self.since + (len(LANES) - 1 - rank) * PROBE_GRACE_S - now
        return grace_s if grace_s > EARLY_S else 0.0


class SlowStart:
    """Lets calls through after recovery at a rate that doubles with each tenth of `ramp_s`, from almost none.

    Up to `t` seconds after its beginning r0 d / ln 2 (2^(t/d) - 1) calls may go, where d is a tenth of the ramp and r0 the rate
    it begins with. What is not used is lost but for a fifth of a second's worth. The calls that wait have all gone before the
    ramp ends (Envoy's and nginx's slow start, with a rate in place of a weight).
    """

    __slots__ = ("_began_at", "_double_s", "_first_per_s", "_ramp_s", "_taken")

    def __init__(self, usual_per_s: float, ramp_s: float, now: float) -> None:
        self._began_at = now
        self._ramp_s = ramp_s
        self._double_s = ramp_s / DOUBLINGS
        self._first_per_s = max(LEAST_RAMP_PER_S, usual_per_s * FIRST_SHARE)
        self._taken = 0.0

    def wait_s(self, now: float) -> float:
        """Returns the seconds until the next call may go; 0.0 now."""
        due_s = self._double_s * log2(1 + self._taken * _LN2 / (self._first_per_s * self._double_s))
        wait_s = self._began_at + min(due_s, self._ramp_s) - now
        return wait_s if wait_s > EARLY_S else 0.0

    def take(self, now: float) -> None:
        """Counts a call that goes."""
        rate_per_s = self._first_per_s * 2.0 ** ((now - self._began_at) / self._double_s)
        allowed = (rate_per_s - self._first_per_s) * self._double_s / _LN2
        self._taken = max(self._taken, allowed - rate_per_s * _AT_ONCE_S) + 1

    def is_over(self, now: float) -> bool:
        """Returns whether the slow start has ended, so that all calls go."""
        return now - self._began_at >= self._ramp_s - EARLY_S
