"""Which workers are taken to hang: those that stay silent while the supervisor is awake, and nobody else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.supervisor import (
    ASK_S,
    LAST_SILENT_S,
    LATE_S,
    SILENT_S,
    STACKS_S,
    START_S,
    Heartbeat,
    Order,
)


def beats(
    heartbeat: Heartbeat, since: float, until: float, ready: list[int], answering: set[int]
) -> dict[int, list[Order]]:
    """Every order of all beats in this time, by worker; those that answer do so at once."""
    orders: dict[int, list[Order]] = {}
    now = since
    while now <= until:
        for number, order in heartbeat.beat(now, ready, []):
            orders.setdefault(number, []).append(order)
            if number in answering:
                heartbeat.note_answer(number)
        now += ASK_S
    return orders


def test_a_silent_worker_is_given_up_then_killed() -> None:
    """Asked once, and not before so many seconds have passed; the others are asked every second."""
    heartbeat = Heartbeat()

    orders = beats(heartbeat, 100.0, 100.0 + SILENT_S - ASK_S, [1, 2], {2})
    last = heartbeat.beat(100.0 + SILENT_S, [1, 2], [])
    after = heartbeat.beat(100.0 + SILENT_S + ASK_S, [2], [])

    assert orders == {1: ["ask"], 2: ["ask"] * int(SILENT_S)}
    assert (1, "give_up") in last
    assert (1, "kill") in after


def test_an_answer_at_the_last_moment_counts() -> None:
    """Any word does."""
    heartbeat = Heartbeat()
    beats(heartbeat, 0.0, SILENT_S - ASK_S, [1], set())
    heartbeat.note_answer(1)

    assert heartbeat.beat(SILENT_S, [1], []) == [(1, "ask")]


def test_the_next_worker_of_a_number_is_not_blamed_for_the_last() -> None:
    """It is asked like any other."""
    heartbeat = Heartbeat()
    beats(heartbeat, 0.0, SILENT_S, [1], set())
    heartbeat.ended(1)

    assert heartbeat.beat(SILENT_S + ASK_S, [1], []) == [(1, "ask")]


def test_after_a_suspended_machine_nobody_is_given_up() -> None:
    """Who was asked before is asked again."""
    heartbeat = Heartbeat()
    heartbeat.beat(10.0, [1, 2], [])
    awake = heartbeat.due_at + LATE_S + 3600.0

    assert heartbeat.beat(awake, [1, 2], []) == [(1, "ask"), (2, "ask")]


def test_a_worker_that_never_becomes_ready_is_given_up_once() -> None:
    """It may take long to start, but not for ever."""
    heartbeat = Heartbeat()
    heartbeat.beat(0.0, [], [(1, 0.0)])
    heartbeat.due_at = START_S

    assert heartbeat.beat(START_S, [], [(1, 0.0)]) == [(1, "give_up")]
    assert heartbeat.beat(START_S + ASK_S, [], [(1, 0.0)]) == [(1, "kill")]


def test_a_silent_worker_is_not_waited_for_beyond_the_grace() -> None:
    """It is given up at the end of the grace, and gone a moment later; the one that answers may go on closing."""
    heartbeat, grace_s = Heartbeat(), 3.3
    now, orders = 0.0, []
    while now < grace_s + 2.0:
        orders += [(now, number, order) for number, order in heartbeat.beat(now, [1, 2], [], grace_s) if order != "ask"]
        heartbeat.note_answer(2)
        now = heartbeat.due_at

    assert orders[:2] == [(grace_s, 1, "give_up"), (grace_s + STACKS_S, 1, "kill")]
    assert {number for _, number, _ in orders} == {1}


def test_a_worker_that_stops_answering_while_it_closes_has_a_moment() -> None:
    """Closing may take the loop's time."""
    heartbeat = Heartbeat()
    heartbeat.beat(10.0, [1], [], 10.0)

    assert heartbeat.beat(11.0, [1], [], 10.0) == []
    assert heartbeat.beat(10.0 + LAST_SILENT_S, [1], [], 10.0) == [(1, "give_up")]


def test_a_worker_that_is_not_ready_is_not_waited_for_beyond_the_grace() -> None:
    """It has no calls."""
    heartbeat = Heartbeat()

    assert heartbeat.beat(10.0, [], [(1, 9.0)], 10.5) == []
    assert heartbeat.due_at == 10.5
    assert heartbeat.beat(10.5, [], [(1, 9.0)], 10.5) == [(1, "give_up")]


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans()), max_size=60))
def test_nobody_is_given_up_who_answers_within_the_time(steps: list[tuple[float, bool]]) -> None:
    """However unevenly the supervisor comes to ask."""
    heartbeat, now, heard_at = Heartbeat(), 0.0, 0.0
    for passed, answers in steps:
        now += passed
        if answers or now - heard_at >= SILENT_S - ASK_S:
            heartbeat.note_answer(1)
            heard_at = now
        if now >= heartbeat.due_at:
            assert (1, "give_up") not in heartbeat.beat(now, [1], [])
