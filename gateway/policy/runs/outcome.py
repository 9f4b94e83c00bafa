"""What has become of a run: as somebody told, else as its calls show by the rules of its workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from gateway.policy.runs.run import RunChange, RunRecord

IDLE_S = 300.0


class RunOutcome(StrEnum):
    """What has become of a run."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Idle before its end, and its last calls were good."""
    UNKNOWN = "unknown"
    """It is over, nobody has told, and its workflow is not declared."""


Ends = Literal["last_task", "told", "idle"]
TOLD_OUTCOMES = (RunOutcome.SUCCEEDED, RunOutcome.FAILED)


@dataclass(frozen=True, slots=True)
class WorkflowRules:
    """One workflow as it is declared in workflows.yaml."""

    name: str
    tasks: tuple[str, ...] = ()
    """In order; the last one ends a run."""
    ends: Ends = "last_task"
    idle_s: float = IDLE_S
    """Without a call for so long, a run is over."""
    slo: float | None = None
    """The part of runs that are to succeed, 0 to 1."""
    deadline_s: float | None = None
    """A run that has not ended so long after its first call is over."""
    usd_per_run: float | None = None
    """What the calls of one run may cost together, in US dollars."""
    max_calls_per_run: int | None = None
    labels: Mapping[str, tuple[str, str]] = field(init=False, repr=False, compare=False)
    """By task: how the metrics name it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", {task: (self.name, task) for task in self.tasks})

    @property
    def has_fuse(self) -> bool:
        """Tells whether calls of a run may be refused for what the run has had."""
        return self.usd_per_run is not None or self.max_calls_per_run is not None


Workflows = Mapping[str, WorkflowRules]


def outcome_of(record: RunRecord, rules: WorkflowRules | None, now: float) -> RunOutcome:
    """Returns what has become of the run by `now`, in wall-clock seconds; `rules` are None for an undeclared workflow."""
    so_far = record.so_far
    if so_far.outcome is not None:
        return RunOutcome(so_far.outcome.word)
    if rules is not None and rules.ends == "last_task" and rules.tasks and _is_ok(so_far, rules.tasks[-1]):
        return RunOutcome.SUCCEEDED
    if not is_over(so_far, rules, now):
        return RunOutcome.RUNNING
    if rules is None:
        return RunOutcome.UNKNOWN
    if any(task.last is not None and not task.last.is_ok for task in so_far.tasks.values()):
        return RunOutcome.FAILED
    has_good = any(task.last is not None for task in so_far.tasks.values())
    return RunOutcome.SUCCEEDED if rules.ends == "idle" and has_good else RunOutcome.ABANDONED


def is_over(so_far: RunChange, rules: WorkflowRules | None, now: float) -> bool:
    """Tells whether no more is expected of a run: nothing came for long enough, or its deadline has passed."""
    now_ms = now * 1000
    idle_s = IDLE_S if rules is None else rules.idle_s
    if now_ms - so_far.last_ms >= idle_s * 1000:
        return True
    return rules is not None and rules.deadline_s is not None and now_ms - so_far.first_ms >= rules.deadline_s * 1000


def is_rescued(record: RunRecord, outcome: RunOutcome) -> bool:
    """Tells whether the run succeeded although an attempt of its calls went wrong: what it has the gateway for."""
    return outcome is RunOutcome.SUCCEEDED and any(task.bad_attempts for task in record.so_far.tasks.values())


def count_once(record: RunRecord, outcome: RunOutcome) -> RunRecord | None:
    """Returns the record as counted under its outcome; None: it is counted so already, or has not ended.

    Whoever keeps what is returned in place of `record`, and nobody else, counts the run.
    """
    if outcome in (RunOutcome.RUNNING, record.counted):
        return None
    return replace(record, counted=str(outcome))


def seconds_of(record: RunRecord) -> float:
    """Returns the seconds from the run's first call to its last."""
    return (record.so_far.last_ms - record.so_far.first_ms) / 1000


def _is_ok(so_far: RunChange, task: str) -> bool:
    found = so_far.tasks.get(task)
    return found is not None and found.last is not None and found.last.is_ok
