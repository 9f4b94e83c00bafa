"""Jobs during which processes have died: they run alone, and only what has died alone is given up.

    two deaths, beside whatever ran -> alone, one such job at a time in a process -> given up, or served

A death takes all with it that ran in the process, and blames none of them. Invariant: a job is given up only if its last worker
died while it was the only such job there. Where others of its kind are known, a process may just be killed again and again,
whatever it does: then it takes three such deaths, and one more for each other job that has died alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core.clock import Clock
from gateway.products.jobs.dead_letters.rules import POISON
from gateway.products.jobs.model import ClaimedWork, JobError
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import RunningWork

MOST_CRASHES: Final = 3
"""From the claim of this number on a job runs alone."""
ALONE: Final = "alone_at"
"""In `marks`: how often its worker had died while it ran alone, and the number of the claim that it began to run alone by."""
LOOK_AGAIN_S: Final = 1.0
"""A job that is to run alone while another one does waits so long."""
FORGOTTEN_S: Final = 3 * LOOK_AGAIN_S
"""A job that waits to run alone and was not claimed here for so long is no reason for others to wait."""
WHY: Final = "its worker died {} times while it ran, the last time alone"


class CrashSuspects:
    """The jobs of one process that may have killed the ones before it."""

    def __init__(self, store: JobStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._turn = asyncio.Lock()
        self._crashes: dict[str, int] = {}
        """Of all that were met here, deaths while they ran alone; those that have ended since stay, as a warning."""
        self._waiting: dict[str, float] = {}
        """When those that wait to run alone were last claimed here."""

    async def run(
        self,
        running: RunningWork,
        run: Callable[[RunningWork], Awaitable[None]],
        give_up: Callable[[RunningWork, JobError], Awaitable[None]],
    ) -> None:
        """Runs a claimed piece, alone if it may have killed its workers; or gives it up, or back for another time."""
        work = running.work
        if work.claims < MOST_CRASHES:
            await run(running)
            return
        is_new = work.job.id not in self._crashes
        crashes = self._crashes[work.job.id] = _crashes_of(work)
        self._waiting[work.job.id] = self._clock.monotonic()
        if self._turn.locked() or not self._is_next(work.job.id, is_new=is_new):
            at = self._clock.wall() + LOOK_AGAIN_S
            await running.write(lambda: self._store.give_back(work, run_at=at, is_attempt=False))
            return
        async with self._turn:
            del self._waiting[work.job.id]
            if crashes >= self._most(work.job.id):
                await give_up(running, JobError(POISON, WHY.format(work.claims - 1), self._clock.wall()))
            elif await running.write(lambda: self._store.note(work, {ALONE: [crashes, work.claims]})):
                await run(running)

    def _is_next(self, job_id: str, *, is_new: bool) -> bool:
        """Tells whether no job is known that is less suspicious: the others of a claim are known a moment later."""
        crashes, now = self._crashes[job_id], self._clock.monotonic()
        if is_new and crashes:
            return False
        return all(self._crashes[one] >= crashes or at + FORGOTTEN_S < now for one, at in self._waiting.items())

    def _most(self, job_id: str) -> int:
        """Returns how many deaths while it ran alone are proof."""
        others = [crashes for one, crashes in self._crashes.items() if one != job_id]
        return MOST_CRASHES + sum(crashes > 0 for crashes in others) if others else 1


def _crashes_of(work: ClaimedWork) -> int:
    """Returns how often a worker has died while the job ran alone: a claim that ended in order is not counted by the store."""
    crashes, claims = (int(part) for part in work.job.marks.get(ALONE, (0, work.claims)))
    return crashes + (work.claims > claims)
