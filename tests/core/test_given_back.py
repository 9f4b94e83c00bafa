"""What an attempt has reserved is given back exactly once, whichever way it ends: raced, moved, tried again or left."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from gateway.core.balancing import Hedging, Retries
from gateway.core.errors import InvalidRequest
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.limit_table import Limits
from gateway.core.limits.reservation import Reservation
from tests.support.flow import Script
from tests.support.outage import City, Fate, Provider, answers, fails, refuses, streams
from tests.support.virtual import LoopClock, run
from tests.sweeps import sampled

RETRY_AFTER = (b"retry-after-ms", b"300")
HEDGED = Retries(hedging=Hedging())


@contextmanager
def counted() -> Iterator[Callable[[], Counter[int]]]:
    """Yields how many reservations have ended how often, of those that are made meanwhile."""
    slot = Reservation.__dict__["is_open"]
    made: list[Reservation] = []
    ends: Counter[int] = Counter()  # by the identity of a reservation, all of which are kept

    def note(reservation: Reservation, is_open: bool) -> None:
        if is_open:
            made.append(reservation)
        else:
            ends[id(reservation)] += 1
        slot.__set__(reservation, is_open)

    with patch.object(Reservation, "is_open", property(slot.__get__, note)):
        yield lambda: Counter(ends[id(one)] for one in made)


def hangs(for_s: float) -> Fate:
    async def fate() -> Script:
        await asyncio.sleep(for_s)
        return await answers(0.0)()

    return fate


async def wordless() -> Script:
    """A target that the call cannot be told in its language."""
    raise InvalidRequest("It has no word for that.")


def moody(draw: random.Random) -> Fate:
    """What a provider does that does something else with each call, and one thing more often than others."""
    fates = [
        answers(draw.uniform(0.0, 2.0)),
        streams(draw.uniform(0.0, 2.0), draw.uniform(0.0, 2.0)),
        fails(draw.choice([400, 401, 404, 500, 503]), draw.uniform(0.0, 1.0)),
        fails(429, 0.01, RETRY_AFTER),
        refuses(),
        hangs(draw.uniform(2.0, 90.0)),
        wordless,
    ]
    weights = [3, 1, 1, 1, 1, 2, 1]
    weights[draw.randrange(len(fates))] += 12

    async def fate() -> Script:
        return await draw.choices(fates, weights)[0]()

    return fate


@pytest.mark.parametrize("seed", sampled(range(120), lambda seed: seed < 8))
def test_whatever_becomes_of_calls_each_reservation_ends_once(seed: int) -> None:
    """Providers answer, fail, hang and refuse at random; calls are streamed or not, late or not, and some are left."""

    async def story(clock: LoopClock) -> None:
        draw = random.Random(seed)
        providers = [Provider(answers(0.3)) for _ in range(2 + seed % 3 // 2)]
        limits = [Limits(max_concurrency=draw.choice([None, None, 5])) for _ in providers]
        city = City(
            providers,
            clock,
            fallbacks=draw.choice([0, 1]),
            retries=HEDGED if seed % 2 else Retries(),
            breaker=BreakerRules(is_enabled=draw.random() < 0.5),
            changes={"limits": limits},
        )
        for _ in range(60):  # so that it is known what is late
            await city.call()
        for provider in providers:
            provider.fate = moody(draw)
        calls = []
        for _ in range(80):
            is_hurried = draw.random() < 0.7
            own = {"deadline": clock.now + draw.uniform(1.0, 60.0), "deadline_is_callers": True} if is_hurried else {}
            calls.append(city.start(stream=draw.random() < 0.3, **own))
            if draw.random() < 0.3:
                asyncio.get_running_loop().call_later(draw.expovariate(0.1), calls[-1].cancel)
            await asyncio.sleep(draw.expovariate(4.0))
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0.1)

        assert len(asyncio.all_tasks()) == 1
        await city.settle()

    with counted() as ended:
        run(story)

    assert ended().keys() == {1}
    assert ended()[1] > 60


SCENES: dict[str, tuple[list[Fate], dict[str, Any]]] = {
    "answered": ([answers(0.02)], {}),
    "streamed": ([streams(0.02, 0.02)], {"stream": True}),
    "tried again": ([fails(500, 0.01), refuses(), answers(0.02)], {}),
    "refused for its rate": ([fails(429, 0.01, RETRY_AFTER)], {}),
    "not to be said": ([wordless, answers(0.02)], {}),
    "hanging": ([hangs(90.0), answers(3.0)], {}),
}


@pytest.mark.parametrize("retries", [Retries(), HEDGED], ids=["plain", "hedged"])
@pytest.mark.parametrize("scene", SCENES)
def test_a_client_may_leave_at_any_moment(scene: str, retries: Retries) -> None:
    """At each turn of the event loop, the few that follow each moment at which something happens."""
    fates, changes = SCENES[scene]

    async def story(clock: LoopClock) -> None:
        city = City([Provider(answers(0.3)) for _ in fates], clock, retries=retries)
        for _ in range(30):
            await city.call()
        for provider, fate in zip(city.providers, fates, strict=True):
            provider.fate = fate
        for after_s in (0.0, 0.01, 0.02, 0.04, 0.3, 0.31, 0.5, 1.0, 2.0, 10.0, 14.0, 17.0, 20.0):
            for turns in range(8):
                own = {"deadline": clock.now + 30.0, "deadline_is_callers": True}
                call = city.start(**own, **changes)
                await asyncio.sleep(after_s)
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(0.1)

        assert len(asyncio.all_tasks()) == 1
        await city.settle()

    with counted() as ended:
        run(story)

    assert ended().keys() == {1}
