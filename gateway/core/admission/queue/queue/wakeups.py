"""Moments at which somebody is looked at again: one heap and one timer for all of them, so nothing polls.

It must not know what is due, or why. Invariant: whatever is put is met at its moment or later, unless it is void by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, Protocol, TypeVar

from gateway.core.clock import Clock, Timer

_SPARE = 1024  # a heap of so few moments is never searched for void ones
log = logging.getLogger("gateway.queue")


class Due(Protocol):
    """Something that is to be looked at."""

    def is_due(self, moment: float) -> bool:
        """Returns whether the moment that was put still counts; a void one is skipped."""
        ...


DueT = TypeVar("DueT", bound=Due)


class WakeUps(Generic[DueT]):
    """Calls `meet` with each item whose moment has come. Moments are monotonic seconds."""

    __slots__ = ("_clock", "_heap", "_meet", "_most_live", "_next", "_timer", "_timer_at")

    def __init__(self, clock: Clock, meet: Callable[[DueT, float], None], most_live: Callable[[], int]) -> None:
        """`most_live` returns the number of items that may have a moment that counts; one may have two."""
        self._clock = clock
        self._meet = meet
        self._most_live = most_live
        self._heap: list[tuple[float, int, DueT]] = []
        self._next = count().__next__  # of equal moments the one that was put first goes first
        self._timer: Timer | None = None
        self._timer_at = inf

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, moment: float, item: DueT) -> None:
        """Notes a moment; to be followed by `arm`, once all are noted."""
        self.compact()
        heappush(self._heap, (moment, self._next(), item))

    def compact(self) -> None:
        """Drops the void moments once they are the most: O(1) for each that was ever put, and little is held on to."""
        if len(self._heap) > 2 * self._most_live() + _SPARE:
            self._heap = [entry for entry in self._heap if entry[2].is_due(entry[0])]
            heapify(self._heap)

    def arm(self) -> None:
        """Sets the timer to the next moment. A moment that has become void only wakes it for nothing."""
        if not self._heap or self._heap[0][0] >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._heap[0][0]
        self._timer = self._clock.call_at(self._timer_at, self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_at = None, inf
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            moment, _, item = heappop(self._heap)
            if not item.is_due(moment):
                continue
            try:
                self._meet(item, now)
            except Exception:  # a defect, and one call's: the others must be woken all the same
                log.exception("a moment of the delay queue failed")
        self.arm()
