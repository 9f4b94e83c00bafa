"""Lines of a batch's output and error files, put together around the bytes of an answer.

    {"id": "batch_req_…", "custom_id": "a-1", "response": {"status_code": 200, "request_id": "…", "body": {…}}, "error": null}
    {"id": "batch_req_…", "custom_id": "a-2", "response": null, "error": {"code": "batch_expired", "message": "…"}}

An answer with a status of 400 or more goes into the error file as the first form; what has no answer, as the second.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from gateway.core.types.words import Usage
from gateway.products.jobs.model.job import JobState
from gateway.products.jobs.model.lines import LineResult

EXPIRED: Final = "batch_expired", "This request could not be executed before the completion window expired."
CANCELLED: Final = "batch_cancelled", "This request was not executed because the batch was cancelled."

MOST_TOKENS: Final = 1 << 40
"""No answer has as many: what says so is wrong, and no store is to meet it."""


class LineIdentity(NamedTuple):
    """Whose answer a line is."""

    line: int
    """Counted from 0 over the whole batch."""
    id: str
    custom_id: str


def answered_line(
    who: LineIdentity, status: int, request_id: str, body: bytes, usage: Usage | None, cost_usd: float | None
) -> LineResult:
    """Returns the result of a line that was answered: the body as it came, on one line."""
    value, plain = _read(body)
    text = b'{"id":%b,"custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null}\n' % (
        orjson.dumps(who.id),
        orjson.dumps(who.custom_id),
        status,
        orjson.dumps(request_id),
        plain,
    )
    tokens = usage or Usage(0, 0)
    is_failed = not 200 <= status < 400
    return LineResult(
        who.line, is_failed, text, tokens.input, tokens.cached, tokens.output, cost_usd or 0.0, _reasoning(value)
    )


def unanswered_line(who: LineIdentity, code: str, message: str) -> LineResult:
    """Returns the result of a line that has no answer, and never will."""
    error = orjson.dumps({"code": code, "message": message})
    text = b'{"id":%b,"custom_id":%b,"response":null,"error":%b}\n' % (
        orjson.dumps(who.id),
        orjson.dumps(who.custom_id),
        error,
    )
    return LineResult(who.line, True, text)


def stopped_line(who: LineIdentity, ends_as: JobState) -> LineResult:
    """Returns the result of a line that its batch ended without: because it was cancelled, or its time was over."""
    return unanswered_line(who, *(CANCELLED if ends_as is JobState.CANCELLED else EXPIRED))


def _read(body: bytes) -> tuple[Any, bytes]:
    """Returns an answer's body as a value, and as JSON without line ends: what is no JSON becomes a string.

    In JSON line ends are white space.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None, orjson.dumps(body.decode(errors="replace")) if body.strip() else b"null"
    return value, body.translate(None, b"\r\n") if b"\n" in body or b"\r" in body else body


def _reasoning(answer: Any) -> int:
    """Returns the tokens that an answer reports as spent on reasoning; 0 where it says nothing.

    Sources: https://platform.openai.com/docs/api-reference/chat/object and .../responses/object.
    """
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return 0
    details = usage.get("completion_tokens_details", usage.get("output_tokens_details"))
    tokens = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return tokens if type(tokens) is int and 0 <= tokens < MOST_TOKENS else 0
