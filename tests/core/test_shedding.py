"""Whom the gateway sends away when it has too much to do, and when it lets them in again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import LANES, QueueBounds
from gateway.core.waiting import CALM_S, MAX_LEVEL, LoopLag, Shedding
from gateway.process import container_bytes, resident_bytes
from tests.rows import rows

GIB = 1024**3
BOUNDS = QueueBounds(max_bytes=1000, shed_memory_bytes=GIB, shed_loop_lag_s=0.5)


def levels(lags_s: list[float], overload: Shedding | None = None) -> list[int]:
    """The level after each of these lags of the loop, one a second."""
    overload = overload or Shedding()
    found = []
    for second, lag_s in enumerate(lags_s):
        overload.observe(1000.0 + second, None, 0, lag_s, BOUNDS)
        found.append(overload.level)
    return found


def shed(overload: Shedding) -> list[str]:
    """The lanes that are shed."""
    return [lane for lane in LANES if overload.sheds(lane)]


def test_at_first_nothing_is_shed() -> None:
    """Neither before the first look nor when there is nothing to see."""
    overload = Shedding()

    assert (overload.level, shed(overload)) == (0, [])
    assert levels([0.0] * 5, overload) == [0] * 5


def test_the_lowest_lane_is_shed_first_and_critical_never() -> None:
    """One lane more with each look at a loop that is late."""
    overload = Shedding()
    found = []

    for second in range(5):
        overload.observe(second, None, 0, 0.6, BOUNDS)
        found.append(shed(overload))

    three = ["interactive", "batch", "background"]
    assert found == [["background"], ["batch", "background"], three, three, three]


def test_a_lane_is_let_in_again_when_it_has_been_easy_for_a_while() -> None:
    """Three quiet seconds for each, the highest first; one bad moment starts the count anew."""
    assert CALM_S == 3.0
    assert levels([0.6, 0.6, 0.6] + [0.1] * 9) == [1, 2, 3, 3, 3, 2, 2, 2, 1, 1, 1, 0]
    assert levels([0.6, 0.1, 0.1, 0.6, 0.1, 0.1, 0.1]) == [1, 1, 1, 2, 2, 2, 1]


def test_near_the_limit_the_level_stays() -> None:
    """Neither over it nor well below: lanes are not opened and shut every other second."""
    assert levels([0.6] + [0.45, 0.49] * 20) == [1] * 41
    assert levels([0.45, 0.49] * 20) == [0] * 40


@rows(
    ("resident", "held", "lag_s", "is_too_much"),
    [
        (GIB + 1, 0, 0.0, True),
        (GIB, 0, 0.0, False),
        (None, 901, 0.0, True),
        (None, 900, 0.0, False),
        (0, 0, 0.51, True),
        (0, 0, 0.5, False),
    ],
)
def test_memory_held_bytes_and_lag_each_have_their_limit(
    resident: int | None, held: int, lag_s: float, is_too_much: bool
) -> None:
    """Of what the queue may hold, a tenth is kept for those who are still let in."""
    overload = Shedding()

    overload.observe(0.0, resident, held, lag_s, BOUNDS)

    assert overload.level == is_too_much


def test_memory_is_watched_only_where_a_limit_is_set() -> None:
    """By default there is none; none of 0 bytes makes sense, and a queue that may hold nothing is no overload."""
    overload = Shedding()

    for bounds in (QueueBounds(), QueueBounds(shed_memory_bytes=0, max_bytes=0)):
        overload.observe(0.0, 100 * GIB, 0, 0.0, bounds)

    assert overload.level == 0


def test_memory_that_is_not_given_back_does_not_keep_people_out() -> None:
    """Above the limit the lower lanes stay out; interactive calls only while it grows, be it slowly."""
    overload = Shedding()
    found = []

    for second in range(40):
        grown = min(second, 4) * GIB // 50 + (second // 20) * (second - 19) * GIB // 400
        overload.observe(second, GIB + 1 + grown, 0, 0.0, BOUNDS)
        found.append(overload.level)

    assert found[:4] == [1, 2, 3, 3]
    assert found[7:20] == [2] * 13
    assert 3 in found[20:26]
    assert min(found[2:]) == 2


def test_what_is_left_after_a_peak_keeps_nobody_out() -> None:
    """Nobody is served, and memory stays above its limit: it is calm; from there growth counts, as it did before."""
    overload = Shedding()
    for second in range(5):
        overload.observe(second, 2 * GIB, 0, 0.0, BOUNDS)
    assert shed(overload) == ["batch", "background"]

    levels = []
    for second in range(5, 15):
        overload.observe(second, 2 * GIB, 0, 0.0, BOUNDS, is_at_rest=True)
        levels.append(overload.level)
    assert levels[-1] == 0
    for second in range(15, 30):
        overload.observe(second, 2 * GIB + GIB // 10, 0, 0.0, BOUNDS)
    assert overload.level == 0
    overload.observe(30, 2 * GIB + GIB // 2, 0, 0.0, BOUNDS)
    assert overload.level == 1


@pytest.mark.parametrize("part", [0.82, 0.99])
def test_what_is_below_the_limit_for_a_while_keeps_nobody_out_though_calls_never_cease(part: float) -> None:
    """One lane after the other, and again whenever it is too much; above the limit, however steady, nobody comes in."""
    overload, found = Shedding(), []
    for second in range(80):
        is_peak = second < 10 or 40 <= second < 42
        noise = second % 3 * GIB // 400
        overload.observe(second, int(GIB * (1.2 if is_peak else part)) + noise * (not is_peak), 0, 0.0, BOUNDS)
        found.append(overload.level)

    assert found[9] == 2
    assert found[10:24] == [2] * 14
    assert found[30] == 0
    assert found[40:56] == [1] + [2] * 15
    assert found[-1] == 0


def test_memory_that_stays_above_its_limit_keeps_the_lower_lanes_out() -> None:
    """As long as calls are in flight."""
    overload = Shedding()
    for second in range(300):
        overload.observe(second, GIB + GIB // 10, 0, 0.0, BOUNDS)

    assert overload.level == 2


def test_memory_that_was_given_back_counts_again() -> None:
    """The limit is the policy's as soon as there is less at rest."""
    overload = Shedding()
    for second, resident in enumerate((2 * GIB, GIB // 2)):
        overload.observe(second, resident, 0, 0.0, BOUNDS, is_at_rest=True)

    overload.observe(2, GIB + GIB // 10, 0, 0.0, BOUNDS)

    assert overload.level == 1


def test_what_is_at_rest_moves_the_limit_no_further_than_the_container_goes() -> None:
    """Four fifths of it are the limit, 95 % the end: who comes then is one too many, whatever is resident at rest."""
    overload = Shedding(memory_bytes=800)
    overload.observe(0, 790, 0, 0.0, QueueBounds(), is_at_rest=True)

    overload.observe(1, 940, 0, 0.0, QueueBounds())
    assert overload.level == 0
    overload.observe(2, 960, 0, 0.0, QueueBounds())
    assert overload.level == 1


@given(st.integers(0, 100 * GIB), st.integers(0, 3))
def test_at_rest_every_level_ends(resident: int, level: int) -> None:
    """Whatever is resident: to send calls away would free none of it."""
    overload = Shedding(memory_bytes=GIB)
    for second in range(level):
        overload.observe(second, None, 0, 9.0, BOUNDS)

    for second in range(level, 16):
        overload.observe(second, resident, 0, 0.0, BOUNDS, is_at_rest=True)

    assert overload.level == 0


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(0, 2 * GIB), st.integers(0, 1000), st.floats(0, 5), st.sampled_from([0.5, 1.0, 7.0])
        )
    )
)
def test_the_level_moves_by_a_step_and_sheds_from_below(seen: list[tuple[int | None, int, float, float]]) -> None:
    """Whatever is observed: no jump, no lane shed above one that is served, `critical` always served."""
    overload, now = Shedding(), 0.0

    for resident, held, lag_s, later_s in seen:
        before, now = overload.level, now + later_s
        overload.observe(now, resident, held, lag_s, BOUNDS)

        assert 0 <= overload.level <= MAX_LEVEL
        assert abs(overload.level - before) <= 1
        assert overload.level >= before or (held <= 900 and lag_s <= 0.5)
        assert shed(overload) == list(LANES[len(LANES) - overload.level :])

    for _ in range(MAX_LEVEL + 1):
        now += CALM_S
        overload.observe(now, 0, 0, 0.0, BOUNDS)
    assert overload.level == 0


def test_a_refusal_is_counted_and_asks_for_more_patience_the_more_is_shed() -> None:
    """By lane; the wait in the header is the one in the message."""
    overload = Shedding()
    waits = []

    for _ in range(MAX_LEVEL):
        overload.observe(0.0, None, 0, 9.0, BOUNDS)
        waits.append(overload.refusal("background").retry_after_s)
    error = overload.refusal("batch")

    assert waits == [1.0, 2.0, 4.0]
    assert overload.shed_total == {"critical": 0, "interactive": 0, "batch": 1, "background": 3}
    assert (error.status, error.code, error.should_retry) == (503, "gateway_overloaded", True)
    assert "batch" in error.message
    assert "4 s" in error.message


def test_the_worst_lag_is_told_once() -> None:
    """Whatever came after it; then the next second begins."""
    lag = LoopLag()
    for late_s in (0.01, 0.7, 0.02, -0.1):
        lag.note(late_s, cpu_s=0.05)

    assert (lag.take(), lag.take()) == ((0.7, 0.05), (0.0, 0.0))


def test_a_process_that_was_stopped_is_not_overloaded() -> None:
    """0.6 s of each second it did not run: it is late, and has nothing to do. One that works as long has too much."""
    found = {}
    for cpu_s in (0.002, 0.6):
        lag, overload = LoopLag(), Shedding()
        for second in range(5):
            lag.note(0.6, cpu_s)
            overload.observe(1000.0 + second, None, 0, lag.take()[1], BOUNDS)
        found[cpu_s] = overload.level

    assert found == {0.002: 0, 0.6: MAX_LEVEL}


def test_the_log_says_why_load_is_shed_and_when_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Once for each level on the way up, and once at the end."""
    levels([1.0, 0.1, *[0.0] * 8])

    assert [record.getMessage() for record in caplog.records] == [
        "load is shed, level 1 of 3: the lag of the event loop is at 200 % of its limit",
        "load is shed no more; 0 requests were refused so far",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell it there")
def test_the_memory_of_this_process_is_known() -> None:
    """More than a bare interpreter, less than the machine."""
    found = resident_bytes()

    assert found is not None
    assert 5_000_000 < found < 1024 * GIB


def test_a_containers_limit_stands_in_for_one_that_is_not_set() -> None:
    """The policy's own number wins."""
    overload = Shedding(memory_bytes=1000)

    overload.observe(0.0, 2000, 0, 0.0, QueueBounds(shed_memory_bytes=1_000_000))
    assert overload.level == 0

    overload.observe(1.0, 2000, 0, 0.0, QueueBounds())
    assert overload.level == 1


@pytest.mark.parametrize(("text", "expected"), [("1000\n", 800), ("max\n", None), ("", None)])
def test_a_container_says_how_much_memory_there_is(tmp_path: Path, text: str, expected: int | None) -> None:
    """A fifth is left for what does not give way."""
    file = tmp_path / "memory.max"
    file.write_text(text)

    assert container_bytes(file) == expected
    assert container_bytes(tmp_path / "absent") is None
