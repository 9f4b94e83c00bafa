"""Steps of runs: paid for once, kept before they are given, shared by twins, whoever leaves and whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.call import INVALID_ANSWER
from gateway.core.errors import GatewayError
from gateway.core.relay import StreamBroken
from gateway.drivers.durability import JobsOff, JobsUnavailable
from gateway.features.reuse.rules import Caching, ExactRule
from gateway.features.runs.rules import RunPart, StepRequest
from gateway.features.runs.step import OTHERS, StepChanged, StepRunning, StepTooLarge, StoredStep
from gateway.products.jobs.store import JobStore
from tests.features.reuse.test_reuse import BAD, EVENTS, STREAM, asking, begin, gated, outcomes, sent, turns
from tests.support.flow import (
    ANSWER,
    BOUNDS,
    SPEECH,
    Bench,
    Broken,
    FakeClock,
    Script,
    ScriptedUpstream,
    failed,
    streamed,
    whole,
)
from tests.support.memory_store.store import MemoryJobStore
from tests.support.stores import MemoryStore

REPLAYED = (b"x-gateway-step-replayed", b"true")


class FlakyJobs(MemoryJobStore):
    """A store that can be out of reach, or take nothing."""

    def __init__(self, wall: Callable[[], float]) -> None:
        super().__init__(wall)
        self.is_gone = self.is_full = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.kept: list[StoredStep] = []
        find, keep = self.runs.find_step, self.runs.keep_step

        async def find_step(*which: str) -> StoredStep | None:
            await asyncio.sleep(0)
            if self.is_gone:
                raise JobsUnavailable("gone")
            return await find(*which)

        async def keep_step(step: StoredStep, *, replaces: bool = False) -> StoredStep:
            await self.gate.wait()
            await asyncio.sleep(0)
            if self.is_gone or self.is_full:
                raise JobsUnavailable("full")
            self.kept.append(step)
            return await keep(step, replaces=replaces)

        self.runs.find_step, self.runs.keep_step = find_step, keep_step  # type: ignore[assignment, method-assign]  # as a wrapper


class RemoteStore(MemoryStore):
    """One that several processes share."""

    def __init__(self, wall: Callable[[], float]) -> None:
        super().__init__(BOUNDS, wall)
        self.is_local = False


def steps(*scripts: Script, jobs: JobStore | None = None, **fields: Any) -> tuple[Bench, FlakyJobs]:
    """A gateway with a store of jobs, or one more on the same store."""
    bench = Bench([ScriptedUpstream(*scripts)], **fields)
    store = FlakyJobs(bench.clock.wall) if jobs is None else jobs

    async def opened() -> JobStore:
        return store

    bench.steps.kept.open = opened
    assert isinstance(store, FlakyJobs)
    return bench, store


def step(
    name: str = "extract", text: str = "hello", *, run: str = "r1", reruns: bool = False, **fields: Any
) -> dict[str, Any]:
    """A call that is this step."""
    return {**named(name, run, reruns=reruns), **asking(text, temperature=None, **fields)}


def named(name: str, run: str = "r1", *, reruns: bool = False) -> dict[str, Any]:
    return {"part": RunPart("", run, name, OTHERS, None, step=StepRequest(run, name, reruns))}


async def test_a_step_is_paid_for_once() -> None:
    """The second time it gets the same bytes, at no cost, past limits and providers; another step and run do not."""
    bench, _ = steps(whole(), whole(), whole())
    first, body = await bench.serve(**step())
    second, again = await bench.serve(**step())
    assert (body, again, second.status) == (ANSWER, ANSWER, 200)
    assert REPLAYED not in first.headers
    assert REPLAYED in second.headers
    assert dict(second.headers)[b"x-gateway-cost-usd"] == b"0.00000000"
    assert dict(second.headers)[b"content-type"] == b"application/json"
    assert sent(bench) == 1

    await bench.serve(**step("check"))
    await bench.serve(**step(run="r2"))
    assert sent(bench) == 3
    costs = [record.cost_usd for record in bench.meter.accounts]
    assert [bool(cost) for cost in costs] == [True, False, True, True]


async def test_what_is_kept_of_a_step_is_what_it_cost() -> None:
    bench, jobs = steps(whole())
    await bench.serve(**step())
    found = await jobs.runs.find("web", "r1")
    assert found is not None
    (about,) = found[1]
    assert (about.model, about.target, about.status, about.cost_usd) == ("m", "p0/m", 200, bench.account.cost_usd)
    assert about.usage is not None
    assert (about.usage.input, about.keep_until - about.created_at) == (1000, 7 * 86_400)


async def test_another_question_is_refused_or_run_again() -> None:
    """What is run again takes the place of what was there; whoever asks that again gets it."""
    bench, _ = steps(whole(), whole(b'{"choices": [{"message": {}}], "new": 1}'))
    await bench.serve(**step())
    with pytest.raises(StepChanged) as refusal:
        await bench.serve(**step(text="another"))
    assert (refusal.value.status, refusal.value.code, refusal.value.param) == (422, "step_changed", "x-gateway-step")

    _, body = await bench.serve(**step(text="another", reruns=True))
    reply, again = await bench.serve(**step(text="another", reruns=True))
    assert (b'"new"' in body, again == body, REPLAYED in reply.headers, sent(bench)) == (True, True, True, 2)
    with pytest.raises(StepChanged):
        await bench.serve(**step())


async def test_twins_share_one_call() -> None:
    """Those with another question do not wait for its end; those who would run it again do."""
    gate, script = gated(script=whole())
    bench, _ = steps(script, whole(b'{"choices": [{"message": {}}], "new": 1}'))
    twins = [await begin(bench, **step()) for _ in range(3)]
    other = await begin(bench, **step(text="another"))
    rerun = await begin(bench, **step(text="another", reruns=True))
    with pytest.raises(StepChanged):
        await other
    assert sent(bench) == 1
    gate.set()
    replies = await asyncio.gather(*twins)
    assert {body for _, body in replies} == {ANSWER}
    assert [REPLAYED in reply.headers for reply, _ in replies] == [False, True, True]
    assert b'"new"' in (await rerun)[1]
    assert (sent(bench), len(bench.steps._flights)) == (2, 0)


async def test_who_leaves_stops_nothing_that_is_paid_for() -> None:
    """The call goes on and is kept, before and after its first byte; the next one gets it."""
    for script in (whole(), streamed(*EVENTS)):
        gate, held = gated(*script.chunks, script=script)  # type: ignore[arg-type]  # they are bytes
        bench, jobs = steps(held)
        asked = step(stream=script.headers != whole().headers)
        serving = await begin(bench, **asked)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        gate.set()
        await turns(60)
        assert len(jobs.kept) == 1
        reply, _ = await bench.serve(**asked)
        assert (REPLAYED in reply.headers, sent(bench)) == (True, 1)
        assert outcomes(bench) == ["client_gone", "ok"]


async def test_a_stream_ends_once_it_is_kept() -> None:
    """It comes as it is made, but for its last event; again it is the same bytes, in one piece."""
    bench, jobs = steps(streamed(*EVENTS))
    jobs.gate.clear()
    reply = await bench.pipeline.handle(bench.call(**step(stream=True)))
    assert reply.chunks is not None
    await turns()
    got = [await anext(reply.chunks)]
    rest = asyncio.ensure_future(_all(reply))
    await turns()
    assert (b"".join(got), rest.done()) == (b"".join(EVENTS[:3]), False)
    jobs.gate.set()
    assert (await rest, len(jobs.kept)) == ([EVENTS[3]], 1)
    again, body = await bench.serve(**step(stream=True))
    assert (body, REPLAYED in again.headers, sent(bench)) == (STREAM, True, 1)


async def _all(reply: Any) -> list[bytes]:
    return [chunk async for chunk in reply.chunks]


async def test_bytes_without_an_end_of_their_own_are_kept_before_the_last_of_them() -> None:
    """A voice has no last event: its last piece waits."""
    bench, jobs = steps(Script(200, ((b"content-type", b"audio/mpeg"),), [b"one", b"two", b"three"]))
    jobs.gate.clear()
    reply = await bench.pipeline.handle(bench.call(endpoint=SPEECH, **named("say")))
    assert reply.chunks is not None
    await turns()
    got = await anext(reply.chunks)
    assert got == b"onetwo"
    jobs.gate.set()
    assert b"".join([got, *await _all(reply)]) == b"onetwothree"
    assert jobs.kept[0].body == b"onetwothree"


async def test_only_what_would_be_the_same_again_is_kept() -> None:
    """Errors of the provider's, and streams that break off, are run again; a bad request is not."""
    bench, jobs = steps(failed(), whole(b"{}", 500), streamed(EVENTS[1], Broken("cut")), whole(BAD, 400))
    for _ in range(2):
        with pytest.raises(GatewayError):
            await bench.serve(**step())
    await bench.serve(**step(stream=True))  # its end tells of the break
    assert (jobs.kept, outcomes(bench)[-1] == "ok") == ([], False)
    reply, body = await bench.serve(**step(stream=True))
    again, same = await bench.serve(**step(stream=True))
    assert (reply.status, again.status, body == same, REPLAYED in again.headers) == (400, 400, True, True)
    assert sent(bench) == 4


async def test_without_a_store_nothing_is_paid() -> None:
    """Out of reach, not written to the last time, or not there at all."""
    bench, jobs = steps(whole())
    jobs.is_gone = True
    with pytest.raises(JobsUnavailable, match="nothing was asked"):
        await bench.serve(**step())
    jobs.is_gone, jobs.is_well = False, False
    with pytest.raises(JobsUnavailable, match="without 'x-gateway-step'"):
        await bench.serve(**step())
    bench.steps.kept.open = None
    with pytest.raises(JobsOff):
        await bench.serve(**step())
    assert sent(bench) == 0
    assert outcomes(bench) == ["jobs_unavailable", "jobs_unavailable", "jobs_off"]


async def test_an_answer_that_cannot_be_kept_is_held_and_not_given() -> None:
    """Its client is told so in time; it is given, and not paid for again, as soon as it is kept."""
    bench, jobs = steps(whole(), streamed(*EVENTS))
    jobs.is_full = True
    with pytest.raises(JobsUnavailable, match="held here"):
        await bench.serve(**step())
    reply = await bench.pipeline.handle(bench.call(**step("stream", stream=True)))
    with pytest.raises(JobsUnavailable, match="held here"):
        await _all(reply)
    with pytest.raises(JobsUnavailable, match="held here"):
        await bench.serve(**step())
    jobs.is_full = False
    for asked, body in ((step(), ANSWER), (step("stream", stream=True), STREAM)):
        reply, again = await bench.serve(**asked)
        assert (again, REPLAYED in reply.headers) == (body, True)
    await turns(200)
    assert (sent(bench), bench.steps.kept._held) == (2, {})


async def test_an_answer_that_is_too_large_is_not_paid_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or streamed: it cannot be kept, so it is not given, and that is known of the step."""
    monkeypatch.setattr("gateway.features.runs.steps.MOST_BYTES", 60)
    monkeypatch.setattr("gateway.features.runs.steps.MOST_BYTES", 60)
    bench, _ = steps(whole(), streamed(*EVENTS))
    for name in ("whole", "streamed"):
        for attempt in range(2):
            with pytest.raises((StepTooLarge, StreamBroken)) as refusal:
                await bench.serve(**step(name, stream=name == "streamed"))
            assert isinstance(refusal.value, StepTooLarge) or attempt == 0
    assert sent(bench) == 2


async def test_a_cached_answer_is_kept_as_the_step_at_no_cost() -> None:
    """And from then on it is the step's, whatever becomes of the cache."""
    bench, jobs = steps(whole(), caching=Caching(exact=ExactRule("always", ttl_s=60)))
    await bench.serve(**asking())
    reply, _ = await bench.serve(**asking(), **named("extract"))
    assert (dict(reply.headers)[b"x-gateway-cache"], REPLAYED in reply.headers) == (b"hit", False)
    assert (jobs.kept[0].about.cost_usd, sent(bench)) == (0.0, 1)


# --- several processes ---


class PassingClock(FakeClock):
    """Whoever sleeps lets what is due on the way happen."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)


def two(*scripts: Script) -> tuple[Bench, Bench, FlakyJobs]:
    """Two gateways on one store of claims and one of jobs, on one clock."""
    clock = PassingClock()
    store = RemoteStore(clock.wall)
    one, jobs = steps(*scripts, store=store, clock=clock)
    other, _ = steps(*scripts, store=store, clock=clock, jobs=jobs)
    return one, other, jobs


async def test_twins_at_two_gateways_are_paid_for_once() -> None:
    """The other one waits until the answer is kept, and gives it; another question is refused meanwhile."""
    gate, script = gated(script=whole())
    one, other, _ = two(script)
    serving = await begin(one, **step())
    waiting = await begin(other, **step(), deadline=one.clock.now + 10_000)
    with pytest.raises(StepChanged):
        await other.serve(**step("extract", "another"))
    gate.set()
    (first, body), (second, same) = await asyncio.gather(serving, waiting)
    assert (body == same, REPLAYED in first.headers, REPLAYED in second.headers) == (True, False, True)
    assert (sent(one), sent(other)) == (1, 0)


async def test_whoever_waits_for_another_gateway_is_told_at_its_deadline() -> None:
    _, script = gated(script=whole())
    one, other, _ = two(script)
    serving = await begin(one, **step(), deadline=one.clock.now + 10_000)
    with pytest.raises(StepRunning) as refusal:
        await other.serve(**step(), deadline=other.clock.now + 2)
    assert (refusal.value.status, sent(other)) == (409, 0)
    serving.cancel()


async def test_a_step_whose_gateway_died_is_run_again_once_its_claim_ends() -> None:
    """Paid for at most once more; the dead one's late answer gives way to the first that was kept."""
    gate, script = gated(script=whole())
    one, other, jobs = two(script, whole(b'{"choices": [{"message": {}}], "mine": 1}'))
    other.upstreams[0].scripts = other.upstreams[0].scripts[1:]
    stalled = await begin(one, **step())
    one.clock.timers.clear()  # it renews nothing any more
    _, body = await other.serve(**step(), deadline=one.clock.now + 10_000, id="req_2")
    assert (b'"mine"' in body, sent(other)) == (True, 1)
    gate.set()
    _, late = await stalled
    assert (late == body, len(jobs.kept)) == (True, 2)


async def test_steps_that_run_are_awaited_at_the_end() -> None:
    """Also those whose clients have left; what takes too long is stopped."""
    gate, script = gated(script=whole())
    bench, jobs = steps(script, replace(gated(script=whole())[1]))
    serving = await begin(bench, **step())
    serving.cancel()
    draining = asyncio.ensure_future(bench.steps.drain(5.0))
    await turns()
    gate.set()
    await draining
    assert len(jobs.kept) == 1
    hanging = await begin(bench, **step("hangs"))
    await bench.steps.drain(0.0)
    with pytest.raises((GatewayError, StreamBroken)):
        await hanging
    assert len(jobs.kept) == 1


async def test_a_held_answer_is_the_last_word_of_its_step() -> None:
    """What is kept as yet is that of the question before; what was paid for since is not paid for again."""
    clock = HaltingClock()
    bench, jobs = steps(whole(), whole(b'{"choices": [{"message": {}}], "new": 1}'), clock=clock)
    await bench.serve(**step())
    clock.halted, jobs.is_full = bench.steps.kept._tasks, True
    asked = step(text="another", reruns=True)
    with pytest.raises(JobsUnavailable, match="held here"):
        await bench.serve(**asked)
    jobs.is_full = False
    reply, body = await bench.serve(**asked)
    assert (b'"new"' in body, REPLAYED in reply.headers, sent(bench)) == (True, True, 2)
    await bench.steps.kept.aclose()


class HaltingClock(FakeClock):
    """Some tasks that sleep do so for ever."""

    halted: Collection[asyncio.Task[None]] = ()

    async def sleep(self, seconds: float) -> None:
        if asyncio.current_task() in self.halted:
            await asyncio.Event().wait()
        self.now += seconds


async def test_a_held_answer_gives_its_claim_back_once_it_is_kept() -> None:
    """However often it was asked for meanwhile: another gateway may then run the step for another question."""
    one, other, jobs = two(whole(), whole())
    jobs.is_full = True
    for _ in range(2):
        with pytest.raises(JobsUnavailable):
            await one.serve(**step())
    jobs.is_full = False
    await turns(50)
    assert one.steps.kept._held == {}
    assert REPLAYED in (await other.serve(**step()))[0].headers
    await other.serve(**step(text="another", reruns=True), deadline=other.clock.now + 10)
    assert (sent(one), sent(other)) == (1, 1)


async def test_what_is_not_what_it_should_be_is_given_and_not_kept() -> None:
    """A policy may let an answer pass that fits no schema; the step is none to build on."""
    bench, jobs = steps(whole(), whole())
    for _ in range(2):
        call = bench.call(**step())
        INVALID_ANSWER.put(call, True)
        await bench.pipeline.handle(call)
    assert (sent(bench), jobs.kept) == (2, [])
