"""Lists of runs, those that were changed last first, wherever they are."""

from __future__ import annotations

import asyncio
import heapq
import logging

from gateway.core.ports import KeptRuns
from gateway.features.runs.rules.errors import RunsUnavailable
from gateway.features.runs.rules.run import RunRecord, merged
from gateway.features.runs.shelf.shelf import MOST_RUNS, RunKey, RunRank, RunShelf

AT_ONCE = 256
"""Runs that are unpacked before others have their turn."""
log = logging.getLogger("gateway.runs")


async def last_runs(
    shelf: RunShelf,
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
