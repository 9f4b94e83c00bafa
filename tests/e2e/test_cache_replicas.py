"""Kept answers and purges that replicas share, and what is left of them while their Redis is gone. A real one; two gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e import test_semantic
from tests.e2e.caches import ask as ask_for
from tests.e2e.caches import cache_of, config, saying, streaming
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, Running, config_of, connect, post, until
from tests.e2e.replaying import Question, ask, check, is_replayed
from tests.e2e.replicas import PATIENT
from tests.e2e.test_semantic import ASKED, MEANT
from tests.support.redis_servers import RedisServer, redis_server

Pair = tuple[Running, Running]
Config = Callable[[str], Any]
StartPair = Callable[..., Awaitable[Pair]]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def pair(start: StartGateway, server: RedisServer) -> StartPair:
    """Starts two gateways that share the server; the provider of both is that of the first."""

    async def start_two(config: Config, patience: str = PATIENT) -> Pair:
        state = {"state": {"redis": server.url, "timeout": patience}}
        first = await start(lambda url: {**config(url), **state})
        second = await start(lambda _own: {**config(first.emulator.base_url), **state})
        await shared(True, first, second)
        return first, second

    return start_two


async def shared(is_up: bool, *replicas: Running) -> None:
    """Wait until each of them can reach its store, or knows that it cannot."""
    await until(lambda: all(_store(one).health().is_up == is_up for one in replicas))


def _store(replica: Running) -> Any:
    return replica.gateway._store


async def told(*replicas: Running) -> None:
    """Wait until the store has all that was kept for it."""
    await until(
        lambda: not any(_store(one).background._tasks or _store(one)._records._offline.owed_bytes for one in replicas)
    )


async def purge(replica: Running, **selection: Any) -> int:
    async with connect(replica.url) as peer:
        authorization = f"authorization: Bearer {ADMIN_KEY}"
        answer = await peer.exchange(post("/admin/cache/purge", orjson.dumps(selection), authorization))
    assert answer.status == 200, answer.raw
    forgotten: int = orjson.loads(answer.body)["forgotten"]
    return forgotten


async def test_what_one_keeps_the_other_gives(tmp_path: Path, pair: StartPair) -> None:
    """An exact answer is everybody's, in either form; its age and its key are told."""
    one, other = await pair(config(tmp_path))
    for body in (saying("whole"), streaming("stream")):
        first = await ask_for(one, body)
        await told(one)
        again = await ask_for(other, body)
        assert (cache_of(first), cache_of(again)) == ("miss", "hit")
        assert again.body == first.body
        assert again.header("age") is not None
        assert again.header("x-gateway-cache-key") == first.header("x-gateway-cache-key")
    assert one.upstream_calls() == 2


@pytest.mark.parametrize("selection", [{"model": "gpt-4o"}, {"tenant": "anonymous"}, {"all": True}], ids=str)
async def test_a_purge_is_everywhere(tmp_path: Path, pair: StartPair, selection: dict[str, Any]) -> None:
    """Whatever replica is told to forget, none gives it any more, whoever had kept it."""
    one, other = await pair(config(tmp_path))
    await ask_for(one, saying("kept by one"))
    await ask_for(other, saying("kept by the other"))
    await told(one, other)

    forgotten = await purge(other, **selection)

    assert forgotten == 2
    for replica in (one, other):
        assert cache_of(await ask_for(replica, saying("kept by one"), "cache-control: no-store")) == "miss"
        assert cache_of(await ask_for(replica, saying("kept by the other"), "cache-control: no-store")) == "miss"


async def test_questions_that_mean_the_same_and_their_purge(tmp_path: Path, pair: StartPair) -> None:
    """Recognised by a replica that had them in memory before, and by one that has not; forgotten by both at once."""
    one, other = await pair(test_semantic.caching(tmp_path))
    first = await test_semantic.ask(one, ASKED)
    await told(one)
    by_other, by_one = await test_semantic.ask(other, MEANT), await test_semantic.ask(one, MEANT)

    forgotten = await purge(other, tenant="a")
    after = [await test_semantic.ask(replica, MEANT, "cache-control: no-store") for replica in (one, other)]

    assert [cache_of(answer) for answer in (by_other, by_one)] == ["semantic"] * 2
    assert first.body == by_other.body == by_one.body
    assert forgotten == 1
    assert [cache_of(answer) for answer in after] == ["miss"] * 2


async def test_a_row_that_another_keeps_is_heard(tmp_path: Path, pair: StartPair) -> None:
    """Who has a partition in memory gets what others add to it."""
    one, other = await pair(test_semantic.caching(tmp_path))
    await test_semantic.ask(other, "How do I bake sourdough bread at home?")  # now it has the partition
    first = await test_semantic.ask(one, ASKED)
    await told(one, other)
    semantic: Any = other.gateway._semantic
    await until(lambda: sum(len(rows) for rows in semantic._partitions._index._partitions.values()) == 2)

    assert (await test_semantic.ask(other, MEANT)).body == first.body


# While Redis is gone.

DURING = [Question("during-whole", "during-0", stream=False), Question("during-stream", "during-1", stream=True)]
BEFORE = Question("before", "before", stream=False)


def runs(replica: Running, question: Question) -> int:
    return replica.emulator.emulator.stats.models[question.model]


@pytest.mark.parametrize("how", ["killed", "hung"])
async def test_an_outage_of_redis(server: RedisServer, pair: StartPair, how: str) -> None:
    """Each goes on with what it knows; what was paid for meanwhile is replayed by the other once Redis is back."""
    one, other = await pair(config_of, patience="300ms")
    kept = await ask(one.url, BEFORE)
    await told(one)

    server.kill() if how == "killed" else server.pause()
    answers = await asyncio.gather(*(ask(one.url, question) for question in DURING))
    await shared(False, one)
    replayed = [await ask(one.url, question) for question in DURING]
    async with connect(one.url) as peer:
        refused = await peer.exchange(DURING[0].request(temperature=2))
    elsewhere = await ask(other.url, Question("elsewhere", "elsewhere", stream=False))

    server.restart() if how == "killed" else server.resume()
    await shared(True, one, other)
    await told(one, other)
    later = [await ask(other.url, question) for question in DURING]

    assert elsewhere.status == 200
    assert (refused.status, refused.error["code"]) == (422, "idempotency_key_reused")
    for question, *seen in zip(DURING, answers, replayed, later, strict=True):
        check(question, seen)
        assert [is_replayed(answer) for answer in seen] == [False, True, True]
        assert runs(one, question) == 1
    if how == "hung":
        again = await ask(other.url, BEFORE)
        check(BEFORE, [kept, again])
        assert is_replayed(again)
