"""Live calls beside a batch of 50,000 lines that uses a provider's limit up: what they wait for it, and who else gets on.

The gateway is a process of its own; provider and callers share this one. In virtual time, where only admission counts, it is
in `tests/products/batches/test_batch_limits.py`; here the same gateway also reads, writes and commits. For a quiet machine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from openai import AsyncOpenAI

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.batches import becomes, begin, line, names
from tests.e2e.harness import NIGHTLY_KEY, WEB_KEY, connect, post
from tests.loopback import plain_http
from tests.soak.conftest import Report
from tests.soak.support import Served, serve

pytestmark = pytest.mark.soak

PER_S, BURST, LIVE_PER_S, SECONDS, LINES = 60.0, 60, 20.0, 45.0, 50_000
OTHER_KEY = "other-canary-key-0123456789abcdef"
MORE_P99, LEAST_USED, SECOND_S = 0.10, 0.97, 15.0
SETTLING_S = 5.0
"""Until the batch has used up what had been saved of the limit."""


@dataclass
class Seen:
    """What live callers have met."""

    times: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def at(self, percent: float) -> float:
        """Seconds that so many of a hundred calls were answered in."""
        return sorted(self.times)[int(percent / 100 * len(self.times))]


async def live(served: Served, seed: int) -> Seen:
    """Calls at random moments; the time of each is that of its exchange."""
    seen, draws, tasks = Seen(), random.Random(seed), list[asyncio.Task[None]]()
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}], "temperature": 1}
    request = post("/v1/chat/completions", body, f"authorization: Bearer {WEB_KEY}")

    async def call() -> None:
        async with connect(served.url) as peer:
            began = time.monotonic()
            answer = await peer.exchange(request)
            seen.times.append(time.monotonic() - began)
            seen.statuses[answer.status] += 1

    ends_at = time.monotonic() + SECONDS
    while time.monotonic() < ends_at:
        tasks.append(asyncio.create_task(call()))
        await asyncio.sleep(draws.expovariate(LIVE_PER_S))
    await asyncio.gather(*tasks)
    return seen


def sdk(served: Served, key: str) -> AsyncOpenAI:
    """The official SDK."""
    return AsyncOpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0, http_client=plain_http())


async def test_live_calls_hardly_notice_a_batch(tmp_path: Path, report: Report) -> None:
    """Their p99, and the limit: before the batch, and beside it; a second tenant's batch begins meanwhile."""
    provider = EmulatorServer(EmulatorConfig(ttft_s=0.3, rpm=int(60 * PER_S), burst=BURST, recorded_requests=0))
    await provider.start()
    target = {"provider": "main", "model": "gpt-4o", "rpm": int(60 * PER_S), "burst": BURST}
    config = {
        "providers": {"main": {"dialect": "openai", "base_url": provider.base_url, "api_key": "sk-soak"}},
        "models": {"gpt-4o": {"targets": [target]}},
        "keys": [
            {"name": "web", "key": WEB_KEY},
            {"name": "nightly", "key": NIGHTLY_KEY, "lane": "batch"},
            {"name": "other", "key": OTHER_KEY, "lane": "batch"},
        ],
        "jobs": {"store": f"sqlite:///{tmp_path}/jobs.db", "files": f"{tmp_path}/blobs", "min_free": "1MiB"},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    stats = provider.emulator.stats
    async with serve(path) as served, sdk(served, NIGHTLY_KEY) as nightly, sdk(served, OTHER_KEY) as other:
        alone = await live(served, 1)
        first = await begin(nightly, map(line, names(LINES)))
        await becomes(
            nightly, first.id, lambda one: one.request_counts is not None and one.request_counts.completed > 0
        )
        await asyncio.sleep(SETTLING_S)
        before, began = stats.statuses[200], time.monotonic()
        running = asyncio.create_task(live(served, 1))
        await asyncio.sleep(SECONDS / 3)
        asked_at = time.monotonic()
        second = await begin(other, map(line, names(200)))
        await becomes(other, second.id, lambda one: one.request_counts is not None and one.request_counts.completed > 0)
        second_s = time.monotonic() - asked_at
        beside = await running
        used = (stats.statuses[200] - before) / (PER_S * (time.monotonic() - began))
        await nightly.batches.cancel(first.id)
    await provider.stop()

    report(
        f"live p50/p99 alone {alone.at(50) * 1e3:.0f}/{alone.at(99) * 1e3:.0f} ms, beside {beside.at(50) * 1e3:.0f}/"
        f"{beside.at(99) * 1e3:.0f} ms; limit used {used:.1%}, provider's 429s {stats.statuses[429]}; "
        f"another tenant's first line after {second_s:.1f} s"
    )
    assert set(beside.statuses) == {200}
    assert second_s <= SECOND_S
    assert used >= LEAST_USED
    assert beside.at(99) <= (1 + MORE_P99) * alone.at(99)
