"""How jobs end: once, by their worker, by being cancelled, by their deadline; at every point of their lives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from gateway.products.jobs.model import (
    ECHO,
    FINALISE,
    REQUESTED,
    STATUS,
    ChunkPlan,
    ClaimedWork,
    Job,
    JobFlag,
    JobState,
    Stage,
    StoredAnswer,
    Tally,
)
from gateway.products.responses.rules import STREAMS
from tests.support.job_stores import ANSWER, DAY_S, ERROR, HOUR_S, OURS, STALE, Jobs, line, pieces

Stop = Callable[[Jobs, Job], Awaitable[JobState]]


async def cancel(jobs: Jobs, job: Job) -> JobState:
    assert await jobs.store.flag(job.id, job.tenant, JobFlag.CANCEL) is not None
    return JobState.CANCELLED


async def expire(jobs: Jobs, job: Job) -> JobState:
    await jobs.tick(DAY_S)
    return JobState.EXPIRED


@pytest.fixture(params=[cancel, expire])
def stop(request: pytest.FixtureRequest) -> Stop:
    """The two ways of stopping a job from outside."""
    return request.param  # type: ignore[no-any-return]  # one of the above


async def test_an_answer_is_given_again_as_it_came(jobs: Jobs) -> None:
    """Status, headers in their order, and body."""
    answer = StoredAnswer(429, [("a", "1"), ("b", "2"), ("a", "ü")], bytes(range(256)) * 300)
    work = await jobs.running_call()
    assert await jobs.store.answer(work.job.id, "t") is None
    await jobs.finish(work, JobState.FAILED, answer=answer, tally=Tally(1, 0, 1, 5), error=ERROR)
    stored = await jobs.store.answer(work.job.id, "t")
    job = await jobs.get(work.job.id)

    assert stored is not None
    assert (stored.status, list(stored.headers), stored.body) == (answer.status, answer.headers, answer.body)
    assert (job.state, job.tally, job.last_error) == (JobState.FAILED, Tally(1, 0, 1, 5), ERROR)


async def test_an_end_may_be_an_attempt(jobs: Jobs) -> None:
    """The last one counts like those before."""
    await jobs.give_back(await jobs.running_call(), is_attempt=True)
    work = await jobs.claim()
    await jobs.finish(work, is_attempt=True)

    assert (await jobs.get(work.job.id)).attempts == 2


async def test_an_end_never_changes(jobs: Jobs) -> None:
    """Whatever is written, asked or due later."""
    work = await jobs.running_call()
    await jobs.finish(work, answer=ANSWER)
    before = await jobs.get(work.job.id)

    assert await jobs.finish(work, JobState.FAILED) == STALE
    assert await jobs.give_back(work) == STALE
    for flag in JobFlag:
        assert await jobs.store.flag(work.job.id, "t", flag) == before
    await jobs.tick(2 * DAY_S)

    assert await jobs.get(work.job.id) == before
    assert await jobs.store.answer(work.job.id, "t") == ANSWER
    assert await jobs.claim_all() == []


async def test_a_waiting_call_ends_at_once(jobs: Jobs, stop: Stop) -> None:
    """Nobody ever runs it."""
    waiting = await jobs.call()
    ends_as = await stop(jobs, waiting)
    job = await jobs.get(waiting.id)

    assert (job.state, job.ended_at, job.started_at) == (ends_as, jobs.wall(), None)
    assert job.revision > waiting.revision
    assert await jobs.claim_all() == []


async def test_a_scheduled_call_ends_at_once(jobs: Jobs, stop: Stop) -> None:
    """Also when its time comes later."""
    scheduled = await jobs.call(run_at=jobs.wall() + 2 * DAY_S)
    ends_as = await stop(jobs, scheduled)
    await jobs.tick(3 * DAY_S)

    assert (await jobs.get(scheduled.id)).state is ends_as
    assert await jobs.claim_all() == []


async def test_a_call_between_two_attempts_ends_at_once(jobs: Jobs, stop: Stop) -> None:
    """Nobody runs it then."""
    work = await jobs.running_call()
    await jobs.give_back(work, run_at=jobs.wall() + 2 * DAY_S, error=ERROR, is_attempt=True)
    ends_as = await stop(jobs, work.job)
    job = await jobs.get(work.job.id)

    assert (job.state, job.attempts, job.last_error) == (ends_as, 1, ERROR)


async def test_a_paused_call_ends_at_once(jobs: Jobs, stop: Stop) -> None:
    """It need not be resumed for that."""
    job = await jobs.call()
    await jobs.store.flag(job.id, "t", JobFlag.PAUSE)
    ends_as = await stop(jobs, job)

    assert (await jobs.get(job.id)).state is ends_as


async def test_a_running_call_may_finish(jobs: Jobs, stop: Stop) -> None:
    """It is told, and what it was paid for counts."""
    work = await jobs.running_call()
    ends_as = await stop(jobs, work.job)
    job = await jobs.get(work.job.id)
    (told,) = await jobs.store.renew([work])
    result = await jobs.finish(work, answer=ANSWER)

    assert (job.state, job.ends_as) == (JobState.RUNNING, ends_as)
    assert told.ends_as is result.ends_as is ends_as
    assert (await jobs.get(work.job.id)).state is JobState.SUCCEEDED


async def test_a_call_that_is_to_stop_does_not_run_again(jobs: Jobs, stop: Stop) -> None:
    """Given back, it ends."""
    work = await jobs.running_call()
    ends_as = await stop(jobs, work.job)
    told = await jobs.give_back(work, error=ERROR, is_attempt=True)
    job = await jobs.get(work.job.id)

    assert (told.is_ours, told.ends_as) == (True, ends_as)
    assert (job.state, job.ended_at, job.attempts) == (ends_as, jobs.wall(), 1)
    assert await jobs.claim_all() == []


async def test_the_first_reason_to_stop_stays(jobs: Jobs) -> None:
    """A cancelled job that runs past its deadline is cancelled; one that ran out of time, expired."""
    cancelled, expired = [await jobs.running_call() for _ in range(2)]
    await cancel(jobs, cancelled.job)
    await jobs.tick(DAY_S)
    await cancel(jobs, expired.job)
    await jobs.give_back(cancelled)
    await jobs.give_back(expired)

    assert (await jobs.get(cancelled.job.id)).state is JobState.CANCELLED
    assert (await jobs.get(expired.job.id)).state is JobState.EXPIRED


async def test_what_is_past_its_deadline_is_never_begun(jobs: Jobs) -> None:
    """Not even before the next tick; the others are given."""
    late = await jobs.call(deadline=jobs.wall() + 10)
    await jobs.call(id="good")
    jobs.wall.advance(10)

    assert [work.job.id for work in await jobs.claim_all()] == ["good"]
    assert (await jobs.get(late.id)).state is JobState.EXPIRED


async def test_time_passes_for_many_at_once(jobs: Jobs) -> None:
    """In small steps, but all of them."""
    await jobs.store.accept([jobs.new(deadline=jobs.wall() + 10) for _ in range(1200)])
    jobs.wall.advance(10)
    for _ in range(10):
        await jobs.tick(1)

    assert jobs.numbers() == {}


async def test_a_batch_that_was_never_begun_is_put_together(jobs: Jobs, stop: Stop) -> None:
    """Its owner gets two files, with a word about every line."""
    job = await jobs.batch()
    ends_as = await stop(jobs, job)
    final = await jobs.claim()

    assert (final.piece, final.job.ends_as, final.job.stage) == (FINALISE, ends_as, Stage.FINALISE)
    await jobs.finish(final, ends_as)
    assert (await jobs.get(job.id)).state is ends_as


async def test_a_scheduled_batch_is_put_together_now(jobs: Jobs, stop: Stop) -> None:
    """Not when it would have begun."""
    job = await jobs.batch(run_at=jobs.wall() + 2 * DAY_S)
    await stop(jobs, job)

    assert (await jobs.get(job.id)).state is JobState.QUEUED
    assert pieces(await jobs.claim_all()) == [FINALISE]


async def test_a_batch_that_is_being_checked_stops_behind_it(jobs: Jobs, stop: Stop) -> None:
    """No line of it runs; how many there are is known by then."""
    await jobs.batch()
    check = await jobs.claim()
    ends_as = await stop(jobs, check.job)
    assert await jobs.claim_all() == []
    told = await jobs.store.begin_lines(check, ChunkPlan(6, 2, 2), {"lines": 6})
    (final,) = await jobs.claim_all()

    assert (told.is_ours, told.ends_as) == (True, ends_as)
    marks = {"lines": 6} | ({"cancelling_at": jobs.wall()} if ends_as is JobState.CANCELLED else {})
    assert (final.piece, final.job.tally.total, final.job.marks) == (FINALISE, 6, marks)


async def test_a_cancellation_is_marked_with_its_time(jobs: Jobs) -> None:
    """As a batch shows it; its first one."""
    job = await jobs.batch()
    asked = jobs.wall()
    await cancel(jobs, job)
    jobs.wall.advance(1)
    await cancel(jobs, job)

    assert (await jobs.get(job.id)).marks == {"cancelling_at": asked}


async def test_a_check_that_is_given_back_does_not_begin_again(jobs: Jobs, stop: Stop) -> None:
    """The batch goes on to FINALISE."""
    await jobs.batch()
    check = await jobs.claim()
    await stop(jobs, check.job)
    await jobs.give_back(check)

    assert pieces(await jobs.claim_all()) == [FINALISE]


async def test_a_batch_of_which_nothing_is_claimed_is_put_together_at_once(jobs: Jobs, stop: Stop) -> None:
    """Chunks that wait are not begun any more; what was committed of them is there."""
    job = await jobs.running_batch(total=6, per_chunk=2, parallel=2)
    first, second = await jobs.claim_all()
    await jobs.run_chunk(first)
    await jobs.store.commit(second, [line(3, is_failed=True)])
    await jobs.give_back(second)
    await stop(jobs, job)
    (final,) = await jobs.claim_all()

    assert final.piece == FINALISE
    assert [one.chunk for one in await jobs.store.chunk_results(job.id)] == [0]
    assert await jobs.store.open_results(final) == [line(3, is_failed=True)]


async def test_finalise_may_commit_what_comes_late_for_a_stopped_batch(jobs: Jobs, stop: Stop) -> None:
    """It counts once, and is there beside what chunks had; given back for a time, it comes back then."""
    job = await jobs.running_batch(total=6, per_chunk=2, parallel=2)
    first, second = await jobs.claim_all(2)
    await jobs.store.commit(first, [line(1)])
    await stop(jobs, job)
    await jobs.give_back(first)
    await jobs.give_back(second)
    final = await jobs.claim()
    for _ in range(2):
        assert (await jobs.store.commit(final, [line(0, "late"), line(5, is_failed=True)])).is_ours
    await jobs.give_back(final, run_at=jobs.wall() + 60)
    assert await jobs.claim_all() == []
    await jobs.tick(60)
    again = await jobs.claim()

    assert (again.piece, again.job.tally) == (FINALISE, Tally(6, 2, 1, 30, 12, 6, 1.5, 3))
    assert sorted(await jobs.store.open_results(again)) == [line(0, "late"), line(1), line(5, is_failed=True)]


@pytest.mark.parametrize("is_given_back", [False, True])
async def test_a_running_batch_waits_for_what_runs(jobs: Jobs, stop: Stop, is_given_back: bool) -> None:
    """The last of its chunks, complete or not, sends it on to FINALISE; once."""
    job = await jobs.running_batch(total=12, per_chunk=2, parallel=3)
    first, second = await jobs.claim_all(2)
    ends_as = await stop(jobs, job)
    assert await jobs.claim_all() == []
    assert (await jobs.store.commit(first, [line(0), line(1)])).is_ours
    told = await jobs.run_chunk(first)
    assert (told.ends_as, await jobs.claim_all()) == (ends_as, [])
    await (jobs.give_back(second) if is_given_back else jobs.run_chunk(second))

    assert pieces(await jobs.claim_all()) == [FINALISE]
    assert await jobs.claim_all() == []
    assert (await jobs.get(job.id)).ends_as is ends_as


async def test_a_paused_batch_that_is_to_stop_is_put_together(jobs: Jobs, stop: Stop) -> None:
    """FINALISE is given though it is paused; and given again when it was given back."""
    job = await jobs.running_batch()
    await jobs.store.flag(job.id, "t", JobFlag.PAUSE)
    await stop(jobs, job)
    final = await jobs.claim()
    await jobs.give_back(final)
    again = await jobs.claim()

    assert final.piece == again.piece == FINALISE


async def test_a_deadline_does_not_undo_what_is_done(jobs: Jobs) -> None:
    """All lines have results: a batch that is being put together does not expire any more, but can be cancelled."""
    job = await jobs.running_batch()
    final = await jobs.until_finalise()
    await jobs.tick(DAY_S)
    assert await jobs.store.renew([final]) == [OURS]
    await jobs.give_back(final)
    again = await jobs.claim()
    assert again.job.ends_as is None

    await cancel(jobs, job)

    assert (await jobs.store.renew([again]))[0].ends_as is JobState.CANCELLED
    assert await jobs.finish(again) == (True, JobState.CANCELLED, False)
    assert (await jobs.get(job.id)).state is JobState.SUCCEEDED


async def test_nobody_stops_anothers_job(jobs: Jobs) -> None:
    """It is as if it were not there."""
    job = await jobs.call()
    answers = [await jobs.store.flag(job.id, "other", flag) for flag in JobFlag]

    assert answers == [None, None, None]
    assert await jobs.store.flag("nobody's", None, JobFlag.CANCEL) is None
    assert await jobs.get(job.id) == job
    assert await jobs.store.flag(job.id, None, JobFlag.CANCEL) is not None


async def test_the_revision_grows_with_every_change(jobs: Jobs) -> None:
    """And only with a change."""
    seen = [await jobs.get((await jobs.batch()).id)]
    job_id = seen[0].id

    async def look() -> bool:
        job = await jobs.get(job_id)
        assert (job.revision > seen[-1].revision) == (job != seen[-1])
        seen.append(job)
        return job.revision > seen[-2].revision

    check = await jobs.claim()
    assert await look()
    await jobs.store.begin_lines(check, ChunkPlan(2, 1, 1), {})
    assert await look()
    work: ClaimedWork = await jobs.claim()
    assert not await look()
    await jobs.store.commit(work, [line(0)])
    assert await look()
    await jobs.store.flag(job_id, "t", JobFlag.PAUSE)
    assert await look()
    await jobs.store.flag(job_id, "t", JobFlag.PAUSE)
    assert not await look()
    await jobs.store.flag(job_id, "t", JobFlag.CANCEL)
    assert await look()
    await jobs.give_back(work)
    assert await look()
    await jobs.finish(await jobs.claim(), JobState.CANCELLED)
    assert await look()


async def test_forgetting_ended_jobs(jobs: Jobs) -> None:
    """The oldest first, as many as asked, none that is open; their answers go, their chunks are garbage before."""
    done = []
    for _ in range(3):
        work = await jobs.running_call()
        await jobs.finish(work, answer=ANSWER)
        done.append(work.job.id)
        jobs.wall.advance(HOUR_S)
    await jobs.call(id="open")
    limit = jobs.wall() - HOUR_S

    assert await jobs.store.forget_ended(limit, 1) == 1
    assert await jobs.store.find(done[0], None) is None
    assert await jobs.store.answer(done[0], None) is None
    assert await jobs.store.forget_ended(limit, 10) == 1
    assert await jobs.store.forget_ended(limit, 10) == 0
    assert await jobs.store.answer(done[2], None) == ANSWER
    assert (await jobs.get("open")).state is JobState.QUEUED


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
async def test_a_response_that_is_kept_leaves_nothing_of_its_request(jobs: Jobs, state: JobState) -> None:
    """What its caller wrote is beside the answer, and is forgotten with that; the job stays longer."""
    asked = {STREAMS: True, ECHO: {"instructions": "secret"}}
    work = await jobs.running_response(about={REQUESTED: asked, "endpoint": "/v1/responses"})
    await jobs.finish(work, state, marks={STATUS: "completed"})
    about = (await jobs.get(work.job.id)).about

    assert about == {REQUESTED: {STREAMS: True, ECHO: {}}, "endpoint": "/v1/responses"}
