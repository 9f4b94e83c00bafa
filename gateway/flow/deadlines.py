"""Ends attempts that have not opened in time.

A transport's clocks watch single phases; this watches the whole of it, up to the caller's own deadline. One sweep over the
open attempts takes the place of a timer for each; now and then somebody else may look at them all. Invariant: a task is only
cancelled while it is watched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gateway.call import Call

SWEEP_S = 0.05
LOOK_S = 0.25
MANY = 500
"""Where more attempts are open they are looked at less often."""

log = logging.getLogger("gateway")
Task: TypeAlias = asyncio.Task[Any]
Open: TypeAlias = Mapping[Task, tuple[float, Call]]
"""The open attempts by task: when the time is up, and whose the last attempt of that ledger is."""


class AttemptDeadlines:
    """The attempts that are being opened, each by its task, with the moment (monotonic seconds) when its time is up."""

    __slots__ = ("_expired", "_look_at", "_open", "_paired", "look")

    def __init__(self) -> None:
        self._open: dict[Task, tuple[float, Call]] = {}
        self._expired: set[Task] = set()
        self._paired: dict[Task, tuple[Call, bool]] = {}
        self._look_at = 0.0
        self.look: Callable[[Open, float], None] | None = None
        """Called with all open attempts and the time, every LOOK_S while there are any."""

    def begin(self, ends_at: float, task: Task | None, call: Call) -> Task | None:
        """Watch the current task, which is `task` if it is known already, for the call's last attempt."""
        task = task or asyncio.current_task()
        if task is not None:
            self._open[task] = (ends_at, call)
        return task

    def end(self, task: Task | None) -> None:
        """Watch it no more."""
        if task is not None:
            self._open.pop(task, None)
            if self._expired:
                self._expired.discard(task)
            if self._paired:
                self._paired.pop(task, None)

    def pair(self, task: Task, beside: Call, *, is_spared: bool) -> None:
        """It is one of two attempts of its call, whose other one is the last of `beside`; a spared one may be late."""
        self._paired[task] = beside, is_spared

    def part(self, task: Task) -> None:
        """The other one has failed: it is its call's only attempt again."""
        self._paired.pop(task, None)

    def beside(self, task: Task) -> Call | None:
        """Whose last attempt is made beside it; None: it is its call's only one."""
        return self._paired[task][0] if task in self._paired else None

    def is_spared(self, task: Task) -> bool:
        """Whether it is left alone until its time is up, or the other one has failed."""
        return task in self._paired and self._paired[task][1]

    def shorten(self, task: Task, ends_at: float) -> None:
        """Its time is up sooner."""
        entry = self._open.get(task)
        if entry is not None and ends_at < entry[0]:
            self._open[task] = (ends_at, entry[1])

    def expire(self, task: Task) -> None:
        """Its time is up; nothing happens where it is not watched any more."""
        if self._open.pop(task, None) is not None:
            self._expired.add(task)
            task.cancel()

    def has_expired(self, task: Task | None) -> bool:
        """Whether the CancelledError that the task has just caught came from here; if so, it goes on uncancelled."""
        if task is None or task not in self._expired:
            return False
        self._expired.discard(task)
        return task.uncancel() == 0

    def sweep(self, now: float) -> None:
        """Cancel the tasks whose time is up; called every SWEEP_S."""
        for task in [task for task, (ends_at, _) in self._open.items() if ends_at <= now]:
            self.expire(task)
        if self._open and now >= self._look_at and self.look is not None:
            self._look_at = now + LOOK_S * max(1.0, len(self._open) / MANY)
            try:
                self.look(self._open, now)
            except Exception:  # whoever looks decides a lot; that time runs out must not hang on it
                log.exception("looking at the open attempts failed")
