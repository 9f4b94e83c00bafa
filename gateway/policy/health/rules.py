"""What `breakers.yaml` says, compiled: when a target is left alone after failures, and how it comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.words import Lane


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """One set of `breakers.yaml`."""

    is_enabled: bool = True
    consecutive_failures: int = 5
    """In a row; raised to 20 at most where failures are usual at this target."""
    failure_rate_percent: float = 50.0
    """Of the calls that usually succeed; raised to 90 % of all at most."""
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
    open_s: float = 2.0
    """The first time; doubled with each further ejection."""
    max_open_s: float = 60.0
    jitter_percent: float = 20.0
    """Of the open time; it only shortens it."""
    probes: int = 3
    """Calls in flight while it is half open, at most; so many successes close it."""
    ramp_s: float = 10.0
    """Once closed, the calls let through grow over this time."""
    hold_for_s: Mapping[Lane, float] = field(
        default_factory=lambda: {"critical": 0.0, "interactive": 0.0, "batch": 60.0, "background": 21600.0}
    )
    """When every target of a call is open, it is held so long before it is refused."""


def account_rules(rules: BreakerRules) -> BreakerRules:
    """The rules of a provider's account, told of the failures of all its targets: no single one should open it."""
    consecutive = max(10, 2 * rules.consecutive_failures)
    return replace(rules, consecutive_failures=consecutive, min_calls=max(50, 2 * rules.min_calls))
