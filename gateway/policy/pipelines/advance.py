"""What is to be done next in a run: decided by the plan and by how its steps stand, and by nothing else.

The same states always give the same decision, so that it can be made again after a crash. A step is settled when it has a
result, is left out, or has failed and the plan accepts that; it begins when all that it needs is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

from gateway.policy.pipelines.conditions import ConditionFailed
from gateway.policy.pipelines.plan import MOST_ITEMS, CallEndpoint, CallPlan, PipelinePlan, Step
from gateway.policy.pipelines.repair import repair_request, repaired_body
from gateway.policy.pipelines.results import stand_in_values, values_of_many
from gateway.policy.pipelines.splitting import MOST_WORK, Count, TooMuchWork, Work
from gateway.policy.pipelines.templates import Scope, StepFilling, ValueMissing, fill, size_of

VALUE_MISSING: Final = "value_missing"
TOO_MANY_FAILED: Final = "too_many_failed"
TOO_MANY_ITEMS: Final = "too_many_items"
TOO_MUCH_WORK: Final = "too_much_work"
NOT_REPAIRED: Final = "not_repaired"
RUN_BUDGET_EXCEEDED: Final = "run_budget_exceeded"
MOST_REQUESTS_CHARS: Final = 200_000_000
"""Of all items of a step together: they are in memory until they are written, however often the same text is in them."""
_BEYOND_REPAIR: Final = frozenset(("cancelled", "expired", RUN_BUDGET_EXCEEDED))


class StepPart(IntEnum):
    """The parts of a step, each of which is one child of the run, and begins once at most; in this order."""

    FIRST = 1
    REPAIR = 2
    """A model is asked to change the request."""
    SECOND = 3
    """The changed request."""


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
    """Of the part that has failed; of REPAIR and SECOND that of the first."""
    answer: bytes = field(default=b"", repr=False)
    """Of REPAIR."""


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

    def filling(self, model: str) -> StepFilling:
        """Returns what a step is filled with whose texts are divided by the tokens of this model."""
        return StepFilling(self.count(model), Work(self.most_work))


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
    """Of the items of which nothing is asked: those that have failed, because a value is missing."""


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


class _StepFailed(Exception):
    """A step has failed for good."""

    def __init__(self, error: StepError) -> None:
        super().__init__(error.message)
        self.error = error


class _TooLarge(_StepFailed):
    """All of a step is too large, not the request of one item."""


def advance(plan: PipelinePlan, run: RunStates) -> Decision:
    """Says what is to be done next."""
    known: dict[str, Mapping[str, Any]] = {}
    settled: set[str] = set()
    starts: list[StepStart] = []
    is_running = False
    for step in plan.steps.values():
        if not step.needs <= settled:
            continue
        state = run.steps.get(step.name)
        if state is not None and state.phase is StepPhase.RUNNING:
            is_running = True
            continue
        try:
            came_to = _look(step, state, Scope(run.input, known), run.filling(step.counts_by))
        except _StepFailed as failure:
            if step.on_failure.action not in ("continue", "use"):
                return RunFailed(failure.error)
            came_to = _in_its_place(step, state)
        if isinstance(came_to, StepStart):
            starts.append(came_to)
            continue
        settled.add(step.name)
        if came_to is not None:
            known[step.name] = came_to
    if starts and plan.usd_per_run is not None and run.spent_usd >= plan.usd_per_run:
        told = (
            f"the run has cost {run.spent_usd:.6g} USD of its usd_per_run of {plan.usd_per_run:g}: nothing more begins"
        )
        return RunFailed(StepError(RUN_BUDGET_EXCEEDED, told, starts[0].step.name))
    if starts:
        return Start(starts)
    if is_running:
        return Wait()
    try:
        return RunFinished(fill(plan.output, Scope(run.input, known), run.filling(plan.steps[plan.last].counts_by)))
    except ValueMissing as error:
        return RunFailed(StepError(VALUE_MISSING, f"output: {error}"))
    except TooMuchWork as error:
        return RunFailed(StepError(TOO_MUCH_WORK, f"output: {error}"))


def wanted_values(plan: PipelinePlan, begun: Mapping[str, StepState]) -> frozenset[str]:
    """Returns the steps whose values the next decision may ask for: those that something refers to which has not begun."""
    wanted = set(plan.output_needs)
    for step in plan.steps.values():
        state = begun.get(step.name)
        if state is None or state.part is StepPart.REPAIR or state.phase is StepPhase.FAILED:
            wanted |= step.needs
    return frozenset(wanted)


def _look(
    step: Step, state: StepState | None, scope: Scope, filling: StepFilling
) -> StepStart | Mapping[str, Any] | None:
    """Returns what begins of a step whose needs are settled, or its values; None: it is left out. Raises _StepFailed."""
    if state is None:
        return _begin(step, scope, filling)
    if state.part is StepPart.REPAIR:
        return _go_on_repaired(step, state, scope, filling)
    if state.phase is StepPhase.FAILED:
        error = state.error or StepError("internal_error", "the step has failed", step.name)
        is_hopeful = state.part is StepPart.FIRST and error.error_class not in _BEYOND_REPAIR
        if step.on_failure.action != "repair" or not is_hopeful:
            raise _StepFailed(error)
        body = _single(step, scope, filling)
        if body is None:
            raise _StepFailed(error)
        asked = repair_request(step.on_failure.model, step.endpoint, body, error.error_class, error.message)
        return StepStart(step, StepPart.REPAIR, "chat", [asked], [step.on_failure.model])
    return state.values if step.for_each is None else _accepted(step, state)


def _begin(step: Step, scope: Scope, filling: StepFilling) -> StepStart | Mapping[str, Any] | None:
    if step.for_each is None:
        body = _single(step, scope, filling)
        return None if body is None else StepStart(step, StepPart.FIRST, step.endpoint, [body], [str(body["model"])])
    try:
        items = filling.value(step.for_each, scope)
    except ValueMissing as error:
        raise _StepFailed(StepError(VALUE_MISSING, f"for_each: {error}", step.name)) from None
    except TooMuchWork as error:
        raise _TooLarge(StepError(TOO_MUCH_WORK, f"for_each: {error}", step.name)) from None
    items = [] if items is None else items
    if not isinstance(items, list):
        raise _StepFailed(StepError(VALUE_MISSING, "for_each: the value is no list", step.name))
    if len(items) > MOST_ITEMS:
        told = f"for_each: {len(items)} items are more than {MOST_ITEMS}"
        raise _StepFailed(StepError(TOO_MANY_ITEMS, told, step.name))
    requests: list[Mapping[str, Any] | None] = []
    failed, why = 0, None
    chars = 0
    for item in items:
        try:
            requests.append(_request(step, Scope(scope.input, scope.steps, item, has_item=True), filling))
            chars += size_of(requests[-1], filling.sizes)
            if chars > MOST_REQUESTS_CHARS:
                told = f"the requests for {len(items)} items have more than {MOST_REQUESTS_CHARS} characters"
                raise _TooLarge(StepError(TOO_MANY_ITEMS, told, step.name))
        except _TooLarge:
            raise
        except _StepFailed as failure:
            requests.append(None)
            failed, why = failed + 1, failure.error
    models = dict.fromkeys(str(body["model"]) for body in requests if body is not None)
    if models:
        return StepStart(step, StepPart.FIRST, step.endpoint, requests, list(models), failed)
    values = {
        **values_of_many(step.endpoint, [None] * len(items), _stand_in(step) if failed else None),
        "failed": failed,
    }
    return _accepted(step, StepState(StepPart.FIRST, StepPhase.DONE, values, failed, len(items), why))


def _accepted(step: Step, state: StepState) -> Mapping[str, Any]:
    """Returns the values of a step with items, if the plan accepts how many have failed. Raises _StepFailed."""
    if step.on_failure.accepts(state.failed, state.total):
        return state.values
    if state.error is not None and state.error.error_class == RUN_BUDGET_EXCEEDED:
        raise _StepFailed(state.error)
    told = f"{state.failed} of {state.total} items have failed, more than the plan accepts"
    such = f"; such as: {state.error.message}" if state.error is not None else ""
    raise _StepFailed(StepError(TOO_MANY_FAILED, told + such, step.name))


def _stand_in(step: Step) -> Any:
    return step.on_failure.value if step.on_failure.action == "use" else None


def _go_on_repaired(step: Step, state: StepState, scope: Scope, filling: StepFilling) -> StepStart:
    """Begins the second part of a step, by the answer of who was asked to repair it. Raises _StepFailed."""
    first = state.error or StepError("internal_error", "the step has failed", step.name)
    body = _single(step, scope, filling)
    if state.phase is StepPhase.FAILED or body is None:
        raise _StepFailed(first._replace(message=f"{first.message} (and {step.on_failure.model} could not repair it)"))
    changed = repaired_body(step.endpoint, body, state.answer)
    if changed is None:
        told = f"{first.message} (and {step.on_failure.model} has changed nothing that may be changed)"
        raise _StepFailed(first._replace(message=told))
    return StepStart(step, StepPart.SECOND, step.endpoint, [changed], [str(body["model"])])


def _single(step: Step, scope: Scope, filling: StepFilling) -> Mapping[str, Any] | None:
    return _request(step, scope, filling)


def _request(step: Step, scope: Scope, filling: StepFilling) -> Mapping[str, Any] | None:
    """Returns the body of the first branch whose condition holds; None: none does. Raises _StepFailed."""
    call: CallPlan
    try:
        for branch in step.branches:
            if branch.when is None or branch.when.holds(scope):
                call = branch.call
                break
        else:
            return None
        body: Mapping[str, Any] = fill(call.body, scope, filling)
    except (ValueMissing, ConditionFailed) as error:
        raise _StepFailed(StepError(VALUE_MISSING, str(error), step.name)) from None
    except TooMuchWork as error:
        raise _TooLarge(StepError(TOO_MUCH_WORK, str(error), step.name)) from None
    return body


def _in_its_place(step: Step, state: StepState | None) -> Mapping[str, Any] | None:
    """Returns what stands for a step that has failed, where the plan accepts that; None: nothing does."""
    if step.on_failure.action == "continue":
        return None
    if step.for_each is None:
        return stand_in_values(step.endpoint, step.on_failure.value)
    return values_of_many(step.endpoint, [None] * (0 if state is None else state.total), step.on_failure.value)
