"""Time as an argument: everything that waits or measures takes a `Clock`, so tests can move time by hand.

`monotonic` is for durations and deadlines, `wall` (UTC, seconds since the epoch) only for what a person or a file sees.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

LEAST_STEP_S = 2.0
"""Two clocks that differ by less agree: a leap second is 1 s, and what NTP slews moves both of them."""
Ahead = Callable[[], float]
"""Returns `Clock.ahead_s`."""
_TIMER_GRAIN_S = 0.001  # uvloop rounds to milliseconds: a timer that fires early would have to be set again


def never_ahead() -> float:
    """Is the `Ahead` of a clock that is set with the machine's."""
    return 0.0


class Timer(Protocol):
    """A callback that is scheduled."""

    def cancel(self) -> None:
        """Cancels the callback."""
        ...


class Clock(Protocol):
    """The gateway's source of time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    @property
    def ahead_s(self) -> float:
        """Returns the seconds by which `wall` is ahead of the machine's time, because that was set since; mostly 0."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; returns at once for zero or less."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back at `when` (monotonic), never before; in the event loop."""
        ...


class SystemClock:
    """The machine's own clock. Its `wall` jumps when the machine's time is set."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    @property
    def ahead_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        delay_s = max(0.0, when - time.monotonic()) + _TIMER_GRAIN_S / 2
        return asyncio.get_running_loop().call_later(max(delay_s, _TIMER_GRAIN_S), callback)


class SteadyClock(SystemClock):
    """The machine's clock with a `wall` that continues from the time of its making, and never jumps.

    What waits or is kept has a time to live: a machine whose time is set a day ahead must not forget a paid answer whose
    Idempotency-Key is repeated. Time that the machine sleeps counts, where the system tells it (CLOCK_BOOTTIME of Linux).
    Whatever is kept by it takes all its times from it; a time that a person names, or is told, is `ahead_s` off.
    """

    __slots__ = ("_elapsed", "_start")

    def __init__(self, wall: float | None = None, elapsed: Callable[[], float] | None = None) -> None:
        """`wall` is the time to begin with, `elapsed` gives seconds since an arbitrary start; absent: the machine's own."""
        if elapsed is None:
            elapsed = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
        self._elapsed = elapsed
        self._start = (SystemClock.wall() if wall is None else wall) - elapsed()

    def wall(self) -> float:
        return self._start + self._elapsed()

    @property
    def ahead_s(self) -> float:
        ahead_s = self.wall() - SystemClock.wall()
        return ahead_s if abs(ahead_s) >= LEAST_STEP_S else 0.0


class SharedClock(SteadyClock):
    """The clock of what replicas share: its `wall` is the time of their server, whatever their machines show."""

    __slots__ = ()

    @property
    def ahead_s(self) -> float:
        return 0.0

    def follow(self, now: float) -> None:
        """Goes on from the server's time, which is `now`."""
        self._start = now - self._elapsed()
