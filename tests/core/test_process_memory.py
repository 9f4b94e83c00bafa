"""When memory that was freed is given back to the system, and that it is."""

from __future__ import annotations

import sys

import pytest

from gateway.core.waiting import PEAK_BYTES, GiveBack
from gateway.process import find_trim, resident_bytes

MIB = 1024 * 1024
LIMIT = 100 * MIB


def due(
    give_back: GiveBack, now: float, resident: int | None, limit: int | None = LIMIT, *, is_at_rest: bool = False
) -> bool:
    """Whether it is due, and done if it is; it brings nothing."""
    is_due = give_back.look(now, resident, limit, is_at_rest=is_at_rest)
    if is_due and resident is not None:
        give_back.done(now, resident, resident)
    return is_due


def test_it_is_due_before_anybody_is_sent_away() -> None:
    """From four fifths of the limit on, which is where a level would stay."""
    assert [due(GiveBack(int), 0.0, size * MIB) for size in (79, 81, 101)] == [False, True, True]


def test_what_brings_nothing_is_not_tried_every_second() -> None:
    """10 s, then twice as long each time, up to a minute; what brings something starts anew."""
    give_back = GiveBack(int)
    found = [now for now in range(300) if due(give_back, now, LIMIT)]
    assert found == [0, 20, 60, 120, 180, 240]

    give_back.done(300, LIMIT, LIMIT // 2)
    assert [now for now in range(301, 330) if due(give_back, now, LIMIT)] == [310]


def test_after_a_peak_it_is_due_when_nobody_is_served() -> None:
    """Without any limit, once; growth that is no peak is none."""
    give_back = GiveBack(int)
    assert not due(give_back, 0, 70 * MIB, None, is_at_rest=True)
    assert not due(give_back, 1, 70 * MIB + PEAK_BYTES, None, is_at_rest=True)
    assert not due(give_back, 2, 500 * MIB, None)
    assert due(give_back, 3, 500 * MIB, None, is_at_rest=True)
    assert not any(due(give_back, now, 500 * MIB, None, is_at_rest=True) for now in range(4, 100))


def test_where_nothing_can_be_given_back_or_told_nothing_is_due() -> None:
    """Another C library, another system."""
    assert not due(GiveBack(None), 0, LIMIT)
    assert not due(GiveBack(int), 0, None)
    GiveBack(None).run()


@pytest.mark.skipif(sys.platform != "linux" or find_trim() is None, reason="glibc alone has it")
def test_freed_memory_goes_back_to_the_system() -> None:
    """What lies between blocks that are still used, too: the C library would keep it for ever."""
    blocks = [b"1" * 100_000 for _ in range(1_000)]  # written: pages of zeros may not be resident
    held = resident_bytes() or 0
    kept = blocks[::10]
    del blocks

    GiveBack(find_trim()).run()

    assert held - (resident_bytes() or 0) > 60 * MIB
    assert len(kept) == 100
