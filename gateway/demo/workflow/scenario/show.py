"""Shows the demo of workflows, from its first line to its table and its chart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gateway.demo.show.show.chart import workflow_chart
from gateway.demo.show.show.show import (
    Display,
    check_folder,
    lay_out,
    percent,
    perform,
    progress_bar,
    save_chart,
    times,
)
from gateway.demo.workflow.reckoning import WorkflowArm
from gateway.demo.workflow.scenario.scenario import FAULTS, WorkflowDemo, run_workflows

_NAME = 24


def show_workflow(demo: WorkflowDemo, display: Display, chart: Path) -> list[WorkflowArm]:
    """Runs both ways in a loop of their own, saves their chart, and returns their records.

    Raises as `show` does, and AskFailedError or ProcessFailedError where one came to no end.
    """
    check_folder(chart)
    display.say(f"{demo.runs:,} runs of {demo.steps} steps, each step quoting the answer of the one before.")
    display.say(f"{FAULTS}.")
    display.say("The program repeats no call: a run whose step failed it begins again from the first step.")
    display.say(f"It is killed with -9 {times(demo.kills)} on the way, and started again; so is the gateway.")
    display.say("Provider (an emulator), gateway and program are processes of their own.\n")

    def begin(arm: WorkflowArm) -> None:
        display.follow(partial(workflow_line, demo, arm))

    arms = perform(run_workflows(demo, begin), display)
    save_chart(chart, workflow_chart(arms), display)
    return arms


def workflow_line(demo: WorkflowDemo, arm: WorkflowArm, now: float, columns: int, marks: str, has_colour: bool) -> str:
    """Returns the progress of one way in a line shorter than `columns`; `marks` are as for a storm."""
    name = arm.name.ljust(_NAME)
    if not arm.began_at:
        return f"{name} getting ready ..."[: columns - 1]
    kills = demo.kills * (1 + arm.has_gateway)
    time_s = arm.duration_s or now - arm.began_at
    text = f" {arm.finished_so_far:>5,} of {arm.runs:,} runs  {len(arm.kills)} of {kills} kills {time_s:>6.1f} s"
    room = min(30, columns - 2 - len(name) - len(text))
    if room < 1:
        return f"{name}{text}"[: columns - 1]
    return f"{name} {progress_bar(arm.finished_so_far, 0, arm.runs, room, marks, has_colour)}{text}"


_LABELS = (
    "",
    "runs finished",
    "  no step of theirs failed",
    "begun again: a step had failed",
    "  killed on the way",
    "killed with -9: the program",
    "  the gateway",
    "the provider's ledger: calls",
    "  met a fault",
    "  steps paid",
    "  paid again",
    "    in flight at the gateway's kills",
    "    though they were kept",
    "steps replayed by the gateway",
    "$ a run, by the provider's ledger",
    "  each step paid once",
    "  by GET /v1/runs",
    "time",
)


def workflow_table(arms: Sequence[WorkflowArm]) -> str:
    """Returns the table of the ways, without a trailing newline."""
    return "\n".join(map(str.rstrip, lay_out([_LABELS, *map(_column, arms)]).splitlines()))


def _column(arm: WorkflowArm) -> tuple[str, ...]:
    return (
        arm.name,
        f"{arm.finished:,} of {arm.runs:,}",
        f"{arm.whole:,} ({percent(arm.whole, arm.runs)})",
        f"{len(arm.failures):,}",
        f"{arm.cut:,}",
        f"{arm.killed('program')}",
        _gateways(arm, f"{arm.killed('gateway')}"),
        f"{len(arm.ledger):,}",
        f"{arm.faults:,}",
        f"{arm.paid.total():,} of {arm.runs * arm.steps:,}",
        f"{arm.repaid:,}",
        _gateways(arm, f"{arm.in_flight:,}"),
        _gateways(arm, f"{arm.paid_though_kept:,}"),
        _gateways(arm, f"{arm.replayed:,}"),
        f"{arm.usd_per_run:.4f}",
        f"{arm.usd_once / arm.runs:.4f}",
        "-" if arm.told is None else f"{arm.told.usd / arm.runs:.4f}",
        f"{arm.duration_s:.1f} s",
    )


def _gateways(arm: WorkflowArm, figure: str) -> str:
    return figure if arm.has_gateway else "-"
