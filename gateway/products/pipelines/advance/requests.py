"""The requests of a step, made of what is known: one, or one for each item of a list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.products.pipelines.compile.compiling.plan import MOST_ITEMS, CallPlan, Step
from gateway.products.pipelines.conditions import ConditionFailed
from gateway.products.pipelines.rules.states import (
    TOO_MANY_ITEMS,
    TOO_MUCH_WORK,
    VALUE_MISSING,
    StepError,
    StepFailed,
    TooLarge,
)
from gateway.products.pipelines.templates.splitting import TooMuchWork
from gateway.products.pipelines.templates.templates.templates import Scope, StepFilling, ValueMissing, fill, size_of

MOST_REQUESTS_CHARS: Final = 200_000_000
"""Of all items of a step together: they are in memory until they are written, however often the same text is in them."""


class GatheredRequests:
    """The requests for the items of a step, in their order: None for those of which nothing is asked."""

    def __init__(self, filling: StepFilling) -> None:
        self.requests: list[Mapping[str, Any] | None] = []
        self._filling = filling
        self._chars = 0

    def add(self, step: Step, request: Mapping[str, Any] | None) -> None:
        """Adds that of the next item. Raises TooLarge."""
        self.requests.append(request)
        self._chars += size_of(request, self._filling.sizes)
        if self._chars > MOST_REQUESTS_CHARS:
            told = f"the requests for its items have more than {MOST_REQUESTS_CHARS} characters"
            raise TooLarge(StepError(TOO_MANY_ITEMS, told, step.name))

    @property
    def models(self) -> list[str]:
        """Returns the models that they ask for, each once."""
        return list(dict.fromkeys(str(body["model"]) for body in self.requests if body is not None))


def request_of(step: Step, scope: Scope, filling: StepFilling) -> Mapping[str, Any] | None:
    """Returns the body of the first branch whose condition holds; None: none does. Raises StepFailed."""
    call: CallPlan
    try:
        filling.work.take_request()
        for branch in step.branches:
            if branch.when is None or branch.when.holds(scope, filling):
                call = branch.call
                break
        else:
            return None
        body: Mapping[str, Any] = fill(call.body, scope, filling)
    except (ValueMissing, ConditionFailed) as error:
        raise StepFailed(StepError(VALUE_MISSING, str(error), step.name)) from None
    except TooMuchWork as error:
        raise TooLarge(StepError(TOO_MUCH_WORK, str(error), step.name)) from None
    return body


def items_of(step: Step, scope: Scope, filling: StepFilling) -> Sequence[Any]:
    """Returns the items of a step with `for_each`. Raises StepFailed."""
    try:
        items = None if step.for_each is None else filling.value(step.for_each, scope)
    except ValueMissing as error:
        raise StepFailed(StepError(VALUE_MISSING, f"for_each: {error}", step.name)) from None
    except TooMuchWork as error:
        raise TooLarge(StepError(TOO_MUCH_WORK, f"for_each: {error}", step.name)) from None
    items = [] if items is None else items
    if not isinstance(items, list):
        raise StepFailed(StepError(VALUE_MISSING, "for_each: the value is no list", step.name))
    if len(items) > MOST_ITEMS:
        told = f"for_each: {len(items)} items are more than {MOST_ITEMS}"
        raise StepFailed(StepError(TOO_MANY_ITEMS, told, step.name))
    return items


def scopes_of(items: Sequence[Any], scope: Scope) -> Iterator[Scope]:
    """Yields what the paths of a request lead into, for each item."""
    return (Scope(scope.input, scope.steps, item, has_item=True) for item in items)
