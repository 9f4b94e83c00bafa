"""A cap on calls in flight that replicas share, and a replica that is killed while it holds some of it.

The provider counts who is with it. What the dead one held is lost until the others' store has missed it for long enough, and
is then used again. Invariant: callers of a replica ask again as soon as they are answered, so every slot is always wanted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.emulator.config import EmulatorConfig
from tests.replicas.fleet import config_of, fleet
from tests.replicas.load import Crowd
from tests.replicas.provider import provider
from tests.soak.storms import request
from tests.support.redis_servers import redis_server

ANSWER_S = 0.3
SILENT_S = 6.0
"""By then the others have what a dead replica held."""


@dataclass(frozen=True, slots=True)
class Capped:
    """What came of a run."""

    replicas: int
    cap: int
    peak: int
    """The most that were with the provider at once."""
    held_by_the_dead: int
    peak_after: int
    """Once what the dead one held has come back."""
    back_after_s: float | None
    """From its end until as many as ever were with the provider again; None: never."""
    used_before: float
    """The mean share of the slots in use, before the kill and once all are back."""
    used_after: float
    by_replica: tuple[int, ...]
    """Calls answered before the kill."""
    failed: dict[str, int]
    """Of the survivors' callers."""
    in_flight: tuple[tuple[float, int], ...]
    """From each moment on, in seconds from the beginning."""
    killed_at: float


async def cap(folder: Path, replicas: int, slots: int, around_s: float) -> Capped:
    """Kill the first of them after `around_s`; look on for as long again once its slots should be back."""
    slow = EmulatorConfig(ttft_s=ANSWER_S, jitter=0.2, recorded_requests=0, output_tokens=1)
    with redis_server() as redis:
        async with provider(folder, slow) as there:
            config = config_of(there.base_url, redis.url, {"max_concurrency": slots})
            async with fleet(folder, config, replicas) as lives:
                crowd = Crowd([one.url for one in lives], request(deadline_s=10.0))
                began_at = time.monotonic()
                ends_at = began_at + 2 * around_s + SILENT_S
                killed_at = began_at + around_s

                async def kill() -> None:
                    await asyncio.sleep(killed_at - time.monotonic())
                    lives[0].kill()

                def goes_on(where: int) -> bool:
                    return time.monotonic() < (ends_at if where else killed_at)

                callers = [
                    crowd.ask_on(where, partial(goes_on, where)) for where in range(replicas) for _ in range(slots)
                ]
                await crowd.during(kill(), *callers)
            await asyncio.sleep(0.1)
            book = there.book()
    series = book.in_flight()
    before = [(at, count) for at, count in series if at < killed_at]
    held = before[-1][1]
    back_at = next((at for at, count in series if at > killed_at + 0.05 and count >= slots), None)
    steady_at = killed_at + SILENT_S
    served = Counter(one.where for one in crowd.seen if one.is_ok and one.ended_at < killed_at)
    return Capped(
        replicas=replicas,
        cap=slots,
        peak=max(count for _, count in series),
        held_by_the_dead=held - min([held, *(count for at, count in series if killed_at < at < killed_at + 0.05)]),
        peak_after=max((count for at, count in series if at >= steady_at), default=0),
        back_after_s=None if back_at is None else back_at - killed_at,
        used_before=_mean(series, began_at + 0.5, killed_at) / slots,
        used_after=_mean(series, steady_at, ends_at) / slots,
        by_replica=tuple(served[place] for place in range(replicas)),
        failed=dict(Counter(one.code for one in crowd.seen if one.has_failed and one.where)),
        in_flight=tuple((at - began_at, count) for at, count in series),
        killed_at=killed_at - began_at,
    )


def _mean(series: list[tuple[float, int]], begin: float, end: float) -> float:
    """Of how many there are, over time."""
    area, since, count = 0.0, begin, 0
    for at, now in series:
        if at > begin:
            area += count * (min(at, end) - since)
            since = min(at, end)
        count = now
    return (area + count * max(0.0, end - since)) / (end - begin)
