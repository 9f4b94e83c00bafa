"""Nobody pays twice, whichever replica is asked, and whichever is killed: several gateways, a real Redis, real signals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.harness import connect, until
from tests.e2e.replaying import Crowd, Question, ask, check, is_replayed, questions
from tests.e2e.replicas import Trial, replicas, times
from tests.e2e.test_process import Provider
from tests.support.redis_servers import RedisServer, redis_server

UNHURRIED = EmulatorConfig(ttft_s=0.2, tokens_per_second=120.0, output_tokens=60)
"""More than half a second for an answer."""
UNEVEN = EmulatorConfig(ttft_s=0.05, tokens_per_second=300.0, jitter=0.6, recorded_requests=10_000)
"""A few tenths of a second for an answer, each its own."""
LEASE_S = 1.5
STREAM = Question("a-stream", "asked-stream", stream=True)
WHOLE = Question("a-whole", "asked-whole", stream=False)
BOTH = (STREAM, WHOLE)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _empty(server: RedisServer) -> None:
    server.flush()


@pytest.fixture
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[EmulatorServer]:
    provider = EmulatorServer(request.param)
    await provider.start()
    yield provider
    await provider.stop()


def impatient(folder: Path) -> str:
    """A folder of policies under which a dead holder is soon succeeded."""
    (folder / "policies").mkdir()
    policy = {"default": {"idempotency": {"lease": f"{LEASE_S}s"}}}
    (folder / "policies" / "cache.yaml").write_text(yaml.safe_dump(policy))
    return str(folder / "policies")


@pytest.mark.parametrize("provider", [UNHURRIED], indirect=True)
async def test_16_keys_from_6_callers_each_at_4_replicas(
    tmp_path: Path, server: RedisServer, provider: EmulatorServer
) -> None:
    """One execution a key wherever it is asked, equal bytes for all who stay, and no replica takes the key for another body."""
    asked, stats = questions(16), provider.emulator.stats
    async with replicas(tmp_path, provider, server) as fleet:
        crowds = [Crowd(fleet.urls, one, 6, random.Random(number), stats) for number, one in enumerate(asked)]
        answers = await asyncio.gather(*(crowd.ask() for crowd in crowds))
        for number, (question, seen) in enumerate(zip(asked, answers, strict=True)):
            later = await asyncio.gather(*(ask(url, question) for url in fleet.urls))
            check(question, [*seen, *later])
            assert all(is_replayed(answer) for answer in later)
            assert times(provider, question) == 1
            async with connect(fleet.urls[number % 4]) as peer:
                refused = await peer.exchange(question.request(temperature=2))
            assert (refused.status, refused.error["code"]) == (422, "idempotency_key_reused")

    assert stats.total == len(asked)


@pytest.mark.parametrize("provider", [UNEVEN], indirect=True)
async def test_replicas_killed_at_random(tmp_path: Path, server: RedisServer, provider: EmulatorServer) -> None:
    """Who is cut off asks elsewhere: one answer for all, and nothing runs again but what its dead holder left behind."""
    asked = questions(16)
    async with replicas(tmp_path, provider, server, 3, policies=impatient(tmp_path)) as fleet:
        trial = Trial(fleet, provider, seed=3)
        async with asyncio.TaskGroup() as all_of_them:
            all_of_them.create_task(trial.kill_at_random(3, len(asked)))
            for one in asked:
                all_of_them.create_task(trial.insist(one, 5))
        trial.judge(asked)

    assert trial.cut_off > 0


async def test_who_waits_elsewhere_takes_over_from_a_dead_holder(tmp_path: Path, server: RedisServer) -> None:
    """Once its lease has ended, one of those who wait runs it for all of them; streams as well."""
    provider = Provider()
    await provider.server.start()
    async with (
        replicas(tmp_path, provider.server, server, 2, policies=impatient(tmp_path)) as fleet,
        connect(fleet.urls[0]) as one,
        connect(fleet.urls[0]) as other,
    ):
        one.send(STREAM.request())
        other.send(WHOLE.request())
        await until(lambda: all(times(provider.server, question) == 1 for question in BOTH))
        await one.reader.readuntil(b"\n\n")
        asking = [asyncio.ensure_future(ask(fleet.urls[1], question)) for question in BOTH * 3]
        fleet.kill(0)
        await until(lambda: all(times(provider.server, question) == 2 for question in BOTH))
        provider.may_go_on.set()
        answers = await asyncio.gather(*asking)

    for number, question in enumerate(BOTH):
        check(question, answers[number::2])
        assert times(provider.server, question) == 2
    await provider.server.stop()
