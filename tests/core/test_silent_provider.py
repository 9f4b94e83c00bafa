"""Calls for which nobody has set a deadline leave a provider that says nothing, and a single call that stalls moves alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from gateway.dialects.endpoints import GENERATE
from tests.core.test_suspects import served, silence
from tests.support.flow import Script, streamed
from tests.support.outage import City, Fate, Provider, Told, answers
from tests.support.virtual import LoopClock, run

EMPTY_TEXT = b'data: {"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"index":0}]}\r\n\r\n'
TEXT = b'data: {"candidates":[{"content":{"parts":[{"text":"hi"}],"role":"model"},"index":0}]}\r\n\r\n'
STOP = b'data: {"candidates":[{"content":{"parts":[],"role":"model"},"finishReason":"STOP","index":0}]}\r\n\r\n'


def mostly(usual: Fate, odd: Fate, is_odd: Callable[[int], bool]) -> Fate:
    """A fate that is `odd` for the calls, counted from 0, of which `is_odd` says so."""
    number = count()

    async def fate() -> Script:
        return await (odd if is_odd(next(number)) else usual)()

    return fate


async def patient(city: City, number: int, every_s: float, patience_s: float = 300.0, **changes: object) -> list[Told]:
    """So many calls with a deadline that nobody has set."""
    began_at, tasks = city.clock.now, []
    for one in range(number):
        await city.until(began_at + one * every_s)
        tasks.append(city.start(deadline=city.clock.now + patience_s, **changes))
    return await asyncio.gather(*tasks)


@pytest.mark.parametrize("every_s", [0.0, 0.1])
@pytest.mark.parametrize("patience_s", [300.0, 600.0])
def test_calls_without_a_deadline_leave_a_silent_provider(every_s: float, patience_s: float) -> None:
    """120 whole answers at a provider that was never known, sent at once or one after the other; another one is healthy."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(silence()), Provider(answers(1.0))
        city = City([primary, other], clock)

        told = await patient(city, 120, every_s, patience_s)

        assert served(told) == 120
        assert max(one.took_s for one in told) <= 30.0
        assert len(other.asked_at) == 120
        await city.settle()

    run(story)


@pytest.mark.parametrize("every_s", [0.0, 0.5])
def test_of_many_long_answers_a_few_are_paid_twice(every_s: float) -> None:
    """40 answers of 100 s at a provider that was never known, while the other one is as slow: three find that out."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(answers(100.0)), Provider(answers(100.0))
        city = City([primary, other], clock)

        told = await patient(city, 40, every_s, 600.0)

        assert served(told) == 40
        assert max(one.took_s for one in told) == pytest.approx(100.0, abs=0.01)
        assert len(primary.asked_at) == 40
        assert len(other.asked_at) <= 3
        await city.settle()

    run(story)


@pytest.mark.parametrize(("patience_s", "took_s"), [(300.0, 150.0), (600.0, 300.0), (21600.0, 300.0)])
def test_a_single_call_without_a_deadline_moves_by_half_of_the_usual_patience(patience_s: float, took_s: float) -> None:
    """Nothing is known of the provider, and nobody else waits there; a lane that waits for hours waits no longer for this."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(1.0))], clock)

        (told,) = await patient(city, 1, 0.0, patience_s)

        assert told.result == 200
        assert told.took_s == pytest.approx(took_s + 1.0, abs=0.5)
        await city.settle()

    run(story)


def test_four_workers_do_not_wait_for_half_of_their_patience() -> None:
    """As many as a small program has: the first three find out for all. The next ones go where they are served."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(1.0))], clock)

        told = await patient(city, 4, 0.0)

        assert served(told) == 4
        assert max(one.took_s for one in told) <= 25.0
        told = await patient(city, 40, 1.0)
        assert served(told) == 40
        assert max(one.took_s for one in told) <= 11.0  # a few that try the silent one again
        await city.settle()

    run(story)


def test_who_works_alone_waits_for_half_of_the_patience_once() -> None:
    """One call after the other: that the first was served much sooner elsewhere is known to the second."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(1.0))], clock)

        told = [(await patient(city, 1, 0.0))[0] for _ in range(5)]

        assert served(told) == 5
        assert [round(one.took_s) for one in told[:2]] == [151, 21]
        assert max(one.took_s for one in told[2:]) <= 11.0
        await city.settle()

    run(story)


def test_calls_that_think_are_not_tried_elsewhere_after_20_s() -> None:
    """Others beside them are, of which nothing is known either."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(answers(100.0)), Provider(answers(100.0))
        city = City([primary, other], clock)
        tasks = [city.start(deadline=clock.now + 600.0, thinks=number % 2 == 0) for number in range(8)]
        await asyncio.sleep(60.0)

        assert len(other.asked_at) == 3
        told = await asyncio.gather(*tasks)
        assert served(told) == 8
        await city.settle()

    run(story)


def test_a_call_that_was_held_for_long_has_its_time_all_the_same() -> None:
    """Its attempt begins at the end of its patience, which nobody has set: it is not tried elsewhere at once."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(answers(100.0)), Provider(answers(1.0))
        city = City([primary, other], clock)

        (told,) = await patient(city, 1, 0.0, 20.0, received_at=clock.now - 280.0)

        assert told.took_s == pytest.approx(100.0, abs=0.01)
        assert not other.asked_at
        await city.settle()

    run(story)


def test_two_silent_providers_are_paid_once_each() -> None:
    """Nobody is lost before the attempts end by themselves, and nobody is sent to and fro."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(silence()), Provider(silence())
        city = City([primary, other], clock)

        tasks = [city.start(deadline=clock.now + 300.0) for _ in range(20)]
        await asyncio.sleep(290.0)

        assert not any(task.done() for task in tasks)
        assert len(primary.asked_at) == 20
        assert len(other.asked_at) <= 20
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await city.settle()

    run(story)


@pytest.mark.parametrize("is_callers", [False, True])
def test_a_single_stall_in_a_bulk_run_moves(is_callers: bool) -> None:
    """One answer of a hundred takes 60 s instead of 1: without `hedge`, it is there after about 11 s."""

    async def story(clock: LoopClock) -> None:
        primary = Provider(mostly(answers(1.0), answers(60.0), lambda number: number % 100 == 30))
        other = Provider(answers(1.0))
        city = City([primary, other], clock)

        told = await patient(city, 300, 0.25, 600.0, deadline_is_callers=is_callers)

        assert served(told) == 300
        assert max(one.took_s for one in told) <= 12.0
        assert len(primary.asked_at) == 300
        assert len(other.asked_at) == 3
        assert city.breaker_of(0).transitions["open"] == 0
        await city.settle()

    run(story)


def test_long_answers_are_not_all_paid_twice() -> None:
    """One answer of fifty takes 60 s at both targets because it is long: a few are tried elsewhere, then none is."""

    async def story(clock: LoopClock) -> None:
        long = mostly(answers(1.0), answers(60.0), lambda number: number % 50 == 30)
        primary, other = Provider(long), Provider(answers(60.0))
        city = City([primary, other], clock)

        told = await patient(city, 1000, 0.25, 600.0)

        assert served(told) == 1000
        assert max(one.took_s for one in told) == pytest.approx(60.0, abs=0.01)
        assert other.asked(0.0, told[-1].at) <= 4
        await city.settle()

    run(story)


def test_a_stall_where_nobody_else_serves_stays() -> None:
    """It goes nowhere else, and nobody ends it."""

    async def story(clock: LoopClock) -> None:
        primary = Provider(mostly(answers(1.0), answers(60.0), lambda number: number == 30))
        city = City([primary], clock)

        told = await patient(city, 60, 0.25, 600.0)

        assert served(told) == 60
        assert max(one.took_s for one in told) == pytest.approx(60.0, abs=0.01)
        assert len(primary.asked_at) == 60
        await city.settle()

    run(story)


@pytest.mark.parametrize("known", [0, 40])
def test_an_empty_text_is_no_sign_of_an_answer(known: int) -> None:
    """Gemini's callers and provider: a first chunk with an empty text, then nothing. The other target serves."""

    async def says_nothing() -> Script:
        await asyncio.sleep(0.05)
        return streamed(EMPTY_TEXT, asyncio.Event())

    async def says_hi() -> Script:
        await asyncio.sleep(0.05)
        return streamed(EMPTY_TEXT, TEXT, STOP)

    async def story(clock: LoopClock) -> None:
        primary = Provider(says_hi)
        city = City([primary, Provider(says_hi)], clock)
        stream: dict[str, Any] = {"endpoint": GENERATE, "path": GENERATE.path, "stream": True}
        assert served(await patient(city, known, 0.1, **stream)) == known
        primary.fate = says_nothing

        told = await patient(city, 20, 0.2, **stream)

        assert served(told) == 20
        assert max(one.took_s for one in told) <= 25.0
        await city.settle()

    run(story)
