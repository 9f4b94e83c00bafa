"""Decides whether the money of a call's check allows a retry or a repair of an invalid answer."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.types.words import Attempt
from gateway.features.output.rules.rules import OutputRule


def spent_usd(ledger: Sequence[Attempt], first: int) -> float:
    """Returns what retries and repairs have cost: all attempts behind the `first` ones, which the call had without them."""
    return sum([attempt.cost_usd or 0.0 for attempt in ledger[first:]])


def allows_retry(rule: OutputRule, retries: int, spent: float, usd: float | None) -> bool:
    """Returns whether the request may be sent again after `retries`, estimated to cost `usd` (None: it is not priced)."""
    return retries < rule.retry and fits(rule, spent, usd)


def fits(rule: OutputRule, spent: float, usd: float | None) -> bool:
    """Returns whether what costs `usd` fits beside what is spent. What has no price is not held back by a bound of money."""
    return rule.max_usd is None or usd is None or spent + usd <= rule.max_usd
