"""What a streamed response costs in the background, in its log and read by one reader, beside the same in the foreground.

CPU is that of the gateway's process, by the kernel; the provider has a process of its own, and its events say when they were
sent. Bars that are times are for a quiet machine.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import orjson
import pytest
import yaml

from tests.bench.measure import tree_cpu_s
from tests.bench.systems import free_port
from tests.soak.conftest import Report
from tests.soak.support import Served, serve

pytestmark = pytest.mark.soak

CPU_RATIO, ADDED_P99_S = 1.75, 0.005
"""The ratio aimed at is 1.5; 1.6 is what is measured on a busy machine."""
STREAMS, QUIET_STREAMS = 24, 4
INTERVAL_MS, EVENTS, FEW_EVENTS = 20, 400, 20
ROUNDS = 3
_SENT = re.compile(rb'"obfuscation":"(\d+)"')


class Seen(NamedTuple):
    """What readers saw of some streams, and CPU seconds: of an event, and of a response without events."""

    cpu_s: float
    fixed_s: float
    late: list[float]

    @property
    def p99_s(self) -> float:
        """Of the time from the provider to a reader."""
        return sorted(self.late)[len(self.late) * 99 // 100]


@asynccontextmanager
async def provider() -> AsyncIterator[int]:
    """The port of a provider of streams."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.bench.canned_responses", str(port))
    try:
        await asyncio.sleep(1.0)
        yield port
    finally:
        process.kill()
        await process.wait()


def write(folder: Path, port: int) -> Path:
    """The config of a gateway that keeps jobs in a file."""
    main = {"dialect": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "api_key": "k"}
    config = {
        "providers": {"main": main},
        "models": {"m": {"targets": ["main/m"]}},
        "jobs": {"store": f"sqlite:///{folder}/jobs.db", "files": f"{folder}/blobs"},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


async def stream(url: str, events: int, late: list[float], *, in_background: bool) -> None:
    """One response, read to its end."""
    asked = {"model": "m", "input": f"interval_ms={INTERVAL_MS} events={events}", "stream": True}
    body = orjson.dumps({**asked, "background": True} if in_background else asked).replace(b'"stream":', b'"stream": ')
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    head = b"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(body) + body)
    try:
        count, rest = 0, b""
        while True:
            data = await reader.read(65_536)
            now = time.monotonic_ns()
            assert data, rest
            whole, end, rest = (rest + data).rpartition(b"\n\n")
            found = _SENT.findall(whole)
            late += [(now - int(sent)) / 1e9 for sent in found]
            count += len(found)
            if b"event: response.completed" in whole:
                break
            assert b"event: error" not in whole, whole
        assert count == events - 4, whole + end
    finally:
        writer.close()


async def measured(served: Served, number: int, *, in_background: bool) -> Seen:
    """So many streams at once: the cost of an event is what a long stream costs more than a short one."""
    late: list[float] = []
    spent = []
    for events in (FEW_EVENTS, EVENTS):
        before = tree_cpu_s(served.pid)
        late.clear()
        await asyncio.gather(*(stream(served.url, events, late, in_background=in_background) for _ in range(number)))
        await asyncio.sleep(0.6)
        spent.append((tree_cpu_s(served.pid) - before) / number)
    each = (spent[1] - spent[0]) / (EVENTS - FEW_EVENTS)
    return Seen(each, spent[0] - FEW_EVENTS * each, late)


async def test_an_event_in_the_background_beside_one_in_the_foreground(tmp_path: Path, report: Report) -> None:
    """CPU with many streams at once, taken in turns; the time from provider to reader with a few."""
    async with provider() as port, serve(write(tmp_path, port)) as served:
        for in_background in (False, True):
            await measured(served, 2, in_background=in_background)
        pairs = [[await measured(served, STREAMS, in_background=kind) for kind in (False, True)] for _ in range(ROUNDS)]
        front, behind = ([pair[at] for pair in pairs] for at in (0, 1))
        cpu, cpu_behind = (median(seen.cpu_s for seen in kind) for kind in (front, behind))
        few = [await measured(served, QUIET_STREAMS, in_background=kind) for kind in (False, True)]
    fixed = [kind[0].fixed_s * 1e3 for kind in (front, behind)]
    report(
        f"CPU of an event {cpu * 1e6:.0f} us in the foreground, {cpu_behind * 1e6:.0f} us in the background "
        f"(x{cpu_behind / cpu:.2f}), of a response {fixed[0]:.1f} and {fixed[1]:.1f} ms besides; p99 to a reader "
        f"{few[0].p99_s * 1000:.1f} and {few[1].p99_s * 1000:.1f} ms, with {STREAMS} streams "
        f"{front[-1].p99_s * 1000:.1f} and {behind[-1].p99_s * 1000:.1f} ms"
    )
    assert cpu_behind <= CPU_RATIO * cpu
    assert few[1].p99_s - few[0].p99_s <= ADDED_P99_S
