"""Time as an argument: everything that waits or measures takes a `Clock`, so tests can move time by hand.

`monotonic` is for durations and deadlines, `wall` (UTC, seconds since the epoch) only for what a person or a file sees.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

_TIMER_GRAIN_S = 0.001  # uvloop rounds to milliseconds: a timer that fires early would have to be set again


class Timer(Protocol):
    """A call that is due."""

    def cancel(self) -> None:
        """It is not wanted any more."""
        ...


class Clock(Protocol):
    """What the gateway asks of time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; returns at once for zero or less."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back at `when` (monotonic), never before; in the event loop."""
        ...


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        delay_s = max(0.0, when - time.monotonic()) + _TIMER_GRAIN_S / 2
        return asyncio.get_running_loop().call_later(max(delay_s, _TIMER_GRAIN_S), callback)
