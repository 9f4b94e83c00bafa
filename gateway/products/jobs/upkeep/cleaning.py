"""What is done once a minute beside the work: jobs that ended long ago are forgotten, and bytes that nobody needs removed.

A little at a time, so that a store with a million old jobs serves all the while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gateway.core.clock import Clock
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store.blobs import Blobs
from gateway.products.jobs.store.jobs import JobStore

EVERY_S = 60.0
AT_ONCE = 500
"""Jobs or blobs in one step."""
MOST_STEPS = 20
"""In one minute."""
log = logging.getLogger("gateway.jobs")


class JobCleaning:
    """Clears away what durable work leaves behind."""

    def __init__(
        self,
        store: JobStore,
        blobs: Blobs,
        clock: Clock,
        keep_s: Callable[[], float],
        remembered: Callable[[], Sequence[str]] = tuple,
        forget: Callable[[str], None] = lambda _id: None,
        keep_runs_s: Callable[[], float] = lambda: JobRules().keep_runs_s,
    ) -> None:
        """`keep_s` tells for how many seconds jobs are kept after their end, `keep_runs_s` runs since they were last touched.

        `remembered` are the ids of jobs of which this process remembers something, `forget` does away with that.
        """
        self._remembered = remembered
        self._forget = forget
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._keep_s = keep_s
        self._keep_runs_s = keep_runs_s

    async def run_always(self) -> None:
        """Clears away once a minute until it is cancelled."""
        while True:
            await self._clock.sleep(EVERY_S)
            try:
                await self.run_once()
            except JobsUnavailable:  # the log says why
                continue
            except Exception:
                log.exception("what durable work has left behind could not be cleared away")

    async def run_once(self) -> None:
        """Forgets old jobs and removes what nobody needs, as far as one minute's steps go. Raises JobsUnavailable."""
        for _ in range(MOST_STEPS):
            if await self._store.forget_ended(self._clock.wall() - self._keep_s(), AT_ONCE) < AT_ONCE:
                break
        for _ in range(MOST_STEPS):
            if await self._store.runs.trim(self._clock.wall() - self._keep_runs_s(), AT_ONCE) < AT_ONCE:
                break
        for _ in range(MOST_STEPS):
            garbage = await self._store.files.find_garbage(AT_ONCE)
            await self._blobs.remove(garbage)
            await self._store.files.forget_garbage(garbage)
            if len(garbage) < AT_ONCE:
                break
        for job_id in self._remembered():  # another process may have ended it
            job = await self._store.find(job_id, None)
            if job is None or job.state.is_end:
                self._forget(job_id)
