"""Two minutes of everything at once: memory, descriptors and tasks stay flat, every call is settled once.

Gateway, emulator and clients share this process, so its figures are those of all three; what grows shows all the same.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from gateway.emulator.config import EmulatorConfig, Fault, FaultRule, parse_rule
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Running, chat, connect, get, post
from tests.soak.conftest import Report
from tests.soak.support import (
    MANNERS,
    Held,
    descriptors,
    discard_log,
    draw_cut,
    metrics,
    mortal,
    rss_kib,
    settled,
    slope,
    spread,
    sum_of,
    until_only,
)

pytestmark = pytest.mark.soak

DURATION_S = 120.0
CONNECTIONS = 30
LEAVES = 0.1
"""The part of the clients that leave at a random byte."""
FAULTS = ("e500", "e503", "rate_limit", "html502", "reset", "cut", "truncated", "malformed", "in_band_error", "no_done")
FORM = b"".join(
    (
        b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n',
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n--x--\r\n',
    )
)
GROWTH_KIB_PER_MIN = 4096


def draw_request(rng: random.Random) -> bytes:
    """Any endpoint, streamed where it can be, bodies from small to 300 kB."""
    filler = "word " * int(60_000 ** rng.random())
    stream = {"stream": rng.random() < 0.5}
    kind = rng.randrange(9)
    if kind == 7:
        return post("/v1/audio/transcriptions", FORM % filler.encode(), "content-type: multipart/form-data; boundary=x")
    if kind == 8:
        return get("/v1/models")
    path, body = _JSON[kind](filler, stream)
    return post(path, orjson.dumps(body))


_JSON: tuple[Any, ...] = (
    lambda filler, stream: ("/v1/chat/completions", chat(messages=[{"role": "user", "content": filler}], **stream)),
    lambda _, stream: ("/v1/chat/completions", chat(n=2, **stream)),
    lambda filler, stream: ("/v1/completions", {"model": "m", "prompt": filler, **stream}),
    lambda filler, stream: ("/v1/responses", {"model": "m", "input": filler, **stream}),
    lambda filler, _: ("/v1/embeddings", {"model": "m", "input": [filler] * 3}),
    lambda filler, _: ("/v1/moderations", {"model": "m", "input": filler}),
    lambda filler, _: ("/v1/audio/speech", {"model": "m", "voice": "alloy", "input": filler}),
)


@dataclass(slots=True)
class Traffic:
    """What 30 clients have done so far."""

    running: Running
    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    broken: int = 0
    latencies_s: list[float] = field(default_factory=list)

    async def client(self, seed: int, ends_at: float) -> None:
        """One client after another in the same place: some stay for several calls, some leave in the middle of one."""
        rng = random.Random(seed)
        while time.monotonic() < ends_at:
            if rng.random() < LEAVES:
                await self._leave(rng)
            else:
                await self._stay(rng, ends_at)

    async def _leave(self, rng: random.Random) -> None:
        self.left += 1
        async with mortal(self.running.url) as client:
            with suppress(ConnectionError, TimeoutError):  # an answer may be shorter than the cut
                async with asyncio.timeout(0.5):
                    await client.send(draw_request(rng))
                    await client.read(draw_cut(rng, 5000))
            await client.die(rng.choice(MANNERS))

    async def _stay(self, rng: random.Random, ends_at: float) -> None:
        async with connect(self.running.url) as peer:
            for _ in range(rng.randrange(1, 20)):
                began_at = time.monotonic()
                try:
                    self.statuses[(await peer.exchange(draw_request(rng))).status] += 1
                except (ConnectionError, EOFError):  # a binary answer that broke: the connection has to break too
                    self.broken += 1
                    return
                self.latencies_s.append(time.monotonic() - began_at)
                if time.monotonic() > ends_at:
                    return
                await asyncio.sleep(0.05 * rng.random())


async def sample(samples: list[tuple[float, int, int, int]], until_s: float) -> None:
    """Resident memory, descriptors and tasks, twice a second."""
    began_at = time.monotonic()
    while (at := time.monotonic() - began_at) < until_s:
        samples.append((at, rss_kib(), descriptors(), len(asyncio.all_tasks())))
        await asyncio.sleep(0.5)


async def test_two_minutes_of_mixed_traffic_leaves_everything_flat(start: StartGateway, report: Report) -> None:
    """All endpoints, 10 % faults, 10 % of the clients leaving: once warm, nothing grows."""
    rules = tuple(parse_rule(f"{fault}={0.1 / len(FAULTS)}") for fault in FAULTS)
    emulator = EmulatorConfig(
        faults=(*rules, FaultRule(Fault("reset", after_chunks=3), 0.005)), tokens_per_second=2000, recorded_requests=0
    )
    gateway = await start(emulator=emulator)
    discard_log(gateway)
    before = Held.by(gateway)
    traffic, samples = Traffic(gateway), list[tuple[float, int, int, int]]()

    ends_at = time.monotonic() + DURATION_S
    clients = [traffic.client(seed, ends_at) for seed in range(CONNECTIONS)]
    await asyncio.gather(sample(samples, DURATION_S), *clients)
    await until_only(before, gateway)

    late = [one for one in samples if one[0] > DURATION_S * 2 / 3]
    growth = slope([(at / 60, rss) for at, rss, _, _ in late])
    ends = settled(gateway)
    report(
        f"{DURATION_S:g} s, {CONNECTIONS} connections: {sum(traffic.statuses.values())} answers "
        f"{dict(sorted(traffic.statuses.items()))}, {traffic.left} clients left, {traffic.broken} answers broke off\n"
        f"  settled: {ends}\n  latency: {spread(traffic.latencies_s)}\n"
        f"  RSS at the start and after each eighth: {[one[1] for one in samples[:: len(samples) // 8]]} KiB; "
        f"{growth:.0f} KiB/min in the last third\n"
        f"  descriptors {min(one[2] for one in late)} to {max(one[2] for one in late)}, "
        f"tasks {min(one[3] for one in late)} to {max(one[3] for one in late)}; left behind: none"
    )
    assert growth < GROWTH_KIB_PER_MIN
    assert 500 not in traffic.statuses or traffic.statuses[500] <= sum(traffic.statuses.values()) * 0.05
    assert sum_of(metrics(gateway), "gateway_calls_in_flight") == 0
    assert "internal_error" not in ends
