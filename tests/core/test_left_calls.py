"""Calls that are left before their answer: charged what may have been spent by then, and not what was reserved."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from gateway.core.snapshot import Key, Rates
from gateway.core.telemetry import JsonLines
from gateway.core.types import ErrorClass, Phase, UpstreamFailed, Usage
from tests.core.test_hedge import Track, turns
from tests.support.flow import ANSWER, JSON, SPEECH, Bench, Broken, Script, ScriptedUpstream, streamed, whole

KEY = Key("team", "team", b"", budget_usd_per_day=1000.0)
RATES = Rates(input_usd=0.001, output_usd=0.01, cached_input_usd=0.001)


async def leave(stage: Bench, after_s: float, **changes: object) -> float:
    """A call whose client leaves while it waits for the answer; returns what its key had reserved."""
    call = stage.call(key=KEY, **changes)
    serving = asyncio.ensure_future(stage.pipeline.handle(call))
    await turns()
    assert call.reserved is not None
    reserved_usd = call.reserved.usd
    stage.clock.advance(after_s)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    return reserved_usd


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("after_s", "max_tokens", "output"),
    [(0.02, None, 20), (0.02, 50, 20), (0.1, 50, 50), (60.0, None, 512), (60.0, 10_000, 512)],
)
async def test_a_call_that_is_left_costs_what_may_have_been_generated(
    stream: bool, after_s: float, max_tokens: int | None, output: int
) -> None:
    """A usual answer, if there was time for it; the rest of what was reserved is given back, and the log says why."""
    waits = Script(200, (JSON,), [asyncio.Event()])
    stage = Bench([ScriptedUpstream(waits)], keys=[KEY], rates=RATES)

    reserved_usd = await leave(stage, after_s, max_tokens=max_tokens, stream=stream)

    usd = 0.003 + output * 0.01
    assert stage.account.usage == Usage(3, output, estimated=True)
    assert stage.account.cost_usd == pytest.approx(usd)
    assert stage.account.retries_usd == 0.0
    assert stage.admission.budgets._spent("team") == pytest.approx(usd)
    assert usd < reserved_usd
    line = orjson.loads(JsonLines({}).line(0.0, stage.account))
    assert (line["cost_usd"], line["usage_estimated"], line["cost_estimated"]) == (pytest.approx(usd), True, "left")


@pytest.mark.parametrize(("reports", "input_tokens"), [(0, 10), (9, 20)])
async def test_a_call_is_estimated_alike_before_its_answer_and_behind_it(reports: int, input_tokens: int) -> None:
    """As admission does, and as corrected by what the provider has reported of others: here, twice as much."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"FINE"}}]}\n\n'
    body = b'{"model":"m","messages":[{"role":"user","content":"hello there"}]}'
    scripts = [
        Script(200, (JSON,), [asyncio.Event()]),
        streamed(event, Broken("reset")),
        whole(b'{"choices":[{"message":{"content":"FINE"},"finish_reason":"stop"}]}'),
    ]
    for number, script in enumerate(scripts):
        stage = Bench([ScriptedUpstream(script)], keys=[KEY], rates=RATES)
        (target,) = stage.policy.models["m"].plan
        for _ in range(reports):
            stage.admission.gates.line(target, stage.call()).gate.calibration.observe(10, 20, 1)
        if number:
            await stage.serve(key=KEY, body=body, stream=number == 1)
        else:
            await leave(stage, 0.001, body=body)
        assert stage.account.usage == Usage(input_tokens, 1, estimated=True)


async def test_an_attempt_that_fails_costs_what_may_have_been_generated_by_then() -> None:
    """A connection that is reset at once has brought its provider no time for an answer: an outage spends no budget."""
    reset = Script(fails=UpstreamFailed(ErrorClass.CONNECTION, Phase.SENT, "reset"))
    stage = Bench([ScriptedUpstream(reset), ScriptedUpstream(whole())], keys=[KEY], rates=RATES)

    await stage.serve(key=KEY)

    assert len(stage.account.call.attempts) == 2
    assert stage.account.retries_usd == pytest.approx(0.003)
    assert stage.account.estimated_retries_usd == pytest.approx(0.003)


async def test_speech_that_is_left_before_it_came_is_marked_as_estimated() -> None:
    """Its price is certain, by the characters; whether its provider made any of it is not."""
    rates = Rates(0.0, 0.0, 0.0, character_usd=0.01, prices_tokens=False)
    stage = Bench([ScriptedUpstream(Script(200, (JSON,), [asyncio.Event()]))], keys=[KEY], rates=rates)

    await leave(stage, 0.02, endpoint=SPEECH, body=b'{"model": "m", "input": "hello"}')

    assert stage.account.cost_usd == pytest.approx(0.05)
    line = orjson.loads(JsonLines({}).line(0.0, stage.account))
    assert (line["usage_estimated"], line["cost_estimated"]) == (True, "left")


async def test_a_call_that_is_left_teaches_nothing_of_answers() -> None:
    """Its tokens are a guess."""
    waits = Script(200, (JSON,), [asyncio.Event()])
    stage = Bench([ScriptedUpstream(waits)], keys=[KEY], rates=RATES)
    (target,) = stage.policy.models["m"].plan
    calibration = stage.admission.gates.line(target, stage.call()).gate.calibration

    await leave(stage, 60.0)

    assert (calibration.count, calibration.answers_seen) == (0, 0)


async def test_an_answer_that_nobody_waits_for_costs_what_it_says() -> None:
    """Two attempts are answered at once: one answer is taken, and both say what they have used."""
    track = Track()
    serving = await track.begin()
    await track.late()
    for wire in track.wires:
        wire.answer(body=ANSWER)
    await serving

    assert [attempt.cost_usd for attempt in track.ledger] == [pytest.approx(1000 * 2e-6 + 10 * 8e-6)] * 2
    track.nothing_is_left()
