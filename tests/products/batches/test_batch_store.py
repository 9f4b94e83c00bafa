"""A batch from CHECK to its end: each line has one result, each chunk one place, and FINALISE comes once."""

from __future__ import annotations

import pytest

from gateway.products.jobs.model import CHECK, FINALISE, ChunkPlan, JobQuery, JobState, LineResult, Stage, Tally
from tests.support.job_stores import ERROR, OURS, Jobs, chunk, line, pieces


async def test_a_batch_begins_with_its_check(jobs: Jobs) -> None:
    """No line of it runs before."""
    await jobs.batch()
    work = await jobs.claim()

    assert (work.piece, work.job.stage, work.job.state) == (CHECK, Stage.CHECK, JobState.RUNNING)
    assert await jobs.claim_all() == []


async def test_a_check_may_find_that_it_cannot_run(jobs: Jobs) -> None:
    """Then that is its end."""
    await jobs.batch()
    await jobs.finish(await jobs.claim(), JobState.FAILED, error=ERROR, marks={"errors": [{"line": 1}]})
    (job,) = (await jobs.store.list_jobs(JobQuery("t"))).jobs

    assert (job.state, job.last_error, job.marks) == (JobState.FAILED, ERROR, {"errors": [{"line": 1}]})
    assert job.ended_at == jobs.wall()


async def test_as_many_chunks_wait_or_run_as_the_plan_says(jobs: Jobs) -> None:
    """Each that is complete makes the next one ready, behind others' work."""
    job = await jobs.running_batch(total=7, per_chunk=2, parallel=2)
    assert (job.stage, job.marks, job.tally.total) == (Stage.RUN, {"checked": True}, 7)
    first, second = await jobs.claim_all()
    assert (pieces([first, second]), await jobs.claim_all()) == ([0, 1], [])

    await jobs.call(id="other")
    await jobs.run_chunk(second)

    assert [(work.job.id, work.piece) for work in await jobs.claim_all()] == [("other", 0), (job.id, 2)]


async def test_finalise_comes_once_when_all_chunks_are_complete(jobs: Jobs) -> None:
    """In whatever order they were."""
    job = await jobs.running_batch(total=6, per_chunk=2, parallel=3)
    works = await jobs.claim_all()
    for work in (works[1], works[2]):
        await jobs.run_chunk(work)
        assert await jobs.claim_all() == []
    await jobs.run_chunk(works[0])
    final = await jobs.claim()

    assert (final.job.id, final.piece, final.job.stage) == (job.id, FINALISE, Stage.FINALISE)
    assert await jobs.claim_all() == []
    await jobs.finish(final)
    assert await jobs.claim_all() == []


async def test_an_empty_batch_goes_straight_to_finalise(jobs: Jobs) -> None:
    """There is nothing to run."""
    await jobs.running_batch(total=0)

    assert pieces(await jobs.claim_all()) == [FINALISE]


async def test_the_first_result_of_a_line_stays_and_counts_once(jobs: Jobs) -> None:
    """Whoever commits another one; the results are in the order of lines."""
    await jobs.running_batch(total=4, per_chunk=4, parallel=1)
    work = await jobs.claim()
    assert await jobs.store.commit(work, [line(2), line(1, "first")]) == OURS
    await jobs.store.commit(work, [line(1, "second"), line(0), line(3, is_failed=True), line(0, "third")])

    assert await jobs.store.results(work) == [line(0), line(1, "first"), line(2), line(3, is_failed=True)]
    assert (await jobs.get(work.job.id)).tally == Tally(4, 3, 1, 40, 16, 8, 2.0, 4)


async def test_a_commit_of_nothing_new_changes_nothing(jobs: Jobs) -> None:
    """Not even the revision."""
    await jobs.running_batch()
    work = (await jobs.claim_all())[0]
    await jobs.store.commit(work, [line(0)])
    before = await jobs.get(work.job.id)

    assert await jobs.store.commit(work, [line(0)]) == OURS
    assert await jobs.store.commit(work, []) == OURS

    assert await jobs.get(work.job.id) == before


async def test_results_outlive_the_claim(jobs: Jobs) -> None:
    """The next worker goes on behind them."""
    await jobs.running_batch(total=2, per_chunk=2, parallel=1)
    first = await jobs.claim()
    await jobs.store.commit(first, [line(1)])
    await jobs.give_back(first)
    second = await jobs.claim()
    assert await jobs.store.results(second) == [line(1)]
    await jobs.store.commit(second, [line(0), line(1, "again")])

    assert await jobs.store.results(second) == [line(0), line(1)]
    assert (await jobs.get(second.job.id)).tally.completed == 2


async def test_results_of_chunks_are_apart(jobs: Jobs) -> None:
    """And those of batches."""
    await jobs.running_batch(total=4, per_chunk=2, parallel=2)
    first, second = await jobs.claim_all()
    await jobs.running_batch(total=4, per_chunk=2, parallel=1)
    other = await jobs.claim()
    await jobs.store.commit(first, [line(0)])
    await jobs.store.commit(second, [line(2)])

    assert [await jobs.store.results(work) for work in (first, second, other)] == [[line(0)], [line(2)], []]


async def test_a_complete_chunk_is_its_blobs(jobs: Jobs) -> None:
    """Its rows are gone, its counts stay, and the chunks are in order."""
    job = await jobs.running_batch(total=4, per_chunk=2, parallel=2)
    first, second = await jobs.claim_all()
    await jobs.run_chunk(second)
    await jobs.run_chunk(first)
    final = await jobs.claim()

    assert await jobs.store.chunk_results(job.id) == [chunk(0), chunk(1)]
    assert await jobs.store.results(first) == []
    assert await jobs.store.open_results(final) == []
    assert (await jobs.get(job.id)).tally.completed == 4
    assert await jobs.store.chunk_results("nobody's") == []


async def test_finish_replaces_the_tally_and_adds_marks(jobs: Jobs) -> None:
    """What the end does not name stays."""
    job = await jobs.running_batch()
    final = await jobs.until_finalise()
    tally = Tally(6, 5, 1)
    jobs.wall.advance(3)
    await jobs.finish(final, tally=tally, marks={"output": "file-1"})
    done = await jobs.get(job.id)

    assert (done.state, done.ended_at, done.tally) == (JobState.SUCCEEDED, jobs.wall(), tally)
    assert done.marks == {"checked": True, "output": "file-1"}
    assert done.revision > final.job.revision


async def test_a_line_may_be_large_and_of_any_bytes(jobs: Jobs) -> None:
    """It is given back byte by byte."""
    await jobs.running_batch(total=2, per_chunk=2, parallel=1)
    work = await jobs.claim()
    results = [LineResult(0, False, bytes(range(256)) * 400, cost_usd=1e-9), LineResult(1, True, b"")]
    await jobs.store.commit(work, results)

    assert await jobs.store.results(work) == results


@pytest.mark.parametrize("parallel", [1, 4])
async def test_batches_take_turns(jobs: Jobs, parallel: int) -> None:
    """A chunk of one, then one of the other: nobody waits behind a whole batch."""
    jobs_of_two = [await jobs.running_batch(total=12, per_chunk=1, parallel=parallel)]
    for work in await jobs.claim_all():
        await jobs.give_back(work)
    await jobs.batch()
    *others, check = await jobs.claim_all()
    assert check.piece == CHECK
    await jobs.store.begin_lines(check, ChunkPlan(12, 1, parallel), {})
    jobs_of_two.append(check.job)
    for work in others:
        await jobs.give_back(work)

    seen: list[str] = []
    while len(seen) < 16:
        (work,) = await jobs.claim_all(1)
        seen.append(work.job.id)
        await jobs.run_chunk(work, 1)

    assert {job.id: seen.count(job.id) for job in jobs_of_two} == {job.id: 8 for job in jobs_of_two}
