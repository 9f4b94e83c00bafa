"""Work that kills its process is found, given up and kept as a dead letter; what only ran beside it is not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from gateway.products.batches.chunk import MOST_CRASHES, WINDOW
from gateway.products.jobs.calls import StoredRequest
from gateway.products.jobs.dead_letters.rules import LetterKind
from gateway.products.jobs.model import JobState
from gateway.products.jobs.rules import JobRules, SegmentRules
from tests.products.jobs.lives import Lives
from tests.support.stage import Stage, few_lines
from tests.support.virtual import LoopClock, run


def line_of(request: StoredRequest) -> int:
    return int(request.id[-6:])


@pytest.mark.parametrize(("first_after_s", "deadly_after_s"), [(0.0, 0.0), (0.05, 0.05), (3.0, 3.0), (0.5, 0.0)])
@pytest.mark.parametrize("deadly", [{0}, {13}, {63}, {7, 40}])
def test_a_deadly_line_is_given_up_after_five_crashes_and_all_others_are_served(
    deadly: set[int], first_after_s: float, deadly_after_s: float
) -> None:
    """Wherever it is, whether it kills at once, in the end, or first behind others, then at once; of two each takes as many."""

    async def story(clock: LoopClock) -> None:
        def script(request: StoredRequest, _try: int) -> float:
            if line_of(request) in deadly:
                clock.call_at(clock.monotonic() + (deadly_after_s if lives.crashes else first_after_s), lives.die)
                return 1000.0
            return 0.05 + line_of(request) % 7 * 0.1

        stage = Stage(clock, rules=few_lines(window=100), script=script)
        lives = Lives(stage)
        await stage.accept_batch(64)
        await lives.until_end("batch_1")
        await lives.aclose()
        lines = stage.lines["batch_1"]
        found = [line["custom_id"] for line in lines if line["error"]]
        groups = await stage.store.dead.groups(5)

        assert sorted(line["custom_id"] for line in lines) == sorted(f"c{number}" for number in range(64))
        assert sorted(found) == sorted(f"c{number}" for number in deadly)
        assert lives.crashes <= 5 * len(deadly)
        (group,) = groups
        assert (group.kind, group.error_class, group.number) == (LetterKind.LINE, "worker_crashed", len(deadly))
        assert {letter.line for letter in group.samples} == deadly
        assert all(MOST_CRASHES <= letter.attempts < 5 and letter.source["blob"] == "input" for letter in group.samples)

    run(story)


@pytest.mark.parametrize("seed", range(4))
def test_lines_are_not_given_up_for_crashes_that_come_from_elsewhere(seed: int) -> None:
    """Kills at any time, often before anything was committed: more than one for every ten lines."""

    async def story(clock: LoopClock) -> None:
        draw = random.Random(seed)
        stage = Stage(
            clock, rules=few_lines(window=20), script=lambda request, _try: 0.03 + line_of(request) % 5 * 0.02
        )
        lives = Lives(stage)

        def kill() -> None:
            if lives.crashes < 40:
                lives.die()
                clock.call_at(clock.monotonic() + draw.uniform(0.02, 1.0), kill)

        clock.call_at(clock.monotonic() + 0.3, kill)
        await stage.accept_batch(200)
        await lives.until_end("batch_1", most_crashes=100)
        await lives.aclose()

        assert [line["error"] for line in stage.lines["batch_1"] if line["error"]] == []
        assert len(stage.lines["batch_1"]) == 200

    run(story)


def test_a_chunk_whose_worker_died_runs_few_lines_at_a_time_and_leaves_no_note() -> None:
    """The note is there while it runs, and gone at its end."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(window=100), script=lambda _request, _try: 0.2)
        lives = Lives(stage)
        clock.call_at(clock.monotonic() + 0.1, lives.die)
        await stage.accept_batch(16)
        await lives.until_end("batch_1")
        await lives.aclose()
        job = await stage.end_of("batch_1")

        assert len(stage.tries) == 32
        assert stage.broken_off == stage.tries[:16]
        assert [name for name in job.marks if name.startswith("suspect:")] == []
        assert not stage.chunks.turn.locked()
        assert stage.most_running == 16
        assert WINDOW < 16

    run(story)


def test_a_call_that_kills_its_workers_is_a_dead_letter_and_others_are_not() -> None:
    """They ran beside it when it killed, and are served in the end."""

    async def story(clock: LoopClock) -> None:
        def script(request: StoredRequest, _try: int) -> float:
            if request.id == "deadly":
                clock.call_at(clock.monotonic() + 0.05, lives.die)
            return 0.2

        stage = Stage(clock, script=script)
        lives = Lives(stage)
        names = [f"job_{number}" for number in range(4)]
        await stage.accept(*names[:2], "deadly", *names[2:])
        for name in (*names, "deadly"):
            await lives.until_end(name)
        await lives.aclose()

        assert [(await stage.end_of(name)).state for name in names] == [JobState.SUCCEEDED] * 4
        assert (await stage.end_of("deadly")).state is JobState.FAILED
        assert lives.crashes <= 5
        (group,) = await stage.store.dead.groups(5)
        assert (group.number, group.error_class, group.samples[0].job_id) == (1, "worker_crashed", "deadly")

    run(story)


def test_calls_out_of_attempts_and_those_that_an_operator_has_to_mend_are_dead_letters() -> None:
    """What the caller has to mend is its own."""

    async def story(clock: LoopClock) -> None:
        wanted = {"job_500": 500, "job_401": 401, "job_400": 400}
        stage = Stage(clock, script=lambda request, _try: wanted[request.id])
        stage.worker.start()
        await stage.accept(*wanted)
        for name in wanted:
            await stage.end_of(name)
        await stage.worker.aclose()
        found = {group.samples[0].job_id: group.samples[0] for group in await stage.store.dead.groups(1)}

        assert sorted(found) == ["job_401", "job_500"]
        assert (found["job_500"].attempts, len(found["job_500"].trail)) == (3, 3)
        assert (found["job_401"].attempts, found["job_401"].error_class) == (1, "auth")

    run(story)


@pytest.mark.parametrize("deadly_after_s", [0.0, 0.05])
@pytest.mark.parametrize("place", [0, 10, 20])
def test_calls_claimed_beside_one_that_kills_its_process_are_served(place: int, deadly_after_s: float) -> None:
    """However soon it kills: from the third claim on each runs alone, and only what died alone is given up."""

    async def story(clock: LoopClock) -> None:
        def script(request: StoredRequest, _try: int) -> float:
            if request.id == "deadly":
                clock.call_at(clock.monotonic() + deadly_after_s, lives.die)
            return 0.2

        rules = JobRules(segments=(SegmentRules("all", concurrency=100),))
        stage = Stage(clock, script=script, rules=rules)
        lives = Lives(stage)
        names = [f"job_{number}" for number in range(20)]
        await stage.accept(*names[:place], "deadly", *names[place:])
        for name in (*names, "deadly"):
            await lives.until_end(name)
        await lives.aclose()

        assert [(await stage.end_of(name)).state for name in names] == [JobState.SUCCEEDED] * 20
        assert (await stage.end_of("deadly")).state is JobState.FAILED
        assert lives.crashes <= 5

    run(story)


def test_a_call_that_kills_its_workers_when_nothing_else_is_there_is_given_up_after_three() -> None:
    """There is nobody else who might have done it."""

    async def story(clock: LoopClock) -> None:
        def script(_request: StoredRequest, _try: int) -> float:
            clock.call_at(clock.monotonic() + 0.05, lives.die)
            return 0.2

        stage = Stage(clock, script=script)
        lives = Lives(stage)
        await stage.accept("deadly")
        await lives.until_end("deadly")
        await lives.aclose()

        job = await stage.end_of("deadly")
        assert (job.state, lives.crashes) == (JobState.FAILED, 3)
        assert job.last_error is not None
        assert (job.last_error.error_class, job.last_error.message[:30]) == (
            "worker_crashed",
            "its worker died 3 times while ",
        )

    run(story)


@pytest.mark.parametrize("kills", [5, 20])
@pytest.mark.parametrize("seed", range(3))
def test_calls_are_not_given_up_for_kills_that_come_from_elsewhere(seed: int, kills: int) -> None:
    """Whatever was running: a kill that took many with it blames none, and one that met a call alone is no proof."""

    async def story(clock: LoopClock) -> None:
        draw = random.Random(seed)
        rules = JobRules(segments=(SegmentRules("all", concurrency=100),))
        stage = Stage(clock, rules=rules, script=lambda _request, _try: draw.uniform(0.5, 1.5))
        lives = Lives(stage)

        def kill() -> None:
            if lives.crashes < kills:
                lives.die()
                clock.call_at(clock.monotonic() + draw.uniform(0.2, 1.5), kill)

        clock.call_at(clock.monotonic() + 0.3, kill)
        names = [f"job_{number}" for number in range(20)]
        await stage.accept(*names)
        await lives.until_all_end()
        await lives.aclose()

        assert [name for name in names if (await stage.end_of(name)).state is not JobState.SUCCEEDED] == []
        assert lives.crashes >= min(kills, 5)

    run(story)


def test_a_try_after_a_kill_tells_that_another_may_have_been_paid_for() -> None:
    """Of a call each that died; of a chunk the lines that can have been in flight, and no other."""

    async def story(clock: LoopClock) -> None:
        told: list[tuple[str, int]] = []

        def script(request: StoredRequest, _try: int) -> float:
            told.append((request.id, request.lost_tries))
            return 0.2

        stage = Stage(clock, rules=few_lines(window=10), script=script)
        lives = Lives(stage)
        clock.call_at(clock.monotonic() + 0.3, lives.die)  # ten more lines are in flight then, and the call
        await stage.accept_batch(40)
        await asyncio.sleep(0.15)
        await stage.accept("job_1")
        await lives.until_end("batch_1")
        await lives.until_end("job_1")
        await lives.aclose()

        assert [lost for name, lost in told if name == "job_1"] == [0, 1]
        lines = Counter(name for name, lost in told if lost and name != "job_1")
        again = {name for name, number in Counter(name for name, _ in told).items() if number > 1} - {"job_1"}
        assert again <= lines.keys()
        assert len(lines) < 2 * 10  # three chunks share the window, and begin one after the other
        assert max(lines.values()) == 1

    run(story)
