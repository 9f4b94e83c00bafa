"""Responses that the gateway stores, as data: what a request says of that, how a response is shown, and its events.

In this order: the options of a request; the conversation that it goes on from; a response in the background; the list of input
items; the answer of a call in the foreground; and the events of a response in the background. What a response repeats of its
request is what the gateway knows of it. Source: OpenAI's API reference, POST /v1/responses, the response object, "List input
items"; `store` is true there where a request does not say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import orjson

from gateway.core.errors import CallerFault, InvalidRequest
from gateway.core.openai.sse import event_data, event_json, json_object, split_events
from gateway.core.snapshot import Setting
from gateway.dialects.openai.responses_answer import ECHOED
from gateway.products.jobs.model import ECHO, REQUESTED, RESPONSE, STATUS, Job, JobState, derived_response_id, is_ours
from gateway.products.jobs.response_store import StoredResponse

# --- what a request asks for beside its answer: to run in the background, to be kept, to go on from another ---

Keeping = Literal["provider", "asked", "gateway", "off", "never"]
"""As `StoreMode` of jobs.yaml; `asked`: the gateway, those that ask for it, because no one account has them all."""
MOST_ID_CHARS: Final = 256
KEEPS_RESPONSES: Final[Setting[bool]] = Setting("keeps_responses", True)
"""False: the gateway keeps none of the responses of a key, so none runs in the background."""


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
    """Returns whether the gateway keeps the answer of a call in the foreground."""
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


# --- the conversation behind a `previous_response_id`: questions and answers as items of the next request ---

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

    Instructions are no part of it: each request brings its own, as at OpenAI.
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


# --- a response in the background before its answer is there, and where there never is one ---

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
STREAMS: Final = "stream"
STORES: Final = "store"
PREVIOUS: Final = "previous"
GENERATION: Final = "generation"
"""In `marks` of a job of kind `response`: the number of the last run of the model whose events may have been seen, from 0."""
MOST_ECHO_BYTES: Final = 16_384
"""The longest echo: what is longer of a request is repeated by its answer only."""
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
    fields = job.about[REQUESTED]
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
    return {**made, **ECHOED, **job.about[REQUESTED][ECHO], **own_fields(job)}


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


# --- the input of a response, as `GET /v1/responses/{id}/input_items` lists it ---

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


# --- the answer of a call in the foreground that the gateway keeps: under its own id, whole or as events ---

_KEPT: Final = frozenset(("completed", "incomplete"))
_LAST: Final = frozenset(("response.completed", "response.incomplete"))
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n")


class KeptEvents:
    """Puts the gateway's id into the answer to one call.

    The id follows from the tenant and the provider's own, so that an answer that is given again, from a cache or to a repeated
    request, has the same one.
    """

    def __init__(self, tenant: str, previous_id: str) -> None:
        self._tenant = tenant
        self._previous_id = previous_id
        self._pending = bytearray()
        self._last: dict[str, Any] = {}
        self._behind = b""
        self.final: dict[str, Any] | None = None
        """The response at its end, which is to be kept before its event goes out by `end`."""

    def whole(self, response: dict[str, Any]) -> dict[str, Any] | None:
        """Returns a whole answer under the gateway's id; None: it is none, or has failed, and is not kept."""
        if response.get("object") != "response" or response.get("status") not in _KEPT:
            return None
        return self._own(response)

    def feed(self, chunk: bytes) -> bytes:
        """Returns the events of this chunk up to that of the end."""
        block = _whole_events(self._pending, chunk)
        if b'"response"' not in block:
            return block
        made: list[bytes] = []
        for event in split_events(block):
            if self.final is not None:
                self._behind += event
            else:
                made.append(self._read(event))
        return b"".join(made)

    def end(self, *, is_kept: bool) -> bytes:
        """Returns the event of the end, and what came with it."""
        if self.final is not None and not is_kept:
            self._last["response"] = {**self.final, "store": False}
        behind, self._behind, self.final = self._behind, b"", None
        return _frame(self._last) + behind

    def rest(self) -> bytes:
        """Returns what had no end."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def _read(self, event: bytes) -> bytes:
        parsed = event_json(event) if b'"response"' in event else None
        response = None if parsed is None else parsed.get("response")
        if parsed is None or not isinstance(response, dict):
            return event
        parsed["response"] = self._own(response)
        if parsed.get("type") in _LAST:
            self._last, self.final = parsed, parsed["response"]
            return b""
        return _frame(parsed)

    def _own(self, response: dict[str, Any]) -> dict[str, Any]:
        id = derived_response_id(self._tenant, str(response.get("id")))
        return {**response, "id": id, "store": True, "previous_response_id": self._previous_id or None}


def _whole_events(pending: bytearray, chunk: bytes) -> bytes:
    """Returns the events that a chunk completes; what is none yet stays in `pending`."""
    if not pending and chunk.endswith(_EVENT_ENDS):
        return chunk
    pending += chunk
    cut = max(pending.rfind(end) + len(end) if end in pending else 0 for end in _EVENT_ENDS)
    block = bytes(pending[:cut])
    del pending[:cut]
    return block


def _frame(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.get("type")).encode(), orjson.dumps(event))


# --- the events of a response in the background, made of a provider's: its own id, and numbers without gaps ---

GENERATION_STEP: Final = 1_000_000
"""The distance between the first numbers of two runs: more events than one answer has."""
ANNOUNCED: Final = 2
"""`response.created` and `response.queued`."""
MOST_HELD_BYTES: Final = 64 * 1024 * 1024
ENDS: Final = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
"""The last one is of logs that an older gateway has written, and of providers that go their own way."""
_REPLACED: Final = frozenset(("response.created", "response.queued"))
_NUMBER: Final = re.compile(rb'"sequence_number": ?(\d+)')
_DIGITS: Final = re.compile(rb" ?\d+")
_DELTA: Final = re.compile(rb'\{"type": ?"(response\.[a-z_.]+\.delta)"')


class EndlessEvent(ValueError):
    """An event of a provider's has no end in sight."""


def frame(kind: str, number: int, fields: Mapping[str, Any]) -> bytes:
    """Returns an event as it goes over the wire."""
    event = {"type": kind, "sequence_number": number, **fields}
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))


def announcements(queued: Mapping[str, Any]) -> list[bytes]:
    """Returns the events of a response that nobody has begun with, of generation 0."""
    return [
        frame(kind, number, {"response": queued}) for number, kind in enumerate(("response.created", "response.queued"))
    ]


def number_of(event: bytes) -> int:
    """Returns the number of an event that `OwnEvents` has made."""
    found = _NUMBER.search(event)
    return -1 if found is None else int(found[1])


def is_end(event: bytes) -> bool:
    """Returns whether nothing follows an event that `OwnEvents` has made."""
    return event[7 : event.find(b"\n")].decode("latin-1") in ENDS


class OwnEvents:
    """Makes the events of one generation; those that end it are held back, and asked for by `end`.

        created queued in_progress … (completed | incomplete | failed)

    The first two follow from the job alone, so whoever waits for a worker has them already. Each run of the model
    ("generation") numbers its events from a multiple of GENERATION_STEP on: a number says of which run it is, so that nobody
    who comes back can be given the end of another answer than the one he has begun.
    """

    def __init__(self, own: Mapping[str, Any], queued: Mapping[str, Any], generation: int) -> None:
        """`own` are the fields that replace a provider's; `queued` is the response before anything was answered."""
        self._own = own
        self._queued = queued
        self._pending = bytearray()
        self._items: dict[int, Any] = {}
        self._response: dict[str, Any] = dict(queued)
        self.next_number = generation * GENERATION_STEP
        self._has_begun = False
        self.final: dict[str, Any] | None = None
        """The response at its end, as the provider has it."""
        self.error: dict[str, Any] | None = None
        """The error that the provider has reported instead of an end."""

    @property
    def has_begun(self) -> bool:
        """Returns whether there are events of this generation."""
        return self._has_begun

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the events that this chunk of a provider's stream has completed. Raises EndlessEvent."""
        block = _whole_events(self._pending, chunk)
        if not block and len(self._pending) > MOST_HELD_BYTES:
            raise EndlessEvent(f"an event has more than {MOST_HELD_BYTES} bytes")
        made: list[bytes] = []
        for event in split_events(block):
            self._read(event, made)
        return made

    def plain(self, event: bytes) -> bytes | None:
        """Returns a usual event, which brings only more of the answer, with its own number; None: it has to be fed.

        `event` is one whole event, of two lines: its name, and its data with that as `type`.
        """
        if self._pending or not self._has_begun or self.final is not None:
            return None
        name_end = event.find(b"\n")
        if not event.startswith(b'data: {"type":"%b"' % event[7:name_end], name_end + 1):
            return None
        before, _, behind = event.partition(b'"sequence_number":')
        digits = _DIGITS.match(behind)
        if digits is None or b'"sequence_number":' in behind:
            return None
        made = b'%b"sequence_number":%d%b' % (before, self.next_number, behind[digits.end() :])
        self.next_number += 1
        return made

    def end(self, response: Mapping[str, Any]) -> list[bytes]:
        """Returns the last events: that of the response's end, and all before it that there has to be.

        OpenAI has no event for a cancelled response (openai-openapi, `ResponseStreamEvent`): it is `response.failed` with the
        status `cancelled`, as in Microsoft's server of that API (azure-sdk-for-python, azure-ai-agentserver-responses, B26).
        """
        made: list[bytes] = []
        if not self._has_begun:
            self._begin(made, is_running=False)
        kind = "failed" if response["status"] == "cancelled" else response["status"]
        made.append(self._frame(f"response.{kind}", {"response": response}))
        return made

    def so_far(self) -> dict[str, Any]:
        """Returns the response with the items that are done, for an end that is not the provider's."""
        return {**self._response, **self._own, "output": [self._items[at] for at in sorted(self._items)], "usage": None}

    def _read(self, event: bytes, made: list[bytes]) -> None:
        data = event_data(event).strip()
        if not data:
            return  # a comment
        if self._has_begun and (kind := _DELTA.match(data)) and len(_NUMBER.findall(data)) == 1:
            # the usual event: nothing in it is the gateway's but its number
            data = _NUMBER.sub(b'"sequence_number":%d' % self.next_number, data, count=1)
            made.append(b"event: %b\ndata: %b\n\n" % (kind[1], data))
            self.next_number += 1
            return
        parsed = json_object(data)
        if parsed is None or self.final is not None or self.error is not None:
            return  # [DONE], as some send; the failed response behind an error; nonsense is found by the relay
        kind = parsed.get("type")
        if not isinstance(kind, str) or kind == "error" or "error" in parsed:
            self.error = _error_in(parsed)
            return
        self._take(kind, parsed, made)

    def _take(self, kind: str, event: dict[str, Any], made: list[bytes]) -> None:
        response = event.get("response")
        if isinstance(response, dict):
            self._response = event["response"] = {**response, **self._own}
        if kind in ENDS:
            self.final = self._response
            if self._items and not self.final.get("output"):  # some providers leave the output to the events before
                self.final = {**self.final, "output": [self._items[at] for at in sorted(self._items)]}
            return
        if kind in _REPLACED:
            return
        if not self._has_begun:
            self._begin(made, is_running=kind != "response.in_progress")
        if kind == "response.output_item.done" and isinstance(event.get("output_index"), int):
            self._items[event["output_index"]] = event.get("item")
        event.pop("type")
        event.pop("sequence_number", None)
        made.append(self._frame(kind, event))

    def _begin(self, made: list[bytes], *, is_running: bool) -> None:
        self._has_begun = True
        made += [self._frame(kind, {"response": self._queued}) for kind in ("response.created", "response.queued")]
        if is_running:
            running = {**self._response, **self._own, "status": "in_progress"}
            made.append(self._frame("response.in_progress", {"response": running}))

    def _frame(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        made = frame(kind, self.next_number, fields)
        self.next_number += 1
        return made


def _error_in(event: dict[str, Any]) -> dict[str, Any]:
    error = event.get("error")
    inner = error if isinstance(error, dict) else event
    message, code = inner.get("message"), inner.get("code") or inner.get("type")
    text = message if isinstance(message, str) else "The provider reported an error."
    return failure(text, str(code), str(inner.get("type")))
