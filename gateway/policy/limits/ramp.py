"""The first second after a pause: at most 1.2 times the target's rate, whatever its level, and no call too large.

A call goes while anything is left, and takes what it costs, debt included: a large one need not wait until a bucket has
filled up for it, the next one waits instead. It must not know limits beyond one rate.
"""

from __future__ import annotations

RAMP_S = 1.0
_AT_ONCE_S = 0.2


class Ramp:
    """`rate_per_s` flows in from `now` on, behind a fifth of a second's worth that is there at once."""

    __slots__ = ("_at", "_ends_at", "_level", "_rate_per_s", "counts_requests")

    def __init__(self, rate_per_s: float, now: float, *, counts_requests: bool) -> None:
        self.counts_requests = counts_requests
        """Requests rather than tokens."""
        self._rate_per_s = rate_per_s
        self._level = rate_per_s * _AT_ONCE_S - 1e-9
        self._at = now
        self._ends_at = now + RAMP_S

    def wait_s(self, now: float) -> float:
        """Seconds until the next call may go, whatever it costs; 0.0 now."""
        if self.is_over(now):
            return 0.0
        level = self._level + (now - self._at) * self._rate_per_s
        return 0.0 if level > 0 else min(-level / self._rate_per_s, self._ends_at - now) + 1e-6

    def take(self, cost: float, now: float) -> None:
        """A call goes."""
        self._level += (now - self._at) * self._rate_per_s - cost
        self._at = now

    def is_over(self, now: float) -> bool:
        """Whether the target is back to its limits alone."""
        return now >= self._ends_at
