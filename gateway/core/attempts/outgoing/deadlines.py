"""Ends attempts that have no answer in time.

A transport's clocks watch single phases; this watches the whole attempt, up to the caller's own deadline. One sweep over the
open attempts replaces a timer for each; now and then `look` is called with all of them. Invariant: a task is only
cancelled while it is watched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gateway.core.call import Call

SWEEP_S = 0.05
LOOK_S = 0.25
MANY = 500
"""With more open attempts than this, all of them are looked at less often."""

log = logging.getLogger("gateway")
Task: TypeAlias = asyncio.Task[Any]
Open: TypeAlias = Mapping[Task, tuple[float, Call]]
"""The open attempts by task: the monotonic time at which each ends, and the call whose last attempt it is."""


class AttemptDeadlines:
    """The attempts that have no answer yet, each by its task, with the time (monotonic seconds) at which it is cancelled."""

    __slots__ = ("_expired", "_look_at", "_open", "_paired", "look")

    def __init__(self) -> None:
        self._open: dict[Task, tuple[float, Call]] = {}
        self._expired: set[Task] = set()
        self._paired: dict[Task, tuple[Call, bool]] = {}
        self._look_at = 0.0
        self.look: Callable[[Open, float], None] | None = None
        """A callback for all open attempts and the time, called every LOOK_S while there are any."""

    def begin(self, ends_at: float, task: Task | None, call: Call) -> Task | None:
        """Watches the current task for the call's last attempt; `task` is the current task, if the caller knows it."""
        task = task or asyncio.current_task()
        if task is not None:
            self._open[task] = (ends_at, call)
        return task

    def end(self, task: Task | None) -> None:
        """Stops watching the task."""
        if task is not None:
            self._open.pop(task, None)
            if self._expired:
                self._expired.discard(task)
            if self._paired:
                self._paired.pop(task, None)

    def pair(self, task: Task, beside: Call, *, is_spared: bool) -> None:
        """Marks the task as one of two attempts of its call; the other is the last of `beside`. A spared task may be late."""
        self._paired[task] = beside, is_spared

    def part(self, task: Task) -> None:
        """Marks the task as its call's only attempt again, because the other has failed."""
        self._paired.pop(task, None)

    def beside(self, task: Task) -> Call | None:
        """Returns the call whose last attempt runs beside this task; None: the task is its call's only attempt."""
        return self._paired[task][0] if task in self._paired else None

    def is_spared(self, task: Task) -> bool:
        """Returns whether the task is left alone until its time is up or the other attempt has failed."""
        return task in self._paired and self._paired[task][1]

    def shorten(self, task: Task, ends_at: float) -> None:
        """Brings the end of the task's time forward to `ends_at`."""
        entry = self._open.get(task)
        if entry is not None and ends_at < entry[0]:
            self._open[task] = (ends_at, entry[1])

    def expire(self, task: Task) -> None:
        """Cancels the task as if its time were up; does nothing if it is not watched any more."""
        if self._open.pop(task, None) is not None:
            self._expired.add(task)
            task.cancel()

    def uncancel_expired(self, task: Task | None) -> bool:
        """Uncancels the task if the CancelledError that it has just caught came from here; returns whether nothing else did."""
        if task is None or task not in self._expired:
            return False
        self._expired.discard(task)
        return task.uncancel() == 0

    def sweep(self, now: float) -> None:
        """Cancels the tasks whose time is up; called every SWEEP_S."""
        for task in [task for task, (ends_at, _) in self._open.items() if ends_at <= now]:
            self.expire(task)
        if self._open and now >= self._look_at and self.look is not None:
            self._look_at = now + LOOK_S * max(1.0, len(self._open) / MANY)
            try:
                self.look(self._open, now)
            except Exception:  # a defect in `look` must not keep attempts from timing out
                log.exception("looking at the open attempts failed")
