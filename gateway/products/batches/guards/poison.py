"""Lines that may have killed the process: found by running ever fewer of them, and given up once that is certain.

    a chunk whose worker died -> 8 lines at a time, noted as they begin -> those of a crash alone, and last -> given up

The first claim of a chunk costs nothing. A worker of a later one notes durably which lines it is about to begin: if it dies,
too, these are suspects, and the others are not. Suspects run alone, one at a time in a process. Invariant: a line is given up
only if it was the only suspect that ran in three processes that died; in more of them where other lines, too, were met by
crashes as they ran alone: then it is the process that is killed again and again, whatever it does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from gateway.products.batches.chunk.chunk_input.chunk_input import InputLine
from gateway.products.jobs.model.job import WriteResult
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import RunningWork

WINDOW = 8
"""Lines that run at a time in a chunk whose last worker died."""
MOST_CRASHES = 3
"""A line that was the only suspect so often is not run again. Fewer would take lines for the cause that were only there when a
process was killed from outside, more would take more than five crashes in all.
"""


class SuspectLines:
    """The suspects of one claimed chunk."""

    def __init__(self, store: JobStore, running: RunningWork, turn: asyncio.Lock) -> None:
        """`turn` is held by the one suspect that runs in this process."""
        self._store = store
        self._running = running
        self.turn = turn
        self._name = f"suspect:{running.work.piece}"
        self._crashes: dict[int, int] = {}
        """By line, how often it ran alone when its process died; those that have got a result since stay here, as a warning."""
        self._aside: deque[InputLine] = deque()
        self.is_on = running.work.claims > 1 or self._name in running.work.job.marks

    def __len__(self) -> int:
        """Returns how many lines wait to be run alone."""
        return len(self._aside)

    def open(self, has_result: Collection[int]) -> None:
        """Reads what the worker before was about to do."""
        mark = self._running.work.job.marks.get(self._name) or {}
        self._crashes = {int(line): crashes for line, crashes in mark.get("crashes", {}).items()}
        begun = [line for line in mark.get("running", ()) if line not in has_result]
        for line in begun:
            self._crashes[line] = self._crashes.get(line, 0) + (len(begun) == 1)

    def window(self, usual: int) -> int:
        """Returns how many lines may run at a time."""
        return min(usual, WINDOW) if self.is_on else usual

    def sort_out(self, lines: Sequence[InputLine]) -> tuple[list[InputLine], list[InputLine]]:
        """Returns the lines that may run beside others, and those to be given up; suspects are set aside."""
        others = sum(crashes > 0 for crashes in self._crashes.values()) - 1
        most = MOST_CRASHES + max(0, others)
        deadly = [line for line in lines if self._crashes.get(line.number, 0) >= most]
        self._aside.extend(line for line in lines if self._crashes.get(line.number, most) < most)
        return [line for line in lines if line.number not in self._crashes], deadly

    def crashes_of(self, line: int) -> int:
        """Returns how often a line ran alone when its process died."""
        return self._crashes.get(line, 0)

    def take(self) -> InputLine:
        """Returns the next line to be run alone: those go first that are the least suspicious."""
        line = min(self._aside, key=lambda one: (self._crashes[one.number], one.number))
        self._aside.remove(line)
        return line

    async def note(self, begun: Iterable[int]) -> bool:
        """Notes durably which lines are under way from now on; returns whether the chunk is still this worker's."""
        mark = {"running": sorted(begun), "crashes": {str(line): crashes for line, crashes in self._crashes.items()}}
        return await self._running.write(lambda: self._store.note(self._running.work, {self._name: mark}))

    async def begin_alone(self, line: int) -> bool:
        """Notes that a line runs alone, in its turn; returns whether it may."""
        return not self._running.stopping.is_set() and await self.note([line])

    async def clear(self) -> WriteResult:
        """Takes the note away: the worker ends its claim in order. Raises JobsUnavailable."""
        return await self._store.note(self._running.work, {self._name: None})
