"""How long an attempt is waited for: room for another, first events, silence, and what a missed deadline tells."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.health.times import (
    LEAST_ROOM_S,
    UNKNOWN,
    UNKNOWN_MEDIAN_S,
    USUAL_TIMES_MIN_SAMPLES,
    Latency,
    UsualTimes,
    first_event_s,
    is_deserted,
    is_evidence,
    probe_s,
    room_s,
    silence_s,
    stall_s,
    trial_s,
    usual_of,
)
from tests.rows import rows

seconds = st.floats(0.01, 1000.0)
usuals = st.one_of(
    st.just(UNKNOWN), st.builds(lambda median, more: UsualTimes(median, median * (1 + more)), seconds, seconds)
)


@given(left_s=seconds, own=usuals, following=usuals, thinks=st.booleans())
def test_there_is_room_for_another_or_none_is_made(
    left_s: float, own: UsualTimes, following: UsualTimes, thinks: bool
) -> None:
    """Never more than what is left less the next one's median, never less than this one usually takes."""
    room = room_s(left_s, own, following, thinks=thinks)
    next_s = UNKNOWN_MEDIAN_S if following.median_s is None else following.median_s

    if room == inf:
        assert left_s - next_s < (LEAST_ROOM_S if own.late_s is None else own.late_s)
        return
    assert room <= left_s - next_s
    patience_s = min(left_s, 600.0)
    assert room >= (min(patience_s / 2, left_s - next_s) if own.late_s is None else own.late_s)
    share = 0.75 if thinks and own.late_s is None else 0.5
    assert room <= max(share * patience_s, 1.5 * (own.late_s or 0.0))


@given(left_s=seconds, own=usuals, following=usuals, thinks=st.booleans(), more_s=seconds)
def test_who_has_more_time_waits_no_less(
    left_s: float, own: UsualTimes, following: UsualTimes, thinks: bool, more_s: float
) -> None:
    """Where there is room at all."""
    less = room_s(left_s, own, following, thinks=thinks)

    assert less == inf or room_s(left_s + more_s, own, following, thinks=thinks) >= less


@rows(
    ("left_s", "own", "following", "thinks", "expected"),
    [
        (30.0, UNKNOWN, UNKNOWN, False, 15.0),
        (30.0, UNKNOWN, UNKNOWN, True, 22.5),
        (600.0, UNKNOWN, UNKNOWN, True, 450.0),
        (21600.0, UNKNOWN, UNKNOWN, False, 300.0),
        (21600.0, UNKNOWN, UNKNOWN, True, 450.0),
        (30.0, UsualTimes(15.0, 18.0), UNKNOWN, False, 27.0),
        (30.0, UsualTimes(0.5, 1.0), UsualTimes(0.5, 1.0), True, 15.0),
        (30.0, UsualTimes(0.5, 1.0), UsualTimes(20.0, 25.0), False, 10.0),
        (30.0, UsualTimes(15.0, 18.0), UsualTimes(18.0, 20.0), False, inf),
        (3.0, UNKNOWN, UNKNOWN, False, 1.0),
        (2.0, UNKNOWN, UNKNOWN, False, inf),
    ],
)
def test_room_in_figures(left_s: float, own: UsualTimes, following: UsualTimes, thinks: bool, expected: float) -> None:
    """A 30 s call that usually takes 18 is not cut."""
    assert room_s(left_s, own, following, thinks=thinks) == pytest.approx(expected)


@given(own=usuals, thinks=st.booleans())
def test_a_first_event_has_its_bounds(own: UsualTimes, thinks: bool) -> None:
    """Four times what is usual, within them; a minute, or five, where nothing is known."""
    limit = first_event_s(own, thinks=thinks)

    if own.late_s is None:
        assert limit == (300.0 if thinks else 60.0)
    else:
        least, most = (30.0, 300.0) if thinks else (10.0, 120.0)
        assert limit == min(max(4 * own.late_s, least), most)


@rows(
    ("own", "stream", "thinks", "shortest_s", "expected"),
    [
        (UsualTimes(0.5, 1.5), True, False, inf, 6.0),
        (UsualTimes(0.05, 0.1), True, False, inf, 2.0),
        (UsualTimes(60.0, 90.0), False, True, 30.0, 360.0),
        (UNKNOWN, True, False, 30.0, 10.0),
        (UNKNOWN, False, False, 30.0, 10.0),
        (UNKNOWN, False, False, 5.0, 10.0),
        (UNKNOWN, False, False, 90.0, 30.0),
        (UNKNOWN, False, False, 600.0, 120.0),
        (UNKNOWN, False, False, inf, 120.0),
        (UNKNOWN, False, True, 30.0, 120.0),
        (UNKNOWN, True, True, 30.0, 120.0),
    ],
)
def test_silence_in_figures(own: UsualTimes, stream: bool, thinks: bool, shortest_s: float, expected: float) -> None:
    """Four times what is usual, or by the kind of call and the deadlines of those in flight."""
    assert silence_s(own, 4.0, stream=stream, thinks=thinks, shortest_deadline_s=shortest_s) == expected


@rows(
    ("own", "silence", "stream", "thinks", "trial", "stall"),
    [
        (UNKNOWN, 120.0, False, False, 20.0, inf),
        (UNKNOWN, 10.0, False, False, 10.0, inf),
        (UNKNOWN, 120.0, False, True, inf, inf),
        (UNKNOWN, 10.0, True, False, inf, inf),
        (UsualTimes(0.5, 1.0), 4.0, False, False, inf, 10.0),
        (UsualTimes(10.0, 20.0), 80.0, False, False, inf, 80.0),
    ],
)
def test_a_call_that_tries_elsewhere_waits_long_before(
    own: UsualTimes, silence: float, stream: bool, thinks: bool, trial: float, stall: float
) -> None:
    """Four times what is usual, at least 10 s; where nothing is known, 20 s for several calls, and none moves alone."""
    assert trial_s(own, silence, stream=stream, thinks=thinks) == trial
    assert stall_s(own, 4.0) == stall


def test_those_that_try_a_silent_target_wait_longer_each_time() -> None:
    """But never for long; where it is known, as long as it needs."""
    assert [probe_s(UNKNOWN, times, thinks=False) for times in (0, 1, 2, 3, 9, 10**9)] == [2, 2, 3, 4.5, 10, 10]
    assert probe_s(UNKNOWN, 10**9, thinks=True) == 30
    assert probe_s(UsualTimes(0.1, 0.2), 5, thinks=False) == 2
    assert probe_s(UsualTimes(5.0, 8.0), 1, thinks=False) == 12


def test_what_a_missed_deadline_tells() -> None:
    """Beyond what is usual, or long, or short at a target that has served nobody for long."""
    known = UsualTimes(0.5, 1.0)

    assert [is_evidence(wait, known, thinks=False) for wait in (1.4, 1.5)] == [False, True]
    assert [is_evidence(wait, UNKNOWN, thinks=False) for wait in (9.9, 10.0)] == [False, True]
    assert [is_evidence(wait, UNKNOWN, thinks=True) for wait in (119.0, 120.0)] == [False, True]
    assert [is_evidence(1.0, UNKNOWN, thinks=False, unserved_s=gone) for gone in (9.0, 10.0, inf)] == [
        False,
        True,
        True,
    ]
    assert not is_evidence(0.9, UNKNOWN, thinks=False, unserved_s=inf)


def test_clients_who_leave_mostly_have_reasons_of_their_own() -> None:
    """Three times what is usual, and two seconds at least; where nothing is known, as with a deadline."""
    assert [is_deserted(wait, UsualTimes(0.5, 1.0), thinks=False) for wait in (2.9, 3.0)] == [False, True]
    assert [is_deserted(wait, UsualTimes(0.01, 0.02), thinks=False) for wait in (1.9, 2.0)] == [False, True]
    assert [is_deserted(wait, UNKNOWN, thinks=False) for wait in (9.9, 10.0)] == [False, True]


def test_what_is_usual_is_not_known_from_a_few() -> None:
    """Then half of the answers, and all but one in twenty."""
    times = Latency()
    for number in range(USUAL_TIMES_MIN_SAMPLES):
        assert usual_of(times) is UNKNOWN
        times.observe(1.0 + number / 10, 1000.0 + number)

    usual = usual_of(times)

    assert usual_of(None) is UNKNOWN
    assert usual.median_s == pytest.approx(1.5, rel=0.15)
    assert usual.late_s == pytest.approx(1.9, rel=0.15)
