"""The control endpoints: what they count, what they change, what they refuse."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest

from gateway.emulator.app import create_app
from gateway.emulator.config import EmulatorConfig
from tests.emulator.conftest import (
    WALL_S,
    FakeClock,
    StartServer,
    chat_body,
    client_of,
    connect,
    raw_request,
    until,
)


async def test_stats_count_requests_statuses_and_bytes() -> None:
    """By endpoint, model and status; control calls are not counted."""
    app = create_app(EmulatorConfig(rpm=2))
    async with client_of(app) as client:
        for _ in range(3):
            await client.post("/v1/chat/completions", json=chat_body(model="a"))
        await client.post("/v1/embeddings", json={"model": "b", "input": "hi"})
        await client.get("/nowhere")

        stats = (await client.get("/__emulator/stats")).json()

    assert stats["requests"] == 5
    assert stats["by_endpoint"] == {"chat/completions": 3, "embeddings": 1, "other": 1}
    assert stats["by_model"] == {"a": 3, "b": 1}
    assert stats["statuses"] == {"200": 3, "404": 1, "429": 1}
    assert stats["sent_429"] == 1
    assert stats["concurrency"] == {"now": 0, "peak": 1}
    assert stats["bytes"]["in"] > 200
    assert stats["bytes"]["out"] > 1000


async def test_concurrency_and_connections_are_seen_over_a_socket(start_server: StartServer) -> None:
    """Three held calls on three connections, and the one that asks."""
    server = await start_server(EmulatorConfig(ttft_s=1.0), sleep=_forever)
    stats = server.emulator.stats
    links = [await connect(server) for _ in range(3)]
    for _, writer in links:
        writer.write(raw_request("/v1/chat/completions", chat_body()))
    await until(lambda: stats.active == 3)

    async with httpx.AsyncClient(base_url=server.url) as client:
        seen = (await client.get("/__emulator/stats")).json()

    assert seen["concurrency"] == {"now": 3, "peak": 3}
    assert seen["open_connections"] == 4
    for _, writer in links:
        writer.close()
    await until(lambda: stats.active == 0)
    assert stats.cancelled == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_peer_that_leaves_during_a_wait_is_counted_at_once(
    start_server: StartServer, clock: FakeClock, stream: bool
) -> None:
    """With the time and the model, without waiting for the sleep to end."""
    server = await start_server(EmulatorConfig(ttft_s=60.0), now=clock.now, wall=clock.wall, sleep=_forever)
    stats = server.emulator.stats
    _, writer = await connect(server)
    writer.write(raw_request("/v1/chat/completions", chat_body(stream=stream)))
    await until(lambda: stats.active == 1)

    writer.close()
    await until(lambda: stats.active == 0)

    assert stats.to_mapping()["cancelled_by_peer"] == {
        "count": 1,
        "last": [{"at_s": WALL_S, "mono_s": 1000.0, "path": "/v1/chat/completions", "model": "gpt-4o"}],
    }


async def test_a_peer_that_stops_reading_and_leaves_is_counted(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A long stream waits for a slow reader, and ends without a word in the log when the reader goes."""
    server = await start_server(EmulatorConfig(output_tokens=1_000_000))
    stats = server.emulator.stats
    _, writer = await connect(server)
    writer.write(raw_request("/v1/chat/completions", chat_body(stream=True)))
    await until(lambda: stats.bytes_out > 100_000)

    writer.transport.abort()
    await until(lambda: stats.active == 0)

    assert stats.cancelled == 1
    assert caplog.records == []


async def test_a_peer_that_leaves_while_sending_is_counted(start_server: StartServer) -> None:
    """Half a body is nobody's call, but its end is seen."""
    server = await start_server()
    stats = server.emulator.stats
    _, writer = await connect(server)
    writer.write(raw_request("/v1/chat/completions", chat_body())[:-5])
    await until(lambda: stats.active == 1)

    writer.close()
    await until(lambda: stats.active == 0)

    assert (stats.cancelled, dict(stats.statuses)) == (1, {})


async def test_an_answered_call_is_never_counted_as_cancelled(start_server: StartServer, clock: FakeClock) -> None:
    """Leaving after the last byte is the normal end."""
    server = await start_server(EmulatorConfig(ttft_s=0.1), now=clock.now, sleep=clock.sleep)

    async with httpx.AsyncClient(base_url=server.url) as client:
        for stream in (False, True):
            await client.post("/v1/chat/completions", json=chat_body(stream=stream))
    await until(lambda: server.emulator.stats.active == 0)

    assert server.emulator.stats.cancelled == 0


async def test_config_changes_at_once_and_is_shown() -> None:
    """Only what is named changes; null removes a limit."""
    async with client_of(create_app(EmulatorConfig(rpm=1, output_tokens=9))) as client:
        await client.post("/v1/chat/completions", json=chat_body())
        limited = await client.post("/v1/chat/completions", json=chat_body())

        changed = await client.post("/__emulator/config", json={"rpm": None, "faults": ["e500=0"]})

        assert limited.status_code == 429
        assert (changed.json()["rpm"], changed.json()["output_tokens"]) == (None, 9)
        assert changed.json() == (await client.get("/__emulator/config")).json()
        free = [await client.post("/v1/chat/completions", json=chat_body()) for _ in range(3)]
        assert [answer.status_code for answer in free] == [200] * 3


async def test_a_config_change_that_touches_no_limit_keeps_the_buckets() -> None:
    """Turning a fault on does not refill anything."""
    async with client_of(create_app(EmulatorConfig(rpm=1))) as client:
        await client.post("/v1/chat/completions", json=chat_body())

        await client.post("/__emulator/config", json={"ttft": "0s", "faults": []})

        assert (await client.post("/v1/chat/completions", json=chat_body())).status_code == 429


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("config", {"rpm": -1}, "rpm: expected a whole number from 1, got -1"),
        ("config", {"rpmm": 1}, "rpmm: unknown field, did you mean rpm?"),
        ("config", {"faults": ["nope"]}, "faults: [0] fault: unknown fault 'nope'"),
        ("config", [], "body: expected a JSON object"),
        ("script", {"model": "a", "faults": ["ok", "cut=0.5"]}, "faults[1].probability: a script entry is uncond"),
        ("script", {"model": "", "faults": []}, "model: expected a non-empty string"),
        ("script", {"model": "a", "faults": "cut"}, "faults: expected an array"),
        ("script", {"model": "a", "fault": []}, "fault: unknown field of a script"),
    ],
)
async def test_a_bad_change_is_refused_whole_and_named(path: str, body: Any, message: str) -> None:
    """400 with the field first, and the old config stays."""
    app = create_app(EmulatorConfig(rpm=7))
    async with client_of(app) as client:
        answer = await client.post(f"/__emulator/{path}", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)
    assert app.config == EmulatorConfig(rpm=7)


async def test_a_script_is_played_in_order_for_its_model() -> None:
    """Strings and objects mix; other models are not concerned."""
    script = {"model": "a", "faults": ["rate_limit", {"fault": "e503", "seconds": 2}, "ok", "e500"]}
    async with client_of(create_app(EmulatorConfig())) as client:
        queued = await client.post("/__emulator/script", json=script)
        other = await client.post("/v1/chat/completions", json=chat_body(model="b"))
        answers = [await client.post("/v1/chat/completions", json=chat_body(model="a")) for _ in range(5)]

    assert queued.json() == {"model": "a", "waiting": 4}
    assert other.status_code == 200
    assert [answer.status_code for answer in answers] == [429, 503, 200, 500, 200]
    assert answers[1].headers["retry-after"] == "2"


async def test_recorded_requests_can_be_compared_byte_for_byte() -> None:
    """Headers in order, the body exactly, even when it is not UTF-8."""
    body = b'{ "model":"m",  "messages":[{"role":"user","content":"\xc3\xa9"}] }'
    async with client_of(create_app(EmulatorConfig())) as client:
        await client.post("/v1/chat/completions?x=1", content=body, headers={"x-mine": "yes"})
        await client.post("/v1/chat/completions", content=b"\xff")

        recorded = (await client.get("/__emulator/requests")).json()["requests"]
        last = (await client.get("/__emulator/requests?last=1")).json()["requests"]

    assert recorded[0]["body"] == body.decode()
    assert (recorded[0]["method"], recorded[0]["path"], recorded[0]["query"]) == ("POST", "/v1/chat/completions", "x=1")
    assert ["x-mine", "yes"] in recorded[0]["headers"]
    assert base64.b64decode(recorded[1]["body_base64"]) == b"\xff"
    assert last == recorded[1:]


async def test_the_ledger_says_what_became_of_each_request() -> None:
    """Its status and its tokens; and looking at it leaves no trace in the counters."""
    async with client_of(create_app(EmulatorConfig())) as client:
        await client.post("/__emulator/script", json={"faults": ["e500", "ok"]})
        await client.post("/v1/chat/completions", json=chat_body())
        answer = await client.post("/v1/chat/completions", json=chat_body())
        recorded = (await client.get("/__emulator/requests")).json()["requests"]
        stats = (await client.get("/__emulator/stats")).json()

    assert [(one["status"], one["left"]) for one in recorded] == [(500, False), (200, False)]
    usage = answer.json()["usage"]
    tokens = {"input": usage["prompt_tokens"], "output": usage["completion_tokens"]}
    assert [one["tokens"] for one in recorded] == [None, tokens]
    assert stats["statuses"] == {"200": 1, "500": 1}


async def test_the_recorder_is_bounded_by_count_and_by_bytes() -> None:
    """The oldest go first; one too large is cut and says its size."""
    kept: list[dict[str, Any]] = []
    async with client_of(create_app(EmulatorConfig(recorded_requests=3, recorded_bytes=100))) as client:
        for size in (10, 10, 10, 10, 60, 30, 500):
            await client.post("/v1/nothing", content=b"x" * size)
            kept = (await client.get("/__emulator/requests")).json()["requests"]
            assert len(kept) <= 3
            assert sum(len(each["body"]) for each in kept) <= 100

    assert [each["body_bytes"] for each in kept] == [500]


async def test_reset_forgets_everything_but_the_config() -> None:
    """Counters, buckets, scripts and records."""
    app = create_app(EmulatorConfig(rpm=1))
    async with client_of(app) as client:
        await client.post("/v1/chat/completions", json=chat_body())
        await client.post("/__emulator/script", json={"faults": ["e500"]})

        await client.post("/__emulator/reset")

        assert (await client.get("/__emulator/stats")).json()["requests"] == 0
        assert (await client.get("/__emulator/requests")).json() == {"requests": []}
        assert (await client.post("/v1/chat/completions", json=chat_body())).status_code == 200
    assert app.config.rpm == 1


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "nothing", 404), ("POST", "stats", 405), ("GET", "requests?last=x", 400)]
)
async def test_a_wrong_control_call_has_the_error_shape(method: str, path: str, status: int) -> None:
    """As everywhere."""
    async with client_of(create_app(EmulatorConfig())) as client:
        answer = await client.request(method, f"/__emulator/{path}")

    assert (answer.status_code, "error" in answer.json()) == (status, True)


async def test_a_stopped_server_leaves_nothing_behind(start_server: StartServer) -> None:
    """Held calls end, the port is free again, a second stop does nothing."""
    server = await start_server(EmulatorConfig(ttft_s=1.0), sleep=_forever)
    reader, writer = await connect(server)
    writer.write(raw_request("/v1/chat/completions", chat_body()))
    await until(lambda: server.emulator.stats.active == 1)
    before = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    await server.stop()
    await server.stop()

    await until(lambda: all(task.done() for task in before))
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(OSError):
        await connect(server)


async def _forever(_seconds: float) -> None:
    await asyncio.get_running_loop().create_future()
