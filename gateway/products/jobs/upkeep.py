"""The upkeep of jobs: what is done beside the work, and news of jobs for those who wait for it.

In this order: the cleaning, once a minute; the ends of jobs that no worker makes; the sweep of blobs that nobody knows; and
polls and waits, with one look at the store a second for each job, however many watch it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final

from gateway.core.clock import Clock
from gateway.drivers.durability import JobsUnavailable
from gateway.features.run_port import NO_RUNS, RunEnd, RunPort
from gateway.installed import is_installed
from gateway.products.jobs.dead_letters.rules import CLASS
from gateway.products.jobs.metrics import JobMeter
from gateway.products.jobs.model import Following, Job, JobKind, JobState, NewJob, batch_of_blob
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store import Blobs, JobStore

HAS_RUNS: Final = is_installed("gateway.features.runs")

# --- cleaning, once a minute beside the work ---

EVERY_S = 60.0
"""Seconds between two steps of the cleaning, and of the sweep."""
AT_ONCE = 500
"""Jobs or blobs in one step."""
MOST_STEPS = 20
"""The most steps in one minute."""
log = logging.getLogger("gateway.jobs")


class JobCleaning:
    """Clears away what durable work leaves behind.

    Jobs that ended long ago are forgotten, and bytes that nobody needs removed: a little at a time, so that a store with a
    million old jobs serves all the while.
    """

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
        """`keep_s` returns for how many seconds jobs are kept after their end, `keep_runs_s` runs since they were last touched.

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
        for _ in range(MOST_STEPS if HAS_RUNS else 0):
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


# --- the ends of jobs that no worker makes: cancelled before they began, or past their deadlines ---

STOPPED: Final = (JobState.CANCELLED, JobState.EXPIRED)
"""Ends that a store may make by itself. Whoever makes them, they are counted here and not by the worker."""
REMEMBERED = 1000


class CountedEnds:
    """A `Following` that counts, and reports of runs of pipelines that they were cancelled, or had too little time.

    A store reports what follows from an end in any thread, and perhaps more than once: each is counted once, in the loop's
    thread.
    """

    def __init__(self, following: Following, meter: JobMeter, runs: RunPort = NO_RUNS) -> None:
        self._runs = runs
        self._following = following
        self._meter = meter
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen: deque[str] = deque(maxlen=REMEMBERED)

    def start(self) -> None:
        """Counts in the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    def __call__(self, ended: Job) -> Sequence[NewJob]:
        """Returns what follows from an end."""
        if ended.state in STOPPED and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and nobody will read the numbers
                self._loop.call_soon_threadsafe(self._count, ended)
        return self._following(ended)

    def _count(self, ended: Job) -> None:
        if ended.id in self._seen:
            return
        self._seen.append(ended.id)
        ended_at = ended.ended_at or ended.created_at
        self._meter.ended(ended, ended.state, ended_at - (ended.started_at or ended_at))
        if CLASS in ended.about:
            self._meter.redriven(ended.about[CLASS], is_ok=False)
        if ended.kind is JobKind.RUN:
            state = JobState.CANCELLED if ended.state is JobState.CANCELLED else JobState.FAILED
            self._runs.run_ended(ended.tenant, ended.id, RunEnd(ended_at, ended.model, str(state)))


# --- the sweep of blobs that nobody knows ---

PASS_EVERY_S = 3600.0
"""Seconds between two passes over all blobs."""
LEAST_AGE_S = 2 * PASS_EVERY_S
"""Longer than from one pass to the next: by then each store that has blobs there has asked whose they are."""


class BlobSweep:
    """Goes through all blobs, again and again.

    It removes what a process leaves behind that dies between a blob and the record of it. Only where the blobs are this store's
    alone, for another store's look just like them: once a second one has asked, neither removes any. Only what is old, for a
    record may be on its way; a few at a time. What is known, in whatever state, is left to `JobCleaning`.
    """

    def __init__(self, store: JobStore, blobs: Blobs, clock: Clock) -> None:
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._pass: AsyncIterator[Sequence[str]] | None = None

    async def run_always(self) -> None:
        """Sweeps a step a minute until it is cancelled, and rests after each pass."""
        while True:
            await self._clock.sleep(EVERY_S)
            try:
                while not await self.step():
                    await self._clock.sleep(EVERY_S)
            except JobsUnavailable:  # the log says why
                self._pass = None
                continue
            except Exception:
                log.exception("blobs that nobody knows could not be looked for")
                self._pass = None
            await self._clock.sleep(PASS_EVERY_S)

    async def step(self) -> bool:
        """Looks at the next blobs, and removes those that nobody knows; returns whether the pass is over.

        Raises JobsUnavailable.
        """
        if not await self._blobs.belong_to(await self._store.identity()):
            self._pass = None
            return True
        if self._pass is None:
            self._pass = self._blobs.old_names(LEAST_AGE_S, AT_ONCE)
        names = await anext(self._pass, None)
        if names is None:
            self._pass = None
            return True
        unknown = await self._unknown(names)
        if unknown:
            await self._blobs.remove(unknown)
            log.warning(
                "%d files of a process that was killed were removed: no job or file refers to them", len(unknown)
            )
        return False

    async def _unknown(self, names: Sequence[str]) -> list[str]:
        used = await self._store.files.used(names)
        batches = {name: batch_of_blob(name) for name in names}
        running = {batch for batch in {*batches.values()} if batch and await self._runs(batch)}
        return [
            name
            for name in names
            if name not in used and (batches[name] not in running if batches[name] else name.startswith("files/"))
        ]

    async def _runs(self, job_id: str) -> bool:
        job = await self._store.find(job_id, None)
        return job is not None and not job.state.is_end


# --- polls and waits ---

LOOK_S = 1.0
BETWEEN_S = 0.25
"""The least time between two events of one stream: the lines of a batch may end by the hundred in a second."""
SILENCE_S = 15.0
"""The longest silence of a stream."""
MOST_KEPT = 10_000
"""The jobs whose last look is remembered."""
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
        """`is_closing` returns whether the process is on its way out."""
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
        sent_at = clock.monotonic()
        while not self._is_closing():
            try:
                job = await self.look(store, job_id, tenant)
                if job is None:
                    return
            except JobsUnavailable:
                job = None
            if job is not None and job.revision != revision:
                revision, sent_at = job.revision, clock.monotonic()
                yield job
                if job.state.is_end:
                    return
                await clock.sleep(BETWEEN_S)
                continue
            if job is not None and job.state.is_end:
                return
            if clock.monotonic() - sent_at >= SILENCE_S:
                sent_at = clock.monotonic()
                yield None
            await self.wait(job_id, LOOK_S)


async def _find(store: JobStore, job_id: str) -> Job | None:
    return await store.find(job_id, None)
