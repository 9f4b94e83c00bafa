"""What goes into a run, and what comes out: a call becomes one, its children answer, and its end has the form of the call.

Source: OpenAI's chat completion and response objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from gateway.core.call import Call
from gateway.core.errors import Forbidden, GatewayError, InvalidRequest
from gateway.features.output.schema import depth_of
from gateway.products.batches.input import bare_provider
from gateway.products.jobs.model import JobKind, JobNeedsProviderKey, NewJob, Tally
from gateway.products.pipelines.advance import values_of_many
from gateway.products.pipelines.compile import MOST_DEPTH, PATHS, PipelinePlan, Step
from gateway.products.pipelines.rules import (
    BEYOND_REPAIR,
    DIGEST,
    PIPELINE,
    RUN_BUDGET_EXCEEDED,
    RUNS,
    RunPayload,
    StepError,
    StepPart,
    StepPhase,
    StepState,
    misfit_of,
    with_defaults,
)
from gateway.products.pipelines.templates import as_text

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
    request = call.parsed if call.parsed is not None else orjson.loads(call.body)
    payload = RunPayload(plan.name, plan.source, input_of(plan, request if isinstance(request, dict) else {}), endpoint)
    job = new.job
    about = {**job.about, PIPELINE: plan.name, DIGEST: plan.digest, "is_urgent": job.is_urgent}
    run = replace(job, kind=JobKind.RUN, segment=RUNS, about=about, max_attempts=1, tally=Tally(total=len(plan.steps)))
    return replace(new, job=run, payload=_packed(payload))


def _refuse_models(call: Call, plan: PipelinePlan) -> None:
    """Raises where a step would be refused: before anything is paid for."""
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


def _packed(payload: RunPayload) -> bytes:
    """Returns the payload of a run. Raises InvalidRequest for an input of which no request could be made."""
    try:
        is_deep = depth_of(orjson.dumps(payload.input)) > MOST_DEPTH
    except orjson.JSONEncodeError:  # deeper than it writes
        is_deep = True
    if is_deep:
        raise InvalidRequest(
            f"The input of a pipeline may be nested {MOST_DEPTH} levels deep; this one is deeper.",
            param="input",
            code="invalid_pipeline_input",
        )
    return payload.packed()


# What a caller gives a pipeline: read from a chat completion's or a response's request, and held against the plan's schema.
#
# `metadata.input` is the input as it is, or as JSON in a text; without it the last message of the user is: as JSON where the
# schema wants an object or a list and the text is one; else as the one field that the schema demands; else as a text.

FIELD: Final = "metadata.input"


def input_of(plan: PipelinePlan, request: Mapping[str, Any]) -> Any:
    """Returns the input of a run. Raises InvalidRequest, naming the field and the remedy."""
    value = with_defaults(plan.input_schema, _text_in(plan, request))
    misfit = None if plan.input_schema is None else misfit_of(plan.input_schema, value)
    if misfit is not None:
        where, why = misfit
        name = f"input.{where}" if where else "input"
        raise InvalidRequest(
            f"The input of {plan.model_name} is not what it takes: '{name}' {why}. Send it as JSON in the last user message, "
            f"or in '{FIELD}'.",
            param=name,
            code="invalid_pipeline_input",
        )
    return value


def _text_in(plan: PipelinePlan, request: Mapping[str, Any]) -> Any:
    metadata = request.get("metadata")
    if isinstance(metadata, dict) and "input" in metadata:
        value = metadata["input"]
        if not isinstance(value, str) or not _wants_structure(plan):
            return value
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            raise InvalidRequest(f"The field '{FIELD}' is no JSON.", param=FIELD) from None
    text = _last_text(request)
    if text is None:
        raise InvalidRequest(
            f"There is no input: put it into the last message with the role 'user', or into '{FIELD}'.",
            param="messages",
        )
    return _read(plan, text)


def _read(plan: PipelinePlan, text: str) -> Any:
    schema = plan.input_schema or {}
    if not _wants_structure(plan):
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = text
    if isinstance(value, dict | list):
        return value
    required = schema.get("required")
    if isinstance(required, list) and len(required) == 1:
        return {required[0]: text}
    return text


def _wants_structure(plan: PipelinePlan) -> bool:
    """Tells whether the schema takes an object or a list, and no text."""
    schema = plan.input_schema or {}
    kind = schema.get("type", "object" if "required" in schema or "properties" in schema else None)
    return kind in ("object", "array")


def _last_text(request: Mapping[str, Any]) -> str | None:
    """Returns the last text of the user in a request of either form."""
    sent = request.get("messages", request.get("input"))
    if isinstance(sent, str):
        return sent
    messages = [one for one in sent if isinstance(one, dict)] if isinstance(sent, list) else []
    last = next((one for one in reversed(messages) if one.get("role") == "user"), None)
    if last is None:
        return None
    content = last.get("content")
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [text for text in parts if isinstance(text, str)]
    return "".join(texts) if texts else None


# What the files of a step's batches say: an answer or an error for each item, by its number.

MOST_MESSAGE_CHARS = 500


def errors_in(step: Step, lines: bytes) -> dict[int, StepError]:
    """Returns why items have failed, by their numbers; a last line that has no end is left out."""
    found = (orjson.loads(line) for line in lines[: lines.rfind(b"\n") + 1].splitlines())
    return {int(one["custom_id"]): error for one in found if (error := _error_in(step, one)) is not None}


def state_of_items(step: Step, state: StepState, answered: Sequence[bytes], failed: Sequence[bytes]) -> StepState:
    """Returns a step with items as the files of answers and of errors of its parts have it, both in the order of the parts."""
    answers = [
        {int(one["custom_id"]): one["response"]["body"] for one in map(orjson.loads, lines.splitlines())}
        for lines in answered
    ]
    errors = [errors_in(step, lines) for lines in failed]
    bodies = {number: body for part in (answers[:1] + answers[2:]) for number, body in part.items()}
    left = [error for part in reversed(errors) for number, error in part.items() if number not in bodies]
    spent = (error for error in left if error.error_class == RUN_BUDGET_EXCEEDED)
    stand_in = step.on_failure.value if step.on_failure.action == "use" else None
    values = values_of_many(step.endpoint, [bodies.get(number) for number in range(state.total)], stand_in)
    hopeful: Mapping[int, StepError] = {}
    if state.part is not StepPart.SECOND:
        hopeful = {number: error for number, error in errors[0].items() if error.error_class not in BEYOND_REPAIR}
    return StepState(
        state.part,
        state.phase,
        {**values, "failed": state.failed},
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


# A run's answer, in the form of the endpoint at which it was asked for.

RUN: Final = b"x-gateway-run"
STEPS: Final = b"x-gateway-steps"
MOST_HEADER_CHARS: Final = 2_000


class PipelineFailed(GatewayError):
    """A step has failed for good, and the plan does not accept that. To send the call again would pay for all steps again."""

    status = 502
    code = "run_failed"
    should_retry = False


class PipelineUnfinished(GatewayError):
    """The caller's time is over before the run's; the run goes on."""

    status = 504
    code = "run_unfinished"
    should_retry = False


def answer_body(endpoint: str, run_id: str, model: str, output: Any, tally: Tally, now: float) -> bytes:
    """Returns the body of a run that has come to something."""
    text = as_text(output)
    if endpoint == PATHS["responses"]:
        return orjson.dumps(_response(run_id, model, text, tally, now))
    return orjson.dumps(
        {
            "id": f"chatcmpl-{run_id}",
            "object": "chat.completion",
            "created": int(now),
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": tally.input_tokens,
                "completion_tokens": tally.output_tokens,
                "total_tokens": tally.input_tokens + tally.output_tokens,
                "prompt_tokens_details": {"cached_tokens": tally.cached_tokens},
            },
        }
    )


def _response(run_id: str, model: str, text: str, tally: Tally, now: float) -> dict[str, Any]:
    message = {
        "id": f"msg_{run_id}",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    return {
        "id": f"resp_{run_id}",
        "object": "response",
        "created_at": int(now),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [message],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": {
            "input_tokens": tally.input_tokens,
            "input_tokens_details": {"cached_tokens": tally.cached_tokens},
            "output_tokens": tally.output_tokens,
            "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens},
            "total_tokens": tally.input_tokens + tally.output_tokens,
        },
    }


def run_headers(run_id: str, steps: Mapping[str, StepState]) -> list[tuple[str, str]]:
    shown = " ".join(f"{name}:{_shown_state(state)}" for name, state in steps.items())
    return [(RUN.decode(), run_id), (STEPS.decode(), shown[:MOST_HEADER_CHARS])]


def _shown_state(state: StepState) -> str:
    if state.phase is StepPhase.RUNNING:
        return "stopped"
    if state.is_lost:
        return "failed"
    count = f"{state.total - state.failed}/{state.total}" if state.failed else str(state.total)
    return f"{count}(repaired)" if state.part is StepPart.SECOND else count


def failure_body(run_id: str, why: StepError) -> bytes:
    """Returns the body of a run that has failed: an error in OpenAI's shape."""
    return orjson.dumps({"error": failure(run_id, why)})


def failure(run_id: str, why: StepError) -> Mapping[str, Any]:
    where = f"The step '{why.step}' of the pipeline has failed" if why.step else "The pipeline has failed"
    return {
        "message": f"{where}: {why.error_class}: {why.message}",
        "type": PipelineFailed.type,
        "param": why.step or None,
        "code": RUN_BUDGET_EXCEEDED if why.error_class == RUN_BUDGET_EXCEEDED else PipelineFailed.code,
        "run_id": run_id,
    }
