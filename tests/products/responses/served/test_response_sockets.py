"""Responses over WebSocket: turns as POSTs would be served, at any target, in lanes, with the memory of their connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.emulator.config import EmulatorConfig
from gateway.products.responses.socket import ResponseConnection
from tests.dialects.grammar import check_responses
from tests.e2e.conftest import StartGateway, _no_traceback, _shared_process, pytest_asyncio_loop_factories, start
from tests.e2e.harness import KEYS, WEB_KEY, Running, config_of, to_yaml, until
from tests.e2e.harness import connect as dial

__all__ = ["_no_traceback", "_shared_process", "pytest_asyncio_loop_factories", "start"]
PRICE = {"input_usd_per_million": 2.0, "output_usd_per_million": 8.0}
LAST = ("response.completed", "response.failed", "response.incomplete", "error")
SLOW = EmulatorConfig(ttft_s=0.02, tokens_per_second=20.0, output_tokens=2000)


def config(url: str, **sections: Any) -> dict[str, Any]:
    """A model of a provider with Responses, one of chat completions, one of Anthropic's, and one that falls back to it."""
    made: dict[str, Any] = {**config_of(url), "keys": KEYS, **sections}
    made["providers"] = {
        **made["providers"],
        "claude": {"dialect": "anthropic", "base_url": "emulator://claude"},
        "gone": {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "sk-0123456789"},
    }
    made["models"] = {
        "native": {
            "targets": [{"provider": "main", "model": "gpt-4o", "speaks": ["chat", "responses"], "price": PRICE}]
        },
        "chat-only": {"targets": [{"provider": "main", "model": "gpt-4o", "speaks": ["chat"]}]},
        "claude": {"targets": ["claude/claude-opus-4-5"]},
        "moving": {"targets": ["gone/gpt-4o"], "fallbacks": ["claude"]},
    }
    return made


def socket(gateway: Running, key: str | None = WEB_KEY, **headers: str) -> connect:
    """A client's connection."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        named["authorization"] = f"Bearer {key}"
    url = f"ws{gateway.url.removeprefix('http')}/v1/responses"
    return connect(url, additional_headers=named, compression=None, ping_interval=None, proxy=None, max_size=None)


async def ask(connection: ClientConnection, model: str = "native", **fields: Any) -> None:
    """Sends a `response.create`."""
    fields.setdefault("input", "Say hello.")
    await connection.send(orjson.dumps({"type": "response.create", "model": model, **fields}).decode())


def asked_of(gateway: Running) -> dict[str, Any]:
    """The body that the provider has got last."""
    body: dict[str, Any] = orjson.loads(gateway.received()[-1]["body"])
    return body


async def events_of(connection: ClientConnection) -> list[dict[str, Any]]:
    """The events of one response, or the error that there is instead."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in LAST:
        text = await connection.recv()
        assert isinstance(text, str)
        events.append(orjson.loads(text))
    return events


async def turn(connection: ClientConnection, model: str = "native", **fields: Any) -> dict[str, Any]:
    """Asks, and returns the last event."""
    await ask(connection, model, **fields)
    return (await events_of(connection))[-1]


def connection_of(gateway: Running) -> ResponseConnection:
    """The only connection that is open."""
    (one,) = [one for one in gateway.inflight.serving if isinstance(one, ResponseConnection)]
    return one


async def close_of(connection: ClientConnection) -> tuple[int | None, str | None]:
    """How the connection ends."""
    with suppress(ConnectionClosed):
        while True:
            await connection.recv()
    return connection.close_code, connection.close_reason


async def lines_of(gateway: Running) -> list[dict[str, Any]]:
    """The call log of those who were served."""
    await gateway.idle()
    await gateway.stop()
    return [line for line in gateway.records if line.get("endpoint") == "responses"]


@pytest.mark.parametrize("model", ["native", "chat-only", "claude", "moving"])
async def test_a_turn_is_a_post_without_its_framing(start: StartGateway, model: str) -> None:
    """The events of a stream, in their order, at any target and behind a failover; one line in the log for each turn."""
    gateway = await start(config)
    async with socket(gateway) as connection:
        for _ in range(2):
            await ask(connection, model, store=False, max_output_tokens=20)
            events = await events_of(connection)
            assert check_responses(events)["status"] in ("completed", "incomplete")
            assert events[0]["headers"]["x-request-id"].startswith("req_")
            assert events[0]["headers"]["x-gateway-target"]
            assert not any("headers" in event for event in events[1:])
    lines = await lines_of(gateway)
    assert [(line["status"], line["outcome"]) for line in lines] == [(200, "ok")] * 2
    assert all(line["output_tokens"] > 0 for line in lines)


async def test_the_sdk_has_a_conversation(start: StartGateway) -> None:
    """The client of the official SDK, with a response that nobody keeps to go on from."""
    gateway = await start(config)
    async with gateway.sdk() as sdk, sdk.responses.connect() as connection:
        previous = None
        for text in ("My name is Alice.", "What is my name?"):
            await connection.response.create(model="chat-only", input=text, store=False, previous_response_id=previous)
            async for event in connection:
                if event.type == "response.completed":
                    previous = event.response.id
                    break
                assert event.type != "error"
    asked = asked_of(gateway)["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]


async def test_a_connection_remembers_what_nobody_keeps(start: StartGateway) -> None:
    """As one conversation, from any lane; another connection knows nothing of it. What is kept elsewhere goes as it came."""
    gateway = await start(config)
    async with socket(gateway) as connection, socket(gateway) as other:
        first = (await turn(connection, store=False, input="One."))["response"]["id"]
        second = await turn(connection, store=False, input=[], previous_response_id=first, stream_id="b")
        assert (second["type"], second["stream_id"]) == ("response.completed", "b")
        body = asked_of(gateway)
        assert [item["role"] for item in body["input"]] == ["user", "assistant"]
        assert body.keys().isdisjoint(("previous_response_id", "type", "stream_id"))
        stranger = await turn(other, "chat-only", store=False, previous_response_id=first)
        assert (stranger["status"], stranger["error"]["code"]) == (400, "previous_response_not_found")
        kept = (await turn(connection, input="Kept at the provider."))["response"]["id"]
        await turn(connection, previous_response_id=kept)
        assert asked_of(gateway)["previous_response_id"] == kept
        assert (await turn(connection, "chat-only"))["type"] == "response.completed"


@pytest.mark.parametrize("model", ["chat-only", "claude"])
async def test_a_turn_that_fails_takes_what_it_goes_on_from_along(start: StartGateway, model: str) -> None:
    """As OpenAI's connections do it; responses of other turns stay."""
    gateway = await start(config)
    async with socket(gateway) as connection:
        first = await turn(connection, model, store=False)
        second = await turn(connection, model, store=False, previous_response_id=first["response"]["id"])
        gone, known = second["response"]["id"], first["response"]["id"]
        failed = await turn(connection, model, store=False, previous_response_id=gone, temperature="hot")
        again = await turn(connection, model, store=False, previous_response_id=gone)
        other = await turn(connection, model, store=False, previous_response_id=known)

    assert failed["status"] == 400
    assert (again["status"], again["error"]["code"]) == (400, "previous_response_not_found")
    assert other["type"] == "response.completed"


async def test_a_warm_up_asks_nobody(start: StartGateway) -> None:
    """Its input comes before that of the turn that goes on from it."""
    gateway = await start(config)
    async with socket(gateway) as connection:
        warm = await turn(connection, input="Be brief.", generate=False)
        assert (warm["type"], warm["response"]["usage"]["total_tokens"]) == ("response.completed", 0)
        assert gateway.upstream_calls() == 0
        await turn(connection, input="Hello.", previous_response_id=warm["response"]["id"])
        assert [item["content"][0]["text"] for item in asked_of(gateway)["input"]] == [
            "Be brief.",
            "Hello.",
        ]
        refused = await turn(connection, "nobody", generate=False)
        assert (refused["error"]["status"], refused["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("no json", 400, "invalid_json"),
        ("[]", 400, "invalid_json"),
        ('{"model":"native"}', 400, "invalid_type"),
        ('{"type":"session.update"}', 400, "invalid_value"),
        ('{"type":"response.create","model":"native","input":"x","background":true}', 400, "background_not_allowed"),
        ('{"type":"response.create","model":"native","input":"x","stream_id":""}', 400, "invalid_value"),
        ('{"type":"response.create","model":"native","input":"x","type":"response.create"}', 400, "duplicate_field"),
        ('{"type":"response.create","model":"native","model":"x","input":"x"}', 400, "duplicate_field"),
        ('{"type":"response.create","model":"nobody","input":"x"}', 404, "model_not_found"),
        (
            '{"type":"response.create","model":"native","input":[' + "[" * 600 + "]" * 600 + "]}",
            400,
            "body_too_complex",
        ),
    ],
)
async def test_what_cannot_be_served_is_an_error_and_no_end(
    start: StartGateway, text: str, status: int, code: str
) -> None:
    """In OpenAI's shape; the next turn is served."""
    gateway = await start(config)
    async with socket(gateway) as connection:
        await connection.send(text)
        (error,) = await events_of(connection)
        assert (error["error"].get("status", error["status"]), error["error"]["code"]) == (status, code)
        assert error["status"] == 400, "clients know by it that trying again is of no use"
        assert error["error"]["message"]
        assert (await turn(connection))["type"] == "response.completed"


async def test_a_providers_error_is_told_with_its_status(start: StartGateway) -> None:
    """Before the first event as what a POST would get, with its headers; in the middle as the last event."""
    gateway = await start(config, emulator=EmulatorConfig(output_tokens=30))
    gateway.script("e403")
    async with socket(gateway) as connection:
        error = await turn(connection)
        assert (error["status"], error["error"]["status"]) == (400, 403)
        assert error["error"]["type"] == "invalid_request_error"
        assert error["headers"]["x-gateway-target"] == "main/gpt-4o"
        gateway.script("cut;after_chunks=3")
        await ask(connection)
        events = await events_of(connection)
        assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.failed")
        assert events[-1]["response"]["error"]["code"] == "stream_interrupted"
        assert "error" not in [event["type"] for event in events], "Codex waits on behind it"
        assert (await turn(connection))["type"] == "response.completed"
        await connection.send(b"bytes")
        assert (await close_of(connection))[0] == 1003


async def test_lanes_go_side_by_side_and_each_in_order(start: StartGateway) -> None:
    """A slow response holds up its own lane alone; too many lanes are refused."""
    gateway = await start(config, emulator=EmulatorConfig(ttft_s=0.02, output_tokens=3))
    async with socket(gateway) as connection:
        for number in range(3):
            for lane in ("a", "b"):
                await ask(connection, stream_id=lane, metadata={"n": f"{lane}{number}"})
        seen: list[str] = []
        while len([kind for kind in seen if kind.endswith("completed")]) < 6:
            event = orjson.loads(await connection.recv())
            if event["type"] in ("response.created", "response.completed"):
                seen.append(f"{event['stream_id']}:{event['type']}")
        for lane in ("a", "b"):
            own = [kind.partition(":")[2] for kind in seen if kind.startswith(lane)]
            assert own == ["response.created", "response.completed"] * 3
        assert seen.index("b:response.created") < len(seen) - 1 - seen[::-1].index("a:response.completed")
        gateway.script(*["slow_first_token;seconds=0.5"] * 20)
        for number in range(20):
            await ask(connection, stream_id=str(number))
        ends: list[dict[str, Any]] = []
        while len(ends) < 20:
            event = orjson.loads(await connection.recv())
            ends += [event] if event["type"] in LAST else []
        assert [end["error"]["code"] for end in ends if end["type"] == "error"] == ["too_many_streams"] * 4


async def test_a_client_that_leaves_stops_what_it_has_asked_for(start: StartGateway) -> None:
    """At the provider, within a moment; and what waited for its turn never comes."""
    gateway = await start(config, emulator=SLOW)
    connection = await socket(gateway)
    await ask(connection)
    await ask(connection)
    await connection.recv()
    connection.transport.abort()
    async with asyncio.timeout(2):
        await gateway.idle()
        await until(lambda: gateway.emulator.emulator.stats.active == 0)
    assert gateway.upstream_calls() == 1
    assert [line["outcome"] for line in await lines_of(gateway)] == ["client_gone"]


async def test_who_does_not_read_holds_its_provider_back(start: StartGateway) -> None:
    """What waits for a client is bounded, and all of it comes in the end."""
    gateway = await start(config, emulator=EmulatorConfig(output_tokens=15_000))
    async with connect(
        f"ws{gateway.url.removeprefix('http')}/v1/responses",
        additional_headers={"authorization": f"Bearer {WEB_KEY}"},
        compression=None, ping_interval=None, proxy=None, max_size=None, max_queue=1,
    ) as connection:  # fmt: skip
        await ask(connection, max_output_tokens=15_000)
        await asyncio.sleep(0.5)
        assert connection_of(gateway).client.unsent < 2 * 1024 * 1024
        events = await events_of(connection)
    assert check_responses(events)["status"] == "completed"


async def test_refusals_come_before_the_upgrade(start: StartGateway) -> None:
    """Without a key, with headers of one call, and of web pages where there are no keys."""
    gateway, open_one = await start(config), await start(lambda url: config(url, keys=[]))
    cases = [
        (socket(gateway, None), 401, "invalid_api_key"),
        (socket(gateway, "sk-wrong"), 401, "invalid_api_key"),
        (socket(gateway, idempotency_key="once"), 400, "invalid_handshake"),
        (socket(open_one, None, origin="https://evil.example"), 403, None),
    ]
    for opening, status, code in cases:
        with pytest.raises(InvalidStatus) as refused:
            await opening
        assert refused.value.response.status_code == status
        error = orjson.loads(refused.value.response.body or b"")["error"]
        assert error["code"] == code or code is None
    async with gateway.sdk() as sdk:
        with pytest.raises(openai.APIStatusError) as plain:
            await sdk.get("/responses", cast_to=object)
    assert plain.value.status_code == 405


async def test_a_revoked_key_and_a_spent_budget_end_the_connection(start: StartGateway) -> None:
    """4008, behind an error."""
    budget: Mapping[str, Any] = {**KEYS[0], "budget_usd_per_day": 1e-7, "allow_overspend": True}
    gateway = await start(lambda url: config(url, keys=[budget]))
    async with socket(gateway) as connection:
        assert (await turn(connection))["type"] == "response.completed"
        assert (await turn(connection))["error"]["code"] == "budget_exceeded"
        assert (await close_of(connection))[0] == 4008
    async with socket(gateway) as connection:
        gateway.write_config(to_yaml(config(gateway.emulator.base_url, keys=KEYS[1:])))
        gateway.gateway.reload()
        (error,) = await events_of(connection)
        assert error["error"]["code"] == "invalid_api_key"
        assert (await close_of(connection))[0] == 4008


async def test_a_drain_lets_turns_end_and_takes_no_more(start: StartGateway) -> None:
    """Idle connections hear 1012 at once, others behind their last turn; when the grace is over it breaks off."""
    pace = EmulatorConfig(ttft_s=0.1, tokens_per_second=20.0, output_tokens=8)
    gateway = await start(config, emulator=pace)
    async with socket(gateway) as idle, socket(gateway) as busy:
        await ask(busy)
        await busy.recv()
        draining = asyncio.create_task(gateway.gateway.drain(asyncio.Event()))
        assert (await close_of(idle))[0] == 1012
        assert (await events_of(busy))[-1]["type"] == "response.completed"
        assert (await close_of(busy))[0] == 1012
        await draining
    gateway = await start(config, emulator=SLOW)
    async with socket(gateway) as busy:
        await ask(busy)
        await busy.recv()
        stopping = asyncio.create_task(gateway.stop())
        assert (await events_of(busy))[-1]["error"]["code"] == "shutting_down"
        assert (await close_of(busy))[0] == 1012
        await stopping


async def test_a_connection_has_its_hour(start: StartGateway) -> None:
    """OpenAI's own error, behind what is under way."""
    gateway = await start(config, emulator=EmulatorConfig(ttft_s=0.3, output_tokens=3))
    async with socket(gateway) as connection:
        await ask(connection)
        await until(lambda: gateway.upstream_calls() == 1)
        connection_of(gateway).ends_at = 0.0
        gateway.inflight.sweep(1e12)
        await ask(connection)
        assert (await events_of(connection))[-1]["type"] == "response.completed"
        (error,) = await events_of(connection)
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        assert (await close_of(connection))[0] == 1001


async def test_steering_is_declined(start: StartGateway) -> None:
    """With the input given back, as OpenAI's API does where a model cannot be steered."""
    gateway = await start(config)
    async with socket(gateway) as connection:
        await connection.send('{"type":"response.steer","previous_response_id":"resp_1","input":"Faster."}')
        event = orjson.loads(await connection.recv())
    assert (event["type"], event["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
    assert event["steer"] == {"input": "Faster.", "previous_response_id": "resp_1"}


HANDSHAKE = (
    f"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {WEB_KEY}\r\nupgrade: websocket\r\n"
    "connection: Upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
).encode()


def frames_without_end(size: int, *, fragments: int) -> bytes:
    """So many bytes of a text message that goes on, in one frame or several (RFC 6455, 5.2), masked with nothing."""
    part, no_mask = size // fragments, bytes(4)
    if fragments == 1:
        return b"\x81\xff" + (2 * size).to_bytes(8) + no_mask + b"a" * size
    frame = b"\xff" + part.to_bytes(8) + no_mask + b"a" * part
    return b"\x01" + frame + (b"\x00" + frame) * (fragments - 1)


@pytest.mark.parametrize("fragments", [1, 5])
async def test_messages_that_do_not_end_are_bounded_together(
    start: StartGateway, tmp_path: Path, fragments: int
) -> None:
    """They count like bodies: the newest is closed with 1013 beyond the bound, what is slow with 1008 after `body_timeout`."""
    (tmp_path / "queue.yaml").write_text(to_yaml({"default": {"max_bytes": "5MB"}}))
    gateway = await start(lambda url: config(url, policies=str(tmp_path)))
    bodies = gateway.inflight.bodies
    async with dial(gateway.url) as first, dial(gateway.url) as second:
        for peer in (first, second):
            peer.send(HANDSHAKE)
            await peer.reader.readuntil(b"\r\n\r\n")
        first.send(frames_without_end(3_000_000, fragments=fragments))
        await until(lambda: bodies.bytes >= 3_000_000)
        second.send(frames_without_end(3_000_000, fragments=fragments))
        refused = await second.rest()
        assert 3_000_000 <= bodies.bytes < 4_000_000
        gateway.inflight.sweep(gateway.gateway._clock.monotonic() + 61.0)
        late = await first.rest()
        await until(lambda: bodies.bytes == 0 and len(gateway.inflight) == 0)

    assert b"no room" in refused or refused == b""  # what it still sends resets the connection, maybe before it reads
    assert b"did not arrive in time" in late
