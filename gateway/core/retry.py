"""The attempts of a call, and what follows a failure: try again, wait, or give up. One decision for all attempts of a call.

The decision is a pure function of the attempt ledger, the plan, the budgets, the deadline, the time and one random draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from typing import NamedTuple, Protocol

from gateway.core.balancing import BUILT_IN_RULES, Action, Backoff, ClassRule, Retries
from gateway.core.health.target_health import Doubt
from gateway.core.limits.reservation import Reservation
from gateway.core.openai.usage import added
from gateway.core.snapshot import Target
from gateway.core.types import PASSING, ErrorClass, Gap, Phase, Skip, Skips, Usage

# --- the ledger of a call: its attempts, and how it is shown ---

FIRST_SHOWN, LAST_SHOWN = 5, 20
"""The attempts of a call that headers and errors show: this many of the first, this many of the last."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One try of one call at one target. Times are monotonic seconds; `result` is a status or an error class.

    It owns what it has reserved, and belongs to one call. Admission makes it, and it is listed in its call's ledger once it
    begins; one that is never sent is never listed.
    """

    target: Target
    started_at: float
    first_byte_at: float | None = None
    ended_at: float | None = None
    status: int | None = None
    error_class: str | None = None
    upstream_request_id: bytes | None = None
    detail: str | None = None
    """A description of the failure, for the log."""
    phase: Phase | None = None
    """The progress of the attempt when it failed."""
    is_refused: bool = False
    """The target refused the attempt because of a rate limit: target and call wait, and it counts as no failure."""
    retry_at: float = 0.0
    """The moment before which the call, refused for its rate, does not go to the target again, whoever else does."""
    never_again: bool = False
    """The target can never serve this call, whatever the time."""
    should_retry: bool | None = None
    """The provider's own `x-should-retry`; None: it says nothing."""
    is_trial: bool = False
    """The attempt found out whether a target in trouble serves again: that it failed is no failure of the call's."""
    is_callers: bool = False
    """The attempt used the caller's own credential."""
    last_activity_at: float = 0.0
    """The time of the target's last sign of life before its first event: a 1xx, a comment, or a part of a body."""
    cost_usd: float | None = None
    """The cost in US dollars, estimated if the attempt failed after it was sent; None: the model has no price."""
    discarded: Usage | None = None
    """The usage of its answer, where that was not given to the client, and another attempt has taken its place."""
    usage_event: bytes = b""
    """The usage event of its stream, once that has ended, where it was not passed on."""
    gaps: Sequence[Gap] = ()
    """What was lost when the request was put into the target's language."""
    refuses_loss: bool = False
    """Nothing may be lost by that: the call is then not sent."""
    remembers_for: str | None = None
    """The tenant for whom what signs its answer is remembered; None: it is not."""
    requests: int = 1
    """How many requests it took at the target."""
    is_cost_reported: bool = False
    """The cost is of the usage that the provider has reported, and no estimate."""
    served_by_then: int = 0
    """Set when it failed: more answers than these, and the target has served a call that was sent after the failure."""
    reservation: Reservation | None = None
    """What it has taken from its target's limits; None: nothing, or it has been given back."""
    beside: Attempt | None = None
    """The attempt of its call that it runs beside, in a task of its own; None: none, or not any more."""
    is_stalled: bool = False
    """It hangs, and its call makes attempts beside it, for which it counts as one that has failed for good."""

    @property
    def answered_at(self) -> float:
        """Returns the time of the target's last sign of life; before the first one, the time at which the attempt was sent."""
        return max(self.started_at, self.first_byte_at or 0.0, self.last_activity_at)

    def __str__(self) -> str:
        result = self.status if self.status is not None else self.error_class
        if self.error_class is None or self.ended_at is None:
            return f"{self.target.name}:{result}"
        return f"{self.target.name}:{result}({self.ended_at - self.started_at:.1f}s)"


def attempts_apart(ledger: Sequence[Attempt], attempt: Attempt) -> list[Attempt]:
    """Returns an attempt and those that it follows: all of its call without those that run beside it, except one that has
    stalled."""
    return [one for one in ledger if one.beside is not attempt and (one is not attempt.beside or one.is_stalled)]


def shown(attempts: Sequence[Attempt], between: str = " ", skips: Skips | None = None) -> str:
    """Returns the attempts in one line, each skip at its place among them; of very many only the first and the last."""
    trail: list[Attempt | Skip] = [*attempts]
    for number, skip in enumerate(sorted(skips.values(), key=_after) if skips else ()):
        trail.insert(skip.after + number, skip)
    if len(trail) <= FIRST_SHOWN + LAST_SHOWN:
        return between.join(map(str, trail))
    left_out = f"({len(trail) - FIRST_SHOWN - LAST_SHOWN} more)"
    return between.join([*map(str, trail[:FIRST_SHOWN]), left_out, *map(str, trail[-LAST_SHOWN:])])


def _after(skip: Skip) -> int:
    return skip.after


# --- what follows a failure ---

_FINAL = ClassRule(Action.PASS_THROUGH)
_NEVER_AGAIN = ClassRule(Action.NEXT_TARGET)
_RULES_OUT = frozenset([name for name, rule in BUILT_IN_RULES.items() if rule.action is not Action.RETRY])
"""The classes of answers that rule out their target for a call; after all others it may be tried again."""


class Plan(NamedTuple):
    """The targets that a call may still use, in order of preference; open breakers and the like are left out already."""

    own: Sequence[Target]
    """The model's own targets."""
    others: Sequence[Target] = ()
    """The targets of the model's fallbacks."""
    context: Sequence[Target] = ()
    """The targets of the model's context fallbacks, used only by a call that is too long for the others."""


class Budgets(Protocol):
    """The limits on retries and money that hold for one call now."""

    def denies(self, target: Target, last: Attempt) -> str | None:
        """Returns what forbids a retry at the target after this failure (`budget`, `tokens`); None: nothing does."""
        ...

    def doubt(self, target: Target) -> Doubt | None:
        """Returns what enough failed calls before this one have found out about the target; None: the call may try it."""
        ...

    def is_in_trouble(self, target: Target) -> bool:
        """Returns whether a breaker lets only few calls through to the target."""
        ...

    def ready_at(self, target: Target) -> float:
        """Estimates when the target may take the call (monotonic seconds); inf: never."""
        ...

    def denies_money(self) -> str | None:
        """Returns what forbids the call to pay for another attempt (`money`, `key_budget`); None: nothing does."""
        ...

    def attempts(self) -> int:
        """Returns the number of attempts that the call may make in all, by the price of one."""
        ...


class Try(NamedTuple):
    """Send the call to the first of these targets that has room: now, or when the delay queue lets it through."""

    targets: Sequence[Target]


class TryLater(NamedTuple):
    """Wait until `until` (monotonic seconds), then retry at one of these targets, where the call has failed before.

    Without targets the call asks `next_step` again at that time: retries are limited, or no target is known to serve.
    """

    until: float
    targets: Sequence[Target] = ()


class GiveUp(NamedTuple):
    """End the call: the client gets the last failure."""

    reason: str
    """One of `final`, `attempts`, `deadline`, `no_target`, `doubt` (other calls got no answer there), or one of `DENIALS`."""


Step = Try | TryLater | GiveUp
FIRST_DOUBT_WAIT_S = 0.05
"""A failed call first waits this long while others find out whether a target serves; each further wait is longer."""
LOOK_AGAIN_S = 1.0
"""Later on it looks about so often whether somebody was served there, as long as its caller waits."""
_LEAST_DOUBT_WAIT_S, _DOUBT_FACTOR, _DOUBT_GROWTH = 0.1, 1.5, 0.2
FIRST_BUDGET_WAIT_S, LONGEST_BUDGET_WAIT_S = 0.05, 1.0
"""The pauses of a failed call that waits for a spent retry budget: the first one, and about the longest."""
LAST_TRY_S = 1.5
"""Seconds after its first failure before which a call does not make its last try: openai-python's are over by then."""
DENIALS = frozenset(("money", "key_budget"))
"""The reasons of `GiveUp` that have prevented an attempt which would otherwise have been made."""


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
    is_repeated: bool = False,
) -> Step:
    """Returns what follows the last failure of the ledger; `u` is a uniform draw from [0, 1).

    The order of preference: an own target that the call has not tried, at once; an own target that it has tried, after the
    backoff; a fallback, for which the last attempt is kept. A target in doubt, at which other calls are finding out whether
    it serves, comes after all others. A refusal by a rate limit is no failure: the delay queue knows when the call may go
    again. A deadline that is not `is_hard` bounds waiting only: the call may still go to a target that it has not tried.
    An answer that `concerns_target_alone` ends its target's part, and the call goes on as if that target were not there.
    A call that `is_repeated` by its caller's SDK is tried once at each target: the SDK's retries are not multiplied by ours.
    """
    reach = _reach(ledger, plan)
    is_too_long = reach is not plan
    if is_final(ledger, plan, retries):
        return GiveUp("final")
    if now >= deadline and is_hard:
        return GiveUp("deadline")
    left = _left(reach, ledger)
    made = sum(
        [not (attempt.is_refused or attempt.is_trial or _is_beside(attempt, ledger, reach)) for attempt in ledger]
    )
    # A target that is ruled out is no evidence about the others: their failures decide, if there are any.
    failures_left = [one for one in ledger if not one.never_again]
    has_lost_targets = 0 < len(failures_left) < len(ledger)
    ledger = failures_left or ledger
    last = ledger[-1]
    rule = rule_for(last, retries)
    # A 429 counts neither against the attempts nor against the budgets: the delay queue paces it, only the deadline ends it.
    if last.is_refused and not last.never_again:
        if now >= deadline:
            return GiveUp("deadline")
        return Try((*left.own, *left.others)) if left.own or left.others else GiveUp("no_target")
    failures = [attempt for attempt in ledger if not attempt.is_refused]
    allowed = budgets.attempts()
    denied = "attempts" if made >= allowed else budgets.denies_money()
    if denied is not None:
        return GiveUp(denied)
    most = rule.attempts if rule.action is Action.RETRY else 0
    if most > 1:
        # A price that allows more attempts than usual allows more of each class, too; but an answer that is none was paid for,
        # and its own bound holds.
        if last.error_class != ErrorClass.MALFORMED_RESPONSE:
            most += max(0, allowed - retries.attempts)
        if has_lost_targets and last.error_class in PASSING:
            most += 1  # the attempt that was kept for a target which is ruled out by now
        most = 1 if is_repeated else most
    is_last = made == allowed - 1
    step = _next_target(failures, left, most, retries, budgets, deadline, now, u, is_last=is_last)
    # There is no time left to wait, but an untried target needs no wait.
    if isinstance(step, TryLater) and (step.until >= deadline or now >= deadline):
        fresh = _fresh((*left.own, *left.others), failures)
        step = Try(fresh) if fresh else GiveUp("deadline")
    if most:
        step = _unless_in_doubt(step, failures, budgets, deadline, deadline if is_hard else inf, now, u)
    if isinstance(step, GiveUp) and is_too_long:
        return GiveUp("final")
    return step


def rule_for(attempt: Attempt, retries: Retries) -> ClassRule:
    """Returns the rule for the attempt's error. A caller's own refused credential is final: no other may be used.

    The provider's `x-should-retry` goes before the error's class, as in OpenAI's and Anthropic's SDKs (`_should_retry`): after
    `false` the target is not tried again, after `true` it is, as after a server error.
    """
    if attempt.error_class is None or (attempt.error_class == ErrorClass.AUTH and attempt.is_callers):
        return _FINAL
    rule = retries.by_class.get(attempt.error_class, _FINAL)
    if attempt.should_retry is False and rule.action in (Action.RETRY, Action.HOLD):
        return _NEVER_AGAIN
    if attempt.should_retry and (rule.action is Action.PASS_THROUGH or attempt.error_class == ErrorClass.UNKNOWN):
        return retries.by_class.get(ErrorClass.SERVER_ERROR, _FINAL)
    return rule


def is_final(ledger: Sequence[Attempt], plan: Plan, retries: Retries) -> bool:
    """Returns whether the last answer ends the call: it would be the same at every target."""
    return rule_for(ledger[-1], retries).action is Action.PASS_THROUGH and not concerns_target_alone(ledger, plan)


def concerns_target_alone(ledger: Sequence[Attempt], plan: Plan) -> bool:
    """Returns whether the last answer rules out its target alone: a target that goes before it may still serve the call.

    Such a target was tried earlier, has a lower `order`, or is the model's own where a fallback has answered. A request that
    two models refuse as bad is bad.
    """
    last = ledger[-1]
    bad = [one for one in ledger if one.error_class == ErrorClass.BAD_REQUEST and _rules_out_target(one)]
    if not _rules_out_target(last) or (last in bad and len({one.target.name.rpartition("/")[2] for one in bad}) > 1):
        return False
    return _is_preceded(last.target.name, ledger, _reach(ledger, plan))


def backoff_s(backoff: Backoff, failures: int, u: float) -> float:
    """Returns the wait before the next attempt, in seconds, after this number of `failures` (1 or more).

    Full jitter: AWS Architecture Blog, "Exponential Backoff And Jitter".
    """
    # Bounded, or the power of very many failures would overflow.
    most_s = min(backoff.max_s, backoff.base_s * backoff.factor ** min(failures - 1, 64))
    return most_s * u if backoff.has_jitter else most_s


def _rules_out_target(attempt: Attempt) -> bool:
    """Returns whether the answer rules out its target for this call, at any time. Nobody is paid for it."""
    return attempt.never_again and attempt.phase is Phase.ANSWERED and attempt.error_class in _RULES_OUT


def _is_beside(attempt: Attempt, ledger: Sequence[Attempt], plan: Plan) -> bool:
    """Returns whether the answer ruled out its target while one that goes before it may still serve: it takes no attempt."""
    return _rules_out_target(attempt) and _is_preceded(attempt.target.name, ledger, plan)


def _is_preceded(name: str, ledger: Sequence[Attempt], plan: Plan) -> bool:
    """Returns whether a target that may still serve the call goes before the one of this name, which has been tried."""
    order = {**{one.name: inf for one in plan.others}, **{one.name: one.order for one in plan.own}}
    tried = [attempt.target.name for attempt in ledger]
    before = order.get(name, inf), tried.index(name)
    left = _left(plan, ledger)
    return any(
        (order[one.name], tried.index(one.name) if one.name in tried else inf) < before
        for one in (*left.own, *left.others)
    )


def _reach(ledger: Sequence[Attempt], plan: Plan) -> Plan:
    """Returns the plan; of a call that is too long only the larger windows, unless it is so for fallbacks alone."""
    too_long = [attempt.target.name for attempt in ledger if attempt.error_class == ErrorClass.CONTEXT_LENGTH_EXCEEDED]
    if not too_long:
        return plan
    larger = Plan(plan.context)
    is_out = not _left(larger, ledger).own
    return plan if is_out and all(_is_preceded(name, ledger, plan) for name in too_long) else larger


def _left(plan: Plan, ledger: Sequence[Attempt]) -> Plan:
    """Returns the plan without the targets that can never serve this call."""
    out = {attempt.target.name for attempt in ledger if attempt.never_again}
    return Plan(*([target for target in targets if target.name not in out] for targets in plan))


def _fresh(targets: Sequence[Target], failures: Sequence[Attempt]) -> list[Target]:
    met = {attempt.target.name for attempt in failures}
    return [target for target in targets if target.name not in met]


def _unless_in_doubt(
    step: Step,
    failures: Sequence[Attempt],
    budgets: Budgets,
    deadline: float,
    hard_deadline: float,
    now: float,
    u: float,
) -> Step:
    """Returns the step, restricted to those of its targets that are not in doubt.

    If all of them are in doubt, the call waits for the outcome of the calls that are out there, but at most 1.5 times as long
    as its own failure took, and at most half of the time that its caller has left. Then it tries the target itself, unless
    there is little hope: the calls out there have failed, or can hardly be answered in the time that is left. A call with
    little hope looks again every `LOOK_AGAIN_S` or so, and gives up when its caller's time ends. If no call is out there,
    this one goes at once, for otherwise the target's state would never be known.
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
        return TryLater(min(until, now + max(FIRST_DOUBT_WAIT_S, (now - failed_at) * _DOUBT_GROWTH * (0.5 + u))))
    took_s = failed_at - last.started_at
    hopeful = [target for target, doubt in doubts if doubt and _is_hopeful(doubt, took_s, now, is_short=until < full)]
    if hopeful:
        return step._replace(targets=hopeful)
    look_again = now + LOOK_AGAIN_S * (0.5 + u)
    return TryLater(look_again) if look_again < min(deadline, hard_deadline - took_s) else GiveUp("doubt")


def _is_hopeful(doubt: Doubt, took_s: float, now: float, *, is_short: bool) -> bool:
    """Returns whether a call that failed after `took_s` and has waited since may try the target itself.

    Failures come sooner than answers: calls that have been out for longer than a failure takes may still succeed.
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
    deadline: float,
    now: float,
    u: float,
    *,
    is_last: bool,
) -> Step:
    """Returns the first of these seven outcomes that applies to a call which may make another attempt.

    1. The model has a target that the call has not tried    Try it at once; untried fallbacks are next in line
    2. this is the last attempt, a fallback is untried       Try the fallback: the tried targets have failed already
    3. the failure's class has attempts left (`most`)        TryLater, after the backoff, at an own target
    4. a fallback is untried                                 Try the fallback
    5. a tried fallback has attempts left                    TryLater, after the backoff, there again
    6. only a retry budget forbids it                        TryLater without targets: its turn comes
    7. none of these                                         GiveUp with the reason of the denial, or of the shortage

    Where no untried target has room before the backoff at a tried one is over, 3 and 5 go before 1 and 4. The last attempt is
    kept for an untried target all the same.
    """
    own = [target.name for target in left.own]
    last = failures[-1]
    counted = [attempt for attempt in failures if not attempt.is_trial]
    spent = sum([attempt.target.name in own and attempt.error_class == last.error_class for attempt in counted])
    until = now + backoff_s(retries.backoff, len(counted), u)
    fresh, fresh_others = _fresh(left.own, failures), _fresh(left.others, failures)
    tried_own = [target for target in left.own if target not in fresh]
    again, denied = _again(tried_own, failures, budgets) if spent < most else ([], None)
    retryable_fallbacks = [target for target in left.others if 0 < _count(failures, target) < most]
    if (fresh or fresh_others) and not is_last:
        tried = [*again, *_again(retryable_fallbacks, failures, budgets)[0]]
        moments = [budgets.ready_at(one) for one in tried if budgets.doubt(one) is None]
        soonest = max(until, min(moments)) if moments else inf
        if all(budgets.ready_at(one) > soonest for one in (*fresh, *fresh_others)):
            fresh, fresh_others = [], []
    if fresh:
        return Try([*fresh, *fresh_others])
    if is_last and fresh_others:
        return Try(fresh_others)
    # A call that has somewhere else to go need not find out whether a target in doubt or in trouble serves again.
    if fresh_others:
        again = [one for one in again if budgets.doubt(one) is None and not budgets.is_in_trouble(one)]
    if not again:
        if fresh_others:
            return Try(fresh_others)
        again, denied_there = _again(retryable_fallbacks, failures, budgets)
        denied = denied or denied_there
    waited_s = now - (now if last.ended_at is None else last.ended_at)
    if not again and denied is not None:
        # The pause grows with the time waited and is random, so many waiting calls ask seldom and never all at once.
        return TryLater(now + min(max(FIRST_BUDGET_WAIT_S, waited_s * (0.5 + u)), LONGEST_BUDGET_WAIT_S * (0.5 + u)))
    if not again:
        return GiveUp(denied or ("no_target" if not own and not left.others else "attempts"))
    rule = rule_for(last, retries)
    # A connection that broke before anything was sent was usually a stale one: the first retry need not wait.
    if rule.is_first_immediate and len(failures) == 1 and last.phase is Phase.NOTHING_SENT:
        return TryLater(now, again)
    if last.is_trial:
        return TryLater(now, again)  # it waits in the queue: the target's own trouble says when the next one goes
    later = failures[0].started_at + LAST_TRY_S * (1 + u / 4)
    if (spent == most - 1 or is_last) and later < deadline and not fresh_others:
        until = max(until, later)  # the last try is not spent on the moment that the others have met
    return TryLater(until, again)


def _again(targets: Sequence[Target], failures: Sequence[Attempt], budgets: Budgets) -> tuple[list[Target], str | None]:
    """Returns the targets that may be tried again, the least tried first, and the first reason that forbids another."""
    denials = {target.name: budgets.denies(target, failures[-1]) for target in targets}
    again = sorted(
        [target for target in targets if denials[target.name] is None], key=lambda target: _count(failures, target)
    )
    return again, next((reason for reason in denials.values() if reason is not None), None)


def _count(failures: Sequence[Attempt], target: Target) -> int:
    return sum([attempt.target.name == target.name for attempt in failures])


def usage_in_all(attempts: Sequence[Attempt], usage: Usage | None) -> Usage | None:
    """Returns what a call has used in all, with the `usage` of the attempt that gave the answer; None: nobody knows."""
    parts = [one.discarded for one in attempts if one.discarded is not None]
    if usage is not None:
        parts.append(usage)
    return reduce(added, parts) if parts else None
