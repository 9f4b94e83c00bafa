"""Runs and their children: a run is parked without a piece, and however a child of it ends, it is woken in that step, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.products.jobs.model import (
    FINALISE,
    ChunkPlan,
    ClaimedWork,
    Job,
    JobFlag,
    JobKind,
    JobQuery,
    JobState,
    NewJob,
    TooManyJobs,
)
from gateway.products.jobs.transitions import OpenBounds
from tests.support.conformance import Wall
from tests.support.job_stores import DAY_S, ERROR, OURS, STALE, Jobs, MakeJobStore, ids


def child(jobs: Jobs, run: Job, name: str, **fields: Any) -> NewJob:
    return jobs.new(id=name, parent=run.id, **fields)


async def running(jobs: Jobs, **fields: Any) -> ClaimedWork:
    """A run that a worker has."""
    await jobs.accept(jobs.new(kind=JobKind.RUN, payload=b"input", **fields))
    return await jobs.claim()


async def parked(jobs: Jobs, *names: str, **fields: Any) -> Job:
    """A run that waits for children, of which nobody has any."""
    work = await running(jobs, **fields)
    children = [child(jobs, work.job, name) for name in names]
    assert await jobs.store.park(work, children, {"step": 1}) == OURS
    return await jobs.get(work.job.id)


async def claimed(jobs: Jobs, *names: str) -> dict[str, ClaimedWork]:
    """All that is ready, which is this."""
    works = {work.job.id: work for work in await jobs.claim_all()}
    assert set(works) == set(names)
    return works


async def counted(jobs: Jobs) -> dict[str, int]:
    """How many pieces are in each state, now."""
    await jobs.tick()
    return jobs.numbers()


async def run_to_end(jobs: Jobs, names: Sequence[str]) -> None:
    for work in (await claimed(jobs, *names)).values():
        await jobs.finish(work)


async def test_a_parked_run_has_no_piece(jobs: Jobs) -> None:
    """Neither claimable nor counted; its children are, and it keeps its payload and marks."""
    run = await parked(jobs, "a", "b", id="run")
    assert (run.state, run.marks, run.started_at) == (JobState.WAITING, {"step": 1}, jobs.wall())
    assert await counted(jobs) == {"ready": 2}
    works = await claimed(jobs, "a", "b")
    assert {work.job.parent for work in works.values()} == {"run"}
    await jobs.tick(100)
    assert (await jobs.get("run")).state is JobState.WAITING


async def test_a_childs_end_makes_it_ready_once(jobs: Jobs) -> None:
    """All that end until it is claimed are one wake; its claim begins afresh, as if nobody had died with it."""
    await parked(jobs, "a", "b", "c", id="run")
    works = await claimed(jobs, "a", "b", "c")
    wakes = jobs.wakes
    assert await jobs.finish(works["a"]) == OURS
    assert jobs.wakes == wakes + 1
    await jobs.finish(works["b"], JobState.FAILED, error=ERROR)
    assert (await jobs.get("run")).state is JobState.RUNNING
    assert await counted(jobs) == {"ready": 1, "claimed": 1}
    work = (await claimed(jobs, "run"))["run"]
    assert (work.piece, work.claims, work.payload) == (0, 1, b"input")

    assert await jobs.store.park(work, [], {}) == OURS
    assert await jobs.claim_all() == []
    await jobs.finish(works["c"])
    assert await jobs.finish(works["c"]) == STALE
    work = (await claimed(jobs, "run"))["run"]
    assert await jobs.finish(work) == OURS
    assert (await jobs.get("run")).state is JobState.SUCCEEDED
    assert await counted(jobs) == {}


async def test_an_end_while_it_is_claimed_is_remembered(jobs: Jobs) -> None:
    """It is ready as soon as it would be parked, and once for all of them."""
    await parked(jobs, "a", "b", "c", id="run")
    works = await claimed(jobs, "a", "b", "c")
    await jobs.finish(works["a"])
    work = (await claimed(jobs, "run"))["run"]
    await jobs.finish(works["b"])
    await jobs.finish(works["c"])
    assert await jobs.claim_all() == []

    wakes = jobs.wakes
    assert await jobs.store.park(work, [], {"step": 2}) == OURS
    assert jobs.wakes == wakes + 1
    run = await jobs.get("run")
    assert (run.state, run.marks) == (JobState.RUNNING, {"step": 2})
    work = (await claimed(jobs, "run"))["run"]
    await jobs.store.park(work, [], {})
    assert await jobs.claim_all() == []
    assert (await jobs.get("run")).state is JobState.WAITING


async def test_what_a_claim_could_see_is_no_news_to_it(jobs: Jobs) -> None:
    """A child that ended before the claim, by another worker's that was given back."""
    await parked(jobs, "a", "b", id="run")
    works = await claimed(jobs, "a", "b")
    await jobs.finish(works["a"])
    work = (await claimed(jobs, "run"))["run"]
    await jobs.finish(works["b"])
    await jobs.give_back(work)
    work = (await claimed(jobs, "run"))["run"]
    await jobs.store.park(work, [], {})
    assert await jobs.claim_all() == []


@pytest.mark.parametrize("way", ["cancel", "deadline", "poison"])
async def test_every_way_to_end_wakes(jobs: Jobs, way: str) -> None:
    work = await running(jobs, id="run")
    new = child(jobs, work.job, "a", deadline=jobs.wall() + 5)
    await jobs.store.park(work, [new], {})
    if way == "cancel":
        assert (await jobs.store.flag("a", "t", JobFlag.CANCEL)) is not None
    elif way == "deadline":
        await jobs.tick(6)
    else:
        await jobs.finish((await claimed(jobs, "a"))["a"], JobState.FAILED, error=ERROR, is_dead=True)
    assert (await jobs.get("a")).state.is_end
    assert ids(await jobs.claim_all()) == ["run"]


async def test_a_claimed_child_that_is_cancelled_wakes_when_it_is_given_back(jobs: Jobs) -> None:
    await parked(jobs, "a", id="run")
    works = await claimed(jobs, "a")
    await jobs.store.flag("a", "t", JobFlag.CANCEL)
    assert await jobs.claim_all() == []
    await jobs.give_back(works["a"])
    assert ids(await jobs.claim_all()) == ["run"]


async def test_a_batch_is_a_child_with_one_end(jobs: Jobs) -> None:
    """Its chunks wake nobody."""
    work = await running(jobs, id="run")
    new = jobs.new_batch(id="batch", parent="run")
    await jobs.store.park(work, [new], {})
    check = await jobs.claim()
    await jobs.store.begin_lines(check, ChunkPlan(6, 2, 2), {})
    finalise = await jobs.until_finalise()
    assert (finalise.job.id, finalise.piece) == ("batch", FINALISE)
    assert (await jobs.get("run")).state is JobState.WAITING
    await jobs.finish(finalise)
    assert ids(await jobs.claim_all()) == ["run"]


async def test_an_ended_or_unknown_parent_hears_nothing(jobs: Jobs) -> None:
    await parked(jobs, "a", "b", id="run")
    works = await claimed(jobs, "a", "b")
    await jobs.finish(works["a"])
    await jobs.finish((await claimed(jobs, "run"))["run"], JobState.FAILED, error=ERROR)
    await jobs.finish(works["b"])
    await jobs.finish(await jobs.running_call(id="c", parent="nobody"))
    assert await counted(jobs) == {}
    assert (await jobs.get("run")).state is JobState.FAILED


async def test_children_that_are_there_stay_as_they_are(jobs: Jobs) -> None:
    """Whether they run or have ended; and each run takes in its own alone."""
    await parked(jobs, "a", "b", id="run")
    await jobs.finish((await jobs.claim_all(1))[0])
    work = await jobs.claim()
    assert work.job.id == "b"
    again = (await claimed(jobs, "run"))["run"]
    children = [child(jobs, again.job, name) for name in ("a", "b", "c")]
    await jobs.store.park(again, children, {})
    assert (await jobs.get("a")).state is JobState.SUCCEEDED
    assert ids(await jobs.claim_all()) == ["c"]
    await jobs.finish(work)
    again = (await claimed(jobs, "run"))["run"]
    for other in (jobs.new(id="d"), jobs.new(id="e", parent="run", tenant="other")):
        with pytest.raises(ValueError, match="no child"):
            await jobs.store.park(again, [other], {})
    assert await jobs.store.renew([again]) == [OURS]


async def test_only_the_claim_of_a_run_parks(jobs: Jobs) -> None:
    work = await running(jobs, id="run")
    await jobs.give_back(work)
    new = child(jobs, work.job, "a")
    assert await jobs.store.park(work, [new], {"x": 1}) == STALE
    assert await jobs.store.find("a", None) is None
    assert (await jobs.get("run")).marks == {}
    await jobs.finish((await claimed(jobs, "run"))["run"])
    call = await jobs.running_call()
    assert await jobs.store.park(call, [], {}) == STALE
    assert await jobs.store.renew([call]) == [OURS]


async def test_children_count_with_their_run(make_store: MakeJobStore, wall: Wall) -> None:
    """However many there are, none is refused, and none takes another's room."""
    jobs = Jobs(make_store(OpenBounds(2, 1)), wall)
    await parked(jobs, "a", "b", "c", id="run")
    await jobs.call(tenant="other")
    with pytest.raises(TooManyJobs):
        await jobs.call()
    works = await jobs.claim_all()
    for work in works:
        await jobs.finish(work)
    with pytest.raises(TooManyJobs):
        await jobs.call()
    await jobs.finish((await claimed(jobs, "run"))["run"])
    assert (await jobs.call()).state is JobState.QUEUED


async def test_a_parked_run_that_is_cancelled_is_shown_to_its_worker(jobs: Jobs) -> None:
    """It cancels its children, waits for them, and ends it; what it began before it knew is not begun."""
    await parked(jobs, "a", "b", id="run")
    first = await jobs.claim()
    assert (await jobs.store.flag("run", "t", JobFlag.CANCEL)) is not None
    work = (await claimed(jobs, "b", "run"))["run"]
    assert (work.job.ends_as, work.job.state) == (JobState.CANCELLED, JobState.RUNNING)
    assert "cancelling_at" in work.job.marks

    assert (await jobs.store.park(work, [], {})).ends_as is JobState.CANCELLED
    assert await jobs.claim_all() == []
    await jobs.finish(first)
    work = (await claimed(jobs, "run"))["run"]
    await jobs.finish(work, JobState.CANCELLED)
    assert (await jobs.get("run")).state is JobState.CANCELLED


async def test_a_claimed_run_that_is_cancelled_begins_nothing_more(jobs: Jobs) -> None:
    work = await running(jobs, id="run")
    await jobs.store.flag("run", "t", JobFlag.CANCEL)
    assert (await jobs.store.renew([work]))[0].ends_as is JobState.CANCELLED
    await jobs.store.park(work, [child(jobs, work.job, "a")], {"step": 1})
    assert await jobs.store.find("a", None) is None
    work = (await claimed(jobs, "run"))["run"]
    assert (work.job.ends_as, work.job.marks["step"]) == (JobState.CANCELLED, 1)
    await jobs.store.park(work, [child(jobs, work.job, "a")], {})
    assert ids(await jobs.claim_all()) == ["a"]  # it knows what it does


@pytest.mark.parametrize("wait", ["parked", "put off", "paused", "parked and paused"])
async def test_the_deadline_of_a_run_is_shown_to_its_worker(jobs: Jobs, wait: str) -> None:
    """However it waits."""
    work = await running(jobs, id="run", deadline=jobs.wall() + 5)
    if wait == "put off":
        await jobs.give_back(work, run_at=jobs.wall() + DAY_S)
    elif wait == "paused":
        await jobs.give_back(work)
        await jobs.store.flag("run", "t", JobFlag.PAUSE)
    else:
        await jobs.store.park(work, [], {})
        if wait != "parked":
            await jobs.store.flag("run", "t", JobFlag.PAUSE)
    await jobs.tick(4)
    assert await jobs.claim_all() == []
    await jobs.tick(2)
    work = (await claimed(jobs, "run"))["run"]
    assert work.job.ends_as is JobState.EXPIRED
    await jobs.give_back(work, run_at=jobs.wall() + 3)
    assert await jobs.claim_all() == []
    await jobs.tick(4)
    assert await jobs.finish((await claimed(jobs, "run"))["run"], JobState.EXPIRED) == (
        True,
        JobState.EXPIRED,
        wait[-6:] == "paused",
    )


async def test_a_run_that_has_not_begun_ends_like_a_call(jobs: Jobs) -> None:
    await jobs.accept(jobs.new(kind=JobKind.RUN, id="run"))
    await jobs.accept(jobs.new(kind=JobKind.RUN, id="late", deadline=jobs.wall() + 5, run_at=jobs.wall() + 9))
    await jobs.store.flag("run", "t", JobFlag.CANCEL)
    await jobs.tick(6)
    assert (await jobs.get("run")).state is JobState.CANCELLED
    assert (await jobs.get("late")).state is JobState.EXPIRED
    assert await counted(jobs) == {}


async def test_a_paused_run_is_withheld(jobs: Jobs) -> None:
    """Its children are not; an end is remembered until it is resumed."""
    await parked(jobs, "a", "b", id="run")
    await jobs.store.flag("run", "t", JobFlag.PAUSE)
    await run_to_end(jobs, ["a", "b"])
    assert await counted(jobs) == {"later": 1}
    assert await jobs.claim_all() == []
    await jobs.store.flag("run", "t", JobFlag.RESUME)
    assert ids(await jobs.claim_all()) == ["run"]


async def test_a_run_that_waits_for_time_is_not_woken_before(jobs: Jobs) -> None:
    """Nor does it lose what has happened: it is claimed later anyway."""
    await parked(jobs, "a", "b", id="run")
    works = await claimed(jobs, "a", "b")
    await jobs.finish(works["a"])
    work = (await claimed(jobs, "run"))["run"]
    await jobs.give_back(work, run_at=jobs.wall() + 10, error=ERROR, is_attempt=True)
    await jobs.finish(works["b"])
    assert await jobs.claim_all() == []
    await jobs.tick(11)
    work = (await claimed(jobs, "run"))["run"]
    assert (work.claims, work.job.attempts) == (1, 1)
    await jobs.store.park(work, [], {})
    assert await jobs.claim_all() == []


async def test_children_are_listed_by_their_run(jobs: Jobs) -> None:
    """Newest first, in pages; or left out."""
    await parked(jobs, "a", "b", "c", id="run")
    await jobs.call(id="x")

    async def listed(**fields: Any) -> list[str]:
        page = await jobs.store.list_jobs(JobQuery(**fields))
        return [job.id for job in page.jobs] + ["…"] * page.has_more

    assert await listed(tenant="t") == ["x", "c", "b", "a", "run"]
    for tenant in ("t", None):
        assert await listed(tenant=tenant, parent="run") == ["c", "b", "a"]
        assert await listed(tenant=tenant, parent="run", limit=2) == ["c", "b", "…"]
        assert await listed(tenant=tenant, parent="run", limit=2, after="b") == ["a"]
        assert await listed(tenant=tenant, parent="") == ["x", "run"]
        assert await listed(tenant=tenant, parent="run", kind=JobKind.BATCH) == []
        assert await listed(tenant=tenant, kind=JobKind.RUN) == ["run"]
        assert await listed(tenant=tenant, statuses=[JobState.WAITING]) == ["run"]
    await jobs.finish((await jobs.claim_all(1))[0])
    assert await listed(tenant="t", parent="run", statuses=[JobState.SUCCEEDED]) == ["a"]
    assert await listed(tenant="other", parent="run") == []


async def test_children_are_forgotten_after_their_run(jobs: Jobs) -> None:
    """Those before and behind them are forgotten meanwhile."""
    await jobs.finish(await jobs.running_call(id="before"))
    await parked(jobs, *(f"c{number}" for number in range(5)), id="run")
    works = await jobs.claim_all()
    for work in works[:4]:
        await jobs.finish(work)
    await jobs.call(id="behind", segment="slow")
    await jobs.finish((await jobs.claim_all(segment="slow"))[0])
    jobs.wall.advance(10)
    assert await jobs.store.forget_ended(jobs.wall(), 100) == 2
    assert [job.id for job in (await jobs.store.list_jobs(JobQuery("t"))).jobs] == ["c4", "c3", "c2", "c1", "c0", "run"]
    await jobs.finish((await claimed(jobs, "run"))["run"])
    await jobs.finish(works[4])
    jobs.wall.advance(10)
    assert await jobs.store.forget_ended(jobs.wall() - 10, 2) == 2
    assert await jobs.store.forget_ended(jobs.wall(), 100) == 4
    assert (await jobs.store.list_jobs(JobQuery("t", parent="run"))).jobs == []
