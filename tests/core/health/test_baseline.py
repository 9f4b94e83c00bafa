"""What is usual at a target: the window forgets in steps, the baseline learns slowly and within bounds, chance is measured."""

from __future__ import annotations

from math import comb, exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.health.breaker import (
    BEYOND_CHANCE,
    BUCKETS,
    ENOUGH_CALLS,
    LONGEST_WINDOW_S,
    MOST_AT_FIRST,
    MOST_USUAL,
    Baseline,
    OutcomeCounts,
    OutcomeWindow,
    longest_run,
    surprise,
)
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)
SHARES = st.floats(1e-6, 0.9)


def seen(calls: int, failures: int = 0, *, first_byte_s: float | None = None, call_s: float = 1.0) -> OutcomeCounts:
    tally = OutcomeCounts()
    tally.calls, tally.failures = calls, failures
    tally.busy_s = call_s * (calls - failures)
    if first_byte_s is not None:
        tally.timed, tally.first_byte_s = calls, calls * first_byte_s
    return tally


def count(window: OutcomeWindow, now: float, failed: bool = False) -> OutcomeCounts:
    """One call ended; returns what left the window."""
    gone = window.turn(window.span_s, now) if now >= window.ends_at else OutcomeCounts()
    window.present.calls += 1
    window.present.failures += failed
    return gone


# The window


@given(gaps=st.lists(st.floats(0, 30), max_size=80))
@BOUNDED
def test_the_window_holds_what_is_recent(gaps: list[float]) -> None:
    """All of the last 55 s, and nothing older than 60: one bucket is forgotten at a time; nothing is lost on the way."""
    window, now, ends, gone = OutcomeWindow(60.0, 0.0), 0.0, [], 0
    for gap in gaps:
        now += gap
        gone += count(window, now).calls
        ends.append(now)

        calls, _ = window.failures()
        assert sum(end > now - 55 + 1e-6 for end in ends) <= calls <= sum(end > now - 60 - 1e-6 for end in ends)
        assert gone + calls == len(ends)
        assert window.ends_at > now - 1e-6


def test_recent_goes_back_bucket_by_bucket() -> None:
    """The present first, the whole window last."""
    window = OutcomeWindow(60.0, 0.0)
    count(window, 1.0, failed=True)
    count(window, 7.0)
    count(window, 13.0, failed=True)

    rows = list(window.recent())

    assert rows[:3] == [(5.0, 1, 1), (10.0, 2, 1), (15.0, 3, 2)]
    assert rows[-1] == (60.0, 3, 2)
    assert len(rows) == BUCKETS


def test_a_window_that_grows_keeps_what_it_has() -> None:
    """Calls have become longer: the buckets from here on are, too."""
    window = OutcomeWindow(60.0, 0.0)
    count(window, 1.0)

    assert window.turn(600.0, 5.0).calls == 0
    assert window.ends_at == 55.0
    assert window.failures() == (1, 0)


def test_the_rate_of_a_young_window_is_of_its_own_time() -> None:
    """Not of the whole span; and a burst in the first moment is no rate per microsecond."""
    window = OutcomeWindow(60.0, 100.0)
    for _ in range(50):
        count(window, 100.1)

    assert window.calls_per_s(100.1) == 50.0
    assert window.calls_per_s(110.0) == 5.0
    assert window.calls_per_s(500.0) == pytest.approx(50 / 60)


# The baseline


def test_the_first_outcomes_are_a_plain_mean() -> None:
    """Until enough is known every call counts the same."""
    baseline = Baseline()

    baseline.learn(seen(100, 10, first_byte_s=1.0), 5.0)
    baseline.learn(seen(300, 0, first_byte_s=3.0), 5.0)

    assert baseline.failure_share == pytest.approx(0.025)
    assert baseline.first_byte_s == pytest.approx(2.5)
    assert baseline.call_s == pytest.approx(1.0)


def test_later_it_learns_slowly_however_many_calls() -> None:
    """Ten minutes are the time constant: 5 s of a million calls move it by less than 1 %."""
    baseline = Baseline()
    baseline.learn(seen(ENOUGH_CALLS), 60.0)

    baseline.learn(seen(1_000_000, 200_000), 5.0)

    assert baseline.failure_share == pytest.approx(0.2 * 5 / 600)


@given(spans=st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 1), st.floats(0.1, 600)), max_size=50))
@BOUNDED
def test_no_outage_becomes_usual(spans: list[tuple[int, float, float]]) -> None:
    """Whatever it is taught, a quarter failing is the most that is usual, a tenth while little is known."""
    baseline = Baseline()
    for calls, share, span_s in spans:
        baseline.learn(seen(calls, int(calls * share)), span_s)

    assert 0 <= baseline.failure_share <= MOST_USUAL
    assert 0 < baseline.usual_failures(100, 100) <= max(MOST_AT_FIRST, baseline.failure_share)


def test_a_fresh_baseline_takes_doubtful_failures_for_few() -> None:
    """One failure among the first calls does not make it usual; what it saw since counts while little is known."""
    baseline = Baseline()
    assert baseline.usual_failures(1, 1) == pytest.approx(1 / 51)
    assert baseline.usual_failures(1000, 50) == pytest.approx(50 / 1050)

    baseline.learn(seen(ENOUGH_CALLS), 60.0)

    assert baseline.usual_failures(1000, 50) < 1e-6


def test_windows_are_longer_than_the_calls() -> None:
    """Three times as long, at least what the rules say, at most ten minutes."""
    baseline = Baseline()
    assert baseline.window_s(60.0) == 60.0

    baseline.learn(seen(10, call_s=50.0), 60.0)
    assert baseline.window_s(60.0) == 150.0

    baseline.learn(seen(1000, call_s=3000.0), 60.0)
    assert baseline.window_s(60.0) == LONGEST_WINDOW_S
    assert baseline.window_s(900.0) == 900.0


def test_slow_is_measured_by_what_is_usual() -> None:
    """Within the bounds; nothing but the longest time is slow as long as nothing is known."""
    baseline = Baseline()
    assert baseline.slow_after_s(4.0, 10.0, 120.0) == 120.0

    for usual, slow_after in ((1.0, 10.0), (5.0, 20.0), (60.0, 120.0)):
        baseline = Baseline()
        baseline.learn(seen(10, first_byte_s=usual), 60.0)
        assert baseline.slow_after_s(4.0, 10.0, 120.0) == slow_after


# Chance


@given(calls=st.integers(1, 60), failures=st.integers(0, 60), usual=SHARES)
@BOUNDED
def test_surprise_bounds_the_chance(calls: int, failures: int, usual: float) -> None:
    """So many failures, or more, come by chance with a probability of at most e**-surprise."""
    failures = min(failures, calls)

    tail = sum(comb(calls, k) * usual**k * (1 - usual) ** (calls - k) for k in range(failures, calls + 1))

    assert surprise(calls, failures, usual) >= 0
    assert tail <= exp(-surprise(calls, failures, usual)) * (1 + 1e-9)


@given(usual=SHARES)
@BOUNDED
def test_the_longest_run_is_the_shortest_beyond_chance(usual: float) -> None:
    """One call in 10^8 ends one by chance."""
    run = longest_run(usual)

    assert usual**run <= 1e-8 * (1 + 1e-6)
    assert run == 1 or usual ** (run - 1) > 1e-8 * (1 - 1e-6)
    assert surprise(run, run, usual) >= BEYOND_CHANCE - 1e-6


@rows(("usual", "run"), [(1e-8, 1), (0.01, 4), (0.05, 7), (0.1, 8), (MOST_USUAL, 14)])
def test_the_longest_run_in_figures(usual: float, run: int) -> None:
    """At 5 % failures seven in a row are beyond chance."""
    assert longest_run(usual) == run
