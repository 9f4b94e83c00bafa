"""Reads `breakers.yaml` and `retries.yaml`, by set.

A model picks a set; fields that a set leaves out have built-in values. Invariant: a set that compiles can be acted on; no
action needs something that its class of error never has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from gateway.core.balancing import BUILT_IN_RULES, Action, Backoff, ClassRule, CostRule, Hedging, Retries
from gateway.core.config.fields import (
    Amount,
    Attempts,
    Count,
    Duration,
    Factor,
    Flag,
    Percent,
    Percentile,
    PositiveDuration,
    Section,
    Share,
    Tokens,
    Usd,
    Whole,
    problem_of,
)
from gateway.core.config.schema import Entry, check, check_part, check_sets, every_lane, keyed_by
from gateway.core.config.source import Document, Path, did_you_mean
from gateway.core.health.detector import BreakerRules
from gateway.core.types import LANES, ErrorClass

# --- breakers.yaml: when a breaker opens after failures, and how its target is probed ---


_BREAKER_DEFAULTS: Final = BreakerRules()


class BreakersSet(Entry):
    """A set of breakers.yaml."""

    enabled: Flag = _BREAKER_DEFAULTS.is_enabled
    consecutive_failures: Count = _BREAKER_DEFAULTS.consecutive_failures
    failure_rate_percent: Share = _BREAKER_DEFAULTS.failure_rate_percent
    min_calls: Count = _BREAKER_DEFAULTS.min_calls
    window: PositiveDuration = _BREAKER_DEFAULTS.window_s
    slow_rate_percent: Share = _BREAKER_DEFAULTS.slow_rate_percent
    slow_factor: Factor = _BREAKER_DEFAULTS.slow_factor
    slow_at_least: PositiveDuration = _BREAKER_DEFAULTS.slow_at_least_s
    slow_at_most: PositiveDuration = _BREAKER_DEFAULTS.slow_at_most_s
    open_for: PositiveDuration = _BREAKER_DEFAULTS.open_s
    max_open_for: PositiveDuration = _BREAKER_DEFAULTS.max_open_s
    jitter_percent: Percent = _BREAKER_DEFAULTS.jitter_percent
    probes: Count = _BREAKER_DEFAULTS.probes
    ramp: Duration = _BREAKER_DEFAULTS.ramp_s
    hold_for: Section = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        for low, high in (("slow_at_least", "slow_at_most"), ("open_for", "max_open_for")):
            if getattr(self, low) > getattr(self, high):
                raise problem_of(f"{high} must not be less than {low}")
        return self


HOLD_LANES: Final = keyed_by(LANES, "HoldEntry", Duration)
"""The waits by lane; a lane that is left out has its built-in value."""


def read_breakers(document: Document | None) -> dict[str, BreakerRules]:
    """Reads every set of breakers.yaml; None: the file does not exist."""
    return {name: _rules(document, name, entry) for name, entry in check_sets(BreakersSet, document).items()}


def _rules(document: Document | None, name: str, entry: BreakersSet) -> BreakerRules:
    hold_for = check_part(HOLD_LANES, document, (name, "hold_for"))
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
        hold_for_s=every_lane(hold_for.written(), _BREAKER_DEFAULTS.hold_for_s),
    )


_BUILT_IN: Final = Retries()
ACTIONS: Final[Mapping[str, Action]] = {a.value: a for a in Action if a is not Action.RETRY}
"""The actions that are written by name; a retry is written as the number of attempts."""
ALIASES: Final = {"rate_limit": (ErrorClass.RATE_LIMIT_REQUESTS, ErrorClass.RATE_LIMIT_TOKENS)}
CLASSES: Final[Mapping[str, tuple[ErrorClass, ...]]] = {**ALIASES, **{str(one): (one,) for one in ErrorClass}}
"""Every name that `by_class` may use; a class's own entry wins over that of its alias."""

_ABOUT_RATES: Final = frozenset((*ALIASES["rate_limit"], ErrorClass.QUOTA_EXHAUSTED))
_ABOUT_SIZE: Final = frozenset((ErrorClass.CONTEXT_LENGTH_EXCEEDED, ErrorClass.PAYLOAD_TOO_LARGE))
_SAME_AGAIN: Final = frozenset(
    (
        ErrorClass.AUTH,
        ErrorClass.BAD_REQUEST,
        ErrorClass.CONTENT_POLICY,
        ErrorClass.CONTEXT_LENGTH_EXCEEDED,
        ErrorClass.MODEL_NOT_FOUND,
        ErrorClass.NOT_FOUND,
        ErrorClass.PAYLOAD_TOO_LARGE,
        ErrorClass.PERMISSION,
        ErrorClass.QUOTA_EXHAUSTED,
    )
)


class RetriesSet(Entry):
    """A set of retries.yaml."""

    attempts: Attempts = _BUILT_IN.attempts
    backoff: Section = Field(default_factory=dict)
    budget: Section = Field(default_factory=dict)
    by_class: Section = Field(default_factory=dict)
    by_cost: list[Any] | None = None
    max_usd_per_call: Amount | None = _BUILT_IN.max_usd_per_call
    hedge: Section | None = None

    @model_validator(mode="after")
    def _hedge_is_an_attempt(self) -> Self:
        if self.hedge is not None and self.attempts == 1:
            raise problem_of("hedge is a second attempt: it needs attempts: 2 or more")
        return self


class BackoffEntry(Entry):
    """The field `backoff` of a set of `retries.yaml`."""

    base: PositiveDuration = _BUILT_IN.backoff.base_s
    factor: Factor = _BUILT_IN.backoff.factor
    max: PositiveDuration = _BUILT_IN.backoff.max_s
    jitter: Literal["full", "none"] = "full"

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.base > self.max:
            raise problem_of("max must not be less than base")
        return self


class BudgetEntry(Entry):
    """The field `budget` of a set of `retries.yaml`."""

    percent_of_active: Percent = _BUILT_IN.budget_percent_of_active
    min_concurrent: Whole = _BUILT_IN.budget_min_concurrent
    tokens: Amount = _BUILT_IN.tokens
    retry_tokens: Tokens = _BUILT_IN.retry_tokens
    timeout_tokens: Tokens = _BUILT_IN.timeout_tokens

    @model_validator(mode="after")
    def _allows_something(self) -> Self:
        if not self.percent_of_active and not self.min_concurrent:
            raise problem_of(
                "percent_of_active and min_concurrent of 0 leave no retry at all: write attempts: 1 for that"
            )
        if self.tokens < max(self.retry_tokens, self.timeout_tokens):
            raise problem_of("tokens must be enough for one retry: not less than retry_tokens and timeout_tokens")
        return self


class ClassEntry(Entry):
    """The retries of one class of error; fields that are left out have the class's built-in values."""

    attempts: Attempts | None = None
    first: Literal["immediate", "backoff"] | None = None


class CostEntry(Entry):
    """One line of `by_cost` of a set of `retries.yaml`."""

    attempts: Attempts
    above_usd: Usd | None = None
    below_usd: Usd | None = None

    @model_validator(mode="after")
    def _check_scope(self) -> Self:
        if self.above_usd is None and self.below_usd is None:
            raise problem_of("needs above_usd or below_usd; attempts for every call stand beside by_cost")
        if self.above_usd is not None and self.below_usd is not None and self.above_usd >= self.below_usd:
            raise problem_of("above_usd must be less than below_usd")
        return self


class HedgeEntry(Entry):
    """The field `hedge` of a set of `retries.yaml`."""

    percentile: Percentile = Hedging().percentile
    at_least: Duration = Hedging().at_least_s
    min_samples: Count = Hedging().min_samples


def read_retries(document: Document | None) -> dict[str, Retries]:
    """Reads every set of retries.yaml; None: the file does not exist."""
    return {name: _retries(document, name, entry) for name, entry in check_sets(RetriesSet, document).items()}


def _retries(document: Document | None, name: str, entry: RetriesSet) -> Retries:
    backoff = check_part(BackoffEntry, document, (name, "backoff"))
    budget = check_part(BudgetEntry, document, (name, "budget"))
    hedge = None if entry.hedge is None else check_part(HedgeEntry, document, (name, "hedge"))
    return Retries(
        attempts=entry.attempts,
        backoff=Backoff(backoff.base, backoff.factor, backoff.max, has_jitter=backoff.jitter == "full"),
        budget_percent_of_active=budget.percent_of_active,
        budget_min_concurrent=budget.min_concurrent,
        tokens=budget.tokens,
        retry_tokens=budget.retry_tokens,
        timeout_tokens=budget.timeout_tokens,
        by_class=dict(BUILT_IN_RULES) if document is None else _by_class(document, (name, "by_class")),
        by_cost=_BUILT_IN.by_cost
        if document is None
        else _by_cost(document, (name, "by_cost"), entry.by_cost, has_attempts="attempts" in entry.model_fields_set),
        max_usd_per_call=entry.max_usd_per_call,
        hedging=None if hedge is None else Hedging(hedge.percentile, hedge.at_least, hedge.min_samples),
    )


# --- what a class deserves ---


def _by_class(document: Document, path: Path) -> dict[str, ClassRule]:
    """Returns the rule of every class: its own entry, else that of its alias, else the built-in one."""
    rules: dict[str, ClassRule] = {}
    for name, classes in CLASSES.items():  # the aliases first
        rules |= {one: _rule(document, (*path, name), rules.get(one, BUILT_IN_RULES[one]), one) for one in classes}
    named = document.at(path)
    for name in named if isinstance(named, dict) else ():
        if name not in CLASSES:
            document.complain((*path, name), f"unknown class of errors{did_you_mean(name, CLASSES)}")
    return rules


def _rule(document: Document, path: Path, built_in: ClassRule, error_class: ErrorClass) -> ClassRule:
    wanted = document.at(path)
    if wanted is None:
        return built_in
    if isinstance(wanted, str) and wanted not in ACTIONS:
        document.no_such(path, "action", wanted, (*ACTIONS, "{attempts: N}"))
        return built_in
    rule = ClassRule(ACTIONS[wanted]) if isinstance(wanted, str) else _tries(document, path, built_in)
    if rule is None:
        return built_in
    for problem in _nonsense(error_class, rule):
        document.complain(path, problem)
    return rule


def _tries(document: Document, path: Path, built_in: ClassRule) -> ClassRule | None:
    entry = check(ClassEntry, document, path)
    if entry is None:
        return None
    if entry.attempts is None and built_in.action is not Action.RETRY:
        document.complain((*path, "attempts"), "is missing")
        return None
    attempts = built_in.attempts if entry.attempts is None else entry.attempts
    is_first_immediate = built_in.is_first_immediate if entry.first is None else entry.first == "immediate"
    if entry.first == "immediate" and attempts == 1:
        document.complain((*path, "first"), "with attempts: 1 there is no retry that could be immediate")
    return ClassRule(Action.RETRY, attempts, is_first_immediate)


def _nonsense(error_class: ErrorClass, rule: ClassRule) -> Iterator[str]:
    """Yields a problem, with its remedy, for everything the rule needs that its class never has."""
    if rule.action is Action.HOLD and error_class not in _ABOUT_RATES:
        yield "hold waits for a limit to refill, and this class is about none: write {attempts: N} or next_target"
    elif rule.action is Action.CONTEXT_FALLBACKS and error_class not in _ABOUT_SIZE:
        yield "a larger context window does not help against this class: write next_target"
    elif rule.action is Action.RETRY and error_class in _SAME_AGAIN:
        yield "the same target would only say it again: write next_target or pass_through"
    elif rule.action is Action.RETRY and error_class in _ABOUT_RATES:
        yield "what was refused for its rate is waited for, not tried again: write hold or next_target"


# --- what an attempt may cost ---


def _by_cost(document: Document, path: Path, listed: list[Any] | None, *, has_attempts: bool) -> tuple[CostRule, ...]:
    """Returns the rules by cost; a set with `attempts` but no rules has none, so that its attempts hold for all calls."""
    if listed is None:
        return () if has_attempts else _BUILT_IN.by_cost
    rules: list[CostRule] = []
    for index in range(len(listed)):
        entry = check(CostEntry, document, (*path, index))
        if entry is None:
            continue
        rule = CostRule(entry.attempts, entry.above_usd, entry.below_usd)
        if any(_covers(earlier, rule) for earlier in rules):
            document.complain(
                (*path, index), "is never reached: one above it matches the same calls; put the narrower first"
            )
        rules.append(rule)
    return tuple(rules)


def _covers(earlier: CostRule, later: CostRule) -> bool:
    return _bounds(earlier)[0] <= _bounds(later)[0] and _bounds(later)[1] <= _bounds(earlier)[1]


def _bounds(rule: CostRule) -> tuple[float, float]:
    low = float("-inf") if rule.above_usd is None else rule.above_usd
    return low, float("inf") if rule.below_usd is None else rule.below_usd
