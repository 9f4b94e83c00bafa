"""Many replicas at one limit that is asked for too much: what comes through in all, and who gets how much of it.

The clients' own answers tell who was served; that the limit was kept, the provider tells. A run first uses up the burst and
then measures: in the steady state exactly the rate should come through.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.emulator.config import EmulatorConfig
from tests.replicas.figures import between, busiest, fair_shares, overshoot, per_second, quietest
from tests.replicas.fleet import config_of, fleet
from tests.replicas.load import Crowd
from tests.replicas.provider import provider
from tests.soak.storms import request
from tests.support.redis_servers import redis_server

SKEWS_S = (5.0, -5.0, 0.0, -2.5, 2.5)
WINDOW_S = 10.0
SETTLE_S = 0.5
MAX_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Limit:
    """In calls, whatever it is that is counted."""

    per_min: float
    burst: int
    is_tokens: bool = False

    @property
    def per_s(self) -> float:
        return self.per_min / 60

    @property
    def target(self) -> dict[str, Any]:
        """As a gateway is told of it."""
        return {"tpm": self.tokens} if self.is_tokens else {"rpm": self.per_min, "burst": self.burst}

    @property
    def emulated(self) -> EmulatorConfig:
        """As the provider keeps it."""
        if self.is_tokens:
            return EmulatorConfig(tpm=self.tokens, recorded_requests=0, output_tokens=1)
        return EmulatorConfig(rpm=int(self.per_min), burst=self.burst, recorded_requests=0, output_tokens=1)

    @property
    def tokens(self) -> int:
        return round(self.per_min * MAX_TOKENS)


def requests_of(per_min: float, burst: int) -> Limit:
    return Limit(per_min, burst)


def tokens_of(calls_per_min: float) -> Limit:
    """Of a token limit a minute's worth goes at once."""
    return Limit(calls_per_min, int(calls_per_min), is_tokens=True)


@dataclass(frozen=True, slots=True)
class Shared:
    """What came of a run."""

    replicas: int
    limit: str
    seconds: float
    offered: int
    admitted: int
    """In the steady state."""
    expected: float
    busiest_10s: float
    """The most of any 10 s, as a share of what the limit lets through in so long."""
    quietest_10s: float
    overshoot: float
    """In calls beyond burst and refill, from the first call on."""
    refused_percent: float
    """Of the calls that reached the provider."""
    unfairness: float
    """The furthest that any replica is from its max-min fair share, as a share of that."""
    by_replica: tuple[int, ...]
    fair: tuple[float, ...]
    failed: tuple[str, ...]
    per_second: tuple[int, ...]

    @property
    def exactness(self) -> float:
        """1.0: the limit is used to the full and kept."""
        return self.admitted / self.expected


async def share(
    folder: Path,
    replicas: int,
    limit: Limit,
    seconds: float,
    *,
    load: float = 3.0,
    drain_s: float = 3.0,
    deadline_s: float = 2.0,
) -> Shared:
    """Offer `load` times the limit, replica n asking n times as often as the first, for so long."""
    weights = range(1, replicas + 1)
    demands = [load * limit.per_s * weight / sum(weights) for weight in weights]
    with redis_server() as redis:
        async with provider(folder, limit.emulated) as there:
            config = config_of(there.base_url, redis.url, limit.target)
            async with fleet(folder, config, replicas, SKEWS_S) as lives:
                content = request(deadline_s=deadline_s, max_tokens=MAX_TOKENS)
                crowd = Crowd([one.url for one in lives], content)
                began_at = await _run(crowd, demands, limit, drain_s, seconds)
        book = there.book()
    return _judge(crowd, book.admitted, book.came, len(book.refused), limit, demands, began_at, seconds)


async def _run(crowd: Crowd, demands: Sequence[float], limit: Limit, drain_s: float, seconds: float) -> float:
    """Returns when the steady state began."""
    more = max(1.0, (limit.burst / drain_s + limit.per_s) * 1.5 / sum(demands))
    began_at = time.monotonic()

    async def calling() -> None:
        nonlocal began_at
        await crowd.come([more * one for one in demands], drain_s)
        await crowd.come(demands, SETTLE_S)
        began_at = time.monotonic()
        await crowd.come(demands, seconds)

    await crowd.during(calling())
    await asyncio.sleep(0.1)  # until the provider has written its last line
    return began_at


def _judge(
    crowd: Crowd,
    admitted: Sequence[float],
    came: Sequence[float],
    refused: int,
    limit: Limit,
    demands: Sequence[float],
    began_at: float,
    seconds: float,
) -> Shared:
    end = began_at + seconds
    width_s = min(WINDOW_S, seconds)
    served = [
        sum(one.is_ok and one.where == place and began_at <= one.ended_at < end for one in crowd.seen)
        for place in range(len(demands))
    ]
    offered = [
        sum(one.where == place and began_at <= one.due_at < end for one in crowd.seen) for place in range(len(demands))
    ]
    fair = fair_shares(offered, sum(served))
    return Shared(
        replicas=len(demands),
        limit=f"{limit.per_min:g}/min" + (" in tokens" if limit.is_tokens else f", burst {limit.burst}"),
        seconds=seconds,
        offered=sum(offered),
        admitted=between(admitted, began_at, end),
        expected=limit.per_s * seconds,
        busiest_10s=busiest(admitted, began_at, end, width_s) / (limit.per_s * width_s),
        quietest_10s=quietest(admitted, began_at, end, width_s) / (limit.per_s * width_s),
        overshoot=overshoot(admitted, limit.per_s, limit.burst),
        refused_percent=100 * refused / max(1, len(came)),
        unfairness=max(abs(got - part) / part for got, part in zip(served, fair, strict=True) if part),
        by_replica=tuple(served),
        fair=tuple(round(one, 1) for one in fair),
        failed=tuple(one.code for one in crowd.seen if one.has_failed),
        per_second=tuple(per_second(admitted, began_at, end)),
    )
