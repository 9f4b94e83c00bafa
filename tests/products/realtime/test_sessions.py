"""What a session promises, from the handshake to the last word of either side."""

from __future__ import annotations

import asyncio
import socket as socket_module
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol

from tests.e2e.harness import KEYS, NIGHTLY_KEY, PROVIDER_KEY, WEB_KEY, Running, get, until
from tests.e2e.harness import connect as open_connection
from tests.fixtures.sessions import StartRealtime, config_at
from tests.products.realtime.provider import created, delta, done, one_turn, provider


def session(
    gateway: Running, query: str = "?model=gpt-realtime", *, key: str | None = WEB_KEY, **options: Any
) -> connect:
    """A client's session through the gateway."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    options = {"compression": None, "ping_interval": None, "proxy": None, "max_size": None, **options}
    options["additional_headers"] = {**headers, **options.get("additional_headers", {})}
    return connect(f"ws{gateway.url.removeprefix('http')}/v1/realtime{query}", **options)


async def turn(socket: ClientConnection) -> list[str]:
    """Asks for a response, and returns all its events."""
    await socket.send('{"type":"response.create"}')
    events: list[str] = []
    while not events or '"response.done"' not in events[-1]:
        events.append(str(await socket.recv()))
    return events


async def close_of(socket: ClientConnection) -> tuple[int | None, str | None]:
    """How the session ends; what comes before is not looked at."""
    with suppress(ConnectionClosed):
        while True:
            await socket.recv()
    return socket.close_code, socket.close_reason


async def refusal(opening: connect) -> tuple[int, dict[str, Any]]:
    """The answer to a handshake that is refused, checked to be in OpenAI's shape."""
    with pytest.raises(InvalidStatus) as refused:
        await opening
    answer = refused.value.response
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = orjson.loads(answer.body or b"")["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status_code, error


async def lines_of(gateway: Running) -> list[dict[str, Any]]:
    """The call log, once nobody is served any more."""
    await gateway.idle()
    await gateway.gateway.stop()
    return [orjson.loads(each) for each in gateway.log.getvalue().splitlines()]


async def test_a_turn_is_relayed_counted_and_priced(start: StartRealtime) -> None:
    """Frames go through as they are; the log has the tokens of each `response.done` and what they cost."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            assert await socket.recv() == created()
            assert await turn(socket) == [delta("Hel"), delta("lo"), done()]
            assert await turn(socket) == [delta("Hel"), delta("lo"), done()]
        assert await upstream.closed.get() == (1000, "")
    (asked,) = upstream.handshakes
    assert asked.path == "/v1/realtime?model=gpt-realtime-2"
    assert asked.headers["authorization"] == f"Bearer {PROVIDER_KEY}"
    (line,) = await lines_of(gateway)
    names = ("endpoint", "model", "status", "outcome", "target", "input_tokens", "output_tokens", "cached_tokens")
    told = {name: line[name] for name in names}
    assert told == {
        "endpoint": "realtime",
        "model": "gpt-realtime",
        "status": 101,
        "outcome": "ok",
        "target": "p0/gpt-realtime-2",
        "input_tokens": 40,
        "output_tokens": 20,
        "cached_tokens": 16,
    }
    assert line["cost_usd"] == pytest.approx((40 * 4 + 20 * 16) / 1e6)


async def test_a_response_that_is_left_costs_what_has_come_of_it(start: StartRealtime) -> None:
    """Its text by its bytes, its sound by its time; what was reported before counts as it is."""
    sound = orjson.dumps({**orjson.loads(delta("")), "type": "response.output_audio.delta", "delta": "A" * 64_000})

    async def leaves_off(socket: ServerConnection) -> None:
        await socket.send(created())
        await socket.recv()
        for event in (delta("Hi"), done(), delta("word" * 100), sound.decode()):
            await socket.send(event)
        await socket.wait_closed()

    async with provider(leaves_off) as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            await socket.recv()
            await socket.send('{"type":"response.create"}')
            for _ in range(4):
                await socket.recv()
        (line,) = await lines_of(gateway)
    assert (line["input_tokens"], line["output_tokens"], line["usage_estimated"]) == (20, 10 + 100 + 20, True)
    assert line["cost_usd"] == pytest.approx((20 * 4 + 130 * 16) / 1e6)


async def test_a_long_session_costs_all_that_its_responses_have_used(start: StartRealtime) -> None:
    """More input than any one call has; what ends without a report costs what has come of it."""
    used = {"total_tokens": 8_000_010, "input_tokens": 8_000_000, "output_tokens": 10}

    async def talks(socket: ServerConnection) -> None:
        await socket.send(created())
        for event in (done(used), done(used), done(used), delta("word" * 100), done(None)):
            await socket.send(event)
        await socket.wait_closed()

    async with provider(talks) as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            for _ in range(6):
                await socket.recv()
        (line,) = await lines_of(gateway)
    assert (line["input_tokens"], line["output_tokens"], line["usage_estimated"]) == (24_000_000, 130, True)
    assert line["cost_usd"] == pytest.approx((24_000_000 * 4 + 130 * 16) / 1e6)
    ((_, estimated_usd, _),) = gateway.gateway._telemetry.costs().values()
    assert estimated_usd == pytest.approx(100 * 16 / 1e6)


def priced(price: dict[str, Any]) -> dict[str, Any]:
    """Sections of a config whose target has this price."""
    target = {"provider": "p0", "model": "gpt-realtime-2", "price": price}
    return {"models": {"gpt-realtime": {"targets": [target]}}}


async def test_each_response_has_the_price_of_its_own_length(start: StartRealtime) -> None:
    """Two of 20 tokens are not one of 40, which would be dearer, and each costs what a call does by itself."""
    price = {
        "input_usd_per_million": 4.0,
        "output_usd_per_million": 16.0,
        "request_usd_per_thousand": 1.0,
        "above": [{"input_tokens": 30, "input_usd_per_million": 400.0}],
    }
    async with provider() as upstream:
        gateway = await start(upstream.url, **priced(price))
        async with session(gateway) as socket:
            await socket.recv()
            await turn(socket)
            await turn(socket)
        (line,) = await lines_of(gateway)
    assert (line["input_tokens"], line["output_tokens"]) == (40, 20)
    assert line["cost_usd"] == pytest.approx(2 * ((20 * 4 + 10 * 16) / 1e6 + 0.001))


async def test_a_response_that_ends_without_usage_costs_what_has_come_of_it(start: StartRealtime) -> None:
    async def forgets(socket: ServerConnection) -> None:
        await socket.send(created())
        await socket.recv()
        for event in (delta("word" * 100), done(None), delta("word" * 50), done()):
            await socket.send(event)
        await socket.wait_closed()

    async with provider(forgets) as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            await socket.recv()
            await socket.send('{"type":"response.create"}')
            for _ in range(4):
                await socket.recv()
        (line,) = await lines_of(gateway)
    assert (line["input_tokens"], line["output_tokens"], line["usage_estimated"]) == (20, 110, True)


async def test_a_response_that_spends_the_budget_does_not_go_on(start: StartRealtime) -> None:
    """What has come of it counts before its end: $0.0064 of $0.005 left."""
    key = {**KEYS[0], "budget_usd_per_day": 0.005, "allow_overspend": True}

    async def rambles(socket: ServerConnection) -> None:
        await socket.send(created())
        await socket.recv()
        await socket.send(delta("word" * 400))
        await socket.wait_closed()

    async with provider(rambles) as upstream:
        gateway = await start(upstream.url, keys=[key])
        async with session(gateway) as socket:
            await socket.recv()
            await socket.send('{"type":"response.create"}')
            await socket.recv()
            error = orjson.loads(await socket.recv())
            assert (error["type"], error["error"]["code"]) == ("error", "budget_exceeded")
            assert (await close_of(socket))[0] == 4008
        (line,) = await lines_of(gateway)
    assert line["cost_usd"] == pytest.approx(400 * 16 / 1e6)


async def test_the_real_sdk_has_a_conversation(start: StartRealtime) -> None:
    """`client.realtime.connect`, unmodified."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        client = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=WEB_KEY)
        said = ""
        async with client.realtime.connect(model="gpt-realtime") as connection:
            await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
            await connection.response.create()
            async for event in connection:
                if event.type == "response.output_text.delta":
                    said += event.delta
                if event.type == "response.done":
                    assert event.response.usage is not None
                    assert event.response.usage.total_tokens == 30
                    break
        await client.close()
    assert said == "Hello"


@pytest.mark.parametrize("trouble", ["dead", "ill", "no socket"])
async def test_the_next_target_is_tried_before_the_first_frame(start: StartRealtime, trouble: str) -> None:
    """Of a dead provider, one that answers with an error, and one that speaks HTTP alone, the client sees nothing."""
    async with provider() as ill, provider() as well:
        status = 200 if trouble == "no socket" else 503
        ill.refuse.append((status, {"message": "overloaded", "type": "server_error", "param": None, "code": None}))
        gateway = await start("http://127.0.0.1:9/v1" if trouble == "dead" else ill.url, well.url)
        async with session(gateway) as socket:
            assert socket.response is not None
            assert socket.response.headers["x-gateway-target"] == "p1/gpt-realtime-2"
            assert await socket.recv() == created()
        (line,) = await lines_of(gateway)
    assert len(line["attempts"]) == 2
    assert line["outcome"] == "ok"


async def test_a_handshake_without_an_answer_is_tried_at_the_next_target(start: StartRealtime, tmp_path: Path) -> None:
    """It has a clock of its own: clients do not wait as long as for an answer that has to be thought of."""
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "timeouts.yaml").write_text("default: {endpoints: {realtime: {first_byte: 50ms}}}\n")
    with socket_module.create_server(("127.0.0.1", 0)) as mute:
        async with provider() as well:
            url = f"http://127.0.0.1:{mute.getsockname()[1]}/v1"
            gateway = await start(url, well.url, policies=str(policies))
            async with session(gateway) as socket:
                assert await socket.recv() == created()
            (line,) = await lines_of(gateway)
    assert [attempt.partition("(")[0] for attempt in line["attempts"]] == [
        "p0/gpt-realtime-2:timeout",
        "p1/gpt-realtime-2:101",
    ]


async def test_a_providers_error_is_the_answer_to_the_handshake(start: StartRealtime) -> None:
    """As it was said, where nothing else helps."""
    async with provider() as upstream:
        error = {"message": "no such session", "type": "invalid_request_error", "param": None, "code": "bad"}
        upstream.refuse.append((400, error))
        gateway = await start(upstream.url)
        assert await refusal(session(gateway)) == (400, error)


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("?model=gpt-realtime", {"key": None}, 401, "invalid_api_key"),
    ("?model=gpt-realtime", {"key": "sk-wrong-0123456789"}, 401, "invalid_api_key"),
    ("?model=unknown", {}, 404, "model_not_found"),
    ("?model=gpt-realtime", {"key": NIGHTLY_KEY}, 403, "model_not_allowed"),
    ("", {}, 400, "missing_field"),
    ("?model=", {}, 400, "invalid_value"),
    ("?model=gpt-realtime&model=other", {}, 400, "invalid_value"),
]


@pytest.mark.parametrize(("query", "options", "status", "code"), REFUSED)
async def test_refusals_come_before_the_upgrade(
    start: StartRealtime, query: str, options: dict[str, Any], status: int, code: str
) -> None:
    """In OpenAI's shape, and no provider hears of it."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        answer, error = await refusal(session(gateway, query, **options))
    assert (answer, error["code"]) == (status, code)
    assert upstream.handshakes == []


async def test_web_pages_of_other_sites_may_not_open_one_without_keys(start: StartRealtime) -> None:
    """As with every call: `Origin` and `Host` are looked at where there are no keys."""
    async with provider() as upstream:
        gateway = await start(upstream.url, keys=[])
        status, error = await refusal(session(gateway, key=None, origin="https://evil.example"))
        assert (status, error["code"]) == (403, "origin_not_allowed")
        async with session(gateway, key=None, origin="http://localhost:3000") as socket:
            assert await socket.recv() == created()


async def test_a_browsers_key_is_understood_and_told_to_nobody(
    start: StartRealtime, caplog: pytest.LogCaptureFixture
) -> None:
    """`openai-insecure-api-key.*` opens the gateway; it is no subprotocol for the provider, nor in answer or log."""
    offered = ["realtime", f"openai-insecure-api-key.{WEB_KEY}", "openai-organization.org-1"]
    async with provider() as upstream:
        gateway = await start(upstream.url)
        async with session(gateway, key=None, subprotocols=[Subprotocol(each) for each in offered]) as socket:
            assert socket.subprotocol == "realtime"
            assert socket.response is not None
            assert WEB_KEY not in str(socket.response.headers)
            await turn(socket)
        wrong = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.sk-wrong-0123456789")]
        status, error = await refusal(session(gateway, key=None, subprotocols=wrong))
        assert (status, error["code"]) == (401, "invalid_api_key")
        assert "sk-wrong" not in str(error)
    (asked,) = upstream.handshakes
    assert asked.headers["sec-websocket-protocol"] == "realtime"
    assert asked.headers["authorization"] == f"Bearer {PROVIDER_KEY}"
    assert WEB_KEY not in str(asked.headers)
    await gateway.idle()
    await gateway.gateway.stop()
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("websockets")]
    assert WEB_KEY not in gateway.log.getvalue() + "".join(ours)


async def test_a_providers_key_is_not_repeated_by_its_frames(start: StartRealtime) -> None:
    """An error event may quote what it was sent."""

    async def says_the_key(socket: ServerConnection) -> None:
        await socket.send(orjson.dumps({"type": "error", "error": {"message": f"bad key {PROVIDER_KEY}"}}).decode())

    async with provider(says_the_key) as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            said = str(await socket.recv())
    assert PROVIDER_KEY not in said
    assert "bad key ****" in said


async def test_bytes_go_both_ways_however_they_are_cut(start: StartRealtime) -> None:
    """Text, binary, fragments and a frame of 12 MiB come as they went."""
    got: list[object] = []

    async def echoes(socket: ServerConnection) -> None:
        async for message in socket:
            got.append(message)
            await socket.send(message)

    large = "x" * (12 * 1024 * 1024)
    async with provider(echoes, max_size=None) as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            for message in ("", "äö", b"\x00\xff", large):
                await socket.send(message)
                assert await socket.recv() == message
            await socket.send(["a", "b", "c"])
            assert await socket.recv() == "abc"
    assert got == ["", "äö", b"\x00\xff", large, "abc"]


async def test_a_frame_of_more_than_16_mib_ends_the_session(start: StartRealtime) -> None:
    """With 1009 for who sent it, and a word to the other side."""
    async with provider(one_turn, max_size=None) as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            await socket.recv()
            with suppress(ConnectionClosed):
                await socket.send(b"x" * (16 * 1024 * 1024 + 1))
            assert (await close_of(socket))[0] == 1009
        assert (await upstream.closed.get())[0] in (1001, 1006)


async def test_who_does_not_read_holds_the_other_back(start: StartRealtime) -> None:
    """A provider that sends 64 MiB to a client that reads nothing is stopped; when the client reads, all of it comes."""
    sent = 0

    async def floods(socket: ServerConnection) -> None:
        nonlocal sent
        for _ in range(1024):
            await socket.send(b"y" * 65536)
            sent += 1

    async with provider(floods, write_limit=65536) as upstream:
        gateway = await start(upstream.url)
        async with session(gateway, max_queue=1) as socket:
            before = -1
            while before != sent:  # until nothing moves any more
                before = sent
                await asyncio.sleep(0.2)
            assert sent < 512
            (open_one,) = gateway.sessions.open_sessions
            assert open_one.client is not None
            assert open_one.client.congested
            assert open_one.provider.reading_paused
            for _ in range(1024):
                assert len(await socket.recv()) == 65536
    assert sent == 1024


async def test_who_pings_and_reads_nothing_is_cut_off(start: StartRealtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers to its pings would fill the memory."""
    monkeypatch.setattr("gateway.core.websocket.MAX_UNSENT_BYTES", 4096)
    monkeypatch.setattr("gateway.core.websocket.MOST_UNSENT_BYTES", 8192)
    async with provider() as upstream:
        gateway = await start(upstream.url)
        socket = await session(gateway)
        await socket.recv()
        socket.transport.pause_reading()
        frame = Frame(Opcode.PING, b"p" * 125).serialize(mask=True) * 1000
        async with asyncio.timeout(20):
            while gateway.sessions.open_sessions:
                socket.transport.write(frame)
                await asyncio.sleep(0)
        assert (await upstream.closed.get())[0] == 1001
        socket.transport.abort()


async def test_codes_and_reasons_pass_through(start: StartRealtime) -> None:
    """Of either side, and none where there was none."""

    async def leaves(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.close(4321, "enough")

    async with provider(leaves) as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            await socket.send("go")
            assert await close_of(socket) == (4321, "enough")
        async with session(gateway) as socket:
            await socket.close(4567, "bye")
        socket = await session(gateway)
        socket.protocol.send_close()  # without a code
        socket.send_data()
        codes = [await upstream.closed.get() for _ in range(3)]
        await socket.wait_closed()
    assert codes == [(4321, "enough"), (4567, "bye"), (1005, "")]


async def test_a_client_that_is_gone_frees_the_provider_at_once(start: StartRealtime) -> None:
    """No timer is waited for."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        socket = await session(gateway)
        await socket.recv()
        socket.transport.abort()
        async with asyncio.timeout(2):
            assert (await upstream.closed.get())[0] == 1001
        (line,) = await lines_of(gateway)
    assert (line["status"], line["outcome"]) == (101, "client_gone")


async def test_a_provider_that_is_gone_ends_the_session(start: StartRealtime) -> None:
    """The client hears 1014, bad gateway; the attempt counts as broken."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            await socket.recv()
            upstream.sockets[0].transport.abort()
            code, reason = await close_of(socket)
        assert (code, reason) == (1014, "The provider's connection broke.")
        (line,) = await lines_of(gateway)
    assert line["outcome"] == "stream_interrupted"


async def test_a_spent_budget_ends_the_session(start: StartRealtime) -> None:
    """An error event tells why, then 4008; the next handshake is refused."""
    key = {**KEYS[0], "budget_usd_per_day": 0.0006, "allow_overspend": True}
    async with provider() as upstream:
        gateway = await start(upstream.url, keys=[key])
        async with session(gateway) as socket:
            await socket.recv()
            await turn(socket)
            await turn(socket)
            await turn(socket)
            error = orjson.loads(await socket.recv())
            assert (error["type"], error["error"]["code"]) == ("error", "budget_exceeded")
            assert (await close_of(socket))[0] == 4008
        status, refused = await refusal(session(gateway))
        assert (status, refused["code"]) == (429, "budget_exceeded")
        (line, *_) = await lines_of(gateway)
    assert line["outcome"] == "budget_exceeded"
    assert line["cost_usd"] == pytest.approx(3 * (20 * 4 + 10 * 16) / 1e6)


async def test_a_revoked_key_ends_the_session(start: StartRealtime) -> None:
    """With the reload that takes the key away, at the next sweep."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            await socket.recv()
            version = gateway.gateway.policy.version
            gateway.write_config(config_at(upstream.url, keys=[KEYS[1]]))
            gateway.gateway.reload()
            await until(lambda: gateway.gateway.policy.version > version)
            error = orjson.loads(await socket.recv())
            assert error["error"]["code"] == "invalid_api_key"
            assert (await close_of(socket))[0] == 4008


async def test_at_shutdown_sessions_end_with_1012(start: StartRealtime) -> None:
    """In the middle of a response, too, when the grace is over."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            await socket.recv()
            await gateway.gateway.stop()
            assert (await close_of(socket))[0] == 1012
        assert (await upstream.closed.get())[0] == 1000
        (line,) = await lines_of(gateway)
    assert line["outcome"] == "shutdown"


async def test_a_drain_lets_a_response_end_first(start: StartRealtime) -> None:
    """A session that is quiet ends at once, one that is busy behind its `response.done`."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        sessions = gateway.sessions
        async with session(gateway) as socket:
            await socket.recv()
            now = gateway.gateway._clock.monotonic()
            sessions.sweep(now, is_draining=True)
            assert len(sessions.open_sessions) == 1  # the provider spoke a moment ago
            await turn(socket)
            assert (await close_of(socket))[0] == 1012
        async with session(gateway) as socket:
            await socket.recv()
            now = gateway.gateway._clock.monotonic()
            sessions.sweep(now, is_draining=False)
            sessions.sweep(now + 3, is_draining=True)
            assert (await close_of(socket))[0] == 1012


async def test_silence_is_asked_and_then_taken_for_absence(start: StartRealtime) -> None:
    """Each side is sent a ping after 20 s without a word; who says nothing for another 20 s is gone."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        sessions = gateway.sessions
        async with session(gateway) as socket:
            await socket.recv()
            (open_one,) = sessions.open_sessions
            provider_end = upstream.sockets[0]
            now = gateway.gateway._clock.monotonic()
            sessions.sweep(now, is_draining=False)
            provider_end.transport.pause_reading()  # it hangs: no pong
            sessions.sweep(now + 20, is_draining=False)
            await until(lambda: bool(open_one.client and open_one.client.is_alive))  # the client's pong
            sessions.sweep(now + 39, is_draining=False)
            assert sessions.open_sessions
            sessions.sweep(now + 40, is_draining=False)
            assert await close_of(socket) == (1014, "The provider gives no sign of life.")
    (line,) = await lines_of(gateway)
    assert line["outcome"] == "timeout"


async def test_a_session_has_its_hour(start: StartRealtime) -> None:
    """And no more."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        sessions = gateway.sessions
        async with session(gateway) as socket:
            await socket.recv()
            sessions.sweep(gateway.gateway._clock.monotonic() + 3600, is_draining=False)
            assert orjson.loads(await socket.recv())["error"]["code"] == "session_expired"
            assert (await close_of(socket))[0] == 1001


async def test_a_session_holds_one_slot_and_charges_tokens(start: StartRealtime) -> None:
    """The slot is given back at the end; the tokens are charged with each response."""
    async with provider() as upstream:
        target = {"provider": "p0", "model": "gpt-realtime-2", "max_concurrency": 1, "tpm": 1000}
        gateway = await start(
            upstream.url,
            models={"gpt-realtime": {"targets": [target]}},
            keys=[{**KEYS[0], "max_concurrency": 5, "tpm": 1000}],
        )
        admission = gateway.gateway._admission
        gate = admission.gates.lines["p0/gpt-realtime-2"].gate
        async with session(gateway) as socket:
            await socket.recv()
            assert gate.in_flight == 1
            await turn(socket)
            levels = {
                one.name: one.limit.level_at(gateway.gateway._clock.monotonic()) for one in gate.limits.table.known
            }
            assert 960 < levels["tokens_per_min"] < 980
        await gateway.idle()
        assert gate.in_flight == 0
        now = gateway.gateway._clock.monotonic()
        of_key = {one.name: one.limit.level_at(now) for one in admission.keys.sets["web"].table.known}
        assert 960 < of_key["tokens_per_min"] < 980


async def test_nothing_is_left_of_many_sessions(start: StartRealtime) -> None:
    """Neither at the gateway's connections nor among those who are served."""
    async with provider() as upstream:
        gateway = await start(upstream.url)

        async def one() -> None:
            async with session(gateway) as socket:
                await turn(socket)

        await asyncio.gather(*(one() for _ in range(20)))
        await gateway.idle()
        await until(lambda: not gateway.connections)
        assert gateway.sessions.open_sessions == set()


async def test_without_the_package_the_answer_names_it(start: StartRealtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """501, and what to install."""
    monkeypatch.setattr("gateway.products.realtime.http.find_spec", lambda _name: None)
    async with provider() as upstream:
        gateway = await start(upstream.url)
        status, error = await refusal(session(gateway))
    assert (status, error["code"]) == (501, "websocket_not_supported")
    assert "pip install '.[realtime]'" in error["message"]


@pytest.mark.parametrize(("method", "version"), [("HEAD", "1.1"), ("GET", "1.0")])
async def test_only_a_get_of_http_1_1_is_a_handshake(start: StartRealtime, method: str, version: str) -> None:
    """RFC 6455, 4.1."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        lines = ["connection: Upgrade", "upgrade: websocket", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="]
        lines += ["sec-websocket-version: 13", f"authorization: Bearer {WEB_KEY}"]
        asked = get("/v1/realtime?model=gpt-realtime", *lines, method=method)
        async with open_connection(gateway.url) as peer:
            peer.send(asked.replace(b"HTTP/1.1", b"HTTP/" + version.encode(), 1))
            answer = await peer.response(head=method == "HEAD")
    assert answer.status == 426
    assert upstream.handshakes == []


async def test_a_plain_get_is_told_to_upgrade(start: StartRealtime) -> None:
    """426, as RFC 9110 has it."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        client = gateway.sdk()
        answer = await client._client.get(f"{gateway.url}/v1/realtime?model=gpt-realtime", headers=client.auth_headers)
        await client.close()
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
    assert answer.json()["error"]["code"] == "upgrade_required"
