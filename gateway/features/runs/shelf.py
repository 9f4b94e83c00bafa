"""Where the runs of this process are, bounded: those in use as objects, those that are over packed into bytes.

It must not know how runs end. Invariants: at most `most` runs are there, but for those that have calls in flight; a run is
live or packed, never both.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import OrderedDict
from collections.abc import Container, Iterator
from typing import NamedTuple

from gateway.core.ports import KeptRuns
from gateway.features.runs.rules import RunRecord, RunsUnavailable, decode_run, encode_run, merged
from gateway.features.runs.table.live import LiveRun, LostRuns

MOST_RUNS = 20_000
KEEP_S = 86_400.0

RunKey = tuple[str, str]
"""Tenant and id."""
RunRank = tuple[int, str]
"""When a run was last changed, in wall-clock milliseconds, and its id: the greater one is listed first."""


class ArchivedRun(NamedTuple):
    """A run that is over."""

    at: float
    """When it was packed, in wall-clock seconds."""
    raw: bytes
    is_durable: bool
    """It is kept where its steps are: what is here is a copy."""
    changed_ms: int
    workflow: str


class RunCache:
    """The runs, the least recently used ones first to go."""

    def __init__(self, most: int, lost: LostRuns) -> None:
        """`lost` is told how many runs went before their time, those left out that are kept where their steps are."""
        self._most = most
        self._lost = lost
        self._live: OrderedDict[RunKey, LiveRun] = OrderedDict()
        self._packed: OrderedDict[RunKey, ArchivedRun] = OrderedDict()
        self._due: list[tuple[float, RunKey]] = []
        """When somebody has to look whether a run is over; once per watched run."""

    def __len__(self) -> int:
        return len(self._live) + len(self._packed)

    def live(self, key: RunKey) -> LiveRun:
        """Returns the run, made or unpacked where it has to be."""
        live = self._live.get(key)
        if live is None:
            packed = self._packed.pop(key, None)
            live = self._live[key] = LiveRun(*key, None if packed is None else decode_run(packed.raw))
            live.is_durable = packed is not None and packed.is_durable
            self._make_room()
        return live

    def find(self, key: RunKey) -> LiveRun | None:
        """Returns the run, where it is live."""
        return self._live.get(key)

    def used(self, key: RunKey, live: LiveRun) -> None:
        """Notes that the run was used just now."""
        self._live.setdefault(key, live)
        self._live.move_to_end(key)

    def record(self, key: RunKey) -> RunRecord | None:
        """Returns the run as it is known here; None: it is not."""
        packed = self._packed.get(key)
        if packed is not None:
            return decode_run(packed.raw)
        live = self._live.get(key)
        return None if live is None else live.record()

    def newest(
        self,
        tenant: str | None,
        most: int,
        below: RunRank | None,
        workflow: str | None,
        besides: Container[RunKey],
    ) -> Iterator[RunRecord]:
        """Yields the runs of a tenant, or of all, that were changed last, the last first; no others are unpacked.

        `besides` are those that are known already.
        """
        ranks: list[tuple[int, str, RunKey]] = []
        for runs in (self._live, self._packed):
            for key, one in runs.items():
                if (tenant is None or key[0] == tenant) and (workflow is None or one.workflow == workflow):
                    changed_ms = one.changed_ms
                    if changed_ms and (below is None or (changed_ms, key[1]) < below) and key not in besides:
                        ranks.append((changed_ms, key[1], key))
        for _, _, key in heapq.nlargest(most, ranks):
            record = self.record(key)
            if record is not None:
                yield record

    def pack(self, live: LiveRun, record: RunRecord, now: float) -> None:
        """Packs a run that is over, of which this is all; `now` is wall-clock seconds."""
        key = live.tenant, live.run
        if self._live.pop(key, None) is not None:
            self._packed[key] = ArchivedRun(
                now, encode_run(record), live.is_durable, record.so_far.last_ms, record.workflow
            )

    def forget(self, key: RunKey) -> bool:
        """Forgets a run; returns whether there was one."""
        was_live = self._live.pop(key, None) is not None
        return self._packed.pop(key, None) is not None or was_live

    def forget_old(self, now: float) -> None:
        """Forgets what was packed a day ago, and tells what went before; `now` is wall-clock seconds."""
        while self._packed and next(iter(self._packed.values())).at < now - KEEP_S:
            self._packed.popitem(last=False)
        self._lost.tell(now)

    def watch(self, live: LiveRun, until: float) -> None:
        """Has the run looked at again at that time, in wall-clock seconds, unless it is to be already."""
        if not live.is_watched:
            live.is_watched = True
            heapq.heappush(self._due, (until, (live.tenant, live.run)))

    def take_due(self, now: float) -> Iterator[LiveRun]:
        """Yields the live runs that have to be looked at by now; they are watched no longer."""
        while self._due and self._due[0][0] <= now:
            live = self._live.get(heapq.heappop(self._due)[1])
            if live is not None:
                live.is_watched = False
                yield live

    def _make_room(self) -> None:
        while len(self) > self._most:
            if self._packed:
                is_durable = self._packed.popitem(last=False)[1].is_durable
            else:
                key = next((key for key, live in self._live.items() if not live.in_flight), None)
                if key is None:
                    return
                is_durable = self._live.pop(key).is_durable
            if not is_durable:
                self._lost.note(1)


# Lists of runs, those that were changed last first, wherever they are.


AT_ONCE = 256
"""Runs that are unpacked before others have their turn."""
log = logging.getLogger("gateway.runs")


async def last_runs(
    shelf: RunCache,
    kept: KeptRuns | None,
    durable: KeptRuns | None,
    tenant: str | None,
    most: int,
    below: RunRank | None,
    workflow: str | None,
) -> list[RunRecord]:
    """Returns the runs of a tenant, or of all, that were changed last, the last first; each once.

    With `below` those behind this place, with `workflow` those of one. What is read for a list: of the runs in memory those
    that are listed; of those that `kept` and `durable` have the last MOST_RUNS, wherever the list begins.
    """
    found: dict[RunKey, RunRecord] = {}
    is_all_here = kept is None
    for home in (kept, durable):
        if home is not None:
            try:
                for one in await home.last(tenant, MOST_RUNS):
                    found[one.tenant, one.run] = summed(found.get((one.tenant, one.run)), one) or one
            except RunsUnavailable:
                is_all_here = True
                log.info("runs that others keep cannot be read now: those known here are shown")
    if is_all_here:
        here = shelf.newest(tenant, most, below, workflow, set(found))
        for number, one in enumerate(here, 1):
            found[one.tenant, one.run] = one
            if not number % AT_ONCE:
                await asyncio.sleep(0)
    wanted = (one for one in found.values() if workflow is None or one.workflow == workflow)
    ranked = ((one.so_far.last_ms, one.run, one.tenant, one) for one in wanted)
    return [one[-1] for one in heapq.nlargest(most, (rank for rank in ranked if below is None or rank[:2] < below))]


def summed(one: RunRecord | None, other: RunRecord | None) -> RunRecord | None:
    """Returns what two homes have of a run, together."""
    return one or other if one is None or other is None else merged(one, other.so_far)
