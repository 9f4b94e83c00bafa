"""The way back: probes in the order of urgency, then traffic that grows."""

from __future__ import annotations

from math import log

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.health.phases import DOUBLINGS, FIRST_SHARE, LEAST_RAMP_PER_S, Probes, SlowStart

BOUNDED = settings(deadline=None, derandomize=True)


@given(usual=st.floats(0, 1000), ramp_s=st.floats(0.5, 60), gaps=st.lists(st.floats(0, 2), min_size=1, max_size=60))
@BOUNDED
def test_growth_lets_through_what_its_curve_allows(usual: float, ramp_s: float, gaps: list[float]) -> None:
    """At any moment no more than the curve and one call; whoever waits as told goes; never longer than the ramp."""
    growth, now = SlowStart(usual, ramp_s, 5.0), 5.0
    for taken, gap in enumerate(gaps, start=1):
        now += gap
        if growth.is_over(now):
            break
        wait_s = growth.wait_s(now)
        assert 0 <= wait_s <= 1 / LEAST_RAMP_PER_S + 1e-6
        now += wait_s
        assert growth.wait_s(now) == 0.0
        growth.take(now)
        t = now - 5.0
        first, double_s = max(LEAST_RAMP_PER_S, usual * FIRST_SHARE), ramp_s / DOUBLINGS
        assert taken <= first * double_s / log(2) * (2 ** (t / double_s) - 1) + 1 + 1e-3 or growth.is_over(now)


def test_what_nobody_used_is_lost() -> None:
    """After five idle seconds of a ramp from 20 calls a second a fifth of a second's worth goes at once, not 900 calls."""
    growth, at_once = SlowStart(100.0, 10.0, 0.0), 0
    growth.take(5.0)

    while growth.wait_s(5.0) == 0.0:
        growth.take(5.0)
        at_once += 1

    assert 120 <= at_once <= 140


def test_probes_leave_room_for_those_who_can_best_afford_to_fail() -> None:
    """One at first, one more with each success, never more than the most."""
    probes = Probes(since=10.0)
    assert [probes.wait_s(11.0, rank, 3) for rank in range(4)] == [0.0] * 4

    probes.out = 1
    assert probes.wait_s(11.0, 3, 3) is None
    probes.good = 5
    probes.out = 3
    assert probes.wait_s(11.0, 3, 3) is None
