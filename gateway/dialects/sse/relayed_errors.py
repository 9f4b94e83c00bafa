"""A provider's error, as its caller's language has it: whose own it is already stays as it is, to the byte.

Where it is put into another form, its status becomes the one by which that language's clients know it: Google says 400, and
Bedrock 403, of a key that is not valid.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from gateway.core.error_tables import error_object
from gateway.core.openai.sse import answer_object, json_object
from gateway.core.types import RawHeaders
from gateway.dialects.base import Json, text_of
from gateway.dialects.sse import shapes

_OF_OPENAI: Final = frozenset(("message", "type", "param", "code"))
"""What OpenAI's errors have."""
_STATUSES: Final = {
    "auth": 401, "model_not_found": 404, "permission": 403, "quota_exhausted": 429, "server_error": 500, "timeout": 504,
}  # fmt: skip
"""The status of an error of this class, whatever 4xx its provider gives it."""
_OF_BEDROCK: Final = b"x-amzn-errortype"
_MODEL_WORDS: Final = ("model", "deployment")
_PATH_WORDS: Final = ("path", "route", " url", "_url", "endpoint", "v1/responses", "v1/chat/completions")
_USE_OTHER_PATH: Final = re.compile(rb"\buse /v1/(?:responses|chat/completions)\b", re.IGNORECASE)
_NOT_FOUND: Final = ("not found", "404 not found", "resource not found", "method not allowed")
_NO_PATH: Final = (
    "The provider '{}' knows no such path: its base_url is wrong (most end in /v1), or it does not offer this endpoint."
)
_MOST_QUOTED: Final = 200


def client_status(status: int, code: str | None) -> int:
    """Returns the status that a caller of another language gets."""
    return status if status >= 500 else _STATUSES.get(code or "", status)


def for_messages(status: int, body: bytes, code: str | None, request_id: str) -> bytes | None:
    """Returns the error for a caller of Anthropic's Messages; None: it is one as it is. `code` is used where it names none."""
    if _of_anthropic(body) is not None:
        return None
    error = error_object(body) or {}
    message, kind = _words(error, status), text_of(error.get("type"))
    own_code = text_of(error.get("code")) or code
    param = text_of(error.get("param")) or None
    status = client_status(status, code)
    shaped = shapes.error(
        "messages", message, status=status, type=kind, code=own_code, param=param, request_id=request_id
    )
    return orjson.dumps(shaped)


def for_generate(status: int, body: bytes, code: str | None, headers: RawHeaders = ()) -> bytes | None:
    """Returns the error for a caller of Gemini's; None: it is Google's as it is. `code` is used where it names none."""
    if _of_google(body) is not None and body.lstrip().startswith(b"{"):
        return None
    error = _of_anthropic(body) or _of_google(body) or _of_bedrock(body, headers) or error_object(body) or {}
    own_code = text_of(error.get("code")) or code
    status_for_client = client_status(status, code)
    return orjson.dumps(shapes.error("generate", _words(error, status), status=status_for_client, code=own_code))


def for_openai(
    status: int, body: bytes, code: str | None, headers: RawHeaders = (), *, is_converted: bool = False
) -> bytes | None:
    """Returns an error of Anthropic's, Google's or Bedrock's for a caller of OpenAI's; None: it is none of these.

    `code` is ours: they have types, states and exceptions. `is_converted`: it is the end of a conversion, and may be in
    any shape.
    """
    error = _of_anthropic(body) or _of_google(body) or _of_bedrock(body, headers)
    if error is None and is_converted and (original := error_object(body)) is not None:
        error = None if original.keys() >= _OF_OPENAI and original["type"] != "error" else original
    return None if error is None else openai_error(status, error, code)


def openai_error(status: int, error: Json, code: str | None) -> bytes:
    """Returns an error of any shape in OpenAI's."""
    message, status = _words(error, status), client_status(status, code)
    fields = {"message": message, "type": shapes.openai_type(status), "param": None, "code": code}
    return orjson.dumps({"error": fields})


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


def _words(error: Json, status: int) -> str:
    return text_of(error.get("message")) or f"The provider answered with status {status}."


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
        message = text_of(error.get("message")).lower()
        words = f"{text_of(error.get('code')).lower()} {message}"
        return any(word in words for word in _PATH_WORDS) or message.strip(" .") in _NOT_FOUND
    words = f"{parsed.get('detail')} {parsed.get('message')} {error}".lower()
    return not any(word in words for word in _MODEL_WORDS)


def unknown_path(provider: str, status: int, body: bytes) -> bytes | None:
    """Returns OpenAI's error for the answer of a provider that knows no such path; None: its answer is about something else.

    The path is the operator's to mend. What speaks of a model is not: OpenAI says so of models that have another endpoint.
    """
    words = _words(error_object(body) or {}, status)[:_MOST_QUOTED]
    if not is_unknown_path(body, status) or any(word in words.lower() for word in _MODEL_WORDS):
        return None
    message = f"{_NO_PATH.format(provider)} It answered with status {status}: {words}"
    return openai_error(status, {"message": message}, "not_found")
