"""Finding an untold rate, and pauses."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.adapt import Aimd, AimdPolicy, Pause
from gateway.policy.bucket import Bucket

BOUNDED = settings(max_examples=200, deadline=None, derandomize=True)

POLICY = AimdPolicy(first_rate=10.0, min_rate=0.5, max_rate=200.0, growth=2.0)
events = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.sampled_from(["succeeded", "refused", "late", "asks"])), max_size=60
)


def go(adapt: Aimd, now: float, until: float) -> int:
    """How many go between the two moments when as many as possible try."""
    granted = 0
    while now < until:
        wait_s = adapt.wait_s(now)
        if wait_s == 0.0:
            adapt.take(now)
            granted += 1
        now += wait_s
    return granted


def pressed(rate: float = 10.0) -> Aimd:
    adapt = Aimd(0.0, replace(POLICY, first_rate=rate))
    go(adapt, 0.0, 1.0)
    return adapt


@BOUNDED
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_a_pause_never_moves_back(hints: list[float]) -> None:
    """The latest of all hints wins; what is not a finite number is not heard."""
    pause = Pause()
    finite = [hint for hint in hints if -inf < hint < inf]

    for hint in hints:
        before = pause.until
        pause.extend(hint)
        assert pause.until >= before

    assert pause.until == max(finite, default=-inf)


def test_a_pause_says_how_long_it_lasts() -> None:
    """Nothing without one, nothing after its end."""
    pause = Pause()
    assert pause.left_s(0.0) == 0.0

    pause.extend(5.0)
    pause.extend(3.0)
    pause.extend(nan)

    assert [pause.left_s(now) for now in (1.0, 5.0, 9.0)] == [4.0, 0.0, 0.0]


@BOUNDED
@given(events)
def test_the_rate_stays_in_bounds_and_moves_by_the_rules(course: list[tuple[float, str]]) -> None:
    """At most doubled or one step up in a second; halved at a refusal, and once for all that were under way."""
    adapt = Aimd(0.0, POLICY)
    now = last_cut = 0.0

    for gap_s, event in course:
        now += gap_s
        before = adapt.rate_per_s
        match event:
            case "succeeded":
                adapt.succeeded(now)
                assert before <= adapt.rate_per_s <= 2 * before
            case "refused":
                adapt.refused(now, now)
                assert adapt.rate_per_s == max(before / 2, POLICY.min_rate)
                last_cut = now
            case "late" if last_cut:
                adapt.refused(last_cut - 0.01, now)
                assert adapt.rate_per_s == before
            case _:
                adapt.wait_s(now)
        assert POLICY.min_rate <= adapt.rate_per_s <= POLICY.max_rate


@BOUNDED
@given(st.floats(0.5, 200.0), st.floats(1.0, 1e6))
def test_the_first_second_after_a_pause_sees_at_most_a_fifth_more_than_the_rate(rate: float, pause_s: float) -> None:
    """However long the pause was; slower than five a second, at most one call more than the rate."""
    adapt = Aimd(0.0, AimdPolicy(first_rate=rate))

    granted = go(adapt, pause_s, pause_s + 1.0)

    assert granted <= max(1.2 * rate, rate + 1.0) + 1e-3


def test_the_rate_is_multiplied_each_second_until_the_first_refusal() -> None:
    """While somebody waits for it, and not otherwise."""
    adapt = pressed()

    adapt.succeeded(0.5)
    assert adapt.rate_per_s == 10.0
    adapt.succeeded(1.0)
    assert adapt.rate_per_s == 20.0
    adapt.succeeded(3.0)
    assert adapt.rate_per_s == 20.0


def test_after_the_first_refusal_the_rate_grows_by_steps() -> None:
    """Five percent of what it was cut to, each second with successes."""
    adapt = pressed(100.0)

    adapt.refused(1.0, 1.5)
    assert adapt.rate_per_s == 50.0

    go(adapt, 1.5, 2.0)
    adapt.succeeded(2.4)
    assert adapt.rate_per_s == 50.0
    adapt.succeeded(2.5)
    assert adapt.rate_per_s == 52.5


def test_one_overshoot_cuts_once() -> None:
    """The refusals of all that were under way at the cut tell nothing new."""
    adapt = pressed(100.0)

    for _ in range(30):
        adapt.refused(1.0, 1.5)
    assert adapt.rate_per_s == 50.0

    adapt.refused(1.6, 2.0)
    assert adapt.rate_per_s == 25.0


def test_what_did_not_go_can_be_taken_by_the_next() -> None:
    """And predictions count those ahead."""
    adapt = Aimd(0.0, POLICY)
    adapt.take(0.0)
    adapt.take(0.0)
    assert adapt.wait_s(0.0) == pytest.approx(0.1)
    assert adapt.ready_at(0.0, ahead=4.0) == pytest.approx(0.5)

    adapt.give_back(0.0)

    assert adapt.wait_s(0.0) == 0.0


def test_an_untold_rate_is_found() -> None:
    """2,000 calls against 100 a second with a burst of 100: within 1.5 times the ideal, at most 3 % refused in vain."""
    adapt, provider = Aimd(0.0), Bucket(100.0, 100.0, 0.0)
    answers: list[tuple[float, float, bool]] = []
    now, served, refused = 0.0, 0, 0

    while served < 2000:
        while answers and answers[0][0] <= now:
            at, sent_at, is_served = answers.pop(0)
            if is_served:
                adapt.succeeded(at)
            else:
                adapt.refused(sent_at, at)
        wait_s = adapt.wait_s(now)
        if wait_s == 0.0:
            adapt.take(now)
            is_served = provider.wait_s(1.0, now) == 0.0
            if is_served:
                provider.take(1.0, now)
            served, refused = served + is_served, refused + (not is_served)
            answers.append((now + 0.2, now, is_served))
        now = min(now + max(wait_s, 1e-6), answers[0][0] if answers else inf)

    assert now <= 1.5 * 19.0
    assert refused <= 60
