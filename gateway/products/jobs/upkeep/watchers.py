"""Those who wait for news of jobs: one look at the store a second for each job, however many watch it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from gateway.core.clock import Clock
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import Job
from gateway.products.jobs.store.jobs import JobStore

LOOK_S = 1.0
BETWEEN_S = 0.25
"""The least time between two events of one stream: the lines of a batch may end by the hundred in a second."""
SILENCE_S = 15.0
"""So long a stream is silent, at most."""
MOST_KEPT = 10_000
"""Jobs whose last look is remembered."""
MOST_ID_CHARS = 64


class Look:
    """The last look at a job, under way or done."""

    __slots__ = ("at", "task")

    def __init__(self, task: asyncio.Task[Job | None], at: float) -> None:
        self.task = task
        self.at = at


class Watchers:
    """Answers polls and waits."""

    def __init__(self, clock: Clock, is_closing: Callable[[], bool] = lambda: False) -> None:
        """`is_closing` tells whether the process is on its way out."""
        self._clock = clock
        self._is_closing = is_closing
        self._looks: dict[str, Look] = {}
        self._waiting: dict[str, asyncio.Event] = {}

    async def look(self, store: JobStore, job_id: str, tenant: str | None) -> Job | None:
        """Returns the job as it is, or was at most a second ago; None: there is none, or it is another tenant's.

        Polls of one job share a look; whoever leaves does not end it for the others. Raises JobsUnavailable.
        """
        if len(job_id) > MOST_ID_CHARS:  # nobody's, and not to be remembered
            return None
        now = self._clock.monotonic()
        look = self._looks.get(job_id)
        if look is None or (look.task.done() and (now - look.at >= LOOK_S or look.task.exception() is not None)):
            if len(self._looks) >= MOST_KEPT:
                self._looks.clear()
            look = self._looks[job_id] = Look(asyncio.create_task(_find(store, job_id)), now)
        job = await asyncio.shield(look.task)
        return job if job is not None and tenant in (None, job.tenant) else None

    def changed(self, job_id: str) -> None:
        """Wakes who waits for news of the job, and makes the next look a new one: it has changed in this process."""
        self._looks.pop(job_id, None)
        self._wake(job_id)

    async def wait(self, job_id: str, longest_s: float) -> None:
        """Returns when the job may have changed: at once where that happens here, after a second where it may be elsewhere.

        What the next look finds may be a second old: another one for each waiter would be too many.
        """
        waiting = self._waiting.setdefault(job_id, asyncio.Event())
        timer = self._clock.call_at(self._clock.monotonic() + min(LOOK_S, longest_s), lambda: self._wake(job_id))
        await waiting.wait()
        timer.cancel()  # that of a waiter who leaves runs out: it takes away what was kept for him

    def _wake(self, job_id: str) -> None:
        waiting = self._waiting.pop(job_id, None)
        if waiting is not None:
            waiting.set()

    async def changes(self, store: JobStore, job_id: str, tenant: str | None, after: int) -> AsyncIterator[Job | None]:
        """Yields the job whenever its revision is another than before, first where it is not `after`, until its end.

        Changes that follow one another fast are one. None comes where nothing has for `SILENCE_S`, also while the store
        cannot be read. It ends early where the process does: the next one goes on with the job.
        """
        revision, clock = after, self._clock
        told_at = clock.monotonic()
        while not self._is_closing():
            try:
                job = await self.look(store, job_id, tenant)
                if job is None:
                    return
            except JobsUnavailable:
                job = None
            if job is not None and job.revision != revision:
                revision, told_at = job.revision, clock.monotonic()
                yield job
                if job.state.is_end:
                    return
                await clock.sleep(BETWEEN_S)
                continue
            if job is not None and job.state.is_end:
                return
            if clock.monotonic() - told_at >= SILENCE_S:
                told_at = clock.monotonic()
                yield None
            await self.wait(job_id, LOOK_S)


async def _find(store: JobStore, job_id: str) -> Job | None:
    return await store.find(job_id, None)
