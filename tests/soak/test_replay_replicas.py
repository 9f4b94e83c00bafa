"""Nobody pays twice at scale, whichever replica is asked: 1,000 keys from 50 callers each at 4 gateways that share a Redis,
who leave at any byte, or whose gateways are killed at random."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.harness import connect
from tests.e2e.replaying import Crowd, Question, ask, check, is_replayed, questions
from tests.e2e.replicas import Replicas, Trial, replicas, times
from tests.soak.conftest import Report
from tests.support.redis_servers import RedisServer, redis_server

pytestmark = pytest.mark.soak

KEYS, CALLERS, AT_ONCE = 1000, 50, 20
"""So many keys at a time: 1,000 callers."""
KILLS = 30
LEASE_S = 4
UNHURRIED = EmulatorConfig(ttft_s=0.5, tokens_per_second=40.0, output_tokens=60, recorded_requests=0)
"""About two seconds for an answer."""
UNEVEN = EmulatorConfig(
    ttft_s=0.2, tokens_per_second=100.0, jitter=0.6, recorded_requests=100_000, recorded_bytes=1 << 30
)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[EmulatorServer]:
    provider = EmulatorServer(request.param)
    await provider.start()
    yield provider
    await provider.stop()


@pytest.mark.parametrize("provider", [UNHURRIED], indirect=True)
async def test_1000_keys_from_50_callers_each_who_leave_at_any_byte(
    tmp_path: Path, server: RedisServer, provider: EmulatorServer, report: Report
) -> None:
    """One execution a key, equal bytes for all who stay and for who asks later anywhere, 422 for another body."""
    began, some, told = time.monotonic(), asyncio.Semaphore(AT_ONCE), Counter[str | None]()
    async with replicas(tmp_path, provider, server) as fleet:

        async def one(number: int, question: Question) -> None:
            async with some:
                told.update(await _one_key(fleet, provider, question, random.Random(number)))

        async with asyncio.TaskGroup() as all_of_them:
            for number, question in enumerate(questions(KEYS)):
                all_of_them.create_task(one(number, question))

    stats = provider.emulator.stats
    report(
        f"{KEYS} keys, {CALLERS} callers each at 4 replicas: {stats.total} executions, at most "
        f"{max(stats.models.values())} a key; those who stayed were told {dict(told)}; {time.monotonic() - began:.0f} s"
    )
    assert set(stats.models.values()) == {1}
    assert stats.total == KEYS


async def _one_key(
    fleet: Replicas, provider: EmulatorServer, question: Question, rng: random.Random
) -> list[str | None]:
    answers = await Crowd(fleet.urls, question, CALLERS, rng, provider.emulator.stats).ask()
    answers += [await ask(url, question) for url in fleet.urls]
    async with connect(rng.choice(fleet.urls)) as peer:
        refused = await peer.exchange(question.request(temperature=2))
    check(question, answers)
    assert is_replayed(answers[-1])
    assert times(provider, question) == 1
    assert (refused.status, refused.error["code"]) == (422, "idempotency_key_reused")
    return [answer.header("x-gateway-cache") for answer in answers]


@pytest.mark.parametrize("provider", [UNEVEN], indirect=True)
@pytest.mark.parametrize("seed", [1, 2])
async def test_1000_keys_while_replicas_are_killed(
    tmp_path: Path, server: RedisServer, provider: EmulatorServer, report: Report, seed: int
) -> None:
    """All who insist get one answer a key; it runs again only for a dead holder, and never once somebody has heard it."""
    (tmp_path / "policies").mkdir()
    policy = {"default": {"idempotency": {"lease": f"{LEASE_S}s"}}}
    (tmp_path / "policies" / "cache.yaml").write_text(yaml.safe_dump(policy))
    began, some, asked = time.monotonic(), asyncio.Semaphore(AT_ONCE), questions(KEYS)
    async with replicas(tmp_path, provider, server, policies=str(tmp_path / "policies")) as fleet:
        trial = Trial(fleet, provider, seed)

        async def one(question: Question) -> None:
            async with some:
                await trial.insist(question, CALLERS)

        async with asyncio.TaskGroup() as all_of_them:
            all_of_them.create_task(trial.kill_at_random(KILLS, KEYS - AT_ONCE))
            for question in asked:
                all_of_them.create_task(one(question))
        told = trial.judge(asked)

    report(f"{KEYS} keys, {CALLERS} callers each at 4 replicas: {told}; {time.monotonic() - began:.0f} s")
    assert trial.cut_off > 0
