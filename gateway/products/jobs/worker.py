"""The worker: claims pieces of jobs and runs them, as many at a time as their segments may. Read this first.

    claim -> run (a call; or check, chunk, finalise of a batch) -> commit, finish or give back

The worker is the gateway itself: whatever a job does is a call through the pipeline. In this order: a piece while it runs; the
worker; jobs that may have killed their workers, which run alone; and the engine, which opens the store and the worker on it.
How jobs are kept is the store's alone. Invariants: a piece that was claimed is ended by its runner or given back; a failure of
a runner is logged, and ends nothing else; nothing is claimed that is not run at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, TypeVar

from gateway.core.clock import Clock
from gateway.core.errors import StoreUnusable
from gateway.drivers.durability import JobsUnavailable, NotDurable
from gateway.products.jobs.dead_letters.rules import CLASS, POISON
from gateway.products.jobs.metrics import JobMeter
from gateway.products.jobs.model import ClaimedWork, ClaimRequest, Job, JobEnd, JobError, JobState, WriteResult
from gateway.products.jobs.rules import SegmentRules
from gateway.products.jobs.store import BlobWriter, JobStore
from gateway.products.jobs.upkeep import STOPPED

# --- a piece of work while this worker has it: what its job is asked for meanwhile, and writes that must not be lost ---

T = TypeVar("T")
Write = Callable[[], Awaitable[WriteResult]]

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 10.0
"""Seconds until a store that could not write is asked again: the first delay, doubled up to the second."""


def at_once(_job: Job, write: Write) -> Awaitable[WriteResult]:
    """Writes what belongs to no run."""
    return write()


class RunningWork:
    """One claimed piece and the task that works on it. `stopping` is set once nothing more of it shall begin."""

    def __init__(
        self,
        work: ClaimedWork,
        clock: Clock,
        meter: JobMeter | None = None,
        changed: Callable[[str], None] | None = None,
        write: Callable[[Job, Write], Awaitable[WriteResult]] = at_once,
    ) -> None:
        """`changed` gets the ids of jobs of which there is news; `write` writes behind the sum of the job's run."""
        self.work = work
        self._write = write
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
        """The bytes of its request, and of the answer that waits for the store."""

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

    async def write(self, write: Write) -> bool:
        """Writes until the store has it, however long it cannot: a result that was paid for waits in memory meanwhile.

        Returns whether the piece is still this worker's.
        """
        is_ours = self.note(await until_done(lambda: self._write(self.work.job, write), self._clock))
        if self._changed is not None:
            self._changed(self.work.job.id)
        return is_ours

    async def give_back(
        self, store: JobStore, run_at: float | None = None, error: JobError | None = None, *, is_attempt: bool = False
    ) -> None:
        """Gives the piece back until `run_at`; None: at once. Counts a failed attempt as one more try to come."""
        work = self.work
        await self.write(lambda: store.give_back(work, run_at=run_at, error=error, is_attempt=is_attempt))
        if is_attempt and error is not None and self.meter is not None:
            self.meter.tried_again(error.error_class)

    async def release(self, store: JobStore) -> None:
        """Gives the piece back as its task is cancelled: once, and in vain where the store cannot take it or has ended it.

        Then the claim ends by its lease, or with the process.
        """
        if self.is_ours and not self.is_over:
            with suppress(JobsUnavailable):
                await store.give_back(self.work, run_at=None, is_attempt=False)

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
                self.meter.redriven(job.about[CLASS], is_ok=end.state is JobState.SUCCEEDED)
        return is_ours


async def until_done(ask: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """Asks something of the store until it can do it, be it a write or a look.

    What was written and is not as safe as it should be goes on: the store says so in the log and `/readyz`.
    """
    delay_s = FIRST_RETRY_S
    while True:
        try:
            return await ask()
        except NotDurable as short:
            return short.result  # type: ignore[no-any-return]  # what `ask` would have returned
        except JobsUnavailable:
            await clock.sleep(delay_s)
            delay_s = min(LAST_RETRY_S, 2 * delay_s)


async def committed(writer: BlobWriter) -> int:
    """Gives a blob of work that was taken before its name, as safe as can be; returns its bytes. Raises JobsUnavailable."""
    try:
        return await writer.commit()
    except NotDurable as short:
        return short.result  # type: ignore[no-any-return]  # the bytes, as `commit` has them


log = logging.getLogger("gateway.jobs")

# --- the worker ---

LOOK_S = 1.0
"""Seconds after which the store is asked for work when nothing wakes the worker, and what was asked of running jobs is looked
at.
"""
LONGEST_PAUSE_S = 10.0
"""The longest wait before a store that cannot be asked is asked again."""
MOST_HELD_BYTES = 256 * 1024 * 1024
"""The bytes of claimed requests, and of answers that wait for the store, with which nothing more is claimed."""
GUESSED_BYTES = 20_000_000
"""The bytes of a request that is to be claimed, and that nobody knows yet: as large as one may be by default, or as the largest
here. So small ones are claimed a few at a time, one claim after the other.
"""
SMALL_BYTES = 256 * 1024
MOST_SMALL_BYTES = 32 * 1024 * 1024
"""With memory held as far as it may be, requests of at most so many bytes are run besides, at most so many bytes of them: one
piece is claimed to see how large it is, and given back for a while if it is too large.
"""
RENEWALS = 3
"""The renewals of a claim within its lease."""

RunPiece = Callable[[RunningWork], Awaitable[None]]


class JobWorker:
    """Runs pieces of work in one event loop, from `start` to `aclose`."""

    def __init__(
        self,
        store: JobStore,
        run: RunPiece,
        clock: Clock,
        segments: Callable[[], Sequence[SegmentRules]],
        meter: JobMeter | None = None,
        changed: Callable[[str], None] | None = None,
        may_begin: Callable[[], bool] = lambda: True,
        chores: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
        write: Callable[[Job, Write], Awaitable[WriteResult]] = at_once,
    ) -> None:
        """`run` ends the claim of its piece in any case; `segments` gives the rules in force; `changed` gets ids of jobs.

        `chores` run beside the work until they are cancelled at the end; `may_begin` says whether the process has room for
        more work; `write` is that of `RunningWork`.
        """
        self._write = write
        self._chores = chores
        self._meter = meter
        self._changed = changed
        self._may_begin = may_begin
        self._store = store
        self._run = run
        self._clock = clock
        self._segments = segments
        self._wake = asyncio.Event()
        self._is_busy = asyncio.Event()
        self._running: dict[tuple[str, int], RunningWork] = {}
        self._is_draining = False
        self._may_look_at = 0.0
        """When, with memory held as far as it may be, it may be looked for small requests again, in monotonic seconds."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def running(self) -> int:
        """Returns the number of pieces that run."""
        return len(self._running)

    def start(self) -> None:
        """Claims and runs work from now on."""
        self._store.on_ready(self._wake.set)
        always = (self._claim_always, self._renew_always, *self._chores)
        self._tasks = [asyncio.create_task(run()) for run in always]

    async def drain(self, grace_s: float) -> None:
        """Claims nothing more, and waits until what runs has ended, at most `grace_s`; the rest is given back."""
        self._is_draining = True
        for running in list(self._running.values()):
            running.drain()
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel("shutdown")
            if late:
                await asyncio.wait(late)

    async def aclose(self) -> None:
        """Ends at once; what runs is given back."""
        await self.drain(0.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _claim_always(self) -> None:
        pause_s = LOOK_S
        while not self._is_draining:
            self._wake.clear()
            try:
                works = await self._claim()
                pause_s = LOOK_S
            except JobsUnavailable:  # the store has logged why
                works, pause_s = (), min(LONGEST_PAUSE_S, 2 * pause_s)
            except Exception:
                log.exception("no work could be claimed")
                works, pause_s = (), min(LONGEST_PAUSE_S, 2 * pause_s)
            for work in works:
                self._begin(work)
            if not works:  # until something is ready, or has to be looked at
                timer = self._clock.call_at(self._clock.monotonic() + pause_s, self._wake.set)
                await self._wake.wait()
                timer.cancel()

    async def _claim(self) -> Sequence[ClaimedWork]:
        if not self._may_begin():
            return ()
        busy = Counter(running.work.job.segment for running in self._running.values())
        room = {rules.name: rules.concurrency for rules in self._segments()}
        rest = list(room.values())[-1]
        for segment, _, _ in self._store.depth():
            room.setdefault(segment, rest)  # redrives, and what a config that has gone named: as many as of the last
        free = {segment: most - busy[segment] for segment, most in room.items() if most > busy[segment]}
        fitting = self._fitting()
        if not free:
            return ()
        if not fitting:
            return await self._claim_small(free)
        each = max(
            1, fitting // len(free)
        )  # no segment waits for another to leave room, so one more of each may be held
        return await self._store.claim([ClaimRequest(segment, min(most, each)) for segment, most in free.items()])

    def _fitting(self) -> int:
        """Returns how many pieces may be claimed now, as far as memory goes."""
        held = [running.held_bytes for running in self._running.values()]
        return max(0, (MOST_HELD_BYTES - sum(held)) // max(GUESSED_BYTES, *held, 0))

    async def _claim_small(self, free: Collection[str]) -> Sequence[ClaimedWork]:
        """Claims a piece of each segment, and keeps those whose requests are small; the others are given back for a while."""
        now = self._clock.monotonic()
        small = sum(one.held_bytes for one in self._running.values() if one.held_bytes <= SMALL_BYTES)
        if now < self._may_look_at or small > MOST_SMALL_BYTES:
            return ()
        kept: list[ClaimedWork] = []
        for work in await self._store.claim([ClaimRequest(segment, 1) for segment in free]):
            if len(work.payload) <= SMALL_BYTES or not await self._put_back(work):
                kept.append(work)
        if not kept:
            self._may_look_at = now + LOOK_S
        return kept

    async def _put_back(self, work: ClaimedWork) -> bool:
        """Gives a piece back for a while; False: the store cannot take it, so that it has to be run."""
        try:
            run_at = self._clock.wall() + LONGEST_PAUSE_S
            await self._store.give_back(work, run_at=run_at, is_attempt=False)
        except JobsUnavailable:
            return False
        return True

    def _begin(self, work: ClaimedWork) -> None:
        running = RunningWork(work, self._clock, self._meter, self._changed, self._write)
        before = self._running.get((work.job.id, work.piece))
        if before is not None:  # its lease ended while this process stood still, and nobody was faster
            before.note(WriteResult(is_ours=False))
        if self._meter is not None and work.job.revision <= 1 and work.job.started_at is not None:
            self._meter.began(work.job, work.job.started_at - work.job.run_at)
        self._running[work.job.id, work.piece] = running
        self._is_busy.set()
        if self._is_draining:
            running.drain()
        running.task = asyncio.create_task(self._run_one(running))

    async def _run_one(self, running: RunningWork) -> None:
        work = running.work
        try:
            await self._run(running)
        except asyncio.CancelledError:
            log.debug("job %s: its piece %d was broken off", work.job.id, work.piece)
            await running.release(self._store)  # some runners have done so; then this changes nothing
        except Exception:
            log.exception("job %s: its piece %d failed here and is given back", work.job.id, work.piece)
            await running.give_back(self._store, self._clock.wall() + LONGEST_PAUSE_S, is_attempt=True)
        finally:
            if self._running.get((work.job.id, work.piece)) is running:
                del self._running[work.job.id, work.piece]
            if not self._running:
                self._is_busy.clear()
            self._wake.set()  # there is room for another

    async def _renew_always(self) -> None:
        """Keeps claims, and looks at what is asked of the jobs that run."""
        lease_s = self._store.lease_s
        every_s = LOOK_S if lease_s == inf else min(LOOK_S, lease_s / RENEWALS)
        while True:
            await self._is_busy.wait()  # a worker without work is not woken for it
            await self._clock.sleep(every_s)
            present = list(self._running.values())
            try:
                results = await self._store.renew([running.work for running in present])
            except JobsUnavailable:
                continue
            except Exception:
                log.exception("claims could not be renewed")
                continue
            for running, result in zip(present, results, strict=True):
                if running.task is not None and not running.task.done():
                    running.note(result)


# --- jobs during which processes have died: they run alone, and only what has died alone is given up ---

MOST_CRASHES: Final = 3
"""The number of the claim from which on a job runs alone."""
ALONE: Final = "alone_at"
"""In `marks`: how often its worker had died while it ran alone, and the number of the claim that it began to run alone by."""
LOOK_AGAIN_S: Final = 1.0
"""A job that is to run alone while another one does waits so long."""
FORGOTTEN_S: Final = 3 * LOOK_AGAIN_S
"""A job that waits to run alone and was not claimed here for so long is no reason for others to wait."""
WHY: Final = "its worker died {} times while it ran, the last time alone"


class CrashSuspects:
    """The jobs of one process that may have killed the ones before it.

        two deaths, beside whatever ran -> alone, one such job at a time in a process -> given up, or served

    A death takes all with it that ran in the process, and blames none of them. Invariant: a job is given up only if its last
    worker died while it was the only such job there. Where others of its kind are known, a process may just be killed again and
    again, whatever it does: then it takes three such deaths, and one more for each other job that has died alone.
    """

    def __init__(self, store: JobStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._turn = asyncio.Lock()
        self._crashes: dict[str, int] = {}
        """By job of all that were met here, deaths while they ran alone; those that have ended since stay, as a warning."""
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
            await running.give_back(self._store, self._clock.wall() + LOOK_AGAIN_S)
            return
        async with self._turn:
            del self._waiting[work.job.id]
            if crashes >= self._most(work.job.id):
                await give_up(running, JobError(POISON, WHY.format(work.claims - 1), self._clock.wall()))
            elif await running.write(lambda: self._store.note(work, {ALONE: [crashes, work.claims]})):
                await run(running)

    def _is_next(self, job_id: str, *, is_new: bool) -> bool:
        """Returns whether no job is known that is less suspicious: the others of a claim are known a moment later."""
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


# --- the engine of durable work in this process: its store and its worker, opened when they are first needed ---

RETRY_S = 5.0
"""Seconds until a store that could not be opened is tried again."""
LastUsers = Callable[[float], Awaitable[None]]


class JobEngine:
    """Opens, runs and closes the store of jobs and the worker on it.

    A gateway that has never taken a job makes no file. Where jobs are there already, or others may have taken some, it opens
    the store at its start, to go on with them. What cannot be opened turns jobs off, and nothing else: the log says why, and it
    is tried again, by the next request and by the clock.
    """

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
        self._empty: asyncio.Task[JobStore] | None = None
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
        """Returns whether the process is on its way out: nobody should wait here for a job any more."""
        return self._is_closed

    def health(self) -> str:
        """Returns what a job is worth here, for everybody to see: what the store promises, or that there is none now."""
        if self.problem or (self._store is not None and not self._store.is_well):
            return "unavailable"
        if self._store is not None:
            return self._store.durability
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
        is_there = self._store is not None or self.problem or self._is_closed or self._has_jobs()
        if not is_there and self._nothing is not None:
            if self._empty is None:
                self._empty = asyncio.create_task(asyncio.to_thread(self._nothing))
            try:
                return await asyncio.shield(self._empty)
            except StoreUnusable as error:
                self._empty = None  # the next reader tries again
                raise JobsUnavailable("Jobs cannot be read now; try again.") from error
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
        if self._empty is not None:
            with suppress(StoreUnusable):  # its reader got the error
                await (await self._empty).aclose()

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
        except Exception as error:
            if repr(error) != self.problem:
                log.exception("jobs are off")
            self.problem = repr(error)
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
