"""Reads `breakers.yaml`: by set, when a breaker opens after failures, and how its target is probed.

A model picks a set, and its targets get it; fields that a set leaves out have built-in values.
"""

from __future__ import annotations

from typing import Final, Self

from pydantic import Field, model_validator

from gateway.core.config.fields.check import check_part, check_sets
from gateway.core.config.fields.fields.fields import (
    Count,
    Duration,
    Factor,
    Flag,
    Percent,
    PositiveDuration,
    Section,
    Share,
    said,
)
from gateway.core.config.schema import Entry
from gateway.core.config.source.problems import Document
from gateway.core.health.breaker.state_machine.rules import BreakerRules
from gateway.core.types.words import LANES, Lane

_BUILT_IN: Final = BreakerRules()
_HIGHEST = LANES[0]


class BreakersSet(Entry):
    """A set of breakers.yaml."""

    enabled: Flag = _BUILT_IN.is_enabled
    consecutive_failures: Count = _BUILT_IN.consecutive_failures
    failure_rate_percent: Share = _BUILT_IN.failure_rate_percent
    min_calls: Count = _BUILT_IN.min_calls
    window: PositiveDuration = _BUILT_IN.window_s
    slow_rate_percent: Share = _BUILT_IN.slow_rate_percent
    slow_factor: Factor = _BUILT_IN.slow_factor
    slow_at_least: PositiveDuration = _BUILT_IN.slow_at_least_s
    slow_at_most: PositiveDuration = _BUILT_IN.slow_at_most_s
    open_for: PositiveDuration = _BUILT_IN.open_s
    max_open_for: PositiveDuration = _BUILT_IN.max_open_s
    jitter_percent: Percent = _BUILT_IN.jitter_percent
    probes: Count = _BUILT_IN.probes
    ramp: Duration = _BUILT_IN.ramp_s
    hold_for: Section = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        for low, high in (("slow_at_least", "slow_at_most"), ("open_for", "max_open_for")):
            if getattr(self, low) > getattr(self, high):
                raise said(f"{high} must not be less than {low}")
        return self


class HoldEntry(Entry):
    """The waits by lane; a lane that is left out has its built-in value."""

    critical: Duration | None = None
    interactive: Duration | None = None
    batch: Duration | None = None
    background: Duration | None = None


def read_breakers(document: Document | None) -> dict[str, BreakerRules]:
    """Reads every set of breakers.yaml; None: the file does not exist."""
    return {name: _rules(document, name, entry) for name, entry in check_sets(BreakersSet, document).items()}


def _rules(document: Document | None, name: str, entry: BreakersSet) -> BreakerRules:
    return BreakerRules(
        is_enabled=entry.enabled,
        consecutive_failures=entry.consecutive_failures,
        failure_rate_percent=entry.failure_rate_percent,
        min_calls=entry.min_calls,
        window_s=entry.window,
        slow_rate_percent=entry.slow_rate_percent,
        slow_factor=entry.slow_factor,
        slow_at_least_s=entry.slow_at_least,
        slow_at_most_s=entry.slow_at_most,
        open_s=entry.open_for,
        max_open_s=entry.max_open_for,
        jitter_percent=entry.jitter_percent,
        probes=entry.probes,
        ramp_s=entry.ramp,
        hold_for_s=_hold_for_s(check_part(HoldEntry, document, (name, "hold_for"))),
    )


def _hold_for_s(entry: HoldEntry) -> dict[Lane, float]:
    """Returns the seconds of every lane; the highest lane has those of `interactive` where it is not named itself."""
    said_s = {lane: value for lane in LANES if (value := getattr(entry, lane)) is not None}
    merged = {**_BUILT_IN.hold_for_s, **said_s}
    return {**merged, _HIGHEST: said_s.get(_HIGHEST, merged["interactive"])}
