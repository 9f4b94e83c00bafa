"""The arithmetic of the runs, on numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replicas.figures import between, busiest, fair_shares, overshoot, per_second, quietest
from tests.replicas.provider import Book


def test_what_a_full_bucket_lets_through_is_no_overshoot() -> None:
    """Burst, then one each second."""
    assert overshoot([0.0, 0.0, 0.0, 1.0, 2.0], rate_per_s=1, burst=3) == 0.0


def test_an_overshoot_is_what_is_beyond_burst_and_refill() -> None:
    """The worst interval counts, and a pause afterwards does not make up for it."""
    assert overshoot([0.0] * 5 + [100.0], rate_per_s=1, burst=3) == 2.0
    assert overshoot([0.0] * 3 + [0.5], rate_per_s=1, burst=3) == pytest.approx(0.5)


def test_fair_is_what_nobody_can_have_more_of_without_another_having_less() -> None:
    """The modest get what they ask for; the others the same each."""
    assert fair_shares([1, 10, 10], 9) == [1, 4, 4]
    assert fair_shares([1, 2], 9) == [1, 2]


def test_windows_count_each_call_once() -> None:
    """From the beginning to before the end."""
    times = [0.0, 0.5, 1.0, 1.5, 9.0]

    assert between(times, 0.5, 1.5) == 2
    assert busiest(times, 0.0, 10.0, 1.0) == 2
    assert quietest(times, 0.0, 10.0, 2.0) == 0
    assert per_second(times, 0.0, 3.0) == [2, 2, 0]


def test_a_refused_call_was_not_admitted(tmp_path: Path) -> None:
    """The refusal is of the call before it; calls in flight are those that came and have not ended."""
    book = Book(came=[0.0, 1.0, 2.0], refused=[1.1], ended=[1.2, 3.0])

    assert book.admitted == [0.0, 2.0]
    assert book.in_flight() == [(0.0, 1), (1.0, 2), (1.2, 1), (2.0, 2), (3.0, 1)]
