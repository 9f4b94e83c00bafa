"""What follows a failure: try again, wait, or give up. One decision for all of a call's attempts.

A pure function of the attempt ledger, the plan, the budgets, the deadline, the time and one random draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Protocol

from gateway.errors import ErrorClass, Phase
from gateway.policy.retry.rules import Action, Backoff, ClassRule, Retries
from gateway.policy.snapshot import Target
from gateway.words import Attempt

_FINAL = ClassRule(Action.PASS_THROUGH)


class Plan(NamedTuple):
    """Where a call may still go, in order of preference: targets that are left alone for now are not among them."""

    own: Sequence[Target]
    """The model's own targets."""
    others: Sequence[Target] = ()
    """Those of its fallbacks."""
    context: Sequence[Target] = ()
    """Those of its context fallbacks, for a call that is too long for the others."""


class Doubt(NamedTuple):
    """Whether a target serves is not known, and as many calls that have failed before as tell it have gone there."""

    tried_since: float | None
    """Since when the first of those that wait for its answer has done so; None: none does."""
    has_failed: bool
    """The others have failed there, one after the other."""


class Budgets(Protocol):
    """What retries may cost, as it stands now."""

    def denies(self, target: Target, last: Attempt) -> str | None:
        """Why the target may not be tried again after this failure of the call (`budget`, `tokens`); None: it may."""
        ...

    def doubt(self, target: Target) -> Doubt | None:
        """What calls that have failed before have found out of the target, where enough have tried; None: it may be tried."""
        ...

    def denies_money(self) -> str | None:
        """Why the call may spend no more on another attempt (`money`, `key_budget`); None: it may."""
        ...

    def attempts(self) -> int:
        """So many attempts the call may make, by what one costs."""
        ...


class Try(NamedTuple):
    """Go to one of these, the first that has room: now, or when the delay queue lets it through."""

    targets: Sequence[Target]
    is_retry: bool = False
    """To where the call has failed before: it takes from the retry budget."""


class Hold(NamedTuple):
    """Wait until then (monotonic seconds), then go to one of these: the call has failed there before.

    Without targets: ask again then; too many retries are in flight just now.
    """

    until: float
    targets: Sequence[Target] = ()


class GiveUp(NamedTuple):
    """The client gets the last failure."""

    reason: str
    """`final`, `attempts`, `deadline`, `no_target`, `doubt` (others who tried had no answer), or what denies a retry."""


Step = Try | Hold | GiveUp
FIRST_DOUBT_WAIT_S = 0.05
"""How long a failure waits until it is known whether a target serves: until the next look, longer each time."""
_LEAST_DOUBT_WAIT_S, _DOUBT_FACTOR, _DOUBT_GROWTH = 0.1, 1.5, 0.2
FIRST_BUDGET_WAIT_S, LONGEST_BUDGET_WAIT_S = 0.05, 2.0
"""How long a failure waits for a budget that is spent: until the next look, doubled each time, and in all."""
DENIALS = frozenset(("budget", "tokens", "money", "key_budget"))
"""The reasons for which an attempt that would have been made was not."""


def next_step(
    ledger: Sequence[Attempt],
    plan: Plan,
    retries: Retries,
    budgets: Budgets,
    deadline: float,
    now: float,
    u: float,
    *,
    is_hard: bool = True,
) -> Step:
    """What follows the last failure of the ledger; `u` is a uniform draw from [0, 1).

    In this order: an own target that the call has not met, at once; one that it has, after the backoff; a fallback, for which
    the last attempt is kept. Where others are finding out whether a target serves, any other goes first. What a rate limit
    refused is no failure: the delay queue knows when it may go again. A deadline that is not `is_hard` bounds waiting only: a
    target that the call has not met may still be tried.
    """
    if rule_for(ledger[-1], retries).action is Action.PASS_THROUGH:
        return GiveUp("final")
    if now >= deadline and is_hard:
        return GiveUp("deadline")
    is_too_long = any(attempt.error_class == ErrorClass.CONTEXT_LENGTH_EXCEEDED for attempt in ledger)
    left = _left(Plan(plan.context) if is_too_long else plan, ledger)
    made = sum([not attempt.is_refused for attempt in ledger])
    # A target without its model might as well not be there: what the others said decides, if there were any.
    ledger = [one for one in ledger if one.error_class != ErrorClass.MODEL_NOT_FOUND or not one.never_again] or ledger
    last = ledger[-1]
    rule = rule_for(last, retries)
    if last.is_refused and not last.never_again:
        if now >= deadline:
            return GiveUp("deadline")
        return Try((*left.own, *left.others)) if left.own or left.others else GiveUp("no_target")
    failures = [attempt for attempt in ledger if not attempt.is_refused]
    allowed = budgets.attempts()
    denied = "attempts" if made >= allowed else budgets.denies_money()
    if denied is not None:
        return GiveUp(denied)
    # A price that allows more attempts than usual allows more of each class, too.
    most = rule.attempts if rule.action is Action.RETRY else 0
    if most > 1:
        most += max(0, allowed - retries.attempts)
    is_last = made == allowed - 1
    step = _next_target(failures, left, most, retries, budgets, now, u, is_last=is_last)
    if isinstance(step, Hold) and (step.until >= deadline or now >= deadline):
        fresh = _fresh((*left.own, *left.others), failures)
        step = Try(fresh) if fresh else GiveUp("deadline")
    if most:
        step = _unless_in_doubt(step, failures, budgets, deadline if is_hard else inf, now, u)
    if isinstance(step, GiveUp) and is_too_long:
        return GiveUp("final")
    return step


def rule_for(attempt: Attempt, retries: Retries) -> ClassRule:
    """What the attempt's failure deserves. A caller whose own credential is refused is told so: nobody else's would do."""
    if attempt.error_class is None or (attempt.error_class == ErrorClass.AUTH and attempt.is_callers):
        return _FINAL
    return retries.by_class.get(attempt.error_class, _FINAL)


def backoff_s(backoff: Backoff, failures: int, u: float) -> float:
    """The wait before the next try, in seconds, after so many failures (1 or more).

    Full jitter: AWS Architecture Blog, "Exponential Backoff And Jitter".
    """
    most_s = min(backoff.max_s, backoff.base_s * backoff.factor ** min(failures - 1, 64))
    return most_s * u if backoff.has_jitter else most_s


def _left(plan: Plan, ledger: Sequence[Attempt]) -> Plan:
    """The plan without the targets that can never serve this call."""
    out = {attempt.target for attempt in ledger if attempt.never_again}
    return Plan(*([target for target in targets if target.name not in out] for targets in plan))


def _fresh(targets: Sequence[Target], failures: Sequence[Attempt]) -> list[Target]:
    met = {attempt.target for attempt in failures}
    return [target for target in targets if target.name not in met]


def _unless_in_doubt(
    step: Step, failures: Sequence[Attempt], budgets: Budgets, hard_deadline: float, now: float, u: float
) -> Step:
    """The step, but only to those of its targets that are not in doubt.

    Where all of them are, the call waits until others have found out, but not much longer than its failure has taken, nor
    than half of the time that its caller has left. Then it finds out for itself, unless there is little hope: others have
    failed there, or will hardly be answered in the time that is left. Where nobody is trying, somebody has to.
    """
    if isinstance(step, GiveUp) or not step.targets:
        return step
    doubts = [(target, budgets.doubt(target)) for target in step.targets]
    sure = [target for target, doubt in doubts if doubt is None]
    if sure:
        return step._replace(targets=sure)
    last = failures[-1]
    failed_at = now if last.ended_at is None else last.ended_at
    full = failed_at + max((failed_at - last.started_at) * _DOUBT_FACTOR, _LEAST_DOUBT_WAIT_S)
    until = min(full, (failed_at + hard_deadline) / 2)
    if now < until:
        return Hold(min(until, now + max(FIRST_DOUBT_WAIT_S, (now - failed_at) * _DOUBT_GROWTH * (0.5 + u))))
    took_s = failed_at - last.started_at
    hopeful = [target for target, doubt in doubts if doubt and _is_hopeful(doubt, took_s, now, is_short=until < full)]
    return step._replace(targets=hopeful) if hopeful else GiveUp("doubt")


def _is_hopeful(doubt: Doubt, took_s: float, now: float, *, is_short: bool) -> bool:
    """Whether a call whose failure took so long, and that has waited, may find out for itself.

    Failures come sooner than answers: others that are out for longer than a failure takes may be well all the same.
    """
    if doubt.tried_since is None:
        return True
    return not is_short and (not doubt.has_failed or now - doubt.tried_since >= took_s)


def _next_target(
    failures: Sequence[Attempt],
    left: Plan,
    most: int,
    retries: Retries,
    budgets: Budgets,
    now: float,
    u: float,
    *,
    is_last: bool,
) -> Step:
    fresh_others = _fresh(left.others, failures)
    fresh = _fresh(left.own, failures)
    if fresh:
        return Try([*fresh, *fresh_others])
    own = [target.name for target in left.own]
    last_class = failures[-1].error_class
    spent = sum([attempt.target in own and attempt.error_class == last_class for attempt in failures])
    if is_last and fresh_others:  # the last attempt is better made where the call has not failed yet
        return Try(fresh_others)
    again, denied = _again(left.own, failures, budgets) if spent < most else ([], None)
    if fresh_others:  # who would only find out what others do goes there instead
        again = [target for target in again if budgets.doubt(target) is None]
    if not again:
        if fresh_others:
            return Try(fresh_others)
        tired = [target for target in left.others if _count(failures, target) < most]
        again, denied_there = _again(tired, failures, budgets)
        denied = denied or denied_there
    last = failures[-1]
    waited_s = now - (now if last.ended_at is None else last.ended_at)
    if not again and denied == "budget" and waited_s < min(retries.backoff.max_s, LONGEST_BUDGET_WAIT_S):
        return Hold(now + max(FIRST_BUDGET_WAIT_S, waited_s * (0.5 + u)))  # seldom asked, and never by all at once
    if not again:
        return GiveUp(denied or ("no_target" if not own and not left.others else "attempts"))
    rule = rule_for(last, retries)
    if rule.is_first_immediate and len(failures) == 1 and last.phase is Phase.NOTHING_SENT:
        return Hold(now, again)
    return Hold(now + backoff_s(retries.backoff, len(failures), u), again)


def _again(targets: Sequence[Target], failures: Sequence[Attempt], budgets: Budgets) -> tuple[list[Target], str | None]:
    """Those that may be tried again, the least tried first, and why others may not."""
    denials = {target.name: budgets.denies(target, failures[-1]) for target in targets}
    again = sorted(
        [target for target in targets if denials[target.name] is None], key=lambda target: _count(failures, target)
    )
    return again, next((reason for reason in denials.values() if reason is not None), None)


def _count(failures: Sequence[Attempt], target: Target) -> int:
    return sum([attempt.target == target.name for attempt in failures])
