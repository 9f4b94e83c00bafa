"""Workflows whose program and gateway are killed: what is shown is so, what is promised is looked at, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.main import main
from gateway.demo.program import JournalEntry
from gateway.demo.record import (
    INPUT_USD,
    OUTPUT_USD,
    ProcessKill,
    RunsReported,
    Step,
    StepCall,
    WorkflowArm,
    broken_promises,
    step_call,
)
from gateway.demo.show import workflow_chart
from gateway.demo.workflow import WorkflowDemo, workflow_line, workflow_table
from tests.demo.test_chart import numbers

USD = 0.002
PAID, FAULTED, BROKEN, LEFT = (200, False), (500, False), (None, False), (None, True)


def arm(*, has_gateway: bool = True, runs: int = 2, steps: int = 2) -> WorkflowArm:
    return WorkflowArm("a way", runs, steps, has_gateway, began_at=100.0, ended_at=104.0)


def calls(*entries: tuple[float, Step, tuple[int | None, bool]]) -> list[StepCall]:
    return [StepCall(100.0 + at, step, *fate, USD) for at, step, fate in entries]


def journal(*entries: tuple[float, int, str, int | None]) -> list[JournalEntry]:
    return [JournalEntry(100.0 + at, run, what, 0, status) for at, run, what, status in entries]


def killed_arm() -> WorkflowArm:
    """Two runs of two steps: the gateway is killed when step 1 of run 1 is under way, then the program within run 0."""
    one = arm()
    one.journal = journal(
        *((0.0, 0, "begin", None), (0.1, 0, "answered", None), (0.1, 1, "begin", None), (0.2, 1, "answered", None)),
        *((1.0, 1, "failed", None), (1.2, 1, "begin", None), (1.2, 1, "failed", None), (2.3, 1, "begin", None)),
        *((2.4, 1, "replayed", None), (2.5, 1, "answered", None), (2.5, 1, "done", None)),
        *((3.5, 0, "begin", None), (3.6, 0, "replayed", None), (3.7, 0, "replayed", None), (3.7, 0, "done", None)),
    )
    before = calls((0.0, (0, 0), PAID), (0.1, (1, 0), FAULTED), (0.1, (1, 0), PAID), (0.9, (1, 1), LEFT))
    one.ledger = [*before, *calls((2.4, (1, 1), PAID), (2.9, (0, 1), PAID))]
    one.kills = [
        ProcessKill("gateway", 101.0, 102.0, 4, frozenset({(0, 0), (1, 0)})),
        ProcessKill("program", 103.0, 103.1),
    ]
    one.reported = RunsReported(2, 4 * USD)
    return one


def straight_arm() -> WorkflowArm:
    """Two runs of two steps, one of which failed at its second step and was begun again."""
    one = arm(has_gateway=False)
    one.journal = journal(
        *((0.0, 0, "begin", None), (0.1, 0, "answered", None), (0.2, 0, "failed", 500), (1.0, 0, "begin", None)),
        *((1.1, 0, "answered", None), (1.2, 0, "answered", None), (1.2, 0, "done", None)),
        *((0.0, 1, "begin", None), (0.1, 1, "answered", None), (0.2, 1, "answered", None), (0.2, 1, "done", None)),
    )
    one.ledger = calls(
        *((0.0, (0, 0), PAID), (0.0, (1, 0), PAID), (0.1, (0, 1), FAULTED), (0.1, (1, 1), PAID)),
        *((1.0, (0, 0), PAID), (1.1, (0, 1), PAID)),
    )
    return one


def test_what_is_paid_again_is_what_was_in_flight() -> None:
    """A step that was broken off by the kill of a gateway is paid twice, one that was kept never; faults cost nothing."""
    one = killed_arm()

    assert (one.finished, one.whole, one.failures, one.cut, one.replayed) == (2, 2, [], 2, 3)
    assert (one.paid.total(), one.repaid, one.in_flight, one.paid_though_kept, one.faults) == (5, 1, 1, 0, 1)
    assert (one.usd, one.usd_once, one.usd_per_run) == pytest.approx((5 * USD, 4 * USD, 2.5 * USD))
    assert broken_promises(straight_arm(), one) == []


def test_without_a_gateway_a_failed_step_costs_those_before_it() -> None:
    """By the provider's ledger."""
    one = straight_arm()

    assert (one.finished, one.whole, len(one.failures), one.cut, one.repaid) == (2, 1, 1, 0, 1)
    assert one.usd_per_run == pytest.approx(2.5 * USD)


def test_each_promise_is_looked_at() -> None:
    """A run that is not over, a step that failed, was paid for needlessly or not at all, and what the gateway says of it."""
    one = killed_arm()
    one.journal = [*one.journal[:-1], *journal((3.8, 1, "failed", 503))]
    one.ledger = [*one.ledger[:-1], *calls((3.0, (1, 0), PAID))]
    one.reported = RunsReported(1, 1.0)

    assert broken_promises(replace(straight_arm(), journal=[]), one) == [
        "0 runs straight to the provider were finished",
        "1 runs through the gateway were finished",
        "2 runs through the gateway met a step that failed",
        "the provider knows of 3 steps of 4",
        "2 steps were paid for again, but 1 were in flight at the kills",
        "1 calls were for steps that had been kept",
        "GET /v1/runs has 1 runs that succeeded",
        "GET /v1/runs has $1.0000, the ledger $0.0060 for each step once",
    ]


def test_a_step_that_was_kept_and_then_forgotten_is_paid_though_it_was_kept() -> None:
    """What one kill found kept counts after the next one, too."""
    one = arm(runs=1)
    one.ledger = calls((0.0, (0, 0), PAID), (0.1, (0, 0), PAID))
    one.kills = [ProcessKill("gateway", 100.0, 100.0, 1, frozenset({(0, 0)})), ProcessKill("gateway", 100.0, 100.0, 1)]

    assert one.paid_though_kept == 1


FATES = st.sampled_from([PAID, FAULTED, BROKEN, LEFT])
STEPS = st.tuples(st.integers(0, 2), st.integers(0, 1))


@given(st.lists(st.tuples(STEPS, FATES), max_size=30), st.lists(st.integers(0, 30), max_size=3), st.data())
def test_the_sums_of_any_ledger_add_up(
    entries: list[tuple[Step, tuple[int | None, bool]]], at: list[int], data: st.DataObject
) -> None:
    """Paid is once and again; the seconds add up to it; a gateway that keeps all it can leaves nothing in flight."""
    one = arm(runs=3)
    one.ledger = calls(*((number / 10, step, fate) for number, (step, fate) in enumerate(entries)))
    paid = [(number, call.step) for number, call in enumerate(one.ledger) if call.is_paid]
    for point in sorted(min(each, len(entries)) for each in at):
        whole = {step for number, step in paid if number < point}
        lost = data.draw(st.sets(st.sampled_from(sorted(whole)))) if whole else set()
        one.kills.append(ProcessKill("gateway", 100.0, 100.0, point, frozenset(whole - lost)))

    assert len(one.paid) + one.repaid == len(paid) == sum(map(sum, one.paid_by_second(4)))
    assert sum(again for _, again in one.paid_by_second(4)) == one.repaid
    assert one.usd == pytest.approx(len(paid) * USD)
    assert one.usd_once == pytest.approx(len(one.paid) * USD)
    assert one.faults == len(one.ledger) - len(paid)
    if not any(kill.kept != {step for number, step in paid if number < kill.calls} for kill in one.kills):
        assert one.in_flight == 0
    kept = [(call.step, kill) for kill in one.kills for call in one.ledger[kill.calls :] if call.step in kill.kept]
    assert (one.paid_though_kept > 0) == bool(kept)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["failed", "killed"])), max_size=12))
def test_any_walk_is_reckoned(walks: list[tuple[int, str]]) -> None:
    """Tries one after the other: those that failed are counted, those that a kill cut off are counted by themselves."""
    one, now = arm(runs=3), 0.0
    entries: list[tuple[float, int, str, int | None]] = []
    for run, end in [*walks, *((run, "done") for run in range(3))]:
        now += 1.0
        entries.append((now, run, "begin", None))
        if end == "killed":
            one.kills.append(ProcessKill("program", 100.5 + now, 100.6 + now))
        else:
            entries.append((now + 0.4, run, end, 500 if end == "failed" else None))
    one.journal = journal(*entries)

    failed = [run for run, end in walks if end == "failed"]
    assert (one.finished, one.whole) == (3, 3 - len(set(failed)))
    assert (len(one.failures), one.cut) == (len(failed), len(walks) - len(failed))


def test_the_ledger_is_read_from_what_the_emulator_recorded() -> None:
    """Which step, from the question; what it costs, from its tokens."""
    body = json.dumps({"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "41/7: 3/4: so"}]})
    recorded = {"mono_s": 5.0, "body": body, "status": 200, "left": False, "tokens": {"input": 100, "output": 10}}

    assert step_call(recorded) == StepCall(5.0, (41, 7), 200, False, 100 * INPUT_USD + 10 * OUTPUT_USD)
    assert step_call({**recorded, "tokens": None}).usd == 0.0


def test_the_table_has_both_ways() -> None:
    """With a dash for what there is none of without a gateway."""
    shown = [line.split("  ") for line in workflow_table([straight_arm(), killed_arm()]).splitlines()]
    found = {next(part.strip() for part in line if part): [part.strip() for part in line if part][1:] for line in shown}

    assert found["no step of theirs failed"] == ["1 (50 %)", "2 (100 %)"]
    assert found["steps paid"] == ["5 of 4", "5 of 4"]
    assert found["paid again"] == ["1", "1"]
    assert found["in flight at the gateway's kills"] == ["-", "1"]
    assert found["steps replayed by the gateway"] == ["-", "3"]
    assert found["$ a run, by the provider's ledger"] == ["0.0050", "0.0050"]
    assert found["by GET /v1/runs"] == ["-", "0.0040"]


def test_the_chart_has_what_was_paid_and_the_kills() -> None:
    """Paid again on top; the time without a gateway is shaded."""
    chart = workflow_chart([straight_arm(), killed_arm()])

    again = numbers(chart, "rect", "failed", "height")
    assert len(again) == 2
    assert again[0] == pytest.approx(again[1])
    assert len(numbers(chart, "rect", "act", "width")) == 1
    assert chart.count("kill -9") == 3


def test_the_line_of_progress_fits() -> None:
    """Before a way begins, in a narrow terminal, and at its end."""
    demo, one = WorkflowDemo(runs=2, kills=1), killed_arm()
    one.finished_so_far = 2

    assert workflow_line(demo, replace(one, began_at=0.0), 0.0, 80, "#x.", False).endswith("getting ready ...")
    assert len(workflow_line(demo, one, 101.0, 30, "#x.", False)) < 30
    assert "#" * 30 + "     2 of 2 runs  2 of 2 kills    4.0 s" in workflow_line(demo, one, 101.0, 200, "#x.", False)


def test_the_kills_follow_from_the_seed() -> None:
    """In turns and in order, each in its part of the answers."""
    points = [WorkflowDemo(kills=2, seed=seed).kill_points() for seed in (1, 1, 2)]

    assert points[0] == points[1] != points[2]
    assert [whom for whom, _ in points[0]] == ["program", "gateway", "program", "gateway"]
    assert all(abs(point - 800 * (number + 1)) <= 240 for number, (_, point) in enumerate(points[0]))


def test_more_kills_than_runs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """There would be nothing to kill."""
    assert main(["demo", "--workflow", "--runs", "15", "--kills", "2"]) == 2
    assert "at least 20 runs" in capsys.readouterr().err


def test_runs_survive_their_kills_and_leave_nothing(tmp_path: Path) -> None:
    """The command itself, in small: promises kept, by the provider's ledger and by GET /v1/runs, and its folders gone."""
    ran = _demo(tmp_path, "--runs", "12", "--kills", "1", "--json")
    output, errors = ran.communicate(timeout=120)
    figures = json.loads(output)

    assert (ran.returncode, figures["broken_promises"]) == (0, []), errors
    straight, through = figures["ways"]
    assert straight["finished"] == through["finished"] == through["without_a_failed_step"] == 12
    assert (straight["kills"], through["kills"]) == ({"program": 1, "gateway": 0}, {"program": 1, "gateway": 1})
    assert through["provider"]["steps_paid"] == 120 + through["provider"]["repaid"]
    assert through["provider"]["repaid"] <= through["provider"]["in_flight_at_gateway_kills"]
    assert through["replayed_steps"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["workflow.svg"]


@pytest.mark.soak
def test_who_interrupts_them_finds_nothing_left(tmp_path: Path) -> None:
    """Neither their processes, which have sessions of their own, nor their folder."""
    ran = _demo(tmp_path, "--runs", "500")
    while not list(tmp_path.rglob("program-*.log")) or len(children := _children(ran.pid)) < 2:
        time.sleep(0.02)
    ran.send_signal(signal.SIGINT)
    ran.communicate(timeout=30)

    assert ran.returncode == 130
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(tmp_path.iterdir()) == []


def _demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "gateway",
        "demo",
        "--workflow",
        *arguments,
        "--chart",
        str(folder / "workflow.svg"),
    ]
    environ = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
