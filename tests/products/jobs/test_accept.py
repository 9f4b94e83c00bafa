"""How jobs are taken: all or none, one of a kind, the last of many, and no more than there may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs.model import CHECK, JobEnd, JobFlag, JobQuery, JobState, TooManyJobs
from gateway.products.jobs.transitions import OpenBounds
from tests.support.conformance import Wall
from tests.support.job_stores import ANSWER, DAY_S, HOUR_S, Jobs, MakeJobStore, ids, key


async def test_a_job_is_kept_as_it_was_given(jobs: Jobs) -> None:
    """Every field of it, and its payload byte by byte."""
    about = {"endpoint": "/v1/embeddings", "metadata": {"a": "ä"}, "trace": None, "n": [1, 2.5, {"x": True}]}
    new = jobs.new(payload=bytes(range(256)), about=about, lane="background", is_urgent=True, segment="slow")

    accepted = await jobs.accept(new)
    found = await jobs.get(new.job.id)
    (work,) = await jobs.claim_all(segment="slow")

    assert (accepted.is_new, accepted.is_conflict, accepted.debounced) == (True, False, 0)
    assert accepted.job == found == new.job
    assert work.payload == new.payload


async def test_the_stores_clock_says_what_is_due(jobs: Jobs) -> None:
    """Whatever state the job came in."""
    later = await jobs.call(run_at=jobs.wall() + 10, state=JobState.QUEUED)
    now = await jobs.call(run_at=jobs.wall(), state=JobState.SCHEDULED)

    assert (later.state, now.state) == (JobState.SCHEDULED, JobState.QUEUED)


async def test_an_id_is_taken_once(jobs: Jobs) -> None:
    """Whoever repeats an accept whose answer was lost gets the job that is there."""
    first = await jobs.accept(jobs.new(id="same", payload=b"one"))
    again = await jobs.accept(jobs.new(id="same", payload=b"two"))

    assert not again.is_new
    assert again.job == first.job
    assert [work.payload for work in await jobs.claim_all()] == [b"one"]


async def test_all_or_none(make_store: MakeJobStore, wall: Wall) -> None:
    """A bound that the last of three would break refuses all three."""
    jobs = Jobs(make_store(OpenBounds(10, 4)), wall)
    await jobs.call()
    await jobs.call()

    with pytest.raises(TooManyJobs):
        await jobs.store.accept([jobs.new(), jobs.new(), jobs.new()])
    assert len(await jobs.claim_all()) == 2

    assert len(await jobs.store.accept([jobs.new(), jobs.new()])) == 2
    assert len(await jobs.claim_all()) == 2


async def test_bounds_in_all_and_per_tenant(make_store: MakeJobStore, wall: Wall) -> None:
    """Open jobs count: ended ones make room, other tenants have their own; 429, and when to come back."""
    jobs = Jobs(make_store(OpenBounds(3, 2)), wall)
    first = await jobs.call(tenant="a")
    await jobs.call(tenant="a")
    with pytest.raises(TooManyJobs, match="tenant") as refused:
        await jobs.call(tenant="a")
    await jobs.call(tenant="b")
    with pytest.raises(TooManyJobs, match="gateway"):
        await jobs.call(tenant="b")

    await jobs.store.flag(first.id, "a", JobFlag.CANCEL)
    await jobs.call(tenant="a")

    assert (refused.value.status, refused.value.code) == (429, "too_many_jobs")
    assert refused.value.retry_after_s


async def test_what_is_there_already_needs_no_room(make_store: MakeJobStore, wall: Wall) -> None:
    """A repeated job is answered though the store is full."""
    jobs = Jobs(make_store(OpenBounds(1, 1)), wall)
    named = {"dedupe_key": key("d"), "dedupe_until": wall() + DAY_S}
    first = await jobs.accept(jobs.new(more=named))

    assert (await jobs.accept(jobs.new(more=named))).job == first.job


async def test_the_room_of_ended_jobs_is_free(make_store: MakeJobStore, wall: Wall) -> None:
    """However they ended."""
    jobs = Jobs(make_store(OpenBounds(1, 1)), wall)
    for state in (JobState.SUCCEEDED, JobState.FAILED):
        await jobs.finish(await jobs.running_call(), state)
    await jobs.call(deadline=wall() + 10)
    await jobs.tick(11)

    await jobs.call()


async def test_dedupe_gives_the_job_that_is_there(jobs: Jobs) -> None:
    """Running or ended, until its time is over; the payload is not run again."""
    named = {"dedupe_key": key("d"), "dedupe_until": jobs.wall() + HOUR_S}
    first = await jobs.accept(jobs.new(more=named))
    again = await jobs.accept(jobs.new(more=named))
    await jobs.finish(await jobs.claim(), answer=ANSWER)
    ended = await jobs.accept(jobs.new(more=named))
    jobs.wall.advance(HOUR_S)
    after = await jobs.accept(jobs.new(more=named))

    assert first.is_new
    assert (again.is_new, again.is_conflict, again.job) == (False, False, first.job)
    assert (ended.job.id, ended.job.state) == (first.job.id, JobState.SUCCEEDED)
    assert after.is_new
    assert ids(await jobs.claim_all()) == [after.job.id]


async def test_another_payload_under_the_same_dedupe_key_is_a_conflict(jobs: Jobs) -> None:
    """And nothing is taken."""
    named = {"dedupe_key": key("d"), "dedupe_until": jobs.wall() + HOUR_S}
    await jobs.accept(jobs.new(payload=b"one", more=named))
    other = await jobs.accept(jobs.new(payload=b"two", more=named))

    assert (other.is_new, other.is_conflict) == (False, True)
    assert len(await jobs.claim_all()) == 1


async def test_twins_in_one_accept_are_one_job(jobs: Jobs) -> None:
    """The second is answered with the first."""
    named = {"dedupe_key": key("d"), "dedupe_until": jobs.wall() + HOUR_S}
    first, second = await jobs.store.accept([jobs.new(more=named), jobs.new(more=named)])

    assert (first.is_new, second.is_new) == (True, False)
    assert second.job == first.job


async def test_a_forgotten_job_is_no_twin(jobs: Jobs) -> None:
    """Its dedupe key is free with it."""
    named = {"dedupe_key": key("d"), "dedupe_until": jobs.wall() + DAY_S}
    await jobs.accept(jobs.new(more=named))
    await jobs.finish(await jobs.claim())
    jobs.wall.advance(1)
    assert await jobs.store.forget_ended(jobs.wall(), 10) == 1

    assert (await jobs.accept(jobs.new(more=named))).is_new


async def test_debounce_keeps_the_last_payload_and_the_first_id(jobs: Jobs) -> None:
    """It runs `wait` after the last one, and once."""
    named = {"debounce_key": key("d"), "debounce_wait_s": 10.0, "debounce_max_s": 60.0}
    first = await jobs.accept(jobs.new(payload=b"one", run_at=jobs.wall() + 10, more=named))
    jobs.wall.advance(8)
    now = jobs.wall()
    second = await jobs.accept(jobs.new(payload=b"two", model="other", segment="slow", run_at=now + 10, more=named))
    third = await jobs.accept(jobs.new(payload=b"three", model="other", segment="slow", run_at=now + 10, more=named))

    assert [one.is_new for one in (first, second, third)] == [True, False, False]
    assert [one.debounced for one in (first, second, third)] == [0, 1, 2]
    assert third.job.id == first.job.id
    assert (third.job.created_at, third.job.run_at, third.job.model) == (first.job.created_at, now + 10, "other")
    assert third.job.revision > first.job.revision
    assert third.job == await jobs.get(first.job.id)
    await jobs.tick(9)
    assert [*await jobs.claim_all(), *await jobs.claim_all(segment="slow")] == []
    await jobs.tick(1)
    assert [work.payload for work in await jobs.claim_all(segment="slow")] == [b"three"]


async def test_debounce_may_put_a_batch_in_the_place_of_a_call(jobs: Jobs) -> None:
    """Nothing of the call is left."""
    named: dict[str, Any] = {"debounce_key": key("d"), "debounce_wait_s": 10.0, "debounce_max_s": 60.0}
    await jobs.accept(jobs.new(run_at=jobs.wall() + 10, more=named))
    batch = replace(jobs.new_batch(run_at=jobs.wall() + 10), **named)
    await jobs.accept(batch)
    await jobs.tick(10)

    assert [work.piece for work in await jobs.claim_all()] == [CHECK]
    await jobs.tick()
    assert jobs.numbers() == {"claimed": 1}


async def test_debounce_does_not_wait_for_ever(jobs: Jobs) -> None:
    """Never behind the creation of the first plus the longest wait."""
    named = {"debounce_key": key("d"), "debounce_wait_s": 10.0, "debounce_max_s": 25.0}
    first = await jobs.accept(jobs.new(run_at=jobs.wall() + 10, more=named))
    last = first
    for _ in range(4):
        jobs.wall.advance(6)
        last = await jobs.accept(jobs.new(run_at=jobs.wall() + 10, more=named))

    assert last.job.run_at == first.job.created_at + 25
    await jobs.tick(1)
    assert ids(await jobs.claim_all()) == [first.job.id]


async def test_debounce_of_what_has_begun_is_a_new_job(jobs: Jobs) -> None:
    """So is that of a job that is due, or was cancelled."""
    named = {"debounce_key": key("d"), "debounce_wait_s": 10.0, "debounce_max_s": 60.0}
    first = await jobs.accept(jobs.new(run_at=jobs.wall() + 10, more=named))
    await jobs.tick(10)
    second = await jobs.accept(jobs.new(run_at=jobs.wall() + 10, more=named))
    await jobs.store.flag(second.job.id, "t", JobFlag.CANCEL)
    third = await jobs.accept(jobs.new(run_at=jobs.wall() + 10, more=named))

    assert [one.is_new for one in (first, second, third)] == [True] * 3
    assert [one.debounced for one in (first, second, third)] == [0] * 3


async def test_keys_of_different_names_are_apart(jobs: Jobs) -> None:
    """And jobs without keys are always of their own."""
    until = jobs.wall() + DAY_S
    a = await jobs.accept(jobs.new(more={"dedupe_key": key("a"), "dedupe_until": until}))
    b = await jobs.accept(jobs.new(more={"dedupe_key": key("b"), "dedupe_until": until}))
    plain = [await jobs.accept(jobs.new()) for _ in range(2)]

    assert all(one.is_new for one in (a, b, *plain))


async def test_a_closed_store_takes_nothing(jobs: Jobs) -> None:
    """It says so."""
    await jobs.call()
    await jobs.store.aclose()

    with pytest.raises(JobsUnavailable) as refused:
        await jobs.call()
    assert (refused.value.status, refused.value.code) == (503, "jobs_unavailable")


async def test_jobs_that_follow_from_an_end_come_with_it(make_store: MakeJobStore, wall: Wall) -> None:
    """In the same step, whatever the bounds; not from the end of somebody whose claim is over."""
    jobs = Jobs(make_store(OpenBounds(1, 1)), wall)
    work = await jobs.running_call()
    await jobs.give_back(work)
    fresh = await jobs.claim()
    end = jobs.new(id="following")

    stale = await jobs.store.finish(work, JobEnd(JobState.FAILED), [jobs.new(id="never")])
    good = await jobs.store.finish(fresh, JobEnd(JobState.SUCCEEDED), [end])
    page = await jobs.store.list_jobs(JobQuery("t"))

    assert (stale.is_ours, good.is_ours) == (False, True)
    assert [job.id for job in page.jobs] == ["following", work.job.id]
    assert ids(await jobs.claim_all()) == ["following"]


async def test_a_cancelled_job_does_not_hold_its_dedupe_key(jobs: Jobs) -> None:
    """What was called off may be asked for again, as it was or otherwise; the new one has the key then."""
    named = {"dedupe_key": key("d"), "dedupe_until": jobs.wall() + HOUR_S}
    first = await jobs.accept(jobs.new(more=named))
    await jobs.store.flag(first.job.id, "t", JobFlag.CANCEL)
    second = await jobs.accept(jobs.new(payload=b"other", more=named))
    third = await jobs.accept(jobs.new(payload=b"other", more=named))

    assert (second.is_new, second.is_conflict) == (True, False)
    assert (third.job.id, third.is_new) == (second.job.id, False)
