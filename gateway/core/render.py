"""Errors on the wire, with a request id: in OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`, and at the
endpoints of Messages in Anthropic's, `{"type": "error", "error": {"type", "message"}, "request_id"}`; Gemini's callers get
Google's, `{"error": {"code", "message", "status", "details"}}`.

A stream whose head went out while it waited has no status left: what would have been a whole answer, error or not, is sent
as its events.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from random import getrandbits
from typing import Any

import orjson

from gateway.core.errors import AdmissionDenied, GatewayError, MethodNotAllowed, RequestExceedsLimits
from gateway.core.limits.headers import plain_number
from gateway.core.openai.sse import answer_object, error_in, response_failed
from gateway.core.types import Endpoint
from gateway.dialects import shapes
from gateway.dialects.shapes import for_generate

RawHeader = tuple[bytes, bytes]

SHOWN_BYTES = 1000
"""The bytes that are shown of an error that nobody can read."""
_STATES = frozenset(("queued", "in_progress", "completed", "failed", "incomplete"))


def new_request_id() -> str:
    """A new request id: unique, but no secret, so the cheap generator will do."""
    return f"req_{getrandbits(128):032x}"


def error_body(error: GatewayError, endpoint: Endpoint | None = None, request_id: str | None = None) -> bytes:
    """The JSON text of an error, as the callers of this endpoint read it; None: there is none, or it is OpenAI's."""
    if endpoint is None or endpoint.sse not in ("messages", "generate"):
        return orjson.dumps({"error": error_object(error)})
    return google_error_body(error) if endpoint.sse == "generate" else message_error_body(error, request_id)


def message_error_body(error: GatewayError, request_id: str | None) -> bytes:
    """The JSON text of an error as Anthropic's callers read it; with `code` and `param`, which Anthropic's own lack."""
    return orjson.dumps(shapes.error("messages", error.message, request_id=request_id, **_about(error)))


def google_error_body(error: GatewayError) -> bytes:
    """The JSON text of an error as Gemini's callers read it."""
    return orjson.dumps(shapes.error("generate", error.message, retry_after_s=error.retry_after_s, **_about(error)))


def own_error_event(endpoint: Endpoint, error: GatewayError, request_id: str) -> bytes:
    """An error of ours as the last event of a stream of the endpoint's kind."""
    if endpoint.sse == "generate":
        return b"data: %b\n\n" % google_error_body(error)
    if endpoint.sse != "messages":
        return error_event(endpoint, error_object(error))
    return shapes.error_event("messages", error.message, request_id=request_id, **_about(error))


def _about(error: GatewayError) -> dict[str, Any]:
    return {"status": error.status, "type": error.type, "code": error.code, "param": error.param}


def named_request(headers: list[RawHeader]) -> list[RawHeader]:
    """The headers of an answer at an endpoint of Messages: Anthropic's callers look for its id in `request-id`."""
    index = dict(headers)
    if b"request-id" not in index and b"x-request-id" in index:
        headers.append((b"request-id", index[b"x-request-id"]))
    return headers


def error_object(error: GatewayError) -> dict[str, Any]:
    """The object that every shape of an error has in it."""
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def error_event(endpoint: Endpoint, error: Mapping[str, Any], status: int = 500) -> bytes:
    """An error object as the end of a stream of the endpoint's kind; the SDKs raise or yield it as an error."""
    if endpoint.sse == "messages":
        kind = shapes.anthropic_type(status, str(error.get("type")))
        return b"event: error\ndata: %s\n\n" % orjson.dumps({"type": "error", "error": {**error, "type": kind}})
    if endpoint.sse == "generate":
        body = for_generate(status, orjson.dumps({"error": error}), None)
        return b"data: %s\n\n" % (body or orjson.dumps({"error": error}))
    if endpoint.sse != "responses":
        return b"data: %s\n\n" % orjson.dumps({"error": error})
    flat = {"type": "error", "code": error.get("code") or error.get("type"), "message": error.get("message")}
    event = b"event: error\ndata: %s\n\n" % orjson.dumps({**flat, "param": error.get("param"), "sequence_number": 0})
    return event + response_failed(error, 1)


def with_googles_advice(body: bytes, headers: list[RawHeader]) -> bytes:
    """A provider's error for a caller of Gemini's, with the delay that its headers name: Google's clients read no header."""
    index = dict(headers)
    for name, unit_s in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        if (delay := plain_number(index.get(name, b""))) is not None:
            return shapes.with_retry_info(body, delay * unit_s)
    return body


def whole_as_events(endpoint: Endpoint, status: int, body: bytes) -> bytes:
    """A provider's whole answer to a call that had asked for a stream, as the events of one."""
    if status >= 400:
        return error_event(endpoint, error_in(body) or unreadable(status, body), status)
    before, after = around_json(endpoint, body)
    return before + on_one_line(_as_chunk(body) if endpoint.sse == "chat" else body) + after


def _as_chunk(body: bytes) -> bytes:
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


def around_json(endpoint: Endpoint, body: bytes = b"") -> tuple[bytes, bytes]:
    """What makes a JSON answer the one event of a whole stream: the bytes before it and behind it."""
    if endpoint.sse != "responses":
        return b"data: ", b"\n\ndata: [DONE]\n\n" if endpoint.sse == "chat" else b"\n\n"
    state = (answer_object(body) or {}).get("status")
    name = f"response.{state if state in _STATES else 'completed'}".encode()
    return b'event: %b\ndata: {"type":"%b","sequence_number":0,"response":' % (name, name), b"}\n\n"


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
        milliseconds = shapes.whole_ms(error.retry_after_s)
        headers.append((b"retry-after", b"%d" % ceil(milliseconds / 1000)))
        headers.append((b"retry-after-ms", b"%d" % milliseconds))
    if isinstance(error, AdmissionDenied | RequestExceedsLimits) and error.limit is not None:
        headers.append((b"x-gateway-limit", error.limit.encode()))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    return headers
