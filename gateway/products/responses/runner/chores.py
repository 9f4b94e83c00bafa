"""What time does to responses: those that are kept are forgotten, and the logs of those in the background go with them."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from gateway.core.clock import Clock
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import ENDS, JobKind, JobQuery
from gateway.products.jobs.store.jobs import JobStore

EVERY_S: Final = 60.0
AT_ONCE: Final = 500
_PAGE: Final = 100
_MOST_LOOKED_AT: Final = 10_000
"""Of responses that had ended when this process began: their logs go when theirs do, the others' with their jobs."""


class ResponseChores:
    """Forgets, beside the worker."""

    def __init__(self, store: JobStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._logs: list[tuple[float, str]] = []

    def ended(self, job_id: str, keep_until: float) -> None:
        """Notes until when the log of a response that has ended here is kept."""
        heappush(self._logs, (keep_until, job_id))

    async def run_always(self) -> None:
        """Forgets what is due, once a minute, until it is cancelled."""
        has_looked = False
        while True:
            try:
                if not has_looked:
                    await self._look()
                    has_looked = True
                await self.forget_due()
            except JobsUnavailable:
                pass  # the store has logged why
            await self._clock.sleep(EVERY_S)

    async def forget_due(self) -> None:
        """Forgets what is due now. Raises JobsUnavailable."""
        while await self._store.responses.trim(AT_ONCE) == AT_ONCE:
            pass
        while self._logs and self._logs[0][0] <= self._clock.wall():
            await self._store.events.drop(self._logs[0][1])
            heappop(self._logs)

    async def _look(self) -> None:
        """Finds the responses that ended before this process began; those that are kept no more have no log, either."""
        after, seen = None, 0
        while seen < _MOST_LOOKED_AT:
            page = await self._store.list_jobs(JobQuery(None, JobKind.RESPONSE, ENDS, after, _PAGE))
            for job in page.jobs:
                kept = await self._store.responses.find(job.id, job.tenant)
                self.ended(job.id, 0.0 if kept is None else kept.keep_until)
            if not page.has_more:
                return
            seen += len(page.jobs)
            after = page.jobs[-1].id
