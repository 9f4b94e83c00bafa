"""Chunks of batches in virtual time: every line once, few held, committed as they end, stopped, braked, given back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.core.call import Call
from gateway.core.errors import BudgetExceeded, GatewayError, NoTargetAvailable, QueueFull
from gateway.drivers.durability import JobsUnavailable
from gateway.features.grouping.service import GROUP, GroupedCall
from gateway.products.batches.chunk import MOST_MISSING, LineCalls, MissingInputs
from gateway.products.batches.input import ChunkInput, InputLine
from gateway.products.batches.output import BRAKED_BY, WAITS_FOR, with_tier
from gateway.products.jobs.calls import StoredRequest
from gateway.products.jobs.model import ClaimedWork, ClaimRequest, JobFlag, JobState
from gateway.products.jobs.rules import BatchRules, DeadLines, SegmentRules
from gateway.products.jobs.worker import RunningWork
from tests.support.stage import BODY, Script, Stage, few_lines
from tests.support.virtual import LoopClock, run


def number_of(request: StoredRequest) -> int:
    """Returns the number of a line's request."""
    return int(request.id[-6:])


def test_every_line_is_served_once_and_stands_in_its_place() -> None:
    """Over several chunks, whatever order they end in."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(), script=lambda request, _try: 0.1 + number_of(request) % 7 / 10)
        stage.worker.start()
        await stage.accept_batch(100)

        job = await stage.end_of("batch_1")
        lines = stage.lines["batch_1"]

        assert job.state is JobState.SUCCEEDED
        assert [line["custom_id"] for line in lines] == [f"c{number}" for number in range(100)]
        assert len(set(stage.tries)) == len(stage.tries) == 100
        assert (job.tally.completed, job.tally.failed, job.tally.input_tokens) == (100, 0, 300)
        assert stage.most_running <= 8
        await stage.worker.aclose()

    run(story)


def test_lines_that_fail_for_good_are_errors_with_the_providers_words() -> None:
    """The others are not touched by it."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(
            clock, rules=few_lines(), script=lambda request, _try: 400 if number_of(request) % 10 == 3 else 0.1
        )
        stage.worker.start()
        await stage.accept_batch(50)

        job = await stage.end_of("batch_1")
        lines = stage.lines["batch_1"]

        assert (job.tally.completed, job.tally.failed) == (45, 5)
        assert Counter(line["response"]["status_code"] for line in lines) == {200: 45, 400: 5}
        await stage.worker.aclose()

    run(story)


def test_only_a_few_lines_are_held_by_the_delay_queue() -> None:
    """So that others' calls find room there; as soon as it lets them through, others follow."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(window=80))
        stage.held = lambda _id: clock.monotonic() < 1010.0
        stage.worker.start()
        await stage.accept_batch(60)
        await asyncio.sleep(5)

        assert 1 <= len(stage.tries) <= 20
        assert (await stage.end_of("batch_1", within_s=30)).tally.completed == 60
        await stage.worker.aclose()

    run(story)


def test_lines_that_go_together_are_one_held_call() -> None:
    """That of their group, which is what waits in the delay queue; each of them can be stopped with it."""
    is_holding = [True]
    calls, group = LineCalls(lambda: bool(is_holding)), SimpleNamespace(held="in the queue", slots=None)
    for line in range(3):
        call = cast(Call, SimpleNamespace(held=None, slots=None))
        GROUP.put(call, GroupedCall(cast(Call, group), 3))
        calls.begin(line).append(call)
    calls.begin(3)

    assert (calls.held(), calls.held_lines()) == (1, [0, 1, 2])
    is_holding.clear()
    assert calls.held() == 0, "nothing is held anywhere, and so nothing is looked through"
    is_holding.append(True)
    group.held = None
    assert (calls.held(), calls.held_lines()) == (0, [])


def test_a_refusal_puts_a_line_off_and_counts_as_nothing() -> None:
    """Even where lines have a single attempt."""

    async def story(clock: LoopClock) -> None:
        rules = replace(few_lines(), attempts=1, by_cost=())
        stage = Stage(clock, rules=rules, script=lambda _request, number: QueueFull("Full.") if number < 5 else 0.1)
        stage.worker.start()
        await stage.accept_batch(20)

        job = await stage.end_of("batch_1")

        assert (job.tally.completed, job.tally.failed) == (20, 0)
        await stage.worker.aclose()

    run(story)


def refusing(until: float, clock: LoopClock, wait_s: float, keeps_out: Callable[[StoredRequest], bool]) -> Script:
    """Refuses some lines until a time, each for so long."""

    def script(request: StoredRequest, _try: int) -> float | GatewayError:
        if clock.monotonic() < until and keeps_out(request):
            return QueueFull("Full.", retry_after_s=wait_s)
        return 0.1

    return script


def test_lines_that_wait_long_keep_no_room_from_those_that_can_start() -> None:
    """Neither in their chunk, nor a place of the segment; and few of them ask in vain."""

    def odd(request: StoredRequest) -> bool:
        return request.id.startswith("batch") and number_of(request) % 2 == 1

    async def story(clock: LoopClock) -> None:
        until = clock.monotonic() + 1000
        stage = Stage(
            clock,
            script=refusing(until, clock, 300.0, odd),
            rules=replace(few_lines(parallel_chunks=1), segments=(SegmentRules("all", concurrency=1),)),
            model_of=lambda line: line % 2,
        )
        stage.worker.start()
        await stage.accept_batch(40)
        await asyncio.sleep(30)
        await stage.accept("job_1")

        await stage.end_of("job_1", within_s=10)
        others = {id for id in stage.tries if id.startswith("batch") and not int(id[-6:]) % 2}
        assert len(others) == 8  # all of the first chunk of 16
        assert (await stage.end_of("batch_1", within_s=2000)).tally.completed == 40
        assert len(stage.tries) < 41 + 4 * 16
        await stage.worker.aclose()

    run(story)


def test_one_line_that_is_kept_out_for_long_keeps_no_other_out() -> None:
    """One that is too large for now, say: others for the same model go on, and it follows."""

    async def story(clock: LoopClock) -> None:
        until = clock.monotonic() + 500
        script = refusing(until, clock, 300.0, lambda request: number_of(request) in (0, 17))
        stage = Stage(clock, rules=few_lines(), script=script)
        stage.worker.start()
        await stage.accept_batch(32)
        await asyncio.sleep(20)

        assert stage.tries.count(stage.tries[-1]) == 1
        assert len(set(stage.tries)) == 32
        assert (await stage.end_of("batch_1", within_s=1000)).tally.completed == 32
        assert len(stage.tries) <= 32 + 2 * 2
        await stage.worker.aclose()

    run(story)


def test_an_input_that_has_come_back_is_missed_anew() -> None:
    """Tries of a chunk while it was away before do not count any more."""
    missing, work = MissingInputs(), cast(ClaimedWork, SimpleNamespace(job=SimpleNamespace(id="batch_1"), piece=0))
    for _ in range(3):
        assert not any(missing.is_gone_for_good(work, FileNotFoundError()) for _ in range(MOST_MISSING - 1))
        missing.was_read(work)


def test_a_line_that_failed_for_now_is_tried_again_later() -> None:
    """Its chunk comes back for it; what was done before is not done again."""

    async def story(clock: LoopClock) -> None:
        def fails_twice(request: StoredRequest, number: int) -> float | GatewayError:
            return NoTargetAvailable("No.") if number_of(request) == 7 and number < 2 else 0.1

        stage = Stage(clock, rules=few_lines(), script=fails_twice)
        stage.worker.start()
        await stage.accept_batch(20)

        job = await stage.end_of("batch_1")

        assert (job.tally.completed, job.tally.failed) == (20, 0)
        assert len(stage.tries) == 22
        await stage.worker.aclose()

    run(story)


def test_a_line_is_not_tried_for_ever() -> None:
    """After its last attempt it is an error with what the last one said."""

    async def story(clock: LoopClock) -> None:
        rules = replace(few_lines(), attempts=3, by_cost=())
        script = lambda request, _try: NoTargetAvailable("No.") if number_of(request) == 7 else 0.1  # noqa: E731  # short
        stage = Stage(clock, rules=rules, script=script)
        stage.worker.start()
        await stage.accept_batch(20)

        job = await stage.end_of("batch_1")
        (failed,) = [line for line in stage.lines["batch_1"] if line["custom_id"] == "c7"]

        assert (job.tally.completed, job.tally.failed) == (19, 1)
        assert (failed["response"]["status_code"], len(stage.tries)) == (502, 22)
        await stage.worker.aclose()

    run(story)


def test_a_cancelled_batch_starts_nothing_more_and_keeps_what_was_paid_for() -> None:
    """Lines under way may finish within the grace."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(), script=lambda _request, _try: 5.0)
        stage.worker.start()
        await stage.accept_batch(100)
        await asyncio.sleep(12)
        await stage.store.flag("batch_1", "t", JobFlag.CANCEL)
        started, asked_at = len(stage.tries), clock.monotonic()

        job = await stage.end_of("batch_1")

        assert job.state is JobState.CANCELLED
        assert len(stage.tries) - started <= 8  # of the second in which the worker has not heard of it
        assert clock.monotonic() - asked_at < 12
        assert job.tally.completed == len(stage.tries)
        assert stage.broken_off == []
        await stage.worker.aclose()

    run(story)


def test_what_outlives_the_grace_is_broken_off() -> None:
    """Nobody waits for it any more."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(cancel_grace_s=3.0), script=lambda _request, _try: 1000.0)
        stage.worker.start()
        await stage.accept_batch(20)
        await asyncio.sleep(2)
        await stage.store.flag("batch_1", "t", JobFlag.CANCEL)
        asked_at = clock.monotonic()

        job = await stage.end_of("batch_1")

        assert job.state is JobState.CANCELLED
        assert clock.monotonic() - asked_at < 6
        assert (len(stage.broken_off), job.tally.completed) == (8, 0)
        await stage.worker.aclose()

    run(story)


def test_a_paused_batch_goes_on_when_it_is_resumed() -> None:
    """Meanwhile nothing of it is started."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(), script=lambda _request, _try: 1.0)
        stage.worker.start()
        await stage.accept_batch(60)
        await asyncio.sleep(3)
        await stage.store.flag("batch_1", "t", JobFlag.PAUSE)
        await asyncio.sleep(5)
        started = len(stage.tries)
        await asyncio.sleep(100)
        assert len(stage.tries) == started

        await stage.store.flag("batch_1", "t", JobFlag.RESUME)
        job = await stage.end_of("batch_1")

        assert job.tally.completed == 60
        assert len(stage.tries) == 60
        await stage.worker.aclose()

    run(story)


def test_a_lost_claim_ends_the_work_on_it_and_nothing_is_counted_twice() -> None:
    """As where a process was stopped for a while, and another has taken its work over."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(), script=lambda _request, _try: 3.0)
        await stage.accept_batch(16)
        (check,) = await stage.store.claim([ClaimRequest("all", 1)])
        await stage._check(check)
        (work,) = await stage.store.claim([ClaimRequest("all", 1)])
        late = RunningWork(work, clock)
        late.task = asyncio.create_task(stage.chunks.run(late))
        await asyncio.sleep(1)
        await stage.store.give_back(work, run_at=None, is_attempt=False)  # as the end of a lease does

        stage.worker.start()
        job = await stage.end_of("batch_1")
        await asyncio.wait([late.task])

        assert not late.is_ours
        assert (job.tally.completed, len(stage.lines["batch_1"])) == (16, 16)
        await stage.worker.aclose()

    run(story)


def test_line_after_line_with_an_operators_fault_slows_a_batch_to_single_tries() -> None:
    """From the first on, before any is served; when the fault is mended everything goes on, and none has failed."""

    async def story(clock: LoopClock) -> None:
        mended_at = clock.monotonic() + 300
        stage = Stage(
            clock,
            rules=few_lines(window=4),
            script=lambda _request, _try: 401 if clock.monotonic() < mended_at else 0.1,
        )
        stage.worker.start()
        await stage.accept_batch(200)
        await asyncio.sleep(290)
        tried = len(stage.tries)
        assert await braked_by(stage) == "auth"
        assert 4 <= tried <= 4 + 3 * 4  # each of four chunks tries one line after 30, 90 and 210 s

        job = await stage.end_of("batch_1", within_s=4000)

        assert (job.tally.completed, job.tally.failed) == (200, 0)
        assert await braked_by(stage) is None
        await stage.worker.aclose()

    run(story)


@pytest.mark.parametrize("status", [401, 404, 429, 502])
def test_a_small_batch_waits_for_an_operator_from_its_first_line_on(status: int) -> None:
    """Whatever is to be mended: nothing has failed, its mark says why it stands still, and it goes on by itself."""

    async def story(clock: LoopClock) -> None:
        mended_at = clock.monotonic() + 1000
        stage = Stage(clock, rules=few_lines(), script=lambda _r, _t: status if clock.monotonic() < mended_at else 0.1)
        stage.class_of = {401: "auth", 404: "model_not_found", 429: "quota_exhausted", 502: "connection"}
        stage.worker.start()
        await stage.accept_batch(5)
        await asyncio.sleep(900)
        waiting = await stage.store.find("batch_1", None)
        assert waiting is not None
        assert (waiting.state, waiting.tally.failed) == (JobState.RUNNING, 0)
        assert await braked_by(stage) == stage.class_of[status]

        job = await stage.end_of("batch_1", within_s=2000)

        assert (job.tally.completed, job.tally.failed) == (5, 0)
        assert await stage.store.dead.groups(1) == []
        await stage.worker.aclose()

    run(story)


def test_a_line_that_an_operator_would_have_to_mend_is_a_dead_letter_where_others_are_served() -> None:
    """It is held at first, and holds up none of them, nor the batch for ever."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(), script=lambda request, _try: 401 if number_of(request) == 9 else 0.1)
        stage.worker.start()
        await stage.accept_batch(40)
        job = await stage.end_of("batch_1", within_s=600)

        (group,) = await stage.store.dead.groups(2)
        assert (job.tally.completed, job.tally.failed) == (39, 1)
        assert (group.kind, group.error_class, [letter.line for letter in group.samples]) == ("line", "auth", [9])
        assert await braked_by(stage) is None
        await stage.worker.aclose()

    run(story)


@pytest.mark.parametrize("dead_lines", ["poison", "transient", "never"])
def test_given_up_lines_are_dead_letters_by_their_classes(dead_lines: DeadLines) -> None:
    """What another model would mend, and with `transient` what is out of attempts; a bad request is its caller's own."""

    async def story(clock: LoopClock) -> None:
        failing = {2: 413, 5: 500, 7: 400}
        stage = Stage(clock, rules=few_lines(), script=lambda request, _try: failing.get(number_of(request), 0.1))
        stage.class_of = {413: "context_length_exceeded", 500: "server_error", 400: "bad_request"}
        stage.chunks.dead_lines = lambda: dead_lines
        stage.worker.start()
        await stage.accept_batch(10)
        job = await stage.end_of("batch_1", within_s=4000)

        letters = {(group.error_class, group.samples[0].line) for group in await stage.store.dead.groups(2)}
        assert (job.tally.completed, job.tally.failed) == (7, 3)
        too_long, unlucky = ("context_length_exceeded", 2), ("server_error", 5)
        assert letters == {"never": set(), "poison": {too_long}, "transient": {too_long, unlucky}}[dead_lines]
        await stage.worker.aclose()

    run(story)


def test_a_batch_that_waits_for_a_spent_budget_says_so() -> None:
    """As long as no line is let through; a new process shows it, too."""

    async def story(clock: LoopClock) -> None:
        opens_at = clock.monotonic() + 1000
        spent = BudgetExceeded("spent", retry_after_s=40_000.0)
        stage = Stage(
            clock,
            rules=few_lines(window=4),
            script=lambda request, _try: spent if number_of(request) > 9 and clock.monotonic() < opens_at else 0.1,
        )
        stage.worker.start()
        await stage.accept_batch(40)
        await asyncio.sleep(900)
        waiting = await stage.store.find("batch_1", None)
        assert waiting is not None
        assert (waiting.marks.get(WAITS_FOR), waiting.marks.get(BRAKED_BY)) == ("budget_exceeded", None)
        await stage.worker.aclose()
        stage.restart()
        stage.worker.start()

        job = await stage.end_of("batch_1", within_s=2000)

        assert (job.tally.completed, job.marks.get(WAITS_FOR)) == (40, None)
        await stage.worker.aclose()

    run(story)


async def braked_by(stage: Stage) -> object:
    job = await stage.store.find("batch_1", None)
    assert job is not None
    return job.marks.get(BRAKED_BY)


def test_a_braked_batch_is_braked_after_a_restart_too() -> None:
    """Its mark says so: the next process tries no more to find it out."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(window=4), script=lambda _request, _try: 401)
        stage.worker.start()
        await stage.accept_batch(200)
        await asyncio.sleep(20)
        await stage.worker.aclose()
        before = await stage.store.find("batch_1", None)
        tried = len(stage.tries)

        stage.restart()
        stage.worker.start()
        await asyncio.sleep(40)

        assert tried == 4
        assert len(stage.tries) - tried <= 2 * 4  # each of four chunks tries one line, and then one after 30 s
        job = await stage.store.find("batch_1", None)
        assert before is not None
        assert job is not None
        assert job.tally == before.tally
        assert await braked_by(stage) == "auth"
        await stage.worker.aclose()

    run(story)


def test_lines_that_were_under_way_when_the_brake_went_on_do_not_put_off_its_first_probe() -> None:
    """Else a batch with a large window would wait for the longest time at once."""

    async def story(clock: LoopClock) -> None:
        mended_at = clock.monotonic() + 20
        stage = Stage(
            clock,
            rules=few_lines(window=100),
            script=lambda _request, _try: 401 if clock.monotonic() < mended_at else 0.1,
        )
        stage.worker.start()
        await stage.accept_batch(200)

        job = await stage.end_of("batch_1", within_s=100)

        assert (job.tally.completed, job.tally.failed) == (200, 0)
        await stage.worker.aclose()

    run(story)


def test_a_defect_of_one_line_is_its_own() -> None:
    """The others are served once, and it is told of in its place."""

    async def story(clock: LoopClock) -> None:
        def odd(request: StoredRequest, _try: int) -> float:
            if number_of(request) == 5:
                raise RuntimeError("a defect")
            return 0.1 + number_of(request) / 10

        stage = Stage(clock, rules=few_lines(), script=odd)
        stage.worker.start()
        await stage.accept_batch(12)

        job = await stage.end_of("batch_1")

        assert (job.tally.completed, job.tally.failed) == (11, 1)
        assert not stage.broken_off
        assert len(set(stage.tries)) == 12
        assert all(stage.tries.count(id) == 1 for id in stage.tries if not id.endswith("5"))
        await stage.worker.aclose()

    run(story)


def test_an_input_that_cannot_be_read_for_a_while_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way ends and is kept; the rest follows when it can be read."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(), script=lambda request, _try: 2.0 + number_of(request) % 8 / 4)
        broken_at, mended_at = clock.monotonic() + 1, clock.monotonic() + 30
        real = ChunkInput.next_lines

        async def next_lines(self: ChunkInput, most: int, away: Collection[int]) -> list[InputLine]:
            if broken_at < clock.monotonic() < mended_at:
                raise JobsUnavailable("The disk says nothing.")
            return await real(self, most, away)

        monkeypatch.setattr(ChunkInput, "next_lines", next_lines)
        stage.worker.start()
        await stage.accept_batch(16)

        job = await stage.end_of("batch_1", within_s=100)

        assert job.tally.completed == 16
        assert not stage.broken_off
        assert len(stage.tries) == 16
        await stage.worker.aclose()

    run(story)


@pytest.mark.parametrize("gone", ["input", "index"])
def test_an_input_that_is_gone_ends_the_batch_after_some_minutes(gone: str) -> None:
    """Not only with its time; lines without a result say why, and those that have one keep it."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(), script=lambda _request, _try: 5.0)
        stage.worker.start()
        await stage.accept_batch(32)
        await asyncio.sleep(2)
        await stage.blobs.remove([gone])
        began = clock.monotonic()
        await stage.worker.aclose()  # what it has read is gone with it
        stage.restart()
        stage.worker.start()

        job = await stage.end_of("batch_1", within_s=1000)

        assert 200 < clock.monotonic() - began < 400
        lines = stage.lines["batch_1"]
        assert len(lines) == 32
        assert {line["error"]["code"] for line in lines} == {"input_no_permissions"}
        assert (job.tally.completed, job.tally.failed) == (0, 32)
        await stage.worker.aclose()

    run(story)


@pytest.mark.parametrize("grace_s", [0.0, 2.0])
def test_a_worker_that_stops_leaves_what_is_done_and_gives_back_the_rest(grace_s: float) -> None:
    """Another goes on behind the last committed line; only what was under way is paid for twice."""

    async def story(clock: LoopClock) -> None:
        stage = Stage(clock, rules=few_lines(), script=lambda _request, _try: 1.0)
        stage.worker.start()
        await stage.accept_batch(64)
        await asyncio.sleep(3.5)
        await stage.worker.drain(grace_s)
        await stage.worker.aclose()

        other = stage.make_worker()
        other.start()
        job = await stage.end_of("batch_1")
        await other.aclose()

        twice = len(stage.tries) - 64
        assert job.tally.completed == 64
        assert twice <= (8 if grace_s == 0 else 0)
        assert [line["custom_id"] for line in stage.lines["batch_1"]] == [f"c{number}" for number in range(64)]

    run(story)


@pytest.mark.parametrize(("left_s", "expected"), [(7200.0, b'"service_tier":"flex",'), (600.0, b"")])
def test_lines_ask_for_half_price_while_there_is_time(left_s: float, expected: bytes) -> None:
    """An hour before the batch's end they go at the usual price."""

    async def story(clock: LoopClock) -> None:
        bodies: list[bytes] = []

        def note(request: StoredRequest, _try: int) -> float:
            bodies.append(request.body)
            return 0.1

        stage = Stage(clock, rules=few_lines(run="flex"), script=note)
        stage.worker.start()
        await stage.accept_batch(3, deadline=clock.wall() + left_s)

        await stage.end_of("batch_1")

        assert bodies == [b"{" + expected + BODY[1:]] * 3
        await stage.worker.aclose()

    run(story)


def test_a_tier_that_a_line_names_stays() -> None:
    """Whatever it is."""
    body = b'{"model":"m","service_tier":"priority"}'

    assert with_tier(body, BatchRules(run="flex"), 10_000, "/v1/chat/completions") == body
    for endpoint in ("/v1/messages", "/v1/embeddings"):
        assert with_tier(b"{}", BatchRules(run="flex"), 10_000, endpoint) == b"{}", "it is refused there"
