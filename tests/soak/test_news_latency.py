"""How long news takes from one replica to all others, over a real server: on the wire, and from gate to gate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import cast

import pytest

from gateway.core.clock import SystemClock
from gateway.core.limits.target_limits import Gate
from gateway.core.ports import PeerMessage
from gateway.core.types import SharedState
from gateway.drivers.redis.link import Link
from gateway.fleet.news import FleetNews
from gateway.fleet.redis import RedisNews
from tests.soak.conftest import Report
from tests.support.flow import Bench, FakeClock, ScriptedUpstream
from tests.support.redis_servers import redis_server
from tests.support.redis_support import until

pytestmark = pytest.mark.soak

REPLICAS, ITEMS, MOVES = 4, 1000, 250
P99_S = 0.05
"""Of pause and breaker news; measured here from the telling to the last who hears it."""


async def test_news_reaches_all_replicas_within_50_ms(report: Report) -> None:
    """A thousand of them, kept for late comers, one every two milliseconds, told by each replica in turn."""
    delays: list[float] = []
    with redis_server() as server:
        async with AsyncExitStack() as stack:
            replicas = [await _replica(stack, server.url, number, delays) for number in range(REPLICAS)]
            await _all_hear(replicas, delays)
            for number in range(ITEMS):
                told_at = repr(time.perf_counter()).encode()
                item = PeerMessage("pause", f"provider/model-{number}", 60.0, told_at)
                replicas[number % REPLICAS].tell(item, lasts=True)
                await asyncio.sleep(0.002)
            await until(lambda: len(delays) == ITEMS * (REPLICAS - 1))

    report(f"news over {REPLICAS} links: {_told(delays)}")
    assert _p99(delays) <= P99_S


async def test_pauses_and_openings_reach_all_gates_within_50_ms(report: Report) -> None:
    """From a provider's word, or a breaker that trips, at one replica until every other keeps away, too."""
    pauses: list[float] = []
    openings: list[float] = []
    with redis_server() as server:
        async with AsyncExitStack() as stack:
            news = [await _replica(stack, server.url, number) for number in range(REPLICAS)]
            gates_of = [_gates(each) for each in news]
            await until(lambda: all(each._time.now() > 0 for each in news))
            clock = SystemClock()
            for number in range(MOVES):
                gates = [gates[number] for gates in gates_of]
                gates[number % REPLICAS].leave_alone(60.0, clock.monotonic())
                pauses.append(await _takes(gates, lambda gate: gate.pauses.ends_at > clock.monotonic()))
                gates[number % REPLICAS].health.breaker.trip("it is ill", clock.monotonic(), 0.5)
                openings.append(await _takes(gates, lambda gate: gate.health.breaker.state == "open"))

    report(f"pauses to {REPLICAS - 1} gates: {_told(pauses)}\nopenings: {_told(openings)}")
    assert max(_p99(pauses), _p99(openings)) <= P99_S


def _gates(news: RedisNews) -> list[Gate]:
    """Of a replica with as many targets as there are moves."""
    bench = Bench([ScriptedUpstream() for _ in range(MOVES)], clock=cast("FakeClock", SystemClock()))
    FleetNews(SystemClock(), news, bench.admission, lambda: 0.5)
    return [line.gate for line in bench.admission.gates.lines.values()]


async def _takes(gates: Sequence[Gate], fact: Callable[[Gate], object]) -> float:
    """Seconds until it is so of all, to the turn of the loop."""
    began_at = time.perf_counter()
    while not all(fact(gate) for gate in gates):
        assert time.perf_counter() < began_at + 5.0
        await asyncio.sleep(0)
    return time.perf_counter() - began_at


def _p99(delays: list[float]) -> float:
    return sorted(delays)[round((len(delays) - 1) * 0.99)]


def _told(delays: list[float]) -> str:
    p50 = sorted(delays)[len(delays) // 2]
    return f"p50 {p50 * 1e3:.2f} ms, p99 {_p99(delays) * 1e3:.2f} ms, longest {max(delays) * 1e3:.2f} ms"


async def _replica(stack: AsyncExitStack, url: str, number: int, delays: list[float] | None = None) -> RedisNews:
    """One that notes how long what it hears was on its way."""
    link = Link(SharedState(url, timeout_s=1.0))
    news = RedisNews(link, b"replica-%d" % number)
    if delays is not None:
        news.listen(lambda item: delays.append(time.perf_counter() - float(item.detail)))
    news.start()
    await link.start()
    stack.push_async_callback(link.aclose)
    stack.push_async_callback(news.aclose)
    return news


async def _all_hear(replicas: list[RedisNews], delays: list[float]) -> None:
    """Each hears the last: so it has subscribed, and so have those that were heard before."""
    for teller in (replicas[0], replicas[-1]):
        listeners = {id(news) for news in replicas if news is not teller}
        async with asyncio.timeout(10):
            while len(listeners) > len(delays):
                delays.clear()
                teller.tell(PeerMessage("record", "", 0.0, repr(time.perf_counter()).encode()))
                await asyncio.sleep(0.05)
        delays.clear()
