"""Runs: counted where calls settle, once, whoever settles them; and stopped where they have had enough."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.call import Call, CallRecord
from gateway.core.errors import InvalidRequest
from gateway.core.metrics import Metrics
from gateway.core.retry import Attempt
from gateway.core.snapshot import Key, with_settings
from gateway.core.telemetry import CallCounter
from gateway.core.types import Usage
from gateway.features.run_port import RunWords
from gateway.features.runs.http import WorkflowStats
from gateway.features.runs.metrics import MOST_UNKNOWN, RunCounter
from gateway.features.runs.rules import (
    KEY_WORKFLOW,
    MOST_TASKS,
    RunBudgetExceeded,
    RunBudgetReserved,
    RunChange,
    RunOutcome,
    RunPart,
    RunRecord,
    RunsUnavailable,
    StepRequest,
    WorkflowRules,
    begun,
    decode_run,
    encode_run,
    label_change,
    merged,
    units,
)
from gateway.features.runs.step import (
    MOST_NAMES,
    PART,
    RUN,
    STEP,
    TASK,
    WORKFLOW,
    Close,
    RunParts,
    nobody_waits,
    part_of,
    run_words,
)
from gateway.features.runs.table import DurableRuns, RunBudget, RunTable
from tests.support.flow import Bench, FakeClock, ScriptedUpstream, failed, whole
from tests.support.memory_store.store import MemoryJobStore
from tests.support.targets import target_named

INVOICE = WorkflowRules("invoice", ("extract", "check", "summarise"))
KEY = Key("web", "web", b"")
CALL_USD = 1000 * 2e-6 + 10 * 8e-6
"""What the scripted answer costs."""


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


@dataclass
class SharedRuns:
    """What replicas share, in memory."""

    runs: dict[tuple[str, str], RunRecord] = field(default_factory=dict)
    is_gone: bool = False

    async def merge(
        self,
        tenant: str,
        run: str,
        change: RunChange | None,
        close: Close,
        written: Callable[[], None] = nobody_waits,
    ) -> tuple[RunRecord, RunRecord] | None:
        await asyncio.sleep(0)
        if self.is_gone:
            raise RunsUnavailable("gone")
        record = self.runs.get((tenant, run))
        if change is not None:
            record = begun(tenant, run, change) if record is None else merged(record, change)
        if record is None:
            return None
        after = self.runs[tenant, run] = close(record) or record
        return record, after

    async def get(self, tenant: str, run: str) -> RunRecord | None:
        if self.is_gone:
            raise RunsUnavailable("gone")
        return self.runs.get((tenant, run))

    async def forget(self, tenant: str, run: str) -> bool:
        return self.runs.pop((tenant, run), None) is not None

    async def last(self, tenant: str | None, most: int) -> Sequence[RunRecord]:
        return [one for one in self.runs.values() if tenant in (None, one.tenant)][:most]


def its_part(call: Call) -> RunPart:
    """The part of a run that the call is."""
    part = PART.find(call)
    assert part is not None
    return part


class Town:
    """Replicas that settle calls, with one meter for all."""

    def __init__(self, replicas: int = 1, *workflows: WorkflowRules, kept: SharedRuns | None = None) -> None:
        self.bench = Bench([ScriptedUpstream()])
        self.clock: FakeClock = self.bench.clock
        self.workflows = {one.name: one for one in workflows}
        self.counter = self.metrics = RunCounter()
        self.tables = [RunTable(self.clock, lambda: self.workflows, self.counter, kept) for _ in range(replicas)]

    def call(self, run: str, task: str, workflow: str = "invoice", **changes: Any) -> Call:
        part = part_of(RunWords(workflow, run, task), self.workflows)
        return self.bench.call(part=part, **changes)

    def settle(self, call: Call, outcome: str = "ok", usd: float = 0.01, bad: int = 0, replica: int = 0) -> None:
        call.attempts = [Attempt(target_named("p"), 0.0, error_class="timeout") for _ in range(bad)]
        if outcome == "ok":
            call.attempts.append(Attempt(target_named("p"), 0.0))
        call.usage = Usage(10, 5)
        self.tables[replica].settled(call, outcome, usd if outcome == "ok" else None, 0.001 * bad)
        account = CallRecord(call, 200, outcome, call.usage, usd if outcome == "ok" else None, 0.0, 1.0, 0.0, None)
        self.counter.count(account)

    async def tick(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        for table in self.tables:
            await table.tick()


@pytest.mark.parametrize(
    ("replicas", "runs"),
    [
        (1, 600),
        (4, 600),
        pytest.param(4, 10_000, marks=pytest.mark.soak),
        pytest.param(1, 10_000, marks=pytest.mark.soak),
    ],
)
def test_runs_are_counted_exactly_over_any_number_of_replicas(replicas: int, runs: int) -> None:
    """Sum of tasks = sum of the log = sum of the metric, to 1e-9; every outcome as the ledger has it, each run once."""
    draw = random.Random(7)
    town = Town(replicas, INVOICE, kept=SharedRuns() if replicas > 1 else None)
    ledger: Counter[str] = Counter()
    logged: list[float] = []

    def call(run: str, task: str, *, is_ok: bool) -> None:
        usd = draw.choice((0.00015, 0.0123456, 1.25e-06, 0.1 + 0.2))
        bad = draw.choice((0, 0, 1)) if is_ok else 2
        town.settle(town.call(run, task), "ok" if is_ok else "timeout", usd, bad, draw.randrange(replicas))
        logged.append(usd if is_ok else 0.0)

    async def story() -> None:
        for number in range(runs):
            run, fate = f"r{number}", draw.random()
            call(run, "extract", is_ok=True)
            if fate < 0.8:
                if fate < 0.3:
                    call(run, "check", is_ok=False)  # repaired by the next one
                call(run, "check", is_ok=True)
                call(run, "summarise", is_ok=True)
                ledger["succeeded"] += 1
            elif fate < 0.9:
                call(run, "check", is_ok=False)
                ledger["failed"] += 1
            else:
                ledger["abandoned"] += 1
            if number % 200 == 199:
                await town.tick(0.001)
        for _ in range(3):
            await town.tick(301)
        ladder = WorkflowStats()
        for record in await town.tables[0].last():
            ladder.add(record, town.tables[0].outcome(record))
        assert {str(outcome): number for outcome, number in ladder.runs.items()} == ledger
        ended = {labels[1]: total for labels, total in town.metrics.workflow_runs.totals.items()}
        assert ended == ledger
        counted = sum(town.metrics.workflow_cost.totals.values())
        assert ladder.total.cost_usd == pytest.approx(sum(logged), abs=1e-9)
        assert counted == pytest.approx(sum(logged), abs=1e-9)
        assert ladder.total.calls == len(logged) == sum(town.metrics.workflow_calls.totals.values())
        assert not town.metrics.workflow_corrected.totals

    run(story())


@pytest.mark.parametrize("names", [500, pytest.param(100_000, marks=pytest.mark.soak)])
def test_however_many_names_there_are_one_series_more_than_declared_and_bounded_memory(names: int) -> None:
    town = Town(1, INVOICE)
    parts, table = RunParts(town.workflows), RunTable(town.clock, lambda: town.workflows, town.counter, most=600)
    town.tables = [table]

    def index(workflow: str, task: str, run: str) -> dict[bytes, bytes]:
        return {WORKFLOW: workflow.encode(), TASK: task.encode(), RUN: run.encode()}

    async def story() -> None:
        for number in range(names):
            for said in (
                index(f"w{number}", "extract", f"r{number}"),
                index("invoice", f"t{number}", f"s{number}"),
                index("invoice", f"t{number}", "one-run-of-all"),
            ):
                part = parts.find(KEY, said, None)
                assert part is not None
                call = town.bench.call(part=part)
                table.enter(call.request.tenant, part)
                town.settle(call)
            if not number % 200:
                await town.tick()
        await town.tick(301)

    run(story())
    assert set(town.metrics.workflow_calls.totals) == {("other", "other", "ok"), ("invoice", "other", "ok")}
    assert town.metrics.workflow_unknown.values[()] == min(2 * names, MOST_UNKNOWN)
    assert {labels[0] for labels in town.metrics.workflow_runs.totals} <= {"invoice", "other"}
    assert len(table) <= 600
    assert parts.remembered() <= 2 * MOST_NAMES
    record = asyncio.run(table.get("web", "one-run-of-all"))
    assert record is not None
    assert len(record.so_far.tasks) <= MOST_TASKS


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "invoice"]),
            st.dictionaries(
                st.sampled_from([WORKFLOW, RUN, TASK, STEP]),
                st.sampled_from([b"invoice", b"extract", b"extract[3]", b"a/b", b"\xff", b""]),
            ),
        ),
        max_size=8,
    )
)
def test_a_part_that_was_read_before_is_as_one_that_is_read_anew(calls: list[tuple[str, dict[bytes, bytes]]]) -> None:
    workflows = {"invoice": INVOICE}
    parts = RunParts(workflows)
    for fixed, index in calls:
        for _ in range(2):
            try:
                anew: RunPart | str | None = part_of(run_words(index), workflows, fixed)
            except InvalidRequest as refused:
                anew = str(refused)
            try:
                found: RunPart | str | None = parts.find(with_settings(KEY, {KEY_WORKFLOW: fixed}), index, None)
            except InvalidRequest as refused:
                found = str(refused)
            assert found == anew
            if isinstance(found, RunPart):
                found.is_in = found.is_durable = True  # a call's own


def test_a_run_that_waits_for_an_answer_is_not_idle() -> None:
    town = Town(1, INVOICE)
    table = town.tables[0]

    async def story() -> None:
        first, second = town.call("r", "extract"), town.call("r", "check")
        town.settle(first)
        table.enter("web", its_part(second))
        await town.tick()
        await town.tick(3600)
        assert not town.metrics.workflow_runs.totals
        town.settle(second, "timeout")
        await town.tick(200)
        assert not town.metrics.workflow_runs.totals
        await town.tick(200)
        assert dict(town.metrics.workflow_runs.totals) == {("invoice", "failed"): 1}

    run(story())


def test_a_later_word_is_a_correction_and_a_run_is_forgotten_after_a_day() -> None:
    town = Town(1, INVOICE)
    table = town.tables[0]

    async def story() -> None:
        town.settle(town.call("r", "summarise"), bad=1)
        await town.tick()
        assert dict(town.metrics.workflow_runs.totals) == {("invoice", "succeeded"): 1}
        assert dict(town.metrics.workflow_rescued.totals) == {("invoice",): 1}
        await town.tick(400)
        for outcome in ("failed", "failed"):
            record = await table.label("web", "r", label_change(town.clock.wall(), outcome=outcome))
            assert record is not None
            assert table.outcome(record) is RunOutcome.FAILED
        assert await table.label("other", "r", label_change(town.clock.wall(), outcome="failed")) is None
        assert dict(town.metrics.workflow_corrected.totals) == {("invoice", "succeeded", "failed"): 1}
        assert dict(town.metrics.workflow_used.totals) == {("invoice", "false"): 1}
        assert dict(town.metrics.success.totals) == {
            ("task", "true"): 1,
            ("workflow", "true"): 1,
            ("business", "false"): 1,
        }
        await town.tick(400)
        await town.tick(86_401)
        assert len(table) == 0

    run(story())


def test_the_table_is_bounded_and_says_what_it_forgets() -> None:
    town = Town(1, INVOICE)
    table = RunTable(town.clock, lambda: town.workflows, town.counter, most=100)

    async def story() -> None:
        for number in range(250):
            town.tables = [table]
            town.settle(town.call(f"r{number}", "summarise"))
            if number == 120:
                await town.tick(400)
        assert len(table) == 100
        assert town.metrics.workflow_lost.totals[()] == 150
        assert [one.run for one in await table.last("web", 3)] == ["r249", "r248", "r247"]

    run(story())


def test_a_run_whose_call_is_under_way_is_running_however_long_that_takes() -> None:
    """As it is shown, and as it is counted; when the call has ended, it may be idle."""
    town = Town(1, INVOICE)
    table = town.tables[0]

    async def story() -> None:
        town.settle(town.call("r", "extract"))
        slow = town.call("r", "check")
        table.enter("web", its_part(slow))
        await town.tick(1000)
        assert await outcome() is RunOutcome.RUNNING
        town.settle(slow)
        assert await outcome() is RunOutcome.RUNNING
        await town.tick(1000)
        assert await outcome() is RunOutcome.ABANDONED
        assert dict(town.metrics.workflow_runs.totals) == {("invoice", "abandoned"): 1}

    async def outcome() -> RunOutcome:
        record = await table.get("web", "r")
        assert record is not None
        return table.outcome(record)

    run(story())


def test_a_page_of_runs_unpacks_no_more_than_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page all runs come, each once, those that were changed last first, in use or over, at the same time or not."""
    town = Town(1, INVOICE)
    table, unpacked = town.tables[0], 0

    def decode(raw: bytes) -> RunRecord:
        nonlocal unpacked
        unpacked += 1
        return decode_run(raw)

    monkeypatch.setattr("gateway.features.runs.cache.decode_run", decode)

    async def story() -> None:
        for number in range(300):
            town.settle(town.call(f"r{number}", "summarise", "invoice" if number % 3 else "other"))
            if not number % 50:
                await town.tick(400)
        town.settle(town.call("r7", "summarise"))
        town.settle(town.call("of-another", "summarise", tenant="other"))
        whole = await table.last("web")
        assert len(whole) == 300
        for workflow, wanted in (
            (None, whole),
            ("invoice", [one for one in whole if one.workflow == "invoice"]),
        ):
            below, paged = None, list[RunRecord]()
            while page := await page_of(below, workflow):
                paged += page
                below = page[-1].so_far.last_ms, page[-1].run
            assert [one.run for one in paged] == [one.run for one in wanted]
        ranks = [(one.so_far.last_ms, one.run) for one in whole]
        assert ranks == sorted(ranks, reverse=True)

    async def page_of(below: tuple[int, str] | None, workflow: str | None) -> list[RunRecord]:
        nonlocal unpacked
        unpacked = 0
        page = await table.last("web", 20, below, workflow)
        assert unpacked <= 20
        return page

    run(story())


def test_runs_that_are_forgotten_early_are_a_line_in_the_log_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    town = Town(1, INVOICE)
    town.tables = [RunTable(town.clock, lambda: town.workflows, town.counter, most=10)]

    async def story() -> None:
        for second in range(90):
            for number in range(10):
                town.settle(town.call(f"r{second}-{number}", "extract"))
            await town.tick()

    run(story())
    lines = [one.getMessage() for one in caplog.records if one.name == "gateway.runs"]
    assert [line.partition(":")[0] for line in lines] == [
        "10 runs were forgotten early",  # in the second second; in the first there was room
        "600 runs were forgotten early",
    ]
    assert "room for 10" in lines[0]


def test_runs_that_are_kept_elsewhere_are_not_lost_with_the_room_here(caplog: pytest.LogCaptureFixture) -> None:
    """They come back as they were, and nobody is warned."""
    town = Town(1, INVOICE)
    shared = RunTable(town.clock, lambda: town.workflows, town.counter, SharedRuns(), most=10)
    beside_steps = RunTable(town.clock, lambda: town.workflows, town.counter, most=10)
    store = MemoryJobStore(town.clock.wall)

    async def opened() -> MemoryJobStore:
        return store

    beside_steps.durable = DurableRuns(opened, opened)

    async def story(table: RunTable) -> None:
        town.tables = [table]
        for number in range(30):
            call = town.call(f"r{number}", "extract")
            its_part(call).is_durable = table is beside_steps
            town.settle(call)
            await town.tick()
        first = await table.get("web", "r0")
        assert len(table) == 10
        assert first is not None
        assert first.so_far.total.calls == 1

    run(story(shared))
    run(story(beside_steps))
    assert not town.metrics.workflow_lost.totals.get((), 0)
    assert not caplog.records


def test_what_the_store_has_missed_is_added_once_when_it_is_back() -> None:
    kept = SharedRuns()
    town = Town(2, INVOICE, kept=kept)

    async def story() -> None:
        town.settle(town.call("r", "extract"))
        await town.tick()
        kept.is_gone = True
        for _ in range(3):
            town.settle(town.call("r", "check"), replica=1)
            await town.tick()
        found = await town.tables[1].get("web", "r")
        assert found is not None
        assert found.so_far.total.calls == 3, "what is known here"
        kept.is_gone = False
        await town.tick()
        await town.tick()
        for table in town.tables:
            found = await table.get("web", "r")
            assert found is not None
            assert found.so_far.total.calls == 4
        assert await town.tables[0].forget("web", "r")
        assert await town.tables[1].get("web", "r") is None

    run(story())


# The fuse.


def bench_with(rules: WorkflowRules, calls: int) -> tuple[Bench, RunTable]:
    bench = Bench([ScriptedUpstream(*[whole()] * calls)])
    table = RunTable(bench.clock, lambda: {rules.name: rules})
    assert bench.store is not None
    bench.build(runs=table)
    return bench, table


def part_in(rules: WorkflowRules, run: str = "r", task: str = "extract") -> Any:
    return part_of(RunWords(rules.name, run, task), {rules.name: rules})


def test_a_run_that_has_cost_enough_makes_no_further_call() -> None:
    rules = WorkflowRules("invoice", usd_per_run=2.5 * CALL_USD)
    bench, table = bench_with(rules, 4)

    async def story() -> None:
        for _ in range(3):
            await bench.serve(part=part_in(rules))
        with pytest.raises(RunBudgetExceeded, match=r"'r' has cost .*usd_per_run") as refused:
            await bench.serve(part=part_in(rules))
        assert refused.value.should_retry is False
        assert refused.value.code == "run_budget_exceeded"
        await bench.serve(part=part_in(rules, "another"))
        record = await table.get("web", "r")
        assert record is not None
        assert record.so_far.total.cost_usd == pytest.approx(3 * CALL_USD, abs=1e-12)
        assert (record.so_far.total.calls, record.so_far.total.bad_calls) == (4, 1)

    run(story())
    assert len(bench.upstreams[0].sent) == 4
    assert [account.outcome for account in bench.meter.accounts] == [*["ok"] * 3, "run_budget_exceeded", "ok"]


def test_calls_side_by_side_overshoot_by_one_estimate_at_most() -> None:
    rules = WorkflowRules("invoice", usd_per_run=2.5 * CALL_USD)
    bench, table = bench_with(rules, 30)

    async def story() -> None:
        asked = [
            bench.serve(part=part_in(rules), max_tokens=10, body=b'{"m":"' + b"x " * 1000 + b'"}') for _ in range(30)
        ]
        seen = await asyncio.gather(*asked, return_exceptions=True)
        refused = [one for one in seen if isinstance(one, BaseException)]
        assert all(isinstance(one, RunBudgetReserved) and one.should_retry for one in refused)
        assert 0 < len(seen) - len(refused) <= 5
        record = await table.get("web", "r")
        assert record is not None
        assert record.so_far.total.cost_usd <= (2.5 + 2) * CALL_USD
        live = table._cache.find(("web", "r"))
        assert live is not None
        assert (live.reserved, live.in_flight) == (0, 0)

    run(story())


def test_a_run_that_has_called_enough_makes_no_further_call() -> None:
    rules = WorkflowRules("invoice", max_calls_per_run=2)
    bench, _ = bench_with(rules, 2)

    async def story() -> None:
        await bench.serve(part=part_in(rules))
        await bench.serve(part=part_in(rules))
        with pytest.raises(RunBudgetExceeded, match="max_calls_per_run"):
            await bench.serve(part=part_in(rules))

    run(story())


def test_replayed_steps_use_up_nothing_of_the_fuse() -> None:
    """A program that begins again, as often as it has to, comes through to the step that it has not made yet."""
    rules = WorkflowRules("invoice", max_calls_per_run=2)
    bench, table = bench_with(rules, 2)
    jobs = MemoryJobStore(bench.clock.wall)

    async def opened() -> MemoryJobStore:
        return jobs

    bench.steps.kept.open = opened

    async def ask(name: str) -> None:
        part = part_in(rules, task=name)
        part.step = StepRequest("r", name, reruns=False)
        await bench.serve(part=part)
        await table.tick()

    async def story() -> None:
        for _ in range(5):
            await ask("extract")
        await ask("check")
        with pytest.raises(RunBudgetExceeded, match="has made 2 calls"):
            await ask("summarise")
        record = await table.get("web", "r")
        assert record is not None
        total = record.so_far.total
        assert (total.calls, total.cached, total.replayed) == (7, 4, 4)
        assert decode_run(encode_run(record)) == record

    run(story())
    assert len(bench.upstreams[0].sent) == 2


def test_a_run_that_is_forgotten_under_way_begins_with_nothing_reserved() -> None:
    rules = WorkflowRules("invoice", usd_per_run=1.0)
    bench, table = bench_with(rules, 1)

    async def story() -> None:
        call = bench.call(part=part_in(rules), max_tokens=10)
        await RunBudget(table, bench.admission.costs).let_in(call)
        assert await table.forget("web", "r")
        table.settled(call, "ok", CALL_USD, 0.0)
        live = table._cache.find(("web", "r"))
        assert live is not None
        assert (live.reserved, live.in_flight) == (0, 0)

    run(story())


def test_the_last_word_holds_whatever_the_clock_does() -> None:
    """Said within the same millisecond, or after the clock was set back."""
    town = Town(1, INVOICE)
    table = town.tables[0]
    town.settle(town.call("r", "extract"))

    async def story() -> None:
        now = town.clock.wall()
        for at, outcome, usable in ((now, "succeeded", True), (now, "failed", False), (now - 3600, "succeeded", True)):
            record = await table.label("web", "r", label_change(at, outcome=outcome, usable=usable))
            assert record is not None
            assert table.outcome(record) == outcome
            assert record.so_far.usable is not None
            assert record.so_far.usable.word is usable

    run(story())


def test_failed_attempts_are_money_of_the_run_and_a_good_end_is_a_recovery() -> None:
    bench = Bench([ScriptedUpstream(failed()), ScriptedUpstream(whole())])
    table = RunTable(bench.clock, lambda: {"invoice": INVOICE})
    assert bench.store is not None
    bench.build(runs=table)
    metrics = Metrics()

    async def story() -> None:
        await bench.serve(part=part_in(INVOICE, task="summarise"))
        record = await table.get("web", "r")
        assert record is not None
        assert record.so_far.total.bad_attempts == 1
        assert record.so_far.total.attempts == 2
        assert table.outcome(record) is RunOutcome.SUCCEEDED

    run(story())
    CallCounter(metrics).count(bench.account)
    assert dict(metrics.recoveries.totals) == {("interactive", "true"): 1}


def test_what_was_paid_twice_after_a_kill_is_wasted() -> None:
    """Each lost try may have cost as much as the one that has come to an end; one that came to nothing tells nothing."""
    bench, table = bench_with(WorkflowRules("invoice"), 1)

    async def story() -> None:
        for outcome, usd in (("server_error", None), ("ok", CALL_USD)):
            part = part_in(WorkflowRules("invoice"))
            part.lost_tries = 2
            table.settled(bench.call(part=part), outcome, usd, 0.0)
        record = await table.get("web", "r")
        assert record is not None
        total = record.so_far.total
        assert (total.cost, total.wasted) == (units(CALL_USD), units(2 * CALL_USD))

    run(story())
