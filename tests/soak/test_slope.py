"""Half an hour of everything that a sidecar sees: what the process has does not grow.

Ten times in it nobody calls for some seconds, and what is left then is counted: what calls in flight hold is not growth.
Gateway, provider and clients are processes of their own. What the program holds is told apart from what its allocators keep
(`tests.soak.inside`), so a slope says whose it is. `SLOPE_MINUTES` shortens it; the bar is then not judged.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.harness import Response, chat, connect, post
from tests.soak.conftest import Report
from tests.soak.inside import Memory
from tests.soak.load import Load
from tests.soak.support import MANNERS, Served, descriptors, draw_cut, mortal, serve, slope, spread, wait_for

pytestmark = pytest.mark.soak

BAR_MINUTES = 30.0
MINUTES = float(os.environ.get("SLOPE_MINUTES", BAR_MINUTES))
WARM_NAMES = 12_000
"""More than what is kept per name has room for: from then on a new one takes the place of an old one."""
WARM_S = 300.0 * min(1.0, MINUTES / BAR_MINUTES)
"""Answers are kept for a minute, records of calls for two: what comes after this replaces what was there."""
CALLS_PER_S, LEAVE_PER_S, LOOK_S = 60.0, 4.0, 10.0
PARTS, REST_S = 10, 3.0
PART_CALLS = 1_000_000
"""Numbers for each part, of which it uses some."""
PART_S = MINUTES * 60 / PARTS
SLOPE_KIB_PER_HOUR = 1024.0
FAULTS = ("e500", "e503", "html502", "reset", "cut", "truncated", "malformed", "in_band_error", "error_in_200")
POLICIES: dict[str, dict[str, Any]] = {
    "breakers": {"none": {"enabled": False}},
    "queue": {"default": {"shed": {"loop_lag": "60s"}}},  # the machine's lag is not the gateway's load
    "cache": {
        "default": {"idempotency": {"keep": "2m", "max_bytes": "4MiB", "max_entry": "64KiB"}},
        "kept": {"exact": {"requests": "always", "ttl": "1m", "max_bytes": "2MiB", "max_entry": "64KiB"}},
    },
}
KINDS = ("plain",) * 7 + ("stream",) * 5 + ("long", "name", "key", "again", "kept", "kept", "wrong", "embedding")


def request_of(number: int) -> bytes:
    """A call of the kind that the number draws."""
    rng = random.Random(number)
    path, headers = "/v1/chat/completions", tuple[str, ...]()
    match KINDS[number % len(KINDS)]:
        case "stream":
            body = chat(stream=True)
        case "long":
            body = chat(messages=[{"role": "user", "content": "word " * rng.randrange(60_000)}])
        case "name":
            body = chat(f"name-{number}")
        case "key":
            body, headers = chat(), (f"idempotency-key: key-{number}",)
        case "again":
            body, headers = chat(), (f"idempotency-key: key-{number - 1 - len(KINDS) * rng.randrange(4)}",)
        case "kept":
            body = chat("kept", messages=[{"role": "user", "content": f"question {rng.randrange(2000)}"}])
        case "wrong":
            body = chat(messages=number)
        case "embedding":
            path, body = "/v1/embeddings", {"model": "embedding", "input": ["hello"] * rng.randrange(1, 20)}
        case _:
            body = chat()
    return post(path, body, *headers)


@dataclass(slots=True)
class Watch:
    """Looks into a process."""

    served: Served
    began_at: float = 0.0
    curve: list[tuple[float, Memory]] = field(default_factory=list)
    """Seconds, and what there was, under load."""
    rests: list[tuple[float, Memory]] = field(default_factory=list)
    """The same while nobody called."""

    async def ask(self, command: str) -> Memory:
        """`look`, `rest` or `trim`."""
        return Memory(**await self.served.inside(command))

    async def during(self, seconds: float) -> None:
        """Look every ten seconds."""
        ends_at = time.monotonic() + seconds
        while (left_s := ends_at - time.monotonic()) > 0:
            self.curve.append((time.monotonic() - self.began_at, await self.ask("look")))
            await asyncio.sleep(min(left_s, LOOK_S))

    async def rest(self) -> None:
        """Count what is there when nobody calls."""
        await asyncio.sleep(REST_S)
        self.rests.append((time.monotonic() - self.began_at, await self.ask("rest")))


def per_hour(curve: list[tuple[float, Memory]], name: str) -> float:
    """The slope of one of the figures, an hour."""
    return slope([(at / 3600, getattr(memory, name)) for at, memory in curve])


@asynccontextmanager
async def provider(log: Path) -> AsyncIterator[str]:
    """An emulator that fails one call in ten; its base URL."""
    faults = [f"--fault={fault}={0.1 / len(FAULTS)}" for fault in FAULTS]
    command = (
        sys.executable,
        "-m",
        "gateway",
        "emulate",
        "--port=0",
        "--ttft=0.02",
        "--tokens-per-second=500",
        *faults,
    )
    with log.open("w") as stderr:
        process = await asyncio.create_subprocess_exec(*command, stderr=stderr)

    def said() -> str:
        return log.read_text()

    try:
        await wait_for(lambda: "base_url " in said(), said)
        yield said().partition("base_url ")[2].partition(",")[0]
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def watched(folder: Path, liar: str = "") -> AsyncIterator[Watch]:
    """A gateway in front of the provider; `liar` is the base URL of another, which the model `lied-to` asks first."""
    async with provider(folder / "provider.err") as base_url:
        (folder / "policies").mkdir()
        for name, policy in POLICIES.items():
            (folder / "policies" / f"{name}.yaml").write_text(yaml.safe_dump(policy))
        models: dict[str, Any] = {"*": {"targets": ["main"]}, "kept": {"targets": ["main/m"], "cache": "kept"}}
        config: dict[str, Any] = {
            "providers": {"main": {"dialect": "openai", "base_url": base_url, "api_key": "k"}},
            "models": {**models, "gpt-4o": {"targets": ["main/a", "main/b"]}},
            "policies": "policies",
        }
        if liar:
            config["providers"]["liar"] = {"dialect": "openai", "base_url": liar, "api_key": "k"}
            config["models"]["lied-to"] = {"targets": ["liar/m"], "fallbacks": ["gpt-4o"], "breakers": "none"}
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        async with serve(path, "tests.soak.inside") as served:
            yield Watch(served)


async def leave(url: str, until: float) -> None:
    """Clients that leave at a random byte, one after the other."""
    rng = random.Random(0)
    while time.monotonic() < until:
        async with mortal(url) as client:
            with suppress(ConnectionError, TimeoutError):  # an answer may be shorter than the cut
                async with asyncio.timeout(0.5):
                    await client.send(post(body=chat(stream=rng.random() < 0.5)))
                    await client.read(draw_cut(rng, 5000))
            await client.die(rng.choice(MANNERS))
        await asyncio.sleep(1 / LEAVE_PER_S)


async def warm_names(url: str) -> None:
    """New names, as fast as four clients can ask for them."""

    async def ask(first: int) -> None:
        async with connect(url) as peer:
            for number in range(first, WARM_NAMES, 4):
                with suppress(ConnectionError, EOFError):
                    await peer.exchange(post(body=chat(f"early-{number}")))

    await asyncio.gather(*map(ask, range(4)))


NAMES = ("rss", "held", "kept_free", "objects", "arenas", "malloc_used", "malloc_free", "blocks")


def table(curve: list[tuple[float, Memory]]) -> str:
    """The curve in a dozen steps, in KiB."""
    rows = [f"  {'minute':>8}" + "".join(f"{name:>13}" for name in NAMES)]
    for at, memory in curve[:: max(1, len(curve) // 12)]:
        rows.append(f"  {at / 60:8.1f}" + "".join(f"{getattr(memory, name):13.0f}" for name in NAMES))
    rows.append("  per hour" + "".join(f"{per_hour(curve, name):13.0f}" for name in NAMES))
    return "\n".join(rows)


@dataclass(slots=True)
class Traffic:
    """The mix, part after part."""

    url: str
    parts: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)
    broke_off: int = 0

    async def during(self, seconds: float, work: Awaitable[None]) -> None:
        """Calls, and clients that leave, for so long."""
        first = self.parts * PART_CALLS
        self.parts += 1

        def check(number: int, answer: Response) -> str:
            self.statuses[f"{KINDS[number % len(KINDS)]} {answer.status}"] += 1
            assert answer.status in {200, 400, 409, 500, 502, 503}, answer.raw
            return "answered"

        load = Load(self.url, CALLS_PER_S, lambda number: request_of(first + number), check)
        leaving = asyncio.create_task(leave(self.url, time.monotonic() + seconds))
        await load.during(work)
        await leaving
        self.latencies_s += load.latencies_s["answered"]
        self.broke_off += len(load.faults)


async def test_half_an_hour_of_mixed_traffic_does_not_grow(tmp_path: Path, report: Report) -> None:
    """After a warm-up that fills what is bounded, the program holds at most 1 MiB an hour more.

    And resident memory grows by no more than that and what the allocators keep, which is theirs to give again.
    """
    async with watched(tmp_path) as watch:
        traffic = Traffic(watch.served.url)
        await warm_names(traffic.url)
        await traffic.during(WARM_S, asyncio.sleep(WARM_S))
        watch.began_at = time.monotonic()
        await watch.rest()
        for _ in range(PARTS):
            await traffic.during(PART_S, watch.during(PART_S))
            await watch.rest()
        trimmed = await watch.ask("trim")
        open_files = descriptors(watch.served.pid)

    report(
        f"{MINUTES:g} minutes, {traffic.broke_off} broke off: {dict(sorted(traffic.statuses.items()))}\n"
        f"  latency: {spread(traffic.latencies_s)}; {open_files} descriptors at the end\n"
        f"  under load:\n{table(watch.curve)}\n  at rest:\n{table(watch.rests)}\n  trimmed {trimmed}"
    )
    if MINUTES >= BAR_MINUTES:
        settled = watch.rests[1:]  # the first ends the warm-up
        assert per_hour(settled, "held") <= SLOPE_KIB_PER_HOUR
        assert per_hour(settled, "rss") - max(0.0, per_hour(settled, "kept_free")) <= SLOPE_KIB_PER_HOUR
