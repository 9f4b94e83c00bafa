"""One visit each way decides as the long way does: `enter` as `cost_of` and `reserve`, `finish` as `answered` and `settle`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.error_tables import Diagnosis
from gateway.core.limits import reservation
from gateway.core.limits.limit_table import Limits, Style
from gateway.core.limits.reservation import Reservation, refused
from gateway.core.limits.target_limits import Gate, GateState
from gateway.core.snapshot import Counting
from gateway.core.types import ErrorClass, Usage

WALL = 1_700_000_000.0
LIMITS = st.builds(
    Limits,
    requests_per_min=st.sampled_from([None, 6.0, 60.0, 3000.0]),
    tokens_per_min=st.sampled_from([None, 1000.0, 60_000.0]),
    input_tokens_per_min=st.sampled_from([None, None, 2000.0]),
    max_concurrency=st.sampled_from([None, None, None, 3]),
    request_burst=st.sampled_from([None, 5.0]),
)
COUNTINGS = st.builds(
    Counting,
    charge=st.sampled_from(["sum", "max", "input", "real"]),
    excludes_cached=st.booleans(),
    learns=st.booleans(),
    adaptive=st.sampled_from([False, False, False, True]),
    arrival_lag_s=st.sampled_from([0.0, 0.2]),
    style=st.sampled_from([Style(), Style(), Style(10.0, 60.0)]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "enter", "finish", "finish", "cancel", "refuse", "fail", "resume", "spend"]),
        st.sampled_from([0.0, 0.0, 0.001, 0.05, 1.0, 30.0]),
        st.integers(-1, 900),
        st.sampled_from([None, 10, 500]),
        st.sampled_from([0.0, 0.0, 10.0]),
        st.integers(0, 400),
        st.booleans(),
    ),
    max_size=60,
)
TOLD = [
    (b"x-ratelimit-limit-requests", b"50"),
    (b"x-ratelimit-remaining-requests", b"20"),
    (b"x-ratelimit-limit-tokens", b"900"),
    (b"x-ratelimit-remaining-tokens", b"400"),
]


def long_enter(
    gate: Gate, estimate: int, most: int | None, now: float, keep: float, *, answers: bool
) -> Reservation | None:
    cost = gate.cost_of(estimate if gate.has_token_limit and estimate > 0 else 0, most, answers=answers)
    return reservation.reserve(gate, cost, now, keep, estimate=estimate, max_tokens=most)


def seen(gate: Gate, now: float) -> object:
    """All that decides what comes next, as far as it can be asked for."""
    return (
        [(row.name, round(row.level, 6), round(row.capacity, 6)) for row in gate.rows(now)],
        gate.in_flight,
        round(gate.answer_s, 9),
        gate.pauses.ends_at,
        (gate.calibration.count, gate.calibration.ratio, gate.calibration.error),
        gate.calibration.expected_output,
        gate.health.breaker.outcomes_in_window(now),
        gate.health.breaker.state,
        gate.health.whole_answer.count,
    )


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(LIMITS, COUNTINGS, STEPS)
def test_one_visit_each_way_decides_as_the_long_way(limits: Limits, counting: Counting, steps: list[tuple]) -> None:  # type: ignore[type-arg]  # of several kinds
    """Twin gates are led through the same life, one by the short way where that is open: they never differ."""
    short, long = Gate("a", limits, counting, 0.0), Gate("a", limits, counting, 0.0)
    grants: list[tuple[Reservation, Reservation]] = []
    now = 0.0
    for what, wait_s, number, most, keep, used, is_told in steps:
        now += wait_s
        if what == "enter":
            one = reservation.enter(short, number, most, now, keep, answers=is_told)
            other = long_enter(long, number, most, now, keep, answers=is_told)
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.cost == other.cost
                grants.append((one, other))
        elif what == "resume":
            short.pauses.end()
            long.pauses.end()
        elif what == "spend":
            short.exhaust(1.0, now)
            long.exhaust(1.0, now)
        elif grants:
            one, other = grants.pop(number % len(grants))
            usage = Usage(used, used // 2, used // 4) if number % 3 else None
            headers = TOLD if is_told else []
            if what == "finish":
                one.finish(headers, usage, now, lambda: WALL)
                other.answered(headers, now, WALL)
                other.settle(usage, now)
            elif what == "cancel":
                one.cancel(now)
                other.cancel(now)
            elif what == "refuse":
                diagnosis = Diagnosis(ErrorClass.RATE_LIMIT_REQUESTS, delay_s=1.0 if is_told else None)
                means = [refused(grant, diagnosis, headers, now, WALL) for grant in (one, other)]
                assert means[0] is means[1]
            else:
                for grant in (one, other):
                    grant.judge(ErrorClass.SERVER_ERROR, now, 0.5)
                    grant.failed(now, is_overload=False)
        assert seen(short, now) == seen(long, now)
    for one, _ in grants:
        one.finish([], None, now, lambda: WALL)
        one.settle(Usage(1, 1), now)  # a grant ends exactly once
    assert short.in_flight == 0


def is_short(gate: Gate) -> bool:
    return gate.fast_path_open


def test_the_short_way_is_taken_and_left() -> None:
    """It is open where only buckets decide, shut by whatever else does, and opens again once that is over."""
    gate = Gate("a", Limits(requests_per_min=6000.0, tokens_per_min=1e6), Counting(), 0.0)
    first = reservation.enter(gate, 10, None, 0.0)
    assert first is not None
    assert is_short(gate)

    refused(first, Diagnosis(ErrorClass.RATE_LIMIT_REQUESTS, delay_s=1.0), [], 0.1, WALL)
    assert not is_short(gate)
    assert reservation.enter(gate, 10, None, 0.2) is None

    second = reservation.enter(gate, 10, None, 60.0)
    assert second is not None
    second.finish([], Usage(10, 5), 60.5, lambda: WALL)
    assert reservation.enter(gate, 10, None, 61.0) is not None
    assert is_short(gate)


def test_calls_that_leave_a_reserve_go_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of a batch do, each of them: the long way costs three times as much. It decides who has no room."""
    gate = Gate("a", Limits(requests_per_min=600.0), Counting(), 0.0)
    assert reservation.enter(gate, 10, None, 0.0) is not None
    assert is_short(gate)
    by_length, long_way = list[float](), reservation._enter_slowly

    def seen_slowly(*given: Any, **named: Any) -> Reservation | None:
        by_length.append(given[3])
        return long_way(*given, **named)

    monkeypatch.setattr(reservation, "_enter_slowly", seen_slowly)
    granted = [reservation.enter(gate, 10, None, 1.0, 10.0, 3) for _ in range(600)]

    assert len([one for one in granted if one is not None]) == 540
    assert len(by_length) == 60
    assert reservation.enter(gate, 10, None, 1.0) is not None


def test_the_short_way_is_never_open_where_a_rate_is_searched_for() -> None:
    """Nobody tells a limit: each call has to ask the search."""
    gate = Gate("a", Limits(), Counting(), 0.0)

    assert reservation.enter(gate, 10, None, 0.0) is not None
    assert not is_short(gate)


def test_each_row_of_the_table_of_states_is_met() -> None:
    """Refusals pause, pauses end behind a ramp, several refusals make one call go first, and success makes all well."""
    gate = Gate("a", Limits(requests_per_min=6000.0), Counting(), 0.0)
    assert gate.state(0.0) is GateState.NORMAL
    now, states = 0.0, []
    for _ in range(2):
        grant = reservation.enter(gate, 1, None, now)
        assert grant is not None
        refused(grant, Diagnosis(ErrorClass.RATE_LIMIT_REQUESTS, delay_s=1.0), [], now, WALL)
        states += [gate.state(now), gate.state(now + 1.25)]
        now += 100.0
    assert states == [GateState.PAUSED, GateState.RESUMING] * 2

    probe = reservation.enter(gate, 1, None, now)
    assert probe is not None
    assert gate.state(now) is GateState.PROBING
    probe.finish([], None, now + 0.5, lambda: WALL)
    assert gate.state(now + 0.5) is GateState.NORMAL

    gate.exhaust(60.0, now + 1.0)
    assert gate.state(now + 1.0) is GateState.SPENT
    assert Gate("b", Limits(), Counting(), 0.0).state(0.0) is GateState.SEARCHING
