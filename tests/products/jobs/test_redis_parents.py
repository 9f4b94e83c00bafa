"""Runs that replicas share on a Redis: workers that die with them, answers that are lost, and ends at the same time."""

from __future__ import annotations

import asyncio

import pytest

from gateway.products.jobs.model import ClaimRequest, JobFlag, JobKind, JobQuery, JobState
from tests.products.jobs.test_parents import child, claimed, parked, running
from tests.products.jobs.test_redis_leases import let_leases_end, lost
from tests.support.conformance import Wall
from tests.support.job_stores import OURS, STALE, Jobs, ids
from tests.support.redis_jobs import JobLender

LOOKS = "looks"
"""The segment of runs where their children have another."""


@pytest.fixture
def two(job_lends: JobLender, wall: Wall) -> tuple[Jobs, Jobs]:
    """Two replicas."""
    return Jobs(job_lends.make(wall=wall), wall), Jobs(job_lends.make(wall=wall, is_replica=True), wall)


async def test_a_run_whose_worker_dies_is_another_ones(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """What the dead one would begin is not begun by it; what the new one could see is no news."""
    a, b = two
    await parked(a, "x", "y", id="run")
    works = await claimed(a, "x", "y")
    await a.finish(works["x"])
    stale = (await claimed(a, "run"))["run"]
    await b.finish(works["y"])
    let_leases_end(job_lends)

    work = (await claimed(b, "run"))["run"]
    assert work.claims == 2
    assert await a.store.park(stale, [child(a, stale.job, "z")], {"a": 1}) == STALE
    assert await b.store.find("z", "t") is None
    await b.store.park(work, [], {})
    assert await a.claim_all() == []


@pytest.mark.parametrize("way", ["cancel", "deadline"])
async def test_a_run_that_is_to_stop_survives_its_worker(
    two: tuple[Jobs, Jobs], job_lends: JobLender, way: str
) -> None:
    """It does not end by itself: somebody has to see to its children."""
    a, b = two
    work = await running(a, id="run", deadline=a.wall() + 20)
    if way == "cancel":
        await b.store.flag("run", "t", JobFlag.CANCEL)
    else:
        await b.tick(21)
    let_leases_end(job_lends)

    await b.tick()
    again = await b.claim()
    assert again.job.ends_as is (JobState.CANCELLED if way == "cancel" else JobState.EXPIRED)
    assert await a.finish(work) == STALE
    await b.finish(again, JobState.CANCELLED)
    assert (await a.get("run")).state is JobState.CANCELLED


async def test_a_park_that_nobody_heard_of_is_done_once(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """Whoever repeats it is not told that the claim is lost, though the run has been looked at since."""
    a, b = two
    work = await running(a, id="run")
    await lost(job_lends, 0, a.store.park(work, [child(a, work.job, "x")], {"step": 1}))
    assert (await b.get("run")).state is JobState.WAITING
    await b.finish((await claimed(b, "x"))["x"])
    again = (await claimed(b, "run"))["run"]

    assert await a.store.park(work, [child(a, work.job, "x")], {"step": 1}) == OURS
    assert await a.store.park(work, [child(a, work.job, "x")], {"step": 1}) == STALE
    assert await b.store.park(again, [], {}) == OURS
    assert await a.claim_all() == []


async def test_an_end_that_nobody_heard_of_wakes_once(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    a, b = two
    await parked(a, "x", "y", id="run")
    works = await claimed(a, "x", "y")
    await lost(job_lends, 0, a.finish(works["x"]))
    again = (await claimed(b, "run"))["run"]
    await b.store.park(again, [], {})

    assert await a.finish(works["x"]) == OURS
    assert await b.claim_all() == []
    await a.finish(works["y"])
    assert ids(await b.claim_all()) == ["run"]


async def test_ends_at_the_same_time_on_two_replicas(two: tuple[Jobs, Jobs]) -> None:
    """While both look at the run whenever it is ready: the last look sees all of them, and none is in vain."""
    a, b = two
    names = [f"c{number}" for number in range(60)]
    await a.accept(a.new(kind=JobKind.RUN, id="run", segment=LOOKS))
    (work,) = await a.claim_all(segment=LOOKS)
    await a.store.park(work, [child(a, work.job, name) for name in names], {})
    works = await a.claim_all()
    seen: list[int] = []

    async def look(jobs: Jobs) -> None:
        while not seen or seen[-1] < len(names):
            for one in await jobs.store.claim([ClaimRequest(LOOKS, 1)]):
                page = await jobs.store.list_jobs(JobQuery("t", statuses=[JobState.SUCCEEDED], parent="run", limit=100))
                await jobs.store.park(one, [], {})
                seen.append(len(page.jobs))
            await asyncio.sleep(0)

    async def end(jobs: Jobs, number: int) -> None:
        for one in works[number::2]:
            assert await jobs.finish(one) == OURS

    async with asyncio.timeout(30):
        await asyncio.gather(look(a), look(b), end(a, 0), end(b, 1))
    while late := await a.store.claim([ClaimRequest(LOOKS, 1)]):  # one that was claimed before the last end
        await a.store.park(late[0], [], {})
        seen.append(len(names))

    assert (await b.get("run")).state is JobState.WAITING
    assert seen == sorted(seen)
    assert seen.count(len(names)) <= 2
    assert len(seen) <= len(names) + 1
