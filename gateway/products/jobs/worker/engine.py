"""The engine of durable work in this process: its store and its worker, opened when they are first needed.

A gateway that has never taken a job makes no file. Where jobs are there already, or others may have taken some, it opens the
store at its start, to go on with them. What cannot be opened turns jobs off, and nothing else: the log says why, and it is
tried again, by the next request and by the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.core.clock import Clock
from gateway.core.errors import StoreUnusable
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.worker import JobWorker

RETRY_S = 5.0
"""Seconds until a store that could not be opened is tried again."""
log = logging.getLogger("gateway.jobs")
LastUsers = Callable[[float], Awaitable[None]]


class JobEngine:
    """Opens, runs and closes the store of jobs and the worker on it."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[JobStore]],
        has_jobs: Callable[[], bool],
        make_worker: Callable[[JobStore], JobWorker] | None,
        clock: Clock,
        nothing: Callable[[], JobStore] | None = None,
        last_users: LastUsers | None = None,
        *,
        waits: bool = True,
    ) -> None:
        """`open_store` raises StoreUnusable; without `make_worker` jobs are taken here and run elsewhere.

        `nothing` returns an empty store, in which those may look who ask for jobs before there was any. `last_users` waits, for
        so long at most, until nobody else needs the store, which then closes. `waits` says whether `start` waits for the
        store: not for one behind a network, whose absence would delay all calls.
        """
        self._nothing = nothing
        self._last_users = last_users
        self._open_store = open_store
        self._has_jobs = has_jobs
        self._make_worker = make_worker
        self._clock = clock
        self._opening: asyncio.Task[JobStore] | None = None
        self._store: JobStore | None = None
        self._worker: JobWorker | None = None
        self._waits = waits
        self._is_wanted = False
        """There are jobs, or somebody has asked for some: a store that cannot be opened now is opened later."""
        self._is_closed = False
        self._tried_at: float | None = None
        self.problem = ""
        """Why there are no jobs at present; empty: there are, or nobody has asked for any yet."""

    @property
    def opened(self) -> JobStore | None:
        """Returns the store, if it is open."""
        return self._store

    @property
    def running(self) -> int:
        """Returns the number of pieces that run here."""
        return 0 if self._worker is None else self._worker.running

    @property
    def is_closing(self) -> bool:
        """Tells whether the process is on its way out: nobody should wait here for a job any more."""
        return self._is_closed

    def health(self) -> str:
        """Returns what a job is worth here, for everybody to see: what the store promises, or that there is none now."""
        if self.problem or (self._store is not None and not self._store.is_well):
            return "unavailable"
        if self._store is not None:
            return self._store.promise
        return "not used yet" if self._opening is None else "opening"

    async def start(self) -> None:
        """Goes on with the jobs that are there."""
        if not self._has_jobs():
            return
        opening = self._begin()
        if self._waits:
            await asyncio.wait([opening])

    async def store(self) -> JobStore:
        """Returns the store, opened if it is not yet. Raises JobsUnavailable."""
        if self._store is not None:
            return self._store
        return await asyncio.shield(self._begin())  # whoever leaves takes nobody's store with it

    async def reader(self) -> JobStore:
        """Returns the store to look into, which is not made for that. Raises JobsUnavailable."""
        if self._store is None and not self.problem and self._nothing is not None and not self._has_jobs():
            return self._nothing()
        return await self.store()

    def tick(self) -> None:
        """Is called about once a second."""
        if self._store is not None:
            self._store.tick()
        elif self._is_wanted and not self._is_closed and self._is_due():
            self._begin()

    async def drain(self, grace_s: float) -> None:
        """Lets what runs end, at most for `grace_s`, and gives the rest back; then the store closes."""
        self._is_closed = True
        if self._opening is not None:
            await asyncio.wait([self._opening])
        worker, users = self._worker, self._last_users
        await asyncio.gather(
            *([] if worker is None else [worker.drain(grace_s)]), *([] if users is None else [users(grace_s)])
        )
        if worker is not None:
            await worker.aclose()
        if self._store is not None:
            await self._store.aclose()

    def _is_due(self) -> bool:
        return self._tried_at is None or self._clock.monotonic() - self._tried_at >= RETRY_S

    def _begin(self) -> asyncio.Task[JobStore]:
        """Returns the opening that is under way, or a new one."""
        self._is_wanted = True
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # the log has said why
        return self._opening

    async def _open(self) -> JobStore:
        if self._is_closed or not self._is_due():
            raise JobsUnavailable("Jobs cannot be kept now; the log of the gateway says why.")
        self._tried_at = self._clock.monotonic()
        try:
            store = await self._open_store()
        except (StoreUnusable, OSError) as error:
            if str(error) != self.problem:
                log.error("jobs are off: %s", error)  # noqa: TRY400  # the sentence says it all
            self.problem = str(error)
            raise JobsUnavailable("Jobs cannot be kept now; the log of the gateway says why.") from error
        if self.problem:
            log.warning("jobs are on again")
        self.problem = ""
        if self.is_closing:
            await store.aclose()
            raise JobsUnavailable(
                "Jobs cannot be kept now: the gateway is stopping. Send the request again in a moment."
            )
        self._store = store
        if self._make_worker is not None:
            self._worker = self._make_worker(store)
            self._worker.start()
        return store
