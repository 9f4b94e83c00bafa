"""The worker on a store that gives a piece twice, or fails in ways that nobody has thought of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gateway.products.jobs.model import ClaimedWork, ClaimRequest, WriteResult
from gateway.products.jobs.rules import SegmentRules
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.transitions import NOT_OURS
from gateway.products.jobs.worker import JobWorker, RunningWork
from tests.support.memory_store.store import MemoryJobStore
from tests.support.stage import Stage
from tests.support.virtual import LoopClock, run


class Leased(MemoryJobStore):
    """A store whose claims end by themselves, as told."""

    lease_s = 15.0

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock.wall)
        self.again: list[ClaimedWork] = []
        """What is given once more: its lease is over."""
        self.renewed: list[int] = []
        self.newest = 0
        self.defects = 0

    async def claim(self, asks: Sequence[ClaimRequest]) -> Sequence[ClaimedWork]:
        if self.defects:
            self.defects -= 1
            raise RuntimeError("nobody has thought of this")
        given, self.again = self.again or await super().claim(asks), []
        self.newest = max([self.newest, *(work.fence for work in given)])
        return given

    async def renew(self, works: Sequence[ClaimedWork]) -> Sequence[WriteResult]:
        self.renewed += [work.fence for work in works]
        return [WriteResult(True) if work.fence == self.newest else NOT_OURS for work in works]


def worker_of(store: JobStore, clock: LoopClock, piece: Any) -> JobWorker:
    return JobWorker(store, piece, clock, lambda: [SegmentRules("all", concurrency=10)])


def test_a_piece_that_this_worker_is_given_again_is_kept_by_its_new_claim_alone() -> None:
    """After a standstill the worker may be the first to take over what it had: the old run ends, the new one is renewed."""

    async def story(clock: LoopClock) -> None:
        store, runs, ended = Leased(clock), [], []

        async def piece(running: RunningWork) -> None:
            runs.append(running.work.fence)
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(running.work.fence)

        worker = worker_of(store, clock, piece)
        worker.start()
        await store.accept([Stage(clock).new_job()])
        await asyncio.sleep(5)
        (first,) = [running.work for running in worker._running.values()]
        store.again = [replace(first, fence=first.fence + 1)]
        await asyncio.sleep(5)
        assert (runs, ended) == ([first.fence, first.fence + 1], [first.fence])
        store.renewed.clear()
        await asyncio.sleep(5)

        assert worker.running == 1
        assert set(store.renewed) == {first.fence + 1}
        await worker.aclose()
        assert ended == runs

    run(story)


def test_a_defect_of_the_store_does_not_end_the_worker() -> None:
    """It is in the log, and the next look is as any other."""

    async def story(clock: LoopClock) -> None:
        store, runs = Leased(clock), []

        async def piece(running: RunningWork) -> None:
            runs.append(running.work.job.id)

        store.defects = 2
        worker = worker_of(store, clock, piece)
        worker.start()
        await store.accept([Stage(clock).new_job()])
        await asyncio.sleep(30)

        assert runs == ["job_1"]
        await worker.aclose()

    run(story)


def test_what_a_runner_leaves_when_it_is_broken_off_is_given_back() -> None:
    """Nobody has to wait until its lease is over, and nobody died."""

    async def story(clock: LoopClock) -> None:
        store = MemoryJobStore(clock.wall)

        async def piece(_running: RunningWork) -> None:
            await asyncio.sleep(600)

        worker = worker_of(store, clock, piece)
        worker.start()
        await store.accept([Stage(clock).new_job()])
        await asyncio.sleep(5)
        await worker.drain(10.0)
        await worker.aclose()

        (work,) = await store.claim([ClaimRequest("all", 1)])
        assert (work.claims, work.job.attempts) == (1, 0)

    run(story)
