"""A real event loop whose time is virtual: when nothing is ready, it goes on to the next timer instead of waiting for it.

Everything else is asyncio itself: tasks, cancellation, futures. Invariants: time never goes back, and a timer is never early;
a run that could only wait for ever fails.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gateway.core.answers import SWEEP_S, AttemptDeadlines
from tests.support.flow import FakeClock

T = TypeVar("T")
START_S = 1000.0
LOOK_OUTSIDE_S = 0.05
"""The longest look at what is outside of time, in seconds of the world."""
MOST_LOOKS_OUTSIDE = 2400
"""So many looks in a row without news, two minutes or less, are a run that hangs."""
WALL_S = 1_800_000_000.0
"""What the wall clock is ahead of the monotonic one (keep in step with `FakeClock`)."""
_GRAIN_S = 1e-9  # the loop's own resolution: what is due within it is due


class _Nothing(selectors.SelectSelector):
    """Where a loop looks for news from outside: there is none, and looking takes no time but the virtual.

    While somebody outside has been asked, such as the thread of a file, time stands still until there is an answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = START_S
        self.asked = 0
        self._looks = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.asked:
            return self._look_outside(timeout)
        if timeout is None:
            raise AssertionError("nothing is left that could happen")
        if timeout > 0:
            self.now += timeout + _GRAIN_S
        return []

    def _look_outside(self, timeout: float | None) -> list[Any]:
        news = super().select(timeout if timeout is not None and timeout <= 0 else LOOK_OUTSIDE_S)
        self._looks = 0 if news else self._looks + 1
        assert self._looks < MOST_LOOKS_OUTSIDE, "whoever was asked outside of time does not answer"
        return news


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop."""

    def __init__(self) -> None:
        self._nothing = _Nothing()
        super().__init__(self._nothing)

    def time(self) -> float:
        return self._nothing.now

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Inside of it somebody is waited for who lives by another time."""
        self._nothing.asked += 1
        try:
            yield
        finally:
            self._nothing.asked -= 1


class LoopClock(FakeClock):
    """The clock of a loop; only time itself moves it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def now(self) -> float:  # type: ignore[override]  # nobody sets it
        return self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            await asyncio.sleep(seconds)

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:  # type: ignore[override]  # it has no arguments to pass on
        return self._loop.call_at(when, callback)

    def advance(self, seconds: float) -> None:
        raise AssertionError("virtual time moves by itself")


def run(story: Callable[[LoopClock], Coroutine[Any, Any, T]]) -> T:
    """Tell a story in virtual time, from its beginning to its end; what it has left running is cancelled then."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(story(LoopClock(loop)))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class Sweep:
    """Lets a watch look at its attempts every 50 ms, until it is cancelled."""

    def __init__(self, watch: AttemptDeadlines) -> None:
        self._watch = watch
        self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._watch.sweep(loop.time())
        self._timer = loop.call_later(SWEEP_S, self._look)

    def cancel(self) -> None:
        self._timer.cancel()
