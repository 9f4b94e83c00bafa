"""A rate that is written down without its burst, and callers who all want more of it than there is, at two replicas.

The provider takes one second's worth at once and no more; the replicas do not know that, but by its headers or its refusals.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gateway.emulator.config import EmulatorConfig
from tests.replicas.figures import between
from tests.replicas.fleet import config_of, fleet
from tests.replicas.load import Crowd
from tests.replicas.provider import provider
from tests.soak.storms import request
from tests.support.redis_servers import redis_server

REPLICAS = 2
MAX_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Crowded:
    """What came of a run."""

    tells: bool
    """The provider has headers that say what is left."""
    seconds: float
    expected: float
    admitted: int
    refused_percent: float
    """Of the calls that reached the provider."""
    codes: dict[str, int]
    """What the callers saw, those who were still waiting at the end included."""

    @property
    def goodput(self) -> float:
        """1.0: the rate is used to the full."""
        return self.admitted / self.expected

    @property
    def late(self) -> int:
        """Calls that came to a 504."""
        return sum(count for code, count in self.codes.items() if code.startswith("504"))


async def crowd_in(
    folder: Path, per_s: int, callers: int, seconds: float, *, tells: bool, deadline_s: float = 30.0
) -> Crowded:
    """So many callers, each of whom asks again as soon as there is an answer, for so long."""
    emulated = EmulatorConfig(
        rpm=per_s * 60, burst=per_s, recorded_requests=0, output_tokens=1, ttft_s=0.05, limit_headers=tells
    )
    with redis_server() as redis:
        async with provider(folder, emulated) as there:
            config = config_of(there.base_url, redis.url, {"rpm": per_s * 60})
            async with fleet(folder, config, REPLICAS) as lives:
                crowd = Crowd([one.url for one in lives], request(deadline_s=deadline_s, max_tokens=MAX_TOKENS))
                began_at = time.monotonic()
                end = began_at + seconds
                await crowd.during(
                    *(crowd.ask_on(number % REPLICAS, lambda: time.monotonic() < end) for number in range(callers))
                )
                await asyncio.sleep(0.1)  # until the provider has written its last line
        book = there.book()
    return Crowded(
        tells=tells,
        seconds=seconds,
        expected=per_s * seconds,
        admitted=between(book.admitted, began_at, end),
        refused_percent=100 * len(book.refused) / max(1, len(book.came)),
        codes=dict(Counter(one.code for one in crowd.seen)),
    )
