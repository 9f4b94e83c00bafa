"""What the files of a step's batches say: an answer or an error for each item, by its number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.products.pipelines.advance.results import values_of_many
from gateway.products.pipelines.compile.compiling.plan import Step
from gateway.products.pipelines.rules.states import BEYOND_REPAIR, RUN_BUDGET_EXCEEDED, StepError, StepPart, StepState

MOST_MESSAGE_CHARS = 500


def answers_in(lines: bytes) -> dict[int, Any]:
    """Returns the bodies of answers by the numbers of their items."""
    found = (orjson.loads(line) for line in lines.splitlines())
    return {int(one["custom_id"]): one["response"]["body"] for one in found}


def errors_in(step: Step, lines: bytes) -> dict[int, StepError]:
    """Returns why items have failed, by their numbers; a last line that has no end is left out."""
    found = (orjson.loads(line) for line in lines[: lines.rfind(b"\n") + 1].splitlines())
    return {int(one["custom_id"]): error for one in found if (error := _error_in(step, one)) is not None}


def values_of_items(step: Step, answers: Mapping[int, Any], state: StepState) -> dict[str, Any]:
    """Returns what is known of a step with items; `answers` are those of all its parts."""
    stand_in = step.on_failure.value if step.on_failure.action == "use" else None
    bodies = [answers.get(number) for number in range(state.total)]
    return {**values_of_many(step.endpoint, bodies, stand_in), "failed": state.failed}


def state_of_items(step: Step, state: StepState, answered: Sequence[bytes], failed: Sequence[bytes]) -> StepState:
    """Returns a step with items as the files of answers and of errors of its parts have it, both in the order of the parts."""
    answers = [answers_in(lines) for lines in answered]
    errors = [errors_in(step, lines) for lines in failed]
    asked = {number: body for part in (answers[:1] + answers[2:]) for number, body in part.items()}
    left = [error for number, error in _last_first(errors) if number not in asked]
    spent = (error for error in left if error.error_class == RUN_BUDGET_EXCEEDED)
    hopeful: Mapping[int, StepError] = {}
    if state.part is not StepPart.SECOND:
        hopeful = {number: error for number, error in errors[0].items() if error.error_class not in BEYOND_REPAIR}
    return StepState(
        state.part,
        state.phase,
        values_of_items(step, asked, state),
        state.failed,
        state.total,
        next(spent, None) or next(iter(left), state.error),
        failures=hopeful,
        answers=answers[1] if state.part is StepPart.REPAIR else {},
    )


def _error_in(step: Step, line: Mapping[str, Any]) -> StepError | None:
    body = (line.get("response") or {}).get("body")
    error = line.get("error") or (body.get("error") if isinstance(body, dict) else None) or {}
    if not isinstance(error, dict):
        return None
    return StepError(str(error.get("code")), str(error.get("message"))[:MOST_MESSAGE_CHARS], step.name)


def _last_first(errors: Sequence[Mapping[int, StepError]]) -> Iterator[tuple[int, StepError]]:
    return (told for part in reversed(errors) for told in part.items())
