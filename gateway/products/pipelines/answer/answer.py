"""A run's answer, in the form of the endpoint at which it was asked for.

Source: OpenAI's chat completion and response objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.core.errors import GatewayError
from gateway.products.jobs.model.job import Tally
from gateway.products.pipelines.compile.compiling.plan import PATHS
from gateway.products.pipelines.rules.states import RUN_BUDGET_EXCEEDED, StepError, StepPart, StepPhase, StepState
from gateway.products.pipelines.templates.templates.templates import as_text

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


def run_headers(run_id: str, steps: Mapping[str, StepState]) -> list[tuple[str, str]]:
    """Returns the headers that tell of a run: its id, and of each step how many answers it has come to."""
    told = " ".join(f"{name}:{_told(state)}" for name, state in steps.items())
    return [(RUN.decode(), run_id), (STEPS.decode(), told[:MOST_HEADER_CHARS])]


def _told(state: StepState) -> str:
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
    """Returns the error of a run that has failed."""
    where = f"The step '{why.step}' of the pipeline has failed" if why.step else "The pipeline has failed"
    return {
        "message": f"{where}: {why.error_class}: {why.message}",
        "type": PipelineFailed.type,
        "param": why.step or None,
        "code": RUN_BUDGET_EXCEEDED if why.error_class == RUN_BUDGET_EXCEEDED else PipelineFailed.code,
        "run_id": run_id,
    }


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
