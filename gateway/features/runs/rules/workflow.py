"""Workflows and their runs as data: the rules of a workflow, what becomes of a run, and which part of one a call is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

OTHER = "other"
"""In place of a name that is not declared."""
IDLE_S = 300.0


class RunOutcome(StrEnum):
    """What has become of a run."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Idle before its end, and its last calls were good."""
    CANCELLED = "cancelled"
    """Of a pipeline: somebody had it stopped."""
    UNKNOWN = "unknown"
    """It is over, nobody has told, and its workflow is not declared."""


Ends = Literal["last_task", "told", "idle"]


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
    reserves: bool = True
    """Calls in flight count towards `usd_per_run` with what they may cost; False: only what was spent does."""
    labels: Mapping[str, tuple[str, str]] = field(init=False, repr=False, compare=False)
    """By task: how the metrics name it."""

    has_fuse: bool = field(init=False, repr=False, compare=False)
    """Calls of a run may be refused for what the run has had."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", {task: (self.name, task) for task in self.tasks})
        object.__setattr__(self, "has_fuse", self.usd_per_run is not None or self.max_calls_per_run is not None)


Workflows = Mapping[str, WorkflowRules]


class RunWords(NamedTuple):
    """What a call has said; empty: nothing."""

    workflow: str = ""
    run: str = ""
    task: str = ""


@dataclass(frozen=True, slots=True)
class StepAsk:
    """The step that a call is."""

    run: str
    step: str
    reruns: bool
    """Asked another question than before, it is run again, and the new answer takes the place of the old one."""


@dataclass(slots=True)
class RunPart:
    """Which part of which run a call is."""

    workflow: str
    """As it was said; empty: it was not."""
    run: str
    """Empty: it counts for its workflow, and for no run."""
    task: str
    labels: tuple[str, str]
    """Of workflow and task, for metrics: declared names, or `other`."""
    rules: WorkflowRules | None
    """None: the workflow is not declared."""
    outcome: str = ""
    """What its caller has said that becomes of the run with this call."""
    is_durable: bool = False
    """Its run is kept where its steps are."""
    is_in: bool = False
    """It counts as one of the run's calls in flight."""
    reserved: int = 0
    """What it has reserved of the run's money, in units of money."""
    step: StepAsk | None = None
    """The step of its run that it is; None: it is none."""
