"""Batches at half price whose gateway is killed fifty times: the provider is asked for no part of them twice.

KILLS and SEED scale it. On a Redis a killed gateway's claims last on for a while, so each batch has its own kill there.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import yaml
from openai.types import Batch

from gateway.emulator.config import EmulatorConfig
from gateway.emulator.server import EmulatorServer
from tests.e2e.batch_kills import sdk_of
from tests.e2e.batches import BATCH_ENDS, begin, check_end, line, names
from tests.e2e.durable import policies, with_jobs
from tests.e2e.harness import KEYS, PROVIDER_KEY, config_of
from tests.e2e.lives import life
from tests.soak.conftest import Report
from tests.store.redis_servers import RedisServer, redis_server

pytestmark = pytest.mark.soak

LINES, KILLS_A_BATCH = 60, {"sqlite": 5, "redis": 1}
KILLS = {"sqlite": 50, "redis": 20}
LONGEST_S = {"sqlite": 0.06, "redis": 0.4}
NATIVE = {"batches": {"run": "native", "native": {"min_lines": 10, "part_lines": 10}}}


@pytest.fixture(params=["sqlite", "redis"])
def redis(request: pytest.FixtureRequest) -> Iterator[RedisServer | None]:
    if request.param == "sqlite":
        yield None
        return
    with redis_server("--appendonly", "yes") as server:
        yield server


async def test_kills_submit_nothing_twice(tmp_path: Path, report: Report, redis: RedisServer | None) -> None:
    """By the provider's own books: each part is one batch, each line paid for once; nothing ran through the gateway."""
    seed, store = int(os.environ.get("SEED", "1")), "sqlite" if redis is None else "redis"
    kills = int(os.environ.get("KILLS", KILLS[store]))
    rng, custom_ids, made = random.Random(seed), names(LINES), list[str]()
    provider = EmulatorServer(EmulatorConfig(batch_s=0, api_key=PROVIDER_KEY))
    await provider.start()
    config = tmp_path / "config.yaml"
    keys = [{**KEYS[0], "budget_usd_per_day": 1000.0}, *KEYS[1:]]
    rules = policies(tmp_path, jobs=NATIVE)
    said = with_jobs(tmp_path, policies=rules, keys=keys)(provider.base_url)
    if redis is not None:
        shared = {"state": {"redis": redis.url, "timeout": "1s"}, "jobs": {}, "keys": keys, "policies": rules}
        said = config_of(provider.base_url, **shared)
    config.write_text(yaml.safe_dump(dict(said)))
    at_kills: Counter[str] = Counter()
    for number in range(kills):
        async with life(config) as served, sdk_of(served) as sdk:
            if number % KILLS_A_BATCH[store] == 0:
                made.append((await begin(sdk, map(line, custom_ids))).id)
            await asyncio.sleep(rng.uniform(0.0, LONGEST_S[store]))
            try:
                async with asyncio.timeout(0.5):
                    at_kills[(await sdk.batches.retrieve(made[-1])).status] += 1
            except (openai.APIError, TimeoutError):
                at_kills["not told"] += 1
            served.kill()
    async with life(config) as served, sdk_of(served) as sdk:
        for batch_id in made:
            done = await _end_of(sdk, batch_id)
            await check_end(sdk, done, custom_ids)
            assert (done.status, done.request_counts and done.request_counts.completed) == ("completed", LINES)
    await provider.stop()

    books = provider.emulator.batches
    parts = Counter(one["metadata"]["gateway_part"].rpartition("-")[0] for one in books.batches.values())
    calls = provider.emulator.stats.endpoints["chat/completions"]
    report(
        f"{len(made)} batches of {LINES} lines, {kills} kills on {store} ({dict(at_kills)}): {len(parts)} parts, "
        f"{sum(parts.values()) - len(parts)} submitted twice; {len(books.served)} lines, "
        f"{sum(books.served.values()) - len(books.served)} paid for twice, {calls} through the gateway; "
        f"{len(books.files)} files left behind (seed {seed})"
    )
    assert len(parts) == sum(parts.values()) == len(made) * LINES // 10
    assert len(books.served) == sum(books.served.values()) == len(made) * LINES
    assert calls == 0
    assert not books.files


async def _end_of(sdk: openai.AsyncOpenAI, batch_id: str) -> Batch:
    """Polls for as long as a part takes of which nobody knows whether it was asked for."""
    async with asyncio.timeout(600):
        while (batch := await sdk.batches.retrieve(batch_id)).status not in BATCH_ENDS:  # noqa: ASYNC110  # it is elsewhere
            await asyncio.sleep(1)
    return batch
