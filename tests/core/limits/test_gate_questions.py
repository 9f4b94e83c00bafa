"""Questions are questions: whoever asks a gate when a call may go changes nothing about what goes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.error_tables import Diagnosis
from gateway.core.limits import reservation
from gateway.core.limits.bucket import Cost
from gateway.core.limits.limit_table import Limits, LimitShape
from gateway.core.limits.reservation import Reservation, refused
from gateway.core.limits.target_limits import Gate
from gateway.core.snapshot import Counting
from gateway.core.types import ErrorClass, Usage
from gateway.fleet.leased_part import Share

WALL = 1_800_000_000.0
TIMES = 100
TOLD = [(b"x-ratelimit-limit-requests", b"50"), (b"x-ratelimit-remaining-requests", b"20")]
LIMITS = st.builds(
    Limits,
    requests_per_min=st.sampled_from([None, 6.0, 60.0, 3000.0]),
    tokens_per_min=st.sampled_from([None, 1000.0, 60_000.0]),
    max_concurrency=st.sampled_from([None, None, 2]),
    unstated_burst_s=st.sampled_from([None, 10.0]),
)
COUNTINGS = st.builds(Counting, learns=st.booleans(), adaptive=st.booleans(), arrival_lag_s=st.sampled_from([0.0, 0.2]))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter"] * 5 + ["answer", "answer", "pause", "pause", "refuse", "fail", "cancel", "spend"]),
        st.sampled_from([0.0, 0.0, 0.25, 1.0, 1.0, 1.5, 64.0]),
        st.integers(1, 900),
        st.booleans(),
    ),
    min_size=10,
    max_size=40,
)


def ask(gate: Gate, now: float, tokens: int) -> None:
    """Everything that can be asked, again and again, of calls small and large."""
    for number in range(TIMES):
        cost = Cost(1, tokens * (number % 3), number)
        reservation.wait_for(gate, cost, now, 10.0 * (number % 2), rank=number % 4)
        reservation.ready_at(gate, cost, now, Cost(number, number, 0))
    gate.rows(now)
    gate.blocking(Cost(), now)
    gate.is_shut("interactive", now)
    gate.capacity, gate.health.latency, gate.pauses.ends_at  # noqa: B018  # properties are questions, too
    gate.kept(now)
    gate.health.wait_s(now, 1)
    gate.health.probe_at(now)


def act(gate: Gate, grants: list[Reservation], what: str, now: float, number: int, is_told: bool) -> object:
    """One step of a gate's life; returns what it decides."""
    if what == "enter":
        grant = reservation.enter(gate, number, None, now, rank=number % 4)
        if grant is not None:
            grants.append(grant)
        return None if grant is None else grant.cost
    if what == "spend" and number < 100:
        gate.exhaust(1.0, now)
    elif grants:
        return end(gate, grants.pop(number % len(grants)), what, now, number, is_told=is_told)
    return None


def end(gate: Gate, grant: Reservation, what: str, now: float, number: int, *, is_told: bool) -> object:
    headers = TOLD if is_told else []
    if what == "answer":
        grant.finish(headers, Usage(number, number // 2), now, lambda: WALL)
    elif what == "cancel":
        grant.cancel(now)
    elif what == "fail":
        grant.judge(ErrorClass.SERVER_ERROR, now, 0.5)
        grant.failed(now, is_overload=is_told)
    else:
        diagnosis = Diagnosis(ErrorClass.RATE_LIMIT_REQUESTS, delay_s=1.0 if what == "pause" else None)
        return refused(grant, diagnosis, headers, now, WALL)
    return None


@settings(max_examples=20, deadline=None)
@given(LIMITS, COUNTINGS, STEPS)
def test_asking_changes_nothing(limits: Limits, counting: Counting, steps: list[tuple[str, float, int, bool]]) -> None:
    """Twin gates live the same life, and one of them is asked a hundred questions before each step: they never differ."""
    asked, alone = Gate("a", limits, counting, 0.0), Gate("a", limits, counting, 0.0)
    asked_grants: list[Reservation] = []
    grants: list[Reservation] = []
    now = 0.0
    for what, wait_s, number, is_told in steps:
        ask(asked, now + wait_s / 2, number)  # when nobody else looks
        now += wait_s
        ask(asked, now, number)

        decided = act(asked, asked_grants, what, now, number, is_told)
        assert decided == pytest.approx(act(alone, grants, what, now, number, is_told))
        assert asked.pauses.ends_at == alone.pauses.ends_at
        cost = Cost(1, number, 0)
        assert reservation.wait_for(asked, cost, now) == pytest.approx(reservation.wait_for(alone, cost, now))


def test_a_pause_ends_when_a_call_comes_not_when_somebody_looks() -> None:
    """What follows a pause begins with the first call behind it; a search grows only where calls wait."""
    gates = [Gate("a", Limits(requests_per_min=60.0), Counting(), 0.0) for _ in range(2)]
    for gate in gates:
        grant = reservation.enter(gate, 1, None, 0.0)
        assert grant is not None
        refused(grant, Diagnosis(ErrorClass.RATE_LIMIT_REQUESTS, delay_s=1.0), [], 0.0, WALL)
    ask(gates[0], 1.25, 1)

    went = [[reservation.enter(gate, 1, None, 1.75 + step / 4) is not None for step in range(12)] for gate in gates]
    assert went[0] == went[1]
    assert True in went[0]
    assert False in went[0]


def test_a_rate_that_is_searched_for_grows_where_calls_wait_not_where_somebody_looks() -> None:
    """One call at a time, which never waits, asked about or not: the found rate is the same."""
    gates = [Gate("a", Limits(), Counting(), 0.0) for _ in range(2)]
    for gate in gates:
        for step in range(200):
            now = step * 0.25
            grant = reservation.enter(gate, 1, None, now)
            if grant is None:
                continue
            if gate is gates[0]:
                ask(gate, now, 1)
            if step == 20:
                refused(grant, Diagnosis(ErrorClass.RATE_LIMIT_REQUESTS), [], now + 0.125, WALL)
            else:
                grant.finish([], None, now + 0.125, lambda: WALL)

    assert gates[0].rows(50.0) == gates[1].rows(50.0)


def test_asking_leases_nothing() -> None:
    """Limits that replicas share: only a call that wants to go asks the store for what is lacking."""
    wakes: list[str] = []

    def share_out(shared: LimitShape, now: float) -> Share:
        return Share(
            "replica",
            shared.name,
            shared.part,
            "bucket",
            shared.rate_per_s,
            shared.capacity,
            now,
            is_whole=True,
            wake=lambda share, *_: wakes.append(share.name),
        )

    gate = Gate(
        "a", Limits(requests_per_min=60.0, tokens_per_min=1000.0), Counting(learns=False), 0.0, share_out=share_out
    )
    ask(gate, 0.0, 10)
    assert wakes == []

    assert reservation.enter(gate, 10, None, 0.0) is None
    assert sorted(set(wakes)) == ["requests_per_min", "tokens_per_min"]
