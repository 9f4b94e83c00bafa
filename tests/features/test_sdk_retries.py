"""An SDK's own retry of a call that is still running gets that call's answer; nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import Reply
from gateway.core.errors import DeadlineExceeded, NoTargetAvailable
from gateway.core.intake import Serving as Serving_
from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Key
from gateway.core.types import ErrorClass, StreamedBody
from gateway.features.sdk_retries import RepeatedCalls
from tests.support.flow import ANSWER, JSON, SPEECH, Bench, Script, ScriptedUpstream, failed, streamed

ERROR = b'{"error": {"message": "no", "type": "x", "param": null, "code": "y"}}'
STREAM = (b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', b"data: [DONE]\n\n")
Serving = asyncio.Task[tuple[Reply, bytes]]


def gated(status: int = 200, body: bytes = ANSWER) -> tuple[asyncio.Event, Script]:
    """An answer that comes when the event is set."""
    gate = asyncio.Event()
    return gate, Script(status, (JSON,), [gate, body])


async def begin(bench: Bench, **changes: object) -> Serving:
    """A call begins, and is as far as it gets by itself."""
    serving = asyncio.ensure_future(bench.serve(**changes))
    await turns()
    return serving


async def turns(count: int = 12) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def nobody_runs(bench: Bench) -> bool:
    running = bench.product(RepeatedCalls)
    assert running is not None
    return not any(running._buckets) and not running._ends and len(asyncio.all_tasks()) == 1


async def test_an_upload_that_nobody_reads_repeats_no_other() -> None:
    """Two files under way look alike here; the second must not get the answer of the first."""

    async def pieces(file: bytes) -> AsyncGenerator[bytes, None]:
        yield file

    _, script = gated()
    bench = Bench([ScriptedUpstream(script, gated()[1])])

    first = await begin(bench, id="req_1", body=StreamedBody(3, pieces(b"one")))
    again = await begin(bench, id="req_2", body=StreamedBody(3, pieces(b"two")), sdk_retry=1)

    assert len(bench.upstreams[0].sent) == 2
    for serving in (first, again):
        serving.cancel()
    await asyncio.gather(first, again, return_exceptions=True)


async def test_a_retry_gets_the_answer_of_the_call_it_repeats() -> None:
    """One request goes upstream; the answer has the retry's own id and no cost."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])

    first = await begin(bench, id="req_1")
    again = await begin(bench, id="req_2", sdk_retry=1)
    gate.set()
    (reply, body), (repeated, same) = await first, await again

    headers = dict(repeated.headers)
    assert (repeated.status, same) == (reply.status, body) == (200, ANSWER)
    assert headers[b"x-gateway-request-id"] == headers[b"x-request-id"] == b"req_2"
    assert headers[b"x-gateway-cache"] == b"coalesced"
    assert headers[b"x-gateway-target"] == b"p0/m"
    assert headers[b"content-type"] == b"application/json"
    assert b"x-gateway-cost-usd" in dict(reply.headers)
    assert b"x-gateway-cost-usd" not in headers
    assert len(headers) == len(repeated.headers)
    assert len(bench.upstreams[0].sent) == 1
    assert [record.outcome for record in bench.meter.accounts] == ["ok", "ok"]
    assert bench.meter.accounts[1].cost_usd is None
    assert nobody_runs(bench)


async def test_waiting_for_another_is_no_overhead() -> None:
    """The time belongs to whoever answers."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])

    first = await begin(bench)
    again = await begin(bench, sdk_retry=1)
    bench.clock.advance(7)
    gate.set()
    await first
    reply, _ = await again

    assert dict(reply.headers)[b"x-gateway-queue-ms"] == b"7000"
    assert bench.meter.accounts[1].overhead_s == pytest.approx(0.0)


async def test_equal_calls_that_are_no_retries_stay_apart() -> None:
    """Whoever asks twice wants two answers."""
    gates, scripts = zip(*[gated() for _ in range(2)], strict=True)
    bench = Bench([ScriptedUpstream(*scripts)])

    calls = [await begin(bench) for _ in range(2)]
    for gate in gates:
        gate.set()
    await asyncio.gather(*calls)

    assert len(bench.upstreams[0].sent) == 2
    assert [record.outcome for record in bench.meter.accounts] == ["ok", "ok"]


OTHERS: dict[str, dict[str, object]] = {
    "key": {"key": Key("nightly", "nightly", b"")},
    "tenant": {"tenant": "web/other"},
    "credential": {"credential": b"Bearer sk-another"},
    "body": {"body": b'{"model":"m","messages":[{"role":"user","content":"?"}]}'},
    "body of the same length": {"body": b'{"model":"m","messages":{}}'},
    "path": {"path": "/completions"},
    "method": {"method": "PUT"},
    "query": {"query": b"api-version=2"},
    "header": {"headers": [(b"openai-beta", b"assistants=v2")]},
    "an earlier retry": {"sdk_retry": 0},
}


@pytest.mark.parametrize("difference", OTHERS)
async def test_another_call_is_never_attached(difference: str) -> None:
    """Who asks, and all that is asked, has to be the same, whatever the retry header says."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script, Script(200, (JSON,), [ANSWER]))])

    first = await begin(bench)
    await (await begin(bench, **{"sdk_retry": 1, **OTHERS[difference]}))
    assert not first.done()
    gate.set()
    await first

    assert len(bench.upstreams[0].sent) == 2


async def test_what_an_sdk_tells_of_itself_makes_no_difference() -> None:
    """It counts its retries, and may have another timeout by then."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])

    first = await begin(bench, headers=[(b"x-stainless-retry-count", b"0"), (b"openai-beta", b"b")])
    again = await begin(bench, headers=[(b"openai-beta", b"b"), (b"x-stainless-retry-count", b"1")], sdk_retry=1)
    gate.set()
    await asyncio.gather(first, again)

    assert len(bench.upstreams[0].sent) == 1


async def test_a_retry_gets_the_error_of_the_call_it_repeats() -> None:
    """A provider's own, with the word that there is no use in another one."""
    gate, script = gated(400, ERROR)
    bench = Bench([ScriptedUpstream(script)])

    first = await begin(bench)
    again = await begin(bench, sdk_retry=1)
    gate.set()
    await first
    reply, body = await again

    assert (reply.status, body) == (400, ERROR)
    assert (b"x-should-retry", b"false") in reply.headers
    assert [record.outcome for record in bench.meter.accounts] == [ErrorClass.BAD_REQUEST, ErrorClass.BAD_REQUEST]


async def test_a_retry_gets_our_error_too() -> None:
    """It is the same call: it fails as one."""
    gate, script = gated(200, b"<html>")
    bench = Bench([ScriptedUpstream(script)])

    first = await begin(bench)
    again = await begin(bench, sdk_retry=1)
    gate.set()
    await asyncio.wait([first, again])

    assert isinstance(first.exception(), NoTargetAvailable)
    assert isinstance(again.exception(), NoTargetAvailable)
    assert [record.outcome for record in bench.meter.accounts] == ["no_target_available"] * 2
    assert len(bench.upstreams[0].sent) == 1


async def test_a_defect_is_told_to_both() -> None:
    """Nobody waits for an answer that will never come."""
    gate = asyncio.Event()
    bench = Bench([ScriptedUpstream(Script(200, (JSON,), [gate, ZeroDivisionError()]))])

    first = await begin(bench)
    again = await begin(bench, sdk_retry=1)
    gate.set()
    await asyncio.wait([first, again])

    assert [type(one.exception()).__name__ for one in (first, again)] == ["InternalError"] * 2
    assert nobody_runs(bench)


async def test_a_retry_takes_over_when_the_first_is_left() -> None:
    """The first one's client was seen to leave at last: its attempt is given up, and the retry makes its own."""
    _, script = gated()
    bench = Bench([ScriptedUpstream(script, Script(200, (JSON,), [ANSWER]))])

    first = await begin(bench)
    again = await begin(bench, sdk_retry=1)
    first.cancel()
    reply, body = await again

    assert (reply.status, body) == (200, ANSWER)
    assert dict(reply.headers)[b"x-gateway-cache"] == b"bypass"
    assert [record.outcome for record in bench.meter.accounts] == ["client_gone", "ok"]
    assert script.closed
    assert nobody_runs(bench)


async def test_a_retry_that_leaves_takes_nobody_along() -> None:
    """And the next one may follow in its place."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])

    first = await begin(bench)
    again = await begin(bench, sdk_retry=1)
    again.cancel()
    await asyncio.wait([again])
    last = await begin(bench, sdk_retry=2)
    gate.set()
    await asyncio.gather(first, last)

    assert [record.outcome for record in bench.meter.accounts] == ["client_gone", "ok", "ok"]
    assert len(bench.upstreams[0].sent) == 1
    assert nobody_runs(bench)


async def test_the_retry_of_a_retry_follows_that_one() -> None:
    """All three get the one answer."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])

    calls = [await begin(bench, sdk_retry=count) for count in range(3)]
    gate.set()
    answers = await asyncio.gather(*calls)

    assert {body for _, body in answers} == {ANSWER}
    assert [record.outcome for record in bench.meter.accounts] == ["ok", "ok", "ok"]
    assert nobody_runs(bench)


async def test_equal_calls_are_repeated_one_by_one() -> None:
    """Two calls that asked the same got two answers; so do their retries."""
    gates, scripts = zip(*[gated(body=ANSWER + b" " * number) for number in range(2)], strict=True)
    bench = Bench([ScriptedUpstream(*scripts)])

    calls = [await begin(bench, sdk_retry=count) for count in (0, 0, 1, 1)]
    for gate in gates:
        gate.set()
    bodies = [body for _, body in await asyncio.gather(*calls)]

    assert len(set(bodies)) == 2
    assert bodies[:2] == bodies[2:]


async def test_a_retry_has_its_own_deadline() -> None:
    """The caller said how long: it does not wait for longer than that, and the first goes on."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])

    first = await begin(bench)
    again = await begin(bench, sdk_retry=1, deadline=bench.clock.now + 2, deadline_is_callers=True)
    bench.clock.advance(2.1)
    await asyncio.wait([again])
    gate.set()
    reply, _ = await first

    assert isinstance(again.exception(), DeadlineExceeded)
    assert reply.status == 200
    assert nobody_runs(bench)


async def test_a_lanes_deadline_does_not_end_what_has_begun() -> None:
    """As for any call: it says when the last attempt may start, and this one has."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])

    first = await begin(bench)
    again = await begin(bench, sdk_retry=1, deadline=bench.clock.now + 2)
    bench.clock.advance(5)
    gate.set()

    assert (await again)[1] == ANSWER
    await first


async def test_a_retry_of_what_has_ended_is_a_call_like_any_other() -> None:
    """Nothing is remembered of it."""
    scripts = [Script(200, (JSON,), [ANSWER]) for _ in range(2)]
    bench = Bench([ScriptedUpstream(*scripts)])

    await bench.serve()
    await bench.serve(sdk_retry=1)

    assert len(bench.upstreams[0].sent) == 2
    assert nobody_runs(bench)


async def test_a_retry_that_takes_over_is_as_old_as_what_it_repeats() -> None:
    """The first one's client was seen to leave: the retry goes where that would have gone."""
    gate = asyncio.Event()
    bench = Bench([ScriptedUpstream(streamed(gate), streamed(*STREAM))])
    calls = [bench.call(stream=True, sdk_retry=count) for count in (0, 1)]
    replies = [asyncio.ensure_future(bench.pipeline.handle(call)) for call in calls]
    await turns()
    replies[0].cancel("client_gone")
    await turns()
    await (await replies[1]).close()

    assert len(bench.upstreams[0].sent) == 2
    assert calls[0].seq == calls[1].seq == 1
    assert nobody_runs(bench)


async def test_what_a_key_may_use_is_asked_of_a_retry_that_takes_over() -> None:
    """The age is inherited, the permission is not."""
    gate = asyncio.Event()
    key = Key("web", "web", b"d", limits=Limits(requests_per_min=1, request_burst=1))
    bench = Bench([ScriptedUpstream(streamed(gate))], keys=[key])

    first = await begin(bench, stream=True, key=key)
    again = await begin(bench, stream=True, key=key, sdk_retry=1)
    first.cancel("client_gone")
    await asyncio.wait([first, again])

    assert getattr(again.exception(), "code", None) == "key_rate_limited"


async def test_a_shared_answer_costs_the_key_nothing() -> None:
    """Neither requests nor tokens nor money: nothing was asked of anybody."""
    gate, script = gated()
    key = Key("web", "web", b"d", limits=Limits(requests_per_min=1, request_burst=1))
    bench = Bench([ScriptedUpstream(script)], keys=[key])

    first = await begin(bench, key=key)
    again = await begin(bench, key=key, sdk_retry=1)
    gate.set()

    assert [reply.status for reply, _ in await asyncio.gather(first, again)] == [200, 200]


async def test_an_answer_that_has_begun_cannot_be_joined() -> None:
    """Nobody holds what has gone by: the retry is served itself, without waiting."""
    gate = asyncio.Event()
    sound = (b"content-type", b"audio/mpeg")
    bench = Bench([ScriptedUpstream(Script(200, (sound,), [gate, b"1"]), Script(200, (sound,), [b"2"]))])

    first = await begin(bench, endpoint=SPEECH)
    _, body = await bench.serve(endpoint=SPEECH, sdk_retry=1)
    gate.set()

    assert (body, (await first)[1]) == (b"2", b"1")


async def test_an_answer_that_is_relayed_is_shared_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be too large to be read whole: both get its pieces."""
    monkeypatch.setattr("gateway.core.answers.WHOLE_LIMIT", 10)
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])

    first = await begin(bench)
    again = await begin(bench, sdk_retry=1)
    gate.set()
    bodies = [body for _, body in await asyncio.gather(first, again)]

    assert bodies == [ANSWER, ANSWER]
    assert len(bench.upstreams[0].sent) == 1


async def test_a_retry_while_the_loop_repairs_the_call_waits_for_the_repair() -> None:
    """It is the call that is repeated, not its attempt."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(failed()), ScriptedUpstream(script)])

    first = await begin(bench)
    again = await begin(bench, sdk_retry=1)
    gate.set()
    await first
    reply, _ = await again

    assert dict(reply.headers)[b"x-gateway-attempts"].startswith(b"p0/m:connection")


@given(
    course=st.lists(st.tuples(st.sampled_from(["call", "leave", "answer"]), st.integers(0, 3)), max_size=14),
)
@settings(deadline=None)
def test_whatever_happens_everybody_is_answered_or_has_left(course: Sequence[tuple[str, int]]) -> None:
    """Calls, retries, answers and leaving in any order: nobody waits for ever, one account each, nothing is kept."""
    asyncio.run(_run(course))


async def _run(course: Sequence[tuple[str, int]]) -> None:
    gates, scripts = zip(*[gated() for _ in range(15)], strict=True)
    bench = Bench([ScriptedUpstream(*scripts)])
    calls: list[Serving] = []
    for what, number in course:
        if what == "call":
            calls.append(await begin(bench, sdk_retry=number))
        elif what == "leave" and number < len(calls):
            calls[number].cancel()
        elif what == "answer":
            gates[number].set()
        await turns(number)
    for gate in gates:
        gate.set()
    if calls:
        await asyncio.wait(calls, timeout=5)

    assert all(call.done() for call in calls)
    assert all(call.cancelled() or call.result()[1] == ANSWER for call in calls)
    assert len(bench.meter.accounts) == len(calls)
    assert len(bench.upstreams[0].sent) == sum(len(record.call.attempts) for record in bench.meter.accounts)
    assert nobody_runs(bench)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_left_unseen_takes_nothing_from_its_retry(stream: bool) -> None:
    """Its connection is found closed when the retry waits already: the work goes on, and is paid for once."""
    gate = asyncio.Event()
    script = streamed(gate, *STREAM) if stream else gated()[1]
    if not stream:
        gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])
    first, serving = serve_at_the_edge(bench, stream=stream)
    await turns()
    again = await begin(bench, stream=stream, sdk_retry=1)
    serving.client_gone()
    await turns()
    gate.set()

    _, body = await again
    await asyncio.gather(first, return_exceptions=True)
    await turns()
    assert body == (b"".join(STREAM) if stream else ANSWER)
    assert len(bench.upstreams[0].sent) == 1
    assert sorted(record.outcome for record in bench.meter.accounts) == ["client_gone", "ok"]
    assert next(record for record in bench.meter.accounts if record.status == 499).usage is not None
    assert nobody_runs(bench)


async def test_when_the_retry_leaves_too_the_work_ends() -> None:
    """Nobody waits any more."""
    _, script = gated()
    bench = Bench([ScriptedUpstream(script)])
    first, serving = serve_at_the_edge(bench)
    await turns()
    again = await begin(bench, sdk_retry=1)
    serving.client_gone()
    await turns()
    assert not first.done()
    again.cancel("client_gone")
    await turns()

    assert first.cancelled()
    assert script.closed
    assert [record.outcome for record in bench.meter.accounts] == ["client_gone", "client_gone"]
    assert nobody_runs(bench)


def serve_at_the_edge(bench: Bench, **changes: object) -> tuple[asyncio.Task[None], Serving_]:
    """A call in a task that the edge would stop when its client leaves."""

    async def serve() -> None:
        reply = await bench.pipeline.handle(call)
        async for _ in reply.chunks or _nothing():
            pass
        await reply.close()

    call = bench.call(**changes)
    call.server = asyncio.ensure_future(serve())
    serving = Serving_(call.server)
    serving.call = call
    return call.server, serving


async def _nothing() -> AsyncGenerator[bytes, None]:
    for chunk in list[bytes]():
        yield chunk
