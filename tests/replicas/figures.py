"""Arithmetic on times: how many calls in which window, how far over a limit, how fairly shared, how late.

Pure; times are seconds on any one clock. Invariant: a limit of `rate` and `burst` is overshot by no more than 0 exactly when
some bucket that was full at the start would have let every call through.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tests.soak.storms import percentile


def between(times: Sequence[float], begin: float, end: float) -> int:
    """How many are in [begin, end); `times` in order."""
    return bisect_left(times, end) - bisect_left(times, begin)


def busiest(times: Sequence[float], begin: float, end: float, width_s: float) -> int:
    """The most that came in any window of this width that begins with a call."""
    inside = [at for at in times if begin <= at < end]
    return max((between(inside, at, at + width_s) for at in inside), default=0)


def quietest(times: Sequence[float], begin: float, end: float, width_s: float, step_s: float = 0.25) -> int:
    """The fewest in a window of this width."""
    starts = [begin + step_s * step for step in range(int((end - begin - width_s) / step_s) + 1)]
    return min((between(times, at, at + width_s) for at in starts), default=0)


def overshoot(times: Sequence[float], rate_per_s: float, burst: float) -> float:
    """By how many calls a bucket would have been overdrawn; the most of any interval beyond burst and refill."""
    level, worst, last_at = burst, 0.0, times[0] if times else 0.0
    for at in times:
        level = min(burst, level + (at - last_at) * rate_per_s) - 1
        worst, last_at = min(worst, level), at
    return max(0.0, -worst)


def fair_shares(demands: Sequence[float], total: float) -> list[float]:
    """Max-min fair: nobody gets more than it asks for, and what is left over goes to the others in equal parts."""
    shares = [0.0] * len(demands)
    left = total
    for done, place in enumerate(sorted(range(len(demands)), key=lambda one: demands[one])):
        shares[place] = min(demands[place], left / (len(demands) - done))
        left -= shares[place]
    return shares


def per_second(times: Sequence[float], begin: float, end: float) -> list[int]:
    """How many in each whole second."""
    return [between(times, begin + second, begin + second + 1) for second in range(int(end - begin))]


def quantile_ms(values_s: Sequence[float], percent: int) -> float:
    """In milliseconds; 0.0 of too few."""
    return 1000 * percentile(values_s, percent) if len(values_s) > 1 else 0.0
