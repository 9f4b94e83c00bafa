"""Streams at full speed: what others wait for beside 300 clients that read them, and what 2,000 cost that do not read."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from tests.e2e.harness import Response, chat, config_of, get, post
from tests.soak.conftest import Report
from tests.soak.load import Load
from tests.soak.support import Served, rss_kib, serve, spread

pytestmark = pytest.mark.soak

READERS, STOPPED = 300, 2000
KIB_EACH = 64
HEALTH_S, CALL_P99_S = 0.1, 0.3
"""Bars for a quiet machine."""
FLOOD_PORT = 23_917


@asynccontextmanager
async def flooded(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of `tests.soak.flood`, ended at the end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.soak.flood", *arguments, stdin=pipe, stdout=pipe
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def beside(tmp_path: Path, count: int, manner: str) -> AsyncIterator[tuple[Served, int]]:
    """A gateway with this many clients of fast streams, and its resident KiB before them.

    The model `honest` has a provider of its own.
    """
    config = config_of(f"http://127.0.0.1:{FLOOD_PORT}/v1")
    config["providers"]["main"]["max_connections"] = 2 * STOPPED
    path = tmp_path / "config.yaml"
    async with AsyncExitStack() as stack:
        honest = EmulatorServer()
        await honest.start()
        stack.push_async_callback(honest.stop)
        config["providers"]["honest"] = {**config["providers"]["main"], "base_url": honest.base_url}
        config["models"]["honest"] = {"targets": ["honest/gpt-4o"]}
        path.write_text(yaml.safe_dump(config))
        await stack.enter_async_context(flooded("provider", str(FLOOD_PORT)))
        served = await stack.enter_async_context(serve(path, "tests.soak.inside"))
        idle_kib = rss_kib(served.pid)
        host, _, port = served.url.removeprefix("http://").partition(":")
        clients = await stack.enter_async_context(flooded("clients", host, port, str(count), manner))
        assert clients.stdout is not None
        assert await clients.stdout.readline() == b"asked\n"
        await asyncio.sleep(5)
        yield served, idle_kib


def check(_number: int, answer: Response) -> str:
    """It was served."""
    assert answer.status == 200, answer.raw
    return "other"


async def test_others_keep_their_pace_beside_300_streams_at_full_speed(tmp_path: Path, report: Report) -> None:
    """Health checks and calls for 10 s."""
    async with beside(tmp_path, READERS, "read") as (served, _):
        await served.inside("turns")
        health = Load(served.url, 10.0, lambda _: get("/healthz"), check)
        calls = Load(served.url, 20.0, lambda _: post(body=chat("honest")), check)
        await asyncio.gather(health.during(asyncio.sleep(10)), calls.during(asyncio.sleep(10)))
        turns = await served.inside("turns")

    waits, latencies = health.latencies_s["other"], sorted(calls.latencies_s["other"])
    report(
        f"beside {READERS} streams at full speed: /healthz {spread(waits)}; calls {spread(latencies)}; turns {turns}"
    )
    assert health.faults == calls.faults == []
    assert max(waits) <= HEALTH_S
    assert latencies[int(len(latencies) * 0.99)] <= CALL_P99_S


async def test_a_stopped_reader_costs_little(tmp_path: Path, report: Report) -> None:
    """What the process holds for each client that asked for a fast stream and never reads."""
    async with beside(tmp_path, STOPPED, "ask") as (served, idle_kib):
        await served.inside("turns")
        calls = Load(served.url, 20.0, lambda _: post(body=chat("honest")), check)
        await calls.during(asyncio.sleep(10))
        turns = await served.inside("turns")
        each = (rss_kib(served.pid) - idle_kib) / STOPPED

    waits = spread(calls.latencies_s["other"])
    report(f"{STOPPED} stopped readers: {each:.1f} KiB each; calls beside them {waits}; turns {turns}")
    assert calls.faults == []
    assert each <= KIB_EACH
