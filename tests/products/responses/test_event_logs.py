"""What every store of jobs promises of the logs of responses."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from gateway.products.jobs.model import JobState
from gateway.products.jobs.response_store import KeptBounds, LogPage, LogPart
from gateway.products.jobs.transitions import OpenBounds
from tests.support.conformance import Wall
from tests.support.job_stores import ERROR, HOUR_S, OURS, STALE, Jobs, MakeJobStore, part


async def test_events_are_read_as_they_were_written(jobs: Jobs) -> None:
    """Bytes as they are, and more than a line of them."""
    work = await jobs.running_response(id="r1")
    assert await jobs.log("r1") == LogPage(0, [])
    parts = [part(0, 2), part(3, text="é\x00"), part(4, 6)]
    for one in parts:
        assert await jobs.store.events.append(work, one) == OURS

    assert await jobs.log("r1") == LogPage(work.fence, parts)
    assert await jobs.log("r1", after=1) == LogPage(work.fence, parts)
    assert await jobs.log("r1", after=2) == LogPage(work.fence, parts[1:])
    assert await jobs.log("r1", after=5) == LogPage(work.fence, parts[2:])
    assert await jobs.log("r1", after=6) == LogPage(work.fence, [])


async def test_a_page_ends_before_it_is_too_large(jobs: Jobs) -> None:
    """With whole parts, and at least one: whoever goes on behind it comes to the end."""
    work = await jobs.running_response(id="r1")
    parts = [part(number, text="x" * 100) for number in range(10)]
    for one in parts:
        await jobs.store.events.append(work, one)
    assert (await jobs.log("r1", most_bytes=3 * len(parts[0].frames))).parts == parts[:3]
    assert (await jobs.log("r1", after=7, most_bytes=1)).parts == parts[8:9]


async def test_a_part_that_is_sent_again_is_left(jobs: Jobs) -> None:
    """Whoever heard no answer sends it again."""
    work = await jobs.running_response(id="r1")
    for one in (part(0, 2), part(3), part(0, 2), part(3)):
        assert await jobs.store.events.append(work, one) == OURS
    assert (await jobs.log("r1")).parts == [part(0, 2), part(3)]


async def test_a_new_generation_takes_the_place_of_the_last(jobs: Jobs) -> None:
    """From its first part on; the last one writes nothing any more."""
    old = await jobs.running_response(id="r1")
    await jobs.store.events.append(old, part(0, 5, "old"))
    await jobs.give_back(old)
    new = await jobs.claim()
    assert await jobs.log("r1") == LogPage(old.fence, [part(0, 5, "old")])

    assert await jobs.store.events.append(new, part(0, 1, "new")) == OURS
    assert await jobs.store.events.append(old, part(6, 7, "old")) == STALE
    assert await jobs.store.events.append(new, part(2, 3, "new")) == OURS
    assert await jobs.log("r1") == LogPage(new.fence, [part(0, 1, "new"), part(2, 3, "new")])
    assert new.fence != old.fence


@pytest.mark.parametrize("late", [part(4), part(2, 3)], ids=["a gap", "half of it was there"])
async def test_a_log_never_has_a_gap(jobs: Jobs, late: LogPart) -> None:
    """What does not follow has it cut, and what comes then is not kept; the claim holds all the same."""
    work = await jobs.running_response(id="r1")
    await jobs.store.events.append(work, part(0, 2))
    for one in (late, part(5), part(0, 2)):
        assert await jobs.store.events.append(work, one) == OURS
        assert await jobs.log("r1") == LogPage(work.fence, [], is_cut=True)


async def test_a_log_that_does_not_begin_at_its_first_event_is_cut(jobs: Jobs) -> None:
    work = await jobs.running_response(id="r1")
    await jobs.store.events.append(work, part(1))
    assert await jobs.log("r1") == LogPage(work.fence, [], is_cut=True)


async def test_a_log_that_is_too_large_is_cut(make_store: MakeJobStore, wall: Wall) -> None:
    """Until the next generation begins, which may be shorter."""
    size = len(part(0, text="x" * 100).frames)
    jobs = Jobs(make_store(OpenBounds(), KeptBounds(log_bytes=10 * size)), wall)
    work = await jobs.running_response(id="r1")
    for number in range(10):
        await jobs.store.events.append(work, part(number, text="x" * 100))
    assert len((await jobs.log("r1")).parts) == 10
    for number in (10, 11):
        assert await jobs.store.events.append(work, part(number, text="x" * 100)) == OURS
        assert await jobs.log("r1") == LogPage(work.fence, [], is_cut=True)

    await jobs.give_back(work)
    again = await jobs.claim()
    await jobs.store.events.append(again, part(0))
    assert await jobs.log("r1") == LogPage(again.fence, [part(0)])


async def test_the_log_is_the_tenants_alone(jobs: Jobs) -> None:
    work = await jobs.running_response(id="r1")
    await jobs.store.events.append(work, part(0))
    assert await jobs.store.events.read("r1", "u", -1) is None
    assert await jobs.store.events.read("r2", "t", -1) is None


async def test_a_log_outlives_its_jobs_end(jobs: Jobs) -> None:
    """Until the job is forgotten; readers are told that there is no more to come."""
    work = await jobs.running_response(id="r1")
    await jobs.store.events.append(work, part(0))
    await jobs.finish(work)
    assert await jobs.store.events.append(work, part(1)) == STALE
    assert await jobs.log("r1") == LogPage(work.fence, [part(0)], has_ended=True)
    jobs.wall.advance(HOUR_S)
    assert await jobs.store.forget_ended(jobs.wall(), 10) == 1
    assert await jobs.store.events.read("r1", "t", -1) is None

    again = await jobs.running_response(id="r1")
    assert await jobs.log("r1") == LogPage(0, [])
    await jobs.store.events.append(again, part(0, text="again"))
    assert (await jobs.log("r1")).parts == [part(0, text="again")]


async def test_a_dropped_log_is_gone(jobs: Jobs) -> None:
    """The job is still there; another log is not touched."""
    first, second = await jobs.running_response(id="r1"), await jobs.running_response(id="r2")
    for work in (first, second):
        await jobs.store.events.append(work, part(0))
    await jobs.store.events.drop("r1")
    await jobs.store.events.drop("nobody's")
    assert await jobs.log("r1") == LogPage(0, [])
    assert (await jobs.log("r2")).parts == [part(0)]
    await jobs.store.events.append(first, part(1))  # by a worker that has not heard of it
    assert await jobs.log("r1") == LogPage(first.fence, [], is_cut=True)


async def test_a_job_without_events_has_an_end_too(jobs: Jobs) -> None:
    """A response that fails before its first event."""
    work = await jobs.running_response(id="r1")
    await jobs.finish(work, JobState.FAILED, error=ERROR)
    assert await jobs.log("r1") == LogPage(0, [], has_ended=True)


async def test_readers_are_woken(jobs: Jobs) -> None:
    """Each of them at each part of its own job, until it has had enough."""
    first, second = await jobs.running_response(id="r1"), await jobs.running_response(id="r2")
    woken: list[str] = []
    ends = [jobs.store.events.watch("r1", partial(woken.append, name)) for name in ("a", "b")]
    await jobs.store.events.append(first, part(0))
    await jobs.store.events.append(second, part(0))
    await asyncio.sleep(0)
    assert sorted(set(woken)) == ["a", "b"]
    ends[0]()
    ends[0]()
    woken.clear()
    await jobs.store.events.append(first, part(1))
    assert set(woken) == {"b"}
    ends[1]()
    woken.clear()
    await jobs.store.events.append(first, part(2))
    assert woken == []
