"""What time it is at the server, without asking it: a local clock that only counts, and how far the server's is ahead.

Whatever the server says of its time was true before it was heard; so of several times heard the one that puts the server's
clock farthest ahead has travelled least. Invariant: never ahead of the server's own time, as long as that goes steadily; and
old sayings are forgotten, lest the two clocks drift apart.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

MEMORY_S = 30.0
"""A saying counts for so long, or twice as long."""


class ServerTime:
    """In seconds. `monotonic` is the local clock; what it shows means nothing, and it never goes back."""

    __slots__ = ("_ahead_s", "_before_s", "_monotonic", "_turned_at")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.forget()

    def forget(self) -> None:
        """It may be another server now."""
        self._ahead_s = self._before_s = -inf  # of the present span of time, and of the one before
        self._turned_at = self._monotonic()

    def heard(self, server_s: float) -> None:
        """The server has said what time it is."""
        here_s = self._monotonic()
        if here_s - self._turned_at >= MEMORY_S:
            is_recent = here_s - self._turned_at < 2 * MEMORY_S
            self._before_s = self._ahead_s if is_recent else -inf
            self._ahead_s, self._turned_at = -inf, here_s
        self._ahead_s = max(self._ahead_s, server_s - here_s)

    def now(self) -> float:
        """To be asked once something was heard."""
        return max(self._ahead_s, self._before_s) + self._monotonic()
