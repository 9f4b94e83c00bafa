"""Whether the peer of a session is still there: asked where it is silent, given up where it takes nothing."""

from __future__ import annotations

from gateway.core.types.exchange import Socket

PING_S = 20.0
STUCK_S = 60.0
"""A peer that has taken nothing for so long of what waits for it is taken to be gone."""


class Pulse:
    """One peer's signs of life."""

    __slots__ = ("_is_asked", "_since", "_stuck", "heard_at")

    def __init__(self, now: float) -> None:
        self._since = now  # it was heard, or asked
        self._is_asked = False  # and not heard since
        self._stuck: tuple[int, float] | None = None  # while it takes nothing: what waits for it, and since when
        self.heard_at = now

    def is_dead(self, end: Socket, now: float) -> bool:
        """Returns whether the peer has not answered a ping, or has taken nothing for too long; asks it where it is time to."""
        if not end.congested:
            self._stuck = None
        elif self._stuck is None or self._stuck[0] != end.unsent:  # a slow one takes some
            self._stuck = end.unsent, now
        elif now - self._stuck[1] > STUCK_S:
            return True
        if end.heard:
            self.heard_at = now
        if end.heard or end.reading_paused:
            end.heard = False
            self._since, self._is_asked = now, False
        elif now - self._since >= PING_S:
            if self._is_asked:
                return True
            self._since, self._is_asked = now, True
            end.ping()
        return False
