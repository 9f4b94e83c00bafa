"""The shared store as a whole, on a server that stops, hangs, forgets and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import pytest

from gateway.core.ports import PeerMessage
from gateway.core.types import SharedState
from tests.support.conformance import KIB, ROOMY, digest, entries, kept, row, settle
from tests.support.redis_servers import RedisServer, free_port, redis_cluster, redis_server
from tests.support.redis_support import loaded, until
from tests.support.stores import RedisStore

RECORD, ASKED, KEY, P1 = digest("record"), digest("request"), digest("key"), digest("partition")
TIMEOUT_S = 0.5
"""Long enough for this machine when others use it, too."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """One of the test's own."""
    with redis_server() as server:
        yield server


Replica = Callable[..., RedisStore]


@pytest.fixture
async def replica(server: RedisServer) -> AsyncIterator[Replica]:
    """Makes stores that share the server; not started."""
    made: list[RedisStore] = []

    def make(timeout_s: float = TIMEOUT_S) -> RedisStore:
        made.append(RedisStore(SharedState(server.url, timeout_s=timeout_s), time.time, ROOMY))
        return made[-1]

    yield make
    for store in made:
        await store.aclose()


async def settled(store: RedisStore) -> tuple[str, bool, int]:
    """What a call asks of a store: state of a claim, whether an answer was found, rows."""
    claim = await settle(store.records.claim(RECORD, ASKED, 30.0))
    found = await settle(store.answers.get(KEY, "default"))
    return claim.state, found is not None, len(await loaded(store, P1))


async def test_what_one_replica_kept_another_has(replica: Replica) -> None:
    """At once, over connections of their own and by the server's own time."""
    first, second = replica(), replica()
    await asyncio.gather(first.start(), second.start())
    now = time.time()

    claim = await settle(first.records.claim(RECORD, ASKED, 30.0))
    await settle(first.records.complete(RECORD, claim.fence, kept(now=now)))
    await settle(first.answers.put(KEY, kept(now=now)))
    await settle(first.vectors.add(row("one", now=now, partition=P1)))

    assert await settled(second) == ("done", True, 1)
    assert not first.is_local


async def test_rows_and_purges_are_told_to_those_who_listen(replica: Replica) -> None:
    """They have the partition in memory, and would not ask for it again."""
    first, second, heard = replica(), replica(), list[PeerMessage]()
    second.news.listen(heard.append)
    await asyncio.gather(first.start(), second.start())

    def are_told() -> bool:
        first.vectors.add(row("one", now=time.time(), partition=P1))
        first.vectors.forget(model="m")
        return {item.kind for item in heard} >= {"vector", "purge"}

    await until(are_told)


async def test_starting_does_not_wait_for_a_server_that_is_not_there() -> None:
    """Nor does anything else; and it says why."""
    shared = SharedState(f"redis://127.0.0.1:{free_port()}/0", timeout_s=TIMEOUT_S)
    store = RedisStore(shared, time.time, ROOMY)

    await asyncio.wait_for(store.start(), 10 * TIMEOUT_S)
    health = store.health()

    assert (health.is_up, health.replicas) == (False, 1)
    assert health.reason
    assert await settled(store) == ("claimed", False, 0)
    await store.aclose()


@pytest.mark.parametrize("trouble", ["stop", "pause"])
async def test_a_server_that_goes_and_comes_back_costs_nobody_anything(
    server: RedisServer, replica: Replica, trouble: str
) -> None:
    """Whoever runs goes on, what is paid for meanwhile is given here, and to all when it is back."""
    first, second, changes = replica(), replica(), list[bool]()
    await asyncio.gather(first.start(), second.start())
    first.on_change(changes.append)
    before = await settle(first.records.claim(RECORD, ASKED, 30.0))

    getattr(server, trouble)()
    during = await settle(first.records.claim(digest("other"), ASKED, 30.0))
    assert during.state == "claimed"
    for record, claim in ((RECORD, before), (digest("other"), during)):
        assert await settle(first.records.renew(record, claim.fence, 30.0))
        assert await settle(first.records.complete(record, claim.fence, kept(b"paid", now=time.time())))
        assert (await settle(first.records.claim(record, ASKED, 30.0))).state == "done"
    await until(lambda: not first.health().is_up)
    await settle(first.answers.put(KEY, kept(now=time.time())))
    alone = await settled(first)
    server.resume() if trouble == "pause" else server.start()
    await until(lambda: first.health().is_up and second.health().is_up)
    await until(lambda: is_told(first))
    after = [(await settle(second.records.claim(one, ASKED, 30.0))).state for one in (RECORD, digest("other"))]

    assert alone == ("done", True, 0)
    assert after == ["done", "done"]
    assert changes[0] is False
    assert changes[-1] is True
    assert first.health().failures > 0


def is_told(store: RedisStore) -> bool:
    """Whether nothing is owed to the server, after one more tick."""
    store.tick()
    return not store.owed


def is_gone(store: RedisStore) -> bool:
    """Whether it is known, after one more question, that the server does not answer."""
    store.answers.get(KEY, "default")
    return not store.health().is_up


async def test_nobody_waits_longer_than_once(server: RedisServer, replica: Replica) -> None:
    """What falls back after a timeout does not ask again, and what comes after asks nobody."""
    store = replica()
    await store.start()
    server.pause()
    operations = store.health().operations

    claims = await asyncio.gather(*[settle(store.records.claim(digest(n), ASKED, 30.0)) for n in range(50)])
    answers = await asyncio.gather(*[settle(store.answers.get(digest(n), "default")) for n in range(50)])
    asked = store.health().operations - operations

    assert {one.state for one in claims} == {"claimed"}
    assert answers == [None] * 50
    assert asked <= 60  # the fifty claims, and hardly one of the fifty that came when the first had waited in vain


async def test_a_server_that_comes_back_empty_is_told_what_is_held(server: RedisServer, replica: Replica) -> None:
    """In the middle of a claim: its holder has it still, and its answer is everybody's."""
    first, second = replica(), replica()
    await asyncio.gather(first.start(), second.start())
    claim = await settle(first.records.claim(RECORD, ASKED, 30.0))

    server.kill()
    await until(lambda: is_gone(first))
    server.start()
    await until(lambda: first.health().is_up and second.health().is_up)
    assert await settle(first.records.renew(RECORD, claim.fence, 30.0))
    between = await settle(second.records.claim(RECORD, ASKED, 30.0))
    assert await settle(first.records.complete(RECORD, claim.fence, kept(now=time.time())))

    assert between.state == "running"
    assert (await settle(second.records.claim(RECORD, ASKED, 30.0))).state == "done"


async def test_what_is_owed_is_told_before_the_end(server: RedisServer, replica: Replica) -> None:
    """As far as one operation's timeout goes."""
    first, second = replica(timeout_s=30), replica(timeout_s=30)
    await asyncio.gather(first.start(), second.start())
    server.kill()
    await until(lambda: is_gone(first) and is_gone(second))
    claim = await settle(first.records.claim(RECORD, ASKED, 30.0))
    assert await settle(first.records.complete(RECORD, claim.fence, kept(now=time.time())))
    server.start()
    await until(lambda: first.health().is_up and second.health().is_up)
    assert entries(first, "records") >= 1

    await first.aclose()

    assert (await settle(second.records.claim(RECORD, ASKED, 30.0))).state == "done"


async def test_a_cluster_that_lost_a_node_serves_what_the_others_have() -> None:
    """And nobody waits for the rest, nor fails: a claim is given here, what is paid for is kept here."""
    with redis_cluster() as cluster:
        shared = SharedState(cluster.url, timeout_s=TIMEOUT_S)
        store = RedisStore(shared, time.time, replace(ROOMY, answers={f"group {n}": 1024 * KIB for n in range(30)}))
        await store.start()
        await until(lambda: store.health().is_up)
        cluster.nodes[0].kill()

        claims = [await settle(store.records.claim(digest(n), ASKED, 30.0)) for n in range(5)]
        for number, claim in enumerate(claims):
            assert await settle(store.records.complete(digest(number), claim.fence, kept(now=time.time())))
        for number in range(30):
            await settle(store.answers.put(KEY, kept(now=time.time(), group=f"group {number}")))
        again = [await settle(store.records.claim(digest(n), ASKED, 30.0)) for n in range(5)]
        found = [await settle(store.answers.get(KEY, f"group {number}")) for number in range(30)]
        await store.aclose()

    assert {one.state for one in claims} == {"claimed"}
    assert {one.state for one in again} == {"done"}
    assert 0 < sum(one is not None for one in found) < 30
