"""Pauses after refusals: the latest end counts, one call finds out how it is, and no herd follows."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits.target_limits.gate import LONGEST_BACKOFF_S, REFUSED_WITHIN_S, RESUME_S, Pauses, ResumeCap

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
