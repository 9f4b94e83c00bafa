"""The results of a chunk's lines on their way into the store: many at a time, and in step with those of other chunks.

    add -> start -> (wait for the next beat) -> write -> kept

What a commit costs hardly depends on how many results it has, and the store makes one transaction of what comes together: so
all chunks of a process commit on the same beat. A chunk with nothing else to do does not wait for it.
"""

from __future__ import annotations

import asyncio

from gateway.core.clock import Clock
from gateway.products.batches.guards.tolerance import Tolerance
from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import DeadLetter
from gateway.products.jobs.model.lines import LineResult
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import RunningWork

BEAT_S = 0.025
"""A line's result waits in memory so long at most, unless the store is busy: a crash has it paid for once more."""
LAST_COMMIT_S = 2.0
"""The longest wait of a process that ends for a commit under way."""


class LineCommits:
    """Commits the results of one claimed chunk, one commit at a time."""

    def __init__(self, store: JobStore, running: RunningWork, clock: Clock, news: asyncio.Event) -> None:
        """`news` is set whenever a commit has ended."""
        self._store = store
        self._running = running
        self._clock = clock
        self._news = news
        self._results: list[LineResult] = []
        self._dead: list[DeadLetter] = []
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._defect: Exception | None = None
        self._tolerance = Tolerance(store, running)
        self.kept = 0
        """The lines whose results the store has."""

    def __len__(self) -> int:
        """Returns how many results wait for a commit."""
        return len(self._results)

    @property
    def is_idle(self) -> bool:
        """Tells whether nothing waits, no commit is under way, and none has failed."""
        return not self._results and self._task is None and self._defect is None

    def add(self, result: LineResult) -> None:
        """Takes the result of a line."""
        self._results.append(result)

    def add_letter(self, letter: DeadLetter) -> None:
        """Takes a dead letter about a line whose result is added before anything else happens."""
        self._dead.append(letter)

    def start(self, *, at_once: bool) -> None:
        """Commits what has come on the next beat, with what comes until then; `at_once`: now.

        Raises what a commit has failed with, other than for want of a store: its lines have no results, and not at once
        another chance.
        """
        if self._defect is not None:
            raise self._defect
        if self._results and self._task is None:
            self._hurry.clear()
            self._task = asyncio.create_task(self._commit())
        if at_once:
            self._hurry.set()

    async def break_off(self) -> None:
        """Commits what has come, once; what cannot be is lost, and its lines run again. Raises JobsUnavailable."""
        self._hurry.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=LAST_COMMIT_S)
        if self._running.is_ours and self._results:
            await self._store.commit(self._running.work, self._results, self._dead)

    async def aclose(self) -> None:
        """Ends a commit under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _commit(self) -> None:
        try:
            await self._beat()
            results, dead = self._results, self._dead
            self._results, self._dead = [], []
            store, work = self._store, self._running.work
            if await self._running.write(lambda: store.commit(work, results, dead)):
                self.kept += len(results)
                if self._running.meter is not None:
                    self._running.meter.lines(results)
                await self._tolerance.heed(results)
        except Exception as defect:  # noqa: BLE001  # it belongs to the chunk, which is given back for it
            self._defect = defect
        finally:
            self._task = None
            self._news.set()

    async def _beat(self) -> None:
        """Returns at the next multiple of the beat, or as soon as there is hurry."""
        if not self._hurry.is_set():
            now = self._clock.monotonic()
            timer = self._clock.call_at(now + BEAT_S - now % BEAT_S, self._hurry.set)
            try:
                await self._hurry.wait()
            finally:
                timer.cancel()
