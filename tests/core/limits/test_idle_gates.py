"""What is kept of gates that are gone: no more than was said, for the latest, and in little room."""

from __future__ import annotations

import tracemalloc
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits.idle_gates import MOST_REMEMBERED, IdleGates, IdleGateState
from gateway.core.limits.limit_table import Used

SALT = b"0123456789abcdef"
MOST_BYTES = 256
TIMES = st.floats(0, 1e7)
USED = st.builds(Used, st.integers(0, 5), st.floats(-1e6, 1e6, width=32), TIMES)


@settings(deadline=None, derandomize=True)
@given(at=TIMES, pause_s=st.floats(0, 3600), refusals=st.integers(0, 1000), used=st.lists(USED, max_size=5))
def test_what_is_kept_comes_back_once(at: float, pause_s: float, refusals: int, used: list[Used]) -> None:
    """To within a hundredth of a second a day, for the name it was kept under alone."""
    remembered = IdleGates(SALT)
    used = [one._replace(full_at=at + one.full_at % 86_400) for one in used]

    remembered.keep("p/m@1", IdleGateState(at, at + pause_s, -inf, refusals, tuple(used)))
    assert remembered.take("p/m@2") is None
    kept = remembered.take("p/m@1")

    assert kept is not None
    assert kept.at == at
    assert abs(kept.paused_until - at - pause_s) < 0.01
    assert kept.exhausted_until == -inf
    assert kept.refusals == min(refusals, 255)
    assert [(one.limit, one.level) for one in kept.used] == [(one.limit, one.level) for one in used]
    assert all(abs(one.full_at - other.full_at) < 0.01 for one, other in zip(kept.used, used, strict=True))
    assert remembered.take("p/m@1") is None


def test_the_longest_unused_goes_first() -> None:
    """And begins anew; whatever else is kept stays."""
    remembered = IdleGates(SALT, most=3)
    for name in ("a", "b", "a", "c", "d"):
        remembered.keep(name, IdleGateState(1.0, 2.0, -inf, 1))

    assert len(remembered) == 3
    assert [name for name in "abcd" if remembered.take(name) is not None] == ["a", "c", "d"]


def test_thousands_take_little_room() -> None:
    """At most 256 bytes each, with every limit of theirs used up in part."""
    remembered = IdleGates(SALT)
    names = [f"openai/gpt-4o@{number:032x}" for number in range(MOST_REMEMBERED // 8)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, name in enumerate(names):
            used = tuple(Used(limit, 0.5 * number, 7.0 + number) for limit in range(5))
            remembered.keep(name, IdleGateState(1.0 + number, 2.0 + number, 3.0 + number, 3, used))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert taken / len(names) <= MOST_BYTES
