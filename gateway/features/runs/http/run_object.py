"""Runs as they are shown: to callers, to operators, and many of them as one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.core.snapshot import Key
from gateway.core.types import RawHeaders
from gateway.features.runs.rules import (
    PER_USD,
    RunOutcome,
    RunPart,
    RunRecord,
    TaskSum,
    WorkflowRules,
    Workflows,
    is_rescued,
    use_of,
)
from gateway.features.runs.step import (
    BAGGAGE,
    OUTCOME,
    RUN,
    STEP,
    TASK,
    WORKFLOW,
    outcome_in,
    part_of,
    run_words,
    without_own_members,
)

# Which part of which run a request is: read where any of its headers, its key or its body's `metadata` may say so.


MOST_NAMES = 1024
"""Of what is remembered; when there are more, it begins anew."""


class RunParts:
    """The parts that calls say they are, under one policy: names that come again are not read again.

    Invariant: what is remembered was read from the same header values, and is bounded: at most `MOST_NAMES` of each.
    """

    __slots__ = ("_names", "_runs", "workflows")

    def __init__(self, workflows: Workflows) -> None:
        self.workflows = workflows
        self._names: dict[tuple[str, bytes | None, bytes | None, bytes | None], RunPart] = {}
        """By a key's workflow and the headers that name workflow, task and step: what they make of whatever run."""
        self._runs: dict[bytes, str] = {}

    def remembered(self) -> int:
        """Returns how many names are remembered."""
        return len(self._names) + len(self._runs)

    def find(self, key: Key, index: Mapping[bytes, bytes], metadata: object) -> RunPart | None:
        """Returns the part; None: it is of no run and no workflow. Raises InvalidRequest, naming the header and the remedy."""
        raw = index.get(RUN)
        if raw is None or metadata is not None or BAGGAGE in index:
            part = part_of(run_words(index, metadata), self.workflows, key.workflow)
        else:
            run = self._runs.get(raw) or self._read_run(raw, index)
            names = key.workflow, index.get(WORKFLOW), index.get(TASK), index.get(STEP)
            named = self._names.get(names) or self._read_names(names, index)
            part = RunPart(named.workflow, run, named.task, named.labels, named.rules)
        if OUTCOME in index:
            outcome = outcome_in(index, part)
            if part is not None:
                part.outcome = outcome
        return part

    def _read_run(self, raw: bytes, index: Mapping[bytes, bytes]) -> str:
        run = run_words(index).run
        if len(self._runs) >= MOST_NAMES:
            self._runs.clear()
        self._runs[raw] = run
        return run

    def _read_names(
        self, names: tuple[str, bytes | None, bytes | None, bytes | None], index: Mapping[bytes, bytes]
    ) -> RunPart:
        part = part_of(run_words(index), self.workflows, names[0])
        if part is None:
            raise ValueError("the names of a part that has no run")
        if len(self._names) >= MOST_NAMES:
            self._names.clear()
        self._names[names] = part
        return part


def without_own_baggage(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Returns the headers that go to a provider, with nothing in their baggage that is meant for the gateway."""
    kept = ((name, without_own_members(value) if name == BAGGAGE else value) for name, value in headers)
    return [header for header in kept if header != (BAGGAGE, b"")]


def show_run(record: RunRecord, outcome: RunOutcome, *, with_tasks: bool = True) -> dict[str, Any]:
    """Returns a run as its caller sees it."""
    so_far = record.so_far
    shown: dict[str, Any] = {
        "id": record.run,
        "object": "run",
        "workflow": record.workflow or None,
        "outcome": str(outcome),
        "is_told": so_far.outcome is not None,
        "rescued": is_rescued(record, outcome),
        "usable": {"usable": True, "unusable": False}.get(use_of(record)),
        "value_usd": None if so_far.value_usd is None else so_far.value_usd.word,
        "started_at": so_far.first_ms / 1000,
        "last_at": so_far.last_ms / 1000,
        **_numbers(so_far.total),
    }
    if with_tasks:
        shown["tasks"] = [_task(name, task) for name, task in sorted(so_far.tasks.items(), key=_by_time)]
    return shown


def show_for_operators(record: RunRecord, outcome: RunOutcome, *, with_tasks: bool = True) -> dict[str, Any]:
    """Returns a run as operators see it: with whose it is."""
    return {"tenant": record.tenant, **show_run(record, outcome, with_tasks=with_tasks)}


@dataclass(slots=True)
class WorkflowStats:
    """What the runs of one workflow add up to: attempts, calls, runs, use."""

    total: TaskSum = field(default_factory=TaskSum)
    runs: dict[RunOutcome, int] = field(default_factory=dict)
    rescued: int = 0
    usable: int = 0
    unusable: int = 0
    value_usd: float = 0.0

    def add(self, record: RunRecord, outcome: RunOutcome) -> None:
        """Adds a run."""
        self.total += record.so_far.total
        self.runs[outcome] = self.runs.get(outcome, 0) + 1
        self.rescued += is_rescued(record, outcome)
        use = use_of(record)
        self.usable += use == "usable"
        self.unusable += use == "unusable"
        if record.so_far.value_usd is not None:
            self.value_usd += record.so_far.value_usd.word

    @property
    def success(self) -> float | None:
        """Returns the part of the runs that have ended that have succeeded, 0 to 1; None: none of which that is known."""
        good = self.runs.get(RunOutcome.SUCCEEDED, 0)
        ended = good + self.runs.get(RunOutcome.FAILED, 0) + self.runs.get(RunOutcome.ABANDONED, 0)
        return good / ended if ended else None

    def line(self) -> str:
        """Returns it in one line."""
        total, number = self.total, sum(self.runs.values())
        steps = (
            ("attempts", _part(total.attempts - total.bad_attempts, total.attempts)),
            ("calls", _part(total.calls - total.bad_calls, total.calls)),
            ("runs", self.success),
            ("usable", _part(self.usable, self.usable + self.unusable)),
        )
        spent = total.cost + total.wasted
        saved = _part(total.saved, total.saved + total.cost)
        money = f"${spent / PER_USD / number:.3g} a run" if number else "no runs"
        return f"{' → '.join(f'{name} {_percent(part)}' for name, part in steps)}; {money}, {_percent(saved)} saved"


def show_ladder(ladder: WorkflowStats, rules: WorkflowRules | None) -> dict[str, Any]:
    """Returns a workflow as operators see it; `rules` are None for what is not declared."""
    slo = None if rules is None else rules.slo
    return {
        "line": ladder.line(),
        "runs": {str(outcome): ladder.runs.get(outcome, 0) for outcome in RunOutcome},
        "success": ladder.success,
        "slo": slo,
        "meets_slo": None if slo is None or ladder.success is None else ladder.success >= slo,
        "rescued": ladder.rescued,
        "used": {"usable": ladder.usable, "unusable": ladder.unusable, "value_usd": ladder.value_usd},
        **_numbers(ladder.total),
    }


def _numbers(total: TaskSum) -> dict[str, Any]:
    return {
        "calls": {"all": total.calls, "bad": total.bad_calls, "cached": total.cached},
        "attempts": {"all": total.attempts, "bad": total.bad_attempts},
        "cost_usd": total.cost / PER_USD,
        "wasted_usd": total.wasted / PER_USD,
        "saved_usd": total.saved / PER_USD,
        "usage": {"input_tokens": total.input_tokens, "output_tokens": total.output_tokens},
    }


def _task(name: str, task: TaskSum) -> dict[str, Any]:
    last = task.last
    return {
        "task": name or None,
        "ok": None if last is None else last.is_ok,
        "error_class": None if last is None or last.is_ok else last.error_class,
        "last_at": None if last is None else last.at_ms / 1000,
        **_numbers(task),
    }


def _by_time(item: tuple[str, TaskSum]) -> int:
    last = item[1].last
    return 0 if last is None else last.at_ms


def _part(good: int, of: int) -> float | None:
    return good / of if of else None


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part * 100:.1f} %"
