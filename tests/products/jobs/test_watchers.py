"""Those who wait for news of jobs leave nothing behind; a piece that has ended here was not lost to anybody."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs.model import ClaimRequest, Job, JobEnd, JobState
from gateway.products.jobs.upkeep import Watchers
from gateway.products.jobs.worker import RunningWork
from tests.support.memory_store.store import MemoryJobStore
from tests.support.stage import Stage
from tests.support.virtual import LoopClock, run


def test_who_leaves_while_waiting_leaves_nothing_behind() -> None:
    """Also where nothing happens to the job any more."""

    async def story(clock: LoopClock) -> None:
        watchers = Watchers(clock)
        waiter = asyncio.create_task(watchers.wait("job_1", 600.0))
        await asyncio.sleep(0.5)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        await asyncio.sleep(2)

        assert not watchers._waiting

    run(story)


def test_who_follows_a_job_hears_that_nothing_happens_and_not_too_much_of_what_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sign of life every fifteen seconds, also while the store cannot be read; of many changes in a moment the last."""

    async def story(clock: LoopClock) -> None:
        stage, is_closing = Stage(clock), False
        watchers = Watchers(clock, lambda: is_closing)
        await stage.accept("job_1", "job_2")
        heard: list[tuple[int, int | None]] = []
        began = clock.monotonic()

        async def follow(job_id: str) -> None:
            async for job in watchers.changes(stage.store, job_id, "t", -1):
                heard.append((int(clock.monotonic() - began), None if job is None else job.revision))

        following = asyncio.create_task(follow("job_1"))
        await asyncio.sleep(40)
        assert heard == [(0, 0), (15, None), (30, None)]
        with monkeypatch.context() as patch:
            patch.setattr(MemoryJobStore, "find", _fails)
            await asyncio.sleep(15)
        assert heard[3:] == [(45, None)]
        (work,) = await stage.store.claim([ClaimRequest("all", 1)])
        for number in range(100):
            await stage.store.note(work, {"number": number})
            watchers.changed("job_1")
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        assert 3 <= len(heard[4:]) <= 6
        assert heard[-1][1] == 101
        await stage.store.finish(work, JobEnd(JobState.SUCCEEDED))
        await asyncio.wait_for(following, 2.0)
        assert heard[-1][1] == 102

        other = asyncio.create_task(follow("job_2"))
        await asyncio.sleep(0.5)
        is_closing = True
        await asyncio.wait_for(other, 2.0)

    run(story)


def test_a_job_that_runs_elsewhere_costs_one_look_a_second_and_its_end_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many poll it, wait for it and follow it, in whatever rhythm."""

    async def story(clock: LoopClock) -> None:
        stage, watchers, looks = Stage(clock), Watchers(clock), [0]
        find = MemoryJobStore.find

        async def counted(store: MemoryJobStore, job_id: str, tenant: str | None) -> Job | None:
            looks[0] += 1
            return await find(store, job_id, tenant)

        await stage.accept("job_1")
        monkeypatch.setattr(MemoryJobStore, "find", counted)

        async def poll(every_s: float) -> None:
            while not (job := await watchers.look(stage.store, "job_1", "t")) or not job.state.is_end:  # noqa: ASYNC110 - a client's poll
                await asyncio.sleep(every_s)

        async def wait(first_s: float) -> None:
            await asyncio.sleep(first_s)
            while not (job := await watchers.look(stage.store, "job_1", "t")) or not job.state.is_end:
                await watchers.wait("job_1", first_s)  # what is left of its own time

        async def follow(first_s: float) -> None:
            await asyncio.sleep(first_s)
            async for _ in watchers.changes(stage.store, "job_1", "t", -1):
                pass

        tasks = [asyncio.create_task(each(0.03 + n * 0.07)) for n in range(20) for each in (poll, wait, follow)]
        await asyncio.sleep(60)
        assert 40 <= looks[0] <= 61

        (work,) = await stage.store.claim([ClaimRequest("all", 1)])
        await stage.store.finish(work, JobEnd(JobState.SUCCEEDED))
        await asyncio.wait_for(asyncio.gather(*tasks), 3.0)

    run(story)


async def _fails(_store: MemoryJobStore, _job_id: str, _tenant: str | None) -> NoReturn:
    raise JobsUnavailable("The disk is full.")


def test_ids_that_nobody_has_are_not_remembered() -> None:
    """Of ten thousand looks each could be as long as a URL."""

    async def story(clock: LoopClock) -> None:
        watchers = Watchers(clock)

        assert await watchers.look(Stage(clock).store, "x" * 60_000, None) is None
        assert not watchers._looks

    run(story)


def test_a_claim_that_ended_here_is_not_lost() -> None:
    """Whoever asks for its renewal a moment later hears that there is none; what clears away behind it goes on."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock)
        await stage.accept("job_1")
        (work,) = await stage.store.claim([ClaimRequest("all", 1)])
        running = RunningWork(work, clock, stage.meter)
        cleared: list[str] = []

        async def end_and_clear() -> None:
            await running.finish(stage.store, JobEnd(JobState.SUCCEEDED))
            await asyncio.sleep(1)
            cleared.append(work.job.id)

        running.task = asyncio.create_task(end_and_clear())
        await asyncio.sleep(0.5)
        (result,) = await stage.store.renew([work])
        running.note(result)
        await asyncio.gather(running.task, return_exceptions=True)

        assert cleared == ["job_1"]
        assert not stage.meter.work.job_claims_lost.totals[()]

    run(story)
