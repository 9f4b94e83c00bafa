"""The clocks of a running stream: its total time, and the guard against streams that drip.

A stream that has begun drips when, over a whole window of waiting for the provider, it brings fewer events than it must;
comments are no events, and time spent on a client that does not read is not the provider's. It must not know what an event
is. Invariant: between two looks one comparison with `look_at` is all there is to do.
"""

from __future__ import annotations

from gateway.core.types.exchange import Clocks


class StreamClock:
    """The clocks of one stream that begins at `now`, in monotonic seconds."""

    __slots__ = ("_clocks", "_ends_at", "_events", "_paused_s", "_since", "look_at")

    def __init__(self, clocks: Clocks, now: float) -> None:
        self._clocks = clocks
        self._ends_at = now + clocks.total_s
        self._begin(now, 0, 0.0)

    def look(self, now: float, events: int, paused_s: float) -> str | None:
        """Returns the reason to end the stream now; None: it goes on, and is to be looked at again at `look_at`.

        `events` and `paused_s`, the seconds spent on the client, count from the stream's start.
        """
        clocks = self._clocks
        if now > self._ends_at:
            return f"the answer took longer than the total of {clocks.total_s:g} s"
        left_s = clocks.drip_window_s - (now - self._since - (paused_s - self._paused_s))
        if left_s > 0:
            self.look_at = min(self._ends_at, now + left_s)
        elif events - self._events < clocks.least_events_per_s * clocks.drip_window_s:
            return (
                f"the answer drips: {events - self._events} events in {clocks.drip_window_s:g} s, "
                f"fewer than {clocks.least_events_per_s:g} a second"
            )
        else:
            self._begin(now, events, paused_s)
        return None

    def _begin(self, now: float, events: int, paused_s: float) -> None:
        """Starts a window."""
        self._since, self._events, self._paused_s = now, events, paused_s
        is_guarded = self._clocks.least_events_per_s > 0
        self.look_at = min(self._ends_at, now + self._clocks.drip_window_s) if is_guarded else self._ends_at
