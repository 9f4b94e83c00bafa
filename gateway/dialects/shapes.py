"""Errors, pings and small answers in the shapes of the four languages that callers speak. Pure: from plain arguments.

In this order: what the gateway says itself, the errors of providers, which it relays. Sources: OpenAI's API reference;
Anthropic's (`shared/error_object`, `model_info`, `message_tokens_count` of its SDK); Google's AIP-193 and
`google.rpc.Code`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson

from gateway.core.error_tables import error_object
from gateway.core.openai.sse import answer_object
from gateway.core.render import client_status, message_in, openai_error, openai_type, whole_ms
from gateway.core.types import RawHeaders
from gateway.dialects.base import Json, text_of

# --- What the gateway says itself ---


Language = Literal["chat", "responses", "messages", "generate"]
"""A caller's language: OpenAI's two, Anthropic's, Gemini's."""

_OF_ANTHROPIC: Final = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 405: "invalid_request_error", 408: "invalid_request_error", 409: "invalid_request_error",
    413: "request_too_large", 415: "invalid_request_error", 422: "invalid_request_error", 429: "rate_limit_error",
    431: "invalid_request_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip
_ANTHROPIC_TYPES: Final = frozenset(_OF_ANTHROPIC.values()) | {"api_error", "conflict_error"}
_OF_GOOGLE: Final = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 402: "FAILED_PRECONDITION", 403: "PERMISSION_DENIED",
    404: "NOT_FOUND", 405: "INVALID_ARGUMENT", 408: "DEADLINE_EXCEEDED", 409: "ABORTED", 413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT", 422: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 499: "CANCELLED", 501: "UNIMPLEMENTED",
    503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED", 529: "UNAVAILABLE",
}  # fmt: skip
_BY_TYPE: Final = {
    "authentication_error": 401, "billing_error": 402, "insufficient_quota": 402, "invalid_request_error": 400,
    "not_found_error": 404, "overloaded": 529, "overloaded_error": 529, "permission_error": 403, "rate_limit_error": 429,
    "rate_limit_exceeded": 429, "request_too_large": 413, "requests": 429, "service_unavailable_error": 503,
    "server_is_overloaded": 503, "timeout": 504, "timeout_error": 504, "tokens": 429,
    "AccessDeniedException": 403, "ModelNotReadyException": 503, "ModelTimeoutException": 504,
    "ServiceQuotaExceededException": 429, "ServiceUnavailableException": 503, "ThrottlingException": 429,
    "ValidationException": 400,
}  # fmt: skip
"""The status that a type or a code of a provider's error stands for, in a stream, which has none."""
_DETAILS: Final[Mapping[tuple[str | None, str | None], Json]] = {
    ("unsupported_by_targets", "thread"): {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
    ("object_not_found", "previous_message_id"): {"error_code": "thread_not_found"},
}
"""Details of errors, by code and field: by these Anthropic's SDKs know that they have to send a conversation whole, and do
(`lib/threads`)."""
_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"
_EPOCH: Final = "1970-01-01T00:00:00Z"


def error(
    language: Language,
    message: str,
    *,
    status: int,
    type: str | None = None,
    code: str | None = None,
    param: str | None = None,
    request_id: str | None = None,
    retry_after_s: float | None = None,
) -> Json:
    """Returns an error as the body of an answer with this status.

    `retry_after_s` stands in the body where a language's clients read it there: Google's know `google.rpc.RetryInfo` alone.
    """
    if language == "messages":
        made: Json = {"type": "error", "error": {"type": anthropic_type(status, type), "message": message}}
        named = (("code", code), ("param", param), ("details", _DETAILS.get((code, param))))
        made["error"] |= {name: value for name, value in named if value}
        return made | {"request_id": request_id}
    if language == "generate":
        made = {"code": status, "message": message, "status": google_status(status)}
        if code:
            info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code.upper(), "domain": "gateway"}
            made["details"] = [info | ({"metadata": {"field": param}} if param else {})]
        if retry_after_s is not None:
            made.setdefault("details", []).append(retry_info(retry_after_s))
        return {"error": made}
    kind = type or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def retry_info(delay_s: float) -> Json:
    """Returns the detail of Google's errors that says when to come back (google.rpc.RetryInfo), as the headers say it."""
    return {"@type": _RETRY_INFO, "retryDelay": f"{whole_ms(delay_s) / 1000}s"}


def with_retry_info(body: bytes, delay_s: float) -> bytes:
    """Returns an error of Google's with its RetryInfo; one that has it already, or is none of Google's, as it is."""
    parsed = answer_object(body)
    error = None if parsed is None else parsed.get("error")
    if not isinstance(error, dict) or not isinstance(details := error.get("details", []), list):
        return body
    if any(isinstance(one, dict) and one.get("@type") == _RETRY_INFO for one in details):
        return body
    return orjson.dumps({**(parsed or {}), "error": {**error, "details": [*details, retry_info(delay_s)]}})


def error_event(
    language: Language,
    message: str,
    *,
    status: int = 500,
    type: str | None = None,
    code: str | None = None,
    param: str | None = None,
    request_id: str | None = None,
    number: int = 0,
) -> bytes:
    """Returns an error as the last event of a stream; `number` is its place among the events of Responses."""
    if language == "responses":
        flat = {"type": "error", "code": code or type, "message": message, "param": param, "sequence_number": number}
        return b"event: error\ndata: %b\n\n" % orjson.dumps(flat)
    body = error(language, message, status=status, type=type, code=code, param=param, request_id=request_id)
    if language != "messages":
        return b"data: %b\n\n" % orjson.dumps(body)
    if request_id is None:
        del body["request_id"]
    return b"event: error\ndata: %b\n\n" % orjson.dumps(body)


def message_error(raw: Mapping[str, Any]) -> Json:
    """Returns a provider's error, of which any form is known, as the one of a stream of Messages: with a type of theirs."""
    rest = {name: value for name, value in raw.items() if name not in ("sequence_number", "event_id")}
    message = text_of(raw.get("message")) or "the provider reported an error"
    return {**rest, "type": anthropic_type(_status_of(raw), text_of(raw.get("type"))), "message": message}


def generate_error(raw: Mapping[str, Any]) -> Json:
    """Returns a provider's error, of which any form is known, as the one of a stream of Gemini's (AIP-193)."""
    inner = chat_error(raw)
    made: Json = error("generate", inner["message"], status=_status_of(raw), code=inner["code"])["error"]
    return made


def chat_error(raw: Mapping[str, Any]) -> Json:
    """Returns a provider's error, of which any form is known, as the one of a stream of chat completions.

    Its code is the provider's word for it.
    """
    code = raw.get("code")
    word = (
        text_of(code)
        or text_of(raw.get("type"))
        or text_of(raw.get("status"))
        or (str(code) if type(code) is int else "")
    )
    return {
        "message": text_of(raw.get("message")) or "the provider reported an error",
        "type": openai_type(_status_of(raw)),
        "param": text_of(raw.get("param")) or None,
        "code": word or None,
    }


def _status_of(raw: Mapping[str, Any]) -> int:
    code = raw.get("code")
    return code if type(code) is int else _BY_TYPE.get(text_of(code)) or _BY_TYPE.get(text_of(raw.get("type"))) or 500


def ping(language: Language) -> bytes:
    """Returns what keeps a connection open and says nothing; in Messages it may come behind `message_start` only."""
    return b'event: ping\ndata: {"type":"ping"}\n\n' if language == "messages" else b":\n\n"


def anthropic_type(status: int, given: str | None = None) -> str:
    """Returns the type of an error of Anthropic's: the given one, if it is one, else the status's."""
    if given in _ANTHROPIC_TYPES and given != "invalid_request_error":
        return given
    return _OF_ANTHROPIC.get(status) or ("api_error" if status >= 500 else "invalid_request_error")


def google_status(status: int) -> str:
    """Returns the name that Google gives an error with this HTTP status."""
    return _OF_GOOGLE.get(status) or ("INTERNAL" if status >= 500 else "INVALID_ARGUMENT")


def count(language: Language, tokens: int) -> Json:
    """Returns the answer to a question for the tokens of a request."""
    if language == "generate":
        return {"totalTokens": tokens}
    return {"input_tokens": tokens} | ({"object": "response.input_tokens"} if language == "responses" else {})


def model_page(
    models: Sequence[tuple[str, float]], *, limit: int = 20, after: str | None = None, before: str | None = None
) -> Json:
    """Returns a page of `GET /v1/models` in Anthropic's shape: at most `limit` models behind `after`, or ahead of `before`.

    A model is its name and when it was made, in seconds since 1970; 0: nobody knows. An unknown place is as none.
    """
    names = [name for name, _ in models]
    start = names.index(after) + 1 if after in names else 0
    end = names.index(before) if before in names else len(names)
    most = max(1, limit)
    has_more = end - start > most
    if before in names and after not in names:
        start = max(start, end - most)
    page = [_model(name, made) for name, made in models[start : min(end, start + most)]]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"data": page, "has_more": has_more, "first_id": first, "last_id": last}


def _model(name: str, made: float) -> Json:
    created = datetime.fromtimestamp(made, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if made > 0 else _EPOCH
    return {"type": "model", "id": name, "display_name": name, "created_at": created, "lifecycle": "active"}


# --- The errors of providers ---


_OF_BEDROCK: Final = b"x-amzn-errortype"


def for_messages(status: int, body: bytes, code: str | None, request_id: str) -> bytes | None:
    """Returns the error for a caller of Anthropic's Messages; None: it is one as it is. `code` is used where it names none."""
    if _of_anthropic(body) is not None:
        return None
    found = error_object(body) or {}
    shaped = error(
        "messages",
        message_in(found, status),
        status=client_status(status, code),
        type=text_of(found.get("type")),
        code=text_of(found.get("code")) or code,
        param=text_of(found.get("param")) or None,
        request_id=request_id,
    )
    return orjson.dumps(shaped)


def for_generate(status: int, body: bytes, code: str | None, headers: RawHeaders = ()) -> bytes | None:
    """Returns the error for a caller of Gemini's; None: it is Google's as it is. `code` is used where it names none."""
    if _of_google(body) is not None and body.lstrip().startswith(b"{"):
        return None
    found = find_foreign(body, headers) or error_object(body) or {}
    own_code = text_of(found.get("code")) or code
    return orjson.dumps(error("generate", message_in(found, status), status=client_status(status, code), code=own_code))


def for_openai(status: int, body: bytes, code: str | None, headers: RawHeaders = ()) -> bytes | None:
    """Returns an error of Anthropic's, Google's or Bedrock's for a caller of OpenAI's; None: it is none of these.

    `code` is ours: they have types, states and exceptions.
    """
    error = find_foreign(body, headers)
    return None if error is None else openai_error(status, error, code)


def find_foreign(body: bytes, headers: RawHeaders) -> Json | None:
    """Returns the error object of a body of Anthropic's, Google's or Bedrock's; None: it is none of these."""
    return _of_anthropic(body) or _of_google(body) or _of_bedrock(body, headers)


def _of_anthropic(body: bytes) -> Json | None:
    """Returns the error object of a body in Anthropic's shape; None: it has another."""
    value = answer_object(body)
    if value is None or value.get("type") != "error":
        return None
    error = value.get("error")
    is_one = isinstance(error, dict) and isinstance(error.get("type"), str) and isinstance(error.get("message"), str)
    return error if is_one and isinstance(error, dict) else None


def _of_google(body: bytes) -> Json | None:
    """Returns the error object of a body in Google's shape (AIP-193), alone or in an array; None: it has another."""
    error = error_object(body)
    is_one = error is not None and type(error.get("code")) is int and isinstance(error.get("status"), str)
    return error if is_one else None


def _of_bedrock(body: bytes, headers: RawHeaders) -> Json | None:
    """Returns the error object of an exception of Bedrock's, which a header names; None: it is none."""
    return (error_object(body) or {}) if any(name == _OF_BEDROCK for name, _ in headers) else None
