"""Limits as arithmetic: what they grant, what they predict, and what no sequence of calls can make them do."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isnan, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits.bucket import Bucket, Limit, Slots, Window
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

rates = st.floats(0.01, 1e6)
bursts = st.floats(1.0, 1e7)
starts = st.floats(0.0, 1e7)
shares = st.floats(0.0, 1.0)
steps = st.lists(st.tuples(st.floats(0.0, 100.0), shares), min_size=1, max_size=30)
costs_of_ten = st.lists(st.integers(0, 10), max_size=40)
moves = st.lists(
    st.tuples(
        st.sampled_from(["take", "force", "give_back", "correct", "reconcile", "resize"]),
        st.floats(-10.0, 100.0),
        st.floats(0.0, 1e9),
    ),
    max_size=30,
)


def limits(now: float = 0.0) -> list[Limit]:
    return [Bucket(1.0, 10.0, now), Window(10.0, 60.0, now), Slots(10.0)]


def drain(limit: Limit, costs: list[int], now: float) -> float:
    """When the last of `costs` is granted, each waiting its turn and going as soon as it fits."""
    for cost in costs:
        wait_s = limit.wait_s(cost, now)
        assert wait_s is not None
        now += wait_s
        limit.take(cost, now)
    return now


@BOUNDED
@given(rates, bursts, starts, steps)
def test_a_bucket_never_grants_more_than_its_burst_and_what_refilled(
    rate: float, burst: float, now: float, arrivals: list[tuple[float, float]]
) -> None:
    """In any span between two grants, however greedily it is asked."""
    bucket = Bucket(rate, burst, now)
    granted: list[tuple[float, float]] = []

    for gap_s, share in arrivals:
        now += gap_s
        cost = share * burst
        if bucket.wait_s(cost, now) == 0.0:
            bucket.take(cost, now)
            granted.append((now, cost))

    for first, (start, _) in enumerate(granted):
        total = 0.0
        for at, cost in granted[first:]:
            total += cost
            assert total <= burst + rate * (at - start + 2e-6) + 1e-9 * burst


@BOUNDED
@given(rates, bursts, starts, shares, shares, shares)
def test_what_waited_exactly_as_told_fits_and_not_much_earlier(
    rate: float, burst: float, now: float, level: float, share: float, kept: float
) -> None:
    """With and without a share that must be left over."""
    bucket = Bucket(rate, burst, now, level * burst)

    wait_s = bucket.wait_s(share * burst, now, kept * burst)

    assert bucket.ready_at(share * burst, now, keep=kept * burst) == pytest.approx(now + wait_s, abs=1e-6)
    if wait_s > 1e-4:
        assert bucket.wait_s(share * burst, now + 0.99 * wait_s - 1e-5, kept * burst) > 0.0
    assert bucket.wait_s(share * burst, now + wait_s, kept * burst) == 0.0


@BOUNDED
@given(st.floats(0.01, 1000.0), shares, costs_of_ten, st.integers(0, 10))
def test_a_buckets_prediction_is_what_a_step_by_step_simulation_finds(
    rate: float, level: float, ahead: list[int], cost: int
) -> None:
    """Whatever the sizes of those ahead."""
    predicted = Bucket(rate, 10.0, 5.0, 10.0 * level).ready_at(cost, 5.0, sum(ahead))
    simulated = drain(Bucket(rate, 10.0, 5.0, 10.0 * level), [*ahead, cost], 5.0)

    assert predicted == pytest.approx(simulated, rel=1e-6, abs=1e-4)


@BOUNDED
@given(st.integers(1, 20), st.integers(0, 20), st.floats(0.0, 12.0), st.integers(0, 60), st.integers(1, 20))
def test_a_windows_prediction_is_what_a_step_by_step_simulation_finds(
    capacity: int, used: int, asked_at: float, ahead: int, cost: int
) -> None:
    """With calls of one unit ahead, which fill every window to the brim."""
    predicting, simulated = Window(capacity, 10.0, 0.0), Window(capacity, 10.0, 0.0)
    for window in (predicting, simulated):
        window.take(min(used, capacity), 0.0)

    predicted = predicting.ready_at(cost, asked_at, ahead)

    if cost > capacity:
        assert predicted == inf
    else:
        assert predicted == pytest.approx(drain(simulated, [*[1] * ahead, cost], asked_at), abs=1e-4)


@BOUNDED
@given(st.floats(0.0, 1e6), st.lists(st.tuples(st.floats(0.0, 8.0), st.integers(1, 10)), max_size=40))
def test_a_window_grants_at_most_its_capacity(now: float, arrivals: list[tuple[float, int]]) -> None:
    """A window opens with its first use, ten seconds later the next one may; what waited for it fits."""
    window = Window(10.0, 10.0, now)
    opened: list[float] = []
    used = 0

    for gap_s, cost in arrivals:
        now += gap_s
        wait_s = window.wait_s(cost, now)
        now += wait_s
        assert window.wait_s(cost, now) == 0.0
        if not opened or now + 2e-6 >= opened[-1] + 10.0:
            opened.append(now)
            used = 0
        window.take(cost, now)
        used += cost
        assert used <= 10

    assert all(later - earlier >= 10.0 - 1e-5 for earlier, later in pairwise(opened))


@BOUNDED
@given(st.integers(0, 2), moves)
def test_no_sequence_of_moves_breaks_a_level(kind: int, made: list[tuple[str, float, float]]) -> None:
    """It is always a number and never above the capacity, with a clock that steps back, too."""
    limit = limits()[kind]
    now = 0.0

    for move, gap_s, amount in made:
        now += gap_s
        match move:
            case "reconcile":
                limit.reconcile(amount, now, now - abs(gap_s), 0.0, 1.0)
            case "resize":
                limit.resize(amount / 60.0, 1.0 + amount, now)
            case _:
                getattr(limit, move)(amount, now)
        level = limit.level_at(now)
        assert not isnan(level)
        assert level <= limit.capacity


@pytest.mark.parametrize("limit", limits(), ids=["bucket", "window", "slots"])
def test_what_is_larger_than_the_capacity_never_fits(limit: Limit) -> None:
    """It is told at once, whatever the level."""
    assert limit.wait_s(10.5, 0.0) == inf
    assert limit.ready_at(10.5, 0.0) == inf
    assert limit.wait_s(10.0, 0.0) == 0.0


@pytest.mark.parametrize("limit", limits(), ids=["bucket", "window", "slots"])
def test_a_cost_too_large_to_leave_the_kept_share_waits_for_all_of_it(limit: Limit) -> None:
    """Otherwise it could never go at all."""
    assert limit.wait_s(10.0, 0.0, keep=1.0) == 0.0

    limit.take(1.0, 0.0)

    assert limit.wait_s(10.0, 0.0, keep=1.0) != 0.0
    assert limit.wait_s(8.0, 0.0, keep=1.0) == 0.0
    assert limit.wait_s(8.5, 0.0, keep=1.0) != 0.0


@pytest.mark.parametrize("limit", limits(), ids=["bucket", "window", "slots"])
def test_a_refund_never_exceeds_the_capacity(limit: Limit) -> None:
    """Whatever is given back."""
    limit.take(3.0, 0.0)

    limit.give_back(50.0, 0.0)

    assert limit.level_at(0.0) == 10.0


def test_more_used_than_reserved_is_paid_off_before_the_next_call() -> None:
    """The level goes below zero, and even a call that costs nothing waits."""
    bucket = Bucket(2.0, 10.0, 0.0)

    bucket.force(14.0, 0.0)

    assert bucket.level_at(0.0) == -4.0
    assert bucket.wait_s(0.0, 0.0) == 2.0
    assert bucket.wait_s(1.0, 0.0) == 2.5


def test_a_bucket_that_does_not_refill_grants_what_it_holds() -> None:
    """And then never again."""
    bucket = Bucket(0.0, 2.0, 0.0)

    bucket.take(2.0, 0.0)

    assert bucket.wait_s(1.0, 1e9) == bucket.ready_at(1.0, 1e9) == inf


def test_a_clock_that_steps_back_refills_nothing_twice() -> None:
    """What refilled until then stays, and the next refill starts from there."""
    bucket = Bucket(1.0, 10.0, 100.0, 0.0)

    assert bucket.level_at(105.0) == 5.0
    assert bucket.level_at(50.0) == 5.0
    assert bucket.level_at(106.0) == 6.0


@pytest.mark.parametrize("limit", limits()[:2], ids=["bucket", "window"])
def test_a_level_is_corrected_up_to_the_capacity(limit: Limit) -> None:
    """Numbers that are none change nothing."""
    limit.correct(4.0, 0.0)
    assert limit.level_at(0.0) == 4.0

    limit.correct(nan, 0.0)
    limit.correct(inf, 0.0)
    assert limit.level_at(0.0) == 4.0

    limit.correct(1e9, 0.0)
    assert limit.level_at(0.0) == 10.0


@rows(
    ("remaining", "sent_at", "taken_since", "level", "expected"),
    [
        pytest.param(50.0, 100.0, 0.0, 80.0, 51.0, id="somebody else used some"),
        pytest.param(50.0, 100.0, 0.0, 20.0, 44.0, id="we thought too little"),
        pytest.param(50.0, 100.0, 0.0, 46.0, 46.0, id="a little more than we thought is not believed"),
        pytest.param(50.0, 100.0, 0.0, 50.7, 50.7, id="within rounding nothing moves"),
        pytest.param(50.0, 98.0, 30.0, 40.0, 40.0, id="between its arrival and its answer nothing moves"),
        pytest.param(50.0, 98.0, 30.0, 10.0, 14.0, id="those behind it may not have been counted yet"),
        pytest.param(50.0, 98.0, 0.0, 90.0, 71.0, id="nobody behind it: what refilled since it was sent counts"),
    ],
)
def test_a_providers_number_moves_a_level_no_further_than_it_must(
    remaining: float, sent_at: float, taken_since: float, level: float, expected: float
) -> None:
    """It may be as old as the call, and others went since."""
    bucket = Bucket(10.0, 100.0, 100.0, level)

    bucket.reconcile(remaining, 100.0, sent_at, taken_since, 1.0)

    assert bucket.level_at(100.0) == expected


def test_a_providers_number_for_an_earlier_window_changes_nothing() -> None:
    """It speaks of units that nobody has any more."""
    window = Window(10.0, 10.0, 0.0)
    window.take(1.0, 12.0)

    window.reconcile(0.0, 13.0, 11.0, 1.0, 1.0)
    assert window.level_at(13.0) == 9.0

    window.reconcile(3.0, 13.0, 12.5, 0.0, 1.0)
    assert window.level_at(13.0) == 4.0


def test_a_window_takes_nothing_back_for_an_earlier_one() -> None:
    """Its provider has long forgotten that call."""
    window = Window(10.0, 10.0, 0.0)
    window.take(5.0, 0.0)
    window.take(5.0, 11.0)

    window.give_back(4.0, 12.0, taken_at=0.0)
    assert window.level_at(12.0) == 5.0

    window.give_back(4.0, 12.0, taken_at=11.0)
    assert window.level_at(12.0) == 9.0


def test_a_window_ends_where_the_provider_says() -> None:
    """Resets are whole seconds, rounded up: the end moves into that second, and further tellings narrow it down."""
    window = Window(10.0, 10.0, 0.0)
    window.take(10.0, 4.0)

    window.align(7.0, 4.2, 4.0)
    assert window.wait_s(1.0, 4.2) == pytest.approx(7.0)

    window.align(3.0, 7.6, 7.6)
    assert window.wait_s(1.0, 7.6) == pytest.approx(3.0)

    window.align(50.0, 7.6, 7.6)
    window.align(1.0, 7.6, 0.0)
    assert window.wait_s(1.0, 7.6) == pytest.approx(3.0)


def test_a_resize_keeps_what_is_free_and_what_is_used() -> None:
    """A bucket keeps what is free, as far as it holds; a window keeps what is used."""
    bucket, window = Bucket(1.0, 10.0, 0.0, 4.0), Window(10.0, 60.0, 0.0)
    window.take(6.0, 0.0)

    for limit in (bucket, window):
        limit.resize(2.0, 20.0, 0.0)
    assert (bucket.level_at(0.0), window.level_at(0.0)) == (4.0, 14.0)
    assert bucket.level_at(1.0) == 6.0

    for limit in (bucket, window):
        limit.resize(1.0, 5.0, 1.0)
    assert (bucket.level_at(1.0), window.level_at(1.0)) == (5.0, -1.0)


def test_a_new_rate_counts_from_the_resize() -> None:
    """What flowed in until then did so at the old one."""
    bucket = Bucket(1.0, 100.0, 0.0, 0.0)

    bucket.resize(10.0, 100.0, 5.0)

    assert bucket.level_at(5.0) == 5.0
    assert bucket.level_at(6.0) == 15.0


def test_a_window_for_less_than_one_unit_lasts_as_long_as_one_takes() -> None:
    """Three a minute is one in twenty seconds, not one in ten."""
    window = Window(1.0, 10.0, 0.0)
    window.resize(3 / 60, 1.0, 0.0)

    window.take(1.0, 0.0)

    assert window.wait_s(1.0, 0.0) == pytest.approx(20.0)


def test_full_slots_tell_no_time() -> None:
    """Only a release does, so the caller waits for that."""
    slots = Slots(2)

    slots.take(1.0, 0.0)
    assert slots.wait_s(1.0, 0.0) == 0.0
    slots.take(1.0, 0.0)
    assert slots.wait_s(1.0, 1e9) is None

    slots.give_back(1.0, 1e9)
    assert slots.wait_s(1.0, 1e9) == 0.0


def test_slots_predict_from_how_long_they_are_held() -> None:
    """Two slots held for six seconds each: one comes free every three seconds."""
    slots = Slots(2)
    assert slots.ready_at(1.0, 0.0, ahead=10.0) == 0.0

    slots.take(1.0, 0.0)
    slots.take(1.0, 3.0)
    for second in range(6, 300, 3):
        slots.give_back(1.0, second)
        slots.take(1.0, second)

    assert slots.ready_at(1.0, 300.0) == pytest.approx(303.0, abs=0.2)
    assert slots.ready_at(1.0, 300.0, ahead=4.0) == pytest.approx(315.0, abs=1.0)


def test_what_was_learned_elsewhere_does_not_change_slots() -> None:
    """What is held is counted here; fewer slots than are held just give none."""
    slots = Slots(3)
    slots.take(2.0, 0.0)

    slots.correct(3.0, 0.0)
    slots.reconcile(3.0, 0.0, 0.0, 0.0, 1.0)
    slots.resize(0.0, 1.0, 0.0)

    assert slots.level_at(0.0) == -1.0
    assert slots.wait_s(1.0, 0.0) is None


@rows(("rate", "burst"), [(-1.0, 1.0), (nan, 1.0), (inf, 1.0), (1.0, 0.0), (1.0, nan), (1.0, inf)])
def test_a_bucket_without_sense_is_refused(rate: float, burst: float) -> None:
    """When it is made and when it is resized."""
    with pytest.raises(ValueError, match="no bucket"):
        Bucket(rate, burst, 0.0)
    with pytest.raises(ValueError, match="no bucket"):
        Bucket(1.0, 1.0, 0.0).resize(rate, burst, 0.0)


def test_windows_and_slots_without_sense_are_refused() -> None:
    """Neither empty nor endless."""
    with pytest.raises(ValueError, match="capacity"):
        Slots(0)
    with pytest.raises(ValueError, match="capacity"):
        Window(inf, 10.0, 0.0)
    with pytest.raises(ValueError, match="seconds long"):
        Window(1.0, 0.0, 0.0)
