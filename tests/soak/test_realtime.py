"""WebSockets: what 500 of them hold while they are idle, and what a frame waits for on its way through a realtime session.

The gateway has a process to itself; clients and provider share the test's. A drain is part of it: all sessions hear 1012.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import quantiles

import orjson
import pytest
import yaml
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection

from tests.products.realtime.provider import provider
from tests.soak.conftest import Report
from tests.soak.support import rss_kib, serve, spread

pytestmark = pytest.mark.soak

SESSIONS, KIB_EACH = 500, 60
FRAMES, ADDED_P99_S = 2000, 0.001
"""Bars for a quiet machine."""


async def echo(socket: ServerConnection) -> None:
    """Says what it hears."""
    async for message in socket:
        await socket.send(message)


async def opened(url: str) -> ClientConnection:
    """A client's session."""
    return await connect(url, compression=None, ping_interval=None, proxy=None)


async def trips(socket: ClientConnection, count: int) -> list[float]:
    """The times of this many round trips of a frame, one after the other."""
    times = []
    for _ in range(count):
        sent = time.perf_counter()
        await socket.send("y" * 300)
        await socket.recv()
        times.append(time.perf_counter() - sent)
    return times


def p99(times: list[float]) -> float:
    """Their 99th percentile."""
    return quantiles(times, n=100)[98]


async def test_idle_sessions_are_small_and_frames_go_on_at_once(tmp_path: Path, report: Report) -> None:
    """60 KiB each, 1 ms for a frame each way; and the end of all of them."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(provider(echo))
        config = tmp_path / "config.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "providers": {
                        "p": {"dialect": "openai", "base_url": upstream.url, "api_key": "sk-provider-0123456789"}
                    },
                    "models": {"m": {"targets": ["p/m"]}},
                }
            )
        )
        served = await stack.enter_async_context(serve(config))
        url = f"ws{served.url.removeprefix('http')}/v1/realtime?model=m"
        first = await opened(url)
        await trips(first, 200)
        await asyncio.sleep(1.5)
        before = rss_kib(served.pid)
        sockets = [await opened(url) for _ in range(SESSIONS)]
        for socket in sockets:
            await trips(socket, 1)
        await asyncio.sleep(1.5)
        each = (rss_kib(served.pid) - before) / SESSIONS
        direct = await opened(f"ws{upstream.url.removeprefix('http')}")
        await trips(direct, 200)
        plain, through = await trips(direct, FRAMES), await trips(first, FRAMES)
        added_s = (p99(through) - p99(plain)) / 2
        report(
            f"{SESSIONS} sessions: {each:.1f} KiB each; round trip {spread(plain)}, through the gateway {spread(through)}"
        )
    for socket in (*sockets, first):
        await socket.wait_closed()
    assert {socket.close_code for socket in (*sockets, first)} == {1012}
    assert each <= KIB_EACH
    assert added_s <= ADDED_P99_S


async def one_turn(socket: ClientConnection) -> None:
    """A response, to its end."""
    await socket.send(
        '{"type":"response.create","model":"m","input":"Say hello.","store":false,"max_output_tokens":16}'
    )
    kind = ""
    while kind not in ("response.completed", "response.incomplete"):
        kind = orjson.loads(await socket.recv())["type"]
        assert kind != "error"


async def test_idle_connections_of_responses_are_small(tmp_path: Path, report: Report) -> None:
    """60 KiB each with a turn behind them, and remembered; nothing is left of them."""
    config = tmp_path / "config.yaml"
    providers = {"p": {"dialect": "openai", "base_url": "emulator://p"}}
    config.write_text(yaml.safe_dump({"providers": providers, "models": {"m": {"targets": ["p/m"]}}}))
    async with serve(config) as served:
        url = f"ws{served.url.removeprefix('http')}/v1/responses"
        first = await opened(url)
        for _ in range(20):
            await one_turn(first)
        before = rss_kib(served.pid)
        sockets = [await opened(url) for _ in range(SESSIONS)]
        for at in range(0, SESSIONS, 50):
            await asyncio.gather(*map(one_turn, sockets[at : at + 50]))
        await asyncio.sleep(1.5)
        each = (rss_kib(served.pid) - before) / SESSIONS
        report(f"{SESSIONS} connections of Responses: {each:.1f} KiB each")
    for socket in (*sockets, first):
        await socket.wait_closed()
    assert {socket.close_code for socket in (*sockets, first)} == {1012}
    assert each <= KIB_EACH
