"""The conformance suite on a cluster, where jobs are in sixteen partitions on three servers; and what is different there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.products.jobs.dead_letters.rules import LetterState, RedriveResult
from gateway.products.jobs.model import ClaimRequest, JobFlag, JobKind, JobQuery, JobState, TooManyJobs
from gateway.products.jobs.response_store import KeptBounds
from gateway.products.jobs.transitions import OpenBounds
from tests.features.runs import test_run_store as test_runs
from tests.products.batches import test_batch_store as test_batches
from tests.products.jobs import test_accept, test_fences, test_lists, test_parents
from tests.products.jobs.dead_letters import test_dead_letter_store as test_dead_letters
from tests.products.jobs.dead_letters.test_dead_letter_store import again, dead_call, letter
from tests.products.jobs.test_following import TOLD, following
from tests.products.responses import test_event_logs, test_kept_responses
from tests.support.conformance import Wall
from tests.support.job_stores import ANSWER, ERROR, OURS, Jobs, MakeJobStore, ids
from tests.support.redis_jobs import JobLender, PromptJobStore, job_lender

DIFFERENT = {
    "test_bounds_in_all_and_per_tenant": "the other partitions count as of the last look",
    "test_the_bytes_of_files_are_counted_while_they_are_there": "an id of a file is one tenant's",
    "test_a_needle_is_found": "it takes long, and is in one partition like all of a tenant's",
}
TENANTS = [f"tenant-{number}" for number in range(8)]
"""In several partitions."""
for module in (
    test_accept,
    test_batches,
    test_dead_letters,
    test_event_logs,
    test_fences,
    test_kept_responses,
    test_lists,
    test_parents,
    test_runs,
):
    globals().update({name: one for name, one in vars(module).items() if name[:5] == "test_" and name not in DIFFERENT})


@pytest.fixture
async def cluster_lends(redis_cluster_url: str) -> AsyncIterator[JobLender]:
    async with job_lender(redis_cluster_url) as lends:
        yield lends


@pytest.fixture
async def make_store(cluster_lends: JobLender, wall: Wall) -> MakeJobStore:
    def make(bounds: OpenBounds, kept_bounds: KeptBounds | None = None) -> PromptJobStore:
        return cluster_lends.make(bounds, wall, kept_bounds=kept_bounds)

    return make


@pytest.fixture
def jobs(make_store: MakeJobStore, wall: Wall) -> Jobs:
    return Jobs(make_store(OpenBounds()), wall)


async def test_tenants_are_in_several_partitions(jobs: Jobs, cluster_lends: JobLender) -> None:
    """Found with and without their tenants, claimed by one worker, listed in one order; each with its own room."""
    names = [(await jobs.call(tenant=tenant)).id for _ in range(3) for tenant in TENANTS]
    other = cluster_lends.make(wall=jobs.wall, is_replica=True)
    first = await other.list_jobs(JobQuery(None, limit=10))
    second = await other.list_jobs(JobQuery(None, limit=10, after=first.jobs[-1].id))
    third = await other.list_jobs(JobQuery(None, limit=10, after=second.jobs[-1].id))
    assert [job.id for page in (first, second, third) for job in page.jobs] == names[::-1]
    assert (first.has_more, second.has_more, third.has_more) == (True, True, False)
    assert await other.find(names[0], TENANTS[1]) is None
    found = await other.find(names[0], None)
    assert found is not None
    assert await other.flag(names[0], None, JobFlag.CANCEL) is not None

    works = [work for _ in range(10) for work in await jobs.store.claim([ClaimRequest("fast", 3)])]

    assert sorted(ids(works)) == sorted(names[1:])
    assert await other.renew(works) == [OURS] * len(works)
    for work in works:
        assert await jobs.finish(work, answer=ANSWER) == OURS
    assert await other.answer(names[1], None) == await other.answer(names[1], TENANTS[1]) == ANSWER
    assert [await other.chunk_results(name) for name in names[:2]] == [[], []]
    jobs.wall.advance(1)
    assert await other.forget_ended(jobs.wall(), 100) == len(names)


async def test_what_follows_has_no_tenant_and_is_beside_its_cause(cluster_lends: JobLender, wall: Wall) -> None:
    """It is claimed, given back and ended like any other, and found by its id alone."""
    jobs = Jobs(cluster_lends.make(wall=wall, following=following), wall)
    for tenant in TENANTS:
        await jobs.call(tenant=tenant)
    for work in await jobs.claim_all():
        await jobs.finish(work)
    works = await jobs.claim_all(segment=TOLD)
    assert len(works) == len(TENANTS)
    for work in works:
        await jobs.give_back(work, error=ERROR, is_attempt=True)
    for work in await jobs.claim_all(segment=TOLD):
        await jobs.finish(work)

    other = cluster_lends.make(wall=wall, is_replica=True)
    told = [await other.find(work.job.id, None) for work in works]
    assert [job is not None and job.state is JobState.SUCCEEDED for job in told] == [True] * len(TENANTS)


async def test_the_bound_in_all_is_that_of_the_last_look(cluster_lends: JobLender, wall: Wall) -> None:
    """A tenant's own is exact."""
    jobs = Jobs(cluster_lends.make(OpenBounds(4, 2), wall), wall)
    for tenant in TENANTS[:2]:
        await jobs.call(tenant=tenant)
        await jobs.call(tenant=tenant)
        with pytest.raises(TooManyJobs, match="tenant"):
            await jobs.call(tenant=tenant)
    await jobs.tick()

    with pytest.raises(TooManyJobs, match="gateway"):
        await jobs.call(tenant=TENANTS[2])


async def test_letters_of_all_partitions_are_replayed_from_one(jobs: Jobs) -> None:
    """The replay is in a partition of its own; groups and bounds are over all of them."""
    letters = [await dead_call(jobs, payload=b"x" * 10, tenant=tenant) for tenant in TENANTS]
    (group,) = await jobs.store.dead.groups(3)
    assert (group.number, group.bytes, len(group.samples)) == (8, 80, 3)
    await jobs.call(kind=JobKind.REDRIVE, tenant="", segment="replays")
    (work,) = await jobs.claim_all(segment="replays")
    for number, letter_id in enumerate(letters):
        new = again(jobs, letter_id, f"again-{number}", tenant=TENANTS[number])
        assert await jobs.store.dead.redrive(work, letter_id, 1, new) == RedriveResult(OURS, is_done=True)
        assert await jobs.store.dead.redrive(work, letter_id, 1, new) == RedriveResult(OURS, is_done=False)
    assert (await jobs.get(work.job.id)).tally.total == 8
    for one in await jobs.claim_all():
        await jobs.finish(one, JobState.FAILED if one.job.id == "again-0" else JobState.SUCCEEDED, error=ERROR)

    assert (await letter(jobs, letters[0])).state is LetterState.REDRIVE_FAILED
    assert {(await letter(jobs, one)).state for one in letters[1:]} == {LetterState.REDRIVEN}
    assert await jobs.store.dead.trim(0.0, 5, 10) == 1
    assert await jobs.store.dead.trim(jobs.wall() + 1, 0, 10) == 8
    assert await jobs.store.dead.groups(3) == []
