"""The partitions of the semantic cache that are in memory: who may stay, and how a vector is made small.

A vector is kept as one signed byte per dimension; its length is of no interest, only its direction. `nearest.py` has what
happens inside a partition. It must not know where rows outlive the process. Needs numpy (the extra `semantic`).
Invariant: `bytes` is the sum over all partitions and, but for a single one, at most `max_bytes`.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gateway.core.ports import VectorRow
from gateway.features.semantic.index.vectors import Sketches
from gateway.features.semantic.lookup.question import Neighbourhood
from gateway.features.semantic.nearest import PARTITION_BYTES, Partition, row_bytes

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

MAX_BYTES = 512 * 1024 * 1024
NOT_INSTALLED = (
    "the semantic cache needs the Python package numpy, which is not installed "
    "(the extra semantic: pip install 'llm-gateway-sidecar[semantic]')"
)


class VectorIndex:
    """Partitions in memory; the least recently used go first when all together take more than `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """Raises ImportError without numpy."""
        os.environ.setdefault(
            "OPENBLAS_NUM_THREADS", "1"
        )  # read at the import: two threads on busy cores take 5x as long
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
        """Removes one row, if it is there."""
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
