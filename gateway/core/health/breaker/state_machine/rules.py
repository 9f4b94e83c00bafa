"""The compiled rules of `breakers.yaml`: when a target is left alone after failures, and how it comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.core.types.words import Lane


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """One set of `breakers.yaml`."""

    is_enabled: bool = True
    consecutive_failures: int = 5
    """The failures in a row that open it; raised to 20 at most where failures are usual at this target."""
    failure_rate_percent: float = 50.0
    """The percentage of the calls that usually succeed whose failure opens it; raised to 90 % of all at most."""
    min_calls: int = 20
    """The calls that have to be in the window before a rate is looked at."""
    window_s: float = 60.0
    """The length of the window in seconds; it is made longer where calls take longer."""
    slow_rate_percent: float = 80.0
    """The percentage of calls that opens it whose first byte came later than is usual here ..."""
    slow_factor: float = 4.0
    """... by this factor over the target's own baseline, within the next two ..."""
    slow_at_least_s: float = 10.0
    slow_at_most_s: float = 120.0
    open_s: float = 2.0
    """The seconds that it is open for the first time; doubled with each further ejection."""
    max_open_s: float = 60.0
    jitter_percent: float = 20.0
    """The largest part of the open time by which a draw shortens it."""
    probes: int = 3
    """The most calls in flight while it is half open; as many successes close it."""
    ramp_s: float = 10.0
    """The seconds of the slow start, over which the calls let through grow once it is closed."""
    hold_for_s: Mapping[Lane, float] = field(
        default_factory=lambda: {"critical": 0.0, "interactive": 0.0, "batch": 60.0, "background": 21600.0}
    )
    """The seconds that a call of each lane is held when all its targets are open, before it is refused."""


def account_rules(rules: BreakerRules) -> BreakerRules:
    """Returns the rules of a provider's account, which hears of all its targets' failures: no single target should open it."""
    consecutive = max(10, 2 * rules.consecutive_failures)
    return replace(rules, consecutive_failures=consecutive, min_calls=max(50, 2 * rules.min_calls))
