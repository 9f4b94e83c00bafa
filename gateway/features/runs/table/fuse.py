"""The fuse of runs: a run that has cost, or called, as much as its workflow allows makes no further calls.

admit (reserve what the call may cost) -> … -> settled (what it has cost)
"""

from __future__ import annotations

from gateway.core.call import Call
from gateway.core.ledger import CostEstimates
from gateway.features.runs.rules import PER_USD, RunBudgetExceeded, RunBudgetReserved, RunPart, WorkflowRules, units
from gateway.features.runs.table.live import LiveRun
from gateway.features.runs.table.table import RunTable

COME_BACK_S = 2.0
"""The seconds after which a run's calls in flight may have left some of its money."""


class RunBudget:
    """Lets calls into their runs."""

    __slots__ = ("_costs", "table")

    def __init__(self, table: RunTable, costs: CostEstimates) -> None:
        self.table = table
        self._costs = costs

    def lets_in(self, call: Call, part: RunPart) -> bool:
        """Lets a call into a run that has no fuse; returns whether it did: of all others `admit` has to be asked."""
        if part.rules is not None and part.rules.has_fuse:
            return False
        self.table.enter(call.tenant, part)
        return True

    async def admit(self, call: Call, part: RunPart) -> None:
        """Lets a call into its run. Raises RunBudgetExceeded where that has had enough.

        A run is only over its money by what one call is estimated to cost, however many are made side by side: each is
        let in only while what was spent, and what the others have reserved, is below it.
        """
        rules = part.rules
        if rules is None:
            self.table.enter(call.tenant, part)
            return
        _check(await self.table.known(call.tenant, part), part, rules)
        if rules.usd_per_run is not None and rules.reserves:
            part.reserved = units(self._costs.price(call, rules.usd_per_run).most)
        self.table.enter(call.tenant, part).reserved += part.reserved


def _check(live: LiveRun, part: RunPart, rules: WorkflowRules) -> None:
    run, name = part.run, rules.name
    if rules.max_calls_per_run is not None and live.calls >= rules.max_calls_per_run:
        raise RunBudgetExceeded(
            f"The run '{run}' has made {live.calls} calls, all that its workflow '{name}' allows (max_calls_per_run); "
            "begin another run, or raise it."
        )
    if rules.usd_per_run is None:
        return
    if live.spent >= units(rules.usd_per_run):
        raise RunBudgetExceeded(
            f"The run '{run}' has cost ${live.spent / PER_USD:.4g} of the ${rules.usd_per_run:g} that its workflow '{name}' "
            "allows (usd_per_run); begin another run, or raise it."
        )
    if live.spent + live.reserved >= units(rules.usd_per_run):
        raise RunBudgetReserved(
            f"What the run '{run}' may still spend of its ${rules.usd_per_run:g} (usd_per_run of '{name}') is reserved by its "
            "calls in flight; try again when they have ended.",
            retry_after_s=COME_BACK_S,
        )
