"""A 429 becomes a short wait: what applications and operators see of admission and the delay queue, on the wire.

The long versions, with figures, are the storms in `tests/soak`.
"""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import (
    ADMIN_KEY,
    NIGHTLY_KEY,
    WEB_KEY,
    Peer,
    Response,
    Running,
    chat,
    config_of,
    connect,
    get,
    post,
    until,
)
from tests.soak.support import metrics, settled, sum_of

TARGET = "main/gpt-4o"
ADMIN = f"authorization: Bearer {ADMIN_KEY}"
WEB = f"authorization: Bearer {WEB_KEY}"
NIGHTLY = f"authorization: Bearer {NIGHTLY_KEY}"
WEB_ENTRY: dict[str, Any] = {"name": "web", "key": WEB_KEY}
NIGHTLY_ENTRY: dict[str, Any] = {"name": "nightly", "key": NIGHTLY_KEY, "lane": "batch"}
AN_HOUR = "x-gateway-deadline-ms: 3600000"
TELL_SOON = "keepalive_after: 20ms"
"""When a held stream hears its first comment."""
ASKED_FIRST = 3
"""So many calls are refused before nobody looks any more whether a pause concerns others, too."""
ONE_429 = re.escape(TARGET) + r":429\(\d+\.\ds\)"
MESSAGES: Any = [{"role": "user", "content": "hello there"}]


def limited(*keys: Mapping[str, Any], **limits: Any) -> Callable[[str], dict[str, Any]]:
    """Models `a` and `b` share one target with these limits, `c` has another to fall back on."""
    target = {"provider": "main", "model": "gpt-4o", **limits}
    models = {
        "a": {"targets": [target]},
        "b": {"targets": [target]},
        "c": {"targets": [target], "fallbacks": ["d"]},
        "d": {"targets": ["main/other"]},
        "*": {"targets": ["main"]},
    }
    return lambda url: config_of(url, models=models, admin={"key": ADMIN_KEY}, keys=[*map(dict, keys)] or None)


def queue_policy(folder: Path, fields: str) -> dict[str, Any]:
    """A section of the config under which the queue behaves like this."""
    (folder / "queue.yaml").write_text(f"default: {{{fields}}}\n")
    return {"policies": str(folder)}


def ask(*headers: str, model: str = "a", **body: Any) -> bytes:
    """A chat request."""
    return post("/v1/chat/completions", chat(model, **body), *headers)


async def fetch(gateway: Running, request: bytes) -> Response:
    """One request and its answer."""
    async with connect(gateway.url) as peer:
        return await peer.exchange(request)


async def view(gateway: Running, name: str) -> dict[str, Any]:
    """What an admin path shows."""
    return dict(orjson.loads((await fetch(gateway, get(f"/admin/{name}", ADMIN))).body))


async def pause(gateway: Running, *headers: str) -> Response:
    """Let the provider refuse `ASKED_FIRST` calls for ten minutes, each unlike the others, which pauses it for everybody.

    Returns what becomes of the last of them.
    """
    gateway.script(*["rate_limit;seconds=600"] * ASKED_FIRST)
    for words in (500, 100):
        await fetch(gateway, ask(*headers, messages=[{"role": "user", "content": "word " * words}]))
    return await fetch(gateway, ask(*headers))


def held(gateway: Running) -> int:
    """How many calls wait."""
    return gateway.gateway._admission.queue.occupancy.calls


@asynccontextmanager
async def holding(gateway: Running, *requests: bytes) -> AsyncIterator[list[Peer]]:
    """These calls wait in the queue, in this order; their clients leave at the end."""
    async with AsyncExitStack() as stack:
        peers: list[Peer] = []
        for request in requests:
            peers.append(await stack.enter_async_context(connect(gateway.url)))
            peers[-1].send(request)
            await until(lambda: held(gateway) == len(peers))
        yield peers
    await until(lambda: held(gateway) == 0)


# A 429 becomes a 200.


def complete(gateway: Running) -> Any:
    """The synchronous SDK, whole."""
    with gateway.blocking_sdk() as sdk:
        return sdk.chat.completions.with_raw_response.create(model="a", messages=MESSAGES)


def stream(gateway: Running) -> Any:
    """The synchronous SDK, streamed to its end."""
    with gateway.blocking_sdk() as sdk:
        raw = sdk.chat.completions.with_raw_response.create(model="a", messages=MESSAGES, stream=True)
        assert [chunk.choices[0].finish_reason for chunk in raw.parse()][-1] == "stop"
        return raw


async def complete_async(gateway: Running) -> Any:
    """The asynchronous SDK, whole."""
    async with gateway.sdk() as sdk:
        return await sdk.chat.completions.with_raw_response.create(model="a", messages=MESSAGES)


async def stream_async(gateway: Running) -> Any:
    """The asynchronous SDK, streamed to its end."""
    async with gateway.sdk() as sdk:
        raw = await sdk.chat.completions.with_raw_response.create(model="a", messages=MESSAGES, stream=True)
        assert [chunk.choices[0].finish_reason async for chunk in raw.parse()][-1] == "stop"
        return raw


@pytest.mark.parametrize("call", [complete, stream, complete_async, stream_async])
async def test_a_429_becomes_an_answer_for_the_sdk(start: StartGateway, call: Callable[[Running], Any]) -> None:
    """The SDK, whose own retries are off, sees a success, with both attempts and the wait in its headers."""
    gateway = await start(limited())
    gateway.script("rate_limit;seconds=0.05")

    raw = await call(gateway) if asyncio.iscoroutinefunction(call) else await asyncio.to_thread(call, gateway)

    assert raw.status_code == 200
    assert re.fullmatch(f"{ONE_429} {TARGET}:200", raw.headers["x-gateway-attempts"])
    # The pause ends 50 ms after the 429; the wait begins when the call is queued, which on a busy machine is some ms later.
    assert int(raw.headers["x-gateway-queue-ms"]) > 0
    assert gateway.upstream_calls() == 2


async def test_a_call_that_was_not_held_has_waited_for_nothing(start: StartGateway) -> None:
    """The usual case."""
    gateway = await start(limited(rpm=600))

    answer = await fetch(gateway, ask())

    assert (answer.status, answer.header("x-gateway-queue-ms")) == (200, "0")


async def test_a_pause_that_is_too_long_is_an_honest_refusal(start: StartGateway) -> None:
    """At once, in OpenAI's shape, with the time to come back at, and with what is in the way."""
    gateway = await start(limited())

    answer = await pause(gateway)

    assert (answer.status, answer.error["code"]) == (503, "queue_wait_exceeds_deadline")
    assert 570_000 < int(answer.header("retry-after-ms") or 0) <= 600_000
    assert int(answer.header("retry-after") or 0) * 1000 >= int(answer.header("retry-after-ms") or 0)
    assert answer.header("x-gateway-limit") == f"{TARGET} pause"
    assert answer.header("x-should-retry") == "false"  # no SDK would wait for so long
    assert re.fullmatch(ONE_429, answer.header("x-gateway-attempts") or "")


async def test_a_short_wait_that_is_too_long_for_the_caller_is_worth_a_retry(start: StartGateway) -> None:
    """The SDK raises what it raises for any 503; its own retry would come in time."""
    gateway = await start(limited(rpm=2, burst=1))
    await fetch(gateway, ask())

    async with gateway.sdk(timeout=0.3) as sdk:
        with pytest.raises(openai.InternalServerError) as caught:
            await sdk.chat.completions.create(model="a", messages=MESSAGES)

    assert caught.value.code == "queue_wait_exceeds_deadline"
    assert caught.value.response.headers["x-should-retry"] == "true"
    assert caught.value.response.headers["x-gateway-limit"] == f"{TARGET} requests_per_min"
    assert 20_000 < int(caught.value.response.headers["retry-after-ms"]) < 31_000
    assert gateway.upstream_calls() == 1


async def test_a_paused_target_is_left_for_a_fallback(start: StartGateway) -> None:
    """A pause beyond what the primary is preferred for."""
    gateway = await start(limited())
    await pause(gateway)

    answer = await fetch(gateway, ask(model="c"))

    assert (answer.status, answer.header("x-gateway-attempts")) == (200, f"{TARGET}:skipped(paused) main/other:200")


async def test_a_spent_quota_is_nothing_to_wait_for(start: StartGateway) -> None:
    """Whoever has a fallback with another account uses it; the others are told, without another upstream call."""

    def two_accounts(url: str) -> dict[str, Any]:
        config = limited()(url)
        config["providers"]["spare"] = {**config["providers"]["main"], "api_key": "sk-spare"}
        config["models"] |= {"d": {"targets": ["spare/other"]}, "e": {"targets": ["main/elsewhere"]}}
        return config

    gateway = await start(two_accounts)
    gateway.script("quota")

    first = await fetch(gateway, ask(model="c"))
    second = await fetch(gateway, ask(AN_HOUR))
    same_account = await fetch(gateway, ask(AN_HOUR, model="e"))

    assert first.status == 200
    assert re.fullmatch(f"{ONE_429} spare/other:200", first.header("x-gateway-attempts") or "")
    assert (second.status, second.error["code"]) == (503, "quota_exhausted")
    assert second.header("x-should-retry") == "false"
    assert (same_account.status, same_account.error["code"]) == (503, "quota_exhausted")
    assert gateway.upstream_calls() == 2


# Limits.


async def test_a_request_that_can_never_fit_is_refused_and_told_why(start: StartGateway) -> None:
    """It would wait for ever; the limit is named in words and in a header."""
    gateway = await start(limited(tpm=100))

    answer = await fetch(gateway, ask(AN_HOUR, messages=[{"role": "user", "content": "word " * 1000}]))

    assert (answer.status, answer.error["code"]) == (413, "request_exceeds_limits")
    assert f"tokens_per_min of {TARGET}" in answer.error["message"]
    assert answer.header("x-gateway-limit") == f"{TARGET} tokens_per_min"
    assert answer.header("x-should-retry") == "false"
    assert gateway.upstream_calls() == 0


async def test_a_key_over_its_own_limit_is_told_so(start: StartGateway) -> None:
    """That 429 is the operator's wish: not held, with the time and the limit; other keys are served as before."""
    gateway = await start(limited(WEB_ENTRY | {"rpm": 2}, NIGHTLY_ENTRY))
    for _ in range(2):
        assert (await fetch(gateway, ask(WEB))).status == 200

    refused = await fetch(gateway, ask(WEB))
    other = await fetch(gateway, ask(NIGHTLY))

    assert (refused.status, refused.error["code"], other.status) == (429, "key_rate_limited", 200)
    assert refused.error["type"] == "rate_limit_error"
    assert refused.header("x-gateway-limit") == "web requests_per_min"
    assert 20_000 < int(refused.header("retry-after-ms") or 0) <= 30_000
    assert 20 < int(refused.header("retry-after") or 0) <= 30
    assert gateway.upstream_calls() == 3


async def test_two_models_that_name_one_target_share_its_limit(start: StartGateway) -> None:
    """What one has used up, the other waits for."""
    gateway = await start(limited(rpm=1))
    assert (await fetch(gateway, ask(model="a"))).status == 200

    async with holding(gateway, ask(AN_HOUR, model="b")):
        targets = (await view(gateway, "limits"))["targets"]

    assert {name: one["waiting"] for name, one in targets.items()} == {TARGET: 1, "main/other": 0, "main/*": 0}
    assert gateway.upstream_calls() == 1


async def test_a_concurrency_cap_holds_instead_of_rejecting(start: StartGateway) -> None:
    """The second call goes when the first one's client has left."""
    gateway = await start(limited(max_concurrency=1))
    gateway.script("silence")
    async with connect(gateway.url) as first:
        first.send(ask())
        await until(lambda: gateway.upstream_calls() == 1)
        async with holding(gateway, ask(AN_HOUR)) as (second,):
            first.close()
            answer = await second.response()

    assert (answer.status, answer.header("x-gateway-attempts")) == (200, f"{TARGET}:200")


async def test_a_reload_that_raises_a_limit_releases_who_waits(start: StartGateway) -> None:
    """At once: 1 a minute becomes 60,000."""
    gateway = await start(limited(rpm=1))
    await fetch(gateway, ask())

    async with holding(gateway, *[ask(AN_HOUR)] * 3) as peers:
        gateway.write_config(limited(rpm=60_000)(gateway.emulator.base_url))
        gateway.gateway.reload()
        answers = [await peer.response() for peer in peers]

    assert [answer.status for answer in answers] == [200] * 3
    assert gateway.upstream_calls() == 4


@pytest.mark.parametrize(
    ("patience", "should_retry"), [("x-gateway-deadline-ms: 60", "false"), ("x-stainless-read-timeout: 0.08", "true")]
)
async def test_a_deadline_that_passes_in_the_queue_is_a_timeout(
    start: StartGateway, patience: str, should_retry: str
) -> None:
    """Nobody could tell when the slot would come free: 504, nothing was sent. An SDK tries again after its own timeout."""
    gateway = await start(limited(max_concurrency=1))
    gateway.script("silence")
    async with connect(gateway.url) as first:
        first.send(ask())
        await until(lambda: gateway.upstream_calls() == 1)
        answer = await fetch(gateway, ask(patience))

    assert (answer.status, answer.error["code"]) == (504, "queue_deadline_exceeded")
    skipped = f"{TARGET}:skipped(concurrency)"
    assert (answer.header("x-should-retry"), answer.header("x-gateway-attempts")) == (should_retry, skipped)
    assert (
        int(answer.header("x-gateway-queue-ms") or 0) > 0
    )  # how much of the 60 ms it came too late for is the machine's
    assert gateway.upstream_calls() == 1


async def test_a_full_queue_is_for_the_more_urgent(start: StartGateway, tmp_path: Path) -> None:
    """The next of the same lane is refused with a time to come back at; one of a higher lane takes the place."""
    config = limited(WEB_ENTRY, NIGHTLY_ENTRY)
    gateway = await start(lambda url: config(url) | queue_policy(tmp_path, "max_calls: 1, max_percent_per_tenant: 100"))
    await pause(gateway, WEB)
    async with holding(gateway, ask(NIGHTLY, AN_HOUR)) as (batch,):
        refused = await fetch(gateway, ask(NIGHTLY, AN_HOUR))
        async with holding(gateway, ask(WEB, AN_HOUR)):
            displaced = await batch.response()

    for answer in (refused, displaced):
        assert (answer.status, answer.error["code"]) == (503, "queue_full")
        assert int(answer.header("retry-after-ms") or 0) >= 1000
    assert gateway.upstream_calls() == ASKED_FIRST


# Lanes and tenants.


async def test_a_call_may_ask_for_a_lower_lane_than_its_keys(start: StartGateway) -> None:
    """A higher one, or one that is none, is refused; `critical` where the key may."""
    gateway = await start(limited(WEB_ENTRY | {"critical": True}, NIGHTLY_ENTRY))

    answers = [
        await fetch(gateway, ask(key, f"x-gateway-lane: {lane}"))
        for key, lane in (
            (WEB, "background"),
            (WEB, "critical"),
            (NIGHTLY, "background"),
            (NIGHTLY, "interactive"),
            (NIGHTLY, "critical"),
            (WEB, "express"),
        )
    ]

    assert [answer.status for answer in answers] == [200, 200, 200, 403, 403, 400]
    assert [answer.error["code"] for answer in answers[3:5]] == ["lane_not_allowed"] * 2


async def test_a_call_may_name_a_tenant_where_its_key_allows_it(start: StartGateway) -> None:
    """The others are refused: nobody waits in another's name."""
    gateway = await start(limited(WEB_ENTRY | {"names_tenants": True}, NIGHTLY_ENTRY))

    allowed = await fetch(gateway, ask(WEB, "x-gateway-tenant: acme"))
    malformed = await fetch(gateway, ask(WEB, "x-gateway-tenant: no spaces"))
    forbidden = await fetch(gateway, ask(NIGHTLY, "x-gateway-tenant: acme"))

    assert [one.status for one in (allowed, malformed, forbidden)] == [200, 400, 403]
    assert forbidden.error["code"] == "tenant_not_allowed"


async def test_the_higher_lane_goes_first(start: StartGateway) -> None:
    """Whoever came first: one call at a time, batch behind interactive."""
    gateway = await start(limited(WEB_ENTRY, NIGHTLY_ENTRY, max_concurrency=1))
    gateway.script("silence")
    async with connect(gateway.url) as first:
        first.send(ask(WEB))
        await until(lambda: gateway.upstream_calls() == 1)
        async with holding(gateway, ask(NIGHTLY, AN_HOUR, user="batch"), ask(WEB, AN_HOUR, user="live")) as peers:
            first.close()
            for peer in peers:
                await peer.response()

    assert [orjson.loads(one["body"])["user"] for one in gateway.received()[1:]] == ["live", "batch"]


# Seeing it.


async def test_operators_see_who_waits_and_for_what(start: StartGateway) -> None:
    """By target, lane and tenant; whoever leaves is gone from there, and has cost no upstream call."""
    gateway = await start(limited(WEB_ENTRY | {"names_tenants": True}, NIGHTLY_ENTRY, rpm=600, tpm=50_000))
    await pause(gateway, WEB)
    calls = (ask(WEB, AN_HOUR), ask(NIGHTLY, AN_HOUR), ask(WEB, AN_HOUR, "x-gateway-tenant: acme"))

    async with holding(gateway, *calls):
        queue, limits = await view(gateway, "queue"), await view(gateway, "limits")
    after = await view(gateway, "queue")

    line = queue["lines"][TARGET]
    assert (queue["calls"], queue["bytes"]) == (3, 3 * len(orjson.dumps(chat("a"))))
    assert [(one["lane"], one["tenant"], one["calls"]) for one in line["waiting"]] == [
        ("batch", "nightly", 1),
        ("interactive", "web", 1),
        ("interactive", "web/acme", 1),
    ]
    assert all(0 <= one["oldest_s"] < 10 and 580 < one["predicted_wait_s"] < 610 for one in line["waiting"])
    assert line["waiting"][0]["predicted_wait_s"] > line["waiting"][1]["predicted_wait_s"]
    assert 580 < line["paused_s"] <= line["next_chance_s"] + 1 <= 601
    target = limits["targets"][TARGET]
    assert {one["limit"]: one["source"] for one in target["limits"]} == dict.fromkeys(
        ("requests_per_min", "tokens_per_min"), "configured"
    )
    capacities = {one["limit"]: one["capacity"] for one in target["limits"]}
    assert capacities["tokens_per_min"] == 50_000
    assert 4 <= capacities["requests_per_min"] <= 10  # a second's worth to begin with, and a refusal since
    assert (target["waiting"], target["in_flight"], target["pauses"]) == (3, 0, 1)
    assert (after["calls"], after["bytes"], after["lines"]) == (0, 0, {})
    assert gateway.upstream_calls() == ASKED_FIRST
    assert settled(gateway) == {"queue_wait_exceeds_deadline": ASKED_FIRST, "client_gone": 3}


async def test_a_connection_that_closes_while_its_call_is_held_leaves_no_cycle(start: StartGateway) -> None:
    """What waited for long has grown too old for the collector to look at soon: it has to go by itself."""
    gateway = await start(limited())
    await pause(gateway)
    await until(lambda: not gateway.connections)
    gc.disable()
    try:
        async with holding(gateway, ask(AN_HOUR), ask(AN_HOUR, stream=True)):
            connections = [weakref.ref(one) for one in gateway.connections]
        await until(lambda: not any(connection() for connection in connections))
    finally:
        gc.enable()

    assert len(connections) == 2


async def test_the_metrics_tell_of_the_queue_and_the_limits(start: StartGateway) -> None:
    """With values that fit what has happened; whatever clients put into requests is no label."""
    keys = (WEB_ENTRY | {"names_tenants": True, "rpm": 10}, NIGHTLY_ENTRY)
    gateway = await start(limited(*keys, rpm=600, max_concurrency=5))
    await fetch(gateway, ask(WEB, model="made-up-by-a-client"))
    gateway.script("rate_limit;seconds=0.01")
    await fetch(gateway, ask(WEB))
    await pause(gateway, WEB)
    calls = [ask(NIGHTLY, AN_HOUR, model="b"), ask(WEB, AN_HOUR, "x-gateway-tenant: made-up-too")]

    async with holding(gateway, *calls):
        text = (await fetch(gateway, get("/metrics"))).body.decode()
        families = metrics(gateway)
    after = metrics(gateway)

    def value(name: str, **labels: str) -> float:
        return sum_of(families, f"gateway_{name}", **labels)

    assert value("queue_depth") == 2
    assert value("queue_depth", model="a", lane="interactive") == value("queue_depth", model="b", lane="batch") == 1
    assert value("queue_wait_seconds_count", lane="interactive") == ASKED_FIRST
    assert 0 < value("queue_wait_seconds_sum", lane="interactive") < 5
    assert 0 < value("queue_oldest_seconds", lane="batch") < 10
    assert value("queue_bytes") == 2 * len(orjson.dumps(chat("a")))
    assert 0 <= value("limit_level", limit=f"{TARGET}:requests_per_min") < 600
    assert value("limit_level", limit=f"{TARGET}:concurrency") == 5
    assert 4 <= value("limit_level", limit="key:web:requests_per_min") < 7
    assert (
        4 <= value("limit_capacity", limit=f"{TARGET}:requests_per_min", source="configured") <= 10
    )  # a second's worth
    assert value("pauses_total", target=TARGET) == 2
    assert value("attempts_total", target=TARGET, **{"class": "rate_limit_requests"}) == 1 + ASKED_FIRST
    assert value("shed_level") == 0
    assert "made-up" not in text
    assert sum_of(after, "gateway_queue_depth") == sum_of(after, "gateway_queue_bytes") == 0
    assert sum_of(after, "gateway_queue_wait_seconds_count") == ASKED_FIRST + 2


async def test_a_held_stream_is_told_where_it_stands(start: StartGateway, tmp_path: Path) -> None:
    """Comments behind the soft delay, and then the answer."""
    gateway = await start(lambda url: limited(max_concurrency=1)(url) | queue_policy(tmp_path, TELL_SOON))
    gateway.script("silence")
    async with connect(gateway.url) as first:
        first.send(ask())
        await until(lambda: gateway.upstream_calls() == 1)
        async with holding(gateway, ask(AN_HOUR, stream=True)) as (waiting,):
            head = await waiting.reader.readuntil(b"\r\n\r\n")
            comment = await waiting.reader.readuntil(b"\n\n")
            first.close()
            rest = await waiting.reader.readuntil(b"0\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b": queued position=1" in comment
    assert b"data: [DONE]\n\n" in rest


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(("code", "line"), [(102, b"HTTP/1.1 102 Processing"), (103, b"HTTP/1.1 103 Early Hints")])
async def test_a_held_call_hears_interim_responses_where_they_are_asked_for(
    start: StartGateway, tmp_path: Path, code: int, line: bytes, version: str
) -> None:
    """Ahead of the answer, and never over HTTP/1.0, which does not know them (RFC 9110, 15.2)."""
    policy = queue_policy(tmp_path, f"{TELL_SOON}, interim: {code}")
    gateway = await start(lambda url: limited(max_concurrency=1)(url) | policy)
    gateway.script("silence")
    request = ask(AN_HOUR).replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    async with connect(gateway.url) as first:
        first.send(ask())
        await until(lambda: gateway.upstream_calls() == 1)
        async with holding(gateway, request) as (waiting,):
            told = [await waiting.reader.readuntil(b"\r\n\r\n") for _ in range(2 if version == "1.1" else 0)]
            first.close()
            answer = await waiting.reader.readuntil(b"\r\n\r\n")
            while answer.startswith(line):
                answer = await waiting.reader.readuntil(b"\r\n\r\n")

    assert told == [line + b"\r\n\r\n"] * len(told)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_the_sdk_reads_past_interim_responses(start: StartGateway, tmp_path: Path) -> None:
    """And a call that is not held long hears of none."""
    policy = queue_policy(tmp_path, f"{TELL_SOON}, interim: 103")
    gateway = await start(lambda url: limited(max_concurrency=1)(url) | policy)
    gateway.script("silence")
    async with connect(gateway.url) as first:
        first.send(ask())
        await until(lambda: gateway.upstream_calls() == 1)
        waiting = asyncio.ensure_future(complete_async(gateway))
        await until(lambda: held(gateway) == 1)
        for _ in range(3):
            await asyncio.sleep(0.05)  # some are sent meanwhile
        first.close()
        assert (await waiting).parse().choices[0].message.content


# The end.


async def test_a_shutdown_ends_those_who_wait(start: StartGateway, tmp_path: Path) -> None:
    """When the grace is over: 503 for a call, an error event for a stream that has heard a comment; no upstream call."""
    gateway = await start(
        lambda url: limited()(url) | queue_policy(tmp_path, TELL_SOON) | {"server": {"grace": "10ms"}}
    )
    await pause(gateway)

    async with holding(gateway, ask(AN_HOUR), ask(AN_HOUR, stream=True)) as (call, waiting):
        await waiting.reader.readuntil(b": queued")
        await gateway.gateway.drain(asyncio.Event())
        assert held(gateway) == 2
        await gateway.gateway.stop()
        answer = await call.response()
        rest = await waiting.rest()

    assert (answer.status, answer.error["code"]) == (503, "shutting_down")
    assert answer.header("retry-after-ms") == "1000"
    assert b'"code":"shutting_down"' in rest
    assert gateway.upstream_calls() == ASKED_FIRST
