"""Times to first byte: worse is believed at once, better by and by; what is usual is told within a tenth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import exp

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.core.health.times import DECAY_S, FORGET_S, LONGEST_S, QUANTILE_MIN_SAMPLES, SHORTEST_S, Latency

BOUNDED = settings(deadline=None, derandomize=True)

seconds = st.floats(SHORTEST_S, LONGEST_S / 2)
gaps = st.floats(0.0, 100.0)
courses = st.lists(st.tuples(seconds, gaps), min_size=1, max_size=60)


def after(course: Sequence[tuple[float, float]]) -> tuple[Latency, float]:
    """A target that has answered so, with so much time between; and what time it is now."""
    latency, now = Latency(), 0.0
    for took_s, gap_s in course:
        now += gap_s
        latency.observe(took_s, now)
    return latency, now


def usually(took_s: float, answers: int = 300) -> Latency:
    """At time 0."""
    return after([(took_s, 0.0)] * answers)[0]


def test_a_target_that_was_never_measured_has_no_figures() -> None:
    """It neither looks slow nor has percentiles."""
    latency = Latency()

    assert latency.count == 0
    assert latency.peak_ewma(10.0) == latency.hoped(10.0) == 0.0
    assert latency.quantile(0.5) is latency.quantile(0.5, min_samples=0) is None


@BOUNDED
@given(courses, seconds, gaps)
def test_a_worse_answer_is_believed_at_once(course: list[tuple[float, float]], took_s: float, gap_s: float) -> None:
    """Whatever came before."""
    latency, now = after(course)
    assume(took_s >= latency.peak_ewma(now + gap_s))

    latency.observe(took_s, now + gap_s)

    assert latency.peak_ewma(now + gap_s) == pytest.approx(took_s, rel=1e-12)


@BOUNDED
@given(courses, seconds, gaps)
def test_a_better_answer_never_makes_it_look_worse_nor_better_than_that_answer(
    course: list[tuple[float, float]], took_s: float, gap_s: float
) -> None:
    """The expectation moves towards it, and stops there."""
    latency, now = after(course)
    before = latency.peak_ewma(now + gap_s)
    assume(took_s < before)

    latency.observe(took_s, now + gap_s)

    assert took_s * (1 - 1e-9) <= latency.peak_ewma(now + gap_s) <= before * (1 + 1e-9)


@BOUNDED
@given(courses, gaps, gaps)
def test_nothing_gets_worse_between_answers(course: list[tuple[float, float]], one_s: float, other_s: float) -> None:
    """Time alone only heals."""
    latency, now = after(course)

    for figure in (latency.peak_ewma, latency.hoped):
        assert figure(now) >= figure(now + one_s) >= figure(now + one_s + other_s) >= 0.0


def test_a_peak_fades_towards_what_is_usual() -> None:
    """By the factor e in each ten seconds."""
    latency = usually(1.0)
    latency.observe(21.0, 0.0)
    usual = latency.peak_ewma(1e6)

    assert usual == pytest.approx(1.1)  # the mean of the last 200
    for decays in (1, 2, 3):
        faded = (21.0 - usual) * exp(-decays)
        assert latency.peak_ewma(decays * DECAY_S) == pytest.approx(usual + faded)


def test_better_answers_are_believed_within_the_time_constant_however_many_they_are() -> None:
    """A burst of quick answers right behind a slow one proves nothing; the same rate over ten seconds does."""
    at_once, by_and_by = usually(1.0), usually(1.0)
    for latency in (at_once, by_and_by):
        latency.observe(20.0, 0.0)

    for i in range(1000):
        at_once.observe(1.0, 0.0)
        by_and_by.observe(1.0, (i + 1) * DECAY_S / 1000)

    assert at_once.peak_ewma(0.0) == 20.0
    assert by_and_by.peak_ewma(DECAY_S) == pytest.approx(1.0 + 19.0 * exp(-1), rel=0.02)


def test_a_target_that_has_recovered_is_not_judged_by_what_was_usual() -> None:
    """A few answers over some time constants prove it, while the mean of hundreds is still bad; and they stay proof."""
    latency = usually(10.0)

    for i in range(1, 11):
        latency.observe(1.0, i * DECAY_S / 2)

    assert latency.peak_ewma(5 * DECAY_S) == pytest.approx(1.0, rel=0.1)
    assert latency.peak_ewma(50 * DECAY_S) == pytest.approx(1.0, rel=0.1)


def test_news_of_a_target_that_is_not_used_grow_old() -> None:
    """What it may be hoped to take falls by the factor e in two minutes, below any other target in the end."""
    latency = usually(30.0)

    assert latency.peak_ewma(FORGET_S) == pytest.approx(30.0)
    assert latency.hoped(0.0) == pytest.approx(30.0)
    assert latency.hoped(FORGET_S) == pytest.approx(30.0 * exp(-1))
    assert latency.hoped(10 * FORGET_S) < 0.01


@pytest.mark.parametrize("usual_s", [0.0, 0.2, 40.0])
def test_a_failure_makes_a_target_look_slower_than_usual_for_a_while(usual_s: float) -> None:
    """Also one that fails faster than it answers, and one that answers slowly; it is no answer, so percentiles stay."""
    latency = usually(usual_s) if usual_s else Latency()
    before = latency.count, latency.quantile(0.95)

    for _ in range(100):
        latency.penalise(5.0, 0.0)

    assert latency.peak_ewma(0.0) == pytest.approx(usual_s + 5.0)  # and not a hundred times that
    assert latency.peak_ewma(10 * DECAY_S) == pytest.approx(usual_s, abs=0.001)
    assert (latency.count, latency.quantile(0.95)) == before


def test_a_failure_does_not_make_a_slow_target_look_better() -> None:
    """A peak stays a peak."""
    latency = usually(1.0)
    latency.observe(60.0, 0.0)

    latency.penalise(5.0, 0.0)

    assert latency.peak_ewma(0.0) == 60.0


@BOUNDED
@given(st.lists(seconds, min_size=1, max_size=40), st.floats(0.01, 1.0))
def test_a_percentile_is_within_a_tenth_of_an_answer_that_lies_there(times: list[float], p: float) -> None:
    """So many answers are no slower, so many no faster, give or take what the newest weigh more."""
    latency, _ = after([(took_s, 1.0) for took_s in times])

    found = latency.quantile(p, min_samples=1)

    assert found is not None
    assert min(abs(found / took_s - 1) for took_s in times) < 0.1
    slack = 0.1 * len(times) + 1
    assert sum(took_s * 0.9 <= found for took_s in times) >= p * len(times) - slack
    assert sum(took_s * 1.1 >= found for took_s in times) >= (1 - p) * len(times) - slack


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95, 0.99])
def test_percentiles_of_usual_times_are_right(p: float) -> None:
    """Log-normal times, as first tokens have: the median of what is told is within a tenth of the truth."""
    draw = random.Random(1)
    latency, told = Latency(), []
    for i in range(20_000):
        latency.observe(draw.lognormvariate(0.0, 0.6), float(i))
        if i % 50 == 0 and i > 1000:
            told.append(latency.quantile(p) or 0.0)
    truth = sorted(draw.lognormvariate(0.0, 0.6) for _ in range(50_000))[int(p * 50_000)]

    assert sorted(told)[len(told) // 2] == pytest.approx(truth, rel=0.1)


def test_few_answers_make_no_percentile() -> None:
    """Twenty do, unless somebody asks for another number."""
    few, enough = usually(1.0, QUANTILE_MIN_SAMPLES - 1), usually(1.0, QUANTILE_MIN_SAMPLES)

    assert few.quantile(0.95) is None
    assert few.quantile(0.95, min_samples=5) == pytest.approx(1.0, rel=0.1)
    assert enough.quantile(0.95) == pytest.approx(1.0, rel=0.1)
    assert enough.quantile(0.95, min_samples=50) is None


def test_the_last_few_hundred_answers_count() -> None:
    """A target that has become ten times as slow has new percentiles after as many, however long it was quick."""
    latency = usually(0.5, 250_000)

    for i in range(300):
        latency.observe(5.0, float(i))

    assert latency.quantile(0.5) == pytest.approx(5.0, rel=0.1)
    assert latency.quantile(0.2) == pytest.approx(0.5, rel=0.1)
    assert latency.count == 250_300


def test_times_beyond_all_bounds_are_counted_at_the_bounds() -> None:
    """Nothing raises, neither at no time at all nor at a day."""
    none, day = usually(0.0), usually(86400.0)

    assert none.quantile(0.5) == pytest.approx(SHORTEST_S, rel=0.1)
    assert day.quantile(0.5) == pytest.approx(LONGEST_S, rel=0.1)
    assert none.peak_ewma(0.0) == 0.0
    assert day.peak_ewma(0.0) == 86400.0
