"""Half an hour of usual traffic with attacks mixed in: what the process has does not grow.

Clients without a key send thousands of requests ahead and read nothing; a provider answers with megabytes that nobody can
use: JSON that does not end, cut gzip, gzip that unpacks a thousandfold. Memory, descriptors, tasks and series are counted at
rest, after each part. `ATTACK_MINUTES` shortens it; the slope of memory is then not judged, for allocators need their time.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest

from tests.e2e.harness import chat, connect, get, post
from tests.soak.conftest import Report
from tests.soak.inside import Memory
from tests.soak.support import descriptors, mortal
from tests.soak.test_slope import Traffic, Watch, per_hour, table, warm_names, watched

pytestmark = pytest.mark.soak

BAR_MINUTES = 30.0
MINUTES = float(os.environ.get("ATTACK_MINUTES", BAR_MINUTES))
PARTS = 10
PART_S = MINUTES * 60 / PARTS
SETTLE_S = 5.0
"""Until the gateway has noticed that all attackers have left."""
AHEAD, PIPELINING = 9_700, 20
"""Requests that a client sends ahead, and such clients at once."""
BETWEEN_S = 2.0
SLOPE_KIB_PER_HOUR = 8 * 1024.0
SPARE_DESCRIPTORS, SPARE_TASKS, SPARE_SERIES = 40, 20, 50
"""Kept connections, timers of the moment, and names that had their first failure only now."""

_JSON = b'{"id":"' + b"a" * 5_000_000
_BLANK_LINES = gzip.compress(b"\n" * 20_000_000)
LIES = (
    (b"", _JSON),
    (b"content-encoding: gzip\r\n", gzip.compress(random.Random(0).randbytes(1_000_000))[:-9]),
    (b"content-encoding: gzip\r\n", gzip.compress(_JSON * 8)),
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n"


@asynccontextmanager
async def liar() -> AsyncIterator[str]:
    """A provider that answers with nothing of use, in turn; its base URL."""
    lies = cycle(LIES)

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                if b'"stream":true' in await reader.readexactly(length):
                    kind, header, body = b"text/event-stream", b"content-encoding: gzip\r\n", _BLANK_LINES
                else:
                    kind, (header, body) = b"application/json", next(lies)
                writer.write(HEAD % (kind, header, len(body)) + body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(lie, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


async def send_ahead(url: str, until: float) -> None:
    """Clients that send thousands of requests in one write, read nothing, and leave."""
    requests = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * AHEAD
    while time.monotonic() < until:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(mortal(url)) for _ in range(PIPELINING)]
            with suppress(TimeoutError):
                async with asyncio.timeout(BETWEEN_S):
                    await asyncio.gather(*(one.send(requests) for one in clients), return_exceptions=True)
        await asyncio.sleep(BETWEEN_S)


async def ask_liar(url: str, until: float, statuses: Counter[int]) -> None:
    """Calls whose first target lies; each tenth is a stream, which costs the gateway the most."""
    number = 0
    while time.monotonic() < until:
        number += 1
        with suppress(ConnectionError, EOFError, TimeoutError):
            async with connect(url) as peer:
                answer = await peer.exchange(post(body=chat("lied-to", stream=number % 10 == 0)))
                statuses[answer.status] += 1
        await asyncio.sleep(BETWEEN_S / 4)


async def series_of(watch: Watch) -> int:
    """How many series /metrics has."""
    async with connect(watch.served.url) as peer:
        lines = (await peer.exchange(get("/metrics"))).body.splitlines()
    return sum(not line.startswith(b"#") for line in lines)


async def test_attacks_leave_nothing_behind(tmp_path: Path, report: Report) -> None:
    """At rest, memory, descriptors, tasks and series are what they were after the first part of attacks."""
    statuses: Counter[int] = Counter()
    held: list[tuple[int, int, int]] = []
    async with liar() as lying, watched(tmp_path, lying) as watch:
        url, traffic = watch.served.url, Traffic(watch.served.url)
        if MINUTES >= BAR_MINUTES:  # it takes minutes itself, and is for the slope alone
            await warm_names(url)
        watch.began_at = time.monotonic()
        for _ in range(PARTS):
            until = time.monotonic() + PART_S
            attacks = asyncio.gather(send_ahead(url, until), ask_liar(url, until, statuses))
            await traffic.during(PART_S, watch.during(PART_S))
            await attacks
            await asyncio.sleep(SETTLE_S)
            await watch.rest()
            memory: Memory = watch.rests[-1][1]
            held.append((descriptors(watch.served.pid), memory.tasks, await series_of(watch)))

    report(
        f"{MINUTES:g} minutes; usual calls {dict(sorted(traffic.statuses.items()))}, of the liar {dict(statuses)}\n"
        f"  descriptors, tasks and series at rest: {held}\n"
        f"  memory under load:\n{table(watch.curve)}\n  at rest:\n{table(watch.rests)}"
    )
    assert statuses[200] > 0.9 * sum(statuses.values())
    # Kept connections come and go by hundreds, so one count says little: what leaks raises the least of a half, too.
    halves = [[min(counts) for counts in zip(*half, strict=True)] for half in (held[: PARTS // 2], held[PARTS // 2 :])]
    for before, after, spare in zip(*halves, (SPARE_DESCRIPTORS, SPARE_TASKS, SPARE_SERIES), strict=True):
        assert after <= before + spare
    if MINUTES >= BAR_MINUTES:
        settled = watch.rests[2:]
        assert per_hour(settled, "held") <= SLOPE_KIB_PER_HOUR
        assert per_hour(settled, "rss") - max(0.0, per_hour(settled, "kept_free")) <= SLOPE_KIB_PER_HOUR
