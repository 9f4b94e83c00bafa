"""A circuit breaker: who fails is left alone for a while, then tried with a few calls, then trusted again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.call import Lane


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """One set of `breakers.yaml`."""

    is_enabled: bool = True
    consecutive_failures: int = 5
    """In a row; raised to 20 at most where failures are usual at this target."""
    failure_rate_percent: float = 50.0
    min_calls: int = 20
    """In the window, before a rate is looked at."""
    window_s: float = 60.0
    """Made longer where calls take longer."""
    slow_rate_percent: float = 80.0
    """Of calls whose first byte came later than is usual here ..."""
    slow_factor: float = 4.0
    """... by this factor over the target's own baseline, within the next two ..."""
    slow_at_least_s: float = 10.0
    slow_at_most_s: float = 120.0
    open_s: float = 10.0
    """The first time; doubled with each further ejection."""
    max_open_s: float = 60.0
    jitter_percent: float = 20.0
    probes: int = 3
    """Calls in flight while it is half open, at most; so many successes close it."""
    ramp_s: float = 10.0
    """Once closed, the calls let through grow over this time."""
    hold_for_s: Mapping[Lane, float] = field(
        default_factory=lambda: {"critical": 0.0, "interactive": 0.0, "batch": 60.0, "background": 21600.0}
    )
    """When every target of a call is open, it is held so long before it is refused."""
