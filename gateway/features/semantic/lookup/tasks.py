"""Work that goes on when the call that began it does not wait for it any longer.

It must not know what the work is. Invariants: every task is held until it is over; what fails is logged, and is nobody's
failure; when `aclose` returns, nothing runs any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.core.clock import Clock

T = TypeVar("T")
log = logging.getLogger("gateway.background")


class Background:
    """The tasks of one part of the gateway, no more than `most` at a time."""

    __slots__ = ("_closed", "_most", "_tasks")

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T | None]) -> asyncio.Task[T | None] | None:
        """Starts a piece of work, whose result is None when it fails; returns None if there is too much of it already."""
        if self._closed or len(self._tasks) >= self._most:
            work.close()
            return None
        task = asyncio.create_task(_guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it would never be awaited
        return task

    async def aclose(self) -> None:
        """Cancels all tasks, and waits until they have ended."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def result_by(clock: Clock, future: asyncio.Future[T | None], deadline: float) -> T | None:
    """Returns the result, if it comes before `deadline` (monotonic seconds); None: it is late, or was cancelled.

    The work goes on in any case.
    """
    if not future.done():
        await _wait(clock, future, deadline)
    return future.result() if future.done() and not future.cancelled() else None


async def _wait(clock: Clock, future: asyncio.Future[Any], deadline: float) -> None:
    if deadline <= clock.monotonic():
        await asyncio.sleep(0)  # what needs no time at all gets its turn
        return
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    timer = clock.call_at(deadline, wake)
    future.add_done_callback(wake)
    try:
        await woken
    finally:
        timer.cancel()
        future.remove_done_callback(wake)


async def _guarded(work: Coroutine[Any, Any, T | None]) -> T | None:
    try:
        return await work
    except Exception:
        log.exception("work in the background has failed")
        return None
