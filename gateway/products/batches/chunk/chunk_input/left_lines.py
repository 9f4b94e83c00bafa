"""What a claim of a chunk leaves for another one: lines that failed for now, or for which there is no room for some time.

A line that is put off for longer than FAR_S does not wait in the chunk: what can start does not wait behind it. Once several
for one model are, none let through in between, the others for it stay where they are until the first of these may ask again.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.core.clock import Clock

FAR_S = 5.0
"""A line that has to wait longer leaves the chunk; one that may ask again sooner stays, and is not read again."""
ENOUGH = 8
"""Lines in a row for one model that are put off so: whatever keeps them out is not one line's size."""


class LeftLines:
    """The lines that one claim leaves without a result. Times are wall-clock seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[int, list[float]] = {}
        """By the number of their model, when lines may ask again that were put off since the last one was let through."""
        self.number = 0
        """Lines that were tried."""
        self.at: float | None = None
        """When the first of them may be tried again."""

    def leave(self, wait_s: float) -> None:
        """Leaves a line, which may be tried again so much later."""
        at = self._clock.wall() + wait_s
        self.number += 1
        self.at = at if self.at is None else min(at, self.at)

    def put_off(self, model: int, wait_s: float) -> None:
        """Leaves a line for which there is no room."""
        self.leave(wait_s)
        self._refused.setdefault(model, []).append(self._clock.wall() + wait_s)

    def let_through(self, model: int) -> None:
        """Notes that there was room for a line."""
        self._refused.pop(model, None)

    def leave_all_until(self, wait_s: float) -> None:
        """Leaves everything until so much later, and no longer."""
        self.at = self._clock.wall() + wait_s

    def models(self) -> Collection[int]:
        """Returns the numbers of the models for which there is no room now."""
        if not self._refused:
            return ()
        now = self._clock.wall()
        return [model for model, times in self._refused.items() if len(times) >= ENOUGH and min(times) > now]
