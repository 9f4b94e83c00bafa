"""The life of a replay: dead letters are run again one after the other, so many a second, until there are no more.

    walk -> wait for the next one's time -> mark it and make its job, in one step -> … -> end

Invariant: whatever dies in between, each letter is run again once by each replay: those that it has marked name it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from gateway.core.clock import Clock
from gateway.products.jobs.dead_letters.replay.replay import ReplayFactory, ReplaySpec, is_due, letters_of, spec_of
from gateway.products.jobs.dead_letters.rules import DeadLetter
from gateway.products.jobs.model import JobEnd, JobState, JobsUnavailable
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import RunningWork

SKIPPED: Final = "skipped"
"""In `marks` of a replay at its end: letters whose work was gone."""
BEATS = 20
"""So often a second replays begin, at most: those of a higher rate begin together."""
LATE_S = 1.0
"""A replay that is so far behind its rate goes on from there: it does not make up for it with a burst."""
log = logging.getLogger("gateway.jobs")


class ReplayJobs:
    """Runs jobs of kind `replay`."""

    def __init__(self, store: JobStore, again: ReplayFactory, clock: Clock) -> None:
        self._store = store
        self._again = again
        self._clock = clock

    async def run(self, running: RunningWork) -> None:
        """Replays until there is nothing more to do, or as far as it may go now, and ends the claim."""
        try:
            skipped = await self._replay(running, spec_of(running.work.job))
        except JobsUnavailable:  # the log says why
            await running.write(lambda: self._store.give_back(running.work, run_at=None, is_attempt=False))
        else:
            await self._end(running, skipped)

    async def _replay(self, running: RunningWork, spec: ReplaySpec) -> int:
        """Replays letters; returns how many could not be. Raises JobsUnavailable."""
        job, size = running.work.job, max(1, int(spec.rate // BEATS))
        pace = _Pace(self._clock, spec.rate)
        done, skipped = job.tally.total, 0
        batch: list[DeadLetter] = []
        async with aclosing(letters_of(self._store, spec.filter)) as letters:
            async for letter in letters:
                if not is_due(letter, job):
                    continue
                batch.append(letter)
                left = size if spec.most is None else min(size, spec.most - done)
                if len(batch) < left:
                    continue
                begun = await self._begin_all(running, pace, batch[:left], spec)
                done, skipped, batch = done + begun, skipped + len(batch) - begun, []
                if running.stopping.is_set() or not running.is_ours or (spec.most is not None and done >= spec.most):
                    return skipped
        return skipped + len(batch) - await self._begin_all(running, pace, batch, spec)

    async def _begin_all(
        self, running: RunningWork, pace: _Pace, letters: Sequence[DeadLetter], spec: ReplaySpec
    ) -> int:
        """Waits for its time, and begins replays together; returns how many were begun. Raises JobsUnavailable."""
        await running.pause(pace.wait_s())
        if running.stopping.is_set() or not letters:
            return 0
        begun = sum(await asyncio.gather(*(self._begin(running, letter, spec) for letter in letters)))
        pace.begun(begun)
        return begun

    async def _begin(self, running: RunningWork, letter: DeadLetter, spec: ReplaySpec) -> bool:
        """Marks a letter and makes its job; returns whether it was done. Raises JobsUnavailable."""
        new = await self._again.job_of(letter, spec)
        if new is None or not running.is_ours:
            return False
        result = await self._store.dead.replay(running.work, letter.id, letter.replays + 1, new)
        return running.note(result.write) and result.is_done

    async def _end(self, running: RunningWork, skipped: int) -> None:
        if not running.is_ours:
            return
        if running.stopping.is_set() and running.ends_as is None:  # paused, or the process is on its way out
            await running.write(lambda: self._store.give_back(running.work, run_at=None, is_attempt=False))
        else:
            end = JobEnd(running.ends_as or JobState.SUCCEEDED, marks={SKIPPED: skipped})
            await running.finish(self._store, end)


class _Pace:
    """When the next replays may begin, so that so many a second do."""

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._due_at = clock.monotonic()

    def wait_s(self) -> float:
        """Returns how long to wait."""
        return max(0.0, self._due_at - self._clock.monotonic())

    def begun(self, number: int) -> None:
        """Notes so many that have begun."""
        self._due_at = max(self._due_at, self._clock.monotonic() - LATE_S) + number / self._rate
