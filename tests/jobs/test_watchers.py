"""Those who wait for news of jobs leave nothing behind; a piece that has ended here was not lost to anybody."""

from __future__ import annotations

import asyncio

from gateway.jobs.running import RunningWork
from gateway.jobs.watchers import Watchers
from gateway.policy.jobs.job import ClaimAsk, JobEnd, JobState
from tests.flow.virtual import LoopClock, run
from tests.jobs.stage import Stage


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
        (work,) = await stage.store.claim([ClaimAsk("all", 1)])
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
        assert not stage.metrics.job_claims_lost.totals[()]

    run(story)
