"""Replicas are restarted one after the other behind a balancer, under more load than the limit: nobody fails, nothing resets.

HAProxy runs on the config of `deploy/`. A replica that stops gives back what it holds, one that starts asks for some: neither
may show at the provider. Invariant: one replica at a time is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gateway.emulator.config import EmulatorConfig
from tests.deploy.test_balancer import Replica, balanced
from tests.e2e.lives import Life, life
from tests.replicas.figures import between, busiest, overshoot, per_second
from tests.replicas.fleet import config_of, shares, write
from tests.replicas.load import Crowd
from tests.replicas.provider import provider
from tests.soak.storms import request
from tests.support.redis_servers import redis_server

ANSWER_S = 0.1
BURST_S = 2.0
"""Of the rate, so much goes at once."""
BETWEEN_S = 0.2


class Restarted:
    """A gateway that keeps its port. The system gives none of these away while it is not there."""

    def __init__(self, config: Path) -> None:
        self.port = _reserved_port()
        self._config = config
        self._stack = AsyncExitStack()
        self._life: Life | None = None

    async def start(self) -> None:
        """Returns once it shares its limits."""
        self._life = await self._stack.enter_async_context(life(self._config, "--port", str(self.port)))
        await shares(self._life.url)

    async def stop(self) -> int:
        """As an orchestrator does; its exit code."""
        assert self._life is not None
        self._life.tell(signal.SIGTERM)
        code = await self._life.ends()
        await self.aclose()
        return code

    async def aclose(self) -> None:
        """It is gone."""
        await self._stack.aclose()


def _reserved_port() -> int:
    """Below those that connections get."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@dataclass(frozen=True, slots=True)
class Rolled:
    """What came of a run."""

    replicas: int
    cycles: int
    seconds: float
    load_per_s: float
    limit_per_s: float
    calls: int
    codes: dict[str, int]
    failed: int
    exits: dict[str, int]
    admitted: int
    """Once the burst was used up."""
    expected: float
    overshoot: float
    busiest_10s: float
    refused_percent: float
    per_second: tuple[int, ...]
    restarts: tuple[float, ...]
    """When each began, in seconds from the first of these."""

    @property
    def exactness(self) -> float:
        return self.admitted / self.expected


async def roll(
    folder: Path,
    replicas: int,
    cycles: int,
    limit_per_s: float,
    *,
    load: float = 2.0,
    drain_s: float = 3.0,
    notice_ms: int = 1500,
) -> Rolled:
    """Restart every one of them so many times, at `load` times the limit; the balancer has `notice_ms` to see that one stops.

    It looks every half second, and once more a moment later.
    """
    burst = int(BURST_S * limit_per_s)
    kept = EmulatorConfig(
        rpm=int(60 * limit_per_s), burst=burst, ttft_s=ANSWER_S, jitter=0.3, recorded_requests=0, output_tokens=1
    )
    with redis_server() as redis:
        async with provider(folder, kept) as there, AsyncExitStack() as stack:
            config = config_of(
                there.base_url,
                redis.url,
                {"rpm": 60 * limit_per_s, "burst": burst},
                server={"notice": f"{notice_ms}ms"},
            )
            crew = [Restarted(write(folder / f"replica-{number}", config)) for number in range(replicas)]
            for one in crew:
                stack.push_async_callback(one.aclose)
            await asyncio.gather(*(one.start() for one in crew))
            url = await stack.enter_async_context(
                balanced(folder, cast("list[Replica]", crew))
            )  # it asks for ports only
            crowd, stop = Crowd([url], request(deadline_s=1.0)), asyncio.Event()
            restarts: list[float] = []
            exits: Counter[str] = Counter()

            async def restart() -> None:
                await asyncio.sleep(drain_s)
                for one in crew * cycles:
                    restarts.append(time.monotonic())
                    exits[str(await one.stop())] += 1
                    await one.start()
                    await asyncio.sleep(BETWEEN_S)
                stop.set()

            async def call() -> None:
                while not stop.is_set():
                    await crowd.come([load * limit_per_s], 1.0)

            await crowd.during(call(), restart())
            await asyncio.sleep(0.1)
            book = there.book()
    begin, end = restarts[0], restarts[-1]
    return Rolled(
        replicas=replicas,
        cycles=cycles,
        seconds=end - begin,
        load_per_s=load * limit_per_s,
        limit_per_s=limit_per_s,
        calls=len(crowd.seen),
        codes=dict(Counter(one.code for one in crowd.seen)),
        failed=sum(one.has_failed for one in crowd.seen),
        exits=dict(exits),
        admitted=between(book.admitted, begin, end),
        expected=limit_per_s * (end - begin),
        overshoot=overshoot(book.came, limit_per_s, burst),
        busiest_10s=busiest(book.admitted, begin, end, 10.0) / (10.0 * limit_per_s),
        refused_percent=100 * len(book.refused) / max(1, len(book.came)),
        per_second=tuple(per_second(book.admitted, begin, end)),
        restarts=tuple(at - begin for at in restarts),
    )
