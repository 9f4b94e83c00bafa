"""What a child's requests tell of their run: whose step they are, and what their answers have to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from gateway.core.call import Call
from gateway.core.errors import Forbidden, InvalidRequest
from gateway.features.output.schema import depth_of
from gateway.products.batches.input import bare_provider
from gateway.products.jobs.calls.ports import StepOfRun
from gateway.products.jobs.model import Job, JobKind, JobNeedsProviderKey, NewJob, Tally
from gateway.products.pipelines.advance import values_of_many
from gateway.products.pipelines.answer import input_of
from gateway.products.pipelines.compile.compiling import MOST_DEPTH, PATHS, PipelinePlan, Step
from gateway.products.pipelines.rules import (
    BEYOND_REPAIR,
    DIGEST,
    MODEL,
    OUTPUT,
    PIPELINE,
    RUN_BUDGET_EXCEEDED,
    RUNS,
    STEP,
    USD_PER_RUN,
    CarriedRun,
    StepError,
    StepPart,
    StepState,
)

# A call to `pipelines/NAME` becomes a run: the job that would have been its call's, of another kind.


ENDPOINTS = (PATHS["chat"], PATHS["responses"])
"""Where a pipeline can be asked for."""


def as_run(new: NewJob, call: Call, plan: PipelinePlan) -> NewJob:
    """Returns the run of a call, from the job that it would be otherwise.

    Raises InvalidRequest for an endpoint or an input that does not fit, Forbidden where the key may not use the models that
    the pipeline calls, JobNeedsProviderKey.
    """
    endpoint = new.job.about["endpoint"]
    if endpoint not in ENDPOINTS:
        raise InvalidRequest(
            f"A pipeline answers at {' and '.join(ENDPOINTS)}, not at {endpoint}.", param="model", code="not_supported"
        )
    _refuse_models(call, plan)
    carried = CarriedRun(plan.name, plan.source, input_of(plan, _request_of(call)), endpoint)
    job = new.job
    about = {**job.about, PIPELINE: plan.name, DIGEST: plan.digest, "is_urgent": job.is_urgent}
    run = replace(job, kind=JobKind.RUN, segment=RUNS, about=about, max_attempts=1, tally=Tally(total=len(plan.steps)))
    return replace(new, job=run, payload=_packed(carried))


def _packed(carried: CarriedRun) -> bytes:
    """Returns the payload of a run. Raises InvalidRequest for an input of which no request could be made."""
    try:
        is_deep = depth_of(orjson.dumps(carried.input)) > MOST_DEPTH
    except orjson.JSONEncodeError:  # deeper than it writes
        is_deep = True
    if is_deep:
        raise InvalidRequest(
            f"The input of a pipeline may be nested {MOST_DEPTH} levels deep; this one is deeper.",
            param="input",
            code="invalid_pipeline_input",
        )
    return carried.packed()


def _request_of(call: Call) -> Mapping[str, Any]:
    request = call.parsed if call.parsed is not None else orjson.loads(call.body)
    return request if isinstance(request, dict) else {}


def _refuse_models(call: Call, plan: PipelinePlan) -> None:
    """Raises where a step would be refused: it is said before anything is paid for."""
    policy, key = call.policy, call.key
    for name in plan.models:
        if key.allows is not None and not key.allows.match(name):
            raise Forbidden(
                f"The key '{key.name}' may not use the model '{name}', which {plan.model_name} calls.", param="model"
            )
        model = policy.find_model(name)
        group = bare_provider(policy, model) if call.credential is not None and model is not None else None
        if group is not None:
            raise JobNeedsProviderKey(
                f"The provider '{group}' is paid with the caller's own credential here, and a run keeps none; set "
                f"providers.{group}.api_key in the gateway's config."
            )


# What the files of a step's batches say: an answer or an error for each item, by its number.


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
    bodies = {number: body for part in (answers[:1] + answers[2:]) for number, body in part.items()}
    left = [error for number, error in _last_first(errors) if number not in bodies]
    spent = (error for error in left if error.error_class == RUN_BUDGET_EXCEEDED)
    hopeful: Mapping[int, StepError] = {}
    if state.part is not StepPart.SECOND:
        hopeful = {number: error for number, error in errors[0].items() if error.error_class not in BEYOND_REPAIR}
    return StepState(
        state.part,
        state.phase,
        values_of_items(step, bodies, state),
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
    return (pair for part in reversed(errors) for pair in part.items())


def step_of(job: Job) -> StepOfRun | None:
    """Returns the step that a job is; None: it is none."""
    if not job.parent:
        return None
    about = job.about
    return StepOfRun(job.parent, about[MODEL], about[STEP], about.get(USD_PER_RUN), about.get(OUTPUT))
