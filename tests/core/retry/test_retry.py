"""What follows a failure: the rules of `next_step`, for any ledger, plan and budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.balancing import BUILT_IN_RULES, Action, Backoff, Retries
from gateway.core.health.target_health import Doubt
from gateway.core.retry import (
    DENIALS,
    FIRST_BUDGET_WAIT_S,
    LAST_TRY_S,
    LONGEST_BUDGET_WAIT_S,
    LOOK_AGAIN_S,
    Attempt,
    GiveUp,
    Plan,
    Step,
    Try,
    TryLater,
    backoff_s,
    next_step,
    rule_for,
)
from gateway.core.snapshot import Target
from gateway.core.types import Clocks, ErrorClass, Phase, Upstream
from tests.rows import rows

NOW = 1000.0
DEADLINE = NOW + 30.0
CLOCKS = Clocks(1, 1, 1, 1, 1)
DEFAULT = Retries()
OVERLOADED, CONNECTION = ErrorClass.OVERLOADED, ErrorClass.CONNECTION
NOBODY_TRIES = Doubt(None, has_failed=False)
RETRIED = [ErrorClass(name) for name, rule in BUILT_IN_RULES.items() if rule.action is Action.RETRY]
PASSED_THROUGH = [ErrorClass(name) for name, rule in BUILT_IN_RULES.items() if rule.action is Action.PASS_THROUGH]


def target(name: str) -> Target:
    return Target(name, name, "m", cast("Upstream", None), CLOCKS)


A, B, C, D, X, Y = map(target, "ABCDXY")
ONE, TWO, WITH_FALLBACK = Plan([A]), Plan([A, B]), Plan([A], [C])


@dataclass
class FixedBudgets:
    """Budgets that answer what they are told to."""

    allowed: int = 4
    money: str | None = None
    by_target: Mapping[str, str] = field(default_factory=dict)
    doubtful: Sequence[Target] = ()
    how: Doubt = NOBODY_TRIES
    ill: Sequence[Target] = ()
    busy: Mapping[str, float] = field(default_factory=dict)
    """Seconds until a target has room; the others have it now."""

    def doubt(self, target: Target) -> Doubt | None:
        return self.how if target in self.doubtful else None

    def is_in_trouble(self, target: Target) -> bool:
        return target in self.ill

    def ready_at(self, target: Target) -> float:
        return NOW + self.busy.get(target.name, 0.0)

    def denies(self, target: Target, last: Attempt) -> str | None:
        return self.by_target.get(target.name)

    def denies_money(self) -> str | None:
        return self.money

    def attempts(self) -> int:
        return self.allowed


FREE = FixedBudgets()


def failed(at: Target, error_class: ErrorClass = OVERLOADED, phase: Phase = Phase.ANSWERED) -> Attempt:
    """A failure as the loop enters it in the ledger."""
    never_again = BUILT_IN_RULES[error_class].action not in (Action.RETRY, Action.HOLD)
    return Attempt(at, NOW, ended_at=NOW, error_class=error_class, phase=phase, never_again=never_again)


def refused(at: Target) -> Attempt:
    """A rate limit that is waited for."""
    return Attempt(at, NOW, ended_at=NOW, status=429, error_class=ErrorClass.RATE_LIMIT_REQUESTS, is_refused=True)


def after(
    *ledger: Attempt,
    plan: Plan = ONE,
    retries: Retries = DEFAULT,
    budgets: FixedBudgets = FREE,
    deadline: float = DEADLINE,
    u: float = 0.5,
) -> Step:
    return next_step(ledger, plan, retries, budgets, deadline, NOW, u)


def names(step: Step) -> str:
    """Where it goes."""
    return "" if isinstance(step, GiveUp) else "".join(target.name for target in step.targets)


# What each class deserves.


@rows("error_class", PASSED_THROUGH)
def test_what_would_be_the_same_everywhere_ends_at_once(error_class: ErrorClass) -> None:
    """A fault of the request is final, however many targets and attempts are left."""
    assert after(failed(A, error_class), plan=Plan([A, B], [C], [X])) == GiveUp("final")


def test_a_class_that_no_rule_knows_is_final() -> None:
    """Nothing is tried again without a rule that says so."""
    assert after(failed(A), plan=TWO, retries=Retries(by_class={})) == GiveUp("final")


@pytest.mark.parametrize("error_class", [ErrorClass.QUOTA_EXHAUSTED, ErrorClass.AUTH, ErrorClass.UNKNOWN])
def test_who_cannot_serve_is_left_for_another(error_class: ErrorClass) -> None:
    """The target never gets the call again; the others do, and when nobody is left the failure passes through."""
    assert names(after(failed(A, error_class), plan=Plan([A, B], [C]))) == "BC"
    assert after(failed(A, error_class)) == GiveUp("no_target")


def test_the_callers_own_credential_is_final() -> None:
    """Nobody else's credential would do for who brings his own."""
    attempt = replace(failed(A, ErrorClass.AUTH), is_callers=True)

    assert after(attempt, plan=Plan([A, B], [C])) == GiveUp("final")
    assert rule_for(attempt, DEFAULT).action is Action.PASS_THROUGH


def test_a_call_that_is_too_long_goes_to_larger_windows_only() -> None:
    """And stays there: neither the model's own targets nor its fallbacks are met again, whatever fails next."""
    plan = Plan([A, B], [C], [X, Y])
    too_long = failed(A, ErrorClass.CONTEXT_LENGTH_EXCEEDED)

    assert names(after(too_long, plan=plan)) == "XY"
    assert names(after(too_long, failed(X), plan=plan)) == "Y"
    assert names(after(too_long, failed(X), failed(Y), plan=plan)) == "XY"
    assert names(after(too_long, failed(X, ErrorClass.UNKNOWN), plan=plan)) == "Y"
    assert names(after(too_long, refused(X), plan=plan)) == "XY"


def test_a_call_too_long_for_everybody_is_told_so() -> None:
    """No larger window, or none that is large enough: the failure is final."""
    too_long = failed(A, ErrorClass.CONTEXT_LENGTH_EXCEEDED)

    assert after(too_long, plan=Plan([A, B], [C])) == GiveUp("final")
    assert after(too_long, failed(X, ErrorClass.CONTEXT_LENGTH_EXCEEDED), plan=Plan([A], [C], [X])) == GiveUp("final")


# What rules out one target.

RULING_OUT = [
    ErrorClass(name) for name, rule in BUILT_IN_RULES.items() if rule.action not in (Action.RETRY, Action.HOLD)
]


@rows("error_class", RULING_OUT)
def test_a_fallback_that_is_ruled_out_leaves_the_others(error_class: ErrorClass) -> None:
    """What has failed before is tried again as if it had not been asked, with the attempt that was kept for it."""
    word = failed(C, error_class)
    late = TryLater(NOW + LAST_TRY_S * 1.125, [A])

    assert after(failed(A), word, plan=WITH_FALLBACK) == after(failed(A))
    assert after(failed(A), failed(A), failed(A), word, plan=WITH_FALLBACK) == late
    assert after(*[failed(A)] * 4, word, plan=WITH_FALLBACK) == GiveUp("attempts")
    assert after(refused(A), word, plan=WITH_FALLBACK) == Try((A,))
    assert names(after(failed(A), word, plan=Plan([A], [C, D]))) == "A"
    assert names(after(failed(A), word, failed(A), failed(A), plan=Plan([A], [C, D]))) == "D"


@rows("error_class", RULING_OUT)
def test_a_fallback_that_is_ruled_out_sends_a_call_to_the_models_own(error_class: ErrorClass) -> None:
    """Where they were left alone when it came, they are waited for; nobody has to be tried whom it would never have met."""
    word = failed(C, error_class)

    assert names(after(word, plan=Plan([A, B], [C, D]))) == "ABD"
    assert isinstance(after(word, plan=Plan([], [C])), GiveUp)
    assert names(after(failed(B, error_class), plan=Plan([A, replace(B, order=2)]))) == "A"


@rows("error_class", PASSED_THROUGH)
def test_the_word_of_who_goes_first_is_the_calls(error_class: ErrorClass) -> None:
    """Of equals that is the one that was tried first."""
    own = Plan([A, B], [C])

    assert after(failed(C), failed(A, error_class), plan=own) == GiveUp("final")
    assert after(failed(A), failed(B), failed(A, error_class), plan=own) == GiveUp("final")
    assert names(after(failed(A), failed(B, error_class), plan=own)) == "A"


def test_two_models_that_find_a_request_bad_are_believed() -> None:
    """A second deployment of the same one says nothing new, nor does another reason."""
    bad, wide = ErrorClass.BAD_REQUEST, Plan([A], [target("x/m"), target("y/m"), target("x/n")])
    one, same, other = [failed(at, bad) for at in wide.others]

    assert names(after(failed(A), one, same, plan=wide)) == "A"
    assert after(failed(A), one, other, plan=wide) == GiveUp("final")
    assert names(after(failed(A), one, failed(wide.others[2], ErrorClass.PERMISSION), plan=wide)) == "A"


# Where to.


def test_a_fresh_own_target_then_one_again_then_a_fallback() -> None:
    """The order of preference, with the fallbacks that have room behind the fresh ones."""
    plan = Plan([A, B], [C])
    rules = {**BUILT_IN_RULES, OVERLOADED: replace(BUILT_IN_RULES[OVERLOADED], attempts=3)}
    retries = Retries(by_class=rules)

    first = after(failed(A), plan=plan, retries=retries)
    second = after(failed(A), failed(B), plan=plan, retries=retries)
    third = after(failed(A), failed(B), failed(A), plan=plan, retries=retries)

    assert (type(first), names(first)) == (Try, "BC")
    assert (type(second), names(second)) == (TryLater, "AB")
    assert (type(third), names(third)) == (Try, "C")


def test_of_two_met_before_the_one_with_fewer_failures_is_first() -> None:
    """Tries are spread evenly."""
    assert names(after(failed(A), failed(B), failed(A), plan=TWO, budgets=FixedBudgets(9))) == "BA"


def test_fallbacks_are_tried_again_when_nothing_else_is_left() -> None:
    """Each as often as its class allows."""
    nine, budgets = replace(DEFAULT, attempts=9), FixedBudgets(9)

    assert names(after(*[failed(A)] * 3, failed(C), plan=WITH_FALLBACK, budgets=budgets, retries=nine)) == "C"


def test_an_untried_target_without_room_comes_behind_the_backoff() -> None:
    """Own or fallback; unless nothing else is left, the tried one has no room either, or it is the last attempt."""
    busy = FixedBudgets(busy={"A": 20.0, "C": 20.0})
    both = FixedBudgets(busy={"A": 20.0, "B": 30.0, "C": 30.0})
    soon = TryLater(NOW + 0.05, [C])

    assert after(failed(C), plan=WITH_FALLBACK, budgets=replace(busy, busy={"A": 20.0})) == soon
    assert after(failed(B), plan=Plan([A, B], [C]), budgets=busy) == TryLater(NOW + 0.05, [B])
    assert names(after(failed(C), failed(C), failed(C), plan=WITH_FALLBACK, budgets=busy)) == "A"
    assert names(after(failed(C), plan=WITH_FALLBACK, budgets=both)) == "A"
    assert names(after(failed(C), plan=Plan([A], [C, D]), budgets=busy)) == "AD"
    assert names(after(failed(B), plan=Plan([A, B]), budgets=replace(busy, allowed=2))) == "A"
    assert names(after(failed(B, ErrorClass.AUTH), plan=Plan([A, B]), budgets=busy)) == "A"


# When.


def test_a_connection_that_carried_nothing_is_tried_again_at_once() -> None:
    """The first time; then the backoff holds."""
    nothing_sent = failed(A, CONNECTION, Phase.NOTHING_SENT)

    assert after(nothing_sent) == TryLater(NOW, [A])
    assert after(nothing_sent, failed(A), nothing_sent, budgets=FixedBudgets(allowed=6)) == TryLater(NOW + 0.2, [A])


def test_the_last_try_is_not_spent_on_one_moment() -> None:
    """A second and a half after the first failure, as an SDK's own; where the caller waits no longer, after the backoff."""
    late = NOW + LAST_TRY_S * 1.125

    assert after(failed(A), failed(A)) == TryLater(late, [A])
    assert after(failed(A), failed(A), deadline=late) == TryLater(NOW + 0.1, [A])
    assert after(replace(failed(A), started_at=NOW - 10), failed(A)) == TryLater(NOW + 0.1, [A])


def test_a_trial_costs_no_attempt_and_no_backoff() -> None:
    """Of a target in trouble: the queue says when it is tried again, and the call's own tries stay as they were."""
    trial = replace(failed(A), is_trial=True)

    assert after(failed(A), *[trial] * 20) == TryLater(NOW, [A])
    assert after(failed(A), failed(A), *[trial] * 20, failed(A)) == GiveUp("attempts")


def test_a_connection_that_carried_something_waits() -> None:
    """Somebody may be busy with it."""
    assert after(failed(A, CONNECTION, Phase.SENT)) == TryLater(NOW + 0.05, [A])


def test_a_backoff_beyond_the_deadline_is_not_waited_for() -> None:
    """A fallback is used instead; without one the call ends now, not at its deadline."""
    slow = replace(DEFAULT, backoff=Backoff(base_s=8.0))

    assert after(failed(A), retries=slow, deadline=NOW + 4.0) == GiveUp("deadline")
    assert after(failed(A), retries=slow, deadline=NOW + 4.0, plan=WITH_FALLBACK) == Try([C])
    assert after(failed(A), retries=slow, deadline=NOW + 4.1) == TryLater(NOW + 4.0, [A])


def test_nothing_starts_after_the_deadline() -> None:
    """Not even at a target that is fresh."""
    assert after(failed(A), plan=TWO, deadline=NOW) == GiveUp("deadline")


# How often.


def test_a_rate_limit_is_no_failure() -> None:
    """It is not counted, and the target may be used as soon as the queue lets the call through."""
    assert after(*[refused(A)] * 50) == Try((A,))
    assert names(after(*[refused(A)] * 50, failed(A), plan=ONE)) == "A"
    assert after(refused(A), plan=Plan([A, B], [C])) == Try((A, B, C))


def test_a_rate_limit_with_nobody_left_ends() -> None:
    """All targets have said that they will never serve the call."""
    assert after(refused(A), plan=Plan([])) == GiveUp("no_target")


def test_tries_at_the_models_own_targets_are_counted_together() -> None:
    """Two targets are no licence for twice the attempts."""
    assert after(failed(A), failed(B), failed(A), plan=TWO) == GiveUp("attempts")


def test_what_an_attempt_costs_bounds_the_attempts() -> None:
    """A dear call has two; a cheap one five, and as many more at its own targets."""
    assert after(failed(A), failed(A), budgets=FixedBudgets(2)) == GiveUp("attempts")
    assert names(after(*[failed(A)] * 3, budgets=FixedBudgets(5))) == "A"
    assert after(*[failed(A)] * 4, budgets=FixedBudgets(5)) == GiveUp("attempts")
    assert names(after(*[failed(A)] * 8, budgets=FixedBudgets(10))) == "A"


@pytest.mark.parametrize("allowed", [5, 10])
def test_a_broken_answer_is_not_paid_for_more_often_because_it_is_cheap(allowed: int) -> None:
    """Of two bounds the smaller one holds: four and nine answers were paid for where the class allows three."""
    broken = failed(A, ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED)

    assert names(after(*[broken] * 2, budgets=FixedBudgets(allowed))) == "A"
    assert after(*[broken] * 3, budgets=FixedBudgets(allowed)) == GiveUp("attempts")
    assert after(*[broken] * 2, budgets=FixedBudgets(2)) == GiveUp("attempts")


def test_a_target_whose_retries_are_spent_is_passed_over() -> None:
    """For the next own target, then for a fallback; last of all the call waits for its turn."""
    spent = FixedBudgets(by_target={"A": "budget"})

    assert names(after(failed(A), failed(B), plan=Plan([A, B], [C]), budgets=spent)) == "B"
    assert after(failed(A), plan=WITH_FALLBACK, budgets=spent) == Try([C])
    assert after(failed(A), budgets=FixedBudgets(by_target={"A": "tokens"})) == TryLater(NOW + FIRST_BUDGET_WAIT_S)
    assert after(replace(failed(A), ended_at=NOW - 20), budgets=spent) == TryLater(NOW + LONGEST_BUDGET_WAIT_S)


def test_too_many_retries_in_flight_may_be_fewer_soon() -> None:
    """So the call asks again at moments of its own, about once a second, as long as its caller waits."""
    spent = FixedBudgets(by_target={"A": "budget"})
    moments, now, step = [], NOW, after(failed(A), budgets=spent)
    while isinstance(step, TryLater):
        assert step.targets == ()
        assert step.until >= now + FIRST_BUDGET_WAIT_S
        moments.append(now := step.until)
        step = next_step([failed(A)], ONE, DEFAULT, spent, DEADLINE, now, 0.5)

    assert step == GiveUp("deadline")
    assert len(moments) <= 10 + (DEADLINE - NOW) / LONGEST_BUDGET_WAIT_S
    assert now >= DEADLINE - 1.5 * LONGEST_BUDGET_WAIT_S


def test_a_class_counts_its_own_failures() -> None:
    """Two other failures do not use up the tries that a timeout has."""
    timeout = failed(A, ErrorClass.TIMEOUT)

    assert names(after(failed(A), failed(A), timeout)) == "A"
    assert after(timeout, timeout) == GiveUp("attempts")


def test_retry_budgets_do_not_bound_first_tries() -> None:
    """Going elsewhere is failover, not a retry."""
    spent = FixedBudgets(by_target={"A": "budget", "B": "budget", "C": "tokens"})

    assert names(after(failed(A), plan=Plan([A, B], [C]), budgets=spent)) == "BC"


def test_a_target_without_its_model_might_as_well_not_be_there() -> None:
    """The next one is tried, at last a fallback; what the others said decides as if nobody had been asked there."""
    gone = failed(A, ErrorClass.MODEL_NOT_FOUND)

    assert after(gone, plan=Plan([A, B], [C])) == Try([B, C])
    assert after(gone, plan=Plan([A], [C])) == Try([C])
    assert after(gone) == GiveUp("no_target")
    assert names(after(failed(B), gone, plan=Plan([B, A]))) == "B"  # tried again, after its own backoff
    assert names(after(refused(B), gone, plan=Plan([B, A]))) == "B"  # waited for
    assert after(failed(B, ErrorClass.BAD_REQUEST), plan=Plan([B, A])) == GiveUp("final")


@pytest.mark.parametrize("reason", ["money", "key_budget"])
def test_money_bounds_every_further_attempt(reason: str) -> None:
    """A fresh target costs as much as one met before."""
    assert after(failed(A), plan=Plan([A, B], [C]), budgets=FixedBudgets(money=reason)) == GiveUp(reason)


# Whatever happens.

draws = st.floats(0, 1, exclude_max=True)


@dataclass
class Course:
    """One call, for which everything goes wrong."""

    seed: int

    def __post_init__(self) -> None:
        self.draw = draw = Random(self.seed)
        self.plan = Plan(some(draw, A, B) or [A], some(draw, C, D), some(draw, X, Y))
        self.budgets = FixedBudgets(
            draw.randint(1, 10),
            draw.choice([None, None, None, "money", "key_budget"]),
            {target.name: draw.choice(["budget", "tokens"]) for target in some(draw, A, B, C, D, X, Y, share=0.2)},
        )
        backoff = Backoff(2 * draw.random(), 1 + 3 * draw.random(), 8 * draw.random(), draw.random() < 0.8)
        self.retries = Retries(backoff=backoff)
        self.deadline = NOW + draw.choice([0.5, 5, 60]) * draw.random()
        self.rate_limits = draw.randint(0, 8)
        self.ledger: list[Attempt] = []
        self.steps: list[tuple[int, float, Step]] = []
        """After so many attempts, when, and what followed."""

    def run(self) -> GiveUp:
        """To its end; rate limits refuse it a few times."""
        offered: Sequence[Target] = self.plan.own
        now = NOW
        step: Step | None = None
        for _ in range(1000):
            if step is None or isinstance(step, GiveUp) or step.targets:  # else it asks again
                now += self.draw.choice([0.0, 0.1, 3.0])
                self.ledger.append(self._meets(self.draw.choice(offered), now))
            step = next_step(self.ledger, self.plan, self.retries, self.budgets, self.deadline, now, self.draw.random())
            self.steps.append((len(self.ledger), now, step))
            if isinstance(step, GiveUp):
                return step
            if isinstance(step, TryLater):
                now = step.until
            offered = step.targets or offered
        raise AssertionError("it does not end")

    def _meets(self, at: Target, now: float) -> Attempt:
        error_class = ErrorClass(self.draw.choice([*BUILT_IN_RULES, *RETRIED, *RETRIED]))
        if BUILT_IN_RULES[error_class].action is not Action.HOLD:
            return replace(failed(at, error_class, self.draw.choice([*Phase])), ended_at=now)
        self.rate_limits -= 1
        return refused(at) if self.rate_limits >= 0 else failed(at)

    @property
    def failures(self) -> list[Attempt]:
        return [attempt for attempt in self.ledger if not attempt.is_refused]


def some(draw: Random, *targets: Target, share: float = 0.6) -> list[Target]:
    return [target for target in targets if draw.random() < share]


def telling(ledger: Sequence[Attempt]) -> Attempt:
    """The last attempt at a target that may still serve; of none the last."""
    return ([one for one in ledger if not one.never_again] or ledger)[-1]


courses = st.builds(Course, st.integers(0, 2**32))


@settings(deadline=None)
@given(courses)
def test_every_course_ends_within_its_allowance(course: Course) -> None:
    """Once no rate limit refuses it any more, a call ends; failures are never more than the attempts it is allowed."""
    course.run()

    assert len([one for one in course.failures if one.error_class not in RULING_OUT]) <= course.budgets.allowed
    assert len(course.failures) <= course.budgets.allowed + len(course.plan.own) + len(course.plan.others)


@settings(deadline=None)
@given(courses)
def test_no_step_breaks_a_rule(course: Course) -> None:
    """Never to who can never serve; never before now, after the longest backoff, or at the deadline; retries are held."""
    course.run()

    for length, now, step in course.steps:
        ledger = course.ledger[:length]
        if isinstance(step, GiveUp) or not step.targets:
            continue
        never_again = {attempt.target.name for attempt in ledger if attempt.never_again}
        met = {attempt.target.name for attempt in ledger if not attempt.is_refused}
        going = {target.name for target in step.targets}
        assert going
        assert not going & never_again
        assert now < course.deadline
        if isinstance(step, TryLater):
            assert now <= step.until <= now + course.retries.backoff.max_s
            assert step.until < course.deadline
            assert going <= met
            assert not any(course.budgets.denies(target, ledger[-1]) for target in step.targets)
        elif not telling(ledger).is_refused:
            assert not going & met


@settings(deadline=None)
@given(courses)
def test_own_targets_come_first(course: Course) -> None:
    """Nobody goes to a fallback alone while an own target is fresh, nor to one again while another is."""
    course.run()

    for length, _, step in course.steps:
        ledger = course.ledger[:length]
        is_too_long = any(attempt.error_class == ErrorClass.CONTEXT_LENGTH_EXCEEDED for attempt in ledger)
        if isinstance(step, GiveUp) or not step.targets or telling(ledger).is_refused:
            continue
        own = course.plan.context if is_too_long else course.plan.own
        out = {attempt.target.name for attempt in ledger if not attempt.is_refused or attempt.never_again}
        fresh = [target.name for target in own if target.name not in out]
        assert names(step).startswith("".join(fresh))


@settings(deadline=None)
@given(courses)
def test_who_is_too_long_only_goes_to_larger_windows(course: Course) -> None:
    """From then on, unless it is too long for a fallback alone and no larger window is left; and nobody else ever does."""
    course.run()

    context = {target.name for target in course.plan.context}
    for length, _, step in course.steps:
        ledger = course.ledger[:length]
        too_long = {one.target.name for one in ledger if one.error_class == ErrorClass.CONTEXT_LENGTH_EXCEEDED}
        going = set(names(step))
        if not too_long:
            assert not going & context
        elif context - {one.target.name for one in ledger if one.never_again} or ledger[0].target.name in too_long:
            assert going <= context


@settings(deadline=None)
@given(courses)
def test_a_denial_is_only_given_where_something_was_denied(course: Course) -> None:
    """The reason is one that the client, the header and the metric can tell."""
    last = course.run()

    assert last.reason in {"final", "attempts", "deadline", "no_target"} | DENIALS
    if last.reason in ("money", "key_budget"):
        assert last.reason == course.budgets.money
    elif last.reason in DENIALS:
        assert last.reason in course.budgets.by_target.values()


@given(st.floats(0, 600), st.floats(0, 1000), draws, st.booleans(), st.floats(0.1, 600))
def test_a_call_waits_for_what_others_find_out_but_not_for_long(
    failed_for_s: float, waited_s: float, u: float, is_hard: bool, left_s: float
) -> None:
    """Not much longer than its own failure has taken, and never for more than half of what its caller has left."""
    attempt = replace(failed(A), started_at=NOW - failed_for_s)
    doubts = FixedBudgets(doubtful=[A, B])
    now, deadline = NOW + waited_s, NOW + left_s
    step = next_step([attempt], TWO, DEFAULT, doubts, deadline, now, u, is_hard=is_hard)

    longest_s = max(1.5 * failed_for_s, 0.1)
    if is_hard and now >= deadline:
        assert step == GiveUp("deadline")
    elif isinstance(step, TryLater):
        assert not step.targets
        assert now < step.until <= NOW + longest_s + 1e-9
        assert not is_hard or step.until <= NOW + left_s / 2 + 1e-9
    else:
        assert names(step) == "B"
        assert waited_s >= min(longest_s, left_s / 2) - 1e-9


@rows(
    ("tried_s", "has_failed", "left_s", "goes"),
    [
        (None, True, 1000.0, True),  # nobody is trying: somebody has to
        (15.0, False, 1000.0, True),  # slow, as far as anybody can tell
        (9.0, True, 1000.0, False),
        (10.0, True, 1000.0, True),  # longer than failures take: it may be well
        (10.0, False, 20.0, False),  # no answer in as much time as is left
        (None, False, 20.0, True),
    ],
)
def test_who_has_waited_goes_where_there_is_hope(
    tried_s: float | None, has_failed: bool, left_s: float, goes: bool
) -> None:
    """Others are trying the other target, or have failed there; the call has waited as long as it may, after 10 s."""
    attempt = replace(failed(A), started_at=NOW - 10.0)
    now = NOW + min(15.0, left_s / 2)
    doubts = FixedBudgets(doubtful=[B], how=Doubt(None if tried_s is None else now - tried_s, has_failed))

    step = next_step([attempt], Plan([B]), DEFAULT, doubts, NOW + left_s, now, 0.5)

    later = TryLater(now + LOOK_AGAIN_S) if left_s > 20.0 else GiveUp("doubt")
    assert step == (Try([B]) if goes else later)


def test_a_target_that_is_not_in_doubt_goes_first() -> None:
    """A fallback that serves, before an own target of which others are finding out whether it does."""
    doubts = FixedBudgets(doubtful=[A, B])
    beside = Plan([A, B], [C])

    assert names(next_step([failed(A)], beside, DEFAULT, doubts, DEADLINE, NOW, 0.5)) == "C"
    assert names(next_step([failed(A)], WITH_FALLBACK, DEFAULT, doubts, DEADLINE, NOW, 0.5)) == "C"


def test_what_is_no_news_of_a_target_is_not_held_back() -> None:
    """A refused credential or a request that is too long for one goes to the next at once."""
    doubts = FixedBudgets(doubtful=[B, C])

    assert names(next_step([failed(A, ErrorClass.AUTH)], TWO, DEFAULT, doubts, DEADLINE, NOW, 0.5)) == "B"
    long = [failed(A, ErrorClass.CONTEXT_LENGTH_EXCEEDED)]
    assert names(next_step(long, Plan([A], (), [C]), DEFAULT, doubts, DEADLINE, NOW, 0.5)) == "C"


@given(st.integers(1, 10_000), draws, st.floats(0, 10), st.floats(1, 10), st.floats(0, 100))
def test_the_backoff_has_full_jitter_below_a_cap(
    failures: int, u: float, base_s: float, factor: float, most_s: float
) -> None:
    """Uniform between nothing and the exponential, which ends at `max_s`."""
    backoff = Backoff(base_s, factor, most_s)
    most = backoff_s(replace(backoff, has_jitter=False), failures, u)

    assert backoff_s(backoff, failures, u) == pytest.approx(u * most)
    assert 0 <= backoff_s(backoff, failures, u) <= most <= most_s


def test_the_backoff_doubles_up_to_its_cap() -> None:
    """100 ms, 200 ms, … 8 s."""
    plain = Backoff(has_jitter=False)

    assert [backoff_s(plain, failures, 0.0) for failures in (1, 2, 3, 7, 8, 1000)] == [0.1, 0.2, 0.4, 6.4, 8.0, 8.0]


def test_an_sdks_repeated_call_is_tried_once_at_each_target() -> None:
    """Its SDK counts the tries: a fallback is used, a target that has failed is not tried again."""
    once = next_step([failed(A)], ONE, DEFAULT, FREE, DEADLINE, NOW, 0.5, is_repeated=True)
    elsewhere = next_step([failed(A)], WITH_FALLBACK, DEFAULT, FREE, DEADLINE, NOW, 0.5, is_repeated=True)

    assert once == GiveUp("attempts")
    assert names(elsewhere) == "C"
