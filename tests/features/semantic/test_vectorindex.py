"""The nearest questions are found, the same as by comparing with each, whatever comes and goes meanwhile."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.features.semantic import index as nearest
from gateway.features.semantic.index import EXACT_ROWS, NOT_INSTALLED, PARTITION_BYTES, VectorIndex, row_bytes
from gateway.features.semantic.question import Near
from gateway.features.semantic.store import VectorRow
from gateway.features.semantic.vectors import reach
from tests.rows import rows

NOW = 1_800_000_000.0
HERE, THERE = b"h" * 32, b"t" * 32
ALL = 1_000_000
ROUNDING = 0.02
"""What a byte per dimension may change of a cosine, in the few dimensions of these tests."""


def row(number: int, vector: bytes, *, partition: bytes = HERE, expires_at: float = NOW + 60, **more: str) -> VectorRow:
    """A row with a number for its id."""
    model, tenant = more.get("model", "m"), more.get("tenant", "acme")
    return VectorRow(number.to_bytes(32, "big"), partition, vector, b"f%d" % number, model, tenant, NOW, expires_at)


def number_of(near: Near) -> int:
    return int.from_bytes(near.row.id, "big")


def numbers(found: list[Near]) -> list[int]:
    return [number_of(near) for near in found]


def cosine(one: list[float], other: list[float]) -> float:
    return float(np.dot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other)))


def index_of(*rows: VectorRow, most: int = ALL, max_bytes: int = 1 << 30) -> VectorIndex:
    """An index with one partition."""
    index = VectorIndex(max_bytes)
    index.put(HERE, index.build(rows, most))
    return index


def search(index: VectorIndex, vector: bytes, threshold: float = -1.0, most: int = ALL, now: float = NOW) -> list[Near]:
    """In the partition that the tests use."""
    partition = index.get(HERE)
    assert partition is not None
    return partition.search(vector, threshold, most, now)


def around(center: list[float], count: int, spread: float, seed: int = 1) -> list[list[float]]:
    """So many vectors in the neighbourhood of one."""
    draw = np.random.default_rng(seed)
    drawn: list[list[float]] = (np.asarray(center) + spread * draw.standard_normal((count, len(center)))).tolist()
    return drawn


vectors = st.lists(st.floats(-1, 1, width=16), min_size=8, max_size=8).filter(lambda v: max(map(abs, v)) > 0.01)


@given(vectors, st.floats(1e-3, 1e3))
def test_a_vector_is_packed_with_its_direction_only(vector: list[float], length: float) -> None:
    """A byte per dimension, whatever its length was, and the direction is nearly the same."""
    index = VectorIndex()

    packed = index.pack([value * length for value in vector])

    assert len(packed) == len(vector)
    assert cosine(index.unpack(packed).tolist(), vector) > 1 - ROUNDING / 10
    assert math.isclose(float(np.linalg.norm(index.unpack(packed))), 1.0, abs_tol=1e-5)


@rows("vector", [[], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [[1.0], [2.0]]])
def test_what_has_no_direction_is_refused(vector: list[float]) -> None:
    """A search with it could only find nonsense."""
    with pytest.raises(ValueError, match="a vector must have"):
        VectorIndex().pack(vector)


@given(st.lists(vectors, min_size=1, max_size=40), vectors, st.floats(-1, 1), st.integers(1, 10))
@settings(deadline=None)
def test_few_rows_are_searched_as_by_comparing_with_each(
    rows: list[list[float]], query: list[float], threshold: float, most: int
) -> None:
    """All that are near enough, the nearest first, no more than asked for; roundings apart."""
    index = VectorIndex()
    index.put(HERE, index.build([row(n, index.pack(vector)) for n, vector in enumerate(rows)], ALL))

    found = search(index, index.pack(query), threshold, most)

    exact = {number: cosine(vector, query) for number, vector in enumerate(rows)}
    assert [near.similarity for near in found] == sorted([near.similarity for near in found], reverse=True)
    assert all(near.similarity == pytest.approx(exact[number_of(near)], abs=ROUNDING) for near in found)
    sure = sorted((number for number in exact if exact[number] > threshold + ROUNDING), key=lambda n: -exact[n])
    assert len(found) >= min(most, len(sure))
    if found and len(sure) >= most:
        assert found[-1].similarity > exact[sure[most - 1]] - ROUNDING


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_many_rows_are_searched_as_by_comparing_with_each(threshold: float) -> None:
    """Thinning a large partition out loses nobody who is near enough."""
    query = around([0.0] * 64, 1, 1.0, seed=2)[0]
    spreads = np.linspace(0.05, 1.5, 5 * EXACT_ROWS)
    rows = [around(query, 1, spread, seed)[0] for seed, spread in enumerate(spreads.tolist())]
    index = VectorIndex()
    index.put(HERE, index.build([row(n, index.pack(vector)) for n, vector in enumerate(rows)], ALL))

    found = numbers(search(index, index.pack(query), threshold))

    exact = [cosine(vector, query) for vector in rows]
    assert {n for n in range(len(rows)) if exact[n] > threshold + 0.005} <= set(found)
    assert set(found) <= {n for n in range(len(rows)) if exact[n] > threshold - 0.005}


def test_where_nearly_all_are_near_the_nearest_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is bounded; even among equals, something is found, and the same vector first."""
    monkeypatch.setattr(nearest, "LARGEST_BLOCK", 2 * nearest._AT_A_TIME)
    monkeypatch.setattr(nearest, "MOST_EXACT", 100)
    count = 5 * nearest._AT_A_TIME
    index = VectorIndex()
    crowd = [index.pack(vector) for vector in around([1.0] * 32, count, 0.05)]
    index.put(HERE, index.build([row(number, vector) for number, vector in enumerate(crowd)], ALL))

    found = search(index, crowd[450], 0.5)
    index.put(HERE, index.build([row(number, crowd[0]) for number in range(count)], ALL))
    equals = search(index, crowd[0], 0.5)

    assert number_of(found[0]) == 450
    assert found[0].similarity == pytest.approx(1.0)
    assert len(found) == len(equals) == 100


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_a_lower_threshold_reaches_further(one: float, other: float) -> None:
    """And never less far than an equal vector's own sketch."""
    assert (reach(one) <= reach(other)) or one < other
    assert reach(one) > 0


def test_rows_past_their_time_are_not_found() -> None:
    """Whether or not they have been cleared away."""
    index = VectorIndex()
    vector = index.pack([1.0, 0.5])
    index.put(HERE, index.build([row(1, vector, expires_at=NOW + 5), row(2, vector)], ALL))

    assert numbers(search(index, vector, now=NOW + 4)) == [1, 2]
    assert numbers(search(index, vector, now=NOW + 5)) == [2]


def test_rows_past_their_time_make_room_for_those_that_come() -> None:
    """Without anybody looking for them."""
    index = VectorIndex()
    vector = index.pack([1.0, 0.5])
    index.put(HERE, index.build([row(number, vector, expires_at=NOW) for number in range(3)], ALL))
    before = index.bytes

    index.add(row(7, vector), ALL)
    index.add(row(8, vector), ALL)

    assert numbers(search(index, vector, now=0.0)) == [7, 8]
    assert index.bytes < before


def test_what_is_found_carries_all_but_its_vector() -> None:
    """The guards need its facts, who answers needs its id."""
    index = VectorIndex()
    kept = row(3, index.pack([1.0, 2.0]))
    index.put(HERE, index.build([], ALL))
    index.add(kept, ALL)

    (near,) = search(index, kept.vector)

    assert near.row == row(3, b"")
    assert near.row.facts == b"f3"


def test_an_id_comes_once() -> None:
    """The later vector stands, whether the rows come one by one or all at once."""
    index = VectorIndex()
    east, north = index.pack([1.0, 0.0]), index.pack([0.0, 1.0])
    index.put(HERE, index.build([row(1, east), row(1, north)], ALL))

    assert [near.similarity for near in search(index, north)] == [1.0]

    index.add(row(1, east), ALL)

    assert [near.similarity for near in search(index, north)] == [pytest.approx(0.0)]
    assert len(index) == 1


def test_vectors_of_other_dimensions_stay_out() -> None:
    """They are of another model, or damaged: neither loading nor adding takes them, searching with one finds nothing."""
    index = VectorIndex()
    two, three = index.pack([1.0, 0.0]), index.pack([1.0, 0.0, 0.0])
    index.put(HERE, index.build([row(1, three), row(2, two)], ALL))

    assert numbers(search(index, two)) == [2]
    assert search(index, three) == []
    index.add(row(3, three), ALL)
    assert numbers(search(index, two)) == [2]


def test_a_damaged_vector_of_zeros_is_near_to_nothing() -> None:
    """And disturbs nobody."""
    index = VectorIndex()
    vector = index.pack([1.0, 0.5])
    index.put(HERE, index.build([row(1, bytes(2)), row(2, vector)], ALL))

    assert numbers(search(index, vector, 0.1)) == [2]


def test_the_oldest_rows_go_first() -> None:
    """When there are as many as there may be, on loading and on adding."""
    index = VectorIndex()
    vector = index.pack([1.0, 0.5])
    index.put(HERE, index.build([row(number, vector) for number in range(5)], 3))

    assert sorted(numbers(search(index, vector))) == [2, 3, 4]

    index.add(row(2, vector), 3)
    index.add(row(9, vector), 3)

    assert sorted(numbers(search(index, vector))) == [2, 4, 9]


def test_a_slot_is_used_again() -> None:
    """Rows that come and go take no more room than those that are there at one time."""
    index = VectorIndex()
    vector = index.pack([1.0] * 64)
    index.put(HERE, index.build([], ALL))
    index.add(row(0, vector), 10)
    for number in range(200):
        index.add(row(number, vector), 10)

    assert len(index) == 10
    assert index.bytes <= 16 * row_bytes(64) + PARTITION_BYTES


def test_a_partition_with_one_row_is_small() -> None:
    """Most conversations are had once."""
    index = VectorIndex()
    index.put(HERE, index.build([], ALL))

    index.add(row(0, index.pack([1.0] * 1536)), ALL)

    assert index.bytes < 8 * 1024


def test_the_least_recently_used_partition_goes_first() -> None:
    """Under a bound that all of them share; who adds or searches uses."""
    bound = 3 * (row_bytes(64) + PARTITION_BYTES)
    index = VectorIndex(bound)
    vector = index.pack([1.0] * 64)
    names = [bytes([number]) * 32 for number in range(4)]
    for name in names[:3]:
        index.put(name, index.build([row(1, vector, partition=name)], ALL))
    index.get(names[0])
    index.add(row(1, vector, partition=names[1]), ALL)

    index.put(names[3], index.build([row(1, vector, partition=names[3])], ALL))

    assert [index.get(name) is not None for name in names] == [True, True, False, True]
    assert index.bytes <= bound


@pytest.mark.parametrize("loaded", [0, 900])
def test_a_single_partition_keeps_to_the_bound_too(loaded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own oldest rows go when it may not grow, on loading and on adding."""
    monkeypatch.setattr(nearest, "LARGEST_BLOCK", nearest._AT_A_TIME)
    dims, count = 64, 1200
    bound = 600 * row_bytes(dims)
    index = VectorIndex(bound)
    packed = [index.pack(vector) for vector in around([0.0] * dims, count, 1.0)]
    index.put(HERE, index.build([row(number, vector) for number, vector in enumerate(packed[:loaded])], ALL))

    for number in range(loaded, count):
        index.add(row(number, packed[number]), ALL)
        assert index.bytes <= bound

    assert len(index) > 300
    assert numbers(search(index, packed[-1], 0.9)) == [count - 1]
    assert search(index, packed[0], 0.99) == []


def test_nothing_is_kept_of_a_partition_that_is_not_in_memory() -> None:
    """Its rows come with the others when it is loaded."""
    index = VectorIndex()

    index.add(row(1, index.pack([1.0])), ALL)

    assert index.get(HERE) is None
    assert len(index) == index.bytes == 0


def test_forgetting_goes_by_key_model_and_tenant() -> None:
    """Whatever matches all that is given; everything when nothing is."""
    index = VectorIndex()
    vector = index.pack([1.0, 2.0])

    def refill() -> None:
        index.put(HERE, index.build([row(1, vector), row(2, vector)], ALL))
        index.put(THERE, index.build([row(1, vector, partition=THERE, model="n", tenant="b")], ALL))

    refill()
    assert index.forget(key=(1).to_bytes(32, "big"), model="m") == 1
    assert [len(index), numbers(search(index, vector))] == [2, [2]]
    refill()
    assert index.forget(tenant="b", model="m") == 0
    assert index.forget(tenant="b") == 1
    assert index.forget(model="m") == 2
    assert len(index) == index.bytes == 0
    refill()
    assert index.forget(key=(1).to_bytes(32, "big")) == 2
    assert index.forget() == 1


def test_only_its_own_partitions_are_taken() -> None:
    """Another index would count their bytes differently."""

    class Foreign:
        def __len__(self) -> int:
            return 0

        def search(self, vector: bytes, threshold: float, most: int, now_wall: float) -> list[Near]:
            return []

    with pytest.raises(TypeError, match="only what this index has built"):
        VectorIndex().put(HERE, Foreign())


def test_without_numpy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads it knows what to install."""
    monkeypatch.setitem(sys.modules, "numpy", None)

    with pytest.raises(ImportError) as caught:
        VectorIndex()

    assert str(caught.value) == NOT_INSTALLED


class Naive(RuleBasedStateMachine):
    """Rows come, go and expire; a dictionary knows who should be there."""

    def __init__(self) -> None:
        super().__init__()
        self.index = index_of()
        self.most = 12
        self.now = NOW
        self.there: dict[int, VectorRow] = {}
        self.must_be: list[int] = []
        """Those who cannot have made room for others, oldest first."""

    @rule(number=st.integers(0, 30), vector=vectors, lives_s=st.floats(0, 40))
    def add(self, number: int, vector: list[float], lives_s: float) -> None:
        one = row(number, self.index.pack(vector), expires_at=self.now + lives_s)
        self.index.add(one, self.most)
        self.there.pop(number, None)
        self.there[number] = one
        self.must_be = [*[other for other in self.must_be if other != number], number][-self.most :]

    @rule(number=st.integers(0, 30))
    def remove(self, number: int) -> None:
        self.index.remove(HERE, number.to_bytes(32, "big"))
        self.there.pop(number, None)
        self.must_be = [other for other in self.must_be if other != number]

    @rule(seconds=st.floats(0.1, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def reload(self) -> None:
        self.index.put(HERE, self.index.build(list(self.there.values()), self.most))
        self.must_be = list(self.there)[-self.most :]

    @invariant()
    def finds_those_who_are_there(self) -> None:
        found = search(self.index, self.index.pack([1.0] * 8), -1.0, ALL, self.now)
        alive = {number for number, one in self.there.items() if one.expires_at > self.now}
        assert alive & set(self.must_be) <= set(numbers(found)) <= alive
        assert len(self.index) <= self.most
        assert self.index.bytes <= 16 * row_bytes(8) * 8 + PARTITION_BYTES


def test_whatever_comes_and_goes_the_right_rows_are_found() -> None:
    """The newest that are alive are always found, and never one that was removed or has expired."""
    run_state_machine_as_test(Naive, settings=settings(stateful_step_count=30, deadline=None))


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_a_search_beside_changes_never_mixes_rows_up(quick_switches: None) -> None:
    """While slots are used again and again, no row is found with the vector of another.

    Rows with an even number point east, the others north, and each slot serves both kinds.
    """
    dims = 1024
    index = VectorIndex()
    kinds = [
        index.pack([1.0] * (dims // 2) + [0.01] * (dims // 2)),
        index.pack([0.01] * (dims // 2) + [1.0] * (dims // 2)),
    ]
    index.put(HERE, index.build([row(number, kinds[number % 2]) for number in range(40)], ALL))
    partition = index.get(HERE)
    assert partition is not None
    mixed_up: list[int] = []
    count = 0

    def look() -> None:
        nonlocal count
        while count < 100 or number == 41:  # at least one change falls into the searches
            found = numbers(partition.search(kinds[count % 2], 0.9, ALL, NOW))
            mixed_up.extend(number for number in found if number % 2 != count % 2)
            count += 1

    number = 41
    worker = Thread(target=look)
    worker.start()
    while worker.is_alive():
        index.add(row(number, kinds[number % 2]), 39)
        number += 1
    worker.join()

    assert mixed_up == []
    assert count >= 100
    assert number > 41


def test_a_row_that_changes_under_a_search_is_left_out() -> None:
    """Between looking whose a slot is and reading it, the slot goes to another."""
    index = VectorIndex()
    east, north = index.pack([1.0, 0.0]), index.pack([0.0, 1.0])
    index.put(HERE, index.build([row(1, north), row(2, east)], ALL))
    partition = index.get(HERE)
    assert partition is not None
    (block,) = partition._blocks

    class Slots(list[VectorRow | None]):
        """Row 1 is replaced right after it was looked at for the first time."""

        looks = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]  # as the list's own, which has two
            seen = super().__getitem__(at)
            self.looks += 1
            if self.looks == 1:
                index.remove(HERE, (1).to_bytes(32, "big"))
                index.add(row(3, east), ALL)
            return seen

    block.rows = Slots(block.rows)

    assert numbers(partition.search(east, 0.9, ALL, NOW)) == [2]
    assert sorted(numbers(partition.search(east, 0.9, ALL, NOW))) == [2, 3]


def test_loading_lets_other_threads_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large partition is built in pieces, with a break behind each."""
    breaks: list[float] = []
    monkeypatch.setattr(nearest, "sleep", breaks.append)
    index = VectorIndex()
    vector = index.pack([1.0, 2.0])

    index.build([row(number, vector) for number in range(1000)], ALL)

    assert len(breaks) >= 4
