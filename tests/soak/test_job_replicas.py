"""Jobs of several gateways on one Redis: gateways and the Redis are killed, stopped and hung, in real time.

LINES, KILLS and SEED scale the batch; HUNG_S is how long a worker hangs.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from openai.types import Batch

from gateway.emulator.app import EmulatorServer
from tests.e2e.batch_kills import sdk_of
from tests.e2e.batches import BATCH_ENDS, asked_of, begin, check_end, line, names
from tests.e2e.durable import ask, end_of, new_job, take
from tests.e2e.harness import KEYS, config_of, get
from tests.e2e.lives import Life, life
from tests.e2e.replicas import until_shared
from tests.soak.conftest import Report
from tests.soak.provided import provided, remembering
from tests.soak.support import wait_for
from tests.support.redis_servers import RedisServer, redis_server

pytestmark = pytest.mark.soak

LINES, KILLS = int(os.environ.get("LINES", "10000")), int(os.environ.get("KILLS", "30"))
HUNG_S = float(os.environ.get("HUNG_S", "60"))
TAKEOVER_S, HANDOVER_S, ABORT_S = 30.0, 2.0, 5.0
PATIENCE_S = 1800.0


def written(folder: Path, name: str, provider: EmulatorServer, redis: RedisServer, **sections: Any) -> Path:
    """A gateway's config, in a folder of its own; all share the files of jobs."""
    place = folder / name
    place.mkdir()
    jobs = {"files": f"file://{folder}/shared", "min_free": "1MiB"}
    said = config_of(provider.base_url, keys=KEYS, state={"redis": redis.url, "timeout": "1s"}, jobs=jobs, **sections)
    (place / "config.yaml").write_text(yaml.safe_dump(dict(said)))
    return place / "config.yaml"


async def metric(one: Life, name: str) -> float:
    """The value of a metric without labels."""
    body = (await ask(one.url, get("/metrics"))).body.decode()
    return sum(float(row.split()[-1]) for row in body.splitlines() if row.startswith(name))


async def becomes(fact: Callable[[], object], within_s: float = 60.0) -> float:
    """The seconds until it is so."""
    began = time.monotonic()
    await wait_for(lambda: bool(fact()), lambda: "it did not come true", within_s)
    return time.monotonic() - began


@pytest.mark.parametrize("fsync", ["always", "everysec"])
async def test_two_gateways_and_their_redis_are_killed_under_a_batch(
    tmp_path: Path, report: Report, fsync: str
) -> None:
    """No line is lost and none doubled, and no job that was acknowledged is missing."""
    rng, custom_ids = random.Random(int(os.environ.get("SEED", "1"))), names(LINES)
    killed: Counter[str] = Counter()
    with redis_server("--appendonly", "yes", "--appendfsync", fsync) as server:
        async with (
            provided(remembering(ttft_s=0.06, jitter=0.6, output_tokens=8)) as provider,
            AsyncExitStack() as stack,
        ):
            numbers = iter(range(10_000))

            async def begin_life() -> Life:
                one = await stack.enter_async_context(life(written(tmp_path, f"{next(numbers)}", provider, server)))
                await until_shared(one.url)
                return one

            lives = [await begin_life() for _ in range(2)]
            async with sdk_of(lives[0]) as sdk:
                batch = await begin(sdk, map(line, custom_ids))
            taken, over = list[str](), asyncio.Event()
            taking = asyncio.create_task(_take_jobs(lives, taken, over))
            for number in range(1, KILLS + 1):
                await _progress(provider, number * LINES // (KILLS + 1))
                victim = rng.choice(("gateway", "gateway", "redis"))
                killed[victim] += 1
                if victim == "redis":
                    server.kill()
                    await asyncio.sleep(rng.random())
                    server.start()
                else:
                    at = rng.randrange(2)
                    lives[at].kill()
                    await lives[at].ends()
                    lives[at] = await begin_life()
            done = await _end(lives[0], batch)
            over.set()
            await taking
            async with sdk_of(lives[0]) as sdk:
                files = await check_end(sdk, done, custom_ids)
            missing = [one for one in taken if (await ask(lives[0].url, get(f"/v1/jobs/{one}", _WEB))).status != 200]
            calls = asked_of(provider.emulator.recorder)
            extra = sum(calls[name] for name in custom_ids) - LINES
            said = f"{LINES} lines, {dict(killed)} killed, appendfsync {fsync}: {len(files.output)} results, "
            report(
                f"{said}{len(files.errors)} errors, {extra} calls more than lines; "
                f"{len(missing)} of {len(taken)} acknowledged jobs missing"
            )
            assert done.status == "completed"
            assert not missing
            assert extra <= killed["gateway"] * 400


async def test_work_of_a_gateway_that_dies_or_stops_is_taken_over(tmp_path: Path, report: Report) -> None:
    """Of a killed one by its lease; of one that stops in order as soon as it has given it back."""
    with redis_server("--appendonly", "yes") as server:
        async with provided(remembering(ttft_s=300.0)) as provider:
            configs = [written(tmp_path, name, provider, server, server={"grace": "1s"}) for name in "abc"]
            async with life(configs[0]) as first:
                await take(first.url, new_job())
                await becomes(lambda: provider.emulator.stats.active == 1)
                async with life(configs[1]) as second:
                    await until_shared(second.url)
                    first.kill()
                    await first.ends()
                    await becomes(lambda: provider.emulator.stats.active == 0)
                    takeover_s = await becomes(lambda: provider.emulator.stats.active == 1)
                    async with life(configs[2]) as third:
                        await until_shared(third.url)
                        second.tell(signal.SIGTERM)
                        await becomes(lambda: provider.emulator.stats.active == 0)
                        handover_s = await becomes(lambda: provider.emulator.stats.active == 1)
    report(f"taken over after kill -9 in {takeover_s:.1f} s, handed over at SIGTERM in {handover_s:.2f} s")
    assert takeover_s <= TAKEOVER_S
    assert handover_s <= HANDOVER_S


async def test_a_worker_that_hung_gives_up_what_another_has(tmp_path: Path, report: Report) -> None:
    """Its calls end soon after it goes on, and the job has one end."""
    with redis_server("--appendonly", "yes") as server:
        async with provided(remembering(ttft_s=HUNG_S + 20.0)) as provider:
            configs = [written(tmp_path, name, provider, server) for name in "ab"]
            async with life(configs[0]) as first:
                job = await take(first.url, new_job())
                await becomes(lambda: provider.emulator.stats.active == 1)
                async with life(configs[1]) as second:
                    await until_shared(second.url)
                    first.tell(signal.SIGSTOP)
                    takeover_s = await becomes(lambda: provider.emulator.stats.active == 2)
                    await asyncio.sleep(max(0.0, HUNG_S - takeover_s))
                    first.tell(signal.SIGCONT)
                    abort_s = await becomes(lambda: provider.emulator.stats.active == 1)
                    lost = await metric(first, "gateway_job_leases_lost_total")
                    ended = await end_of_within(second, job["id"])
                    succeeded = [await metric(one, 'gateway_jobs_total{kind="call"') for one in (first, second)]
    report(f"hung {HUNG_S:.0f} s: calls broken off {abort_s:.1f} s after it went on, {lost:.0f} claims lost")
    assert ended["status"] == "succeeded"
    assert abort_s <= ABORT_S
    assert lost == 1
    assert succeeded == [0, 1]


async def end_of_within(one: Life, job_id: str) -> dict[str, Any]:
    """The job once it has ended, however long that takes."""
    while True:
        try:
            return await end_of(one.url, job_id)
        except TimeoutError:
            continue


_WEB = f"authorization: Bearer {KEYS[0]['key']}"


async def _progress(provider: EmulatorServer, answers: int) -> None:
    await wait_for(lambda: provider.emulator.stats.statuses[200] >= answers, lambda: "no progress", PATIENCE_S)


async def _take_jobs(lives: list[Life], taken: list[str], over: asyncio.Event) -> None:
    """Has a job taken ten times a second by either gateway, and notes those that were acknowledged."""
    number = 0
    while not over.is_set():
        number += 1
        try:
            async with asyncio.timeout(5.0):
                answer = await ask(lives[number % 2].url, new_job(delay="1h"))
        except (OSError, EOFError, TimeoutError, AssertionError):
            continue
        if answer.status == 202:
            taken.append(answer.header("location").rpartition("/")[2])  # type: ignore[union-attr]  # a 202 has one
        await asyncio.sleep(0.1)


async def _end(one: Life, batch: Batch) -> Batch:
    async with sdk_of(one) as sdk, asyncio.timeout(PATIENCE_S):
        while True:
            try:
                seen = await sdk.batches.retrieve(batch.id)
            except openai.APIError:
                seen = batch
            if seen.status in BATCH_ENDS:
                return seen
            await asyncio.sleep(0.2)
