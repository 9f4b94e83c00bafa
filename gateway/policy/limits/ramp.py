"""The pause that a target asked for, and the first second after it: at most 1.2 times the target's rate, whatever its level.

In that second a call goes while anything is left, and takes what it costs, debt included: a large one need not wait until a
bucket has filled up for it, the next one waits instead. It must not know limits beyond one rate. Invariant: a pause never
moves back.
"""

from __future__ import annotations

from math import inf

RAMP_S = 1.0
_AT_ONCE_S = 0.2


class Pause:
    """Until when a target is left alone (monotonic seconds). Of several hints the latest wins."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = -inf

    def extend(self, until: float) -> None:
        """Moves the end of the pause to `until`, never back; what is not a finite number is ignored."""
        if self.until < until < inf:
            self.until = until

    def end(self) -> None:
        """Ends the pause, by hand."""
        self.until = -inf


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
