"""Batches at half price whose gateway is killed fifty times: the provider is asked for no part of them twice."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import openai
import pytest
import yaml

from gateway.emulator.config import EmulatorConfig
from gateway.emulator.server import EmulatorServer
from tests.e2e.batch_kills import sdk_of
from tests.e2e.batches import begin, check_end, end_of, line, names
from tests.e2e.durable import policies, with_jobs
from tests.e2e.harness import PROVIDER_KEY
from tests.e2e.lives import life
from tests.soak.conftest import Report

pytestmark = pytest.mark.soak

LINES, KILLS, KILLS_A_BATCH = 60, 50, 5
NATIVE = {"batches": {"run": "native", "native": {"min_lines": 10, "part_lines": 10}}}


async def test_fifty_kills_submit_nothing_twice(tmp_path: Path, report: Report) -> None:
    """By the provider's own books: each part is one batch, each line paid for once; nothing ran through the gateway."""
    seed = int(os.environ.get("SEED", "1"))
    rng, custom_ids, made = random.Random(seed), names(LINES), list[str]()
    provider = EmulatorServer(EmulatorConfig(batch_s=0, api_key=PROVIDER_KEY))
    await provider.start()
    config = tmp_path / "config.yaml"
    said = with_jobs(tmp_path, policies=policies(tmp_path, jobs=NATIVE))(provider.base_url)
    config.write_text(yaml.safe_dump(dict(said)))
    at_kills: Counter[str] = Counter()
    for number in range(KILLS):
        async with life(config) as served, sdk_of(served) as sdk:
            if number % KILLS_A_BATCH == 0:
                made.append((await begin(sdk, map(line, custom_ids))).id)
            await asyncio.sleep(rng.uniform(0.0, 0.06))
            try:
                async with asyncio.timeout(0.5):
                    at_kills[(await sdk.batches.retrieve(made[-1])).status] += 1
            except (openai.APIError, TimeoutError):
                at_kills["not told"] += 1
            served.kill()
    async with life(config) as served, sdk_of(served) as sdk:
        for batch_id in made:
            done = await end_of(sdk, batch_id)
            await check_end(sdk, done, custom_ids)
            assert (done.status, done.request_counts and done.request_counts.completed) == ("completed", LINES)
    await provider.stop()

    books = provider.emulator.batches
    parts = Counter(one["metadata"]["gateway_part"] for one in books.batches.values())
    calls = provider.emulator.stats.endpoints["chat/completions"]
    report(
        f"{len(made)} batches of {LINES} lines, {KILLS} kills ({dict(at_kills)}): {len(parts)} parts, "
        f"{sum(parts.values()) - len(parts)} submitted twice; {len(books.served)} lines, "
        f"{sum(books.served.values()) - len(books.served)} paid for twice, {calls} through the gateway; "
        f"{len(books.files)} files left behind (seed {seed})"
    )
    assert len(parts) == sum(parts.values()) == len(made) * LINES // 10
    assert len(books.served) == sum(books.served.values()) == len(made) * LINES
    assert calls == 0
    assert not books.files
