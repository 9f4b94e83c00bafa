"""What a job's end brings with it is there as soon as the job has ended, however it ended; and nothing is without the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.products.jobs.model import ClaimRequest, Job, JobFlag, JobKind, JobQuery, JobState, NewJob
from gateway.products.jobs.sqlite_store import SqliteJobStore
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.transitions import OpenBounds
from tests.fixtures.job_stores import STORES
from tests.support.conformance import Wall
from tests.support.job_stores import DAY_S, Jobs
from tests.support.memory_store.store import MemoryJobStore
from tests.support.redis_jobs import job_lender
from tests.support.sqlite_support import connect_hastily

TIGHT = OpenBounds(in_all=1, per_tenant=1)
TOLD = "told"
"""The segment of what follows."""


def following(ended: Job) -> Sequence[NewJob]:
    """A delivery for each end but that of a delivery."""
    if ended.kind is JobKind.DELIVERY:
        return ()
    assert ended.state.is_end
    assert ended.ended_at is not None
    job = replace(
        ended,
        id=f"{ended.id}-told",
        kind=JobKind.DELIVERY,
        tenant="",
        segment=TOLD,
        state=JobState.QUEUED,
        run_at=ended.ended_at,
        deadline=ended.ended_at + DAY_S,
        about={"as": str(ended.state)},
        ends_as=None,
        ended_at=None,
    )
    return [NewJob(job, payload=b"told")]


@pytest.fixture(params=STORES)
async def jobs(request: pytest.FixtureRequest, tmp_path: Path, wall: Wall) -> AsyncIterator[Jobs]:
    """An empty store in which every end is told of, with room for one open job."""
    store: JobStore
    context = AsyncExitStack()
    if request.param == "memory":
        store = MemoryJobStore(wall, TIGHT, following)
    elif request.param == "redis":
        lends = await context.enter_async_context(job_lender(request.getfixturevalue("redis_url")))
        store = lends.make(TIGHT, wall, following)
    else:
        path = str(tmp_path / "jobs.db")
        store = SqliteJobStore(path, wall, TIGHT, following=following, connect=connect_hastily)
    yield Jobs(store, wall)
    await store.aclose()
    await context.aclose()


async def told(jobs: Jobs) -> list[tuple[str, str]]:
    """What may be claimed of what follows: the ids, and the ends they tell of."""
    works = await jobs.claim_all(segment=TOLD)
    assert all(work.payload == b"told" for work in works)
    return [(work.job.id, work.job.about["as"]) for work in works]


async def test_a_finished_job_is_told_of(jobs: Jobs) -> None:
    """Above the bounds of open jobs, too, and once."""
    work = await jobs.running_call()
    assert await told(jobs) == []
    await jobs.finish(work)
    await jobs.finish(work)

    assert await told(jobs) == [("job-1-told", "succeeded")]


async def test_a_job_that_is_cancelled_while_nobody_runs_it_is_told_of(jobs: Jobs) -> None:
    """The store ends it itself."""
    job = await jobs.call()
    wakes = jobs.wakes
    await jobs.store.flag(job.id, "t", JobFlag.CANCEL)
    await jobs.store.flag(job.id, "t", JobFlag.CANCEL)

    assert jobs.wakes > wakes
    assert await told(jobs) == [("job-1-told", "cancelled")]


async def test_a_job_that_is_cancelled_while_it_runs_is_told_of_when_it_is_given_back(jobs: Jobs) -> None:
    """Not before."""
    work = await jobs.running_call()
    await jobs.store.flag(work.job.id, "t", JobFlag.CANCEL)
    assert await told(jobs) == []
    await jobs.give_back(work)

    assert await told(jobs) == [("job-1-told", "cancelled")]


async def test_a_job_whose_deadline_passes_is_told_of(jobs: Jobs) -> None:
    """By the store's clock alone."""
    await jobs.call(run_at=jobs.wall() + 2 * DAY_S)
    await jobs.tick(DAY_S)

    assert await told(jobs) == [("job-1-told", "expired")]


async def test_a_job_that_a_claim_finds_expired_is_told_of(jobs: Jobs) -> None:
    """No tick came before it."""
    await jobs.call()
    jobs.wall.advance(DAY_S)
    assert await jobs.claim_all() == []

    assert await told(jobs) == [("job-1-told", "expired")]


async def test_a_batch_is_told_of_at_its_end(jobs: Jobs) -> None:
    """A batch that is cancelled ends when it is put together."""
    batch = await jobs.running_batch()
    await jobs.store.flag(batch.id, "t", JobFlag.CANCEL)
    assert await told(jobs) == []
    await jobs.finish(await jobs.claim(), JobState.CANCELLED)

    assert await told(jobs) == [(f"{batch.id}-told", "cancelled")]


async def test_what_follows_ends_like_a_call(jobs: Jobs) -> None:
    """By its worker, or past its deadline; and brings nothing with it."""
    await jobs.finish(await jobs.running_call())
    (work,) = await jobs.claim_all(segment=TOLD)
    await jobs.give_back(work, run_at=jobs.wall() + 2 * DAY_S, is_attempt=True)
    await jobs.tick(2 * DAY_S)

    assert (await jobs.get(work.job.id)).state is JobState.EXPIRED
    assert await jobs.store.claim([ClaimRequest(TOLD, 9)]) == []


async def test_no_tenant_meets_what_follows(jobs: Jobs) -> None:
    """Neither in its list, nor by its id; and its own room is left to it."""
    await jobs.finish(await jobs.running_call())
    listed = await jobs.store.list_jobs(JobQuery("t"))

    assert [job.id for job in listed.jobs] == ["job-1"]
    assert await jobs.store.find("job-1-told", "t") is None


async def test_an_end_found_at_the_next_start_is_told_of(tmp_path: Path, wall: Wall) -> None:
    """The process died while the job ran that was to stop: it ends when the file is opened again."""
    path = str(tmp_path / "jobs.db")
    first = Jobs(SqliteJobStore(path, wall, following=following, connect=connect_hastily), wall)
    work = await first.running_call()
    await first.store.flag(work.job.id, "t", JobFlag.CANCEL)
    await first.store.aclose()

    second = Jobs(SqliteJobStore(path, wall, following=following, connect=connect_hastily), wall)
    assert await told(second) == [("job-1-told", "cancelled")]
    await second.store.aclose()
