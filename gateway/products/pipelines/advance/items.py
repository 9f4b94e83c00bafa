"""A step with items: asked once for each, and once more for those that have failed and whose requests a model has changed.

All requests of one part are one child of the run. What an item has failed for stays, until a changed request of it has its
answer; how many may fail is held against what is left at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.products.pipelines.advance.repair import changed_body, repair_request
from gateway.products.pipelines.advance.requests import GatheredRequests, items_of, request_of, scopes_of
from gateway.products.pipelines.advance.results import values_in, values_of_many
from gateway.products.pipelines.compile.compiling.plan import Step
from gateway.products.pipelines.rules.states import (
    RUN_BUDGET_EXCEEDED,
    TOO_MANY_FAILED,
    StepError,
    StepFailed,
    StepPart,
    StepPhase,
    StepStart,
    StepState,
    TooLarge,
)
from gateway.products.pipelines.templates.templates.templates import Scope, StepFilling

Values = Mapping[str, Any]


def begin_items(step: Step, scope: Scope, filling: StepFilling) -> StepStart | Values:
    """Returns the first part of a step, or its values where nothing is asked of any item. Raises StepFailed.

    Where more requests cannot be put together than may fail, the others are not asked in vain.
    """
    items = items_of(step, scope, filling)
    gathered = GatheredRequests(filling)
    failed, why = 0, None
    for one in scopes_of(items, scope):
        request = None
        try:
            request = request_of(step, one, filling)
        except TooLarge:
            raise
        except StepFailed as failure:
            failed, why = failed + 1, failure.error
        gathered.add(step, request)
    if gathered.models and step.on_failure.accepts(failed, len(items)):
        return StepStart(step, StepPart.FIRST, step.endpoint, gathered.requests, gathered.models, failed)
    stand_in = step.on_failure.value if step.on_failure.action == "use" and failed else None
    values = {**values_of_many(step.endpoint, [None] * len(items), stand_in), "failed": failed}
    return _accepted(step, StepState(StepPart.FIRST, StepPhase.DONE, values, failed, len(items), why))


def go_on_with_items(
    step: Step, state: StepState, scope: Scope, filling: StepFilling, *, is_spent: bool
) -> StepStart | Values:
    """Returns the next part of a step whose latest has ended, or its values. Raises StepFailed.

    `is_spent` tells that the run may cost no more: what has failed is left as it is, where the plan accepts that.
    """
    if state.phase is StepPhase.FAILED:
        raise StepFailed(state.error or StepError("internal_error", "the step has failed", step.name))
    lost = state.failed - len(state.failures)
    is_enough = is_spent and step.on_failure.accepts(state.failed, state.total)
    if is_enough or not has_repairs(step, state) or not step.on_failure.accepts(lost, state.total):
        return _accepted(step, state)
    items = items_of(step, scope, filling)
    gathered = GatheredRequests(filling)
    for number, one in enumerate(scopes_of(items, scope)):
        error = state.failures.get(number)
        gathered.add(step, None if error is None else _next_request(step, state, number, error, one, filling))
    asked = sum(request is not None for request in gathered.requests)
    # in vain, or for others than those that have failed: they are counted by other tokens now
    if not asked or not step.on_failure.accepts(state.failed - asked, state.total) or len(items) != state.total:
        return _accepted(step, state)
    part = StepPart(state.part + 1)
    endpoint = "chat" if part is StepPart.REPAIR else step.endpoint
    return StepStart(step, part, endpoint, gathered.requests, gathered.models, state.failed - asked)


def has_repairs(step: Step, state: StepState) -> bool:
    """Tells whether requests of a step with items may still be repaired, once their failures are known."""
    is_early = state.part is not StepPart.SECOND and state.phase is StepPhase.DONE
    return bool(step.on_failure.model and step.for_each is not None and is_early and state.failed)


def _next_request(
    step: Step, state: StepState, number: int, error: StepError, scope: Scope, filling: StepFilling
) -> Mapping[str, Any] | None:
    """Returns what is asked of an item that has failed; None: nothing more. Raises TooLarge."""
    if state.part is StepPart.REPAIR and number not in state.answers:
        return None
    try:
        body = request_of(step, scope, filling)
    except TooLarge:
        raise
    except StepFailed:
        body = None
    if body is None:
        return None
    if state.part is StepPart.FIRST:
        return repair_request(step.on_failure.model, step.endpoint, body, error.error_class, error.message)
    return changed_body(step.endpoint, body, values_in("chat", state.answers[number]))


def _accepted(step: Step, state: StepState) -> Values:
    """Returns the values of a step with items, if the plan accepts how many have failed. Raises StepFailed."""
    if step.on_failure.accepts(state.failed, state.total):
        return state.values
    if state.error is not None and state.error.error_class == RUN_BUDGET_EXCEEDED:
        raise StepFailed(state.error)
    told = f"{state.failed} of {state.total} items have failed, more than the plan accepts"
    such = f"; such as: {state.error.message}" if state.error is not None else ""
    raise StepFailed(StepError(TOO_MANY_FAILED, told + such, step.name))
