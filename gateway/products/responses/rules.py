"""Responses that the gateway stores, as data: what a request says of that, what it goes on from, and how a response is shown.

Source: OpenAI's API reference, POST /v1/responses, the response object, "List input items"; `store` is true there where a
request does not say. What a response repeats of its request is what the gateway knows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import orjson

from gateway.core.errors import CallerFault, InvalidRequest
from gateway.products.jobs.model import RESPONSE, Job, JobState, is_ours
from gateway.products.responses.store import StoredResponse

# What a request of Responses asks for beside its answer: to run in the background, to be kept, to go on from another one.

StoreMode = Literal["provider", "gateway", "off", "never"]
"""Who keeps responses: the provider, untouched; the gateway; nobody; nobody, and none runs in the background."""
Keeping = Literal["provider", "asked", "gateway", "off", "never"]
"""As StoreMode; `asked`: the gateway, those that ask for it, because no one account has them all."""
MOST_ID_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """The fields of a request that say whether and how its response is stored."""

    in_background: bool = False
    stores: bool | None = None
    """None: it does not say."""
    previous_id: str = ""
    """The response that it goes on from; empty: none."""


def read_response_options(body: Mapping[str, Any]) -> ResponseOptions:
    """Reads the top-level fields of a body. Raises InvalidRequest, naming the field."""
    previous = body.get("previous_response_id")
    if previous is not None and not (isinstance(previous, str) and len(previous) <= MOST_ID_CHARS):
        raise InvalidRequest(
            "The field 'previous_response_id' must be the id of a response.",
            param="previous_response_id",
            code="invalid_type",
        )
    return ResponseOptions(bool(_flag(body, "background")), _flag(body, "store"), previous or "")


def _flag(body: Mapping[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"The field '{name}' must be true or false.", param=name, code="invalid_type")
    return value


def keeps(keeping: Keeping, options: ResponseOptions, *, goes_on_from_ours: bool) -> bool:
    """Tells whether the gateway keeps the answer of a call in the foreground."""
    if keeping == "gateway":
        return options.stores is not False
    return keeping == "asked" and (options.stores is True or (options.stores is None and goes_on_from_ours))


def items_of(given: object) -> list[dict[str, Any]]:
    """Returns the `input` of a request as a list of items. Raises InvalidRequest where it is none."""
    if given is None:
        return []
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    if isinstance(given, list) and all(isinstance(item, dict) for item in given):
        return given
    raise InvalidRequest("The field 'input' must be a text or a list of items.", param="input", code="invalid_type")


def sent_upstream(
    body: Mapping[str, Any], before: Sequence[dict[str, Any]], previous_id: str, *, stores: bool | None
) -> dict[str, Any]:
    """Returns the body for a provider: with the items of earlier responses, and what it is to go on from at the provider.

    It never runs in the background there; `stores` says whether the provider is to keep it, None: as the request says.
    """
    left_out = ("background", "previous_response_id")
    sent = {name: value for name, value in body.items() if name not in left_out}
    if previous_id:
        sent["previous_response_id"] = previous_id
    if stores is not None:
        sent["store"] = stores
    if before:
        sent["input"] = [*before, *items_of(body.get("input"))]
    return sent


class ResponseNotFound(CallerFault):
    """There is no such response, or it is another tenant's: in OpenAI's words."""

    status = 404
    code = None

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response with id '{response_id[:256]}' not found.")


class BackgroundRefused(CallerFault):
    """Nothing of the key's responses may be kept, and one in the background has to be."""

    code = "background_not_allowed"


# The conversation behind a `previous_response_id`: what was asked and answered before, as items of the next request.
#
# Instructions are no part of it: each request brings its own, as at OpenAI.

MOST_LINKS: Final = 64
MOST_BYTES: Final = 8 * 1024 * 1024
PARAM: Final = "previous_response_id"


class Conversation(NamedTuple):
    """What goes before the items of a request."""

    items: list[dict[str, Any]]
    previous_id: str = ""
    """A provider's own response at its beginning, which only the provider knows; empty: none."""


def conversation_of(response_id: str, chain: Sequence[StoredResponse]) -> Conversation:
    """Returns the items of kept responses, given the latest first, which is called `response_id`.

    Raises InvalidRequest where one is gone, or they are too many, or too long.
    """
    wanted, seen = response_id, set[str]()
    links: list[StoredResponse] = []
    for response in chain:
        if response.id != wanted or response.id in seen:
            break
        seen.add(response.id)
        links.append(response)
        wanted = response.previous_id
        if not is_ours(RESPONSE, wanted):
            break
    if wanted in seen or len(links) > MOST_LINKS or (len(links) == MOST_LINKS and is_ours(RESPONSE, wanted)):
        raise InvalidRequest(
            f"The response '{response_id}' goes on from more than {MOST_LINKS} others; send the conversation as 'input'.",
            param=PARAM,
            code="conversation_too_long",
        )
    if is_ours(RESPONSE, wanted):
        raise previous_not_found(wanted)
    if sum(link.bytes for link in links) > MOST_BYTES:
        raise InvalidRequest(
            f"The conversation behind '{response_id}' has more than {MOST_BYTES} bytes; send what matters of it as 'input'.",
            param=PARAM,
            code="conversation_too_long",
        )
    items: list[dict[str, Any]] = []
    for link in reversed(links):
        items += orjson.loads(link.input_items)
        items += repeated(orjson.loads(link.body).get("output"))
    return Conversation(items, wanted)


def previous_not_found(response_id: str, why: str = "") -> InvalidRequest:
    """Returns the refusal of a request that goes on from a response that nobody has."""
    return InvalidRequest(
        f"Previous response with id '{response_id}' not found.{why and ' ' + why}",
        param=PARAM,
        code="previous_response_not_found",
    )


def repeated(output: object) -> list[dict[str, Any]]:
    """Returns the items of an answer as they can be sent again: no halves, and no reasoning that its provider has not kept."""
    items = output if isinstance(output, list) else []
    return [item for item in items if isinstance(item, dict) and _is_sayable(item)]


def _is_sayable(item: dict[str, Any]) -> bool:
    if item.get("status") in ("in_progress", "incomplete") and item.get("type") != "message":
        return False
    return item.get("type") != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))


# A response in the background as its caller sees it before its answer is there, and where there never is one.

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ASKED: Final = "response"
"""In `about` of a job of kind `response`: what its request has asked for."""
ECHO: Final = "echo"
"""In that: what a response repeats of its request, until it is kept."""
STREAMS: Final = "stream"
STORES: Final = "store"
PREVIOUS: Final = "previous"
STATUS: Final = "status"
"""In `marks` of such a job whose response is kept: how that has ended."""
GENERATION: Final = "generation"
"""In `marks` of such a job: the number of the last run of the model whose events may have been seen, from 0."""
MOST_ECHO_BYTES: Final = 16_384
"""What is longer of a request is repeated by its answer only."""
ECHOED: Final[Mapping[str, Any]] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a response repeats of its request, with the values of a request that says nothing."""
_OF_JOB: Final[Mapping[JobState, Status]] = {
    JobState.SCHEDULED: "queued",
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "failed",
}


def echo_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is kept of a request to be repeated, the smallest fields first, as many as fit."""
    echoed = {name: body[name] for name in ECHOED if body.get(name) is not None}
    sizes = sorted((len(orjson.dumps(value)), name) for name, value in echoed.items())
    kept, left = {}, MOST_ECHO_BYTES
    for size, name in sizes:
        left -= size + len(name)
        if left < 0:
            break
        kept[name] = echoed[name]
    return kept


def own_fields(job: Job) -> dict[str, Any]:
    """Returns the fields of a response that are the gateway's to say, whatever the provider says in them."""
    fields = job.about[ASKED]
    return {
        "id": job.id,
        "created_at": int(job.created_at),
        "background": True,
        "store": fields[STORES],
        "previous_response_id": fields[PREVIOUS] or None,
    }


def status_of(job: Job) -> Status:
    """Returns the status of a job of kind `response` in the words of responses."""
    status: Status = job.marks.get(STATUS) or _OF_JOB[job.state]
    return status


def begun(job: Job, status: Status) -> dict[str, Any]:
    """Returns the response without an answer."""
    made = {
        "id": job.id,
        "object": "response",
        "created_at": int(job.created_at),
        "status": status,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": job.model,
        "output": [],
        "usage": None,
    }
    return {**made, **ECHOED, **job.about[ASKED][ECHO], **own_fields(job)}


def ended(response: Mapping[str, Any], status: Status, error: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the response at an end that is not the provider's."""
    return {**response, "status": status, "error": error}


def shown(job: Job) -> dict[str, Any]:
    """Returns the response of a job whose answer is not kept: it has not ended, or has ended without one."""
    error = None
    if job.state is JobState.EXPIRED:
        error = LATE
    elif job.state is JobState.FAILED and job.last_error is not None:
        error = failure(job.last_error.message, job.last_error.error_class)
    return ended(begun(job, status_of(job)), status_of(job), error)


_CODES: Final = frozenset((
    "server_error", "rate_limit_exceeded", "invalid_prompt", "data_residency_mismatch", "bio_policy",
    "misalignment_policy_violation", "vector_store_timeout", "invalid_image", "invalid_image_format",
    "invalid_base64_image", "invalid_image_url", "image_too_large", "image_too_small", "image_parse_error",
    "image_content_policy_violation", "invalid_image_mode", "image_file_too_large", "unsupported_image_media_type",
    "empty_image_file", "failed_to_download_image", "image_file_not_found",
))  # fmt: skip
"""The codes of a failed response (OpenAI's API reference, the response object); clients know no others."""
_CALLERS: Final = ("invalid_request", "bad_request", "content_policy", "context_length", "payload_too_large")


def failure(message: str, code: str, kind: str = "") -> dict[str, Any]:
    """Returns the error of a failed response; `code` and `kind` are what its provider, or the gateway, calls it."""
    words = f"{code} {kind}"
    if code in _CODES:
        error_code = code
    elif "rate_limit" in words or "quota" in words:
        error_code = "rate_limit_exceeded"
    else:
        error_code = "invalid_prompt" if any(word in words for word in _CALLERS) else "server_error"
    return {"code": error_code, "message": message}


LATE: Final[Mapping[str, str]] = {"code": "server_error", "message": "The response was not ready before its deadline."}


# The input of a response as `GET /v1/responses/{id}/input_items` lists it: items with ids, and texts as parts.

_MARKS: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def listed(response_id: str, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the items; those that came without an id have always the same one."""
    body = response_id.removeprefix(RESPONSE)
    return [_listed(item, body, place) for place, item in enumerate(items)]


def _listed(item: dict[str, Any], body: str, place: int) -> dict[str, Any]:
    kind = item.get("type") or "message"
    id = item.get("id")
    made = {
        **item,
        "id": id if isinstance(id, str) and id else f"{_MARKS.get(kind, 'item')}_gw{body}{place:04d}",
        "type": kind,
    }
    if kind != "message":
        return made
    content = made.get("content")
    if isinstance(content, str):
        part = "output_text" if made.get("role") == "assistant" else "input_text"
        made["content"] = [{"type": part, "text": content}]
    made.setdefault("status", "completed")
    return made
