"""What is done beside the work for dead letters: they are counted for the metrics, and the old ones thrown away."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.core.clock import Clock
from gateway.products.jobs.calls.ports.ports import JobMeter
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store.jobs import JobStore

COUNT_S = 15.0
"""So often they are counted."""
TRIMS = 4
"""At one of so many counts the old ones are thrown away."""
AT_ONCE = 500
log = logging.getLogger("gateway.jobs")


class DeadLetterKeeping:
    """Counts and trims."""

    def __init__(self, store: JobStore, clock: Clock, rules: Callable[[], JobRules], meter: JobMeter | None) -> None:
        self._store = store
        self._clock = clock
        self._rules = rules
        self._meter = meter

    async def run_always(self) -> None:
        """Counts and trims until it is cancelled."""
        turn = 0
        while True:
            try:
                await self.count()
                if turn % TRIMS == TRIMS - 1:
                    await self.trim()
            except JobsUnavailable:  # the log says why
                pass
            except Exception:
                log.exception("dead letters could not be counted, or old ones thrown away")
            turn += 1
            await self._clock.sleep(COUNT_S)

    async def count(self) -> None:
        """Tells the meter how many there are, and since when. Raises JobsUnavailable."""
        if self._meter is not None:
            self._meter.dead(await self._store.dead.groups(0), self._clock.wall())

    async def trim(self) -> None:
        """Throws away letters beyond their age, and payloads beyond their bound. Raises JobsUnavailable."""
        rules = self._rules()
        before = self._clock.wall() - rules.keep_dead_s
        while await self._store.dead.trim(before, rules.dead_letters.max_bytes, AT_ONCE) == AT_ONCE:
            pass
