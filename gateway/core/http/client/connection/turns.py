"""Whose turn it is to read on: streams that come faster than they are handled take turns, a few in each turn of the loop.

Each of them has brought a full piece, which is work for a millisecond. Three hundred of these in one turn of the loop would
keep everybody else waiting for theirs: a health check takes several turns, a call a dozen. It must not know HTTP. Invariant:
whoever asked is told to read on, in the order of asking, as long as the loop turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

MOST_PIECES = 8
"""Read in one turn of the loop, by all connections of the process together."""
LONG_TURN_S = 0.010
"""When a turn of the loop takes longer, fewer pieces fit into the next: their events are small, or the machine is busy."""


class TurnReader(Protocol):
    """A connection that has stopped reading."""

    def read_on(self) -> None: ...


class LoopTurns:
    """The readers that wait for their turn. For one event loop."""

    __slots__ = ("_began", "_is_counting", "_left", "_most", "_now", "_waiting")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._waiting: dict[TurnReader, None] = {}  # in the order of asking
        self._most = self._left = MOST_PIECES
        self._is_counting = False
        self._began = 0.0

    def ask(self, reader: TurnReader) -> None:
        """Call the reader's `read_on`: now, where this turn of the loop has room, else in a later one."""
        if not self._is_counting:
            self._is_counting = True
            self._began = self._now()
            asyncio.get_running_loop().call_soon(self._turn)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            reader.read_on()
        else:
            self._waiting[reader] = None

    def _turn(self) -> None:
        """Once in each turn of the loop, as long as anybody asks."""
        waiting, now = self._waiting, self._now()
        if not waiting and self._left == self._most:  # nobody has asked since the last time
            self._is_counting = False
            self._most = self._left = MOST_PIECES
            return
        self._most = max(1, self._most // 2) if now - self._began > LONG_TURN_S else min(MOST_PIECES, self._most + 1)
        self._began, self._left = now, self._most
        asyncio.get_running_loop().call_soon(self._turn)
        while waiting and self._left > 0:
            self._left -= 1
            reader = next(iter(waiting))
            del waiting[reader]
            reader.read_on()
