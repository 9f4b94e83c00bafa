"""The store in memory: what it takes is what it says, whatever comes and goes, and no step is long."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ports import Claim
from gateway.store import memory_pages
from gateway.store.memory import MemoryStore
from gateway.store.memory_owners import Rings
from gateway.store.memory_pages import LARGE, PAGE, Pages, pages_of
from gateway.store.memory_shelf import LET_GO, Shelf
from tests.store.conformance import KIB, ROOMY, Wall, digest, entries, held_bytes, kept

MIB = 1024 * KIB
FOREVER = 1e12
ASKED, RECORD = digest("asked"), digest("record")

sizes = st.sampled_from([1, 40, PAGE - 1, PAGE, PAGE + 1, 5_000, 30_000, LARGE - 1, LARGE, LARGE + 5_000])


def filled(size: int, mark: int) -> bytes:
    """Bytes no page of which is like another one's."""
    return b"".join(digest(mark, part) for part in range(-(-size // 32)))[:size]


# Pages.


class Writer:
    """Blobs in pages, and the same blobs beside them."""

    def __init__(self, most: int) -> None:
        self.pages = Pages(most)
        self.first: dict[int, int] = {}
        self.blobs: dict[int, bytes] = {}

    def write(self, slot: int, size: int) -> None:
        self.release(slot)
        before, lack = self.pages.taken, self.pages.lack(size)
        self.blobs[slot] = filled(size, slot)
        self.first[slot] = self.pages.write(slot, self.blobs[slot])
        assert self.pages.taken == pytest.approx(before + lack)

    def release(self, slot: int) -> None:
        if (blob := self.blobs.pop(slot, None)) is not None:
            self.pages.release(slot, self.first[slot], len(blob))

    def vacate(self) -> None:
        if self.pages.can_vacate():
            before = self.pages.taken
            self.pages.vacate(self._move)
            assert self.pages.taken == pytest.approx(before - self.pages.segment_bytes)

    def check(self) -> None:
        for slot, blob in self.blobs.items():
            assert self.pages.read(slot, self.first[slot], len(blob)) == blob

    def _move(self, slot: int) -> None:
        self.pages.release(slot, self.first[slot], len(self.blobs[slot]))
        self.first[slot] = self.pages.write(slot, self.blobs[slot])


slots = st.integers(1, 8)
page_steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), slots, sizes),
        st.tuples(st.just("release"), slots),
        st.tuples(st.just("vacate")),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps=page_steps, most=st.sampled_from([64 * KIB, 64 * MIB]))
def test_pages_give_back_what_was_written(steps: list[tuple[object, ...]], most: int) -> None:
    """Whatever was written, released and moved in between; and what is free can all be given back to the system."""
    writer = Writer(most)

    for name, *arguments in steps:
        getattr(writer, str(name))(*arguments)
        writer.check()
    for slot in list(writer.blobs):
        writer.release(slot)
    while writer.pages.can_vacate():
        writer.vacate()

    assert writer.pages.free == 0
    assert writer.pages.taken == pytest.approx(0)


def test_a_large_blob_takes_no_pages() -> None:
    """It has a mapping of its own, which goes back at once."""
    writer = Writer(64 * MIB)

    writer.write(1, LARGE)
    taken = writer.pages.taken
    writer.release(1)

    assert LARGE <= taken <= LARGE + 2 * KIB
    assert (writer.pages.free, writer.pages.taken) == (0, 0)


@given(size=sizes)
def test_pages_are_counted_up(size: int) -> None:
    """The last one may be partly empty."""
    assert (pages_of(size) - 1) * PAGE < size <= pages_of(size) * PAGE


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=40))
def test_rings_keep_the_order_of_joining(steps: list[tuple[int, bool]]) -> None:
    """As a list would."""
    rings, order = Rings(), list[int]()
    rings.grow(7)

    for number, joins in steps:
        if number in order:
            rings.leave(number)
            order.remove(number)
        if joins:
            rings.join(number, 0)
            order.append(number)

    found, at = list[int](), rings.after[0]
    while at:
        found.append(at)
        at = rings.after[at]
    assert found == order


# Shelves.

shelf_steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 60), sizes),
        st.tuples(st.just("put"), st.integers(0, 60), st.sampled_from([100, 400, 900])),
        st.tuples(st.just("get"), st.integers(0, 60)),
        st.tuples(st.just("drop"), st.integers(0, 60)),
    ),
    max_size=80,
)


@settings(max_examples=80, deadline=None)
@given(steps=shelf_steps)
def test_a_shelf_holds_what_was_used_last_within_its_bound(steps: list[tuple[object, ...]]) -> None:
    """The entries on it are always the last of those that were put or used; together they take no more than the bound."""
    shelf = Shelf(200 * KIB)
    by_use: dict[int, bytes] = {}

    for name, number, *size in steps:
        assert isinstance(number, int)
        if name == "put":
            blob = filled(int(str(size[0])), number)
            by_use.pop(number, None)
            if shelf.put(digest(number), blob, FOREVER):
                by_use[number] = blob
        elif name == "drop":
            assert shelf.drop(digest(number)) == (by_use.pop(number, None) is not None)
        elif (found := shelf.get(digest(number), 0.0)) is not None:
            assert found == by_use[number]
            by_use[number] = by_use.pop(number)
        assert shelf.taken <= shelf.bound
        by_use = dict(list(by_use.items())[len(by_use) - shelf.entries :])

    assert all(shelf.get(digest(number), 0.0) == blob for number, blob in by_use.items())


def test_a_table_that_grows_costs_entries_and_not_the_bound() -> None:
    """There is no moment at which more is taken than allowed."""
    shelf = Shelf(256 * KIB)

    most = 0.0
    for number in range(600):
        shelf.put(digest(number), bytes(40), FOREVER)
        most = max(most, shelf.taken)

    assert 0.9 * shelf.bound < most <= shelf.bound


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_owners_without_entries_take_nothing(is_forgotten: bool) -> None:
    """However many have come and gone beside one that stays."""
    shelf, taken = Shelf(MIB), set[float]()
    shelf.put(digest("stays"), b"stays", FOREVER, ("stays", "m"))

    for number in range(50):
        shelf.put(digest(number), b"goes", FOREVER, (f"t{number}", "m"))
        taken.add(shelf.taken)
        if is_forgotten:
            shelf.forget(lambda name: name[0] != "stays")
            shelf.sweep(0.0)
        shelf.drop(digest(number))

    assert max(taken) - min(taken) < KIB


def fill(shelf: Shelf, size: int, times: float = 1.5) -> None:
    """Put in entries of this size, so many times what fits."""
    for number in range(int(times * shelf.bound / size)):
        shelf.put(digest(size, number), bytes(size), FOREVER, (f"t{number % 7}", "m"))


@pytest.mark.parametrize("order", [(40_000, 700), (700, 40_000), (200_000, 3_000), (3_000, 200_000)])
def test_memory_follows_the_sizes_of_entries(order: tuple[int, int]) -> None:
    """Where all was taken by entries of one kind, as many of another kind find room as on an empty shelf, or not many less."""
    shelf, empty = Shelf(4 * MIB), Shelf(4 * MIB)
    fill(shelf, order[0])

    fill(shelf, order[1])
    fill(empty, order[1])

    assert shelf.entries >= 0.75 * empty.entries


def test_forgetting_takes_no_step_for_an_entry() -> None:
    """Entries are given no more from that moment; their memory goes back step by step, and all of it in the end."""
    shelf = Shelf(8 * MIB)
    fill(shelf, 700, times=0.5)
    taken, there = shelf.taken, shelf.entries

    count = shelf.forget(lambda name: name[0] != "t3")

    assert count == pytest.approx(there * 6 / 7, abs=1)
    assert (shelf.entries, shelf.taken) == (there - count, taken)
    assert shelf.get(digest(700, 0), 0.0) is None
    assert shelf.get(digest(700, 3), 0.0) is not None
    assert shelf.forget(lambda name: True) == there - count
    for _ in range(there // LET_GO + 1):
        shelf.sweep(0.0)
    assert (shelf.taken, shelf.is_empty) == (0, True)


def test_what_was_forgotten_goes_before_what_is_kept() -> None:
    """However recently it was used."""
    shelf = Shelf(MIB)
    shelf.put(digest("kept"), bytes(700), FOREVER, ("kept", "m"))
    fill(shelf, 700, times=0.3)
    shelf.forget(lambda name: name[0] != "kept")

    fill(shelf, 701, times=0.5)

    assert shelf.get(digest("kept"), 0.0) is not None


def test_a_name_that_was_forgotten_can_be_used_again() -> None:
    """What is put after is not what was forgotten."""
    shelf = Shelf(MIB)
    shelf.put(digest(1), b"old", FOREVER, ("t", "m"))
    shelf.put(digest(2), b"old", FOREVER, ("t", "m"))

    shelf.forget(lambda name: True)
    shelf.put(digest(1), b"new", FOREVER, ("t", "m"))
    shelf.sweep(0.0)

    assert [shelf.get(digest(number), 0.0) for number in (1, 2)] == [b"new", None]
    assert shelf.entries == 1


def test_a_sweep_is_never_long() -> None:
    """However much has run out, or is too much, or was forgotten."""
    shelf = Shelf(16 * MIB)
    fill(shelf, 700, times=0.8)
    there = shelf.entries
    shelf.bound = 0

    left = [there]
    while not shelf.is_empty:
        shelf.sweep(2 * FOREVER if len(left) % 2 else 0.0)
        left.append(shelf.entries)

    assert 0 < max(before - after for before, after in pairwise(left)) <= 2 * LET_GO


def test_memory_that_is_not_needed_is_given_back() -> None:
    """When most entries have run out, the rest does not hold the memory of all."""
    shelf = Shelf(16 * MIB)
    for number in range(9_000):
        shelf.put(digest(number), bytes(1_200), 1.0 if number % 10 else 3.0)
    full = shelf.taken

    for _ in range(60):
        shelf.sweep(2.0)

    assert shelf.entries == 900
    assert shelf.taken < 0.3 * full
    assert all(shelf.get(digest(number), 2.0) == bytes(1_200) for number in range(0, 9_000, 10))


def test_a_system_without_memory_costs_an_entry_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be mapped is not kept; what is there stays, and with memory there is room again."""
    shelf = Shelf(MIB)
    shelf.put(digest("there"), b"there", FOREVER)

    with monkeypatch.context() as patched:
        patched.setattr(memory_pages, "mapped", refuse)
        assert not shelf.put(digest(1), bytes(100_000), FOREVER)
        assert not shelf.put(digest(1), bytes(2 * LARGE), FOREVER)

        taken = shelf.taken
        assert not any(shelf.put(digest(number), bytes(100_000), FOREVER) for number in range(100))

    assert shelf.taken == taken
    assert shelf.get(digest("there"), 0.0) == b"there"
    assert shelf.put(digest(1), bytes(2 * LARGE), FOREVER)


def refuse(size: int) -> object:
    raise OSError("Cannot allocate memory")


def test_what_is_taken_is_what_is_resident() -> None:
    """After entries of ever other sizes have replaced each other, within some per cent; `make soak` shows it for a gigabyte."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.store.churn", str(16 * MIB), "3"], capture_output=True, check=True
    )

    for line in ran.stdout.splitlines():
        found = json.loads(line)
        assert 0.9 <= found["stated"] <= 1.0
        assert found["resident"] <= 1.1, found


# The store.


@pytest.fixture
def wall() -> Wall:
    return Wall()


def test_a_group_given_up_is_emptied_step_by_step(wall: Wall) -> None:
    """Nobody finds anything of it from that moment, not even when a group of its name comes back."""
    store = MemoryStore(ROOMY, wall)
    store.answers.put(ASKED, kept(now=wall(), group="other"))

    store.configure(replace(ROOMY, answers={"default": MIB}))
    was_held = held_bytes(store, "answers")
    store.configure(ROOMY)

    assert store.answers.get(ASKED, "other") is None
    assert was_held > 0
    store.tick()
    assert held_bytes(store, "answers") == 0
    assert store._answers._given_up == []


def test_a_record_too_large_to_keep_frees_its_key(wall: Wall, caplog: pytest.LogCaptureFixture) -> None:
    """The next caller runs, and the operator is told."""
    store = MemoryStore(replace(ROOMY, records=64 * KIB), wall)
    fence = claim(store)

    with caplog.at_level(logging.WARNING, "gateway.store"):
        is_kept = store.records.complete(RECORD, fence, kept(bytes(80 * KIB), now=wall()))

    assert is_kept is False
    assert claim(store) > fence
    assert "idempotency.max_bytes" in caplog.text


def test_a_record_that_has_run_out_costs_no_promise(wall: Wall, caplog: pytest.LogCaptureFixture) -> None:
    """Only one that goes before its time is worth a warning; with a new bound it is worth another."""
    store = MemoryStore(replace(ROOMY, records=64 * KIB), wall)

    with caplog.at_level(logging.WARNING, "gateway.store"):
        for _ in range(20):
            complete_many(store, wall, 1)
            wall.advance(61.0)
        assert caplog.text == ""
        complete_many(store, wall, 40)
        store.configure(replace(ROOMY, records=64 * KIB))
        complete_many(store, wall, 40)
        store.configure(replace(ROOMY, records=32 * KIB))
        complete_many(store, wall, 40)

    assert len(caplog.records) == 2


def test_an_abandoned_claim_is_forgotten_in_the_end(wall: Wall) -> None:
    """A day after its lease ended; its holder is not refused before."""
    store = MemoryStore(ROOMY, wall)
    claim(store)

    wall.advance(80_000.0)
    store.tick()
    early = entries(store, "records")
    wall.advance(10_000.0)
    store.tick()

    assert (early, entries(store, "records")) == (1, 0)


def test_claims_that_run_do_not_hide_those_that_were_abandoned(wall: Wall) -> None:
    """However many run, the others are found after some ticks."""
    store = MemoryStore(ROOMY, wall)
    for number in range(400):
        store.records.claim(digest(number), ASKED, 1e6 if number < 300 else 30.0)

    wall.advance(90_000.0)
    for _ in range(3):
        store.tick()

    assert entries(store, "records") == 300


def claim(store: MemoryStore, record: bytes = RECORD) -> int:
    answer = store.records.claim(record, ASKED, 30.0)
    assert isinstance(answer, Claim)
    assert answer.state == "claimed"
    return answer.fence


def complete_many(store: MemoryStore, wall: Wall, count: int) -> None:
    for number in range(count):
        record = digest(wall(), number)
        store.records.complete(record, claim(store, record), kept(bytes(4 * KIB), now=wall()))
        wall.advance(0.01)
