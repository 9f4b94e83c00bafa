"""Calls are made when they are due, on a clock that only sleeping moves."""

from __future__ import annotations

import asyncio

from gateway.demo.clients import AnswerBrokenError, CallFailedError
from gateway.demo.record import Fate, Trial, fate_of
from gateway.demo.storm import keep_calling


class Clock:
    """Time that moves by sleeping."""

    def __init__(self) -> None:
        self.at_s = 50.0

    def now(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        self.at_s += seconds
        await asyncio.sleep(0)


async def keep(calls: int, failing: dict[int, CallFailedError]) -> Trial:
    """What comes of so many calls, four a second."""
    clock, trial = Clock(), Trial("a run", calls, late_s=1.0)
    trial.begin(clock.now())

    async def ask(number: int) -> int:
        if number in failing:
            raise failing[number]
        return 7

    await keep_calling(trial, ask, 4.0, clock.now, clock.sleep)
    return trial


async def test_calls_come_at_an_even_pace() -> None:
    """The first at once."""
    trial = await keep(5, {})

    assert [call.made_at_s for call in trial.ended] == [0.0, 0.25, 0.5, 0.75, 1.0]


async def test_failures_are_recorded_and_stop_nothing() -> None:
    """What broke off is told apart."""
    trial = await keep(5, {1: CallFailedError(), 2: AnswerBrokenError()})

    assert fate_of(trial.ended, trial.late_s) == Fate(answered=3, late=0, failed=2)
    assert trial.broken == 1


async def test_nobody_waits_for_those_before() -> None:
    """Even if no call ever ended before the last was made."""
    clock, trial = Clock(), Trial("a run", 8, late_s=1.0)
    trial.begin(clock.now())
    all_there, open_calls = asyncio.Event(), 0

    async def ask(_number: int) -> int:
        nonlocal open_calls
        open_calls += 1
        if open_calls == 8:
            all_there.set()
        await all_there.wait()
        return 7

    await keep_calling(trial, ask, 4.0, clock.now, clock.sleep)

    assert trial.answered == 8
