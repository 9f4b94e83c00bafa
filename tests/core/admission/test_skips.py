"""Targets that a call goes past: its headers, its log line and a metric say which, and why."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.call import Reply
from gateway.core.errors import CircuitOpen, GatewayError, QuotaExhausted, WaitTooLong
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.limit_table import Limits
from gateway.core.openai.bodies import Capabilities
from gateway.core.retry import FIRST_SHOWN, LAST_SHOWN, Attempt, shown
from gateway.core.telemetry import CallLog, JsonLines, Telemetry
from gateway.core.types import LANES, Skip
from tests.core.admission.test_admission import QUOTA, headers, pass_time, slow_down, start
from tests.core.test_hedge import Track
from tests.core.test_suspects import calls, silence
from tests.support.flow import Bench, ScriptedUpstream, failed, streamed, whole
from tests.support.outage import City, Provider, answers
from tests.support.targets import target_named
from tests.support.virtual import LoopClock, run

ONE, TWO = Limits(requests_per_min=1), Limits(requests_per_min=2)
IMPATIENT = BreakerRules(hold_for_s=dict.fromkeys(LANES, 0.0))
TOOLS = b'{"model":"m","messages":[],"tools":[{"type":"function","function":{"name":"f"}}]}'


def bench(*upstreams: ScriptedUpstream, **fields: Any) -> Bench:
    return Bench([*upstreams], **fields)


def answering(times: int = 3) -> ScriptedUpstream:
    return ScriptedUpstream(*[whole()] * times)


def trail(reply: Reply) -> str:
    return dict(reply.headers)[b"x-gateway-attempts"].decode()


def logged(bench: Bench) -> dict[str, Any]:
    """The log line of the last call."""
    line: dict[str, Any] = orjson.loads(JsonLines({}).line(0.0, bench.meter.accounts[-1]))
    return line


async def refused(bench: Bench, **changes: object) -> GatewayError:
    with pytest.raises(GatewayError) as refusal:
        await bench.serve(**changes)
    return refusal.value


async def test_a_call_that_goes_past_nothing_says_nothing_of_it() -> None:
    town = bench(answering(), answering())
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:200"
    assert "skipped" not in logged(town)
    assert town.account.call.skips is None


async def test_a_drained_target_is_named_before_the_one_that_serves() -> None:
    town = bench(answering(), answering())
    town.admission.health.force("p0/m", "drained")
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:skipped(drained) p1/m:200"
    assert logged(town)["skipped"] == [{"target": "p0/m", "reason": "drained"}]
    assert logged(town)["attempts"] == ["p1/m:200"]
    assert logged(town)["failures"] == []


async def test_a_stream_says_it_as_well() -> None:
    events = [b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n', b"data: [DONE]\n\n"]
    town = bench(answering(), ScriptedUpstream(streamed(*events)))
    town.admission.health.force("p0/m", "drained")
    reply, _ = await town.serve(stream=True)
    assert trail(reply) == "p0/m:skipped(drained) p1/m:200"
    assert logged(town)["skipped"] == [{"target": "p0/m", "reason": "drained"}]


async def test_only_targets_before_the_chosen_one_are_named() -> None:
    town = bench(answering(), answering(), answering())
    town.admission.health.force("p2/m", "drained")
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:200"


async def test_an_open_breaker() -> None:
    town = bench(answering(), answering())
    town.admission.health.force("p0/m", "open")
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:skipped(open) p1/m:200"


async def test_a_drained_account() -> None:
    town = bench(answering(), answering())
    town.admission.health.force("p0", "drained")
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:skipped(drained) p1/m:200"


async def test_an_account_whose_credential_was_refused() -> None:
    town = bench(ScriptedUpstream(whole(b"{}", 401)), answering())
    await town.serve()
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:skipped(credential_refused) p1/m:200"


async def test_a_full_limit() -> None:
    town = bench(answering(), answering(), limits=[ONE])
    await town.serve()
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:skipped(requests_per_min) p1/m:200"


async def test_a_full_limit_of_tokens() -> None:
    town = bench(answering(), answering(), limits=[Limits(tokens_per_min=1500)])
    await town.serve()
    reply, _ = await town.serve(body=b'{"model":"m","messages":[{"role":"user","content":"' + b"long " * 1000 + b'"}]}')
    assert trail(reply) == "p0/m:skipped(tokens_per_min) p1/m:200"


async def test_all_slots_taken() -> None:
    hanging = asyncio.Event()
    town = bench(ScriptedUpstream(streamed(b"data: {}\n\n", hanging)), answering(), limits=[Limits(max_concurrency=1)])
    first = await start(town, stream=True)
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:skipped(concurrency) p1/m:200"
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_spent_quota() -> None:
    town = bench(ScriptedUpstream(whole(QUOTA, 429)), answering())
    first, _ = await town.serve()
    assert trail(first) == "p0/m:429(0.0s) p1/m:200"
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:skipped(quota_spent) p1/m:200"


async def test_a_paused_target() -> None:
    town = bench(ScriptedUpstream(slow_down(20)), answering())
    await town.serve()
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:skipped(paused) p1/m:200"


async def test_a_target_without_what_the_call_needs() -> None:
    town = bench(answering(), answering(), capabilities=[Capabilities(tools=False)])
    reply, _ = await town.serve(body=TOOLS)
    assert trail(reply) == "p0/m:skipped(unsupported) p1/m:200"
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:200"


async def test_a_later_target_without_it_is_not_named() -> None:
    town = bench(answering(), answering(), capabilities=[Capabilities(), Capabilities(tools=False)])
    reply, _ = await town.serve(body=TOOLS)
    assert trail(reply) == "p0/m:200"


async def test_fallbacks_that_are_skipped() -> None:
    town = bench(
        *[answering() for _ in range(4)], fallbacks=3, capabilities=[Capabilities()] * 2 + [Capabilities(tools=False)]
    )
    for name in ("p0/m", "p1/m"):
        town.admission.health.force(name, "drained")
    reply, _ = await town.serve(body=TOOLS)
    assert trail(reply) == "p0/m:skipped(drained) p1/m:skipped(drained) p2/m:skipped(unsupported) p3/m:200"


async def test_what_is_skipped_after_a_failure_stands_behind_it() -> None:
    town = bench(ScriptedUpstream(failed()), answering(), answering())
    town.admission.health.force("p1/m", "drained")
    reply, _ = await town.serve()
    assert trail(reply) == "p0/m:connection(0.0s) p1/m:skipped(drained) p2/m:200"


async def test_an_error_that_ends_the_call_skips_nobody() -> None:
    town = bench(
        ScriptedUpstream(whole(b'{"error": {"message": "bad", "type": "invalid_request_error"}}', 400)), answering()
    )
    town.admission.health.force("p1/m", "drained")
    reply, _ = await town.serve()
    assert (reply.status, trail(reply)) == (400, "p0/m:400(0.0s)")


@pytest.mark.parametrize(
    ("limits", "told"), [([ONE, ONE], b"p0/m:200"), ([ONE, TWO], b"p0/m:skipped(requests_per_min) p1/m:200")]
)
async def test_who_waits_for_a_target_and_gets_it_has_not_skipped_it(limits: list[Limits], told: bytes) -> None:
    """Both are full, and the one that frees first serves."""
    town = bench(answering(), answering(), limits=limits)
    for _ in range(3 if TWO in limits else 2):
        await town.serve()
    task = await start(town, deadline=town.clock.now + 90)
    await pass_time(town, 70)
    assert headers(task)[b"x-gateway-attempts"] == told
    assert ("skipped" in logged(town)) is (b"skipped" in told)


async def test_who_is_refused_hears_of_each_target() -> None:
    town = bench(answering(), answering(), limits=[ONE])
    await town.serve()
    town.admission.health.force("p1/m", "drained")
    refusal = await refused(town, deadline=town.clock.now + 1)
    assert isinstance(refusal, WaitTooLong)
    assert refusal.message.endswith(" Skipped: p0/m (requests_per_min), p1/m (drained).")
    assert logged(town)["skipped"] == [
        {"target": "p0/m", "reason": "requests_per_min"},
        {"target": "p1/m", "reason": "drained"},
    ]
    assert logged(town)["attempts"] == []


async def test_no_target_is_in_service() -> None:
    town = bench(answering(), answering(), breaker=IMPATIENT)
    town.admission.health.force("p0/m", "open")
    town.admission.health.force("p1/m", "drained")
    refusal = await refused(town)
    assert isinstance(refusal, CircuitOpen)
    assert [one["reason"] for one in logged(town)["skipped"]] == ["open", "drained"]


async def test_every_quota_is_spent() -> None:
    town = bench(ScriptedUpstream(whole(QUOTA, 429)), ScriptedUpstream(whole(QUOTA, 429)))
    await town.serve()
    refusal = await refused(town)
    assert isinstance(refusal, QuotaExhausted)
    assert refusal.message.endswith(" Skipped: p0/m (quota_spent), p1/m (quota_spent).")


async def test_a_hedge_names_whom_it_went_past() -> None:
    track = Track(wires=3)
    track.bench.admission.health.force("p1/m", "drained")
    serving = await track.begin()
    await track.late()
    track.bench.clock.advance(0.5)
    track.wires[2].answer()
    reply, _ = await serving
    assert trail(reply) == "p0/m:cancelled(2.0s) p1/m:skipped(drained) p2/m:200"


def test_a_call_that_moves_names_whom_it_went_past() -> None:
    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(0.5)), Provider(answers(0.5))], clock)
        city.bench.admission.health.force("p1/m", "drained")
        (told,) = await calls(city, 1, 1.0)
        assert told.result == 200
        call = city.bench.account.call
        assert [attempt.target.name for attempt in call.attempts] == ["p0/m", "p2/m"]
        assert call.skips == {"p1/m": Skip("p1/m", "drained", 1)}
        await city.settle()

    run(story)


async def test_a_metric_counts_them() -> None:
    town = bench(answering(), answering())
    telemetry = Telemetry(CallLog(io.StringIO(), "json"), lambda: 0.0)
    town.admission.health.force("p0/m", "drained")
    await town.serve()
    telemetry.began()
    telemetry.settled(town.account)
    telemetry.flush()
    value = telemetry.registry.get_sample_value("gateway_target_skips_total", {"target": "p0/m", "reason": "drained"})
    assert value == 1


@given(st.integers(0, 40), st.lists(st.integers(0, 40), max_size=60))
def test_the_trail_has_all_in_order_and_is_bounded(made: int, after: list[int]) -> None:
    attempts = [Attempt(target_named(f"a{number}"), 0.0, status=200) for number in range(made)]
    skips = {f"s{number}": Skip(f"s{number}", "open", min(at, made)) for number, at in enumerate(sorted(after))}
    words = shown(attempts, ",", skips).split(",")
    if made + len(after) > FIRST_SHOWN + LAST_SHOWN:
        assert len(words) == FIRST_SHOWN + LAST_SHOWN + 1
        assert words[FIRST_SHOWN] == f"({made + len(after) - FIRST_SHOWN - LAST_SHOWN} more)"
        return
    assert [word for word in words if word.startswith("a")] == [str(one) for one in attempts]
    assert [word for word in words if word.startswith("s")] == [str(one) for one in skips.values()]
    for skip in skips.values():
        assert sum([word.startswith("a") for word in words[: words.index(str(skip))]]) == skip.after
