"""Replays of dead letters, in virtual time: at their rate, each letter once, whatever dies in between, and with an outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

import orjson
import pytest

from gateway.products.batches.chunk import MOST_CRASHES
from gateway.products.jobs.calls import StoredRequest
from gateway.products.jobs.dead_letters.redrive import LetterFilter, Redrive, RedriveFactory, redrive_job
from gateway.products.jobs.dead_letters.rules import DeadGroup, LetterState, derived_letter_id
from gateway.products.jobs.dead_letters.service import DeadLetterService, RedriveJobs
from gateway.products.jobs.model import (
    MESSAGE_ID,
    ClaimRequest,
    JobEnd,
    JobError,
    JobFlag,
    JobKind,
    JobQuery,
    JobState,
    NewJob,
)
from gateway.products.jobs.rules import JobRules, SegmentRules
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import JobEngine, RunningWork
from tests.products.jobs.lives import Lives
from tests.support.stage import Stage, few_lines
from tests.support.virtual import LoopClock, run

RULES = JobRules(segments=(SegmentRules("all", concurrency=50), SegmentRules("replays", concurrency=2)))


async def bury(stage: Stage, number: int, message: str = "the answer was 500") -> list[str]:
    """Makes so many dead letters of calls; returns their ids."""
    await stage.accept(*(f"old_{one}" for one in range(number)))
    for work in await stage.store.claim([ClaimRequest("all", number)]):
        error = JobError("server_error", message, stage.clock.wall())
        await stage.store.finish(work, JobEnd(JobState.FAILED, error, is_attempt=True, is_dead=True))
    return [derived_letter_id(f"old_{one}", None) for one in range(number)]


def runner(stage: Stage) -> Callable[[JobStore], Callable[[RunningWork], Awaitable[None]]]:
    """What runs calls, chunks and replays on a store."""

    def of(store: JobStore) -> Callable[[RunningWork], Awaitable[None]]:
        replays = RedriveJobs(store, RedriveFactory(store, stage.blobs, stage.clock, lambda: stage.rules), stage.clock)

        async def run_piece(running: RunningWork) -> None:
            is_replay = running.work.job.kind is JobKind.REDRIVE
            await (replays.run(running) if is_replay else stage.run_piece(running))

        return run_piece

    return of


async def begin(stage: Stage, **fields: object) -> str:
    """Begins a replay; returns its id."""
    spec = replace(Redrive(), **fields)  # type: ignore[arg-type]  # fields by name
    (accepted,) = await stage.store.accept([redrive_job("job_replay", spec, stage.clock.wall())])
    return accepted.job.id


async def states(stage: Stage, letter_ids: list[str]) -> Counter[str]:
    found = [await stage.store.dead.find(letter_id) for letter_id in letter_ids]
    return Counter(str(letter.state) for letter in found if letter is not None)


def test_letters_are_run_again_at_their_rate_and_their_outcome_is_written_back() -> None:
    """Ten a second: evenly, the first at once."""

    async def story(clock: LoopClock) -> None:
        begun: list[float] = []

        def script(request: StoredRequest, _try: int) -> float | int:
            begun.append(clock.monotonic())
            return 400 if len(begun) % 4 == 0 else 0.1

        stage = Stage(clock, rules=RULES, script=script)
        letter_ids = await bury(stage, 40)
        lives = Lives(stage, runner(stage))
        await lives.until_end(await begin(stage, rate=10.0))
        await lives.until_all_end()
        await lives.aclose()

        assert begun[-1] - begun[0] == pytest.approx(3.9, rel=0.02)
        assert max(later - sooner for sooner, later in pairwise(begun)) < 0.12
        assert await states(stage, letter_ids) == {LetterState.REDRIVEN: 30, LetterState.REDRIVE_FAILED: 10}
        (group,) = await stage.store.dead.groups(0)
        assert group.number == 10
        assert stage.meter.replays.totals == {("server_error", "ok"): 30, ("server_error", "failed"): 10}

    run(story)


@pytest.mark.parametrize("is_most", [False, True])
def test_each_letter_is_run_again_once_wherever_the_process_dies(is_most: bool) -> None:
    """Before and behind each effect on the store, one after the other: none is lost, none runs twice."""
    letters, most = 5, 3 if is_most else None
    effects = count_effects(letters, most)
    assert effects > 40

    for dies_at in range(1, effects, 1 if not is_most else 3):

        async def story(clock: LoopClock, dies_at: int = dies_at) -> None:
            stage, letter_ids = await replayed_with_death(clock, letters, most, dies_at)
            wanted = letters if most is None else most
            done = await states(stage, letter_ids)
            assert done[LetterState.REDRIVEN] == wanted, dies_at
            jobs = (await stage.store.list_jobs(JobQuery("t", limit=1000))).jobs
            assert len(jobs) == letters + wanted, dies_at
            replay = await stage.store.find("job_replay", None)
            assert replay is not None
            assert replay.tally.total == wanted, dies_at

        run(story)


async def replayed_with_death(
    clock: LoopClock, letters: int, most: int | None, dies_at: int
) -> tuple[Stage, list[str]]:
    stage = Stage(clock, rules=RULES)
    letter_ids = await bury(stage, letters)
    seen = 0

    def effect() -> None:
        nonlocal seen
        seen += 1
        if seen == dies_at:
            lives.die()

    lives = Lives(stage, runner(stage), effect)
    await lives.until_end(await begin(stage, rate=20.0, most=most))
    await lives.until_all_end()
    await lives.aclose()
    SEEN[letters, most] = seen
    return stage, letter_ids


SEEN: dict[tuple[int, int | None], int] = {}


def count_effects(letters: int, most: int | None) -> int:
    """How many times the store is asked for something in a replay without a death."""

    async def story(clock: LoopClock) -> None:
        await replayed_with_death(clock, letters, most, -1)

    run(story)
    return SEEN[letters, most]


def test_a_replay_takes_what_its_filter_says_and_goes_to_another_model() -> None:
    """By group, and by age; the new call names the other model."""

    async def story(clock: LoopClock) -> None:
        asked: list[StoredRequest] = []

        def script(request: StoredRequest, _try: int) -> float:
            asked.append(request)
            return 0.1

        stage = Stage(clock, rules=RULES, script=script)
        alike = await bury(stage, 2)
        await stage.store.accept([stage.new_job("other")])
        (work,) = await stage.store.claim([ClaimRequest("all", 1)])
        error = JobError("timeout", "too slow", clock.wall())
        await stage.store.finish(work, JobEnd(JobState.FAILED, error, is_dead=True))
        lives = Lives(stage, runner(stage))
        chosen = LetterFilter(error_class="timeout")
        await lives.until_end(await begin(stage, filter=chosen, to_model="larger"))
        await lives.until_all_end()
        await lives.aclose()

        assert [orjson.loads(one.body)["model"] for one in asked] == ["larger"]
        assert await states(stage, alike) == {LetterState.DEAD: 2}
        assert await states(stage, [derived_letter_id("other", None)]) == {LetterState.REDRIVEN: 1}

    run(story)


def test_a_replay_that_is_cancelled_begins_nothing_more() -> None:
    """What it has begun goes on."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=RULES)
        letter_ids = await bury(stage, 20)
        lives = Lives(stage, runner(stage))
        replay = await begin(stage, rate=2.0)
        await asyncio.sleep(3.2)
        await stage.store.flag(replay, None, JobFlag.CANCEL)
        await lives.until_end(replay)
        await lives.until_all_end()
        await lives.aclose()
        ended = await stage.store.find(replay, None)

        assert ended is not None
        assert ended.state is JobState.CANCELLED
        assert ended.tally.total in (7, 8, 9)  # it hears of it within a second
        assert (await states(stage, letter_ids))[LetterState.DEAD] == 20 - ended.tally.total

    run(story)


def test_a_poison_line_can_be_replayed_as_a_call() -> None:
    """Read from the input file, on its batch's account."""

    async def story(clock: LoopClock) -> None:
        is_mended = False

        def script(request: StoredRequest, _try: int) -> float:
            if request.id.endswith("000003") and not is_mended:
                lives.die()
            return 0.1

        stage = Stage(clock, rules=replace(few_lines(), segments=RULES.segments), script=script)
        lives = Lives(stage, runner(stage))
        await stage.accept_batch(8)
        await lives.until_end("batch_1")
        assert lives.crashes > MOST_CRASHES
        is_mended = True
        await lives.until_end(await begin(stage))
        await lives.until_all_end()
        await lives.aclose()
        (again,) = (await stage.store.list_jobs(JobQuery("t", JobKind.CALL))).jobs

        assert again.state is JobState.SUCCEEDED
        assert again.about["metadata"] == {"batch_id": "batch_1", "custom_id": "c3"}
        assert await states(stage, [derived_letter_id("batch_1", 3)]) == {LetterState.REDRIVEN: 1}

    run(story)


def test_a_delivery_is_replayed_under_the_id_that_its_webhook_knows() -> None:
    """Also the second time."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=RULES)
        await stage.store.accept([stage.new_job("msg_1", kind=JobKind.DELIVERY, tenant="", about={"webhook": "crm"})])
        (work,) = await stage.store.claim([ClaimRequest("all", 1)])
        await stage.store.finish(work, JobEnd(JobState.FAILED, JobError("webhook_failed", "500", clock.wall())))
        letter = await stage.store.dead.find(derived_letter_id("msg_1", None))
        assert letter is not None
        again = RedriveFactory(stage.store, stage.blobs, clock, lambda: RULES)
        new = await again.job_of(letter, Redrive(to_model="ignored"))

        assert new is not None
        assert new.job.about[MESSAGE_ID] == "msg_1"
        assert new.job.kind is JobKind.DELIVERY
        assert new.job.id != "msg_1"

    run(story)


def test_a_dry_run_changes_nothing_and_says_what_would_run() -> None:
    """How many, to which model, and for how much, from a few that are priced; what is gone is said apart."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=RULES)
        letter_ids = await bury(stage, 30)
        await stage.store.dead.trim(0.0, len(b'{"model":"m","messages":[]}') * 28, 100)

        async def kept() -> JobStore:
            return stage.store

        async def price(new: NewJob) -> float:
            return 0.5

        engine = JobEngine(kept, lambda: True, None, clock)
        service = DeadLetterService(engine, stage.blobs, clock, lambda: RULES, bytes, price)
        plan = await service.plan(Redrive())
        assert (plan.letters, plan.gone, list(plan.models)) == (28, 2, ["m"])
        assert (plan.models["m"].letters, plan.models["m"].priced, plan.models["m"].usd) == (28, 20, 10.0)
        assert (await service.plan(Redrive(most=3))).letters == 3
        assert await states(stage, letter_ids) == {LetterState.DEAD: 30}
        (group,) = await service.groups()
        assert isinstance(group, DeadGroup)
        assert await service.purge(LetterFilter(group=group.id)) == 30
        assert await service.groups() == []

    run(story)
