"""A piece of work while this worker has it: what its job has been asked for meanwhile, and the writes that must not be lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.core.clock import Clock
from gateway.products.jobs.calls.ports.ports import JobMeter
from gateway.products.jobs.dead_letters.replay.replay.replay import CLASS
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import ClaimedWork, JobEnd, JobState, WriteResult
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.upkeep.ends import STOPPED

log = logging.getLogger("gateway.jobs")
T = TypeVar("T")

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 10.0
"""Seconds until a store that could not write is asked again: the first delay, doubled up to the second."""


class RunningWork:
    """One claimed piece and the task that works on it. `stopping` is set once nothing more of it shall begin."""

    def __init__(
        self,
        work: ClaimedWork,
        clock: Clock,
        meter: JobMeter | None = None,
        changed: Callable[[str], None] | None = None,
    ) -> None:
        """`changed` hears the ids of jobs of which there is news."""
        self.work = work
        self._clock = clock
        self.meter = meter
        self._changed = changed
        self.is_ours = True
        self.is_over = False
        """Its job has ended by this worker."""
        self.is_draining = False
        """The process is on its way out."""
        self.ends_as: JobState | None = work.job.ends_as
        self.stopping = asyncio.Event()
        self._pauses: set[asyncio.Event] = set()
        self.task: asyncio.Task[None] | None = None
        self.held_bytes = len(work.payload)
        """Of its request, and of the answer that waits for the store."""

    def note(self, result: WriteResult) -> bool:
        """Heeds a store's answer; returns whether the piece is still this worker's. Once it is not, its task is cancelled."""
        if not result.is_ours and self.is_over:
            return False  # of course not: it has ended here, and what is left to do is to clear away
        if not result.is_ours:
            if self.is_ours:
                self.is_ours = False
                log.warning("job %s: another worker has its piece %d now", self.work.job.id, self.work.piece)
                if self.meter is not None:
                    self.meter.claim_lost()
            if self.task is not None and self.task is not asyncio.current_task():
                self.task.cancel("claim lost")
            return False
        self.ends_as = result.ends_as or self.ends_as
        if result.ends_as is not None or result.is_paused:
            self._stop()
        return True

    def drain(self) -> None:
        """Asks for an orderly end: what runs may finish, the rest is given back."""
        self.is_draining = True
        self._stop()

    async def pause(self, seconds: float) -> None:
        """Returns after so long, or as soon as nothing more shall begin."""
        over = asyncio.Event()
        timer = self._clock.call_at(self._clock.monotonic() + seconds, over.set)
        self._pauses.add(over)
        try:
            if not self.stopping.is_set():
                await over.wait()
        finally:
            timer.cancel()
            self._pauses.discard(over)

    def _stop(self) -> None:
        self.stopping.set()
        for pause in self._pauses:
            pause.set()

    async def write(self, write: Callable[[], Awaitable[WriteResult]]) -> bool:
        """Writes until the store has it, however long it cannot: a result that was paid for waits in memory meanwhile.

        Returns whether the piece is still this worker's.
        """
        is_ours = self.note(await until_done(write, self._clock))
        if self._changed is not None:
            self._changed(self.work.job.id)
        return is_ours

    async def finish(self, store: JobStore, end: JobEnd) -> bool:
        """Ends the job; returns whether its piece was still this worker's."""
        if end.answer is not None:
            self.held_bytes += len(end.answer.body)
        is_ours = self.is_over = await self.write(lambda: store.finish(self.work, end))
        job = self.work.job
        if is_ours and self.meter is not None and end.state not in STOPPED:
            now = self._clock.wall()
            self.meter.ended(job, end.state, now - (job.started_at or now))
            if CLASS in job.about:
                self.meter.replayed(job.about[CLASS], is_ok=end.state is JobState.SUCCEEDED)
        return is_ours


async def until_done(ask: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """Asks something of the store until it can do it, be it a write or a look."""
    delay_s = FIRST_RETRY_S
    while True:
        try:
            return await ask()
        except JobsUnavailable:
            await clock.sleep(delay_s)
            delay_s = min(LAST_RETRY_S, 2 * delay_s)
