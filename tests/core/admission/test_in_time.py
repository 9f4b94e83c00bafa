"""A call goes only where its answer is likely to be in time: what would be cut off is not paid for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.balancing import Retries
from gateway.core.errors import WaitTooLong
from gateway.core.health.times import USUAL_TIMES_MIN_SAMPLES, needed_s
from gateway.core.limits.limit_table import Limits
from tests.rows import rows
from tests.support.flow import Script
from tests.support.outage import City, Fate, Provider, answers, fails, streams
from tests.support.virtual import LoopClock, run

ONE_AT_ONCE = Limits(max_concurrency=1)


def knows(city: City, number: int, answer_s: float, *, stream: bool = False, samples: int = 40) -> None:
    """So many answers of a target took so long."""
    times = city.gate(number).health.responsiveness.times(stream=stream, thinks=False)
    for _ in range(samples):
        times.observe(answer_s, city.clock.now)


def within(clock: LoopClock, timeout_s: float) -> dict[str, object]:
    """A call whose caller has set this timeout."""
    return {"deadline": clock.now + timeout_s, "deadline_is_callers": True}


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_call_that_has_waited_too_long_is_not_paid_for(is_stream: bool) -> None:
    """Answers take 1 s, one at a time; of calls that have 5.4 s five fit, and the sixth was let go 0.4 s before its end."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(streams(1.0, 0.0) if is_stream else answers(1.0))
        city = City([provider], clock, changes={"limits": [ONE_AT_ONCE]})
        knows(city, 0, 1.0, stream=is_stream)
        tasks = [city.start(stream=is_stream, **within(clock, 5.4)) for _ in range(20)]
        told = await asyncio.gather(*tasks)

        assert len(provider.asked_at) == city.results()[200] == 5
        refused = [one for one in told if one.result != 200]
        assert {one.result for one in refused} == {WaitTooLong.code}
        assert all(one.retry_after_s is not None and one.took_s < 4.9 for one in refused)
        await city.settle()

    run(story)


def test_it_goes_where_it_fits() -> None:
    """The first target is back after 5 s and answers in 4, the fallback after 5.5 s in 0.1: of 8 s that is the one."""

    async def story(clock: LoopClock) -> None:
        providers = [Provider(answers(4.0)), Provider(answers(0.1))]
        city = City(providers, clock, fallbacks=1)
        knows(city, 0, 4.0)
        city.gate(0).leave_alone(5.0, clock.now)
        city.gate(1).leave_alone(5.5, clock.now)

        told = await city.call(**within(clock, 8.0))

        assert told.result == 200
        assert told.took_s == pytest.approx(5.6, abs=0.1)
        assert [len(one.asked_at) for one in providers] == [0, 1]
        await city.settle()

    run(story)


@rows(
    ("timeout_s", "known_s", "samples", "is_callers", "expected"),
    [
        (8.0, 4.0, 40, True, WaitTooLong.code),
        (8.0, 2.0, 40, True, 200),
        (8.0, 4.0, USUAL_TIMES_MIN_SAMPLES - 1, True, 200),
        (8.0, 4.0, 40, False, 200),
        (12.0, 60.0, 40, True, 200),
    ],
)
def test_what_cannot_be_in_time_is_refused_at_once(
    timeout_s: float, known_s: float, samples: int, is_callers: bool, expected: int | str
) -> None:
    """The only target is back after 5 s. Where little is known, where a lane's deadline holds, and where its caller knows that
    it takes less than others, a call waits and goes."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(answers(0.5))
        city = City([provider], clock)
        knows(city, 0, known_s, samples=samples)
        city.gate().leave_alone(5.0, clock.now)

        told = await city.call(deadline=clock.now + timeout_s, deadline_is_callers=is_callers)

        assert told.result == expected
        assert len(provider.asked_at) == (expected == 200)
        assert expected == 200 or told.took_s == 0.0
        await city.settle()

    run(story)


def once(first: Fate, then: Fate) -> Fate:
    """The first answer is another than the later ones."""
    fates = iter([first])

    async def fate() -> Script:
        return await next(fates, then)()

    return fate


@rows(
    ("first", "expected"),
    [
        (lambda: fails(500, 7.6), 500),
        (lambda: fails(429, 7.6, (b"retry-after-ms", b"1")), WaitTooLong.code),
    ],
)
def test_a_failed_call_is_not_tried_again_too_late(first: Callable[[], Fate], expected: int | str) -> None:
    """Its first try failed 0.4 s before its deadline: it hears of that, or when to come back, and pays nothing more."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(once(first(), answers(1.0)))
        city = City([provider], clock, retries=Retries())
        knows(city, 0, 1.0)

        told = await city.call(**within(clock, 8.0))

        assert told.result == expected
        assert len(provider.asked_at) == 1
        await city.settle()

    run(story)


def test_a_target_is_never_starved_by_slow_answers() -> None:
    """Its answers took 30 s and take 1 s again: calls with a timeout of 10 s go on finding that out."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(answers(1.0))
        city = City([provider], clock, changes={"limits": [ONE_AT_ONCE]})
        knows(city, 0, 30.0, samples=100)
        for _ in range(20):
            await asyncio.gather(*[city.start(**within(clock, 10.0)) for _ in range(10)])

        late = city.told[-10:]
        assert sum(one.result == 200 for one in late) >= 9
        await city.settle()

    run(story)


@given(st.floats(0.0, 1e4), st.floats(0.01, 1e5))
def test_a_call_that_has_not_waited_always_goes(median_s: float, timeout_s: float) -> None:
    """What is asked for is no more than usual, and never more than half of what the caller has."""
    asked_s = needed_s(median_s, timeout_s)

    assert 0.0 <= asked_s <= min(median_s, timeout_s / 2)
