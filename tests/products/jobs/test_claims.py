"""Who gets which piece of work, and when."""

from __future__ import annotations

from math import inf

import pytest

from gateway.products.jobs.model import CHECK, ChunkPlan, ClaimRequest, JobEnd, JobFlag, JobState
from gateway.products.jobs.transitions import OpenBounds
from tests.support.conformance import Wall
from tests.support.job_stores import ERROR, HOUR_S, OURS, Jobs, MakeJobStore, ids, line, pieces


async def test_marks_are_added_and_taken_away_while_a_claim_goes_on(jobs: Jobs) -> None:
    """Each change is one revision; what is said again is none."""
    work = await jobs.running_call(marks={"kept": 1})

    assert await jobs.store.note(work, {"about_to": "send", "other": [1]}) == OURS
    assert await jobs.store.note(work, {"about_to": None}) == OURS
    before = await jobs.get(work.job.id)
    assert await jobs.store.note(work, {"other": [1]}) == OURS

    assert before.marks == {"kept": 1, "other": [1]}
    assert before.revision == work.job.revision + 2
    assert await jobs.get(work.job.id) == before
    assert await jobs.finish(work) == OURS


async def test_the_highest_lane_first_then_the_urgent_then_by_readiness(jobs: Jobs) -> None:
    """Whatever the order in which they came."""
    await jobs.call(id="background", lane="background", is_urgent=True)
    await jobs.call(id="b1")
    jobs.wall.advance(1)
    await jobs.call(id="b2")
    await jobs.call(id="urgent", is_urgent=True)
    await jobs.call(id="interactive", lane="interactive")

    order = ["interactive", "urgent", "b1", "b2", "background"]
    assert ids(await jobs.claim_all(2)) == order[:2]
    assert ids(await jobs.claim_all()) == order[2:]


async def test_what_became_ready_later_is_behind(jobs: Jobs) -> None:
    """The time at which it was due counts, not the one at which it was taken."""
    await jobs.call(id="scheduled", run_at=jobs.wall() + 5)
    jobs.wall.advance(3)
    await jobs.call(id="before")
    jobs.wall.advance(3)
    await jobs.call(id="after")

    assert ids(await jobs.claim_all()) == ["before", "scheduled", "after"]


async def test_nothing_is_claimed_before_its_time(jobs: Jobs) -> None:
    """Then at once, and within a second it is said."""
    await jobs.call(id="later", run_at=jobs.wall() + 10)
    await jobs.tick(9.5)
    woken = jobs.wakes
    assert await jobs.claim_all() == []
    assert (await jobs.get("later")).state is JobState.SCHEDULED

    await jobs.tick(0.5)

    assert jobs.wakes > woken
    assert (await jobs.get("later")).state is JobState.QUEUED
    assert ids(await jobs.claim_all()) == ["later"]


async def test_a_due_job_can_be_claimed_before_the_next_tick(jobs: Jobs) -> None:
    """Time alone makes it due."""
    await jobs.call(id="later", run_at=jobs.wall() + 10)
    jobs.wall.advance(10)

    assert ids(await jobs.claim_all()) == ["later"]


async def test_segments_are_asked_for_apart(jobs: Jobs) -> None:
    """As many of each as there is room for."""
    for segment in ("fast", "slow"):
        for number in range(3):
            await jobs.call(id=f"{segment}-{number}", segment=segment)

    works = await jobs.store.claim([ClaimRequest("slow", 1), ClaimRequest("fast", 2), ClaimRequest("unknown", 5)])

    assert ids(works) == ["slow-0", "fast-0", "fast-1"]
    assert await jobs.store.claim([]) == []


async def test_the_first_claim_starts_the_job(jobs: Jobs) -> None:
    """Later ones do not start it again."""
    await jobs.call()
    jobs.wall.advance(5)
    began = jobs.wall()
    first = await jobs.claim()
    jobs.wall.advance(5)
    await jobs.give_back(first)
    second = await jobs.claim()

    assert (first.job.state, first.job.started_at) == (JobState.RUNNING, began)
    assert second.job.started_at == began
    assert second.job.revision == first.job.revision


async def test_a_piece_has_one_worker(jobs: Jobs) -> None:
    """Until it is given back; each claim has a higher fence than the one before."""
    first = await jobs.running_call()
    assert await jobs.claim_all() == []
    await jobs.give_back(first)
    second = await jobs.claim()

    assert second.fence > first.fence


async def test_what_is_given_back_goes_behind_all_others(jobs: Jobs) -> None:
    """Also behind those of the same moment."""
    await jobs.call(id="a")
    await jobs.call(id="b")
    (a,) = await jobs.claim_all(1)
    await jobs.call(id="c")
    await jobs.give_back(a)

    assert ids(await jobs.claim_all()) == ["b", "c", "a"]


async def test_what_is_given_back_may_have_to_wait(jobs: Jobs) -> None:
    """Its job is still running meanwhile."""
    work = await jobs.running_call()
    await jobs.give_back(work, run_at=jobs.wall() + 30, error=ERROR, is_attempt=True)
    assert await jobs.claim_all() == []
    assert (await jobs.get(work.job.id)).state is JobState.RUNNING

    woken = jobs.wakes
    await jobs.tick(30)

    assert jobs.wakes > woken
    assert ids(await jobs.claim_all()) == [work.job.id]


async def test_an_attempt_counts_and_a_snooze_does_not(jobs: Jobs) -> None:
    """What was given back does not count as a claim; the last error is kept."""
    await jobs.call()
    for _ in range(2):
        await jobs.give_back(await jobs.claim())
    snoozed = await jobs.claim()
    await jobs.give_back(snoozed)
    assert (snoozed.claims, (await jobs.get(snoozed.job.id)).attempts) == (1, 0)

    await jobs.give_back(await jobs.claim(), error=ERROR, is_attempt=True)
    tried = await jobs.claim()
    await jobs.give_back(tried, is_attempt=True)
    again = await jobs.claim()

    assert (tried.claims, again.claims) == (1, 1)
    assert (tried.job.attempts, again.job.attempts) == (1, 2)
    assert tried.job.last_error == again.job.last_error == ERROR
    assert again.job.revision > tried.job.revision > snoozed.job.revision


async def test_a_result_starts_the_count_of_claims_anew(jobs: Jobs) -> None:
    """It has come to something."""
    await jobs.running_batch()
    (work, _) = await jobs.claim_all()
    await jobs.store.commit(work, [line(0)])
    await jobs.give_back(work)

    assert (work.claims, (await jobs.claim()).claims) == (1, 1)


async def test_claims_last_where_the_store_has_no_leases(jobs: Jobs) -> None:
    """However long nobody renews them."""
    work = await jobs.running_call()
    if jobs.store.lease_s == inf:
        await jobs.tick(HOUR_S)
        assert await jobs.store.renew([work]) == [OURS]


async def test_paused_jobs_are_not_given(jobs: Jobs) -> None:
    """Until they are resumed, in their old place; it says so, and `later` counts them."""
    await jobs.call(id="a")
    await jobs.call(id="b")
    await jobs.store.flag("a", "t", JobFlag.PAUSE)
    await jobs.tick()
    assert jobs.numbers() == {"ready": 1, "later": 1}
    assert ids(await jobs.claim_all()) == ["b"]
    jobs.wall.advance(1)
    await jobs.call(id="c")
    woken = jobs.wakes

    resumed = await jobs.store.flag("a", "t", JobFlag.RESUME)

    assert resumed is not None
    assert not resumed.is_paused
    assert jobs.wakes > woken
    assert ids(await jobs.claim_all()) == ["a", "c"]


async def test_a_scheduled_job_that_is_paused_waits_for_both(jobs: Jobs) -> None:
    """Its time, and to be resumed, in either order."""
    for name in ("a", "b"):
        await jobs.call(id=name, run_at=jobs.wall() + 10)
        await jobs.store.flag(name, "t", JobFlag.PAUSE)
    await jobs.store.flag("a", "t", JobFlag.RESUME)
    assert await jobs.claim_all() == []
    await jobs.tick(10)
    assert ids(await jobs.claim_all()) == ["a"]

    resumed = await jobs.store.flag("b", "t", JobFlag.RESUME)

    assert resumed is not None
    assert resumed.state is JobState.QUEUED
    assert ids(await jobs.claim_all()) == ["b"]


async def test_what_is_given_back_of_a_paused_job_waits(jobs: Jobs) -> None:
    """A claimed piece may go on, but does not begin again."""
    work = await jobs.running_call()
    await jobs.store.flag(work.job.id, "t", JobFlag.PAUSE)
    assert (await jobs.give_back(work)).is_paused
    assert await jobs.claim_all() == []

    await jobs.store.flag(work.job.id, "t", JobFlag.RESUME)

    assert ids(await jobs.claim_all()) == [work.job.id]


async def test_work_that_becomes_ready_is_told(jobs: Jobs) -> None:
    """At every way of becoming ready; nothing is told of what waits."""

    async def wakes(doing: object) -> bool:
        before = jobs.wakes
        await doing  # type: ignore[misc]  # any coroutine
        return jobs.wakes > before

    assert await wakes(jobs.call())
    work = await jobs.claim()
    assert await wakes(jobs.give_back(work))
    await jobs.finish(await jobs.claim())
    assert await wakes(jobs.batch())
    check = await jobs.claim()
    assert await wakes(jobs.store.begin_lines(check, ChunkPlan(4, 2, 1), {}))
    assert await wakes(jobs.run_chunk(await jobs.claim()))
    assert await wakes(jobs.run_chunk(await jobs.claim()))
    final = await jobs.claim()
    assert await wakes(jobs.store.finish(final, JobEnd(JobState.SUCCEEDED), [jobs.new()]))
    await jobs.claim()
    assert not await wakes(jobs.tick(1))


async def test_depth_counts_pieces_by_segment_lane_and_state(jobs: Jobs) -> None:
    """And knows since when the oldest of them could have begun."""
    began = jobs.wall()
    await jobs.call()
    jobs.wall.advance(5)
    await jobs.call()
    await jobs.call(run_at=jobs.wall() + 60)
    await jobs.call(lane="background", segment="slow")
    await jobs.running_batch(lane="interactive", total=4)
    await jobs.claim_all(1)
    await jobs.tick()

    depth = jobs.store.depth()

    assert depth["fast", "batch", "ready"] == (2, began)
    assert depth["fast", "batch", "later"] == (1, began + 65)
    assert depth["slow", "background", "ready"] == (1, began + 5)
    assert depth["fast", "interactive", "ready"] == (1, began + 5)
    assert depth["fast", "interactive", "claimed"] == (1, began + 5)
    assert len(depth) == 5


async def test_depth_is_empty_in_the_end(jobs: Jobs) -> None:
    """Nothing is counted twice, or stays counted."""
    await jobs.finish(await jobs.running_call())
    await jobs.running_batch()
    await jobs.finish(await jobs.until_finalise())
    await jobs.tick()

    assert jobs.numbers() == {}


@pytest.mark.parametrize("piece", [CHECK, 0])
async def test_tenants_share_one_line(make_store: MakeJobStore, wall: Wall, piece: int) -> None:
    """A claim is for work of everybody."""
    jobs = Jobs(make_store(OpenBounds()), wall)
    for tenant in ("a", "b"):
        new = jobs.new_batch(tenant=tenant) if piece == CHECK else jobs.new(tenant=tenant)
        await jobs.accept(new)

    works = await jobs.claim_all()

    assert [work.job.tenant for work in works] == ["a", "b"]
    assert pieces(works) == [piece, piece]
