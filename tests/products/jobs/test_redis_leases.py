"""Replicas that share jobs on a Redis: leases, fences, take-overs, and writes whose answers were lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis import Redis

from gateway.drivers.durability import JobsUnavailable, OutcomeUnknown
from gateway.drivers.redis.partitions import job_script
from gateway.products.jobs.dead_letters.rules import REDRIVES, RedriveResult, derived_letter_id
from gateway.products.jobs.model import (
    FINALISE,
    ChunkPlan,
    ClaimedWork,
    ClaimRequest,
    Job,
    JobEnd,
    JobFlag,
    JobKind,
    JobQuery,
    JobState,
    NewJob,
)
from gateway.products.jobs.redis_acceptance import Sent
from tests.products.jobs.test_following import TOLD, following
from tests.support.conformance import Wall
from tests.support.job_stores import ANSWER, DAY_S, ERROR, OURS, STALE, Jobs, chunk, ids, line, part, pieces
from tests.support.redis_jobs import JobLender, PromptJobStore, end_leases


@pytest.fixture
def two(job_lends: JobLender, wall: Wall) -> tuple[Jobs, Jobs]:
    """Two replicas."""
    first = Jobs(job_lends.make(wall=wall, following=following), wall)
    return first, Jobs(job_lends.make(wall=wall, following=following, is_replica=True), wall)


def let_leases_end(lends: JobLender) -> None:
    """Makes all claims as old as if nobody had been heard of for a lease."""
    end_leases(lends.url, lends.namespace)


def streams(lends: JobLender) -> dict[bytes, int]:
    """The lengths of the streams that pieces wait in."""
    with Redis.from_url(lends.url) as client:
        return {key: client.xlen(key) for key in client.scan_iter(match=f"{lends.namespace}:*:r:*", count=1000)}


async def test_replicas_share_the_work(two: tuple[Jobs, Jobs]) -> None:
    """Each piece is given once, whoever asks."""
    a, b = two
    for _ in range(10):
        await a.call()
    works = [await jobs.store.claim([ClaimRequest("fast", 3)]) for jobs in (a, b, a, b)]

    assert sorted(name for some in works for name in ids(some)) == sorted(f"job-{number}" for number in range(1, 11))


async def rounds_of(replicas: list[Jobs], *, joins_at: int = 0) -> tuple[int, list[int]]:
    """How often all replicas claim and complete chunks until the batch is over, and how many each has done.

    From round `joins_at` on the last replica asks for work, too.
    """
    for jobs in replicas[: -1 if joins_at else None]:
        await jobs.claim_all()  # it is at work
    await replicas[0].running_batch(total=240, per_chunk=1, parallel=4)
    rounds, done = 0, [0] * len(replicas)
    while True:
        at_work = replicas if rounds >= joins_at else replicas[:-1]
        given = [await jobs.claim_all() for jobs in at_work]
        if FINALISE in pieces([work for works in given for work in works]):
            return rounds, done
        rounds += 1
        for number, works in enumerate(given):
            for work in works:
                done[number] += 1
                assert (await replicas[number].run_chunk(work, 1)).is_ours


@pytest.mark.parametrize("number", [2, 4])
async def test_a_batch_is_done_by_all_gateways_at_once(job_lends: JobLender, wall: Wall, number: int) -> None:
    """Each has as many of its chunks, so that n of them need an n-th of the time of one."""
    alone, _ = await rounds_of([Jobs(job_lends.make(wall=wall), wall)])
    all_of_them = [Jobs(job_lends.make(wall=wall, is_replica=place > 0), wall) for place in range(number)]
    rounds, done = await rounds_of(all_of_them)

    assert done == [240 // number] * number
    assert rounds <= 1.15 / number * alone


async def test_a_gateway_that_joins_has_its_part_of_a_batch(job_lends: JobLender, wall: Wall) -> None:
    """From the first chunk that ends then."""
    replicas = [Jobs(job_lends.make(wall=wall, is_replica=place > 0), wall) for place in range(2)]
    rounds, done = await rounds_of(replicas, joins_at=30)

    assert rounds <= 30 + 15 + 2
    assert done[1] >= 55


async def test_a_dead_gateways_claims_are_dealt_out(job_lends: JobLender, wall: Wall) -> None:
    """To those that are left, as many to each."""
    dead, one, other = (Jobs(job_lends.make(wall=wall, is_replica=place > 0), wall) for place in range(3))
    for _ in range(10):
        await dead.call()
    assert len(await dead.claim_all()) == 10
    let_leases_end(job_lends)
    await other.claim_all(segment="other")  # it is at work
    given = [await jobs.claim_all() for jobs in (one, other)]

    assert [len(works) for works in given] == [5, 5]


async def test_a_claim_that_is_renewed_is_nobody_elses(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """Renewing makes it young again."""
    a, b = two
    work = await a.running_call()
    let_leases_end(job_lends)
    assert await a.store.renew([work]) == [OURS]

    assert await b.claim_all() == []


async def test_what_a_silent_worker_had_is_taken_over(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """With a higher fence and one more claim; whatever the silent one writes when it wakes up changes nothing."""
    a, b = two
    await a.running_batch(total=4, per_chunk=2, parallel=1)
    zombie = await a.claim()
    await a.store.commit(zombie, [line(0)])
    let_leases_end(job_lends)
    taken = await b.claim()

    assert (taken.job.id, taken.piece, taken.claims) == (
        zombie.job.id,
        zombie.piece,
        2,
    )  # it brought a line, and is gone
    assert taken.fence > zombie.fence
    assert await b.store.results(taken) == [line(0)]
    before = await b.get(taken.job.id)
    answers = [
        *await a.store.renew([zombie]),
        await a.store.commit(zombie, [line(1, "zombie")]),
        await a.store.note(zombie, {"zombie": 1}),
        await a.store.complete_chunk(zombie, chunk(0)),
        await a.give_back(zombie, error=ERROR, is_attempt=True),
        await a.finish(zombie, JobState.FAILED),
    ]
    assert answers == [STALE] * 6
    assert await b.get(taken.job.id) == before
    assert await b.run_chunk(taken) == OURS


async def test_claims_without_progress_are_counted(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """So that what kills its workers is known."""
    a, b = two
    await a.call()
    claims = []
    for jobs in (a, b, a, b):
        claims.append((await jobs.claim()).claims)
        let_leases_end(job_lends)

    assert claims == [1, 2, 3, 4]


async def test_what_was_to_stop_when_its_worker_died_ends(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """With what follows from it; a batch is put together, and a paused job waits."""
    a, b = two
    call = await a.running_call(id="call")
    await a.running_batch(id="batch", total=4)
    (first, _) = await a.claim_all(2)
    paused = await a.running_call(id="paused")
    await a.store.flag("call", "t", JobFlag.CANCEL)
    await a.store.flag("batch", "t", JobFlag.CANCEL)
    await a.store.flag("paused", "t", JobFlag.PAUSE)
    let_leases_end(job_lends)

    await b.tick()

    assert (await b.get("call")).state is JobState.CANCELLED
    assert [(work.job.id, work.piece) for work in await b.claim_all()] == [("batch", FINALISE)]
    assert ids(await b.claim_all(segment=TOLD)) == ["call-told"]
    await b.store.flag("paused", "t", JobFlag.RESUME)
    assert ids(await b.claim_all()) == ["paused"]
    assert [*await a.store.renew([call, first, paused])] == [STALE] * 3


async def test_what_is_past_its_deadline_when_its_worker_died_expires(
    two: tuple[Jobs, Jobs], job_lends: JobLender
) -> None:
    """It is not begun again."""
    a, b = two
    work = await a.running_call()
    await b.tick(DAY_S)
    let_leases_end(job_lends)

    assert await b.claim_all() == []
    assert (await b.get(work.job.id)).state is JobState.EXPIRED


async def test_streams_do_not_grow(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """An entry goes with its claim."""
    a, b = two
    for number in range(20):
        work = await a.running_call(is_urgent=bool(number % 2))
        await a.give_back(work)
        await b.finish(await b.claim())
        await b.finish((await b.claim_all(segment=TOLD))[0])
    cancelled = await a.call()
    await a.store.flag(cancelled.id, "t", JobFlag.CANCEL)
    await b.finish((await b.claim_all(segment=TOLD))[0])

    assert set(streams(job_lends).values()) == {0}


async def test_a_restart_finds_all_that_was_there(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """A new replica goes on, also with claims of the one that it is."""
    a, _ = two
    await a.running_batch(total=4, parallel=2)
    (first, second) = await a.claim_all()
    again = Jobs(job_lends.make(wall=a.wall, is_replica=True), a.wall)

    assert await again.run_chunk(first) == OURS
    assert await again.run_chunk(second) == OURS
    assert pieces(await again.claim_all()) == [FINALISE]


# --- answers that are lost ---

Write = Callable[[Jobs, ClaimedWork], Awaitable[Any]]
CALL_WRITES: dict[str, Write] = {
    "give back": lambda jobs, work: jobs.give_back(work, error=ERROR, is_attempt=True),
    "give back for later": lambda jobs, work: jobs.give_back(work, run_at=jobs.wall() + 60, is_attempt=True),
    "finish": lambda jobs, work: jobs.finish(work, answer=ANSWER, is_attempt=True),
    "note": lambda jobs, work: jobs.store.note(work, {"a": 1}),
}


async def lost(lends: JobLender, place: int, ask: Awaitable[Any]) -> None:
    """Does what is asked, but nobody hears of it."""
    scripts = {"jobs_apply", "jobs_accept", "jobs_commit", "jobs_claim", "jobs_files_add", "jobs_letters_write"}
    lends.links[place].unheard |= scripts
    with pytest.raises(JobsUnavailable):
        await ask
    lends.links[place].unheard.clear()


@pytest.mark.parametrize("name", CALL_WRITES)
async def test_a_write_that_is_repeated_because_nobody_heard_of_it_was_done_once(
    two: tuple[Jobs, Jobs], job_lends: JobLender, name: str
) -> None:
    """And is not told that its claim is lost."""
    a, _ = two
    work = await a.running_call()
    await lost(job_lends, 0, CALL_WRITES[name](a, work))
    said = a.store.is_well
    done = await a.get(work.job.id)
    assert done != work.job

    assert await CALL_WRITES[name](a, work) == OURS
    assert (said, a.store.is_well) == (False, True)
    assert await a.get(work.job.id) == done
    if name != "note":
        assert await CALL_WRITES[name](a, work) == STALE


async def test_a_chunk_whose_completion_nobody_heard_of_is_complete_once(
    two: tuple[Jobs, Jobs], job_lends: JobLender
) -> None:
    """So are its check, its lines and its end; its blobs are not taken for those of somebody who lost."""
    a, _ = two
    await a.batch()
    check = await a.claim()
    await lost(job_lends, 0, a.store.begin_lines(check, ChunkPlan(2, 2, 1), {}))
    assert await a.store.begin_lines(check, ChunkPlan(2, 2, 1), {}) == OURS
    work = await a.claim()
    await lost(job_lends, 0, a.store.commit(work, [line(0), line(1)]))
    assert await a.store.commit(work, [line(0), line(1)]) == OURS
    await lost(job_lends, 0, a.store.complete_chunk(work, chunk(0)))
    assert await a.store.complete_chunk(work, chunk(0)) == OURS
    assert await a.store.complete_chunk(work, chunk(0)) == STALE
    final = await a.claim()
    await lost(job_lends, 0, a.finish(final))

    assert await a.finish(final) == OURS
    assert (await a.get(final.job.id)).tally.completed == 2
    assert await a.claim_all() == []


async def test_jobs_of_an_accept_that_nobody_heard_of_are_taken_back(
    two: tuple[Jobs, Jobs], job_lends: JobLender
) -> None:
    """What was refused does not run later; nothing of it is left."""
    a, b = two
    kept = await a.call(id="kept")
    named = {"dedupe_key": b"d" * 32, "dedupe_until": a.wall() + DAY_S, "reads": "blob"}
    await lost(job_lends, 0, a.store.accept([a.new(id="one"), a.new(id="two", more=named)]))
    await a.store.aclose()

    assert [job.id for job in (await b.store.list_jobs(JobQuery("t"))).jobs] == [kept.id]
    assert (await b.accept(b.new(id="three", more=named))).is_new
    assert ids(await b.claim_all()) == [kept.id, "three"]


async def test_an_accept_that_is_repeated_is_not_taken_back(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """Whoever repeats it gets what is there, and relies on it."""
    a, b = two
    new = [a.new(), a.new(more={"dedupe_key": b"d" * 32, "dedupe_until": a.wall() + DAY_S})]
    job_lends.links[0].refused.add("jobs_take_back")
    await lost(job_lends, 0, a.store.accept(new))
    again = await b.store.accept(new)
    job_lends.links[0].refused.clear()
    assert isinstance(a.store, PromptJobStore)
    await a.store._acceptance.take_back([Sent(one, 2**62) for one in new])

    assert [one.is_new for one in again] == [False, False]
    assert ids(await b.claim_all()) == [one.job.id for one in new]


async def test_an_accept_whose_answer_is_lost_is_asked_for_again(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """It is new to whoever sent it, and there once; one that took another's place did so once."""
    a, b = two
    assert isinstance(a.store, PromptJobStore)
    a.store.is_patient(yes=True)
    named = {"dedupe_key": b"d" * 32, "dedupe_until": a.wall() + DAY_S}
    later = {"debounce_key": b"w" * 32, "debounce_wait_s": 10, "debounce_max_s": 60}
    await a.accept(a.new(id="first", run_at=a.wall() + 10, more=later))
    said = []
    for new in (
        a.new(id="one"),
        a.new(id="two", more=named),
        a.new(id="three", more=named),
        a.new(id="second", run_at=a.wall() + 10, more=later),
    ):
        job_lends.links[0].lost["jobs_accept"] = 1
        accepted = await a.accept(new)
        said.append((accepted.job.id, accepted.is_new, accepted.debounced))

    assert said == [("one", True, 0), ("two", True, 0), ("two", False, 0), ("first", False, 1)]
    a.wall.advance(10)
    assert ids(await b.claim_all()) == ["one", "two", "first"]


async def test_what_nobody_heard_of_is_named_stopped_and_does_not_come_late(
    two: tuple[Jobs, Jobs], job_lends: JobLender
) -> None:
    """A worker may have it by then; an attempt that arrives behind its removal changes nothing; a new one is wanted."""
    a, b = two
    job_lends.links[0].unheard.add("jobs_accept")
    job_lends.links[0].refused.add("jobs_take_back")
    new = a.new(id="one")
    with pytest.raises(
        OutcomeUnknown,
        match=r"may have taken one all the same.*Idempotency-Key.*look after that time \(GET /v1/jobs/one\)",
    ) as told:
        await a.store.accept([new])
    (work,) = await b.claim_all()
    job_lends.links[0].unheard.clear()
    job_lends.links[0].refused.clear()
    assert isinstance(a.store, PromptJobStore)
    acceptance = a.store._acceptance
    sent = Sent(new, acceptance._refused["one"].at_us)
    await acceptance.take_back([sent])
    (stand,) = await b.store.renew([work])
    assert (told.value.code, stand.ends_as) == ("jobs_unavailable", JobState.CANCELLED)

    other = Sent(a.new(id="two"), sent.at_us)
    await acceptance.take_back([other])
    with pytest.raises(JobsUnavailable):
        await acceptance._accept_all([other.new], other.at_us)
    assert await b.store.find("two", None) is None
    assert (await a.accept(other.new)).is_new


async def test_cancels_and_files_of_which_nobody_heard_are_asked_for_again(
    two: tuple[Jobs, Jobs], job_lends: JobLender
) -> None:
    """They are done when they are answered, and a file that is gone is not missed."""
    a, _ = two
    assert isinstance(a.store, PromptJobStore)
    a.store.is_patient(yes=True)
    job = await a.call()
    one = a.file("one")
    job_lends.links[0].lost.update(jobs_apply=1, jobs_files_add=1, jobs_files_find=1)
    await a.store.files.add(one)
    flagged = await a.store.flag(job.id, job.tenant, JobFlag.CANCEL)

    assert flagged is not None
    assert flagged.state is JobState.CANCELLED
    assert await a.store.files.remove(one.id, one.tenant)
    assert not await a.store.files.remove(one.id, one.tenant)
    assert not +job_lends.links[0].lost


async def test_a_claim_that_nobody_heard_of_is_taken_over(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """By anybody, after a lease."""
    a, _ = two
    await a.call()
    await lost(job_lends, 0, a.claim_all())
    assert await a.claim_all() == []
    let_leases_end(job_lends)

    assert len(await a.claim_all()) == 1


async def test_a_claim_whose_caller_has_left_is_given_back(two: tuple[Jobs, Jobs]) -> None:
    """Uncounted, and at once."""
    a, b = two
    await a.call()
    leaving = asyncio.ensure_future(a.claim_all())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await a.store.aclose()

    assert (await b.claim()).claims == 1


async def test_a_step_that_somebody_is_ahead_of_is_taken_anew(two: tuple[Jobs, Jobs]) -> None:
    """Many write about one job at once: each of them counts, whatever they had seen."""
    a, b = two
    await a.running_batch(total=20, per_chunk=1, parallel=10)
    works = await a.claim_all()
    assert len(works) == 10

    async def run(number: int, work: ClaimedWork) -> None:
        jobs = (a, b)[number % 2]
        assert (await jobs.store.note(work, {f"n{number}": 1})).is_ours
        assert (await jobs.run_chunk(work, 1)).is_ours

    await asyncio.gather(*[run(number, work) for number, work in enumerate(works)])
    job = await a.get(works[0].job.id)

    assert (job.tally.completed, len(job.marks)) == (10, 11)
    assert sorted(pieces([*await b.claim_all(), *await a.claim_all()])) == list(range(10, 20))


async def test_an_end_and_a_cancellation_at_once_are_one_end(two: tuple[Jobs, Jobs]) -> None:
    """Whichever comes first, what follows comes once."""
    a, b = two
    for number in range(20):
        work = await a.running_call(id=f"c{number}")
        await asyncio.gather(a.finish(work), b.store.flag(work.job.id, "t", JobFlag.CANCEL))
        assert (await b.get(work.job.id)).state is JobState.SUCCEEDED

    assert len(await a.claim_all(segment=TOLD)) == 20


async def test_two_that_look_at_what_is_due_end_it_once(two: tuple[Jobs, Jobs]) -> None:
    """However many replicas there are."""
    a, b = two
    for _ in range(30):
        await a.call(deadline=a.wall() + 10)
    a.wall.advance(10)
    for jobs in (a, b):
        jobs.store.tick()
    await asyncio.gather(*[jobs.store.find("nobody's", None) for jobs in (a, b)])

    assert len(await a.claim_all(segment=TOLD)) == 30
    assert await a.claim_all() == []


# --- a store that is away ---


async def test_a_store_that_is_away_refuses_everything_and_comes_back(
    two: tuple[Jobs, Jobs], job_lends: JobLender
) -> None:
    """Nothing false: what it says is an error; what was there is there."""
    a, _ = two
    work = await a.running_call()
    store = a.store
    job_lends.links[0].go(away=True)
    asks: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.accept([a.new()]),
        lambda: store.claim([ClaimRequest("fast", 1)]),
        lambda: store.renew([work]),
        lambda: a.give_back(work),
        lambda: store.commit(work, [line(0)]),
        lambda: store.note(work, {"a": 1}),
        lambda: store.finish(work, JobEnd(JobState.SUCCEEDED)),
        lambda: store.flag(work.job.id, "t", JobFlag.CANCEL),
        lambda: PromptJobStore.find(store, work.job.id, "t"),  # type: ignore[arg-type]  # it is one
        lambda: store.list_jobs(JobQuery("t")),
        lambda: store.files.add(a.file("f1")),
        lambda: store.files.bytes_of("t"),
        lambda: store.dead.groups(1),
        lambda: store.events.append(work, part(0)),
        lambda: store.events.read(work.job.id, "t", -1),
        lambda: store.events.drop(work.job.id),
        lambda: store.responses.put(a.response("r1")),
        lambda: store.responses.find("r1", "t"),
        lambda: store.responses.remove("r1", "t"),
        lambda: store.responses.trim(1),
        lambda: store.files.find_garbage(1),
        lambda: store.forget_ended(0.0, 1),
    ]
    for ask in asks:
        with pytest.raises(JobsUnavailable):
            await ask()
    store.tick()
    said = store.is_well
    job_lends.links[0].go(away=False)

    assert await a.finish(work) == OURS
    assert (said, store.is_well) == (False, True)


async def test_a_letter_that_changes_meanwhile_is_replayed_as_it_is_then(two: tuple[Jobs, Jobs]) -> None:
    """Two replays of one letter at once: one of them begins."""
    a, b = two
    work = await a.running_call()
    await a.finish(work, JobState.FAILED, error=ERROR, is_attempt=True, is_dead=True)
    letter_id = derived_letter_id(work.job.id, None)
    replays: list[ClaimedWork] = []
    for jobs in (a, b):
        await jobs.call(kind=JobKind.REDRIVE, tenant="", segment="replays", id=f"replay-{len(replays)}")
        replays += await jobs.claim_all(segment="replays")

    def again(jobs: Jobs, name: str) -> NewJob:
        return jobs.new(id=name, about={REDRIVES: letter_id})

    results = await asyncio.gather(
        a.store.dead.redrive(replays[0], letter_id, 1, again(a, "again-0")),
        b.store.dead.redrive(replays[1], letter_id, 1, again(b, "again-1")),
    )

    assert sorted(results) == [RedriveResult(OURS, is_done=False), RedriveResult(OURS, is_done=True)]
    jobs_of: list[Job | None] = [await a.store.find(f"again-{number}", None) for number in range(2)]
    assert sum(job is not None for job in jobs_of) == 1


async def test_many_are_claimed_and_renewed_in_short_steps(two: tuple[Jobs, Jobs]) -> None:
    """As many as there is room for, all the same."""
    a, _ = two
    await a.store.accept([a.new(segment=segment) for segment in ("fast", "slow") for _ in range(130)])
    works = await a.store.claim([ClaimRequest("fast", 125), ClaimRequest("slow", 120)])

    assert [work.job.segment for work in works].count("fast") == 125
    assert len(works) == 245
    assert await a.store.renew(works) == [OURS] * 245


async def test_workers_that_are_long_gone_are_forgotten(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """Not those that still have something."""
    a, b = two
    await a.call()
    await a.call()
    held = await a.claim()
    await b.finish(await b.claim())
    assert isinstance(a.store, PromptJobStore)
    await a.store._claims.tidy()
    (stream,) = [key for key in streams(job_lends) if b"fast" in key]
    with Redis.from_url(job_lends.url) as client:
        assert len(client.xinfo_consumers(stream, "workers")) == 2
        await asyncio.sleep(0.002)
        await a.store._partitions.run(job_script("tidy"), 0, 0)
        assert len(client.xinfo_consumers(stream, "workers")) == 1
    assert await a.finish(held) == OURS
