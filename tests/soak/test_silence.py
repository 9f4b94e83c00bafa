"""Real providers that accept and never answer, on real sockets: before the head, after it, before a stream's first event, and a
listener whose backlog is full, so that nobody even connects.

The openai SDK with a timeout of 30 s sends 100 calls at 5 per second to each of them, through a gateway with built-in policies
and a healthy fallback. All four at once take half a minute.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.emulator.config import EmulatorConfig
from tests.e2e.harness import Running, config_of, start_gateway
from tests.soak.conftest import Report

pytestmark = pytest.mark.soak

CALLS, PER_S, SDK_S = 100, 5.0, 30.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: hold on\n\n"
MODES = {"before the head": b"", "after the head": HEAD, "before the first event": STREAM, "black hole": None}
FALLBACK = EmulatorConfig(ttft_s=0.05, output_tokens=10, tokens_per_second=100.0, recorded_requests=0)
MESSAGES: Any = [{"role": "user", "content": "hello there"}]


@asynccontextmanager
async def listener(says: bytes) -> AsyncIterator[str]:
    """A provider that reads a request, says so much, and no more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(says)
            await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """A port that drops whoever wants to connect: nobody accepts, and the backlog is full."""
    with socket.socket() as listening, ExitStack() as stack:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}/v1"


@asynccontextmanager
async def gateway(folder: Path, url: str) -> AsyncIterator[Running]:
    def config(fallback: str) -> dict[str, Any]:
        providers = {
            name: {"dialect": "openai", "base_url": base_url, "api_key": f"sk-{name}-0123456789abcdef"}
            for name, base_url in (("primary", url), ("other", fallback))
        }
        targets = {"m": {"targets": ["primary/m"], "fallbacks": ["n"]}, "n": {"targets": ["other/m"]}}
        return config_of(url, providers=providers, models=targets, policies="policies")

    (folder / "policies").mkdir(parents=True)
    # Four gateways and their clients share a loop here, and a machine: its lag is theirs, and sheds nobody.
    (folder / "policies" / "queue.yaml").write_text("default: {shed: {loop_lag: 60s}}\n")
    running = await start_gateway(folder, config, emulator=FALLBACK)
    try:
        yield running
    finally:
        await running.stop()


async def world(folder: Path, says: bytes | None) -> list[float | None]:
    """How long each call took, in their order; None: it was not answered."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(black_hole() if says is None else listener(says))
        running = await stack.enter_async_context(gateway(folder, url))
        client = await stack.enter_async_context(running.sdk("any", timeout=SDK_S))

        async def call() -> float | None:
            began_at = time.monotonic()
            try:
                if says == STREAM:
                    stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
                    parts = [part async for part in stream]
                    assert parts
                else:
                    answer = await client.chat.completions.create(model="m", messages=MESSAGES)
                    assert answer.choices
            except openai.OpenAIError:
                return None
            return time.monotonic() - began_at

        tasks, began_at = [], time.monotonic()
        for number in range(CALLS):
            await asyncio.sleep(max(0.0, began_at + number / PER_S - time.monotonic()))
            tasks.append(asyncio.create_task(call()))
        return await asyncio.gather(*tasks)


async def test_a_silent_provider_costs_seconds_and_no_call(tmp_path: Path, report: Report) -> None:
    """At least 95 of 100 are answered, of the last 40 all, each within 5 s."""
    worlds = [world(tmp_path / str(number), says) for number, says in enumerate(MODES.values())]

    for mode, took in zip(MODES, await asyncio.gather(*worlds), strict=True):
        answered = [seconds for seconds in took if seconds is not None]
        late = [seconds for seconds in took[-40:] if seconds is not None]
        report(f"{mode}: {len(answered)} of {CALLS} answered, the last 40 within {max(late, default=0.0):.1f} s")

        assert len(answered) >= 95
        assert len(late) == 40
        assert max(late) <= 5.0
