"""Leases over the link: all asks of a moment at once, how many replicas there are, and no answer without a store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.types import SharedState
from gateway.drivers.redis.link import Link, StoreGone
from gateway.fleet.lease import LeaseAsk
from gateway.fleet.redis import LATE_S, RedisLeases
from tests.fleet.lease_fleet import (
    BEGIN,
    BUCKET,
    Member,
)
from tests.support.redis_servers import RedisServer, redis_server
from tests.support.redis_support import until


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
async def link(server: RedisServer) -> AsyncIterator[Link]:
    server.flush()
    there = Link(SharedState(server.url, timeout_s=2.0))
    await there.start()
    yield there
    await there.aclose()


def lease(number: int = 0, **more: Any) -> LeaseAsk:
    return replace(Member(b"", BUCKET).ask(**more), name=f"limit-{number}")


async def test_all_asks_of_a_moment_are_answered_in_order(link: Link) -> None:
    """One round trip for all of them, each by its own limit."""
    leases = RedisLeases(link, b"one")

    replies = await leases.ask([lease(number, want=float(number)) for number in range(5)])

    assert [reply and reply.granted for reply in replies] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert await leases.ask([]) == ()


async def test_time_is_the_servers(link: Link) -> None:
    """A bucket refills as the server's clock goes on, and all that is kept has an end."""
    leases = RedisLeases(link, b"one")
    await leases.ask([replace(lease(want=20.0), rate_per_s=1e6)])

    await leases.ask([replace(lease(want=1.0), rate_per_s=1e6, granted=20.0, used=20.0)])
    (later,) = await leases.ask([replace(lease(want=1.0), rate_per_s=1e6, granted=21.0, used=21.0)])

    assert later is not None
    assert later.level > 0.0
    assert 60_000 < await link.command(b"PTTL", link.key("limit", "limit-0")) <= 71_000
    assert 50_000 < await link.command(b"PTTL", link.key("replicas")) <= 60_000


async def test_replicas_are_counted_while_they_ask(link: Link) -> None:
    """Who has asked within five seconds is one, whoever leaves is none, and there are never fewer than was said."""
    now = BEGIN
    one, other = (RedisLeases(link, name, now=lambda: now) for name in (b"one", b"other"))
    await other.ask([])
    await one.ask([lease()])
    await until(lambda: one.replicas == 2)  # said on a wire of its own: the answer to the lease may come first
    assert other.replicas == 1

    now = BEGIN + 5.1
    third = RedisLeases(link, b"third", at_least=1, now=lambda: now)
    await third.ask([lease()])
    assert third.replicas == 1
    await third.leave()
    await third.ask([lease()])
    cautious = RedisLeases(link, b"fourth", at_least=3, now=lambda: now)
    await cautious.ask([lease()])

    assert await link.command(b"ZRANGE", link.key("replicas"), 0, -1) == [b"fourth"]
    assert cautious.replicas == 3


async def test_without_the_store_there_is_no_answer(server: RedisServer) -> None:
    """Each ask of a store that cannot be reached ends with None, and leaving with nothing; neither raises."""
    link = Link(SharedState("redis://127.0.0.1:1/0", timeout_s=0.05))
    await link.start()
    leases = RedisLeases(link, b"one", at_least=4)

    assert await leases.ask([lease(0), lease(1)]) == [None, None]
    await leases.leave()

    assert leases.replicas == 4
    await link.aclose()


async def test_a_limit_that_cannot_be_counted_takes_no_other_with_it(link: Link) -> None:
    """What the others were granted is heard."""
    leases = RedisLeases(link, b"one")
    await link.command(b"LPUSH", link.key("limit", "limit-1"), b"no limit")

    fine, broken = await leases.ask([lease(0, want=5.0), lease(1)])

    assert broken is None
    assert fine is not None
    assert fine.granted == 5.0


async def test_counts_that_begin_anew_are_anothers(link: Link) -> None:
    """A limit that was dropped and put back by a reload begins with nothing, and takes nothing from what was."""
    leases = RedisLeases(link, b"one")
    await leases.ask([lease(want=5.0)])
    await leases.ask([replace(lease(), granted=5.0, used=5.0)])

    (anew,) = await leases.ask([replace(lease(want=2.0), incarnation=1)])

    assert anew is not None
    assert anew.granted == 2.0
    assert anew.level == pytest.approx(BUCKET.capacity - 7.0, abs=5.0)  # it refills meanwhile


async def test_who_loses_interest_harms_nobody(link: Link) -> None:
    """An ask that is cancelled is counted all the same, and the next one is answered."""
    leases = RedisLeases(link, b"one")
    leases.ask([lease(want=5.0)]).cancel()

    (reply,) = await leases.ask([lease(want=5.0)])

    assert reply is not None
    assert reply.granted == 5.0


async def test_an_ask_that_lay_around_changes_nothing(server: RedisServer) -> None:
    """A server that stood still answers what it finds in its buffers: nobody waits for it, and no time is counted twice."""
    server.flush()
    link = Link(SharedState(server.url, timeout_s=0.2))
    await link.start()
    leases = RedisLeases(link, b"one")
    ask = replace(lease(want=25.0), rate_per_s=10.0)
    assert None not in await leases.ask([ask])  # it knows the server's clock from now on

    before = await link.command(b"GET", link.key("limit", ask.name))
    server.pause()
    (lost,) = await leases.ask([replace(ask, granted=25.0, used=25.0, want=1.0)])
    await asyncio.sleep(LATE_S)  # the rule is about the time that passes at a server
    server.resume()
    after = b""
    while not after:
        await asyncio.sleep(0.01)
        with contextlib.suppress(StoreGone):
            after = await link.command(b"GET", link.key("limit", ask.name))

    assert lost is None
    assert after == before
    await link.aclose()
