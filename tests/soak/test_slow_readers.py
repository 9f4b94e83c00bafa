"""200 clients that read slowly or not at all: bounded memory, providers held up, others served as before."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.harness import Response, chat, config_of, post
from tests.soak.conftest import Report
from tests.soak.load import Load
from tests.soak.support import Mortal, Served, descriptors, mortal, rss_kib, serve, spread, sum_of, until_still

pytestmark = pytest.mark.soak

READERS = 200
KIB_EACH = 512
"""What a reader may cost: reading and writing pause at marks of 32 and 64 KiB, and what is between them waits as it came,
framed, and partly written. Bounded, and no more with a longer stream; the allocator keeps some of it."""
OTHERS_PER_S = 50.0
SIPS, SIP_BYTES = 20, 200_000


def request_of(_number: int) -> bytes:
    """A short stream."""
    return post(body=chat(stream=True, max_tokens=20))


def check(_number: int, answer: Response) -> str:
    """All of it has come."""
    assert answer.status == 200, answer.raw
    assert answer.body.endswith(b"data: [DONE]\n\n"), answer.raw
    return "other"


async def begin(client: Mortal) -> None:
    """Ask for a stream of about 80 MB and look no further than its status."""
    await client.send(post(body=chat("long-name-" * 20, stream=True)))
    assert await client.read(12) == b"HTTP/1.1 200"


async def sip(clients: list[Mortal]) -> None:
    """Half of the readers take 4 MB in sips, the others nothing."""
    for _ in range(SIPS):
        await asyncio.gather(*(client.read(SIP_BYTES) for client in clients[::2]))
        await asyncio.sleep(0.5)


async def at_rest(served: Served) -> tuple[float, int]:
    """Connections to the provider in use, and the process's descriptors, once it has nothing to do."""
    async with asyncio.timeout(20):
        while sum_of(await served.metrics(), "gateway_calls_in_flight"):  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.5)  # the gauge below is renewed once a second
    return sum_of(await served.metrics(), "gateway_upstream_connections", state="active"), descriptors(served.pid)


async def test_200_slow_readers_cost_bounded_memory_and_nobody_else(tmp_path: Path, report: Report) -> None:
    """Resident memory per reader, stopped and after some sips; the provider's sent bytes stand still; others finish."""
    provider = EmulatorServer(EmulatorConfig(output_tokens=200_000, recorded_requests=0))
    await provider.start()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(config_of(provider.base_url)))
    stats = provider.emulator.stats
    async with serve(config) as served:
        alone = Load(served.url, OTHERS_PER_S, request_of, check)
        await alone.during(asyncio.sleep(5))
        beside = Load(served.url, OTHERS_PER_S, request_of, check)
        idle_kib = rss_kib(served.pid)
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(mortal(served.url, receive_buffer=65_536)) for _ in range(READERS)
            ]
            connected_kib = rss_kib(served.pid)
            await asyncio.gather(*map(begin, clients))
            sent = await until_still(lambda: stats.bytes_out, turns=100)
            stopped_kib = rss_kib(served.pid)
            await beside.during(sip(clients))
            sipped = await until_still(lambda: stats.bytes_out, turns=100)
            sipped_kib = rss_kib(served.pid)
        active, open_after = await at_rest(served)
        after_kib = rss_kib(served.pid)
    await provider.stop()

    def each(kib: int) -> str:
        return f"{(kib - idle_kib) / READERS:.1f} KiB"

    report(
        f"{READERS} readers of long streams; the provider stood still after {sent / READERS / 1024:.0f} KiB each, "
        f"{sipped / READERS / 1024:.0f} KiB after the sips\n"
        f"  RSS of the gateway: idle {idle_kib} KiB; per reader {each(connected_kib)} connected, {each(stopped_kib)} "
        f"stopped, {each(sipped_kib)} after the sips (bar {KIB_EACH} KiB); {after_kib} KiB once all have left\n"
        f"  others alone: {spread(alone.latencies_s['other'])}\n  others beside: {spread(beside.latencies_s['other'])}\n"
        f"  left: {active:g} connections in use, {open_after} descriptors"
    )
    assert alone.faults == beside.faults == []
    assert active == 0
    assert (stopped_kib - idle_kib) / READERS < KIB_EACH
    assert (sipped_kib - idle_kib) / READERS < KIB_EACH
