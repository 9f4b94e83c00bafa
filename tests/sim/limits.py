"""How providers limit, seen from their side: written from their documentation and apart from
`gateway/core/limits/bucket.py`.

So the two can disagree, and a test shows it. Continuous refill is the generic cell rate algorithm (ATM Forum, 1996)
instead of a level; windows lie on a grid of the provider's own clock. Invariant: a limit never lets through more than
its capacity plus what refilled, or its capacity per window.
"""

from __future__ import annotations

from collections import deque
from math import floor
from typing import Literal, Protocol

Counts = Literal["requests", "tokens", "input-tokens", "output-tokens"]
"""`output-tokens` are charged when they have come; until then one has to be free."""
_ROUNDING_S = 1e-6


class ProviderLimit(Protocol):
    """One limit of one simulated provider."""

    counts: Counts
    told: float
    """What the headers call the limit: per minute."""
    capacity: float

    def wait_s(self, amount: float, now: float) -> float:
        """Until so much is free; 0.0 now. `amount` is at most `capacity`."""

    def take(self, amount: float, now: float) -> None:
        """Counts it, whether it fits or not."""

    def remaining(self, now: float) -> float:
        """What is free."""

    def reset_s(self, now: float) -> float:
        """Until all is free."""


class Refill:
    """`per_min` flow in continuously; at most `burst` (all of them when not said) are there at once."""

    def __init__(self, counts: Counts, per_min: float, burst: float | None = None) -> None:
        self.counts = counts
        self.told = per_min
        self.capacity = per_min if burst is None else burst
        self._each_s = 60.0 / per_min
        self._most_s = self.capacity * self._each_s
        self._full_at = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        debt_s = max(self._full_at, now) + amount * self._each_s - now - self._most_s
        return debt_s if debt_s > _ROUNDING_S else 0.0

    def take(self, amount: float, now: float) -> None:
        self._full_at = max(self._full_at, now) + amount * self._each_s

    def remaining(self, now: float) -> float:
        return max(0.0, (self._most_s - self.reset_s(now)) / self._each_s)

    def reset_s(self, now: float) -> float:
        return max(0.0, self._full_at - now)


class Windows:
    """`capacity` in each window of `window_s`; the grid of windows is shifted by `phase_s`."""

    def __init__(self, counts: Counts, per_min: float, window_s: float, phase_s: float = 0.0) -> None:
        self.counts = counts
        self.told = per_min
        self.capacity: float = per_min * window_s / 60.0 if "tokens" in counts else max(1, int(per_min * window_s / 60))
        self._window_s = window_s
        self._phase_s = phase_s
        self._window = -1
        self._used = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        return self.reset_s(now) if amount > self.remaining(now) else 0.0

    def take(self, amount: float, now: float) -> None:
        self._turn(now)
        self._used += amount

    def remaining(self, now: float) -> float:
        self._turn(now)
        return max(0.0, self.capacity - self._used)

    def reset_s(self, now: float) -> float:
        return (floor(self._grid(now)) + 1 - self._grid(now)) * self._window_s

    def _grid(self, now: float) -> float:
        return (now + _ROUNDING_S + self._phase_s) / self._window_s

    def _turn(self, now: float) -> None:
        window = floor(self._grid(now))
        if window != self._window:
            self._window, self._used = window, 0.0


class Sliding:
    """`capacity` in any span of `window_s`: a log of what was let in (Redis' recipe for rate limiting)."""

    def __init__(self, counts: Counts, per_min: float, window_s: float = 60.0) -> None:
        self.counts = counts
        self.told = per_min
        self.capacity = per_min * window_s / 60.0
        self._window_s = window_s
        self._log: deque[tuple[float, float]] = deque()
        self._used = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        missing = amount - self.remaining(now)
        if missing <= _ROUNDING_S:
            return 0.0
        for at, used in self._log:
            missing -= used
            if missing <= _ROUNDING_S:
                return at + self._window_s - now
        return self._window_s

    def take(self, amount: float, now: float) -> None:
        self._log.append((now, amount))
        self._used += amount

    def remaining(self, now: float) -> float:
        while self._log and self._log[0][0] <= now - self._window_s + _ROUNDING_S:
            self._used -= self._log.popleft()[1]
        return self.capacity - self._used

    def reset_s(self, now: float) -> float:
        self.remaining(now)
        return self._log[-1][0] + self._window_s - now if self._log else 0.0
