"""What clients read that ask as OpenAI's do: errors, `{"error": {"message", "type", "param", "code"}}`, with a request id.

Callers of other APIs read other shapes: `AnswerShape` says what all have, `OpenAIShape` is the one of the core. A stream whose
head went out while it waited has no status left: what would have been a whole answer, error or not, is sent as its events.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import ceil
from random import getrandbits
from typing import Any, Final

import orjson

from gateway.core import error_tables
from gateway.core.errors import AdmissionDenied, GatewayError, MethodNotAllowed, RequestExceedsLimits
from gateway.core.openai.sse import FAILED_REASONS, answer_object, error_in, failed_error, json_object, response_failed
from gateway.core.types import (
    AnswerShape,
    Endpoint,
    ErrorClass,
    Phase,
    ProviderError,
    RawHeaders,
    StreamForm,
    UpstreamFailed,
)

RawHeader = tuple[bytes, bytes]

SHOWN_BYTES = 1000
"""The bytes that are shown of an error that nobody can read."""
PASSING_CODES = ("server_error", "rate_limit_exceeded", "vector_store_timeout")
"""Why a response has failed, where another attempt may do better."""
_STATES = frozenset(("queued", "in_progress", "completed", "failed", "incomplete"))


def new_request_id() -> str:
    """A new request id: unique, but no secret, so the cheap generator will do."""
    return f"req_{getrandbits(128):032x}"


def error_body(error: GatewayError, endpoint: Endpoint | None = None, request_id: str | None = None) -> bytes:
    """The JSON text of an error, as the callers of this endpoint read it; None: there is none, or it is OpenAI's."""
    return (OPENAI if endpoint is None else endpoint.shape).error_body(error, request_id)


def named_request(shape: AnswerShape, headers: list[RawHeader]) -> list[RawHeader]:
    """Adds the header in which the shape's callers look for a request's id; returns the headers."""
    name = shape.request_id_header
    if name is not None:
        index = dict(headers)
        if name not in index and b"x-request-id" in index:
            headers.append((name, index[b"x-request-id"]))
    return headers


def error_object(error: GatewayError) -> dict[str, Any]:
    """The object that every shape of an error has in it."""
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def on_one_line(text: bytes) -> bytes:
    """JSON, or a part of it, fit for one `data:` line: a line end in it is never more than white space."""
    return text.translate(None, b"\r\n")


def unreadable(status: int, body: bytes) -> dict[str, Any]:
    """The error object for an answer without one."""
    text = body[:SHOWN_BYTES].decode(errors="replace")
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {
        "message": f"The provider answered with status {status}: {text}",
        "type": kind,
        "param": None,
        "code": None,
    }


def error_headers(error: GatewayError, length: int) -> list[RawHeader]:
    """The headers that go with an error's body, without the request id."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    if error.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if error.should_retry else b"false"))
    if error.retry_after_s is not None:
        milliseconds = whole_ms(error.retry_after_s)
        headers.append((b"retry-after", b"%d" % ceil(milliseconds / 1000)))
        headers.append((b"retry-after-ms", b"%d" % milliseconds))
    if isinstance(error, AdmissionDenied | RequestExceedsLimits) and error.limit is not None:
        headers.append((b"x-gateway-limit", error.limit.encode()))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    return headers


def whole_ms(delay_s: float) -> int:
    """Returns a delay in milliseconds: up, lest whoever obeys comes too early."""
    return max(1, ceil(round(delay_s * 1000, 6)))


# --- the shape of answers, streams and errors of OpenAI's endpoints ---


class OpenAIShape:
    """How OpenAI's callers read what comes back, where an endpoint has no form of its own. Implements `AnswerShape`."""

    stream: StreamForm = "chat"
    request_id_header: bytes | None = None
    needs_choices = False
    """An answer without choices is none."""

    def __init__(self, find_foreign: Callable[[bytes, RawHeaders], dict[str, Any] | None] | None = None) -> None:
        """`find_foreign` returns the error object of a body in the shape of another API; None: the body has another one."""
        self._find_foreign = find_foreign

    def error_body(self, error: GatewayError, request_id: str | None = None) -> bytes:
        return orjson.dumps({"error": error_object(error)})

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        return self._event_of(error_object(error), 500)

    def provider_error(self, error: ProviderError) -> bytes | None:
        found = None if self._find_foreign is None else self._find_foreign(error.body, error.headers)
        if found is None and error.is_converted and (original := error_tables.error_object(error.body)) is not None:
            found = None if original.keys() >= _FIELDS and original["type"] != "error" else original
        if found is None:
            if error.is_readable:
                return error.body
            if error.status >= 500:
                return None
            found = error_tables.error_object(error.body) or {}
        return openai_error(error.status, found, error.code)

    def with_retry_advice(self, body: bytes, headers: RawHeaders) -> bytes:
        return body

    def error_inside(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        if answer.get("error"):
            return reported_error(answer)
        choices = answer.get("choices")
        if not isinstance(choices, list) and not self.needs_choices:
            return None
        if not choices or not isinstance(choices, list):
            raise no_answer("the provider answered without any choice")
        first = choices[0]
        reason = first.get("finish_reason") if isinstance(first, dict) else None
        if not isinstance(reason, str) or reason not in FAILED_REASONS:
            return None
        return failed_error({"choices": [first]})

    def around_json(self, body: bytes = b"") -> tuple[bytes, bytes]:
        return b"data: ", b"\n\ndata: [DONE]\n\n" if self.stream == "chat" else b"\n\n"

    def as_event(self, status: int, body: bytes) -> bytes:
        if status >= 400:
            return self._event_of(error_in(body) or unreadable(status, body), status)
        before, after = self.around_json(body)
        return before + on_one_line(self._as_chunk(body)) + after

    def as_stream(self, body: bytes, *, include_usage: bool) -> bytes | None:
        return None

    def as_whole(self, frames: bytes) -> bytes | None:
        return None

    def choices_wanted(self, request: dict[str, Any]) -> object:
        return request.get("n")

    def _event_of(self, error: Mapping[str, Any], status: int) -> bytes:
        """Returns an error object as the end of a stream; the SDKs raise or yield it as an error."""
        return b"data: %s\n\n" % orjson.dumps({"error": error})

    def _as_chunk(self, body: bytes) -> bytes:
        """Returns a whole answer as one event of a stream."""
        return _chunk_of(body) if self.stream == "chat" else body


class ResponsesShape(OpenAIShape):
    """Responses: their streams are named events."""

    stream: StreamForm = "responses"

    def around_json(self, body: bytes = b"") -> tuple[bytes, bytes]:
        state = (answer_object(body) or {}).get("status")
        name = f"response.{state if state in _STATES else 'completed'}".encode()
        return b'event: %b\ndata: {"type":"%b","sequence_number":0,"response":' % (name, name), b"}\n\n"

    def _event_of(self, error: Mapping[str, Any], status: int) -> bytes:
        flat = {"type": "error", "code": error.get("code") or error.get("type"), "message": error.get("message")}
        event = b"event: error\ndata: %s\n\n" % orjson.dumps(
            {**flat, "param": error.get("param"), "sequence_number": 0}
        )
        return event + response_failed(error, 1)


class UnknownStreamShape(OpenAIShape):
    """What has streams of which no last event is known."""

    stream: StreamForm = "other"


OPENAI: Final = OpenAIShape()
OPENAI_UNKNOWN: Final = UnknownStreamShape()


def _chunk_of(body: bytes) -> bytes:
    """A whole chat completion as one chunk of a stream: what it calls a message is a delta there."""
    value = answer_object(body)
    choices = value.get("choices") if value is not None else None
    if value is None or not isinstance(choices, list):
        return body
    wholes = [choice for choice in choices if isinstance(choice, dict) and "message" in choice]
    if not wholes:
        return body
    for choice in wholes:
        delta = choice["delta"] = choice.pop("message")
        calls = delta.get("tool_calls") if isinstance(delta, dict) else None
        for index, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                call.setdefault("index", index)
    value["object"] = "chat.completion.chunk"
    return orjson.dumps(value)


def reported_error(answer: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the error object of an answer with an `error` in it; None: it is the answer's own, or says nothing."""
    error = answer["error"]
    if isinstance(error, dict):
        is_own = answer.get("object") == "response" and error.get("code") not in PASSING_CODES
        return None if is_own else error  # a response may report its own failure
    # Some servers put bare text where the error object belongs.
    return {**answer, "message": error} if isinstance(error, str) else None


def no_answer(why: str) -> UpstreamFailed:
    """Returns the failure of a provider whose answer with status 200 is none."""
    return UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, why)


# --- providers' errors, for OpenAI's callers ---

_FIELDS: Final = frozenset(("message", "type", "param", "code"))
"""The fields of OpenAI's errors."""
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_STATUSES: Final = {
    "auth": 401, "model_not_found": 404, "permission": 403, "quota_exhausted": 429, "server_error": 500, "timeout": 504,
}  # fmt: skip
"""The status of an error of this class, whatever 4xx its provider gives it."""
_MODEL_WORDS: Final = ("model", "deployment")
_PATH_WORDS: Final = ("path", "route", " url", "_url", "endpoint", "v1/responses", "v1/chat/completions")
_USE_OTHER_PATH: Final = re.compile(rb"\buse /v1/(?:responses|chat/completions)\b", re.IGNORECASE)
_NOT_FOUND: Final = ("not found", "404 not found", "resource not found", "method not allowed")
_NO_PATH: Final = (
    "The provider '{}' knows no such path: its base_url is wrong (most end in /v1), or it does not offer this endpoint."
)
_MOST_QUOTED: Final = 200


def client_status(status: int, code: str | None) -> int:
    """Returns the status that a caller of another language gets: the one by which its clients know the error.

    Some providers say 400, and some 403, of a key that is not valid. An error in the caller's own language stays as it is,
    to the byte.
    """
    return status if status >= 500 else _STATUSES.get(code or "", status)


def openai_type(status: int) -> str:
    """Returns the type that OpenAI gives an error with this HTTP status."""
    return _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")


def openai_error(status: int, error: dict[str, Any], code: str | None) -> bytes:
    """Returns an error of any shape in OpenAI's."""
    message, status = message_in(error, status), client_status(status, code)
    fields = {"message": message, "type": openai_type(status), "param": None, "code": code}
    return orjson.dumps({"error": fields})


def message_in(error: dict[str, Any], status: int) -> str:
    """Returns the words of a provider's error object; where it has none, its status."""
    return _text_of(error.get("message")) or f"The provider answered with status {status}."


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def is_unknown_path(body: bytes, status: int) -> bool:
    """Returns whether a 400, 404 or 405 means the path, and not a model or anything else that was asked for.

    OpenAI names the path that a model is to be asked at, where that is another one; a web server's page, and what frameworks
    say by themselves, is no word on what was asked. A 400 means the path only where it names the one to use: OpenAI's for
    tools beside `reasoning_effort`, which some models take at `/v1/responses` alone.
    """
    if status == 400:
        return _USE_OTHER_PATH.search(body) is not None
    parsed = json_object(body)
    if parsed is None:
        return True
    error = parsed.get("error")
    if isinstance(error, dict):
        message = _text_of(error.get("message")).lower()
        words = f"{_text_of(error.get('code')).lower()} {message}"
        return any(word in words for word in _PATH_WORDS) or message.strip(" .") in _NOT_FOUND
    words = f"{parsed.get('detail')} {parsed.get('message')} {error}".lower()
    return not any(word in words for word in _MODEL_WORDS)


def unknown_path(provider: str, status: int, body: bytes) -> bytes | None:
    """Returns OpenAI's error for the answer of a provider that knows no such path; None: its answer is about something else.

    The path is the operator's to mend. What speaks of a model is not: OpenAI says so of models that have another endpoint.
    """
    words = message_in(error_tables.error_object(body) or {}, status)[:_MOST_QUOTED]
    if not is_unknown_path(body, status) or any(word in words.lower() for word in _MODEL_WORDS):
        return None
    message = f"{_NO_PATH.format(provider)} It answered with status {status}: {words}"
    return openai_error(status, {"message": message}, "not_found")
