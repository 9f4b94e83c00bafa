"""Redis goes and comes back, under load: nobody's call fails, nobody waits for it, and the limit is kept all the while.

Three ways to go: stopped (and empty when it is back), hung (SIGSTOP), and a network that swallows everything. A call's time
counts from when it was due, so a gateway that stands still shows; what a busy machine adds shows as much at another gateway,
which has no Redis and is called alongside. It must not know how a gateway finds out.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gateway.emulator.config import EmulatorConfig
from tests.e2e.lives import life
from tests.replicas.figures import busiest, overshoot, per_second, quantile_ms
from tests.replicas.fleet import config_of, fleet, shares, way_to, write
from tests.replicas.load import Crowd
from tests.replicas.provider import provider
from tests.soak.storms import request
from tests.support.redis_servers import redis_server

Way = Literal["stopped", "hung", "blackholed"]
WAYS: tuple[Way, ...] = ("stopped", "hung", "blackholed")
Act = Callable[[], None]
RETURN_S = 5.0
"""So long after it is back a burst would show."""
DEADLINE_S = 0.5


@dataclass(frozen=True, slots=True)
class Gone:
    """What came of an outage; times in milliseconds are of calls that were answered by the provider."""

    way: Way
    replicas: int
    load_per_s: float
    limit_per_s: float
    is_strict: bool
    """Whether the provider keeps the limit, too."""
    away_s: float
    calls: int
    failed: dict[str, int]
    p50_ms: tuple[float, float, float]
    """Before, while it was away, and after."""
    p99_ms: tuple[float, float, float]
    worst_ms: tuple[float, float, float]
    alone_p99_ms: tuple[float, float, float]
    """At the gateway without Redis."""
    served: tuple[float, float, float]
    """Of each of these times the share of calls that were answered by the provider."""
    overshoot: float
    """In calls beyond burst and refill, of all that reached the provider."""
    share: float
    """One replica's, of what goes at once."""
    busiest_s_after: int
    """Calls in the busiest second after it was back."""
    refused_percent: float
    per_second: tuple[int, ...]
    """That reached the provider."""
    gone_at: float
    """In seconds from the first of these."""

    @property
    def added_p99_ms(self) -> float:
        """Of all phases the most that calls took longer than those at the gateway without Redis."""
        return max(ours - other for ours, other in zip(self.p99_ms, self.alone_p99_ms, strict=True))


@asynccontextmanager
async def redis_that_goes(way: Way) -> AsyncIterator[tuple[str, Act, Act]]:
    """Its URL, what makes it go, and what brings it back."""
    with redis_server() as redis:
        if way == "blackholed":
            async with way_to(redis.port) as cut:
                yield cut.url, cut.cut, cut.mend
        elif way == "hung":
            yield redis.url, redis.pause, redis.resume
        else:
            yield redis.url, redis.stop, redis.restart


@asynccontextmanager
async def without_redis(folder: Path) -> AsyncIterator[str]:
    """The URL of a gateway that shares nothing with anybody, nor its provider."""
    async with (
        provider(folder, EmulatorConfig(recorded_requests=0, output_tokens=1), "alone") as there,
        life(write(folder / "alone", config_of(there.base_url, "memory", {}))) as alone,
    ):
        yield alone.url


async def lose(
    folder: Path,
    way: Way,
    replicas: int,
    load_per_s: float,
    limit_per_s: float,
    away_s: float,
    around_s: float,
    *,
    is_strict: bool = True,
    settle_s: float = 2.0,
) -> Gone:
    """Redis goes for `away_s`, with `around_s` of the same load before and after; `settle_s` before that do not count.

    Without `is_strict` the provider takes all calls and tells nothing: what is overshot is then the replicas' own doing.
    """
    burst = int(limit_per_s)
    kept = EmulatorConfig(recorded_requests=0, output_tokens=1)
    if is_strict:
        kept = replace(kept, rpm=int(limit_per_s * 60), burst=burst)
    async with redis_that_goes(way) as (url, go, come_back), provider(folder, kept) as there:
        config = config_of(there.base_url, url, {"rpm": limit_per_s * 60, "burst": burst})
        async with fleet(folder, config, replicas) as lives, without_redis(folder) as alone:
            crowd = Crowd([*(one.url for one in lives), alone], request(deadline_s=DEADLINE_S))
            demand = [load_per_s / replicas] * (replicas + 1)
            await crowd.during(crowd.come(demand, settle_s))
            settled_at = time.monotonic()
            moments: list[float] = []

            async def trouble() -> None:
                await asyncio.sleep(around_s)
                moments.append(time.monotonic())
                await asyncio.to_thread(go)
                await asyncio.sleep(moments[0] + away_s - time.monotonic())
                moments.append(time.monotonic())
                await asyncio.to_thread(come_back)

            await crowd.during(crowd.come(demand, 2 * around_s + away_s), trouble())
            await asyncio.gather(*(shares(one.url) for one in lives))
        await asyncio.sleep(0.1)
        book = there.book()
    gone_at, back_at = moments
    ends_at = back_at + around_s
    seen = [one for one in crowd.seen if one.due_at >= settled_at]
    times = [(settled_at, gone_at), (gone_at, back_at), (back_at, ends_at)]
    phases = [[one for one in seen if begin <= one.due_at < end and one.where < replicas] for begin, end in times]
    took_s = [[one.took_s for one in phase if one.is_ok] for phase in phases]
    others = [
        [one.took_s for one in seen if begin <= one.due_at < end and one.where == replicas] for begin, end in times
    ]
    return Gone(
        way=way,
        replicas=replicas,
        load_per_s=load_per_s,
        limit_per_s=limit_per_s,
        is_strict=is_strict,
        away_s=away_s,
        calls=sum(map(len, phases)),
        failed=dict(Counter(one.code for one in seen if one.has_failed)),
        p50_ms=_each(took_s, 50),
        p99_ms=_each(took_s, 99),
        worst_ms=_each(took_s, 100),
        alone_p99_ms=_each(others, 99),
        served=_three([len(some) / max(1, len(phase)) for some, phase in zip(took_s, phases, strict=True)]),
        overshoot=overshoot(book.came, limit_per_s, burst),
        share=burst / replicas,
        busiest_s_after=busiest(book.came, back_at, back_at + RETURN_S, 1.0),
        refused_percent=100 * len(book.refused) / max(1, len(book.came)),
        per_second=tuple(per_second(book.came, settled_at, ends_at)),
        gone_at=gone_at - settled_at,
    )


def _each(took_s: Sequence[Sequence[float]], percent: int) -> tuple[float, float, float]:
    if percent == 100:
        return _three([1000 * max(some, default=0.0) for some in took_s])
    return _three([quantile_ms(some, percent) for some in took_s])


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    first, second, third = values
    return first, second, third
