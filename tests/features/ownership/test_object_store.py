"""Whose the objects at providers are, whichever store remembers it; and what each store does in trouble of its own."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.features.ownership.memory import GENERATIONS, MemoryObjects
from gateway.features.ownership.store import Objects
from tests.support.conformance import ROOMY, MakeStore, Wall, digest, settle, ticked
from tests.support.redis_support import Lender
from tests.support.stores import SqliteStore

examples = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
A, B, C = (digest("object", name)[:16] for name in "abc")
EVERY_PART = [bytes([part]) + digest(part)[:15] for part in range(256)]


async def owners(objects: Objects, *which: bytes) -> list[str | None] | None:
    found = await settle(objects.owners(which))
    return None if found is None else [*found]


async def test_an_object_is_whose_it_was_first(make_store: MakeStore, wall: Wall) -> None:
    """Nobody takes over what is somebody's by naming it again."""
    store = make_store(ROOMY, wall)

    assert await settle(store.objects.own((A, B), "one")) == ["one", "one"]
    assert await settle(store.objects.own((B, C), "two")) == ["one", "two"]
    assert await owners(store.objects, C, B, A, digest("x")[:16]) == ["two", "one", "one", None]


async def test_what_was_given_up_can_be_somebody_elses(make_store: MakeStore, wall: Wall) -> None:
    store = make_store(ROOMY, wall)
    await settle(store.objects.own((A, B), "one"))

    assert await settle(store.objects.disown((A,))) is True
    assert await owners(store.objects, A, B) == [None, "one"]
    assert await settle(store.objects.own((A,), "two")) == ["two"]


async def test_nothing_is_asked_and_nothing_is_said(make_store: MakeStore, wall: Wall) -> None:
    store = make_store(ROOMY, wall)

    assert await settle(store.objects.own((), "one")) == []
    assert await owners(store.objects) == []


async def test_many_at_once(make_store: MakeStore, wall: Wall) -> None:
    """As a page of a provider's list brings them."""
    store = make_store(ROOMY, wall)

    await settle(store.objects.own(EVERY_PART, "t\xe9nant"))

    assert await owners(store.objects, *EVERY_PART) == ["t\xe9nant"] * 256
    assert store.objects.entries == 256


async def test_there_are_no_more_than_may_be_and_that_is_said(
    make_store: MakeStore, wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in the log, and counted; those used last stay."""
    caplog.set_level(logging.WARNING, "gateway.store")
    store = make_store(replace(ROOMY, objects=64), wall)
    await settle(store.objects.own((A,), "one"))
    for number in range(400):
        wall.advance(1.0)
        await settle(store.objects.own((bytes([number % 256]) + digest(number)[:15],), "two"))
        assert await owners(store.objects, A) == ["one"]
    await ticked(store)

    assert 0 < store.objects.entries <= 64 + 16
    assert store.objects.lost >= 400 - 64 - 16
    assert len([one for one in caplog.records if "whose all objects" in one.getMessage()]) == 1


@examples
@given(
    steps=st.lists(st.tuples(st.sampled_from("oqd"), st.integers(0, 5), st.sampled_from(["one", "two"])), max_size=30)
)
async def test_every_store_says_the_same(make_store: MakeStore, steps: list[tuple[str, int, str]]) -> None:
    """As a dictionary would, as long as there is room."""
    store, told = make_store(ROOMY, Wall()), dict[bytes, str]()
    for what, number, tenant in steps:
        one = digest("steps", number)[:16]
        if what == "o":
            assert await settle(store.objects.own((one,), tenant)) == [told.setdefault(one, tenant)]
        elif what == "q":
            assert await owners(store.objects, one) == [told.get(one)]
        else:
            assert await settle(store.objects.disown((one,))) is True
            told.pop(one, None)


# Each store's own.


def test_in_memory_what_is_used_stays_however_long_ago_it_came() -> None:
    objects = MemoryObjects(GENERATIONS * 8)
    objects.own((A,), "one")

    for number in range(5000):
        objects.own((digest(number)[:16],), "two")
        assert objects.owners((A,)) == ["one"]

    assert objects.entries == GENERATIONS * 8
    assert objects.lost == 5001 - objects.entries
    assert len(objects._generations) <= 2 * GENERATIONS + 1


async def test_a_file_keeps_what_was_said_when_the_process_is_gone(tmp_path: object, wall: Wall) -> None:
    path = f"{tmp_path}/state.db"
    first = SqliteStore(path, wall, ROOMY)
    await settle(first.objects.own((A,), "one"))
    await first.aclose()
    second = SqliteStore(path, wall, ROOMY)

    assert await owners(second.objects, A, B) == ["one", None]
    await second.aclose()


async def test_a_file_writes_down_that_something_is_used(tmp_path: object, wall: Wall) -> None:
    """Now and then; else what is old would go first, however often it is used."""
    path, bounds = f"{tmp_path}/state.db", replace(ROOMY, objects=32)
    for number in range(34):
        store = SqliteStore(path, wall, bounds)
        await settle(store.objects.own((digest(number)[:16],), "two") if number else store.objects.own((A,), "one"))
        wall.advance(100_000.0)
        assert await owners(store.objects, A) == ["one"]
        await store.aclose()
        store = SqliteStore(path, wall, bounds)
        assert await owners(store.objects, A) == ["one"]  # read from the file: it is used
        await store.aclose()


async def test_replicas_say_the_same(lends: Lender, wall: Wall) -> None:
    one, two = (lends.replica(ROOMY, wall, now=wall) for _ in range(2))

    await settle(one.objects.own((A,), "one"))

    assert await owners(two.objects, A) == ["one"]
    assert await settle(two.objects.own((A,), "two")) == ["one"]


async def test_without_the_store_only_what_is_known_here_is_said(lends: Lender, wall: Wall) -> None:
    """Not that the rest is nobody's. What became somebody's meanwhile the store is told, unless another was first."""
    one, two = (lends.replica(ROOMY, wall, now=wall) for _ in range(2))
    await settle(one.objects.own((A,), "one"))
    lends.links[0].go(away=True)

    assert await owners(one.objects, A) == ["one"]
    assert await owners(one.objects, A, B) is None
    assert await settle(one.objects.own((B, C), "one")) == ["one", "one"]
    assert await owners(one.objects, B) == ["one"]
    await settle(two.objects.own((C,), "two"))
    lends.links[0].go(away=False)
    await ticked(one)

    assert await owners(two.objects, B, C) == ["one", "two"]
    assert await owners(one.objects, C) == ["two"]


async def test_a_store_that_does_not_answer_says_nothing(lends: Lender, wall: Wall) -> None:
    one = lends.replica(ROOMY, wall, now=wall)
    await settle(one.objects.own((A,), "one"))
    lends.links[0].refused |= {"objects_look", "objects_own", "objects_disown"}

    assert await owners(one.objects, A) == ["one"]
    assert await owners(one.objects, B) is None
    assert await settle(one.objects.disown((A,))) is False
    assert await settle(one.objects.own((B,), "one")) == ["one"]
    lends.links[0].refused.clear()  # closing waits for what is still to be written
