"""What is to be done next in a run: decided by the plan and by how its steps stand, and by nothing else.

The same states always give the same decision, so that it can be made again after a crash. A step is settled when it has a
result, is left out, or has failed and the plan accepts that; it begins when all that it needs is settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.products.pipelines.advance.items import begin_items, go_on_with_items, has_repairs
from gateway.products.pipelines.advance.repair import changed_body, repair_request
from gateway.products.pipelines.advance.requests import request_of
from gateway.products.pipelines.advance.results import stand_in_values, values_of, values_of_many
from gateway.products.pipelines.compile.compiling.plan import PipelinePlan, Step
from gateway.products.pipelines.rules.states import (
    BEYOND_REPAIR,
    RUN_BUDGET_EXCEEDED,
    TOO_MUCH_WORK,
    VALUE_MISSING,
    Decision,
    RunFailed,
    RunFinished,
    RunStates,
    Start,
    StepError,
    StepFailed,
    StepPart,
    StepPhase,
    StepStart,
    StepState,
    Wait,
)
from gateway.products.pipelines.templates.splitting import TooMuchWork
from gateway.products.pipelines.templates.templates.templates import Scope, StepFilling, ValueMissing, fill


def advance(plan: PipelinePlan, run: RunStates) -> Decision:
    """Says what is to be done next. Raises TooLong where others wait for it, and it is too much for that."""
    known: dict[str, Mapping[str, Any]] = {}
    settled: set[str] = set()
    starts: list[StepStart] = []
    is_running = False
    is_spent = plan.usd_per_run is not None and run.spent_usd >= plan.usd_per_run
    for step in plan.steps.values():
        if not step.needs <= settled:
            continue
        state = run.steps.get(step.name)
        if state is not None and state.phase is StepPhase.RUNNING:
            is_running = True
            continue
        try:
            came_to = _look(step, state, Scope(run.input, known), run.filling(step.counts_by), is_spent=is_spent)
        except StepFailed as failure:
            if step.on_failure.action not in ("continue", "use"):
                return RunFailed(failure.error)
            came_to = _in_its_place(step, state)
        if isinstance(came_to, StepStart):
            starts.append(came_to)
            continue
        settled.add(step.name)
        if came_to is not None:
            known[step.name] = came_to
    if starts and is_spent:
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
    """Returns the steps whose values the next decision may ask for: those that something refers to which has not begun,
    and those whose answers it decides about.
    """
    wanted = set(plan.output_needs)
    for step in plan.steps.values():
        state = begun.get(step.name)
        if state is None or state.phase is StepPhase.FAILED:
            wanted |= step.needs
        elif state.part is StepPart.REPAIR or has_repairs(step, state):
            wanted |= {*step.needs, step.name}
    return frozenset(wanted)


def _look(
    step: Step, state: StepState | None, scope: Scope, filling: StepFilling, *, is_spent: bool
) -> StepStart | Mapping[str, Any] | None:
    """Returns what begins of a step whose needs are settled, or its values; None: it is left out. Raises StepFailed."""
    if step.for_each is not None:
        if state is None:
            return begin_items(step, scope, filling)
        return go_on_with_items(step, state, scope, filling, is_spent=is_spent)
    if state is None:
        body = request_of(step, scope, filling)
        return None if body is None else StepStart(step, StepPart.FIRST, step.endpoint, [body], [str(body["model"])])
    if state.part is StepPart.REPAIR:
        return _go_on_repaired(step, state, scope, filling)
    if state.phase is not StepPhase.FAILED:
        return state.values
    error = state.error or StepError("internal_error", "the step has failed", step.name)
    is_hopeful = state.part is StepPart.FIRST and error.error_class not in BEYOND_REPAIR
    if not step.on_failure.model or not is_hopeful:
        raise StepFailed(error)
    body = request_of(step, scope, filling)
    if body is None:
        raise StepFailed(error)
    asked = repair_request(step.on_failure.model, step.endpoint, body, error.error_class, error.message)
    return StepStart(step, StepPart.REPAIR, "chat", [asked], [step.on_failure.model])


def _go_on_repaired(step: Step, state: StepState, scope: Scope, filling: StepFilling) -> StepStart:
    """Begins the second part of a step, by the answer of who was asked to repair it. Raises StepFailed."""
    first = state.error or StepError("internal_error", "the step has failed", step.name)
    body = request_of(step, scope, filling)
    if state.phase is StepPhase.FAILED or body is None:
        raise StepFailed(first._replace(message=f"{first.message} (and {step.on_failure.model} could not repair it)"))
    changed = changed_body(step.endpoint, body, values_of("chat", state.answer))
    if changed is None:
        told = f"{first.message} (and {step.on_failure.model} has changed nothing that may be changed)"
        raise StepFailed(first._replace(message=told))
    return StepStart(step, StepPart.SECOND, step.endpoint, [changed], [str(body["model"])])


def _in_its_place(step: Step, state: StepState | None) -> Mapping[str, Any] | None:
    """Returns what stands for a step that has failed, where the plan accepts that; None: nothing does."""
    if step.on_failure.action == "continue":
        return None
    if step.for_each is None:
        return stand_in_values(step.endpoint, step.on_failure.value)
    return values_of_many(step.endpoint, [None] * (0 if state is None else state.total), step.on_failure.value)
