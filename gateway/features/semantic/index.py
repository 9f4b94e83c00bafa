"""The partitions of the semantic cache that are in memory: who may stay, and how a vector is made small.

First the search in one partition, then the index of all. A vector is kept as one signed byte per dimension; its length is of
no interest, only its direction. Where rows outlive the process is not known here. Needs numpy (the extra `semantic`).
Invariant: `bytes` is the sum over all partitions and, but for a single one, at most `max_bytes`.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module
from time import sleep
from typing import TYPE_CHECKING, Any

from gateway.features.semantic.question import Near, Neighbourhood
from gateway.features.semantic.store import VectorRow
from gateway.features.semantic.vectors import SKETCH_BITS, Sketches, reach

if TYPE_CHECKING:
    from numpy import float32, int8, uint64
    from numpy.typing import NDArray

# --- the nearest questions of one partition, by brute force: the cosine of one vector with every row ---

ROW_BYTES = 520
"""The bytes of a row's Python objects, beside its vector and sketch."""
PARTITION_BYTES = 600
"""The bytes of an empty partition, with its place in the index."""
EXACT_ROWS = 256
"""A partition with no more rows than this is searched in full."""
MOST_EXACT = 2048
"""The most cosines that are computed, of the rows nearest by sketch: 3 ms at 1,536 dimensions."""
FIRST_BLOCK, LARGEST_BLOCK = 4, 4096

_AT_A_TIME = 256  # divides the largest block; a millisecond's work
_MAX_EXPIRED = 2  # more than one for each that comes: there is no backlog


def row_bytes(dims: int) -> int:
    """Returns all bytes of a row in a full block."""
    return dims + SKETCH_BITS // 8 + 4 + ROW_BYTES


class Partition:
    """The rows of one partition, in blocks that never move; a freed slot is used again.

    To read all vectors takes longer than a call should wait (27 ms for 50,000 of 1,536 dimensions), so a large partition is
    first thinned out by the sketches of its rows, and only the cosine of the rest is computed. numpy comes from the index.

    Invariants: a row is written by the event loop's thread alone, and nothing that a search reads is ever moved or resized;
    while a slot is written it belongs to no row, so a search that finds the same row object before and after it has read a slot
    has read that row and no other.
    """

    __slots__ = ("_blocks", "_capacity", "_dims", "_free", "_np", "_sketches", "_slots", "bytes")

    def __init__(self, np: Any, sketches: Sketches, dims: int) -> None:
        """`dims` is the number of dimensions; 0: as many as the first row has."""
        self._np = np
        self._sketches = sketches
        self._dims = dims
        self._blocks: list[_Block] = []
        self._capacity = 0
        self._slots: OrderedDict[bytes, tuple[_Block, int]] = OrderedDict()
        """The block and slot of each row, by id, oldest first."""
        self._free: list[tuple[_Block, int]] = []
        self.bytes = PARTITION_BYTES

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def growth(self) -> int:
        """The bytes that the partition grows by when its next block is full."""
        return self._next_size() * row_bytes(self._dims)

    def belongs_to(self, model: str | None, tenant: str | None) -> bool:
        """Returns whether the rows are of this model and tenant, as far as they are given; always true without rows."""
        row = next((block.rows[at] for block, at in self._slots.values()), None)
        return row is None or (model in (None, row.model) and tenant in (None, row.tenant))

    def fill(self, rows: Sequence[VectorRow]) -> None:
        """Fills an empty partition with many rows at once; of two with one id, the later one stays."""
        rows = list({row.id: row for row in rows}.values())
        for first in range(0, len(rows), _AT_A_TIME):
            some = rows[first : first + _AT_A_TIME]
            block = self._blocks[-1] if self._has_room() else self._grow(min(len(rows) - first, LARGEST_BLOCK))
            codes = self._np.frombuffer(b"".join([row.vector for row in some]), self._np.int8).reshape(len(some), -1)
            places = range(block.used, block.used + len(some))
            block.write_all(codes, self._sketches.of_many(codes), [_without_vector(row) for row in some])
            self._slots.update({row.id: (block, at) for at, row in zip(places, some, strict=True)})
            sleep(0)  # calls are served in another thread, which must not wait for this one
        self.bytes += ROW_BYTES * len(rows)

    def add(self, row: VectorRow, most: int, *, may_grow: bool = True) -> None:
        """Adds a row; the oldest goes if there may be no more rows and no growth. One of other dimensions stays out."""
        self._dims = self._dims or len(row.vector)
        if len(row.vector) != self._dims:
            return
        self.remove(row.id)
        self._forget_expired(row.stored_at)
        while self._slots and (len(self) >= most or not (self._free or may_grow or self._has_room())):
            self.remove(next(iter(self._slots)))
        block, at = slot = self._free.pop() if self._free else self._next_slot()
        codes = self._np.frombuffer(row.vector, self._np.int8)
        block.write(at, codes, self._sketches.of(codes), _without_vector(row))
        self._slots[row.id] = slot
        self.bytes += ROW_BYTES

    def remove(self, id: bytes) -> None:
        """Removes the row, so that no search finds it any more."""
        slot = self._slots.pop(id, None)
        if slot is not None:
            slot[0].rows[slot[1]] = None
            self._free.append(slot)
            self.bytes -= ROW_BYTES

    def search(self, vector: bytes, threshold: float, most: int, now_wall: float) -> list[Near]:
        """Returns the rows whose cosine is at least `threshold`, the nearest first. May be called in any thread."""
        np = self._np
        if len(vector) != self._dims:
            return []
        query: NDArray[float32] = np.frombuffer(vector, np.int8).astype(np.float32)
        query /= np.linalg.norm(query)
        found: list[Near] = []
        for block, places in self._candidates(vector, threshold):
            found += block.nearest(places, query, threshold, most, now_wall)
        found.sort(key=lambda near: -near.similarity)
        return found[:most]

    def _candidates(self, vector: bytes, threshold: float) -> list[tuple[_Block, Any]]:
        """Returns the blocks, each with the slots whose cosine has to be computed."""
        np = self._np
        blocks = self._blocks.copy()
        if self._capacity <= EXACT_ROWS:
            return [(block, np.arange(block.used)) for block in blocks]
        sketch = self._sketches.of(np.frombuffer(vector, np.int8))
        distances = [block.distances(sketch) for block in blocks]
        near = [np.flatnonzero(some <= reach(threshold)) for some in distances]
        if sum(map(len, near)) > MOST_EXACT:
            near = self._nearest_by_sketch(distances)
        return list(zip(blocks, near, strict=True))

    def _nearest_by_sketch(self, distances: list[Any]) -> list[Any]:
        """Returns for each block the slots of the nearest `MOST_EXACT` rows by sketch, in all blocks together."""
        np = self._np
        nearest = np.sort(np.argpartition(np.concatenate(distances), MOST_EXACT)[:MOST_EXACT])
        ends = np.cumsum([len(some) for some in distances])
        parts = np.split(nearest, np.searchsorted(nearest, ends[:-1]))
        return [part - (end - len(some)) for part, end, some in zip(parts, ends, distances, strict=True)]

    def _forget_expired(self, now_wall: float) -> None:
        for _ in range(_MAX_EXPIRED):
            id, (block, at) = next(iter(self._slots.items()), (b"", (None, 0)))
            row = block.rows[at] if block is not None else None
            if row is None or row.expires_at > now_wall:
                return
            self.remove(id)

    def _has_room(self) -> bool:
        return bool(self._blocks) and self._blocks[-1].used < len(self._blocks[-1].rows)

    def _next_size(self) -> int:
        """Returns the next block's size. Sizes double, so few rows take little room, and many rows few blocks."""
        return min(max(self._capacity, FIRST_BLOCK), LARGEST_BLOCK)

    def _next_slot(self) -> tuple[_Block, int]:
        """Returns a slot that was never used."""
        block = (
            self._blocks[-1] if self._has_room() else self._grow(min(max(self._capacity, FIRST_BLOCK), LARGEST_BLOCK))
        )
        block.used += 1
        return block, block.used - 1

    def _grow(self, size: int) -> _Block:
        block = _Block(self._np, size, self._dims)
        self._blocks.append(block)
        self._capacity += size
        self.bytes += block.bytes
        return block


class _Block:
    """A fixed number of slots."""

    __slots__ = ("_np", "codes", "inverse", "rows", "sketches", "used")

    def __init__(self, np: Any, size: int, dims: int) -> None:
        self._np = np
        self.codes: NDArray[int8] = np.empty((size, dims), np.int8)
        self.inverse: NDArray[float32] = np.zeros(size, np.float32)
        """The inverse of the length of each vector."""
        self.sketches: NDArray[uint64] = np.empty((SKETCH_BITS // 64, size), np.uint64)
        self.rows: list[VectorRow | None] = [None] * size
        self.used = 0
        """The number of slots that have been written."""

    @property
    def bytes(self) -> int:
        return self.codes.nbytes + self.inverse.nbytes + self.sketches.nbytes

    def write(self, at: int, codes: NDArray[int8], sketch: NDArray[uint64], row: VectorRow) -> None:
        """Writes into a slot that belongs to no row."""
        self.codes[at] = codes
        self.inverse[at] = self._inverse(codes)
        self.sketches[:, at] = sketch
        self.rows[at] = row

    def write_all(self, codes: NDArray[int8], sketches: NDArray[uint64], rows: Sequence[VectorRow]) -> None:
        """Writes into the next slots of a block that no search reads yet."""
        places = slice(self.used, self.used + len(rows))
        self.codes[places] = codes
        self.inverse[places] = self._inverse(codes)
        self.sketches[:, places] = sketches.T
        self.rows[places] = rows
        self.used += len(rows)

    def _inverse(self, codes: NDArray[int8]) -> Any:
        """Returns one over the vectors' lengths; 0 for a damaged row of zeros, which is then near to nothing."""
        return 1.0 / self._np.maximum(1.0, self._np.linalg.norm(codes.astype(self._np.float32), axis=-1))

    def distances(self, sketch: NDArray[uint64]) -> Any:
        """Returns the number of bits in which each sketch differs."""
        np, used = self._np, self.used
        total = np.zeros(used, np.uint16)
        for word, column in zip(sketch, self.sketches, strict=True):
            total += np.bitwise_count(column[:used] ^ word)
        return total

    def nearest(self, places: Any, query: NDArray[float32], threshold: float, most: int, now_wall: float) -> list[Near]:
        """Returns the nearest `most` of the slots at `places` that reach the threshold, best first."""
        np, rows = self._np, self.rows
        before = [rows[at] for at in places.tolist()]  # first whose they are, then what is in them
        similarities = (self.codes[places].astype(np.float32) @ query) * self.inverse[places]
        hits = np.flatnonzero(similarities >= threshold)
        near: list[Near] = []
        for which in hits[np.argsort(-similarities[hits])].tolist():
            row = before[which]
            is_torn = rows[int(places[which])] is not row
            if row is not None and not is_torn and row.expires_at > now_wall:
                near.append(Near(row, min(1.0, float(similarities[which]))))
                if len(near) == most:
                    break
        return near


# --- the index of all partitions ---


def _without_vector(row: VectorRow) -> VectorRow:
    """Returns the row without its vector: as `replace` does, in half the time."""
    return VectorRow(row.id, row.partition, b"", row.facts, row.model, row.tenant, row.stored_at, row.expires_at)


MAX_BYTES = 512 * 1024 * 1024
NOT_INSTALLED = (
    "the semantic cache needs the Python package numpy, which is not installed "
    "(the extra semantic: pip install 'llm-gateway-sidecar[semantic]')"
)


class VectorIndex:
    """Partitions in memory; the least recently used go first when all together take more than `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """Raises ImportError without numpy."""
        # It is read at the import: two threads on busy cores take five times as long.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        try:
            self._np: Any = import_module("numpy")  # an extra, and slow to import
        except ImportError as error:
            raise ImportError(NOT_INSTALLED) from error
        self._max_bytes = max_bytes
        self._sketches = Sketches(self._np)
        self._partitions: OrderedDict[bytes, Partition] = OrderedDict()
        self.bytes = 0
        """The bytes that all partitions take."""

    def __len__(self) -> int:
        return sum(map(len, self._partitions.values()))

    def __repr__(self) -> str:
        return f"VectorIndex({len(self._partitions)} partitions, {len(self)} rows, {self.bytes} bytes)"

    def pack(self, vector: Sequence[float]) -> bytes:
        """Returns the vector's direction in one signed byte per dimension. Raises ValueError for a vector without direction."""
        np = self._np
        values: NDArray[float32] = np.asarray(vector, np.float32)
        largest = float(np.abs(values).max()) if values.ndim == 1 and values.size else 0.0
        if not 0.0 < largest < math.inf:
            raise ValueError("a vector must have at least one number, none infinite, and not all of them zero")
        packed: bytes = np.rint(values * (127.0 / largest)).astype(np.int8).tobytes()
        return packed

    def unpack(self, packed: bytes) -> NDArray[float32]:
        """Returns a vector of length 1 with nearly the direction of the packed one."""
        values: NDArray[float32] = self._np.frombuffer(packed, self._np.int8).astype(self._np.float32)
        unit: NDArray[float32] = values / self._np.linalg.norm(values)
        return unit

    def build(self, rows: Sequence[VectorRow], most: int) -> Partition:
        """Returns a partition of the last `most` rows, or as many as have room; rows of other dimensions are left out."""
        dims = len(rows[-1].vector) if rows else 0
        partition = Partition(self._np, self._sketches, dims)
        room = max(1, min(most, (self._max_bytes - PARTITION_BYTES) // row_bytes(dims)))
        partition.fill([row for row in rows if len(row.vector) == dims][-room:])
        return partition

    def put(self, partition: bytes, built: Neighbourhood) -> None:
        """Makes the partition searchable from now on."""
        if not isinstance(built, Partition):
            raise TypeError("only what this index has built")
        self._drop(partition)
        self._partitions[partition] = built
        self.bytes += built.bytes
        self._make_room()

    def get(self, partition: bytes) -> Partition | None:
        """Returns the partition, and marks it as just used."""
        found = self._partitions.get(partition)
        if found is not None:
            self._partitions.move_to_end(partition)
        return found

    def add(self, row: VectorRow, most: int) -> None:
        """Adds the row to its partition, unless its vector has other dimensions than the others there."""
        partition = self.get(row.partition)
        if partition is None:
            return
        before = partition.bytes
        partition.add(row, most, may_grow=before + partition.growth <= self._max_bytes)
        self.bytes += partition.bytes - before
        self._make_room()

    def remove(self, partition: bytes, id: bytes) -> None:
        found = self._partitions.get(partition)
        if found is not None:
            before = found.bytes
            found.remove(id)
            self.bytes += found.bytes - before

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Removes all rows that match every argument given; a partition has one model and one tenant."""
        matching = [name for name, one in self._partitions.items() if one.belongs_to(model, tenant)]
        if key is None:
            return sum([self._drop(name) for name in matching])
        before = len(self)
        for name in matching:
            self.remove(name, key)
        return before - len(self)

    def _make_room(self) -> None:
        while self.bytes > self._max_bytes and len(self._partitions) > 1:
            self._drop(next(iter(self._partitions)))

    def _drop(self, partition: bytes) -> int:
        """Removes the partition; returns the number of its rows."""
        dropped = self._partitions.pop(partition, None)
        if dropped is None:
            return 0
        self.bytes -= dropped.bytes
        return len(dropped)
