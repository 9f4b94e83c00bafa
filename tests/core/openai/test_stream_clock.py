"""The clocks of a stream: when they are looked at, and what they say."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.sse import StreamClock
from gateway.core.types import Clocks


def clocks(total_s: float = 3600, least: float = 0.0, window_s: float = 60.0) -> Clocks:
    return Clocks(5, 60, 600, 300, total_s, least, window_s)


def test_without_a_guard_only_the_total_counts() -> None:
    """There is one moment to look at, and it is the end."""
    pace = StreamClock(clocks(total_s=100), 10.0)

    assert pace.look_at == 110.0
    assert "longer than the total of 100 s" in str(pace.look(110.1, 0, 0.0))


def test_a_stream_that_brings_too_little_over_a_whole_window_drips() -> None:
    """Fewer events than the rate asks for; as many are enough."""
    few, enough = (StreamClock(clocks(least=0.5, window_s=10), 0.0) for _ in range(2))

    assert few.look_at == enough.look_at == 10.0
    assert "drips: 4 events in 10 s" in str(few.look(10.1, 4, 0.0))
    assert enough.look(10.1, 5, 0.0) is None


def test_every_window_counts_for_itself() -> None:
    """A quick start does not excuse what comes later."""
    pace = StreamClock(clocks(least=1, window_s=10), 0.0)

    assert pace.look(10.5, 1000, 0.0) is None
    assert pace.look_at == 20.5
    assert pace.look(20.6, 1009, 0.0) is not None


def test_time_spent_on_a_slow_client_is_not_the_providers() -> None:
    """The window is one of waiting for the provider."""
    pace = StreamClock(clocks(least=1, window_s=10), 0.0)

    assert pace.look(30.0, 2, 25.0) is None
    assert pace.look_at == 35.0
    assert pace.look(35.1, 2, 25.0) is not None


def test_the_total_bounds_the_next_look() -> None:
    """However long the window."""
    pace = StreamClock(clocks(total_s=15, least=1, window_s=10), 0.0)

    assert pace.look(10.1, 100, 0.0) is None
    assert pace.look_at == 15.0
    assert "total" in str(pace.look(15.1, 200, 0.0))


@settings(deadline=None, derandomize=True)
@given(st.floats(0.01, 5), st.floats(1, 100), st.lists(st.floats(0.01, 30), min_size=1, max_size=60))
def test_only_a_window_with_too_few_events_ends_a_stream(least: float, window_s: float, gaps: list[float]) -> None:
    """Whenever it ends one, a window was as long as it has to be and held too little; and no such window passes unseen."""
    pace = StreamClock(clocks(total_s=inf, least=least, window_s=window_s), 0.0)
    now, since, before = 0.0, 0.0, 0

    for events, gap in enumerate(gaps, 1):
        now += gap
        if now <= pace.look_at:
            continue
        late = pace.look(now, events, 0.0)

        assert now - since >= window_s * 0.999
        assert (late is not None) == (events - before < least * window_s)
        if late is not None:
            return
        since, before = now, events
