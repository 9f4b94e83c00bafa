"""The limit of one key, called through many replicas: exact in all, and whoever is refused is told the truth.

A key is not held in a queue: a call that finds nothing left is refused at once with the time after which there is room.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from gateway.emulator.config import EmulatorConfig
from tests.replicas.figures import between, overshoot
from tests.replicas.fleet import config_of, fleet
from tests.replicas.load import Crowd
from tests.replicas.provider import provider
from tests.soak.storms import request
from tests.support.redis_servers import redis_server

SECRET = "a-key-that-is-shared-by-a-fleet"
QUIET_S = 0.6
"""Until nobody else wants anything."""
REFUSED = "429 key_rate_limited"


@dataclass(frozen=True, slots=True)
class Keyed:
    """What came of a run."""

    replicas: int
    per_min: float
    seconds: float
    calls: int
    admitted: int
    """From the first call on: a minute's worth, and what refilled."""
    expected: float
    overshoot: float
    failed: tuple[str, ...]
    without_hint: int
    """Refusals that did not say when to come back."""
    told_s: tuple[float, ...]
    """By each replica, when nothing was left and nobody else called."""
    too_early: tuple[str, ...]
    """What those were told who came back shortly before that."""
    on_time: tuple[str, ...]
    """... and who came then."""

    @property
    def exactness(self) -> float:
        return self.admitted / self.expected


async def spend_key(
    folder: Path, replicas: int, per_min: float, seconds: float, *, load: float = 3.0, drain_s: float = 3.0
) -> Keyed:
    """Use the minute's worth up, go on at `load` times the limit, then come back as told, at one replica after the other."""
    per_s = per_min / 60
    keys = [{"name": "web", "key": SECRET, "rpm": per_min}]
    with redis_server() as redis:
        async with provider(folder, EmulatorConfig(recorded_requests=0, output_tokens=1)) as there:
            config = config_of(there.base_url, redis.url, {}, keys=keys)
            async with fleet(folder, config, replicas) as lives:
                crowd = Crowd([one.url for one in lives], request(f"authorization: Bearer {SECRET}"))
                drain = [1.5 * per_min / drain_s / replicas] * replicas

                async def calling() -> None:
                    await crowd.come(drain, drain_s)
                    await crowd.come([load * per_s / replicas] * replicas, seconds)

                await crowd.during(calling())
                ended_at = time.monotonic()
                seen = list(crowd.seen)
                told, early, on_time = [], [], []
                for where in range(replicas):
                    await asyncio.sleep(QUIET_S)
                    wait_s = await _told(crowd, where)
                    told.append(wait_s)
                    refused_at = time.monotonic()
                    await asyncio.sleep(refused_at + 0.8 * wait_s - time.monotonic())
                    early.append((await crowd.call(where, time.monotonic())).code)
                    await asyncio.sleep(refused_at + wait_s + 0.01 - time.monotonic())
                    on_time.append((await crowd.call((where + 1) % replicas, time.monotonic())).code)
                crowd.close()
            await asyncio.sleep(0.1)
            came = there.book().came
    first_at = came[0]
    return Keyed(
        replicas=replicas,
        per_min=per_min,
        seconds=seconds,
        calls=len(seen),
        admitted=between(came, first_at, ended_at),
        expected=per_min + per_s * (ended_at - first_at),
        overshoot=overshoot(came, per_s, per_min),
        failed=tuple(one.code for one in seen if one.has_failed),
        without_hint=sum(one.code == REFUSED and not one.retry_after_s for one in seen),
        told_s=tuple(told),
        too_early=tuple(early),
        on_time=tuple(on_time),
    )


async def _told(crowd: Crowd, where: int) -> float:
    """Call until there is nothing left; when to come back."""
    while True:
        seen = await crowd.call(where, time.monotonic())
        if not seen.is_ok:
            assert seen.retry_after_s is not None, seen
            return seen.retry_after_s
