"""Virtual time: a heap of what is due, and coroutines that wait in it.

Stands in for the event loop where nothing is awaited but time and a turn in the delay queue. It must not know calls or
targets. Invariants: time never goes back; what is due at one moment happens in the order in which it was put there; a
coroutine that is woken goes on at the same moment, but after what woke it.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

START_S = 1000.0
"""Where time begins: not at zero, which would hide mistakes."""
WALL_S = 1_800_000_000.0
"""What the wall clock is ahead of the monotonic one."""


class Due(Protocol):
    """What can stand in the heap."""

    def step(self) -> None:
        """Its moment has come."""


class VirtualTimer:
    """A call that is due, until it is cancelled."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def step(self) -> None:
        if self._callback is not None:
            self._callback()


class VirtualClock:
    """A `Clock` whose time moves to the next event as soon as all that is due now has happened."""

    __slots__ = ("_events", "_numbers", "now", "ready")

    ahead_s = 0.0

    def __init__(self) -> None:
        self.now = START_S
        self.ready: deque[Due] = deque()
        self._events: list[tuple[float, int, Due]] = []
        self._numbers = 0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL_S + self.now

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            await until(self.now + seconds)

    def call_at(self, when: float, callback: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(callback)
        self.put(when, timer)
        return timer

    def put(self, when: float, due: Due) -> None:
        """Something is to happen at `when`, or now if that is over."""
        self._numbers += 1
        heappush(self._events, (when, self._numbers, due))

    def start(self, coroutine: Coroutine[Any, Any, object]) -> Task:
        """Run a coroutine; its first step comes when all that is ready has happened."""
        task = Task(self, coroutine)
        self.ready.append(task)
        return task

    def run(self, until_s: float = inf) -> None:
        """Go on until nothing is left to happen, or to the moment `until_s`."""
        events, ready = self._events, self.ready
        while True:
            while ready:
                ready.popleft().step()
            if not events or events[0][0] > until_s:
                break
            when, _, due = heappop(events)
            if when > self.now:
                self.now = when
            due.step()
        if until_s < inf:
            self.now = max(self.now, until_s)


class Task:
    """A coroutine under way. It may await `until(moment)` and a `Turn`."""

    __slots__ = ("_clock", "_coroutine", "is_over")

    def __init__(self, clock: VirtualClock, coroutine: Coroutine[Any, Any, object]) -> None:
        self._clock = clock
        self._coroutine = coroutine
        self.is_over = False

    def step(self) -> None:
        if self.is_over:
            return  # it was cancelled while it waited
        try:
            awaited = self._coroutine.send(None)
        except StopIteration:
            self.is_over = True
            return
        if awaited.__class__ is float:
            self._clock.put(awaited, self)
        else:
            awaited.waits(self)

    def cancel(self) -> None:
        """Ends it where it stands; it may only clean up."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self._coroutine.throw(asyncio.CancelledError())
        except (asyncio.CancelledError, StopIteration):
            return
        raise AssertionError("a cancelled coroutine goes on")


class Turn:
    """Stands in for the future that a held call awaits. `on_wait` and `on_turn` tell when that begins and ends."""

    __slots__ = ("_clock", "_is_set", "_on_turn", "_on_wait", "_waiter")

    def __init__(
        self, clock: VirtualClock, on_wait: Callable[[], None] | None, on_turn: Callable[[], None] | None
    ) -> None:
        self._clock = clock
        self._on_wait = on_wait
        self._on_turn = on_turn
        self._waiter: Task | None = None
        self._is_set = False

    def done(self) -> bool:
        return self._is_set

    def set_result(self, _result: None) -> None:
        self._is_set = True
        if self._waiter is not None:
            self._clock.ready.append(self._waiter)
            if self._on_turn is not None:
                self._on_turn()

    def waits(self, task: Task) -> None:
        """The task can go on when the turn comes."""
        self._waiter = task
        if self._on_wait is not None:
            self._on_wait()

    def __await__(self) -> Generator[Turn, None, None]:
        if not self._is_set:
            yield self


@types.coroutine
def until(moment: float) -> Generator[float, None, None]:
    """Wait for a moment of the virtual clock."""
    yield moment
