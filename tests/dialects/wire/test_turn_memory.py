"""The memory of what turns were signed with: how much it holds, for how long, and for whom."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.types import StoreBounds
from gateway.dialects.memory import (
    ENTRY_BYTES,
    KEPT_FOR_S,
    MOST_SHARED_CHARACTERS,
    MOST_UNKNOWN,
    THINKING,
    UNKNOWN_FOR_S,
    SharedTurns,
    ThoughtMemory,
    VisibleTurn,
)
from gateway.drivers.memory import MemoryStore

TENANTS = ("a", "b")
KEPT = st.tuples(
    st.sampled_from(TENANTS),
    st.sampled_from((None, b"Bearer x")),
    st.integers(0, 9),
    st.integers(0, 3000),
    st.floats(0, KEPT_FOR_S),
)


def said(number: int) -> VisibleTurn:
    return VisibleTurn([(f"toolu_{number}", "f", {})], "")


class Now:
    """A time that is moved by hand."""

    at = 0.0

    def __call__(self) -> float:
        return self.at


def keep(memory: ThoughtMemory, number: int, signed: Any, tenant: str = "a") -> None:
    memory.of(tenant, None, "i", keeps_all=False).keep(said(number), signed, has_thoughts=True)


def find(memory: ThoughtMemory, number: int, tenant: str = "a") -> Any:
    return memory.of(tenant, None, "i", keeps_all=False).find(said(number))


def test_who_was_asked_for_last_stays_the_longest() -> None:
    """The others make room."""
    memory = ThoughtMemory(Now(), most_bytes=3 * (ENTRY_BYTES + 100))
    for number in range(3):
        keep(memory, number, "s")
    assert find(memory, 0) == "s"
    keep(memory, 3, "s")

    assert [find(memory, number) for number in range(4)] == ["s", None, "s", "s"]
    keep(memory, 4, "x" * 10_000)  # more than there is room for
    assert (len(memory), memory.bytes) == (0, 0)


def test_turns_of_one_id_are_told_apart() -> None:
    """Some servers call every turn's first call the same: each time the one that was remembered is found, and no other."""
    memory = ThoughtMemory(Now())
    keep(memory, 1, "s")
    own = memory.of("a", None, "i", keeps_all=False)
    same, other = said(1), VisibleTurn([("toolu_1", "f", {"n": 9})], "")
    assert [own.find(one) for one in (same, other, other, same)] == ["s", None, None, "s"]
    worded = VisibleTurn([("toolu_1", "f", {})], "so")
    assert (own.find(worded), own.find(said(1))) == (None, "s")


async def test_turns_that_nobody_knows_take_no_room_of_others() -> None:
    """Callers may name any; few are noted, for a minute, and none with an id that no provider gives."""
    now = Now()
    memory = ThoughtMemory(now, most_bytes=2 * (ENTRY_BYTES + 100))
    memory.shared = SharedTurns(MemoryStore(StoreBounds({THINKING: 1_000_000}, 0), now).answers, now)
    keep(memory, 0, "s")
    for number in range(1, MOST_UNKNOWN + 2):
        memory.remember_shared(("b", f"toolu_{number}"), None)

    assert find(memory, 0) == "s"
    assert not memory.is_unknown(("b", "toolu_1"))
    assert memory.is_unknown(("b", "toolu_2"))
    now.at = UNKNOWN_FOR_S
    assert not memory.is_unknown(("b", "toolu_2"))


async def test_no_other_process_is_asked_for_what_cannot_be() -> None:
    memory = ThoughtMemory(Now())
    memory.shared = SharedTurns(MemoryStore(StoreBounds({THINKING: 1_000_000}, 0), Now()).answers, Now())
    own = memory.of("a", None, "i", keeps_all=False)
    for id in ("x" * (MOST_SHARED_CHARACTERS + 1), "toolu_7"):
        assert own.find(VisibleTurn([(id, "f", {})], "")) is None
    assert own.missed == ["toolu_7"]
    assert not await own.fetch()
    assert own.missed == []
    assert memory.of("a", None, "i", keeps_all=False).find(said(7)) is None
    assert memory.counts.miss == 3


def test_a_turn_is_kept_for_an_hour_after_it_was_asked_for() -> None:
    """And then given up, whether anybody asks or not."""
    now = Now()
    memory = ThoughtMemory(now)
    keep(memory, 1, "s")
    keep(memory, 2, "s")
    now.at = KEPT_FOR_S - 1
    assert find(memory, 1) == "s"
    now.at = KEPT_FOR_S
    assert find(memory, 2) is None
    memory.forget_old()
    assert len(memory) == 1
    now.at = 2 * KEPT_FOR_S
    memory.forget_old()
    assert (len(memory), memory.bytes) == (0, 0)


def test_a_turn_that_comes_again_is_kept_once() -> None:
    """As it came last."""
    memory = ThoughtMemory(Now())
    keep(memory, 1, "long" * 100)
    keep(memory, 1, "s")
    size = memory.bytes
    assert (len(memory), find(memory, 1)) == (1, "s")
    keep(memory, 1, "s")
    assert memory.bytes == size


@settings(max_examples=60, deadline=None)
@given(st.lists(KEPT, max_size=60))
def test_it_keeps_its_bound_and_everybody_their_own(steps: list[tuple[str, bytes | None, int, int, float]]) -> None:
    """Whatever is kept, whenever and by whom."""
    now, told = Now(), dict[Any, Any]()
    memory = ThoughtMemory(now, most_bytes=8000)
    for tenant, credential, number, size, wait_s in steps:
        now.at += wait_s
        signed = [tenant, str(credential), "x" * size]
        memory.of(tenant, credential, "i", keeps_all=False).keep(said(number), signed, has_thoughts=True)
        told[tenant, credential, number] = signed
        assert 0 <= memory.bytes <= 8000
        assert memory.bytes >= len(memory) * ENTRY_BYTES
        for one in TENANTS:
            for whose in (None, b"Bearer x"):
                view = memory.of(one, whose, "i", keeps_all=False)
                found = [(other, view.find(said(other))) for other in range(10)]
                assert all(got in (None, told.get((one, whose, other))) for other, got in found)
