"""What becomes of writes: those about claims that have ended change nothing, the others tell what was asked meanwhile."""

from __future__ import annotations

from gateway.products.jobs.model import ChunkPlan, ClaimedWork, JobFlag, JobState, Stage
from tests.support.job_stores import ERROR, OURS, STALE, Jobs, chunk, line


async def stale_call(jobs: Jobs) -> ClaimedWork:
    """A claim that was given back, and made anew by another."""
    stale = await jobs.running_call()
    await jobs.give_back(stale)
    await jobs.claim()
    return stale


async def test_a_stale_claim_of_a_call_changes_nothing(jobs: Jobs) -> None:
    """Whatever is written with it."""
    stale = await stale_call(jobs)
    before = await jobs.get(stale.job.id)

    answers = [
        *await jobs.store.renew([stale]),
        await jobs.store.note(stale, {"seen": True}),
        await jobs.give_back(stale, error=ERROR, is_attempt=True),
        await jobs.finish(stale),
        await jobs.store.commit(stale, [line(0)]),
    ]

    assert answers == [STALE] * 5
    assert await jobs.get(stale.job.id) == before
    assert await jobs.store.answer(stale.job.id, None) is None
    assert await jobs.claim_all() == []


async def test_a_stale_claim_of_a_chunk_changes_nothing(jobs: Jobs) -> None:
    """Neither its lines nor its blobs count."""
    job = await jobs.running_batch(parallel=1)
    stale = await jobs.claim()
    await jobs.give_back(stale)
    fresh = await jobs.claim()
    before = await jobs.get(job.id)

    answers = [
        await jobs.store.commit(stale, [line(0), line(1)]),
        await jobs.store.complete_chunk(stale, chunk(0)),
        await jobs.give_back(stale),
        await jobs.finish(stale, JobState.FAILED),
    ]

    assert answers == [STALE] * 4
    assert await jobs.store.results(fresh) == []
    assert await jobs.store.chunk_results(job.id) == []
    assert await jobs.get(job.id) == before
    assert await jobs.store.commit(fresh, [line(0)]) == OURS


async def test_a_stale_check_begins_nothing(jobs: Jobs) -> None:
    """One that is not of CHECK does not, either."""
    await jobs.batch()
    stale = await jobs.claim()
    await jobs.give_back(stale)
    fresh = await jobs.claim()

    assert await jobs.store.begin_lines(stale, ChunkPlan(2, 1, 2), {}) == STALE
    assert await jobs.claim_all() == []
    assert (await jobs.get(stale.job.id)).stage is Stage.CHECK
    assert await jobs.store.begin_lines(fresh, ChunkPlan(2, 1, 2), {}) == OURS
    (first, _) = await jobs.claim_all()
    assert await jobs.store.begin_lines(first, ChunkPlan(2, 1, 2), {}) == STALE


async def test_no_claim_outlives_its_job(jobs: Jobs) -> None:
    """Nothing can be written about one that has ended, or was forgotten."""
    work = await jobs.running_call()
    await jobs.finish(work)
    assert await jobs.store.renew([work]) == [STALE]
    jobs.wall.advance(1)
    await jobs.store.forget_ended(jobs.wall(), 10)

    assert await jobs.store.renew([work]) == [STALE]
    assert await jobs.finish(work, JobState.FAILED) == STALE


async def test_renewing_tells_what_was_asked_meanwhile(jobs: Jobs) -> None:
    """In the order of the claims."""
    await jobs.call(id="a")
    await jobs.call(id="b")
    await jobs.call(id="c")
    a, b, c = await jobs.claim_all()
    await jobs.store.flag("a", "t", JobFlag.CANCEL)
    await jobs.store.flag("b", "t", JobFlag.PAUSE)
    await jobs.give_back(c)

    told = await jobs.store.renew([c, b, a])

    assert [one.is_ours for one in told] == [False, True, True]
    assert [one.is_paused for one in told] == [False, True, False]
    assert [one.ends_as for one in told] == [None, None, JobState.CANCELLED]


async def test_every_write_tells_what_was_asked_meanwhile(jobs: Jobs) -> None:
    """So that nobody has to ask."""
    job = await jobs.running_batch()
    (first, second) = await jobs.claim_all()
    await jobs.store.flag(job.id, "t", JobFlag.PAUSE)
    assert (await jobs.store.commit(first, [line(0)])).is_paused
    await jobs.store.flag(job.id, "t", JobFlag.CANCEL)

    assert (await jobs.store.commit(first, [line(1)])).ends_as is JobState.CANCELLED
    assert (await jobs.store.complete_chunk(first, chunk(0))).ends_as is JobState.CANCELLED
    assert (await jobs.give_back(second)).ends_as is JobState.CANCELLED
