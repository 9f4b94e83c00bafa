"""Batches at half price whose gateway is killed fifty times: the provider is asked for no part of them twice.

KILLS and SEED scale it. On a Redis a killed gateway's claims last on for a while, so each batch has its own kill there.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from openai.types import Batch

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from gateway.products.batches.native.formats import RemoteBatch
from gateway.products.batches.native.providers import HttpProviderBatches
from tests.e2e.batch_kills import sdk_of
from tests.e2e.batches import BATCH_ENDS, becomes, begin, check_end, line, names
from tests.e2e.durable import policies, with_jobs
from tests.e2e.harness import KEYS, PROVIDER_KEY, config_of
from tests.e2e.lives import life
from tests.soak.conftest import Report
from tests.support.redis_servers import RedisServer, redis_server

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


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_kills_submit_nothing_twice(
    tmp_path: Path, report: Report, redis: RedisServer | None, dialect: str
) -> None:
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
    speaking = {"dialect": dialect, "base_url": provider.base_url, "api_key": PROVIDER_KEY}
    said = {**said, "providers": {"main": speaking}}
    if redis is not None:
        shared = {"state": {"redis": redis.url, "timeout": "1s"}, "jobs": {}, "keys": keys, "policies": rules}
        said = {**config_of(provider.base_url, **shared), "providers": {"main": speaking}}
    config.write_text(yaml.safe_dump(dict(said)))
    at_kills: Counter[str] = Counter()
    in_check = 0
    for number in range(kills):
        async with life(config) as served, sdk_of(served) as sdk:
            if number % KILLS_A_BATCH[store] == 0:
                made.append((await begin(sdk, map(line, custom_ids))).id)
                in_check = 0
            if in_check == 2:  # a third death while its file is checked would be the file's fault
                await becomes(sdk, made[-1], lambda seen: seen.status != "validating")
            await asyncio.sleep(rng.uniform(0.0, LONGEST_S[store]))
            try:
                async with asyncio.timeout(0.5):
                    status: str = (await sdk.batches.retrieve(made[-1])).status
            except (openai.APIError, TimeoutError):
                status = "not told"
            at_kills[status] += 1
            in_check += status in ("validating", "not told")
            served.kill()
    async with life(config) as served, sdk_of(served) as sdk:
        for batch_id in made:
            done = await _end_of(sdk, batch_id)
            await check_end(sdk, done, custom_ids)
            assert (done.status, done.request_counts and done.request_counts.completed) == ("completed", LINES)
    await provider.stop()

    emulator = provider.emulator
    books = emulator.batches
    made_there, paid, left = len(books.batches), books.served, len(books.files)
    names_there = {one["metadata"]["gateway_part"].rpartition("-")[0] for one in books.batches.values()}
    parts = len(names_there)
    calls = emulator.stats.endpoints["chat/completions"] + emulator.stats.endpoints["messages"]
    if dialect == "anthropic":
        inline = emulator.message_batches
        made_there, paid, left, parts = inline.made, inline.served, len(inline.batches), len(made) * LINES // 10
    report(
        f"{dialect}: {len(made)} batches of {LINES} lines, {kills} kills on {store} ({dict(at_kills)}): {parts} parts, "
        f"{made_there - parts} submitted twice; {len(paid)} lines, "
        f"{sum(paid.values()) - len(paid)} paid for twice, {calls} through the gateway; "
        f"{left} files or batches left behind (seed {seed})"
    )
    assert parts == made_there == len(made) * LINES // 10
    assert len(paid) == sum(paid.values()) == len(made) * LINES
    assert calls == 0
    assert not left


def _stops_before_asking() -> None:
    """Let this process stop itself between the first note of a batch that it is about to ask for, and its request."""
    create = HttpProviderBatches.create
    has_stopped: list[bool] = []

    async def stopped(*args: Any) -> RemoteBatch:
        if not has_stopped:
            has_stopped.append(True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return await create(*args)

    setattr(HttpProviderBatches, "create", stopped)  # noqa: B010 - it is no attribute for anybody else to set


async def test_a_gateway_that_stood_still_submits_nothing_when_it_goes_on(tmp_path: Path, report: Report) -> None:
    """Another has taken its part over meanwhile, found no batch, and asked for one: the request that was due is not sent."""
    provider = EmulatorServer(EmulatorConfig(batch_s=0, api_key=PROVIDER_KEY))
    await provider.start()
    custom_ids = names(LINES)
    with redis_server("--appendonly", "yes") as redis:
        rules = policies(tmp_path, jobs={"batches": {"run": "native", "native": {"min_lines": 10}}})
        shared = {"state": {"redis": redis.url, "timeout": "1s"}, "jobs": {}, "keys": KEYS, "policies": rules}
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(config_of(provider.base_url, **shared)))
        async with life(config, before=_stops_before_asking) as first:
            async with sdk_of(first) as sdk:
                made = await begin(sdk, map(line, custom_ids))
            while not provider.emulator.batches.files:  # noqa: ASYNC110  # it is another process's doing
                await asyncio.sleep(0.05)
            await asyncio.sleep(1)
            begun = time.monotonic()
            async with life(config) as second, sdk_of(second) as sdk:
                while not provider.emulator.batches.batches:  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0.05)
                took_s = time.monotonic() - begun
                os.kill(first.pid, signal.SIGCONT)
                done = await _end_of(sdk, made.id)
                await check_end(sdk, done, custom_ids)
                await asyncio.sleep(5)
            said = first.said
    await provider.stop()
    books = provider.emulator.batches
    report(f"asked for by the second after {took_s:.0f} s; {len(books.batches)} batches, {len(books.files)} files left")
    assert (done.status, len(books.batches), set(books.served.values())) == ("completed", 1, {1})
    assert (len(books.served), books.files) == (LINES, {})
    assert "Traceback" not in said


async def _end_of(sdk: openai.AsyncOpenAI, batch_id: str) -> Batch:
    """Polls for as long as a part takes of which nobody knows whether it was asked for."""
    async with asyncio.timeout(600):
        while (batch := await sdk.batches.retrieve(batch_id)).status not in BATCH_ENDS:  # noqa: ASYNC110  # it is elsewhere
            await asyncio.sleep(1)
    return batch
