"""What becomes of a call: serve, hold, use a fallback, refuse. Examples of every verdict, and the invariants as properties."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.admission.fair_queue import Decision, Verdict, decide
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)
NOW = 100.0

moments = st.sampled_from([-inf, 0.0, 99.0, NOW, 100.5, 102.0, 110.0, 130.0, 200.0, inf]) | st.floats(0.0, 300.0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[float], int, float, float]:
    """Moments of a plan, how many of them are the model's own, the deadline, and how long the primary is preferred."""
    ready_at = draw(st.lists(moments, max_size=5))
    own = draw(st.integers(0, len(ready_at)))
    return ready_at, own, draw(moments), draw(moments)


def soonest_allowed(ready_at: list[float], own: int, deadline: float, prefer_until: float) -> float:
    """The first moment that policy leaves open: own targets always, fallbacks once the primary is known to be late."""
    own_at = min(ready_at[:own], default=inf)
    if own_at <= NOW or (own_at < inf and own_at <= min(prefer_until, deadline)):
        return max(own_at, NOW)
    return max(NOW, min(ready_at, default=inf))


@rows(
    ("ready_at", "own", "expected"),
    [
        pytest.param([NOW, NOW], 1, Decision(Verdict.SERVE, NOW, 0), id="a free primary serves"),
        pytest.param([101.0, 90.0, 90.0], 3, Decision(Verdict.SERVE, NOW, 1), id="the first free of the model's own"),
        pytest.param([101.0], 1, Decision(Verdict.HOLD, 101.0), id="a short wait is held"),
        pytest.param([101.0, NOW], 1, Decision(Verdict.HOLD, 101.0), id="a short wait beats a fallback"),
        pytest.param([102.0, NOW], 1, Decision(Verdict.HOLD, 102.0), id="exactly as long as preferred"),
        pytest.param([102.1, NOW], 1, Decision(Verdict.SERVE, NOW, 1), id="a longer wait than preferred: the fallback"),
        pytest.param([120.0, 110.0], 1, Decision(Verdict.HOLD_ANYWHERE, 110.0), id="both late: whichever frees first"),
        pytest.param([110.0, 120.0], 1, Decision(Verdict.HOLD_ANYWHERE, 110.0), id="the primary sooner, but late"),
        pytest.param([110.0, 110.0], 1, Decision(Verdict.HOLD_ANYWHERE, 110.0), id="a tie"),
        pytest.param([130.0], 1, Decision(Verdict.HOLD_ANYWHERE, 130.0), id="just in time"),
        pytest.param([130.1], 1, Decision(Verdict.REFUSE, 130.1), id="too late"),
        pytest.param([150.0, 140.0], 1, Decision(Verdict.REFUSE, 140.0), id="told when its turn would be"),
        pytest.param([101.0, inf], 1, Decision(Verdict.HOLD, 101.0), id="no use in widening to what never frees"),
        pytest.param([inf, NOW], 1, Decision(Verdict.SERVE, NOW, 1), id="a primary that never frees is not preferred"),
        pytest.param([inf, 105.0], 1, Decision(Verdict.HOLD_ANYWHERE, 105.0), id="hold for the only one that frees"),
        pytest.param([inf, inf], 1, Decision(Verdict.REFUSE, inf), id="never"),
        pytest.param([NOW, 101.0], 0, Decision(Verdict.SERVE, NOW, 0), id="only fallbacks are left, one is free"),
        pytest.param([103.0, 101.0], 0, Decision(Verdict.HOLD_ANYWHERE, 101.0), id="only fallbacks are left"),
        pytest.param([], 0, Decision(Verdict.REFUSE, inf), id="nothing is left"),
    ],
)
def test_each_verdict_has_its_case(ready_at: list[float], own: int, expected: Decision) -> None:
    """30 s of patience, 2 s of preference for the primary."""
    assert decide(ready_at, own, NOW, deadline=130.0, prefer_primary_until=102.0) == expected


def test_a_deadline_in_the_past_is_never_held_for() -> None:
    """Nothing can come in time; what is free may still be tried."""
    assert decide([101.0, 103.0], 1, NOW, 99.0, 102.0) == Decision(Verdict.REFUSE, 101.0)
    assert decide([101.0, NOW], 1, NOW, 99.0, 102.0) == Decision(Verdict.SERVE, NOW, 1)


@pytest.mark.parametrize("ready_at", [[], [inf], [inf, inf]])
def test_never_is_not_in_time_for_any_deadline(ready_at: list[float]) -> None:
    """Without a deadline and with endless preference, a target that never frees is still not waited for."""
    assert decide(ready_at, min(1, len(ready_at)), NOW, inf, inf) == Decision(Verdict.REFUSE, inf)


def test_endless_preference_does_not_wait_for_a_primary_that_never_frees() -> None:
    """The fallback is taken, or held for."""
    assert decide([inf, NOW], 1, NOW, inf, inf) == Decision(Verdict.SERVE, NOW, 1)
    assert decide([inf, 105.0], 1, NOW, inf, inf) == Decision(Verdict.HOLD_ANYWHERE, 105.0)


@BOUNDED
@given(cases())
def test_nothing_is_held_that_comes_too_late(case: tuple[list[float], int, float, float]) -> None:
    """A held call has a target that is predicted free by its deadline, and later than now."""
    ready_at, own, deadline, prefer_until = case

    verdict, at, _ = decide(ready_at, own, NOW, deadline, prefer_until)

    if verdict in (Verdict.HOLD, Verdict.HOLD_ANYWHERE):
        assert NOW < at <= deadline
        assert at < inf
        assert at in (ready_at[:own] if verdict is Verdict.HOLD else ready_at)


@BOUNDED
@given(cases())
def test_nothing_is_refused_that_comes_in_time(case: tuple[list[float], int, float, float]) -> None:
    """A refused call has no such target, and is told the first moment there is."""
    ready_at, own, deadline, prefer_until = case

    verdict, at, _ = decide(ready_at, own, NOW, deadline, prefer_until)

    if verdict is Verdict.REFUSE:
        assert at == min(ready_at, default=inf)
        assert at > NOW
        assert at > deadline or at == inf


@BOUNDED
@given(cases())
def test_no_choice_is_later_than_needed(case: tuple[list[float], int, float, float]) -> None:
    """The predicted moment is the first one that the preference for the primary leaves open."""
    ready_at, own, deadline, prefer_until = case

    decision = decide(ready_at, own, NOW, deadline, prefer_until)

    assert decision.ready_at == soonest_allowed(ready_at, own, deadline, prefer_until)


@BOUNDED
@given(cases())
def test_what_serves_is_free_and_the_first_that_is(case: tuple[list[float], int, float, float]) -> None:
    """The index is that of a free target, none before it is free, and it is a fallback only when no own target is."""
    ready_at, own, deadline, prefer_until = case

    verdict, _, index = decide(ready_at, own, NOW, deadline, prefer_until)

    assert (verdict is Verdict.SERVE) == (index >= 0)
    if verdict is Verdict.SERVE:
        assert ready_at[index] <= NOW
        assert all(at > NOW for at in ready_at[:index])
