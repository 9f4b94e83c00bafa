"""Jobs of kind `call`: tried, put off, tried again, stopped, given back; each ends once, and says how."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest

from gateway.core.errors import CircuitOpen, GatewayError, InvalidRequest, NoTargetAvailable, QueueFull, ShuttingDown
from gateway.features.output.service import OutputInvalid
from gateway.products.jobs import worker
from gateway.products.jobs.calls import StoredRequest
from gateway.products.jobs.model import ClaimedWork, ClaimRequest, JobFlag, JobState
from gateway.products.jobs.rules import JobRules, SegmentRules
from tests.support.stage import Stage
from tests.support.virtual import LoopClock, run


def test_a_job_is_served_and_its_answer_kept() -> None:
    """With the status, headers and bytes that came, what it used, and one attempt."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock)
        stage.worker.start()
        await stage.accept("job_1")

        job = await stage.end_of()
        answer = await stage.store.answer("job_1", "t")

        assert job.state is JobState.SUCCEEDED
        assert answer is not None
        assert (answer.status, answer.body) == (200, b'{"answer":"job_1"}')
        assert list(answer.headers) == [("content-type", "application/json")]
        assert (job.tally.completed, job.tally.input_tokens, job.tally.output_tokens) == (1, 3, 2)
        assert job.attempts == 1
        assert stage.changed == ["job_1"]
        assert dict(stage.meter.jobs.totals) == {("call", "succeeded"): 1}
        await stage.worker.aclose()

    run(story)


def test_what_can_never_succeed_fails_at_once_with_the_providers_words() -> None:
    """A status of 400 is tried once."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, script=lambda _request, _try: 400)
        stage.worker.start()
        await stage.accept("job_1")

        job = await stage.end_of()
        answer = await stage.store.answer("job_1", "t")

        assert job.state is JobState.FAILED
        assert answer is not None
        assert answer.status == 400
        assert job.last_error is not None
        assert job.last_error.error_class == "bad_request"
        assert len(stage.tries) == 1
        await stage.worker.aclose()

    run(story)


@pytest.mark.parametrize(
    ("error_class", "is_letter"),
    [("context_length_exceeded", True), ("output_invalid", True), ("auth", True), ("bad_request", False)],
)
def test_what_an_operator_can_mend_is_a_dead_letter_of_its_class(error_class: str, is_letter: bool) -> None:
    """By another model, limit or schema."""

    async def story(clock: LoopClock) -> None:
        said = OutputInvalid("The answer breaks the schema.") if error_class == "output_invalid" else 400
        stage = Stage(clock, script=lambda _request, _try: said)
        stage.class_of = {400: error_class}
        stage.worker.start()
        await stage.accept("job_1")

        job = await stage.end_of()
        letters = [(group.kind, group.error_class, group.number) for group in await stage.store.dead.groups(1)]

        assert (job.state, len(stage.tries)) == (JobState.FAILED, 1)
        assert letters == ([("call", error_class, 1)] if is_letter else [])
        await stage.worker.aclose()

    run(story)


def test_what_failed_for_now_is_tried_again_later_and_not_for_ever() -> None:
    """Backoffs of 30 and 60 seconds; the third attempt of three is the last."""

    async def story(clock: LoopClock) -> None:
        times: list[float] = []

        def fails(_request: StoredRequest, _try: int) -> GatewayError:
            times.append(clock.monotonic())
            return NoTargetAvailable("All targets failed.")

        stage = Stage(clock, script=fails)
        stage.worker.start()
        await stage.accept("job_1")

        job = await stage.end_of()

        assert job.state is JobState.FAILED
        assert job.attempts == 3
        waits = [later - earlier for earlier, later in pairwise(times)]
        assert waits == [pytest.approx(30, abs=1.1), pytest.approx(60, abs=1.1)]
        await stage.worker.aclose()

    run(story)


@pytest.mark.parametrize(
    "refusal", [QueueFull("Full."), CircuitOpen("Open.", retry_after_s=20.0), ShuttingDown("Going.")]
)
def test_a_refusal_for_want_of_room_is_no_attempt(refusal: GatewayError) -> None:
    """However often it comes, the job waits and is served in the end."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, script=lambda _request, number: refusal if number < 20 else 0.1)
        stage.worker.start()
        await stage.accept("job_1", max_attempts=1)

        job = await stage.end_of()

        assert job.state is JobState.SUCCEEDED
        assert (job.attempts, len(stage.tries)) == (1, 21)
        await stage.worker.aclose()

    run(story)


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/messages"])
def test_a_refusal_of_the_gateways_own_is_kept_as_an_answer(endpoint: str) -> None:
    """As the edge would have given it: in OpenAI's shape, or Anthropic's."""

    async def story(clock: LoopClock) -> None:
        seen: list[Any] = []

        def script(request: StoredRequest, _try: int) -> InvalidRequest:
            seen.append(dict(request.headers).get(b"anthropic-version"))
            return InvalidRequest("No such field.", param="n")

        stage = Stage(clock, script=script)
        stage.worker.start()
        await stage.accept("job_1", about={"endpoint": endpoint, "headers": []})

        assert (await stage.end_of()).state is JobState.FAILED
        answer = await stage.store.answer("job_1", "t")
        assert answer is not None
        assert answer.status == 400
        value = orjson.loads(answer.body)
        is_of_messages = endpoint == "/v1/messages"
        assert (value.get("type"), value["error"]["param"]) == ("error" if is_of_messages else None, "n")
        assert value.get("request_id") == ("job_1" if is_of_messages else None)
        assert seen == [b"2023-06-01" if is_of_messages else None]
        await stage.worker.aclose()

    run(story)


def test_a_running_job_is_cancelled_within_a_second_or_so() -> None:
    """Its call is broken off, and nothing is kept."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, script=lambda _request, _try: 500.0)
        stage.worker.start()
        await stage.accept("job_1")
        await asyncio.sleep(5)
        asked_at = clock.monotonic()
        await stage.store.flag("job_1", "t", JobFlag.CANCEL)

        job = await stage.end_of()

        assert job.state is JobState.CANCELLED
        assert clock.monotonic() - asked_at < 1.2
        assert stage.broken_off == ["job_1"]
        await stage.worker.aclose()

    run(story)


def test_a_job_whose_time_is_over_expires_while_it_runs() -> None:
    """The deadline of the job ends it, whatever the provider does."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, script=lambda _request, _try: 500.0)
        stage.worker.start()
        await stage.accept("job_1", deadline=clock.wall() + 20)

        job = await stage.end_of()

        assert job.state is JobState.EXPIRED
        assert stage.broken_off == ["job_1"]
        await stage.worker.aclose()

    run(story)


def test_segments_bound_what_runs_at_a_time() -> None:
    """Of a hundred jobs never more than the segment's concurrency; dear ones do not hold up cheap ones."""

    async def story(clock: LoopClock) -> None:
        rules = JobRules(segments=(SegmentRules("all", concurrency=7), SegmentRules("slow", concurrency=1)))
        stage = Stage(clock, rules=rules, script=lambda request, _try: 100.0 if request.id == "dear" else 0.5)
        stage.worker.start()
        await stage.accept("dear", segment="slow")
        await stage.accept(*(f"job_{number}" for number in range(100)))

        await asyncio.gather(*(stage.end_of(f"job_{number}", within_s=20) for number in range(100)))

        assert stage.most_running == 8
        await stage.worker.aclose()

    run(story)


def test_a_worker_that_stops_gives_back_what_it_cannot_finish() -> None:
    """What ends within the grace counts; the rest is nobody's attempt, and another worker goes on with it."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, script=lambda request, number: 3.0 if request.id == "short" or number else 500.0)
        stage.worker.start()
        await stage.accept("short", "long")
        await asyncio.sleep(1)

        await stage.worker.drain(5.0)
        await stage.worker.aclose()
        short, long = [await stage.store.find(id, None) for id in ("short", "long")]

        assert short is not None
        assert short.state is JobState.SUCCEEDED
        assert long is not None
        assert not long.state.is_end
        assert long.attempts == 0
        assert stage.broken_off == ["long"]
        other = stage.make_worker()
        other.start()
        assert (await stage.end_of("long", within_s=10)).state is JobState.SUCCEEDED
        await other.aclose()

    run(story)


def test_a_job_that_meets_a_defect_each_time_is_given_up() -> None:
    """After as many tries as it has attempts."""

    async def story(clock: LoopClock) -> None:
        def odd(_request: StoredRequest, _try: int) -> float:
            raise RuntimeError("a defect")

        stage = Stage(clock, script=odd)
        stage.worker.start()
        await stage.accept("job_1")

        ended = await stage.end_of(within_s=200)

        assert ended.state is JobState.FAILED
        assert len(stage.tries) == 3
        await stage.worker.aclose()

    run(story)


def test_a_defect_of_a_runner_is_an_attempt_and_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """The job comes back later, other jobs run on."""

    async def story(clock: LoopClock) -> None:
        def odd(request: StoredRequest, number: int) -> float:
            if request.id == "odd" and not number:
                raise RuntimeError("a defect")
            return 0.1

        stage = Stage(clock, script=odd)
        stage.worker.start()
        await stage.accept("odd", "fine")

        assert (await stage.end_of("fine", within_s=1)).state is JobState.SUCCEEDED
        assert (await stage.end_of("odd", within_s=30)).state is JobState.SUCCEEDED
        await stage.worker.aclose()

    run(story)
    assert "odd" in caplog.text


def test_nothing_begins_while_the_process_has_no_room() -> None:
    """As while load is shed; what runs goes on."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock)
        stage.has_room = False
        stage.worker.start()
        await stage.accept("job_1")
        await asyncio.sleep(30)
        assert stage.tries == []

        stage.has_room = True

        assert (await stage.end_of(within_s=3)).state is JobState.SUCCEEDED
        await stage.worker.aclose()

    run(story)


def test_no_more_requests_are_held_than_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes count, and those of answers that the store has not taken yet."""
    monkeypatch.setattr(worker, "MOST_HELD_BYTES", 1_000_000)
    monkeypatch.setattr(worker, "GUESSED_BYTES", 200_000)
    monkeypatch.setattr(worker, "SMALL_BYTES", 1000)

    async def story(clock: LoopClock) -> None:
        rules = JobRules(segments=(SegmentRules("all", concurrency=100),))
        stage = Stage(clock, rules=rules, script=lambda _request, _try: 1.0)
        large = [replace(stage.new_job(f"job_{number}"), payload=b"x" * 200_000) for number in range(40)]
        await stage.store.accept(large)
        most = 0
        real = stage.store.claim

        async def claim(asks: Sequence[ClaimRequest]) -> Sequence[ClaimedWork]:
            nonlocal most
            works = await real(asks)
            most = max(most, sum(len(work.payload) for work in works) + 200_000 * stage.worker.running)
            return works

        monkeypatch.setattr(stage.store, "claim", claim)
        await stage.store.accept([stage.new_job("job_first")])
        stage.worker.start()

        for number in range(40):
            assert (await stage.end_of(f"job_{number}")).state is JobState.SUCCEEDED
        assert most <= 1_000_000 + 200_000  # one more is looked at, whether it is small
        await stage.worker.aclose()

    run(story)


def test_a_backlog_of_large_requests_does_not_fill_the_memory_at_once() -> None:
    """As it is met by a process that was killed for its memory, and starts again."""

    async def story(clock: LoopClock) -> None:
        segments = (SegmentRules("fast", concurrency=400), SegmentRules("slow", concurrency=100))
        stage = Stage(clock, rules=JobRules(segments=segments), script=lambda _request, _try: 60.0)
        large = bytes(20_000_000)
        for segment in ("fast", "slow"):
            jobs = [stage.new_job(f"{segment}_{number}", segment=segment) for number in range(80)]
            await stage.store.accept([replace(job, payload=large) for job in jobs])
        stage.worker.start()
        await asyncio.sleep(5)

        at_most = worker.MOST_HELD_BYTES // len(large) + len(segments) - 1
        assert 10 <= stage.worker.running <= at_most
        await stage.worker.aclose()

    run(story)


def test_small_requests_do_not_wait_for_large_ones_to_leave_memory() -> None:
    """Although large ones stand before them; and these run when there is room, each once."""

    async def story(clock: LoopClock) -> None:
        def script(request: StoredRequest, _try: int) -> float:
            return 600.0 if request.id.startswith("large") else 0.1

        rules = JobRules(segments=(SegmentRules("all", concurrency=100),), deadline_s=86_400.0)
        stage = Stage(clock, rules=rules, script=script)
        large = [stage.new_job(f"large_{number}", deadline=clock.wall() + 86_400) for number in range(20)]
        await stage.store.accept([replace(job, payload=bytes(20_000_000)) for job in large])
        stage.worker.start()
        await asyncio.sleep(5)
        held = stage.worker.running
        await stage.accept(*(f"job_{number}" for number in range(30)))

        for number in range(30):
            await stage.end_of(f"job_{number}", within_s=30)
        assert stage.worker.running == held
        for number in range(20):
            assert (await stage.end_of(f"large_{number}")).attempts == 1
        assert len(stage.tries) == 50
        await stage.worker.aclose()

    run(story)


def test_jobs_of_a_segment_that_the_config_names_no_more_run_on() -> None:
    """With the share of the last one."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock)
        stage.worker.start()
        await stage.accept("job_1", segment="gone")

        assert (await stage.end_of(within_s=3)).state is JobState.SUCCEEDED
        await stage.worker.aclose()

    run(story)
