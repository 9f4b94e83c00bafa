"""The store that is this process's own memory: the default. Everything is there at once, and gone with the process.

Three uses behind one port; each keeps to its own bytes. It must not know a file, a socket or the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.policy.snapshot import StoreBounds
from gateway.ports import Answers, Objects, Records, VectorRow, Vectors
from gateway.store.memory.answers import MemoryAnswers
from gateway.store.memory.objects import MemoryObjects
from gateway.store.memory.records import MemoryRecords


class MemoryVectors:
    """`gateway.ports.Vectors`, of which nothing outlives the process: the index itself is where the rows are."""

    __slots__ = ()

    def add(self, row: VectorRow) -> None:
        """Nothing to do: the index has it."""

    def load(self, partition: bytes, most: int) -> Sequence[VectorRow]:
        """None: a new process begins with an empty index."""
        return ()

    def remove(self, partition: bytes, ids: Sequence[bytes]) -> None:
        """Nothing to do."""

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """None are here to be forgotten."""
        return 0


class MemoryStore:
    """`gateway.ports.Store`. `wall` gives seconds since the epoch."""

    __slots__ = ("_answers", "_objects", "_records", "answers", "is_local", "objects", "records", "vectors")

    def __init__(self, bounds: StoreBounds, wall: Callable[[], float]) -> None:
        self._records = MemoryRecords(bounds.records, wall)
        self._answers = MemoryAnswers(wall)
        self._answers.configure(bounds.answers)
        self.records: Records = self._records
        self.answers: Answers = self._answers
        self.vectors: Vectors = MemoryVectors()
        self._objects = MemoryObjects(bounds.objects)
        self.objects: Objects = self._objects
        self.is_local = True

    def configure(self, bounds: StoreBounds) -> None:
        """Keep to these from now on; what is too much by now goes step by step, with every `tick` and every new entry."""
        self._answers.configure(bounds.answers)
        self._records.configure(bounds.records)
        self._objects.configure(bounds.objects)

    def tick(self) -> None:
        """Called about once a second: forgets some of what has expired, never for long."""
        self._answers.tick()
        self._records.tick()

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Entries, and the bytes of memory that they take, whichever of it is free for new ones."""
        return {
            "answers": self._answers.stats(),
            "records": self._records.stats(),
            "vectors": {"entries": 0, "bytes": 0},
        }

    async def aclose(self) -> None:
        """Nothing is to be done: it goes with the process."""
