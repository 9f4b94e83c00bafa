"""The limits of one target or key together: all or nothing, settled to the truth, corrected by what answers tell."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import inf, isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits import limit_table
from gateway.core.limits.bucket import NOTHING, Bucket, Cost
from gateway.core.limits.headers import Learned, Reading
from gateway.core.limits.limit_table import AZURE, CONTINUOUS, Limits, LimitSet, Style
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

amounts = st.none() | st.floats(1.0, 1e7)
some_limits = st.builds(Limits, amounts, amounts, amounts, st.none() | st.integers(1, 50))
timed_limits = st.builds(Limits, amounts, amounts, amounts)
styles = st.sampled_from([CONTINUOUS, AZURE, Style(request_window_s=1.0), Style(request_burst=0.1)])
costs = st.builds(Cost, st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 10**6))
steps = st.lists(
    st.tuples(st.floats(0.0, 40.0), costs, costs, st.sampled_from(["settle", "cancel", "hold"])), max_size=25
)


def free(limits: LimitSet, now: float) -> dict[str, float]:
    return {row.name: row.level for row in limits.table.rows(now)}


@BOUNDED
@given(some_limits, styles, steps)
def test_no_course_of_calls_breaks_a_level(
    numbers: Limits, style: Style, calls: list[tuple[float, Cost, Cost, str]]
) -> None:
    """Never above the capacity, always a number; a refusal takes nothing, a grant exactly its cost."""
    limits = LimitSet(replace(numbers, output_tokens_per_min=5e5), 0.0, style)
    now = 0.0

    for gap_s, cost, actual, end in calls:
        now += gap_s
        before, blocked_by = free(limits, now), limits.which(cost, now)
        wait_s = limits.reserve(cost, now)
        after = free(limits, now)
        assert (wait_s == 0.0) == (blocked_by is None)
        if wait_s != 0.0:
            assert after == before
            continue
        if "tokens_per_min" in before:
            assert before["tokens_per_min"] - after["tokens_per_min"] == pytest.approx(sum(cost[1:]), abs=1e-3)
        if end == "settle":
            limits.settle(cost, actual, now, now)
        elif end == "cancel":
            limits.settle(cost, NOTHING, now, now)
        for row in limits.table.rows(now):
            assert not isnan(row.level)
            assert row.level <= row.capacity * (1 + 1e-12)


@BOUNDED
@given(timed_limits, styles, st.lists(costs, min_size=1, max_size=12), st.sampled_from([0.0, 10.0, 50.0]))
def test_what_waited_exactly_as_told_is_granted(
    numbers: Limits, style: Style, asked: list[Cost], keep_percent: float
) -> None:
    """When all limits fit at once; what never fits takes nothing."""
    limits = LimitSet(replace(numbers, input_tokens_per_min=1e6), 0.0, style)
    now = 0.0

    for cost in asked:
        wait_s = limits.reserve(cost, now, keep_percent)
        assert wait_s is not None
        if 0.0 < wait_s < inf:
            now += wait_s
            assert limits.reserve(cost, now, keep_percent) == 0.0


@BOUNDED
@given(timed_limits, styles, costs, costs)
def test_a_cancelled_reservation_leaves_no_trace(numbers: Limits, style: Style, first: Cost, cost: Cost) -> None:
    """Nothing was sent, so nothing was used."""
    limits = LimitSet(numbers, 0.0, style)
    limits.reserve(first, 0.0)
    before = free(limits, 1.0)

    if limits.reserve(cost, 1.0) == 0.0:
        limits.settle(cost, NOTHING, 1.0, 1.0)

    assert free(limits, 1.0) == pytest.approx(before, rel=1e-9, abs=1e-6)


@BOUNDED
@given(timed_limits, styles, costs, st.lists(costs, max_size=5))
def test_a_prediction_with_nobody_ahead_is_the_wait(
    numbers: Limits, style: Style, cost: Cost, taken: list[Cost]
) -> None:
    """The two may not disagree about the same question."""
    limits = LimitSet(numbers, 0.0, style)
    for other in taken:
        limits.reserve(other, 0.0)

    assert limits.ready_at(cost, 3.0) == pytest.approx(3.0 + (limits.wait_s(cost, 3.0) or 0.0), rel=1e-9, abs=1e-5)


def test_without_limits_everything_fits_at_once() -> None:
    """A target whose limits nobody knows holds nobody up."""
    limits = LimitSet(Limits(), 0.0)

    assert limits.reserve(Cost(1, 10**9, 10**9), 0.0) == 0.0
    assert limits.ready_at(Cost(), 5.0, Cost(1000)) == 5.0
    assert limits.table.rows(0.0) == []


def test_the_wait_is_that_of_the_limit_that_blocks_longest() -> None:
    """And it can be named."""
    limits = LimitSet(Limits(requests_per_min=60, tokens_per_min=6000), 0.0, Style(request_burst=1 / 60))

    assert limits.reserve(Cost(1, 5000, 500), 0.0) == 0.0

    assert limits.which(Cost(1, 1500, 0), 0.0) == "tokens_per_min"
    assert limits.wait_s(Cost(1, 1500, 0), 0.0) == pytest.approx(10.0)
    assert limits.which(Cost(1, 10, 0), 0.0) == "requests_per_min"
    assert limits.wait_s(Cost(1, 10, 0), 0.0) == pytest.approx(1.0)
    assert limits.which(Cost(1, 10, 0), 1.0) is None


def test_input_and_output_tokens_may_be_limited_apart() -> None:
    """Output that was not reserved is owed, and the next call waits for it."""
    limits = LimitSet(Limits(input_tokens_per_min=6000, output_tokens_per_min=600), 0.0)

    assert limits.reserve(Cost(1, 6000, 0), 0.0) == 0.0
    limits.settle(Cost(1, 6000, 0), Cost(1, 5000, 700), 0.0, 0.0)

    assert free(limits, 0.0) == {"input_tokens_per_min": 1000.0, "output_tokens_per_min": -100.0}
    assert limits.which(Cost(1, 1000, 0), 0.0) == "output_tokens_per_min"
    assert limits.wait_s(Cost(1, 1000, 0), 0.0) == pytest.approx(10.0)


def test_a_settled_call_gives_back_what_it_did_not_use() -> None:
    """Tokens only: the request was made."""
    limits = LimitSet(Limits(requests_per_min=10, tokens_per_min=1000, max_concurrency=1), 0.0)

    assert limits.reserve(Cost(1, 400, 600), 0.0) == 0.0
    limits.settle(Cost(1, 400, 600), Cost(1, 300, 200), 0.0, 0.0)

    assert free(limits, 0.0) == {"requests_per_min": 9.0, "tokens_per_min": 500.0, "concurrency": 1.0}


def test_a_full_house_tells_no_time_unless_the_call_never_fits() -> None:
    """None: wait for a release. What can never fit need not even wait for that."""
    limits = LimitSet(Limits(tokens_per_min=1000, max_concurrency=1), 0.0)
    assert limits.reserve(Cost(1, 900, 0), 0.0) == 0.0

    assert limits.reserve(Cost(1, 500, 0), 0.0) is None
    assert limits.which(Cost(1, 500, 0), 0.0) == "concurrency"
    assert limits.wait_s(Cost(1, 1001, 0), 0.0) == inf
    assert limits.which(Cost(1, 1001, 0), 0.0) == "tokens_per_min"

    limits.settle(Cost(1, 900, 0), Cost(1, 900, 0), 0.0)
    assert limits.reserve(Cost(1, 500, 0), 0.0) == pytest.approx(24.0)


def test_lower_lanes_leave_the_reserve_untouched() -> None:
    """A tenth of every limit is left for those who may use it."""
    limits = LimitSet(Limits(requests_per_min=10, tokens_per_min=1000, max_concurrency=10), 0.0)

    granted = 0
    while limits.reserve(Cost(1, 95, 0), 0.0, keep_percent=10.0) == 0.0:
        granted += 1

    assert granted == 9
    assert limits.reserve(Cost(1, 95, 0), 0.0) == 0.0


@pytest.mark.parametrize(
    ("style", "capacities"),
    [
        pytest.param(CONTINUOUS, (600.0, 60_000.0), id="a minute's worth at once"),
        pytest.param(Style(request_burst=0.05), (30.0, 60_000.0), id="a chosen share of the requests at once"),
        pytest.param(AZURE, (100.0, 60_000.0), id="Azure: ten seconds' worth of requests"),
        pytest.param(Style(request_window_s=1.0), (10.0, 60_000.0), id="a second's worth"),
    ],
)
def test_a_style_says_how_much_may_go_at_once(style: Style, capacities: tuple[float, float]) -> None:
    """Of requests and of tokens."""
    limits = LimitSet(Limits(requests_per_min=600, tokens_per_min=60_000), 0.0, style)

    assert tuple(row.capacity for row in limits.table.rows(0.0)) == capacities


def test_azures_requests_come_in_windows_of_ten_seconds() -> None:
    """All of a window at once, then nothing until the next."""
    limits = LimitSet(Limits(requests_per_min=30), 0.0, AZURE)

    assert [limits.reserve(Cost(), 3.0) for _ in range(5)] == [0.0] * 5

    assert limits.reserve(Cost(), 4.0) == pytest.approx(9.0)
    assert limits.ready_at(Cost(), 4.0, Cost(7)) == pytest.approx(23.0)
    assert [limits.reserve(Cost(), 13.0) for _ in range(5)] == [0.0] * 5


def test_requests_per_day_come_back_all_day_long() -> None:
    """A thousand a day is one in 86.4 seconds."""
    limits = LimitSet(Limits(requests_per_day=1000), 0.0)
    for _ in range(1000):
        assert limits.reserve(Cost(), 0.0) == 0.0

    assert limits.wait_s(Cost(), 0.0) == pytest.approx(86.4)


def test_a_reload_keeps_levels_and_forgets_what_is_no_longer_named() -> None:
    """A changed number is in force at once; a new limit starts full."""
    limits = LimitSet(Limits(requests_per_min=100, tokens_per_min=1000), 0.0)
    limits.reserve(Cost(1, 300, 0), 0.0)

    limits.table.configure(Limits(requests_per_min=50, max_concurrency=3), 0.0)

    assert free(limits, 0.0) == {"requests_per_min": 50.0, "concurrency": 3.0}


def test_a_limit_gets_nothing_back_that_was_never_taken_from_it() -> None:
    """A call from before it existed has no part in it."""
    limits = LimitSet(Limits(), 0.0)
    limits.reserve(Cost(1, 300, 0), 0.0)
    limits.table.configure(Limits(tokens_per_min=1000, max_concurrency=1), 1.0)
    limits.reserve(Cost(1, 500, 0), 1.0)

    limits.settle(Cost(1, 300, 0), Cost(1, 100, 0), 1.0, reserved_at=0.0)

    assert free(limits, 1.0) == {"tokens_per_min": 500.0, "concurrency": 0.0}


def test_rows_say_what_an_operator_asks() -> None:
    """Level, capacity, where the number is from, and when the next one fits."""
    limits = LimitSet(Limits(requests_per_min=1, max_concurrency=1), 0.0)
    limit_table.learn(limits, Learned(tokens=Reading(limit=6000, remaining=0)), 0.0)
    limits.reserve(Cost(1, 0, 0), 1.0)

    assert limits.table.rows(1.0) == [
        ("requests_per_min", 0.0, 1.0, "configured", 60.0),
        ("concurrency", 0.0, 1.0, "configured", None),
        ("tokens_per_min", 100.0, 6000.0, "learned", 0.0),
    ]


def test_a_limit_nobody_configured_is_learned() -> None:
    """Its capacity follows the provider up and down, its level starts with what remains."""
    limits = LimitSet(Limits(), 0.0)

    limit_table.learn(limits, Learned(requests=Reading(500, 499), tokens=Reading(30_000, 29_000, grain=1000.0)), 0.0)
    assert [(row.level, row.capacity) for row in limits.table.rows(0.0)] == [(499.0, 500.0), (29_000.0, 30_000.0)]

    limit_table.learn(limits, Learned(requests=Reading(1000, 10)), 0.0)
    assert limits.table.rows(0.0)[0][:4] == ("requests_per_min", 11.0, 1000.0, "learned")


def test_a_configured_limit_is_only_narrowed() -> None:
    """The operator may want to use less than the provider gives; the provider may give less than the operator thinks."""
    limits = LimitSet(Limits(requests_per_min=100), 0.0)

    limit_table.learn(limits, Learned(requests=Reading(500)), 0.0)
    assert limits.table.rows(0.0)[0].capacity == 100.0

    limit_table.learn(limits, Learned(requests=Reading(50)), 0.0)
    assert limits.table.rows(0.0)[0].capacity == 50.0

    limit_table.learn(limits, Learned(requests=Reading(500)), 0.0)
    assert limits.table.rows(0.0)[0].capacity == 100.0


@rows(
    ("reading", "level"),
    [
        pytest.param(Reading(100, 90), 89.833, id="the same limit: believed, but for what may have overtaken it"),
        pytest.param(Reading(100, 20), 31.0, id="the same limit: less, but what refilled since is ours"),
        pytest.param(Reading(500, 90), 40.0, id="we may use less than the provider gives"),
        pytest.param(Reading(None, 90), 40.0, id="nobody says that it is the same limit"),
        pytest.param(Reading(500, 20), 31.0, id="too little is left of the larger limit"),
        pytest.param(Reading(None, 2), 13.0, id="lowering needs no limit"),
    ],
)
def test_a_configured_level_is_raised_only_by_a_provider_with_the_same_limit(reading: Reading, level: float) -> None:
    """What is left of a larger limit is not left of our share; too little is always believed."""
    limits = LimitSet(Limits(requests_per_min=100), 0.0)
    limits.reserve(Cost(70), 0.0)

    limit_table.learn(limits, Learned(requests=reading), 6.0, 0.0, limits.mark())

    assert free(limits, 6.0)["requests_per_min"] == pytest.approx(level, abs=1e-3)


def test_what_calls_on_the_way_may_take_is_not_taken_for_left() -> None:
    """A call on an open connection is counted before twenty that were sent before it and wait for theirs."""
    limits = LimitSet(Limits(tokens_per_min=60_000), 0.0)
    for _ in range(50):
        limits.reserve(Cost(1, 1000, 0), 0.0)
    mark = limits.mark()

    limit_table.learn(limits, Learned(tokens=Reading(60_000, 30_000)), 0.0, 0.0, mark, in_flight=21)

    assert free(limits, 0.0)["tokens_per_min"] == 10_000.0

    limit_table.learn(limits, Learned(tokens=Reading(60_000, 30_000)), 0.0, 0.0, mark, in_flight=1)

    assert 29_000.0 < free(limits, 0.0)["tokens_per_min"] <= 30_000.0


def test_a_chosen_burst_is_not_undone_by_a_provider_that_allows_more() -> None:
    """6,000 a minute, ten at a time: that 5,990 remain does not fill the ten again."""
    limits = LimitSet(Limits(requests_per_min=6000), 0.0, Style(request_burst=1 / 600))
    limits.reserve(Cost(10), 0.0)

    limit_table.learn(limits, Learned(requests=Reading(6000, 5990)), 0.0)

    assert free(limits, 0.0)["requests_per_min"] == 0.0


def test_a_limit_told_per_second_lets_one_large_call_through() -> None:
    """Ten requests a second at once, but ten seconds of tokens."""
    limits = LimitSet(Limits(), 0.0)

    limit_table.learn(
        limits, Learned(requests=Reading(10, 3, period_s=1.0), tokens=Reading(2000, 100, period_s=1.0)), 0.0
    )

    assert [row.capacity for row in limits.table.rows(0.0)] == [10.0, 20_000.0]
    assert limits.reserve(Cost(1, 15_000, 0), 0.0) == 0.0
    assert limits.wait_s(Cost(1, 7000, 0), 0.0) == pytest.approx(1.0)


def test_azures_windows_move_to_where_the_provider_has_them() -> None:
    """From the reset, in whole seconds."""
    limits = LimitSet(Limits(requests_per_min=60), 0.0, AZURE)
    for _ in range(10):
        limits.reserve(Cost(), 1.0)

    limit_table.learn(limits, Learned(requests=Reading(60, 0, reset_s=5.0)), 1.1, 1.0, limits.mark())

    assert limits.wait_s(Cost(), 1.1) == pytest.approx(5.0)


def test_after_a_pause_a_fifth_of_a_second_goes_at_once() -> None:
    """So that the first second sees at most 1.2 times the rate; tokens go by what is there."""
    limits = LimitSet(Limits(requests_per_min=6000, tokens_per_min=1e6), 0.0)

    limit_table.hold_back(limits, 100.0)
    limit_table.hold_back(limits, 100.0)

    now, granted = 100.0, 0
    while now < 101.0:
        wait_s = limits.reserve(Cost(1, 10, 0), now)
        assert wait_s is not None
        granted += wait_s == 0.0
        now += wait_s
    assert granted <= 120


@rows("counts_when", ["at its arrival", "with its answer"])
@rows("left", [10.0, 60.0, 100.0])
def test_headers_keep_us_in_step_with_a_provider_whose_level_we_did_not_know(counts_when: str, left: float) -> None:
    """Only what was sent before the first answer may be refused; afterwards nothing is, and no capacity is lost.

    The provider counts calls as they come, answers half a second later, and had `left` of its burst of 100.
    """
    limits = LimitSet(Limits(requests_per_min=6000), 0.0, Style(request_burst=1 / 60))
    provider = Bucket(100.0, 100.0, 0.0, left)
    answers: deque[tuple[float, float, float, tuple[float, ...]]] = deque()
    now, served, refused_late = 0.0, 0, 0

    while now < 20.0:
        while answers and answers[0][0] <= now:
            at, sent_at, remaining, mark = answers.popleft()
            told = remaining if counts_when == "at its arrival" else max(0.0, provider.level_at(at) // 1)
            limit_table.learn(limits, Learned(requests=Reading(6000, told)), now, sent_at, mark)
        wait_s = limits.reserve(Cost(), now)
        assert wait_s is not None
        if wait_s == 0.0:
            mark = limits.mark()
            if provider.wait_s(1.0, now) == 0.0:
                provider.take(1.0, now)
                served += 1
            elif now > 1.0:
                refused_late += 1
            answers.append((now + 0.5, now, max(0.0, provider.level_at(now) // 1), mark))
        now = min(now + max(wait_s, 1e-6), answers[0][0] if answers else inf)

    assert served + refused_late >= 0.97 * (left + 100.0 * 20.0)
    assert refused_late <= 0.01 * served
