"""Counts the runs that were forgotten before their time, and says so in the log, once a minute at most."""

from __future__ import annotations

import logging
from math import inf

from gateway.features.runs.table.live.meter import RunMeter

TOLD_EVERY_S = 60.0
log = logging.getLogger("gateway.runs")


class LostRuns:
    """The runs of a process that were forgotten for want of room."""

    __slots__ = ("_are_shared", "_meter", "_most", "_number", "_told_at")

    def __init__(self, most: int, meter: RunMeter, *, are_shared: bool) -> None:
        """`most` is how many runs there is room for; those that `are_shared` are kept elsewhere, and not lost."""
        self._are_shared = are_shared
        self._meter = meter
        self._most = most
        self._number = 0
        """Of those, how many the log has not been told of."""
        self._told_at = -inf

    def note(self, number: int) -> None:
        """Adds runs that were forgotten just now."""
        if not self._are_shared:
            self._meter.runs_lost(number)
            self._number += number

    def tell(self, now: float) -> None:
        """Writes the line, if there is something to say and the last one is a minute old; `now` is wall-clock seconds."""
        if not self._number or now - self._told_at < TOLD_EVERY_S:
            return
        log.warning(
            "%d runs were forgotten early: this process has room for %d, and more were begun within a day. What they have "
            "added to the metrics stays; whoever asks for them finds none, and their fuses start anew. A Redis keeps them, "
            "and so does the store of jobs where they have steps.",
            self._number,
            self._most,
        )
        self._told_at, self._number = now, 0
