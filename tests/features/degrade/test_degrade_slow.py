"""Calls of a slow model: lowered on their way out, said in a header, fingerprinted as they came, and kept nowhere."""

from __future__ import annotations

import asyncio

import orjson

from gateway.core.snapshot import with_settings
from gateway.features.degrade.rules import DEGRADE, LatencyRules
from gateway.features.degrade.service import SlowModels
from gateway.features.reuse.rules import Caching
from tests.features.test_sdk_retries import begin, gated
from tests.support.flow import Bench, ScriptedUpstream, whole

RULES = LatencyRules(10.0, {"reasoning_effort": "low", "max_completion_tokens": 512})
BODY = b'{"model": "m", "temperature": 0, "reasoning_effort":"high", "messages": []}'


def test_a_slow_model_is_asked_for_less_until_it_is_well_below_again() -> None:
    calls = 8
    bench = Bench([ScriptedUpstream(*[whole()] * calls)], caching=Caching())
    model = with_settings(bench.policy.models["m"], {DEGRADE: RULES})
    seen: list[tuple[bytes | None, int]] = []

    async def call() -> None:
        reply, _ = await bench.serve(model=model, body=BODY)
        sent = bench.upstreams[0].sent[-1].body
        assert isinstance(sent, bytes)
        seen.append(
            (dict(reply.headers).get(b"x-gateway-degraded"), orjson.loads(sent).get("max_completion_tokens", 0))
        )

    async def story() -> None:
        latency = bench.admission.gates.line(model.targets[0], bench.call()).gate.health.whole_answer
        plain, lowered = (None, 0), (b"reasoning_effort, max_completion_tokens", 512)
        await call()
        for at_s, expected in ((12.0, lowered), (9.0, lowered), (5.0, plain), (9.0, plain), (12.0, lowered)):
            for _ in range(2000):
                latency.observe(at_s, bench.clock.now)
            bench.clock.now += 2
            await call()
            assert seen[-1] == expected, at_s
        bench.clock.now += 400
        await call()
        assert seen[-1] == plain, "what was long ago tells nothing of now"

    asyncio.run(story())
    counted = bench.product(SlowModels).metrics.degraded.totals
    assert dict(counted) == {("m",): sum(header is not None for header, _ in seen)}


async def test_the_retry_of_a_lowered_call_is_known_by_what_its_client_sent() -> None:
    """The model becomes slow between the two, so only one of them is lowered: they are the same call all the same."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)], caching=Caching())
    model = with_settings(bench.policy.models["m"], {DEGRADE: RULES})

    first = await begin(bench, model=model, body=BODY)
    latency = bench.admission.gates.line(model.targets[0], bench.call()).gate.health.whole_answer
    for _ in range(2000):
        latency.observe(12.0, bench.clock.now)
    bench.clock.now += 2
    again = await begin(bench, model=model, body=BODY, sdk_retry=1)
    gate.set()

    assert (await first)[1] == (await again)[1]
    assert len(bench.upstreams[0].sent) == 1


async def test_the_retry_of_a_lowered_call_learns_that_it_was_lowered() -> None:
    """It shares the answer, so it is told of it."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)], caching=Caching())
    model = with_settings(bench.policy.models["m"], {DEGRADE: RULES})
    latency = bench.admission.gates.line(model.targets[0], bench.call()).gate.health.whole_answer
    for _ in range(2000):
        latency.observe(12.0, bench.clock.now)
    bench.clock.now += 2

    first = await begin(bench, model=model, body=BODY)
    again = await begin(bench, model=model, body=BODY, sdk_retry=1)
    gate.set()

    for reply, _ in (await first, await again):
        degraded = [value for name, value in reply.headers if name == b"x-gateway-degraded"]
        assert degraded == [b"reasoning_effort, max_completion_tokens"]
