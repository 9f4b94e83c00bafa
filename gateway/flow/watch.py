"""Ends attempts that have not opened in time.

A transport's clocks watch single phases; this watches the whole of it, up to the caller's own deadline. One sweep over the
open attempts takes the place of a timer for each. Invariant: a task is only cancelled while it is watched.
"""

from __future__ import annotations

import asyncio
from typing import Any

SWEEP_S = 0.05


class Watch:
    """The attempts that are being opened, each by its task, with the moment (monotonic seconds) when its time is up."""

    __slots__ = ("_ends_at", "_expired")

    def __init__(self) -> None:
        self._ends_at: dict[asyncio.Task[Any], float] = {}
        self._expired: set[asyncio.Task[Any]] = set()

    def begin(self, ends_at: float, task: asyncio.Task[Any] | None) -> asyncio.Task[Any] | None:
        """Watch the current task, which is `task` if it is known already."""
        task = task or asyncio.current_task()
        if task is not None:
            self._ends_at[task] = ends_at
        return task

    def end(self, task: asyncio.Task[Any] | None) -> None:
        """Watch it no more."""
        if task is not None:
            self._ends_at.pop(task, None)
            self._expired.discard(task)

    def has_expired(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the CancelledError that the task has just caught came from here; if so, it goes on uncancelled."""
        if task is None or task not in self._expired:
            return False
        self._expired.discard(task)
        return task.uncancel() == 0

    def sweep(self, now: float) -> None:
        """Cancel the tasks whose time is up; called every SWEEP_S."""
        for task in [task for task, ends_at in self._ends_at.items() if ends_at <= now]:
            del self._ends_at[task]
            self._expired.add(task)
            task.cancel()
