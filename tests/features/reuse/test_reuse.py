"""What spares a call its provider, layer by layer: records, flights, kept answers, stale ones; and what is never kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.core.call import FALLBACK_ANSWER, CallRoute, Reply
from gateway.core.errors import DeadlineExceeded, NoTargetAvailable
from gateway.core.snapshot import Key
from gateway.core.types import ErrorClass, Phase, UpstreamFailed
from gateway.features.identity import LARGE_BYTES, KeyInUse, KeyReused
from gateway.features.outcome import OUTCOME
from gateway.features.reuse.keys import NotCached
from gateway.features.reuse.layers import plan_reuse
from gateway.features.reuse.rules import Caching, ExactRule
from gateway.features.reuse.service import Replays
from tests.support.flow import ANSWER, BOUNDS, JSON, Bench, Script, ScriptedUpstream, failed, streamed, whole
from tests.support.stores import MemoryStore

EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)
STREAM = b"".join(EVENTS)
EXACT = Caching(exact=ExactRule("always", ttl_s=60, stale_if_error_s=600))
BAD = b'{"error": {"message": "no", "type": "invalid_request_error", "param": null, "code": "y"}}'
Serving = asyncio.Task[tuple[Reply, bytes]]


def asking(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A call that asks this, at temperature 0 unless it says otherwise."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
    body = {name: value for name, value in body.items() if value is not None}
    return {
        "body": orjson.dumps(body),
        "parsed": body,
        "stream": body.get("stream", False),
        "stream_options": body.get("stream_options"),
    }


def keyed(key: bytes = b"k1", text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A call with an idempotency key that nothing else would share."""
    return {"idempotency_key": key, **asking(text, temperature=None, **fields)}


def gated(*chunks: bytes, script: Script | None = None) -> tuple[asyncio.Event, Script]:
    """An answer that comes when the event is set."""
    gate = asyncio.Event()
    made = script or whole()
    return gate, replace(made, chunks=[gate, *(chunks or made.chunks)])


async def begin(bench: Bench, **changes: Any) -> Serving:
    """A call begins, and is as far as it gets by itself."""
    serving = asyncio.ensure_future(bench.serve(**changes))
    await turns()
    return serving


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def sent(bench: Bench) -> int:
    return sum(len(upstream.sent) for upstream in bench.upstreams)


def cache_of(reply: Reply) -> bytes:
    return dict(reply.headers)[b"x-gateway-cache"]


def outcomes(bench: Bench) -> list[str]:
    return [record.outcome for record in bench.meter.accounts]


async def nobody_is_left(bench: Bench) -> bool:
    await turns()
    flights = bench.product(Replays).single_flight
    return not flights._by_key and not len(flights) and len(asyncio.all_tasks()) == 1


# --- single flight ---


async def test_identical_calls_share_one_attempt() -> None:
    """One is asked, all are answered alike; tokens and money are charged once, and the others know what they saved."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])
    serving = [await begin(bench, id=f"req_{number}", **asking()) for number in range(5)]
    gate.set()
    answers = await asyncio.gather(*serving)

    assert [body for _, body in answers] == [ANSWER] * 5
    assert [cache_of(reply) for reply, _ in answers] == [b"bypass", *[b"coalesced"] * 4]
    assert sent(bench) == 1
    assert outcomes(bench) == ["ok"] * 5
    assert [bool(record.usage) for record in bench.meter.accounts].count(True) == 1
    saved = [OUTCOME.find(record.call) for record in bench.meter.accounts if record.usage is None]
    assert all(one and one.saved and one.saved.input == 1000 and one.saved_usd for one in saved)
    assert dict(answers[3][0].headers)[b"x-gateway-cache-source"] == b"req_0"
    assert dict(answers[3][0].headers)[b"x-gateway-request-id"] == b"req_3"
    assert await nobody_is_left(bench)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (asking(), asking("other")),
        (asking(), asking(temperature=None)),
        (asking(temperature=None), asking(temperature=None)),
        (asking(), {**asking(), "tenant": "b"}),
        (asking(), {**asking(), "credential": b"Bearer x"}),
        (asking(), {**asking(), "query": b"a=1"}),
        (asking(), {**asking(), "headers": [(b"openai-beta", b"x")]}),
        (asking(), {**asking(), "model_name": "m2"}),
        (asking(), asking(stream=True)),
        (asking(), {**asking(), "cache_control": b"no-cache"}),
    ],
)
async def test_whatever_differs_is_asked_by_itself(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Who asks and all that is asked has to be the same, and the answer meant to be."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script, script)])
    serving = [await begin(bench, **first), await begin(bench, **second)]
    assert sent(bench) == 2
    gate.set()
    await asyncio.gather(*serving, return_exceptions=True)


async def test_only_what_sdks_and_white_space_differ_in_is_the_same() -> None:
    """The order of keys, white space and the SDK's own headers say nothing."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])
    same = asking()
    same["parsed"] = dict(reversed(same["parsed"].items()))
    same["body"] = orjson.dumps(same["parsed"], option=orjson.OPT_INDENT_2)
    serving = [
        await begin(bench, **asking()),
        await begin(bench, **same, headers=[(b"x-stainless-lang", b"js"), (b"user-agent", b"x")]),
    ]
    gate.set()
    await asyncio.gather(*serving)
    assert sent(bench) == 1


async def test_a_policy_can_share_all_or_none() -> None:
    """`always` shares what is not meant to be the same, `off` nothing."""
    for coalesce, count in (("always", 1), ("off", 2)):
        gate, script = gated()
        bench = Bench([ScriptedUpstream(script, script)], caching=Caching(coalesce=coalesce))  # type: ignore[arg-type]  # these are its words
        changes = asking(temperature=0.7 if coalesce == "always" else 0)
        serving = [await begin(bench, **changes) for _ in range(2)]
        assert sent(bench) == count
        gate.set()
        await asyncio.gather(*serving)


async def test_a_late_joiner_of_a_stream_gets_it_from_the_start() -> None:
    """What has gone by comes at once, the rest live; each gets the same bytes."""
    gate = asyncio.Event()
    bench = Bench([ScriptedUpstream(streamed(*EVENTS[:2], gate, *EVENTS[2:]))])
    first = await begin(bench, **asking(stream=True))
    late = await begin(bench, **asking(stream=True))
    gate.set()
    (_, one), (reply, other) = await first, await late

    assert one == other == STREAM
    assert cache_of(reply) == b"coalesced"
    assert sent(bench) == 1
    assert outcomes(bench) == ["ok", "ok"]
    assert await nobody_is_left(bench)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_leaver_disturbs_nobody(stream: bool) -> None:
    """The first one leaves: those who follow get the answer, its account says that it left and what was used."""
    gate = asyncio.Event()
    script = streamed(EVENTS[0], EVENTS[1], gate, *EVENTS[2:]) if stream else gated()[1]
    if not stream:
        script = replace(script, chunks=[gate, ANSWER])
    bench = Bench([ScriptedUpstream(script)])
    first = await begin(bench, **asking(stream=stream))
    second = await begin(bench, **asking(stream=stream))
    first.cancel("client_gone")
    await turns()
    gate.set()

    _, body = await second
    assert body == (STREAM if stream else ANSWER)
    await turns()
    assert sorted(outcomes(bench)) == ["client_gone", "ok"]
    left = next(record for record in bench.meter.accounts if record.outcome == "client_gone")
    assert left.status == 499
    assert left.usage is not None
    assert await nobody_is_left(bench)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_leaver_stops_the_work(stream: bool) -> None:
    """The provider is left alone when nobody waits any more; nothing is kept of it."""
    gate = asyncio.Event()
    script = replace(
        streamed(*EVENTS[:2], gate) if stream else whole(), chunks=[*EVENTS[:2], gate] if stream else [gate]
    )
    bench = Bench([ScriptedUpstream(script, whole())], caching=EXACT)
    serving = [await begin(bench, **asking(stream=stream)) for _ in range(3)]
    for one in serving:
        one.cancel("client_gone")
        await turns()

    assert script.closed
    assert outcomes(bench).count("client_gone") == 3
    assert await nobody_is_left(bench)
    await bench.serve(**asking())
    assert sent(bench) == 2


async def test_a_client_that_leaves_before_its_work_has_begun_is_accounted_for() -> None:
    """Its task is cancelled before its first step: the account is closed all the same."""
    bench = Bench([ScriptedUpstream(whole())])
    serving = asyncio.ensure_future(bench.serve(**asking()))
    await asyncio.sleep(0)
    serving.cancel("client_gone")
    await turns()
    assert outcomes(bench) == ["client_gone"]
    assert await nobody_is_left(bench)


async def test_an_error_is_shared_too() -> None:
    """Ten callers of a provider that is down are one call to it, and ten accounts."""
    bench = Bench([ScriptedUpstream(failed())])
    serving = [asyncio.ensure_future(bench.serve(**asking())) for _ in range(10)]
    raised = await asyncio.gather(*serving, return_exceptions=True)
    assert all(isinstance(one, NoTargetAvailable) for one in raised)
    assert sent(bench) == 1
    assert outcomes(bench) == ["no_target_available"] * 10
    assert await nobody_is_left(bench)


async def test_who_has_more_time_tries_again() -> None:
    """The first one's deadline is not the second one's."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script, whole())])
    now = bench.clock.now
    first = await begin(bench, **asking(), deadline=now + 2, deadline_is_callers=True)
    second = await begin(bench, **asking(), deadline=now + 20, deadline_is_callers=True)
    bench.clock.advance(3)
    bench.watch.sweep(bench.clock.now)
    with pytest.raises(DeadlineExceeded):
        await first
    assert (await second)[1] == ANSWER
    assert sent(bench) == 2
    gate.set()


async def test_a_follower_has_its_own_deadline() -> None:
    """It is told when its time is up; the first one goes on."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])
    first = await begin(bench, **asking())
    second = await begin(bench, **asking(), deadline=bench.clock.now + 2, deadline_is_callers=True)
    bench.clock.advance(2)
    with pytest.raises(DeadlineExceeded):
        await second
    gate.set()
    assert (await first)[1] == ANSWER
    assert sorted(outcomes(bench)) == ["deadline_exceeded", "ok"]


async def test_a_higher_lane_does_not_wait_behind_a_lower_one() -> None:
    """A background call may be held for hours; who is in a hurry asks for itself, and is who others follow then."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script, script)])
    serving = [
        await begin(bench, **asking(), lane="background"),
        await begin(bench, **asking(), lane="interactive"),
        await begin(bench, **asking(), lane="background"),
    ]
    assert sent(bench) == 2
    gate.set()
    await asyncio.gather(*serving)
    assert await nobody_is_left(bench)


async def test_an_sdks_retry_joins_the_stream_it_repeats() -> None:
    """Nothing else would share it; the first is still running: nothing is paid twice."""
    gate = asyncio.Event()
    bench = Bench([ScriptedUpstream(streamed(gate, *EVENTS))])
    first = await begin(bench, **asking(temperature=1, stream=True))
    again = await begin(bench, **asking(temperature=1, stream=True), sdk_retry=1)
    gate.set()
    (_, one), (reply, other) = await first, await again
    assert one == other == STREAM
    assert cache_of(reply) == b"coalesced"
    assert sent(bench) == 1
    assert outcomes(bench) == ["ok", "ok"]
    assert await nobody_is_left(bench)


# --- idempotency ---


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_key_is_replayed(stream: bool) -> None:
    """Byte for byte, and marked; nothing is asked, counted or paid again."""
    bench = Bench([ScriptedUpstream(streamed(*EVENTS) if stream else whole())])
    first, body = await bench.serve(**keyed(stream=stream))
    again, same = await bench.serve(**keyed(stream=stream))

    assert same == body == (STREAM if stream else ANSWER)
    assert again.status == 200
    assert dict(again.headers)[b"idempotent-replayed"] == b"true"
    assert dict(again.headers)[b"content-type"] == dict(first.headers)[b"content-type"]
    assert (cache_of(first), cache_of(again)) == (b"miss", b"hit")
    assert b"idempotent-replayed" not in dict(first.headers)
    assert sent(bench) == 1
    assert outcomes(bench) == ["ok", "ok"]
    assert bench.meter.accounts[1].usage is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_in_use_is_joined(stream: bool) -> None:
    """The second caller gets the same answer, from the start."""
    gate = asyncio.Event()
    script = streamed(EVENTS[0], EVENTS[1], gate, *EVENTS[2:]) if stream else Script(chunks=[gate, ANSWER])
    bench = Bench([ScriptedUpstream(script)])
    first = await begin(bench, **keyed(stream=stream))
    second = await begin(bench, **keyed(stream=stream))
    gate.set()
    (_, one), (_, other) = await first, await second
    assert one == other == (STREAM if stream else ANSWER)
    assert sent(bench) == 1


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_key_is_not_for_another_request(is_running: bool) -> None:
    """Running or done, another body is refused; the first is not disturbed."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])
    first = await begin(bench, **keyed())
    if not is_running:
        gate.set()
        await first
    with pytest.raises(KeyReused) as refused:
        await bench.serve(**keyed(text="another"))
    assert refused.value.status == 422
    gate.set()
    assert (await first)[1] == ANSWER
    assert sorted(outcomes(bench)) == ["idempotency_key_reused", "ok"]
    refusal = next(record for record in bench.meter.accounts if record.outcome != "ok")
    outcome = OUTCOME.find(refusal.call)
    assert outcome is not None
    assert outcome.tried == [("idempotency", "mismatch")]


async def test_keys_of_two_owners_have_nothing_in_common() -> None:
    """Neither tenants nor callers with credentials of their own meet under one key."""
    bench = Bench([ScriptedUpstream(whole(), whole(), whole())])
    await bench.serve(**keyed())
    await bench.serve(**keyed(), tenant="b")
    await bench.serve(**keyed(), credential=b"Bearer x")
    assert sent(bench) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 408, 409, 500, 503])
async def test_only_what_would_be_the_same_again_is_kept(status: int) -> None:
    """A bad request stays one; whatever time may heal is asked again."""
    bench = Bench([ScriptedUpstream(whole(BAD, status), whole(BAD, status), whole())])
    for _ in range(2):
        await asyncio.gather(bench.serve(**keyed()), return_exceptions=True)
    assert sent(bench) == (1 if status == 400 else 2)
    if status == 400:
        reply, body = await bench.serve(**keyed())
        assert (reply.status, body) == (400, BAD)
        assert dict(reply.headers)[b"x-should-retry"] == b"false"
        assert outcomes(bench) == ["bad_request"] * 3


async def test_a_broken_stream_is_not_kept() -> None:
    """Who repeats the key after a break gets a new answer."""
    bench = Bench([ScriptedUpstream(streamed(*EVENTS[:2]), streamed(*EVENTS))])
    _, broken = await bench.serve(**keyed(stream=True))
    assert b"[DONE]" not in broken
    _, body = await bench.serve(**keyed(stream=True))
    assert body == STREAM


async def test_a_call_that_was_left_runs_again() -> None:
    """Its record is free at once."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script, whole())])
    first = await begin(bench, **keyed())
    first.cancel("client_gone")
    await turns()
    assert (await bench.serve(**keyed()))[1] == ANSWER
    assert sent(bench) == 2
    gate.set()


async def test_a_record_is_kept_for_its_time() -> None:
    """Then the key is free for any request."""
    bench = Bench([ScriptedUpstream(whole(), whole())], caching=Caching(keep_s=3600))
    await bench.serve(**keyed())
    bench.clock.advance(3599)
    await bench.serve(**keyed())
    bench.clock.advance(2)
    await bench.serve(**keyed(text="another"))
    assert sent(bench) == 2


async def test_keys_can_be_ignored() -> None:
    """`keep: 0s` turns records off."""
    bench = Bench([ScriptedUpstream(whole(), whole())], caching=Caching(keep_s=0))
    await bench.serve(**keyed())
    reply, _ = await bench.serve(**keyed())
    assert sent(bench) == 2
    assert cache_of(reply) == b"bypass"


async def test_another_key_for_the_same_question_has_a_record_of_its_own() -> None:
    """It shares the attempt that is running, and is replayed by its own key afterwards."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])
    first = await begin(bench, **asking(), idempotency_key=b"a")
    second = await begin(bench, **asking(), idempotency_key=b"b")
    gate.set()
    await asyncio.gather(first, second)
    reply, body = await bench.serve(**asking(), idempotency_key=b"b")
    assert body == ANSWER
    assert dict(reply.headers)[b"idempotent-replayed"] == b"true"
    assert sent(bench) == 1
    assert await nobody_is_left(bench)


async def test_a_stream_too_long_to_be_held_cannot_be_joined() -> None:
    """Then the key is in use, which clients retry; it is never run twice at a time."""
    gate = asyncio.Event()
    filler = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * 300_000)
    bench = Bench(
        [ScriptedUpstream(streamed(*[filler] * 8, gate, *EVENTS))], caching=Caching(max_record_bytes=1_000_000)
    )
    first = await begin(bench, **keyed(stream=True))
    await turns(60)
    with pytest.raises(KeyInUse):
        await bench.serve(**keyed(stream=True))
    gate.set()
    assert (await first)[1].endswith(STREAM)


# --- exact ---


@pytest.mark.parametrize("stream", [False, True])
async def test_an_equal_request_is_answered_from_the_cache(stream: bool) -> None:
    """With its age, for as long as it is fresh."""
    bench = Bench([ScriptedUpstream(*[streamed(*EVENTS) if stream else whole()] * 2)], caching=EXACT)
    first, body = await bench.serve(id="req_1", **asking(temperature=1, stream=stream))
    bench.clock.advance(20)
    again, same = await bench.serve(id="req_2", **asking(temperature=1, stream=stream))

    headers = dict(again.headers)
    assert same == body
    assert (cache_of(first), cache_of(again)) == (b"miss", b"hit")
    assert headers[b"age"] == b"20"
    assert headers[b"cache-control"] == b"private, max-age=60"
    assert headers[b"x-gateway-cache-source"] == b"req_1"
    assert headers[b"x-gateway-target"] == b"p0/m"
    assert headers[b"x-gateway-cache-key"] == dict(first.headers)[b"x-gateway-cache-key"]
    assert b"idempotent-replayed" not in headers
    bench.clock.advance(41)
    await bench.serve(**asking(temperature=1, stream=stream))
    assert sent(bench) == 2


async def test_a_streamed_answer_serves_a_whole_one_and_the_other_way_round() -> None:
    """How an answer is sent is no part of the question."""
    bench = Bench([ScriptedUpstream(streamed(*EVENTS), whole(ANSWER))], caching=EXACT)
    await bench.serve(**asking(stream=True))
    reply, body = await bench.serve(**asking())
    assert orjson.loads(body)["choices"][0]["message"]["content"] == "Hello"
    assert dict(reply.headers)[b"content-type"] == b"application/json"


@pytest.mark.parametrize(
    ("script", "stream"),
    [
        (whole(BAD, 400), False),
        (whole(BAD, 500), False),
        (whole(b'{"error": {"message": "no"}}'), False),
        (streamed(*EVENTS[:2]), True),
        (streamed(EVENTS[1], b'data: {"error": {"message": "broke"}}\n\n'), True),
        (failed(), False),
        (Script(fails=UpstreamFailed(ErrorClass.TIMEOUT, Phase.SENT, "late")), False),
    ],
)
async def test_nothing_but_complete_answers_is_kept(script: Script, stream: bool) -> None:
    """No error, no part of an answer."""
    good = streamed(*EVENTS) if stream else whole()
    bench = Bench([ScriptedUpstream(script, good)], caching=EXACT)
    await asyncio.gather(bench.serve(**asking(stream=stream)), return_exceptions=True)
    reply, _ = await bench.serve(**asking(stream=stream))
    assert cache_of(reply) == b"miss"
    assert sent(bench) == 2


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        (b"no-store", None, 2),
        (None, b"no-cache", 2),
        (None, b"max-age=5", 2),
        (None, b"max-age=30", 1),
        (b"no-cache", None, 1),
        (None, b"only-if-cached", 1),
    ],
)
async def test_the_client_says_what_it_takes(first: bytes | None, second: bytes | None, count: int) -> None:
    """Cache-Control of a request, RFC 9111."""
    bench = Bench([ScriptedUpstream(whole(), whole())], caching=EXACT)
    await bench.serve(**asking(), cache_control=first)
    bench.clock.advance(10)
    await bench.serve(**asking(), cache_control=second)
    assert sent(bench) == count


async def test_only_a_cached_answer_can_be_asked_for() -> None:
    """504, and no provider hears of it."""
    bench = Bench([ScriptedUpstream()], caching=EXACT)
    with pytest.raises(NotCached):
        await bench.serve(**asking(), cache_control=b"only-if-cached")
    assert sent(bench) == 0
    assert outcomes(bench) == ["not_cached"]


async def test_only_deterministic_requests_can_be_kept() -> None:
    """Where the policy says so."""
    caching = Caching(exact=ExactRule("deterministic"))
    bench = Bench([ScriptedUpstream(*[whole()] * 3)], caching=caching)
    for temperature in (0, 0, 1, 1):
        await bench.serve(**asking(temperature=temperature))
    assert sent(bench) == 3


async def test_an_answer_larger_than_an_entry_may_be_is_not_kept() -> None:
    """It would push out too many others."""
    bench = Bench([ScriptedUpstream(whole(), whole())], caching=Caching(exact=ExactRule("always", max_entry_bytes=50)))
    for _ in range(2):
        await bench.serve(**asking())
    assert sent(bench) == 2


@pytest.mark.parametrize(
    "requested", [frozenset[bytes](), frozenset((b"idempotency-key",)), frozenset((b"x-gateway-step",))]
)
@pytest.mark.parametrize("caching", [Caching(coalesce="off"), Caching(), EXACT])
async def test_a_provider_s_own_answer_says_once_that_it_is_one(caching: Caching, requested: frozenset[bytes]) -> None:
    """Whether or not something could be reused along its route."""
    bench = Bench([ScriptedUpstream(whole())], caching=caching)
    call = bench.call()
    route = CallRoute(
        call.route.policy, call.route.key, call.route.model, call.request.endpoint, has_own_credential=False
    )
    call.change_route(replace(call.route, hooks=bench.pipeline.hooks_of(route, requested)))
    reply = await bench.pipeline.handle(call)

    assert [value for name, value in reply.headers if name == b"x-gateway-cache"] == [b"bypass"]


@pytest.mark.parametrize("error", [failed(), whole(BAD, 503), whole(BAD, 500)])
async def test_a_stale_answer_is_better_than_none(error: Script) -> None:
    """Within its grace, marked, and the call is a success; a provider that answers again is heard."""
    bench = Bench([ScriptedUpstream(whole(), error, whole(ANSWER.replace(b'"1"', b'"2"')))], caching=EXACT)
    await bench.serve(**asking())
    bench.clock.advance(70)
    reply, body = await bench.serve(**asking())

    assert (reply.status, body) == (200, ANSWER)
    assert cache_of(reply) == b"stale"
    assert dict(reply.headers)[b"age"] == b"70"
    assert outcomes(bench) == ["ok", "ok"]
    assert [FALLBACK_ANSWER.find(record.call) for record in bench.meter.accounts] == [None, True]
    bench.clock.advance(30)
    reply, body = await bench.serve(**asking())
    assert cache_of(reply) == b"miss"
    assert b'"2"' in body
    assert await nobody_is_left(bench)


async def test_grace_ends() -> None:
    """An answer that is too old even for an outage is not given."""
    bench = Bench([ScriptedUpstream(whole(), failed())], caching=EXACT)
    await bench.serve(**asking())
    bench.clock.advance(661)
    with pytest.raises(NoTargetAvailable):
        await bench.serve(**asking())


async def test_who_wants_a_new_answer_gets_no_stale_one() -> None:
    """`no-cache` is meant."""
    bench = Bench([ScriptedUpstream(whole(), failed())], caching=EXACT)
    await bench.serve(**asking())
    bench.clock.advance(70)
    with pytest.raises(NoTargetAvailable):
        await bench.serve(**asking(), cache_control=b"no-cache")


async def test_what_is_wrong_with_the_request_is_said_in_any_case() -> None:
    """A stale answer stands in for providers that fail, not for requests that do."""
    bench = Bench([ScriptedUpstream(whole(), whole(BAD, 400))], caching=EXACT)
    await bench.serve(**asking())
    bench.clock.advance(70)
    reply, _ = await bench.serve(**asking())
    assert reply.status == 400


async def test_a_replayed_stream_can_keep_its_pace() -> None:
    """Event by event, for clients that show text as it comes."""
    caching = Caching(exact=ExactRule("always", pace_s=0.02))
    bench = Bench([ScriptedUpstream(streamed(*EVENTS))], caching=caching)
    await bench.serve(**asking(stream=True))
    before = bench.clock.now
    reply = await bench.pipeline.handle(bench.call(**asking(stream=True)))
    assert reply.chunks is not None
    assert [chunk async for chunk in reply.chunks] == list(EVENTS)
    assert bench.clock.now == pytest.approx(before + 4 * 0.02)
    await reply.close()


async def test_a_cached_answer_costs_the_key_nothing() -> None:
    """Its limits and budget are for what is asked of providers."""
    poor = Key("poor", "web", b"x", budget_usd_per_day=0.000001, allow_overspend=True)
    bench = Bench([ScriptedUpstream(whole())], caching=EXACT, keys=(poor,))
    await bench.serve(**asking(), key=poor)
    reply, _ = await bench.serve(**asking(), key=poor)
    assert cache_of(reply) == b"hit"


@pytest.mark.parametrize("seed", range(40))
async def test_calls_that_come_and_leave_at_random_are_each_settled_once(seed: int) -> None:
    """Whatever the order: one account each, at most one attempt for a key at a time, survivors get equal bytes."""
    import random

    draw = random.Random(seed)
    gates = [asyncio.Event() for _ in range(60)]
    scripts = [streamed(EVENTS[0], EVENTS[1], gate, *EVENTS[2:]) for gate in gates]
    bench = Bench([ScriptedUpstream(*scripts)], caching=EXACT if seed % 2 else Caching())
    tasks: list[Serving] = []
    for number in range(40):
        key = draw.choice([None, b"a", b"b"])
        changes = asking(draw.choice("xy") if key is None else key.decode(), stream=True)
        tasks.append(asyncio.ensure_future(bench.serve(id=f"req_{number}", idempotency_key=key, **changes)))
        await turns(1 + draw.randrange(4))
        if draw.random() < 0.4:
            draw.choice(tasks).cancel("client_gone")
        if draw.random() < 0.1:
            draw.choice(gates[: sent(bench) or 1]).set()
    for gate in gates:
        gate.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert await nobody_is_left(bench)
    assert {one[1] for one in ended if isinstance(one, tuple)} <= {STREAM}
    assert sum(isinstance(one, tuple) for one in ended) > 0
    assert sorted(record.call.request.id for record in bench.meter.accounts) == sorted(f"req_{n}" for n in range(40))


# --- who waits for whom ---


class Slow(MemoryStore):
    """A store that has to be waited for: what it answers is there when the gate is open."""

    def __init__(self, wall: Callable[[], float]) -> None:
        super().__init__(BOUNDS, wall)
        self.is_local = False
        self.gate = asyncio.Event()
        answers, records = self.answers, self.records
        self.answers = Later(self.gate, answers)  # type: ignore[assignment]  # it has what is asked of it here
        self.records = Later(self.gate, records)  # type: ignore[assignment]  # as above


class Later:
    """Whatever is behind it, in a future."""

    def __init__(self, gate: asyncio.Event, behind: object) -> None:
        self._gate = gate
        self._behind = behind

    def __getattr__(self, name: str) -> Callable[..., object]:
        method = getattr(self._behind, name)

        async def when_open(*args: object) -> object:
            await self._gate.wait()
            return method(*args)

        def ask(*args: object) -> object:
            return method(*args) if name in ("put", "release") else asyncio.ensure_future(when_open(*args))

        return ask


def slow(bench: Bench) -> Slow:
    """A slow store for this bench; to be given to a new one."""
    return Slow(bench.clock.wall)


async def test_what_a_record_says_is_for_its_key_alone() -> None:
    """Who asks the same without a key while the record is looked up gets a new answer, not the old one nor its error."""
    store = slow(Bench([]))
    store.gate.set()
    bench = Bench([ScriptedUpstream(whole(), whole(ANSWER.replace(b'"1"', b'"2"')))], store=store)
    await bench.serve(**asking(), idempotency_key=b"k")
    store.gate.clear()
    keyed_call = await begin(bench, **asking(), idempotency_key=b"k")
    reused = await begin(bench, **asking("other"), idempotency_key=b"k2")
    plain = await begin(bench, **asking())
    store.gate.set()
    reply, body = await plain
    assert b'"2"' in body
    assert b"idempotent-replayed" not in dict(reply.headers)
    assert (await keyed_call)[1] == ANSWER
    reused.cancel()
    await asyncio.gather(reused, return_exceptions=True)


async def test_only_if_cached_is_for_who_said_it() -> None:
    """Another that asks the same is served."""
    store = slow(Bench([]))
    bench = Bench([ScriptedUpstream(whole())], store=store, caching=EXACT)
    strict = await begin(bench, **asking(), cache_control=b"only-if-cached")
    plain = await begin(bench, **asking())
    store.gate.set()
    with pytest.raises(NotCached):
        await strict
    assert (await plain)[1] == ANSWER


async def test_how_old_an_answer_may_be_is_each_callers_own() -> None:
    """Who takes no old one gets a new one, whatever a call takes that asks the same at the moment."""
    store = slow(Bench([]))
    store.gate.set()
    bench = Bench([ScriptedUpstream(whole(), whole(ANSWER.replace(b'"1"', b'"2"')))], store=store, caching=EXACT)
    await bench.serve(**asking())
    bench.clock.advance(30)
    store.gate.clear()
    lax, strict = await begin(bench, **asking()), await begin(bench, **asking(), cache_control=b"max-age=5")
    store.gate.set()
    assert (await lax)[1] == ANSWER
    assert b'"2"' in (await strict)[1]


async def test_calls_that_looked_in_vain_share_the_attempt() -> None:
    """Each asks the store by itself; the provider is asked once."""
    store = slow(Bench([]))
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)], store=store, caching=EXACT)
    serving = [await begin(bench, **asking()) for _ in range(5)]
    store.gate.set()
    await turns()
    gate.set()
    assert [body for _, body in await asyncio.gather(*serving)] == [ANSWER] * 5
    assert sent(bench) == 1
    assert await nobody_is_left(bench)


async def test_a_follower_whose_time_is_up_goes_though_the_first_had_less() -> None:
    """It is its own deadline that has passed, and nobody's that it follows."""
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script)])
    first = await begin(bench, **asking(), deadline=bench.clock.now + 1)
    second = await begin(bench, **asking(), deadline=bench.clock.now + 10, deadline_is_callers=True)
    bench.clock.advance(10)
    with pytest.raises(DeadlineExceeded):
        await second
    gate.set()
    await first


async def test_followers_of_a_stale_answer_are_told_so() -> None:
    """In an outage most calls are followers."""
    gate = asyncio.Event()
    bench = Bench([ScriptedUpstream(whole(), Script(503, (JSON,), [gate, BAD]))], caching=EXACT)
    await bench.serve(**asking())
    bench.clock.advance(70)
    serving = [await begin(bench, **asking()) for _ in range(3)]
    gate.set()
    answers = await asyncio.gather(*serving)
    assert [cache_of(reply) for reply, _ in answers] == [b"stale"] * 3
    assert all(dict(reply.headers)[b"age"] == b"70" for reply, _ in answers)


async def test_no_answer_is_older_than_a_clock_that_was_ahead_made_it() -> None:
    """A clock that is set back does not make answers live longer; one that was far ahead makes them worth nothing."""
    bench = Bench([ScriptedUpstream(whole(), whole())], caching=EXACT)
    bench.clock.ahead_s = 86_400
    await bench.serve(**asking())
    bench.clock.ahead_s = 0
    reply, _ = await bench.serve(**asking())
    assert cache_of(reply) == b"miss"


async def test_what_was_in_the_air_when_a_call_came_is_not_asked_again() -> None:
    """A call with a key of its own looks into the store first; the answer has landed when that has spoken."""
    gate, script = gated()
    store = slow(Bench([]))
    store.gate.set()
    bench = Bench([ScriptedUpstream(script)], store=store)
    first = await begin(bench, **asking())
    store.gate.clear()
    second = await begin(bench, **asking(), idempotency_key=b"b")
    gate.set()
    await first
    store.gate.set()
    assert (await second)[1] == ANSWER
    assert (await bench.serve(**asking(), idempotency_key=b"b"))[1] == ANSWER
    assert sent(bench) == 1


async def test_when_the_first_is_stopped_by_what_is_its_own_one_other_takes_over() -> None:
    """Not each of those who followed it, though they looked into the store by themselves."""
    store = slow(Bench([]))
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script, *[whole()] * 6)], store=store, caching=EXACT)
    now = bench.clock.now
    first = await begin(bench, **asking(), deadline=now + 2, deadline_is_callers=True)
    others = [await begin(bench, **asking(), deadline=now + 20, deadline_is_callers=True) for _ in range(5)]
    store.gate.set()
    await turns()
    bench.clock.advance(3)
    bench.watch.sweep(bench.clock.now)
    with pytest.raises(DeadlineExceeded):
        await first
    assert [body for _, body in await asyncio.gather(*others)] == [ANSWER] * 5
    assert sent(bench) == 2
    gate.set()


@pytest.mark.parametrize("ticks", range(8))
async def test_a_flight_that_is_being_stopped_is_not_joined(ticks: int) -> None:
    """Its last reader has left; who remembers it from its arrival asks for itself, at whichever moment that is."""
    store = slow(Bench([]))
    store.gate.set()
    gate, script = gated()
    bench = Bench([ScriptedUpstream(script, whole())], store=store)
    first = await begin(bench, **asking())
    store.gate.clear()
    second = await begin(bench, **asking(), idempotency_key=b"b")
    store.gate.set()
    await turns(ticks)
    first.cancel("client_gone")
    gate.set()
    assert (await second)[1] == ANSWER
    await asyncio.gather(first, return_exceptions=True)
    assert await nobody_is_left(bench)


def test_a_large_body_stands_for_itself() -> None:
    """Nobody waits while it is written again; the same bytes are the same call."""
    bench = Bench([ScriptedUpstream()])
    large = asking("x" * LARGE_BYTES)
    spaced = {**large, "body": large["body"].replace(b'":', b'": ')}
    keys = [plan_reuse(bench.call(**one), None) for one in (large, large, spaced)]
    assert keys[0] is not None
    assert keys[1] is not None
    assert keys[2] is not None
    assert keys[0].flight == keys[1].flight != keys[2].flight
