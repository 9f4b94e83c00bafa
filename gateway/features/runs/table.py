"""The runs of this process: fed where calls settle, put together about once a second, bounded, in memory; and their budget.

    enter (a call begins) -> settled (it has ended) -> tick: put together, count what has ended, pack what is over

Where something keeps runs beyond the process, what was tallied here goes there, and what comes back is what all replicas have
added. Every change goes to one home: a run that got steps on its way is in two, and read as their sum. Invariants: a run is
counted once under an outcome, by whoever put that into its record; what was tallied is in exactly one of a run's tallies,
what it owes, and its base.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gateway.core.call import Call, CallFeature, CallRecord, CallRoute, Reply, Serve
from gateway.core.clock import Clock
from gateway.core.ledger import CostEstimates
from gateway.core.request_fields import METADATA
from gateway.drivers.durability import JobsUnavailable
from gateway.features.run_port import RunEnd, RunPort, RunWords, ServedLines
from gateway.features.runs.cache import MOST_RUNS, ActiveRun, LostRuns, RunCache, RunKey, RunRank
from gateway.features.runs.metrics import RunCounter
from gateway.features.runs.rules import (
    IDLE_S,
    KEY_WORKFLOW,
    OTHER,
    PER_USD,
    WORKFLOWS,
    RunBudgetExceeded,
    RunBudgetReserved,
    RunChange,
    RunOutcome,
    RunPart,
    RunRecord,
    RunsUnavailable,
    WorkflowRules,
    Workflows,
    count_once,
    end_change,
    lines_change,
    merged,
    outcome_of,
    units,
)
from gateway.features.runs.step import (
    BAGGAGE,
    HEADERS,
    PART,
    Close,
    DurableStore,
    RunParts,
    RunQuery,
    RunToChange,
    StepAbout,
    changed,
    nobody_waits,
    part_of,
    part_of_step,
    run_words,
    without_own_baggage,
)
from gateway.features.runs.store import RunStore

T = TypeVar("T")

AT_ONCE = 256
"""Runs that are put together before others have their turn."""
log = logging.getLogger("gateway.runs")


class RunTable:
    """The runs of one process. Every method is for the loop's thread."""

    def __init__(
        self,
        clock: Clock,
        workflows: Callable[[], Workflows],
        metrics: RunCounter | None = None,
        kept: RunStore | None = None,
        most: int = MOST_RUNS,
    ) -> None:
        """`clock` gives the wall time of records; `workflows` are those in force; `kept` is what all replicas share.

        `metrics` are those of several tables together; absent: its own.
        """
        self._clock = clock
        self._workflows = workflows
        self.metrics = RunCounter() if metrics is None else metrics
        self._cache = RunCache(most, LostRuns(most, self.metrics, are_shared=kept is not None))
        self._dirty: dict[RunKey, ActiveRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.kept = kept
        self.durable: DurableRuns | None = None
        """Where runs with steps or pipelines are, where there is such a place."""

    def __len__(self) -> int:
        return len(self._cache)

    def enter(self, tenant: str, part: RunPart) -> ActiveRun:
        """Returns the run of a call that begins now."""
        live = self._cache.live((tenant, part.run))
        if part.is_durable:
            self._make_durable(live)
        part.is_in = True
        live.in_flight += 1
        live.calls += 1
        live.workflow = part.workflow or live.workflow
        return live

    def settled(self, call: Call, outcome: str, cost_usd: float | None, wasted_usd: float) -> None:
        """Adds a call that has ended to its run."""
        part = PART.find(call)
        if part is None or not part.run:
            return
        live = self._cache.live(key := (call.request.tenant, part.run))
        if part.is_durable:  # a replayed step did not enter
            self._make_durable(live)
        if part.is_in:
            part.is_in = False
            if live.in_flight:
                live.in_flight -= 1
        at_ms = int(self._clock.wall() * 1000 + 0.5)
        if not live.first_ms:
            live.first_ms = at_ms - round((self._clock.monotonic() - call.request.received_at) * 1000)
        if part.lost_tries and cost_usd:  # each may have cost as much as the one that came to an end
            wasted_usd += part.lost_tries * cost_usd
        live.add(call, part, outcome, at_ms, cost_usd, wasted_usd)
        if part.outcome and (outcome == "ok" or part.outcome != RunOutcome.SUCCEEDED):
            live.take_outcome(RunOutcome(part.outcome), at_ms)
        if self._dirty.get(key) is not live or not live.is_watched:
            self._touch(live, is_put=part.step is not None)

    def add(self, tenant: str, run: str, change: RunChange, *, is_durable: bool = False) -> None:
        """Adds to a run what is no call, such as a replayed step."""
        live = self._cache.live((tenant, run))
        if is_durable:
            self._make_durable(live)
        live.owe(change)
        if change.workflow is not None:
            live.workflow = change.workflow.word
        self._touch(live)

    async def put(self, tenant: str, run: str) -> None:
        """Brings what was tallied of a run to whoever keeps it beyond the process, now; what is not taken is owed."""
        live = self._cache.find((tenant, run))
        if live is not None and self._home(live) is not None:
            await self._put_together(live)

    async def write_behind(self, tenant: str, run: str, write: Callable[[], Awaitable[T]]) -> T:
        """Implements `WriteBehindSum`. A kill between the two leaves the cost, which was paid, without what it was paid for.

        For the disk both wait together.
        """
        live = self._cache.find((tenant, run))
        if live is None or self._home(live) is None or not (live.has_more or live.is_on_its_way):
            return await write()
        written = asyncio.Event()

        async def put_first() -> None:
            try:
                await self._put_together(live, written.set)
            finally:
                written.set()

        async def then_write() -> T:
            await written.wait()
            return await write()

        _, result = await asyncio.gather(put_first(), then_write())
        return result

    async def known(self, tenant: str, part: RunPart) -> ActiveRun:
        """Returns the run of a call, with what other replicas have reported of it, where they can be asked."""
        live = self._cache.live((tenant, part.run))
        if part.is_durable:
            self._make_durable(live)
        home = self._home(live)
        if live.base is None and home is not None:
            try:
                found = await home.get(tenant, part.run)
            except RunsUnavailable:
                found = None
            if found is not None and live.base is None:
                live.learn(found)
        return live

    async def get(self, tenant: str, run: str) -> RunRecord | None:
        """Returns the run as far as it is known; None: it is not known."""
        await self.put(tenant, run)
        found: RunRecord | None = None
        is_all_here = self.kept is None
        for home in (self.durable, self.kept):
            if home is not None:
                try:
                    found = summed(found, await home.get(tenant, run))
                except RunsUnavailable:
                    is_all_here = True  # as far as it can be told
        return found if found is not None or not is_all_here else self._cache.record((tenant, run))

    async def label(self, tenant: str, run: str, change: RunChange) -> RunRecord | None:
        """Adds a caller's word to a run; returns it then. None: there is no such run."""
        found = await self.get(tenant, run)
        if found is None:
            return None
        live = self._cache.live((tenant, run))
        live.workflow = live.workflow or found.workflow  # no more of it: `found` has what is still tallied here
        if self.durable is not None and await self.durable.get(tenant, run) is not None:
            self._make_durable(live)
        live.owe(change.after(found.so_far))
        self._touch(live)
        await self._put_together(live)
        return await self.get(tenant, run)

    async def forget(self, tenant: str, run: str) -> bool:
        """Forgets a run; returns whether there was one. Raises RunsUnavailable."""
        was_there = self._cache.forget((tenant, run))
        self._dirty.pop((tenant, run), None)
        for home in (self.durable, self.kept):
            if home is not None:
                was_there = await home.forget(tenant, run) or was_there
        return was_there

    async def steps(self, tenant: str, run: str) -> Sequence[StepAbout]:
        """Returns the kept steps of a run. Raises RunsUnavailable."""
        return () if self.durable is None else await self.durable.steps(tenant, run)

    async def last(
        self,
        tenant: str | None = None,
        most: int = MOST_RUNS,
        below: RunRank | None = None,
        workflow: str | None = None,
    ) -> list[RunRecord]:
        """Returns the runs of a tenant, or of all, that were changed last, the last first, as `last_runs` does."""
        return await last_runs(self._cache, self.kept, self.durable, tenant, most, below, workflow)

    def outcome(self, record: RunRecord) -> RunOutcome:
        """Returns what has become of a run by now."""
        return self._outcome(self._cache.find((record.tenant, record.run)), record)

    async def tick(self) -> None:
        """Puts together what was tallied, counts the runs that have ended, packs and forgets; about once a second."""
        now = self._clock.wall()
        dirty, self._dirty = self._dirty, {}
        for live in self._cache.take_due(now):
            dirty[live.tenant, live.run] = live
        for number, live in enumerate(dirty.values(), 1):
            await self._put_together(live)
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        self._cache.forget_old(now)

    async def aclose(self) -> None:
        """Puts together what is left."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tick()

    def _make_durable(self, live: ActiveRun) -> None:
        if live.is_durable or self.durable is None:
            return
        if live.base is not None and self.kept is None:
            live.owe(live.base.so_far)  # it was nowhere else
        live.base, live.is_durable = None, True

    def _touch(self, live: ActiveRun, *, is_put: bool = False) -> None:
        """Has the run put together; at once, if it is new and no `put` of its step does so (`is_put`)."""
        key = live.tenant, live.run
        self._cache.used(key, live)
        self._dirty[key] = live
        if not live.is_watched:
            self._cache.watch(live, self._clock.wall() + self._patience_s(live))
            if live.base is None and not is_put and self._home(live) is not None:  # so that other replicas know of it
                task = asyncio.get_running_loop().create_task(self._put_together(live))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _patience_s(self, live: ActiveRun) -> float:
        """Returns after how many seconds without a call it is worth looking whether the run is over."""
        rules = self._workflows().get(live.workflow)
        if rules is None:
            return IDLE_S
        return rules.idle_s if rules.deadline_s is None else min(rules.idle_s, rules.deadline_s)

    def _home(self, live: ActiveRun) -> RunStore | None:
        return self.durable if live.is_durable else self.kept

    async def _put_together(self, live: ActiveRun, written: Callable[[], None] = nobody_waits) -> None:
        """Puts what was tallied into the run's record, counts it if it has ended, and packs it if it is over."""
        home = self._home(live)
        if home is not None:
            result = await self._merge(live, home, written)
        else:
            change = RunToChange(live.tenant, live.run, live.take_change(), partial(self._close, live))
            result = changed(live.base, change)
        if result is None:
            return
        before, after = result
        live.learn(after)
        self._count(before, after)
        # A run that is over is packed; one that may go on is looked at again.
        key = live.tenant, live.run
        if self._cache.find(key) is not live:
            return
        now, due = self._clock.wall(), after.so_far.last_ms / 1000 + self._patience_s(live)
        if due <= now and after.counted and not (live.in_flight or live.has_more):
            self._dirty.pop(key, None)
            self._cache.pack(live, after, now)
        else:
            self._cache.watch(live, max(due, now + 1.0))

    async def _merge(
        self, live: ActiveRun, home: RunStore, written: Callable[[], None]
    ) -> tuple[RunRecord, RunRecord] | None:
        """Brings what was tallied to whoever keeps it, one change of a run at a time; what is not taken is owed."""
        live.merging = live.merging or asyncio.Lock()
        async with live.merging:
            change = live.take_change()
            try:
                return await home.merge(live.tenant, live.run, change, partial(self._close, live), written)
            except RunsUnavailable as trouble:
                if change is not None and not trouble.is_kept:
                    live.owe(change)
                self._dirty[live.tenant, live.run] = live
                return None

    def _close(self, live: ActiveRun, record: RunRecord) -> RunRecord | None:
        return count_once(record, self._outcome(live, record))

    def _outcome(self, live: ActiveRun | None, record: RunRecord) -> RunOutcome:
        outcome = outcome_of(record, self._workflows().get(record.workflow), self._clock.wall())
        waits = live is not None and live.in_flight and record.so_far.outcome is None
        return RunOutcome.RUNNING if waits and outcome is not RunOutcome.SUCCEEDED else outcome

    def _count(self, before: RunRecord, after: RunRecord) -> None:
        workflow = after.workflow if after.workflow in self._workflows() else OTHER
        if after.counted != before.counted:
            self.metrics.run_ended(after, workflow, RunOutcome(after.counted), before.counted)
        if after.used != before.used:
            self.metrics.run_used(workflow, is_usable=after.used == "usable", is_first=not before.used)


RUNS_PER_PAGE = 500


class DurableRuns:
    """Implements `gateway.features.runs.store.RunStore`."""

    def __init__(
        self, store: Callable[[], Awaitable[DurableStore]], reader: Callable[[], Awaitable[DurableStore]]
    ) -> None:
        """`store` opens the store of jobs, `reader` what there is to look into; both raise JobsUnavailable."""
        self._store = store
        self._reader = reader

    async def merge(
        self,
        tenant: str,
        run: str,
        change: RunChange | None,
        close: Close,
        written: Callable[[], None] = nobody_waits,
    ) -> tuple[RunRecord, RunRecord] | None:
        with _runs_unavailable():
            (result,) = await (await self._store()).runs.change([RunToChange(tenant, run, change, close, written)])
        return result

    async def get(self, tenant: str, run: str) -> RunRecord | None:
        with _runs_unavailable():
            found = await (await self._reader()).runs.find(tenant, run)
        return None if found is None else found[0].record

    async def forget(self, tenant: str, run: str) -> bool:
        with _runs_unavailable():
            return await (await self._reader()).runs.forget(tenant, run)

    async def last(self, tenant: str | None, most: int) -> Sequence[RunRecord]:
        found: list[RunRecord] = []
        after: tuple[str, str] | None = None
        with _runs_unavailable():
            runs = (await self._reader()).runs
            while len(found) < most:
                page = await runs.list_runs(RunQuery(tenant, min(RUNS_PER_PAGE, most - len(found)), after))
                found += [run.record for run in page.runs]
                if not page.has_more:
                    break
                after = found[-1].tenant, found[-1].run
        return found

    async def steps(self, tenant: str, run: str) -> Sequence[StepAbout]:
        """Returns the steps of a run, in the order in which they were kept. Raises RunsUnavailable."""
        with _runs_unavailable():
            found = await (await self._reader()).runs.find(tenant, run)
        return () if found is None else found[1]


@contextmanager
def _runs_unavailable() -> Iterator[None]:
    try:
        yield
    except JobsUnavailable as trouble:
        raise RunsUnavailable(
            "Runs with steps cannot be read or changed now; the log of the gateway says why."
        ) from trouble


async def last_runs(
    cache: RunCache,
    kept: RunStore | None,
    durable: RunStore | None,
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
        here = cache.newest(tenant, most, below, workflow, set(found))
        for number, one in enumerate(here, 1):
            found[one.tenant, one.run] = one
            if not number % AT_ONCE:
                await asyncio.sleep(0)
    wanted = (one for one in found.values() if workflow is None or one.workflow == workflow)
    ranked = ((one.so_far.last_ms, one.run, one.tenant, one) for one in wanted)
    return [one[-1] for one in heapq.nlargest(most, (rank for rank in ranked if below is None or rank[:2] < below))]


def summed(one: RunRecord | None, other: RunRecord | None) -> RunRecord | None:
    return one or other if one is None or other is None else merged(one, other.so_far)


# --- runs as durable work has them ---


class RunsOfWork(RunPort):
    """Implements `RunPort` with the runs of a process: what durable work adds is kept where it is."""

    def __init__(self, table: RunTable) -> None:
        self._table = table

    def read_words(self, headers: Mapping[bytes, bytes]) -> RunWords:
        return run_words(headers)

    def words_of(self, call: Call) -> RunWords | None:
        part = PART.find(call)
        return None if part is None else RunWords(part.workflow, part.run, part.task)

    def join(self, call: Call, words: RunWords, lost_tries: int) -> None:
        part = part_of(words, WORKFLOWS.of(call.route.policy), KEY_WORKFLOW.of(call.route.key))
        if part is not None:
            part.lost_tries, part.is_durable = lost_tries, True
            PART.put(call, part)

    def join_as_step(self, call: Call, words: RunWords, usd_per_run: float | None, lost_tries: int) -> None:
        part = part_of_step(words, WORKFLOWS.of(call.route.policy), usd_per_run)
        part.lost_tries, part.is_durable = lost_tries, True
        PART.put(call, part)

    def run_ended(self, tenant: str, run: str, end: RunEnd) -> None:
        self._table.add(tenant, run, end_change(end), is_durable=True)

    def lines_served(self, tenant: str, run: str, lines: ServedLines) -> None:
        self._table.add(tenant, run, lines_change(lines), is_durable=True)

    def write_behind(self, tenant: str, run: str, write: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        return self._table.write_behind(tenant, run, write)


# --- the budget of runs ---

COME_BACK_S = 2.0
"""The seconds after which a run's calls in flight may have left some of its money."""


class RunBudget(CallFeature):
    """Lets calls into their runs, and counts them there.

    A run that has cost, or called, as much as its workflow allows makes no further calls.

        read (of which run it is) -> admit (reserve what the call may cost) -> … -> closed (what it has cost)
    """

    __slots__ = ("_costs", "_parts", "metrics", "table")

    def __init__(self, table: RunTable, costs: CostEstimates) -> None:
        self.table = table
        self.metrics: RunCounter = table.metrics
        self._costs = costs
        self._parts = RunParts({})

    name = "workflows"
    options: frozenset[bytes] = HEADERS | {METADATA, BAGGAGE}

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for calls that may be parts of a run."""
        return self if KEY_WORKFLOW.of(route.key) or not requested.isdisjoint(self.options) else None

    def read(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        """Notes of which run the call is a part, where it says so. Raises InvalidRequest."""
        workflows, parsed = WORKFLOWS.of(call.route.policy), call.parsed
        if self._parts.workflows is not workflows:
            self._parts = RunParts(workflows)
        if BAGGAGE in headers:
            call.replace_request(replace(call.request, headers=without_own_baggage(call.request.headers)), parsed)
        part = self._parts.find(call.route.key, headers, None if parsed is None else parsed.get("metadata"))
        if part is not None:
            PART.put(call, part)

    async def serve(self, call: Call, next: Serve) -> Reply:
        """Returns the reply to a call that its run has let in. Raises RunBudgetExceeded where the run has had enough."""
        await self.let_in(call)
        return await next(call)

    def closed(self, record: CallRecord) -> Mapping[str, object] | None:
        """Counts the call in its run; returns which part of which run it was."""
        part = PART.find(record.call)
        if part is None:
            return None
        self.table.settled(record.call, record.outcome, record.cost_usd, record.retries_usd)
        fields = {"workflow": part.workflow, "run": part.run, "task": part.task}
        return {name: value for name, value in fields.items() if value}

    async def let_in(self, call: Call) -> None:
        """Lets a call into its run, if it is a part of one. Raises RunBudgetExceeded where that has had enough.

        A run is only over its money by what one call is estimated to cost, however many are made side by side: each is
        let in only while what was spent, and what the others have reserved, is below it.
        """
        part = PART.find(call)
        if part is None or not part.run:
            return
        rules = part.rules
        if rules is None or not rules.has_budget:
            self.table.enter(call.request.tenant, part)
            return
        _check(await self.table.known(call.request.tenant, part), part, rules)
        if rules.usd_per_run is not None and rules.reserves:
            part.reserved = units(self._costs.price(call, rules.usd_per_run).most)
        self.table.enter(call.request.tenant, part).reserved += part.reserved


def _check(live: ActiveRun, part: RunPart, rules: WorkflowRules) -> None:
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
