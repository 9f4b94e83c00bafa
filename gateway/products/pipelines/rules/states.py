"""A run as it is decided upon: how its steps stand, what begins next, and why something has failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

from gateway.products.pipelines.compile.compiling.plan import CallEndpoint, Step
from gateway.products.pipelines.templates.splitting import MOST_WORK, Count, Hurry, Work
from gateway.products.pipelines.templates.templates.templates import StepFilling

VALUE_MISSING: Final = "value_missing"
TOO_MANY_FAILED: Final = "too_many_failed"
TOO_MANY_ITEMS: Final = "too_many_items"
TOO_MUCH_WORK: Final = "too_much_work"
RUN_BUDGET_EXCEEDED: Final = "run_budget_exceeded"
BEYOND_REPAIR: Final = frozenset(("cancelled", "expired", "batch_cancelled", "batch_expired", RUN_BUDGET_EXCEEDED))
"""Classes of errors that no other request would get around."""


class StepPart(IntEnum):
    """The parts of a step, each of which is one child of the run, and begins once at most; in this order."""

    FIRST = 1
    REPAIR = 2
    """A model is asked to change the request; with items the requests of those that have failed."""
    SECOND = 3
    """The changed request, or requests."""


class StepPhase(StrEnum):
    """How far a part has come."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class StepError(NamedTuple):
    """Why a step, or a run, has failed."""

    error_class: str
    message: str
    step: str = ""


@dataclass(frozen=True, slots=True)
class StepState:
    """How a step stands: its latest part."""

    part: StepPart
    phase: StepPhase
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What is known of it once it is done."""
    failed: int = 0
    total: int = 1
    """Of its items."""
    error: StepError | None = None
    """Of the part that has failed; of REPAIR and SECOND that of the first. With items: that of one which has failed."""
    answer: bytes = field(default=b"", repr=False)
    """Of REPAIR."""
    failures: Mapping[int, StepError] = field(default_factory=dict, repr=False)
    """With items, of FIRST and REPAIR: why those have failed whose requests may be repaired, by their numbers."""
    answers: Mapping[int, Any] = field(default_factory=dict, repr=False)
    """With items, of REPAIR: the answers of who was asked to change requests, by the numbers of the items."""

    @property
    def is_lost(self) -> bool:
        """Tells whether nothing has come of it, where it is the last that becomes of its step."""
        return self.phase is StepPhase.FAILED or (self.part is StepPart.REPAIR and self.failed == self.total)


@dataclass(frozen=True, slots=True)
class RunStates:
    """A run as it stands."""

    input: Any
    steps: Mapping[str, StepState]
    """Of those that have begun."""
    spent_usd: float = 0.0
    count: Callable[[str], Count] = field(default=lambda _model: lambda text: len(text) / 4, repr=False)
    """Gives what counts the tokens of a model."""
    most_work: int = MOST_WORK
    """That it may be to put a step together, as `Work` counts it."""

    hurry: Hurry | None = field(default=None, repr=False, compare=False)
    """Counts what is done while others wait; None: nobody does."""

    def filling(self, model: str) -> StepFilling:
        """Returns what a step is filled with whose texts are divided by the tokens of this model."""
        return StepFilling(self.count(model), Work(self.most_work, self.hurry))


class StepStart(NamedTuple):
    """A part of a step that begins."""

    step: Step
    part: StepPart
    endpoint: CallEndpoint
    requests: Sequence[Mapping[str, Any] | None]
    """One body; of a step with `for_each` one for each item, None for an item of which nothing is asked."""
    models: Sequence[str]
    """The models that they ask for, each once."""
    failed: int = 0
    """Of the items of which nothing is asked: those that have failed, such as because a value is missing."""

    @property
    def most_failed(self) -> int | None:
        """Returns how many of the requests to items may fail before no further one is of use; None: all of them."""
        rule = self.step.on_failure
        if rule.model and self.part is StepPart.FIRST:
            return None  # they may be repaired
        most = rule.most_failed(len(self.requests))
        return None if most is None else most - self.failed


class Start(NamedTuple):
    """These begin, beside what runs."""

    steps: Sequence[StepStart]


class Wait(NamedTuple):
    """Something runs, and nothing can begin before it has ended."""


class RunFinished(NamedTuple):
    """All steps are settled."""

    output: Any


class RunFailed(NamedTuple):
    """The run has failed; what still runs of it is of no use."""

    why: StepError


Decision = Start | Wait | RunFinished | RunFailed


class StepFailed(Exception):
    """A step has failed for good."""

    def __init__(self, error: StepError) -> None:
        super().__init__(error.message)
        self.error = error


class TooLarge(StepFailed):
    """All of a step is too large, not the request of one item."""
