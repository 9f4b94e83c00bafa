"""The partitions of the semantic cache: in memory while they are used, else in the store.

A partition is loaded when it is first asked for. It must not know questions or guards. Invariants: a row that is added
while its partition is being loaded is there when it has been; what is forgotten meanwhile does not come back; without
a store that answers, calls go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.core.clock import Clock
from gateway.core.ports import Later, VectorRow, Vectors
from gateway.features.semantic.lookup.question.ports import Index, Neighbourhood
from gateway.features.semantic.lookup.tasks import Background, result_by

MOST_LOADING = 64
MOST_LATE = 1000
"""The rows that may wait for their partition; further ones are found when it is loaded the next time."""
MOST_KNOWN = 10_000
FEW_ROWS = 250
"""This number of rows is made ready on the event loop, within two milliseconds; more go to a thread."""


class Partitions:
    """The index in memory, with the store behind it."""

    def __init__(self, clock: Clock, index: Index, store: Vectors) -> None:
        self._clock = clock
        self._index = index
        self._store = store
        self._background = Background(MOST_LOADING)
        self._loading: dict[bytes, asyncio.Task[Neighbourhood | None]] = {}
        self._late: dict[bytes, list[tuple[VectorRow, int]]] = {}
        self._most: dict[bytes, int] = {}
        """The number of rows last asked for, by partition, as long as it is known."""
        self._forgotten = 0
        """The number of `forget` calls; a load that began before the last one begins again."""

    @property
    def loading(self) -> int:
        """The number of partitions that are being loaded."""
        return len(self._loading)

    async def open(self, partition: bytes, most: int, deadline: float) -> Neighbourhood | None:
        """Returns the partition, loaded with its newest `most` rows if needed; None: not before `deadline` (monotonic)."""
        self._note(partition, most)
        rows = self._index.get(partition)
        if rows is not None:
            return rows
        begun = self._loading.get(partition) or self._begin(partition, most)
        return await result_by(self._clock, begun, deadline) if isinstance(begun, asyncio.Task) else begun

    def add(self, row: VectorRow, most: int) -> None:
        """Adds a row both to the store and to the partition in memory."""
        self._store.add(row)
        self._note(row.partition, most)
        if self._index.get(row.partition) is None and row.partition not in self._loading:
            self._begin(row.partition, most)
        self._add_here(row, most)

    def hear(self, row: VectorRow) -> None:
        """Adds another replica's row to its partition, if that is in memory."""
        most = self._most.get(row.partition)
        if most is not None:
            self._add_here(row, most)

    def _add_here(self, row: VectorRow, most: int) -> None:
        late = self._late.get(row.partition)
        if late is None:
            self._index.add(row, most)
        elif len(late) < MOST_LATE:
            late.append((row, most))

    def remove(self, partition: bytes, id: bytes) -> None:
        """Removes one row whose answer is gone."""
        self._forgotten += partition in self._loading
        self._index.remove(partition, id)
        self._store.remove(partition, (id,))

    async def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Removes rows in memory and in the store, as `Answers.forget` does; returns their number."""
        here = self.forget_here(key=key, model=model, tenant=tenant)
        told = self._store.forget(key=key, model=model, tenant=tenant)
        return max(here, await told if isinstance(told, asyncio.Future) else told)

    def forget_here(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Removes rows in memory only, because the store has removed them already."""
        self._forgotten += 1
        return self._index.forget(key=key, model=model, tenant=tenant)

    async def aclose(self) -> None:
        """Stops all loads."""
        await self._background.aclose()

    def _note(self, partition: bytes, most: int) -> None:
        if len(self._most) >= MOST_KNOWN:
            self._most.clear()
        self._most[partition] = most

    def _begin(self, partition: bytes, most: int) -> Neighbourhood | asyncio.Task[Neighbourhood | None] | None:
        """Loads the partition: at once if the store has it at hand, with few rows."""
        told = self._store.load(partition, most)
        if not isinstance(told, asyncio.Future) and len(told) <= FEW_ROWS:
            built = self._index.build(told, most)
            self._index.put(partition, built)
            return built
        task = self._background.start(self._load(partition, told, most, self._forgotten))
        if task is not None:
            self._loading[partition] = task
            self._late[partition] = []
            task.add_done_callback(lambda _: self._ended(partition))
        return task

    async def _load(
        self, partition: bytes, told: Later[Sequence[VectorRow]], most: int, forgotten: int
    ) -> Neighbourhood | None:
        rows = await told if isinstance(told, asyncio.Future) else told
        if len(rows) <= FEW_ROWS:
            built = self._index.build(rows, most)
        else:
            built = await asyncio.get_running_loop().run_in_executor(None, self._index.build, rows, most)
        if self._forgotten != forgotten:  # some of these may be what was forgotten: whoever asks next loads anew
            return None
        self._index.put(partition, built)
        for row, its_most in self._late.pop(partition, ()):
            self._index.add(row, its_most)
        return built

    def _ended(self, partition: bytes) -> None:
        """Ends a load, also one that was cancelled or failed; the store has the rows that came too late."""
        self._loading.pop(partition, None)
        self._late.pop(partition, None)
