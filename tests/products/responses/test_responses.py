"""Responses whose workers die, whose readers leave and whose providers break off: in virtual time, on every store of jobs.

What is promised each time: the response comes to one end, which stays; a kept answer is one answer of the provider's; nobody is
given the events of two.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.core.errors import InvalidRequest
from gateway.products.jobs.model import Job, JobFlag, JobState
from gateway.products.jobs.rules import ResponseRules
from gateway.products.jobs.store import JobStore
from gateway.products.responses.log import EventBuffers
from gateway.products.responses.rules import GENERATION_STEP
from gateway.products.responses.service import ResponseService
from tests.products.responses.speaking import RESPONSE, WORDS, Json, Speaker, text_of, tries_in
from tests.support.redis_servers import RedisServer
from tests.support.stage import few_lines
from tests.support.town import KINDS, Town, View, Where, town
from tests.support.virtual import LoopClock, run

Story = Callable[[Town], Coroutine[Any, Any, None]]
Tell = Callable[[Story], None]
STEPS = ("claim", "responses.find", "note", "events.append", "responses.put", "finish")
FAILS = replace(few_lines(), responses=ResponseRules(on_crash="fail"))
LENGTH = WORDS + 5
"""Of a whole log: three announcements, the words, the item, and the end."""


@pytest.fixture(params=list(KINDS))
def tell(request: pytest.FixtureRequest, tmp_path: Path, _redis_process: RedisServer) -> Tell:
    """Tells a story of processes that share a store."""

    def told(story: Story) -> None:
        async def whole(clock: LoopClock) -> None:
            async with town(request.param, clock, Where(tmp_path, _redis_process.url)) as one:
                await story(one)

        run(whole)

    return told


def speaker(here: Town, **fields: Any) -> Speaker:
    """A process, not yet at work."""
    usual: dict[str, Any] = {"rules": few_lines(), "blobs": here.blobs, "tries": here.tries}
    return Speaker(here.clock, view=View(here.kept, here.over), **{**usual, **fields})


def at_work(here: Town, **fields: Any) -> Speaker:
    """A process at work."""
    one = speaker(here, **fields)
    one.worker.start()
    return one


def is_contiguous(events: list[Json]) -> bool:
    """No event is missing, and none is there twice."""
    numbers = [event["sequence_number"] for event in events]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def is_one_answer(events: list[Json], kept: Json) -> bool:
    """The events are those of one run of the model, and lead to what is kept."""
    words = "".join(event["delta"] for event in events if "delta" in event)
    return len(tries_in(events)) == 1 and words == text_of(kept) and events[-1]["response"] == kept


def test_all_read_one_log(tell: Tell) -> None:
    """Here while it runs, at another process, behind any event, and when it has ended."""

    async def story(here: Town) -> None:
        one, other = at_work(here), speaker(here)
        await one.respond()
        first, elsewhere, behind = await asyncio.gather(one.read(), other.read(), other.read(after=6))
        await one.end_of(RESPONSE)
        late = await other.read(after=3)

        assert [event["type"] for event in first[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert first == elsewhere
        assert len(first) == LENGTH
        assert is_contiguous(first)
        assert first[0]["sequence_number"] == 0
        assert (behind, late) == (first[7:], first[4:])
        assert await one.read(after=LENGTH - 1) == []
        assert is_one_answer(first, await one.kept())
        assert {event["response"]["id"] for event in first if "response" in event} == {RESPONSE}

    tell(story)


@pytest.mark.parametrize("moment", ["dies_before", "dies_after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_that_dies_at_any_step(tell: Tell, step: str, moment: str) -> None:
    """Another one brings it to its end; what was kept before is not made again; readers have one answer, or are told."""

    async def story(here: Town) -> None:
        first = speaker(here)
        await first.respond()
        reader = speaker(here)
        reading = asyncio.create_task(reader.read())
        setattr(first.view, moment, step)
        first.worker.start()
        await here.dies(first)
        other = at_work(here)
        job = await other.end_of(RESPONSE)
        events, kept = await reading, await other.kept()
        again = await other.read()

        assert job.state is JobState.SUCCEEDED
        assert kept["status"] == "completed"
        assert is_one_answer(again, kept)
        assert is_contiguous(again)
        was_kept = step == "finish" or (step, moment) == ("responses.put", "dies_after")
        assert len(here.tries) == (1 if was_kept or not _had_begun(step, moment) else 2)
        if events[-1]["type"] == "error":
            assert events[-1]["code"] == "stream_restarted"
            assert tries_in(events[:-1]) <= {"0"}
        else:
            assert is_one_answer(events, kept)

    tell(story)


def _had_begun(step: str, moment: str) -> bool:
    """The provider was asked before the worker died."""
    return step not in ("claim", "responses.find")


def test_whoever_has_read_of_a_broken_run_is_told(tell: Tell) -> None:
    """Now, or when he comes back to another process; whoever has seen nothing of it notices nothing."""

    async def story(here: Town) -> None:
        first, other = at_work(here), speaker(here)
        await first.respond()
        seen = await other.read(most=7)
        announced = await other.read(most=2)
        came: list[Json] = []
        attached = asyncio.create_task(other.read(into=came))
        # Who has read nothing of the broken run notices nothing.
        while len(came) < len(seen):  # noqa: ASYNC110 - a list that another task fills, which sets no event
            await asyncio.sleep(0.01)
        await here.kill(first)
        other.worker.start()
        await other.end_of(RESPONSE)
        await attached
        back = await other.read(after=seen[-1]["sequence_number"])
        unseen = await other.read(after=announced[-1]["sequence_number"])
        anew = await other.read()

        assert came[-1]["code"] == "stream_restarted"
        assert [event.get("code") for event in back] == ["stream_restarted"]
        assert (tries_in(seen), tries_in(unseen), tries_in(anew)) == ({"0"}, {"1"}, {"1"})
        assert anew[0]["sequence_number"] == GENERATION_STEP
        assert [event["type"] for event in unseen[:1]] == ["response.in_progress"]
        assert (await other.read(after=anew[5]["sequence_number"])) == anew[6:]
        assert is_one_answer(anew, await other.kept())

    tell(story)


def test_a_stream_that_breaks_off_is_another_run(tell: Tell) -> None:
    """As a worker that dies; where the rules say so, the response has failed."""

    async def story(here: Town) -> None:
        one = at_work(here, script=lambda _request, number: 0.0 if number == 0 else 0.1)
        await one.respond()
        attached = await one.read()
        await one.end_of(RESPONSE)
        assert attached[-1]["code"] == "stream_restarted"
        assert tries_in(await one.read()) == {"1"}

        strict = speaker(here, rules=FAILS, script=lambda _request, _number: 0.0)
        await one.worker.aclose()
        strict.worker.start()
        await strict.respond("resp_2")
        job = await strict.end_of("resp_2")
        events, kept = await strict.read(id="resp_2"), await strict.kept("resp_2")
        assert job.state is JobState.FAILED
        assert (kept["status"], events[-1]["type"]) == ("failed", "response.failed")
        assert events[-1]["response"] == kept

    tell(story)


@pytest.mark.parametrize(
    ("status", "error_class", "is_letter"),
    [(400, "context_length_exceeded", True), (500, "server_error", True), (400, "bad_request", False)],
)
def test_a_failed_response_is_a_dead_letter_unless_its_caller_asked_wrongly(
    tell: Tell, status: int, error_class: str, is_letter: bool
) -> None:
    """Without its request, and not run again; any is one whose worker dies behind the answer and before the end."""

    async def story(here: Town) -> None:
        first = speaker(here, script=lambda _request, _number: status)
        first.class_of = {status: error_class}
        await first.respond(max_attempts=1)
        first.view.dies_after = "responses.put"
        first.worker.start()
        await here.dies(first)
        other = at_work(here)
        await other.end_of(RESPONSE)
        second = at_work(here, script=lambda _request, _number: status)
        second.class_of = {status: error_class}
        await second.respond("resp_2", max_attempts=1)
        await second.end_of("resp_2")
        groups = await second.store.dead.groups(5)

        letters = {letter.job_id: (group.kind, group.error_class) for group in groups for letter in group.samples}
        assert letters.pop(RESPONSE) == ("response", "server_error")  # what is kept has OpenAI's codes alone
        assert letters == ({"resp_2": ("response", error_class)} if is_letter else {})
        assert not any(letter.is_replayable or letter.bytes for group in groups for letter in group.samples)

    tell(story)


def test_refused_for_good(tell: Tell) -> None:
    """Nothing was said: the log is announcements and the end, with the provider's words."""

    async def story(here: Town) -> None:
        one = at_work(here, script=lambda _request, number: 400 if number == 0 else InvalidRequest("never so"))
        await one.respond()
        await one.respond("resp_2")
        for id, message in ((RESPONSE, "no"), ("resp_2", "never so")):
            job, kept = await one.end_of(id), await one.kept(id)
            events = await one.read(id=id)
            assert job.state is JobState.FAILED
            assert kept["error"]["message"] == message
            assert [event["type"] for event in events] == ["response.created", "response.queued", "response.failed"]
            assert not job.marks.get("dead")
        assert len(here.tries) == 2

    tell(story)


@pytest.mark.parametrize("where", ["queued", "running", "elsewhere"])
def test_cancelled(tell: Tell, where: str) -> None:
    """Here at once; elsewhere when its worker hears of it; before it began without one."""

    async def story(here: Town) -> None:
        one, other = speaker(here), speaker(here)
        await one.respond()
        if where != "queued":
            one.worker.start()
            await here.paid(1)
            await asyncio.sleep(0.2)
        asked_at = here.clock.monotonic()
        job = await other.store.flag(RESPONSE, "t", JobFlag.CANCEL)
        if where == "running":
            one.lives.cancel(RESPONSE)
        if where != "queued":
            job = await one.end_of(RESPONSE)
            assert (await one.kept())["status"] == "cancelled"
            last = (await other.read())[-1]
            assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")
        assert job is not None
        assert job.state is JobState.CANCELLED
        assert here.clock.monotonic() - asked_at <= (0.1 if where == "running" else 1.1)

    tell(story)


def test_a_reader_waits_in_peace(tell: Tell) -> None:
    """Before it begins he has the announcements; behind the last event he waits for the next, with a word now and then."""

    async def story(here: Town) -> None:
        one = speaker(here)
        await one.respond()
        job = await one.store.find(RESPONSE, "t")
        assert job is not None
        reading = one.reading.follow(one.store, job, -1).blocks
        blocks = [await anext(reading) for _ in range(3)]
        assert [block is None for block in blocks] == [False, True, True]
        waiting = asyncio.create_task(one.read(after=9))
        one.worker.start()
        assert [event["sequence_number"] for event in await waiting] == list(range(10, LENGTH))

    tell(story)


@pytest.mark.parametrize("every", [1, 3])
def test_usual_events_go_by_in_passing(tell: Tell, every: int) -> None:
    """Who waits for them has them in their order, with all others between; a client that is slow now and then, too."""

    async def story(here: Town) -> None:
        one, asked, given = speaker(here), itertools.count(1), []

        def busy() -> bool:
            given.append(next(asked) % every == every - 1)
            return given[-1]

        await one.respond()
        reading = asyncio.create_task(one.read(busy=busy))
        one.worker.start()
        events = await reading
        assert events == await one.read()
        assert len(events) == LENGTH
        assert len(given) >= WORDS - 2
        assert is_one_answer(events, await one.kept())

    tell(story)


def test_many_readers_are_one_look_at_the_store(tell: Tell) -> None:
    """Of one that is queued: once a second for all of them, who come at any time."""

    async def story(here: Town) -> None:
        one, reader = speaker(here), speaker(here)
        await one.respond()
        readings = []
        for _ in range(50):
            readings.append(asyncio.create_task(reader.read()))
            await asyncio.sleep(0.013)
        reader.view.asked.clear()
        await asyncio.sleep(10.0)
        assert reader.view.asked["events.read"] <= 11
        one.worker.start()
        first, *others = await asyncio.gather(*readings)
        assert len(first) == LENGTH
        assert all(events == first for events in others)
        assert reader.view.asked["events.read"] <= 30

    tell(story)


def test_responses_are_not_given_up_for_kills_that_come_from_elsewhere(tell: Tell) -> None:
    """From the third run on each goes alone, and a kill that took many with it blames none."""

    async def story(here: Town) -> None:
        names = [f"resp_{number}" for number in range(4)]
        first = speaker(here)
        for name in names:
            await first.respond(name)
        for _ in range(4):
            one = at_work(here)
            await here.paid(len(here.tries) + 1)
            await asyncio.sleep(0.1)
            await here.kill(one)
        last = at_work(here)

        assert [(await last.end_of(name)).state for name in names] == [JobState.SUCCEEDED] * 4

    tell(story)


def test_a_response_that_kills_its_workers_is_a_dead_letter(tell: Tell) -> None:
    """Of a kind that is not run again: its input is kept no longer."""

    async def story(here: Town) -> None:
        await speaker(here).respond()
        for number in range(3):
            one = at_work(here)
            await here.paid(number + 1)
            await here.kill(one)
        last = at_work(here)
        job = await last.end_of(RESPONSE)
        (group,) = await last.store.dead.groups(5)

        assert (job.state, job.last_error and job.last_error.error_class) == (JobState.FAILED, "worker_crashed")
        assert (await last.kept())["status"] == "failed"
        assert (group.kind, group.error_class, group.samples[0].job_id) == ("response", "worker_crashed", RESPONSE)
        assert not group.samples[0].is_replayable

    tell(story)


class Stale:
    """What looks at jobs as they were, and what opens the store that they are in."""

    def __init__(self, store: JobStore, job: Job) -> None:
        self._store = store
        self._job = job

    async def reader(self) -> JobStore:
        return self._store

    async def look(self, _store: JobStore, _id: str, _tenant: str) -> Job:
        return self._job


def test_an_answer_is_there_before_anybody_is_told_of_it(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for who asks elsewhere, or here, where the job was read a moment ago and had not ended."""

    async def story(here: Town) -> None:
        one, other = at_work(here), speaker(here)
        await one.respond()
        early = await one.store.find(RESPONSE, "t")
        assert early is not None
        events = await other.read()
        assert events[-1]["type"] == "response.completed"
        stale: Any = Stale(other.store, early)
        for lives in (one.lives, EventBuffers()):
            service = ResponseService(stale, here.clock, stale, lives, *[lambda *_: None] * 4)  # type: ignore[arg-type]  # unused
            job, body = await service.find(RESPONSE, "t")
            assert (job, orjson.loads(body)["status"]) == (None, "completed")
        await one.end_of(RESPONSE)

    monkeypatch.setattr("gateway.products.responses.service.is_ours", lambda _mark, _id: True)
    tell(story)
