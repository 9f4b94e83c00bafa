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

from gateway.drivers.lru import LET_GO, Lru
from gateway.drivers.store import Claim
from tests.support.conformance import KIB, ROOMY, Wall, digest, entries, held_bytes, kept
from tests.support.stores import MemoryStore

MIB = 1024 * KIB
FOREVER = 1e12
ASKED, RECORD = digest("asked"), digest("record")

sizes = st.sampled_from([0, 1, 40, 511, 512, 5_000, 30_000, 130_000, 140_000])


def filled(size: int, mark: int) -> bytes:
    """Bytes no part of which is like another one's."""
    return b"".join(digest(mark, part) for part in range(-(-size // 32)))[:size]


# The LRU.

lru_steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 60), sizes),
        st.tuples(st.just("put"), st.integers(0, 60), st.sampled_from([100, 400, 900])),
        st.tuples(st.just("get"), st.integers(0, 60)),
        st.tuples(st.just("drop"), st.integers(0, 60)),
    ),
    max_size=80,
)


@settings(deadline=None)
@given(steps=lru_steps)
def test_an_lru_holds_what_was_used_last_within_its_bound(steps: list[tuple[object, ...]]) -> None:
    """The entries on it are always the last of those that were put or used; together they take no more than the bound."""
    lru = Lru(200 * KIB)
    by_use: dict[int, bytes] = {}

    for name, number, *size in steps:
        assert isinstance(number, int)
        if name == "put":
            blob = filled(int(str(size[0])), number)
            by_use.pop(number, None)
            if lru.put(digest(number), blob, FOREVER):
                by_use[number] = blob
        elif name == "drop":
            assert lru.drop(digest(number)) == (by_use.pop(number, None) is not None)
        elif (found := lru.get(digest(number), 0.0)) is not None:
            assert found == by_use[number]
            by_use[number] = by_use.pop(number)
        assert lru.taken <= lru.bound
        by_use = dict(list(by_use.items())[len(by_use) - lru.entries :])

    assert all(lru.get(digest(number), 0.0) == blob for number, blob in by_use.items())


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_owners_without_entries_take_nothing(is_forgotten: bool) -> None:
    """However many have come and gone beside one that stays."""
    lru, taken = Lru(MIB), set[float]()
    lru.put(digest("stays"), b"stays", FOREVER, ("stays", "m"))

    for number in range(50):
        lru.put(digest(number), b"goes", FOREVER, (f"t{number}", "m"))
        taken.add(lru.taken)
        if is_forgotten:
            lru.forget(lambda name: name[0] != "stays")
            lru.sweep(0.0)
        lru.drop(digest(number))

    assert max(taken) - min(taken) < KIB


def fill(lru: Lru, size: int, times: float = 1.5) -> None:
    """Put in entries of this size, so many times what fits."""
    for number in range(int(times * lru.bound / (1.5 * size + 600))):
        lru.put(digest(size, number), bytes(size), FOREVER, (f"t{number % 7}", "m"))


@pytest.mark.parametrize("order", [(40_000, 700), (700, 40_000), (200_000, 3_000), (3_000, 200_000)])
def test_memory_follows_the_sizes_of_entries(order: tuple[int, int]) -> None:
    """Where all was taken by entries of one kind, as many of another kind find room as on an empty lru, or not many less."""
    lru, empty = Lru(4 * MIB), Lru(4 * MIB)
    fill(lru, order[0])

    fill(lru, order[1])
    fill(empty, order[1])

    assert lru.entries >= 0.75 * empty.entries


def test_forgetting_takes_no_step_for_an_entry() -> None:
    """Entries are given no more from that moment; their memory goes back step by step, and all of it in the end."""
    lru = Lru(8 * MIB)
    fill(lru, 700, times=0.5)
    taken, there = lru.taken, lru.entries

    count = lru.forget(lambda name: name[0] != "t3")

    assert count == pytest.approx(there * 6 / 7, abs=1)
    assert (lru.entries, lru.taken) == (there - count, taken)
    assert lru.get(digest(700, 0), 0.0) is None
    assert lru.get(digest(700, 3), 0.0) is not None
    assert lru.forget(lambda name: True) == there - count
    for _ in range(there // LET_GO + 1):
        lru.sweep(0.0)
    assert (lru.taken, lru.is_empty) == (0, True)


def test_what_was_forgotten_goes_before_what_is_kept() -> None:
    """However recently it was used."""
    lru = Lru(MIB)
    lru.put(digest("kept"), bytes(700), FOREVER, ("kept", "m"))
    fill(lru, 700, times=0.3)
    lru.forget(lambda name: name[0] != "kept")

    fill(lru, 701, times=0.5)

    assert lru.get(digest("kept"), 0.0) is not None


def test_a_name_that_was_forgotten_can_be_used_again() -> None:
    """What is put after is not what was forgotten."""
    lru = Lru(MIB)
    lru.put(digest(1), b"old", FOREVER, ("t", "m"))
    lru.put(digest(2), b"old", FOREVER, ("t", "m"))

    lru.forget(lambda name: True)
    lru.put(digest(1), b"new", FOREVER, ("t", "m"))
    lru.sweep(0.0)

    assert [lru.get(digest(number), 0.0) for number in (1, 2)] == [b"new", None]
    assert lru.entries == 1


def test_a_sweep_is_never_long() -> None:
    """However much has run out, or is too much, or was forgotten."""
    lru = Lru(16 * MIB)
    fill(lru, 700, times=0.8)
    there = lru.entries
    lru.bound = 0

    left = [there]
    while not lru.is_empty:
        lru.sweep(2 * FOREVER if len(left) % 2 else 0.0)
        left.append(lru.entries)

    assert 0 < max(before - after for before, after in pairwise(left)) <= 2 * LET_GO


def test_memory_that_is_not_needed_is_given_back() -> None:
    """When most entries have run out, the rest does not hold the memory of all."""
    lru = Lru(16 * MIB)
    for number in range(9_000):
        lru.put(digest(number), bytes(700), 1.0 if number % 10 else 3.0)
    full = lru.taken

    for _ in range(60):
        lru.sweep(2.0)

    assert lru.entries == 900
    assert lru.taken < 0.3 * full
    assert all(lru.get(digest(number), 2.0) == bytes(700) for number in range(0, 9_000, 10))


def test_what_is_taken_is_what_is_resident() -> None:
    """After entries of ever other sizes have replaced each other, or not much more; `make soak` shows it for a gigabyte."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.drivers.churn", str(16 * MIB), "3"], capture_output=True, check=True
    )

    for line in ran.stdout.splitlines():
        found = json.loads(line)
        assert 0.9 <= found["stated"] <= 1.0
        assert found["resident"] <= 1.25, found  # so little that what is given back at once, 4 MiB, counts


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
