"""Who is suspect, and how many move at once."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.health.detector import (
    ANSWERS_PER_MOVE,
    FIRST_WINDOW,
    SPAN_S,
    SilentAttempt,
    StallMoves,
    Suspicion,
    is_suspect,
)


def queue(count: int, every_s: float, oldest_s: float, usual_s: float = 4.0) -> list[SilentAttempt]:
    """Calls that came one after the other, the first of them so long ago; none has heard anything."""
    return [SilentAttempt(1000.0 + n * every_s, oldest_s - n * every_s, usual_s) for n in range(count)]


def test_several_calls_one_after_the_other_that_hear_nothing() -> None:
    """The first of them for as long as it takes, the others almost."""
    assert is_suspect(queue(11, 0.2, 10.0, 10.0), 5, inf) == (
        "11 calls, begun over 2 s, have shown no sign of life for up to 10 s"
    )
    assert is_suspect(queue(11, 0.2, 9.9, 10.0), 5, inf) is None


def test_few_calls_suspect_nobody() -> None:
    """However long they hear nothing."""
    assert is_suspect(queue(4, 5.0, 1000.0), 5, inf) is None
    assert is_suspect(queue(5, 5.0, 1000.0), 5, inf) is not None
    assert is_suspect([], 5, inf) is None


def test_calls_that_came_together_suspect_nobody() -> None:
    """However many they are."""
    assert is_suspect(queue(500, SPAN_S / 501, 1000.0), 5, inf) is None


def test_who_serves_is_not_suspect() -> None:
    """Long calls beside short ones that are answered."""
    assert is_suspect(queue(20, 1.0, 60.0), 5, unserved_s=3.9) is None
    assert is_suspect(queue(20, 1.0, 60.0), 5, unserved_s=4.0) is not None


def test_each_call_has_its_own_time() -> None:
    """One that thinks is not overdue yet; it neither accuses nor excuses."""
    patient = [SilentAttempt(1000.0 + n, 60.0 - n, 120.0) for n in range(20)]

    assert is_suspect(patient, 5, inf) is None
    assert is_suspect([*patient, *queue(11, 0.2, 60.0)], 5, inf) is not None


@given(
    waiting=st.lists(
        st.builds(SilentAttempt, st.floats(0, 1e4), st.floats(0, 1e4), st.floats(2.0, 500.0)), max_size=30
    ),
    at_least=st.integers(2, 10),
    unserved_s=st.floats(0, 1e4),
)
def test_nobody_is_suspect_for_little(waiting: list[SilentAttempt], at_least: int, unserved_s: float) -> None:
    """As many as it takes are without a sign of life for half of their time at least, one for all of it."""
    if is_suspect(waiting, at_least, unserved_s) is not None:
        half = [one for one in waiting if one.silent_s >= one.usual_s / 2]
        assert len(half) >= at_least
        assert max(one.begun_at for one in half) - min(one.begun_at for one in half) >= SPAN_S
        assert any(one.usual_s <= min(one.silent_s, unserved_s) for one in waiting)


def test_three_move_at_first_and_twice_as_many_with_each_answer() -> None:
    """A failure makes no difference, but that another may go."""
    suspicion = Suspicion("why", 0.0)
    assert suspicion.free == FIRST_WINDOW == 3
    for _ in range(3):
        suspicion.moved()
    assert suspicion.free == 0
    suspicion.ended(is_answered=False)
    assert suspicion.free == 1
    suspicion.ended(is_answered=True)
    assert (suspicion.moving, suspicion.window, suspicion.free) == (1, 6, 5)
    suspicion.ended(is_answered=True)
    assert suspicion.free == 12


def test_calls_that_came_together_may_be_asked_for_without_a_span() -> None:
    """Where only a few of them are to find out."""
    assert is_suspect(queue(3, 0.0, 20.0, 20.0), 3, inf, least_span_s=0.0) is not None
    assert is_suspect(queue(2, 0.0, 20.0, 20.0), 3, inf, least_span_s=0.0) is None


@given(st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=60))
def test_few_calls_leave_a_target_in_vain(moves: list[tuple[int, bool]]) -> None:
    """Three, and one more for each thousand answers; one that was served much sooner elsewhere makes room for the next."""
    stalls, answers, in_vain = StallMoves(), 0, 0
    for more, is_proved in moves:
        answers += more
        if stalls.has_room(answers):
            stalls.moved()
            if is_proved:
                stalls.proved(float(answers))
            in_vain += not is_proved

    assert in_vain <= FIRST_WINDOW + answers / ANSWERS_PER_MOVE


def test_calls_that_were_served_much_sooner_elsewhere_make_room_for_the_next() -> None:
    """However many they are; at most three are on their way."""
    stalls = StallMoves()
    for number in range(100):
        assert stalls.has_room(0)
        stalls.moved()
        stalls.proved(float(number))
    assert stalls.proof_at == 99.0
    for _ in range(FIRST_WINDOW):
        stalls.moved()
    assert not stalls.has_room(ANSWERS_PER_MOVE - 1)
    assert stalls.has_room(ANSWERS_PER_MOVE)
