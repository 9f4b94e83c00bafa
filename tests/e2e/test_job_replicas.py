"""Jobs of several gateways: real processes, a real Redis, real signals. What one has taken, any runs and shows."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.batch_kills import sdk_of
from tests.e2e.batches import asked_of, becomes, begin, check_end, line, names
from tests.e2e.batches import end_of as end_of_batch
from tests.e2e.durable import ASYNC, WEB, ask, end_of, look, new_job, policies, result_of, take
from tests.e2e.harness import KEYS, chat, config_of, get, post
from tests.e2e.lives import life, work
from tests.support.redis_servers import RedisServer, redis_server

UNEVEN = EmulatorConfig(ttft_s=0.05, jitter=0.6, output_tokens=8, recorded_requests=10_000)
"""Every answer takes its own time."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server("--appendonly", "yes") as server:
        yield server


@pytest.fixture
async def provider(server: RedisServer) -> AsyncIterator[EmulatorServer]:
    """The provider of all gateways, and an empty Redis."""
    server.flush()
    provider = EmulatorServer(UNEVEN)
    await provider.start()
    yield provider
    await provider.stop()


def written(
    folder: Path, name: str, provider: EmulatorServer, server: RedisServer, sections: Any = None, **jobs: Any
) -> Path:
    """A gateway's config, in a folder of its own."""
    place = folder / name
    place.mkdir()
    state = {"redis": server.url, "timeout": "1s"}
    said = config_of(provider.base_url, **{"keys": KEYS, "state": state, "jobs": jobs, **(sections or {})})
    (place / "config.yaml").write_text(yaml.safe_dump(dict(said)))
    return place / "config.yaml"


async def test_an_edge_takes_what_a_worker_runs(tmp_path: Path, provider: EmulatorServer, server: RedisServer) -> None:
    """Also before there is any worker; who waits at the edge hears of the end, and the worker takes no call."""
    edge_config = written(tmp_path, "edge", provider, server, work=False)
    async with life(edge_config) as edge:
        early = await take(edge.url, new_job())
        waiting = asyncio.create_task(ask(edge.url, post("/v1/chat/completions", chat(), WEB, f"{ASYNC}, wait=60")))
        assert (await look(edge.url, early["id"]))["status"] == "queued"
        async with work(edge_config) as worker:
            assert (await result_of(edge.url, early["id"])).status == 200
            assert (await end_of(edge.url, early["id"]))["status"] == "succeeded"
            assert (await waiting).status == 200
            refused = await ask(worker.url, post("/v1/chat/completions", chat(), WEB))
            ready = await ask(worker.url, get("/readyz"))
            assert (refused.status, ready.status) == (404, 200)
            assert orjson.loads(ready.body)["jobs"].startswith("on disk")
            assert b"gateway_jobs_total" in (await ask(worker.url, get("/metrics"))).body
    assert provider.emulator.stats.statuses[200] == 2


@pytest.mark.parametrize("files", ["redis", "folder"])
async def test_two_gateways_work_on_one_batch(
    tmp_path: Path, provider: EmulatorServer, server: RedisServer, files: str
) -> None:
    """One is told to stop on the way, and hands over: each line has one result, and was asked for once."""
    where = {} if files == "redis" else {"files": f"file://{tmp_path}/shared", "min_free": "1MiB"}
    one, other = (written(tmp_path, name, provider, server, **where) for name in ("one", "other"))
    custom_ids = names(600)
    async with life(one) as first, life(other) as second:
        async with sdk_of(first) as at_first, sdk_of(second) as at_second:
            batch = await begin(at_first, map(line, custom_ids))
            await becomes(at_second, batch.id, lambda seen: bool(seen.request_counts and seen.request_counts.completed))
            for each in (first, second):
                metrics = await ask(each.url, get("/metrics"))
                assert b"gateway_jobs_depth" in metrics.body
            first.tell(signal.SIGTERM)
            assert await first.ends() == 0
            done = await end_of_batch(at_second, batch.id)
            assert done.status == "completed"
            await check_end(at_second, done, custom_ids)
        assert set(asked_of(provider.emulator.recorder).values()) == {1}
        assert "Traceback" not in first.said + second.said


async def test_two_gateways_have_one_batch_done_by_its_provider(
    tmp_path: Path, provider: EmulatorServer, server: RedisServer
) -> None:
    """In parts, one of them told to stop on the way: each part is one batch there, each line paid for once, within a budget
    that the two know of together.
    """
    custom_ids, tokens = names(40), {"max_tokens": 10}
    native = {"batches": {"run": "native", "native": {"min_lines": 10, "part_lines": 10}}}
    keys = [{**KEYS[0], "budget_usd_per_day": 1.0}, *KEYS[1:]]
    price = {"input_usd_per_million": 1.0, "output_usd_per_million": 1000.0}
    target = {"provider": "main", "model": "gpt-4o-mini", "price": price}
    rules = policies(tmp_path, jobs=native)
    sections = {"models": {"gpt-4o-mini": {"targets": [target]}}, "keys": keys, "policies": rules}
    provider.emulator.config = replace(provider.emulator.config, batch_s=0)
    one, other = (written(tmp_path, name, provider, server, sections) for name in ("one", "other"))
    async with life(one) as first, life(other) as second:
        async with sdk_of(first) as at_first, sdk_of(second) as at_second:
            batch = await begin(at_first, (line(name, "gpt-4o-mini", **tokens) for name in custom_ids))
            await becomes(at_second, batch.id, lambda seen: bool(seen.request_counts and seen.request_counts.completed))
            first.tell(signal.SIGTERM)
            assert await first.ends() == 0
            done = await end_of_batch(at_second, batch.id)
            assert done.status == "completed"
            await check_end(at_second, done, custom_ids)
        assert "Traceback" not in first.said + second.said
    books = provider.emulator.batches
    assert (len(books.batches), books.files, provider.emulator.stats.endpoints["chat/completions"]) == (4, {}, 0)
    assert len(books.served) == sum(books.served.values()) == 40


async def test_jobs_are_refused_by_a_redis_that_may_lose_them(
    tmp_path: Path, provider: EmulatorServer, server: RedisServer
) -> None:
    """Calls go on, and the log says what to do; once it is done, jobs come by themselves."""
    server.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        async with life(written(tmp_path, "one", provider, server)) as gateway:
            await gateway.says("noeviction")
            assert (await ask(gateway.url, new_job())).error["code"] == "jobs_unavailable"
            assert (await ask(gateway.url, post("/v1/chat/completions", chat(), WEB))).status == 200
            server.do("CONFIG", "SET", "maxmemory-policy", "noeviction")
            await gateway.says("jobs are on again")
            await end_of(gateway.url, (await take(gateway.url, new_job()))["id"])
    finally:
        server.do("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_a_worker_of_a_file_has_nothing_to_do(tmp_path: Path, provider: EmulatorServer) -> None:
    """It says so, and ends."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(dict(config_of(provider.base_url, keys=KEYS))))
    async with work(config, words="is one process's alone") as worker:
        assert await worker.ends() == 2
