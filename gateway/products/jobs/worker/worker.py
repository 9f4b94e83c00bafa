"""The worker: claims pieces of jobs and runs them, as many at a time as their segments may. Read this first.

    claim -> run (a call; or check, chunk, finalise of a batch) -> commit, finish or give back

The worker is the gateway itself: whatever a job does is a call through the pipeline. It must not know how jobs are kept.
Invariants: a piece that was claimed is ended by its runner or given back; a failure of a runner is logged, and ends nothing
else; nothing is claimed that is not run at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from gateway.core.clock import Clock
from gateway.products.jobs.calls.ports.ports import JobMeter
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import ClaimAsk, ClaimedWork, WriteResult
from gateway.products.jobs.rules import SegmentRules
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import RunningWork

log = logging.getLogger("gateway.jobs")

LOOK_S = 1.0
"""So often the store is asked for work when nothing wakes the worker, and what was asked of running jobs is looked at."""
LONGEST_PAUSE_S = 10.0
"""The longest wait before a store that cannot be asked is asked again."""
MOST_HELD_BYTES = 256 * 1024 * 1024
"""Of requests that were claimed, and of answers that wait for the store: with so many nothing more is claimed."""
GUESSED_BYTES = 20_000_000
"""Of a request that is to be claimed, and that nobody knows yet: as large as one may be by default, or as the largest here. So
small ones are claimed a few at a time, one claim after the other.
"""
SMALL_BYTES = 256 * 1024
MOST_SMALL_BYTES = 32 * 1024 * 1024
"""With memory held as far as it may be, requests of at most so many bytes are run besides, at most so many bytes of them: one
piece is claimed to see how large it is, and given back for a while if it is too large.
"""
RENEWALS = 3
"""A claim is renewed so often within its lease."""

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
    ) -> None:
        """`run` ends the claim of its piece in any case; `segments` gives the rules in force; `changed` hears ids of jobs.

        `chores` run beside the work until they are cancelled at the end; `may_begin` says whether the process has room for
        more work.
        """
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
            if not works:
                await self._sleep_until_woken(pause_s)

    async def _claim(self) -> Sequence[ClaimedWork]:
        if not self._may_begin():
            return ()
        busy = Counter(running.work.job.segment for running in self._running.values())
        room = {rules.name: rules.concurrency for rules in self._segments()}
        rest = list(room.values())[-1]
        for segment, _, _ in self._store.depth():
            room.setdefault(segment, rest)  # replays, and what a config that has gone named: as many as of the last
        free = {segment: most - busy[segment] for segment, most in room.items() if most > busy[segment]}
        fitting = self._fitting()
        if not free:
            return ()
        if not fitting:
            return await self._claim_small(free)
        each = max(
            1, fitting // len(free)
        )  # no segment waits for another to leave room, so one more of each may be held
        return await self._store.claim([ClaimAsk(segment, min(most, each)) for segment, most in free.items()])

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
        for work in await self._store.claim([ClaimAsk(segment, 1) for segment in free]):
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

    async def _sleep_until_woken(self, longest_s: float) -> None:
        timer = self._clock.call_at(self._clock.monotonic() + longest_s, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    def _begin(self, work: ClaimedWork) -> None:
        running = RunningWork(work, self._clock, self._meter, self._changed)
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
            if running.is_ours and not running.is_over:  # some runners have given it back; then this changes nothing
                with suppress(JobsUnavailable):
                    await self._store.give_back(work, run_at=None, is_attempt=False)
        except Exception:
            log.exception("job %s: its piece %d failed here and is given back", work.job.id, work.piece)
            run_at = self._clock.wall() + LONGEST_PAUSE_S
            await running.write(lambda: self._store.give_back(work, run_at=run_at, is_attempt=True))
        finally:
            if self._running.get((work.job.id, work.piece)) is running:
                del self._running[work.job.id, work.piece]
            if not self._running:
                self._is_busy.clear()
            self._wake.set()  # there is room for another

    async def _renew_always(self) -> None:
        """Keeps claims, and hears what is asked of the jobs that run."""
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
