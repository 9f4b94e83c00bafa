"""Dead letters: what becomes one and when, how they are grouped and listed, replayed once, purged and trimmed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.products.jobs.dead_letters.redrive import LetterFilter, letters_of
from gateway.products.jobs.dead_letters.rules import (
    REDRIVES,
    DeadGroup,
    DeadLetter,
    LetterKind,
    LetterPage,
    LetterState,
    RedriveResult,
    derived_letter_id,
)
from gateway.products.jobs.model import ClaimedWork, JobError, JobFlag, JobKind, JobQuery, JobState, NewJob
from tests.support.job_stores import DAY_S, OURS, STALE, Jobs, line

FOREVER = 10.0**10


def error(message: str = "it failed", cost_usd: float = 0.0, at: float = 1.0) -> JobError:
    return JobError("server_error", message, at, "eu", "headers", cost_usd)


async def dead_call(jobs: Jobs, message: str = "it failed", payload: bytes = b"{}", **fields: Any) -> str:
    """Has a call fail for good; returns the id of its letter."""
    await jobs.accept(jobs.new(payload=payload, **fields))
    work = await jobs.claim()
    await jobs.finish(work, JobState.FAILED, error=error(message), is_attempt=True, is_dead=True)
    return derived_letter_id(work.job.id, None)


async def test_all_groups_can_be_walked_through(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are beside those that are listed, in the order of their ids; what goes meanwhile moves none."""
    for store in (
        "tests.support.memory_store.dead_letters",
        "gateway.products.jobs.dead_letters.sqlite",
        "gateway.products.jobs.dead_letters.redis",
    ):
        monkeypatch.setattr(f"{store}.MOST_GROUPS", 3)
        monkeypatch.setattr(f"{store}.GROUPS_AT_ONCE", 4)
    for number in range(11):
        await dead_call(jobs, f"it was {chr(97 + number)}", tenant=f"tenant-{number % 3}")
    assert len(await groups(jobs)) == 3
    found: list[DeadGroup] = []
    while some := await jobs.store.dead.groups(1, found[-1].id if found else ""):
        assert len(some) <= 4
        found += some
        if len(found) == 4:
            assert await jobs.store.dead.purge([found[0].samples[0].id]) == 1
    assert len(found) == 11
    assert [group.id for group in found] == sorted({group.id for group in found})

    walked = [one async for one in letters_of(jobs.store, LetterFilter())]
    assert len({one.id for one in walked}) == len(walked) == 10
    assert await jobs.store.dead.purge([one.id for one in walked]) == 10
    assert await jobs.store.dead.groups(0, "") == []


async def letter(jobs: Jobs, letter_id: str) -> DeadLetter:
    found = await jobs.store.dead.find(letter_id)
    assert found is not None
    return found


async def groups(jobs: Jobs, samples: int = 0) -> list[DeadGroup]:
    return list(await jobs.store.dead.groups(samples))


async def replay_work(jobs: Jobs) -> ClaimedWork:
    """The claim of a replay."""
    await jobs.call(kind=JobKind.REDRIVE, tenant="", segment="replays")
    (work,) = await jobs.claim_all(segment="replays")
    return work


def again(jobs: Jobs, letter_id: str, name: str = "again", **fields: Any) -> NewJob:
    return jobs.new(id=name, about={REDRIVES: letter_id}, **fields)


async def replayed(jobs: Jobs, work: ClaimedWork, letter_id: str, state: JobState, number: int = 1) -> DeadLetter:
    """Replays a letter, and ends its new job so."""
    name = f"again-{letter_id}-{number}"
    result = await jobs.store.dead.redrive(work, letter_id, number, again(jobs, letter_id, name))
    assert result == RedriveResult(OURS, is_done=True)
    await jobs.finish(await jobs.claim(), state, error=error("again"), is_attempt=True, is_dead=True)
    return await letter(jobs, letter_id)


# --- how letters come ---


async def test_a_job_that_failed_for_good_is_a_dead_letter_with_its_trail(jobs: Jobs) -> None:
    """Of all attempts, over claims; the costs add up, and the payload is still there."""
    await jobs.accept(jobs.new(payload=b"12345", model="gpt", tenant="acme"))
    work = await jobs.claim()
    await jobs.give_back(work, error=error("no 1", 0.5, at=10.0), is_attempt=True)
    await jobs.give_back(await jobs.claim(), error=error("no room"), is_attempt=False)
    work, failed = await jobs.claim(), error("no 2", 0.25, at=20.0)
    await jobs.finish(work, JobState.FAILED, error=failed, is_attempt=True, is_dead=True)
    (group,) = await groups(jobs, samples=5)
    found = group.samples[0]

    assert (group.kind, group.error_class, group.model, group.template) == ("call", "server_error", "gpt", "no #")
    assert (group.number, group.bytes, group.oldest_at, group.newest_at) == (1, 5, jobs.wall(), jobs.wall())
    assert found == await letter(jobs, derived_letter_id(work.job.id, None))
    assert (found.job_id, found.line, found.tenant, found.kind) == (work.job.id, None, "acme", LetterKind.CALL)
    assert [one.message for one in found.trail] == ["no 1", "no 2"]
    assert (found.error, found.first_failed_at, found.at) == (failed, 10.0, jobs.wall())
    assert (found.attempts, found.cost_usd, found.state) == (2, 0.75, LetterState.DEAD)
    assert await jobs.store.dead.payload(found.id) == b"12345"


async def test_what_fails_by_its_caller_is_none(jobs: Jobs) -> None:
    """Neither is what was cancelled, or whose time was over, or what succeeded."""
    for state in (JobState.FAILED, JobState.SUCCEEDED, JobState.CANCELLED):
        await jobs.finish(await jobs.running_call(), state, error=error())
    job = await jobs.call()
    await jobs.store.flag(job.id, None, JobFlag.CANCEL)
    await jobs.call()
    await jobs.tick(DAY_S)

    assert await groups(jobs) == []


async def test_a_delivery_that_was_not_made_is_one_however_it_ended(jobs: Jobs) -> None:
    """By its last attempt, or because its time was over."""
    delivery = {"kind": JobKind.DELIVERY, "tenant": "", "segment": "webhooks:crm", "model": ""}
    await jobs.call(**delivery)
    (work,) = await jobs.claim_all(segment="webhooks:crm")
    await jobs.finish(work, JobState.FAILED, error=error("the answer was 500"), is_attempt=True)
    await jobs.call(**delivery)
    await jobs.tick(DAY_S)
    await jobs.call(**delivery)
    (work,) = await jobs.claim_all(segment="webhooks:crm")
    await jobs.finish(work)

    found = {group.error_class: (group.kind, group.model, group.number) for group in await groups(jobs)}
    assert found == {
        "server_error": ("delivery", "webhooks:crm", 1),
        "not_delivered": ("delivery", "webhooks:crm", 1),
    }


async def test_a_line_is_one_with_its_result_or_not_at_all(jobs: Jobs) -> None:
    """Together with the commit, once, and only under a claim that holds."""
    batch = await jobs.running_batch()
    works = await jobs.claim_all()
    letters = [line_letter(jobs, batch.id, number) for number in (0, 1)]
    assert await jobs.store.commit(works[0], [line(0)]) == OURS
    assert await jobs.store.commit(works[0], [line(0), line(1, is_failed=True)], letters) == OURS
    assert await jobs.store.commit(works[0], [line(1)], letters) == OURS
    stale = replace(works[1], fence=works[1].fence - 1)
    assert await jobs.store.commit(stale, [line(2)], [line_letter(jobs, batch.id, 2)]) == STALE

    (group,) = await groups(jobs, samples=5)
    assert group.samples == [letters[1]]
    assert await jobs.store.dead.payload(letters[1].id) is None


def line_letter(jobs: Jobs, batch_id: str, number: int) -> DeadLetter:
    return DeadLetter(
        id=derived_letter_id(batch_id, number), kind=LetterKind.LINE, job_id=batch_id, line=number, tenant="t",
        model="m", error=error("died"), error_class="worker_crashed", template="died", at=jobs.wall(),
        first_failed_at=jobs.wall(), attempts=2, trail=[error("died")], source={"blob": "b", "offset": 0, "length": 7},
    )  # fmt: skip


# --- groups and pages ---


async def test_letters_that_look_the_same_are_one_group(jobs: Jobs) -> None:
    """By class, model and what their messages say; the largest group first, with its newest letters."""
    alike = []
    for number in range(4):
        alike.append(await dead_call(jobs, f"request {number} timed out after {number}.5 s"))
        jobs.wall.advance(1)
    other = await dead_call(jobs, "request 1 timed out", model="other")
    found = await groups(jobs, samples=2)

    assert [(group.number, group.model, group.template) for group in found] == [
        (4, "m", "request # timed out after # s"),
        (1, "other", "request # timed out"),
    ]
    assert [one.id for one in found[0].samples] == alike[:1:-1]
    assert (found[0].oldest_at, found[0].newest_at) == (jobs.wall() - 4, jobs.wall() - 1)
    assert found[1].samples[0].id == other


async def test_a_page_goes_on_behind_a_letter_that_has_gone(jobs: Jobs) -> None:
    """In order of time and id, also where many came at the same time."""
    ids = [await dead_call(jobs) for _ in range(5)]
    jobs.wall.advance(1)
    ids = [*sorted(ids), await dead_call(jobs)]
    (group,) = await groups(jobs)
    first = await jobs.store.dead.page(LetterPage(group.id, limit=2))
    assert [one.id for one in first] == ids[:2]
    assert await jobs.store.dead.purge([ids[1], "nobody's"]) == 1
    rest = await jobs.store.dead.page(LetterPage(group.id, (first[1].at, first[1].id), 10))

    assert [one.id for one in rest] == ids[2:]
    assert await jobs.store.dead.page(LetterPage("no group")) == []
    assert await jobs.store.dead.find(ids[1]) is None
    assert (await groups(jobs))[0].number == 5


# --- replays ---


async def test_a_letter_is_replayed_once_for_each_number(jobs: Jobs) -> None:
    """The mark and the new job are one step; what comes again finds it done, and counts nothing."""
    letter_id = await dead_call(jobs, payload=b"body")
    work, dead = await replay_work(jobs), jobs.store.dead
    first = await dead.redrive(work, letter_id, 1, again(jobs, letter_id))
    twice = await dead.redrive(work, letter_id, 1, again(jobs, letter_id))
    next_one = await dead.redrive(work, letter_id, 2, again(jobs, letter_id, "again-2"))
    none = await dead.redrive(work, "nobody's", 1, again(jobs, "nobody's", "again-3"))
    found = await letter(jobs, letter_id)

    assert [first, twice, next_one, none] == [RedriveResult(OURS, done) for done in (True, False, False, False)]
    assert (found.state, found.replays, found.replay_id, found.replay_job) == ("replaying", 1, work.job.id, "again")
    assert [one.job.id for one in await jobs.claim_all()] == ["again"]
    assert (await jobs.get(work.job.id)).tally.total == 1
    assert (await groups(jobs))[0].number == 1


async def test_a_replay_that_was_taken_over_replays_nothing(jobs: Jobs) -> None:
    """Its claim has ended: neither a mark nor a job."""
    letter_id = await dead_call(jobs)
    work = await replay_work(jobs)
    await jobs.give_back(work)
    result = await jobs.store.dead.redrive(work, letter_id, 1, again(jobs, letter_id))

    assert result == RedriveResult(STALE, is_done=False)
    assert (await letter(jobs, letter_id)).state is LetterState.DEAD
    assert await jobs.store.find("again", None) is None


async def test_a_replay_that_succeeds_is_written_into_its_letter(jobs: Jobs) -> None:
    """It is in no group any more, keeps what it was, and cannot be replayed again."""
    letter_id = await dead_call(jobs)
    work = await replay_work(jobs)
    found = await replayed(jobs, work, letter_id, JobState.SUCCEEDED)
    twice = await jobs.store.dead.redrive(work, letter_id, 2, again(jobs, letter_id))

    assert (found.state, found.is_replayable, found.bytes) == (LetterState.REDRIVEN, False, 0)
    assert not twice.is_done
    assert await groups(jobs) == []


async def test_a_replay_that_fails_leaves_one_letter_which_may_be_replayed_again(jobs: Jobs) -> None:
    """Not two; it stays where it was in its group, with the new failure."""
    letter_id = await dead_call(jobs)
    jobs.wall.advance(5)
    work = await replay_work(jobs)
    found = await replayed(jobs, work, letter_id, JobState.FAILED)
    (group,) = await groups(jobs, samples=5)

    assert (found.state, found.error.message, found.attempts) == (LetterState.REDRIVE_FAILED, "again", 2)
    assert [one.message for one in found.trail] == ["it failed", "again"]
    assert (list(group.samples), found.at) == ([found], jobs.wall() - 5)
    assert (await replayed(jobs, work, letter_id, JobState.SUCCEEDED, 2)).state is LetterState.REDRIVEN
    assert (await jobs.get(work.job.id)).tally.total == 2


async def test_a_replay_that_the_store_ends_has_failed(jobs: Jobs) -> None:
    """Cancelled before anybody ran it, or past its deadline."""
    work = await replay_work(jobs)
    for number in range(2):
        letter_id = await dead_call(jobs)
        await jobs.store.dead.redrive(work, letter_id, 1, again(jobs, letter_id, f"again-{number}"))
        if number:
            await jobs.tick(DAY_S)
        else:
            await jobs.store.flag("again-0", None, JobFlag.CANCEL)
        assert (await letter(jobs, letter_id)).state is LetterState.REDRIVE_FAILED


# --- how letters go ---


async def test_a_job_is_kept_as_long_as_its_letter_can_be_replayed(jobs: Jobs) -> None:
    """Not longer: purged, or replayed with success, it is forgotten like any other."""
    letter_ids = [await dead_call(jobs) for _ in range(3)]
    work = await replay_work(jobs)
    await replayed(jobs, work, letter_ids[0], JobState.SUCCEEDED)
    jobs.wall.advance(DAY_S)
    assert await jobs.store.forget_ended(jobs.wall(), 10) == 2  # the first, and that which replayed it
    await jobs.store.dead.purge(letter_ids[1:2])
    assert await jobs.store.forget_ended(jobs.wall(), 10) == 1

    left = await jobs.store.list_jobs(JobQuery("t"))
    assert [derived_letter_id(job.id, None) for job in left.jobs] == letter_ids[2:]
    assert await jobs.store.dead.payload(letter_ids[2]) == b"{}"


async def test_payloads_above_the_bound_go_from_the_oldest_on(jobs: Jobs) -> None:
    """The letters stay, cannot be replayed, and hold their jobs no more."""
    letter_ids = []
    for number in range(4):
        letter_ids.append(await dead_call(jobs, payload=b"x" * (10 + number)))
        jobs.wall.advance(1)
    assert await jobs.store.dead.trim(0.0, 26, 1) == 1
    assert await jobs.store.dead.trim(0.0, 26, 10) == 1
    assert await jobs.store.dead.trim(0.0, 26, 10) == 0
    found = [await letter(jobs, letter_id) for letter_id in letter_ids]

    assert [(one.bytes, one.is_replayable) for one in found] == [(0, False), (0, False), (12, True), (13, True)]
    assert await jobs.store.dead.payload(letter_ids[0]) is None
    assert (await groups(jobs))[0].bytes == 25
    work = await replay_work(jobs)
    assert not (await jobs.store.dead.redrive(work, letter_ids[0], 1, again(jobs, letter_ids[0]))).is_done
    assert await jobs.store.forget_ended(jobs.wall() + 1, 10) == 2


async def test_old_letters_are_removed_by_their_age(jobs: Jobs) -> None:
    """Also those that were replayed with success."""
    letter_ids = [await dead_call(jobs) for _ in range(3)]
    work = await replay_work(jobs)
    await replayed(jobs, work, letter_ids[0], JobState.SUCCEEDED)
    jobs.wall.advance(1)
    young = await dead_call(jobs)
    assert await jobs.store.dead.trim(jobs.wall(), 10**9, 2) == 2
    assert await jobs.store.dead.trim(jobs.wall(), 10**9, 10) == 1

    (group,) = await groups(jobs, samples=5)
    assert [one.id for one in group.samples] == [young]
    assert [await jobs.store.dead.find(one) for one in letter_ids] == [None] * 3
