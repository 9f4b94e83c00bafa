"""An answer that rules out one target does not end a call; the others are waited for as they would be without that target."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.core.test_suspects import SDK_S, calls
from tests.rows import rows
from tests.support.flow import Script, whole
from tests.support.outage import City, Fate, Provider, Told, answers, fails
from tests.support.virtual import LoopClock, run

OUTAGE_S = 6.0


def says(status: int, code: str, after_s: float = 0.02, *headers: tuple[bytes, bytes]) -> Fate:
    """A provider's word on the request, or on what it can do itself."""
    body = b'{"error":{"message":"no: %b","type":"invalid_request_error","param":null,"code":"%b"}}'

    async def fate() -> Script:
        await asyncio.sleep(after_s)
        return whole(body % (code.encode(), code.encode()), status, *headers)

    return fate


WORDS = [
    (400, "invalid_value"),
    (401, "invalid_api_key"),
    (403, "forbidden"),
    (404, "not_found"),
    (413, "too_large"),
    (400, "context_length_exceeded"),
    (400, "content_filter"),
    (429, "insufficient_quota"),
]


async def outage(city: City, primary: Provider, lasts_s: float = OUTAGE_S, **changes: object) -> list[Told]:
    """Ten calls at the beginning of a primary's outage and one in it, all with the patience of an SDK."""
    clock, later = city.clock, asyncio.get_running_loop().call_later

    def start() -> asyncio.Task[Told]:
        return city.start(**{"deadline": clock.now + SDK_S, "deadline_is_callers": True, **changes})

    await asyncio.gather(*[start() for _ in range(10)])
    primary.fate = fails(503, 0.01)
    later(lasts_s, setattr, primary, "fate", answers())
    tasks = [start() for _ in range(10)]
    await asyncio.sleep(lasts_s / 2)
    return await asyncio.gather(*tasks, start())


@rows(("status", "code"), WORDS)
def test_a_fallbacks_word_on_itself_does_not_end_a_call(status: int, code: str) -> None:
    """The primary is back after six seconds and serves them, as it would if there were no fallback."""

    async def story(clock: LoopClock) -> None:
        primary, fallback = Provider(answers()), Provider(says(status, code))
        city = City([primary, fallback], clock, fallbacks=1)
        told = await outage(city, primary)

        assert {one.result for one in told} == {200}
        assert max(one.took_s for one in told) < OUTAGE_S + 3.0
        assert 1 <= len(fallback.asked_at) <= 11
        await city.settle()

    run(story)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("lane", ["interactive", "batch"])
def test_in_every_lane_and_for_streams(lane: str, stream: bool) -> None:
    """What is held is held there as well."""

    async def story(clock: LoopClock) -> None:
        primary, fallback = Provider(answers()), Provider(says(400, "invalid_value"))
        city = City([primary, fallback], clock, fallbacks=1)

        assert {one.result for one in await outage(city, primary, lane=lane, stream=stream)} == {200}
        await city.settle()

    run(story)


def test_a_primary_that_is_paused_is_waited_for_all_the_same() -> None:
    """Its limit has room again after five seconds; the fallback cannot serve the call."""

    async def story(clock: LoopClock) -> None:
        primary = Provider(fails(429, 0.01, (b"retry-after", b"5")))
        fallback = Provider(says(400, "invalid_value"))
        city = City([primary, fallback], clock, fallbacks=1)
        task = city.start(deadline=clock.now + SDK_S, deadline_is_callers=True)
        await asyncio.sleep(1)
        primary.fate = answers()
        told = await task

        assert (told.result, len(fallback.asked_at)) == (200, 1)
        assert told.took_s < 6.0
        await city.settle()

    run(story)


@pytest.mark.parametrize("is_down", [False, True])
def test_a_bad_request_is_told_at_once(is_down: bool) -> None:
    """The first target's word is the call's; so is that of two models, whatever the primary has."""

    async def story(clock: LoopClock) -> None:
        primary = Provider(answers())
        providers = [primary, Provider(says(400, "invalid_value")), Provider(says(400, "invalid_value"))]
        city = City(providers, clock, fallbacks=2)
        other = replace(city.bench.policy.models["m"].plan[2], name="p2/other")
        model = city.bench.policy.models["m"]
        city.bench.policy = replace(city.bench.policy, models={"m": replace(model, plan=(*model.plan[:2], other))})
        city.admission.install(city.bench.policy)
        await city.call()
        primary.fate = fails(503, 0.01) if is_down else says(400, "invalid_value")
        told = await city.call(deadline=clock.now + SDK_S, deadline_is_callers=True)

        assert told.result == 400
        assert told.took_s < 1.0
        assert [len(one.asked_at) for one in providers[1:]] == [is_down, is_down]
        await city.settle()

    run(story)


def test_a_call_that_ends_gets_the_primarys_failure() -> None:
    """With the time at which another try may help; the fallback's own 400 is a line of the trail."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(503, 0.01)), Provider(says(400, "invalid_value"))], clock, fallbacks=1)
        told = await city.call(deadline=clock.now + 4.0, deadline_is_callers=True)

        assert told.result == 503
        await city.settle()

    run(story)


def test_the_word_of_the_target_that_a_call_has_moved_to_does_not_end_it() -> None:
    """The first target hangs, and answers after all."""

    async def story(clock: LoopClock) -> None:
        wakes = asyncio.Event()

        async def asleep() -> Script:
            await wakes.wait()
            return await answers()()

        fallback = Provider(says(403, "forbidden"))
        city = City([Provider(asleep), fallback], clock, fallbacks=1)
        asyncio.get_running_loop().call_later(25.0, wakes.set)
        (told,) = await calls(city, 1, 1.0)

        assert len(fallback.asked_at) == 1
        assert told.result == 200
        await city.settle()

    run(story)
