"""What is done in the background for a store: things that nobody has to wait for, and that end by themselves.

Invariant: a chore is not lost because nobody looks at it, and none outlives the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """Tasks of one store; their coroutines raise nothing."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, chore: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin it; who wants to may wait for it."""
        task = asyncio.get_running_loop().create_task(chore)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self, within_s: float) -> None:
        """Give all of them so long to end, then cancel the rest."""
        if self._tasks:
            await asyncio.wait([*self._tasks], timeout=within_s)
        left = [*self._tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
