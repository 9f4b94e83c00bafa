"""Refusals by chance and by a limit, told apart."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits.learning import Strays
from tests.rows import rows


def go(strays: Strays, share: float, calls: int, seed: int = 1, *, has_room: bool = True) -> list[bool]:
    """So many calls, of which a share is refused; what each refusal was taken for."""
    draw, limits = Random(seed), []
    for _ in range(calls):
        if draw.random() < share:
            limits.append(strays.refused(has_room=has_room))
        else:
            strays.accepted += 1
    return limits


def test_the_first_refusal_is_a_limit() -> None:
    """Where none was ever refused by chance, one is proof; the pauses it asks for are kept."""
    strays = Strays()
    strays.accepted = 500

    assert strays.refused(has_room=False)
    assert not strays.are_proven


@pytest.mark.parametrize("share", [0.005, 0.01, 0.02, 0.03])
def test_what_comes_at_any_rate_is_chance(share: float) -> None:
    """Of the refusals among 10,000 calls few are taken for a limit, and how usual they are is known."""
    strays = Strays()

    limits = go(strays, share, 10_000)

    assert sum(limits) <= 0.1 * len(limits) + 3
    assert strays.are_proven
    assert strays.usual == pytest.approx(share, rel=0.7)


@rows("usual", [0.0, 0.01, 0.03])
@rows("share", [0.3, 0.5, 1.0])
def test_a_limit_is_seen_among_chance(usual: float, share: float) -> None:
    """A third of the calls refused, or more: within 40 calls, however usual a few of them are."""
    strays = Strays()
    go(strays, usual, 3000)

    assert any(go(strays, share, 40, has_room=False))


def test_half_of_the_calls_are_no_strays() -> None:
    """However long it lasts, what is asked for with such a refusal is waited for."""
    strays = Strays()

    for seed in range(50):
        go(strays, 0.5, 20, seed)
        assert not strays.are_proven


def test_strays_that_stop_are_forgotten() -> None:
    """Long runs of calls without one: a refusal is proof again."""
    strays = Strays()
    go(strays, 0.02, 2000)

    for _ in range(8):
        strays.accepted = 20_000
        strays.refused(has_room=False)

    assert not strays.are_proven
    strays.accepted = 100
    assert strays.refused(has_room=False)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=200))
def test_the_share_stays_in_its_bounds(course: list[tuple[int, bool]]) -> None:
    """Whatever comes, never more than six in a hundred are believed to be chance."""
    strays = Strays()

    for accepted, has_room in course:
        strays.accepted += accepted
        strays.refused(has_room=has_room)
        assert 0 < strays.usual <= 0.06
        assert strays.accepted == 0
