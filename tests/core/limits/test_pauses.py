"""Pauses after refusals: the latest end counts, one call finds out how it is, and no herd follows."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits.target_limits import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    LONGEST_TRUSTED_S,
    MOST_CHECKS,
    REFUSED_WITHIN_S,
    RESUME_S,
    CallTraits,
    Pauses,
    Refusals,
    ResumeCap,
)

BOUNDED = settings(deadline=None, derandomize=True)


@BOUNDED
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_a_pause_never_moves_back(hints: list[float]) -> None:
    """The latest of all hints wins; what is not a finite number is not heard."""
    pauses = Pauses()
    finite = [hint for hint in hints if -inf < hint < inf]

    for hint in hints:
        before = pauses.until
        pauses.pause_until(hint, 0.0)
        assert pauses.until >= before

    assert pauses.until == max(finite, default=-inf)


def test_the_latest_end_of_a_pause_counts() -> None:
    """Whatever is asked for afterwards, and garbage; it is one pause."""
    pauses = Pauses()
    assert pauses.ends_at == -inf

    for until in (5.0, 3.0, nan, 6.0):
        pauses.pause_until(until, 1.0)

    assert (pauses.ends_at, pauses.count) == (6.0, 1)
    pauses.spend_until(9.0)
    assert pauses.ends_at == 9.0
    pauses.end()
    assert pauses.ends_at == -inf


def test_all_refusals_of_an_epoch_count_as_one() -> None:
    """Those calls were sent before they could learn of the first."""
    pauses = Pauses()

    assert [pauses.refused(0) for _ in range(3)] == [True, False, False]
    assert (pauses.epoch, pauses.refusals_in_a_row) == (1, 1)
    assert pauses.refused(1)
    assert pauses.refusals_in_a_row == 2


def test_the_back_off_doubles_with_each_epoch_up_to_its_longest() -> None:
    """For a provider that asks for no pause; one that asks for too short ones is believed less and less."""
    pauses, backoffs, believed = Pauses(), [], []
    for epoch in range(20):
        pauses.refused(epoch)
        backoffs.append(pauses.backoff_s)
        believed.append(pauses.believed_s(0.01))

    assert backoffs[:4] == [0.05, 0.1, 0.2, 0.4]
    assert backoffs[-1] == LONGEST_BACKOFF_S
    assert believed[:3] == [0.01, 0.1, 0.2]
    assert believed[-1] == 1.0
    assert pauses.believed_s(30.0) == 30.0


def test_one_call_finds_out_how_it_is_and_the_next_only_after_a_while() -> None:
    """A probe that has not been refused for a moment was let in, however long its answer takes."""
    pauses = Pauses()
    for epoch in range(2):
        pauses.refused(epoch)
    assert pauses.probe_wait_s(10.0) == 0.0

    pauses.sent_in_epoch, pauses.probed_at = 1, 10.0
    assert pauses.probe_wait_s(10.25) == REFUSED_WITHIN_S - 0.25
    pauses.end_probing(10.25)
    assert pauses.refusals_in_a_row == 2
    pauses.end_probing(10.0 + REFUSED_WITHIN_S)
    assert pauses.refusals_in_a_row == 1
    assert pauses.probe_wait_s(10.0 + REFUSED_WITHIN_S) == 0.0


@BOUNDED
@given(st.floats(1.0, 1000.0), st.floats(0.5, 3.0))
def test_the_second_behind_a_pause_sees_at_most_the_rate_and_a_fifth(rate_per_s: float, cost: float) -> None:
    """And one call more, which leaves a debt; then the cap is over."""
    cap, now, went = ResumeCap(rate_per_s, 5.0, counts_requests=True), 5.0, 0.0
    while not cap.is_over(now):
        wait_s = cap.wait_s(now)
        now += wait_s
        if wait_s == 0.0:
            cap.take(cost, now)
            went += cost

    assert went <= 1.2 * rate_per_s + cost + 1e-3 * rate_per_s
    assert went >= rate_per_s
    assert now == pytest.approx(5.0 + RESUME_S, abs=0.01)
    assert cap.wait_s(now) == 0.0


# Whose a refusal is

ONE, OTHER = CallTraits(1, "a", 100.0), CallTraits(2, "a", 100.0)


def asked(pauses: Pauses, one: CallTraits, delay_s: float, now: float) -> None:
    """The call is refused, and told to wait."""
    pauses.refused(pauses.epoch, is_again=pauses.suspect(one, pauses.epoch))
    pauses.pause_until(now + delay_s, now)
    pauses.ask_until(now + delay_s, now)


def test_a_pause_that_one_call_was_asked_for_ends_when_another_is_let_in() -> None:
    """Another looks a moment later; from then on the refusals of the first say nothing."""
    pauses = Pauses()
    asked(pauses, ONE, 60.0, 0.0)
    assert (pauses.wait_s(ONE, 0.0), pauses.wait_s(OTHER, 0.0), pauses.wait_s(None, 0.0)) == (
        60.0,
        FIRST_BACKOFF_S,
        60.0,
    )
    assert pauses.stands_back(ONE, 1.0)
    assert not pauses.stands_back(OTHER, 1.0)

    pauses.let_in(OTHER, pauses.epoch, 1.0)

    assert pauses.ends_at == 1.0
    assert pauses.refusals is not None
    assert (pauses.refusals.is_apart(ONE), pauses.refusals.is_apart(OTHER)) == (True, False)
    pauses.let_in(ONE, pauses.epoch, 2.0)
    assert pauses.refusals is None


def test_a_call_that_was_sent_before_the_refusal_proves_nothing() -> None:
    """There may have been room for it."""
    pauses = Pauses()
    before = pauses.epoch
    asked(pauses, ONE, 60.0, 0.0)

    pauses.let_in(OTHER, before, 0.1)

    assert pauses.ends_at == 60.0


def test_calls_of_one_kind_are_told_from_those_of_others() -> None:
    """Of several, the tenant and the size are what they have in common; a call like them that is let in ends that."""
    refusals = Refusals()
    refusals.suspect(ONE, is_after=True)
    refusals.suspect(OTHER, is_after=True)
    assert refusals.let_in(CallTraits(3, "b", 100.0), is_after=True)

    alike, small = CallTraits(4, "a", 60.0), CallTraits(5, "a", 40.0)
    assert [refusals.is_apart(one) for one in (ONE, alike, small)] == [True, True, False]
    refusals.let_in(alike, is_after=True)
    assert [refusals.is_apart(one) for one in (ONE, alike, small)] == [True, False, False]


def test_a_call_like_those_refused_that_is_let_in_clears_them() -> None:
    """It was the rate, and that is over."""
    refusals = Refusals()
    refusals.suspect(ONE, is_after=True)
    refusals.suspect(OTHER, is_after=True)

    assert not refusals.let_in(CallTraits(3, "a", 100.0), is_after=True)
    assert not refusals.is_apart(ONE)


def test_short_pauses_are_believed_where_the_last_was_true() -> None:
    """Until one turns out to have been one call's alone."""
    pauses = Pauses()
    for one in (ONE, OTHER):
        asked(pauses, one, 1.0, 0.0)
    third = CallTraits(3, "b", 100.0)
    pauses.let_in(ONE, pauses.epoch, 2.0)

    asked(pauses, ONE, LONGEST_TRUSTED_S, 10.0)

    assert pauses.wait_s(third, 10.0) == LONGEST_TRUSTED_S
    asked(pauses, ONE, 60.0, 10.0)
    assert pauses.wait_s(third, 10.0) == LONGEST_TRUSTED_S
    pauses.let_in(third, pauses.epoch, 12.0)
    asked(pauses, CallTraits(4, "b", 9.0), 60.0, 20.0)
    assert pauses.wait_s(third, 20.0) == pytest.approx(FIRST_BACKOFF_S)


@BOUNDED
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.sampled_from("abcd"), st.floats(1.0, 1e5), st.floats(0.0, 2.0)), max_size=80
    )
)
def test_a_pause_that_holds_for_all_is_met_by_few(calls: list[tuple[int, str, float, float]]) -> None:
    """However many callers and sizes there are: the first who is refused, and few who look."""
    pauses, now, refused = Pauses(), 0.0, 0
    for number, tenant, tokens, gap_s in calls:
        one = CallTraits(number, tenant, tokens)
        now += gap_s
        if pauses.wait_s(one, now) == 0.0:
            asked(pauses, one, 1000.0, now)
            refused += 1

    assert refused <= 1 + MOST_CHECKS


def test_calls_need_not_be_read_for_one_that_was_refused_alone() -> None:
    """It may never come again; what is known of it costs the others nothing."""
    refusals = Refusals()
    assert refusals.may_learn(1, "a")
    refusals.suspect(CallTraits(1, "a", 100), is_after=True)
    assert refusals.may_learn(2, "a")

    refusals.let_in(CallTraits(2, "b", 100), is_after=True)
    assert [refusals.may_learn(1, "a"), refusals.may_learn(3, "a"), refusals.may_learn(3, "b")] == [True, False, False]

    for call in (4, 5):
        refusals.suspect(CallTraits(call, "a", 100), is_after=True)
    refusals.let_in(CallTraits(6, "b", 100), is_after=True)
    assert [refusals.may_learn(7, "a"), refusals.may_learn(7, "b")] == [True, False]
