"""What a provider's error answer means: status and body -> error class.

Total: every answer has a class. Quota comes before rate limit, because a 429 can also mean "no money left". Sources:
the providers' error references; the words are those they are seen to use.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from gateway.errors import ErrorClass

_QUOTA = re.compile(
    r"insufficient_quota|credit_balance_exhausted|spend_limit_(?:exceeded|reached)|usage_limit_exceeded|billing_not_active"
    r"|billing_hard_limit_reached|credit balance is too low|insufficient (?:balance|credits|funds)"
    r"|specified (?:workspace )?API usage limits|used all available credits|prepayment credits are depleted",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"context[_ ]length[_ ]exceeded|prompt (?:is )?too long|maximum context length|exceeds the context window"
    r"|maximum prompt length is \d|input is too long|exceed context limit",
    re.IGNORECASE,
)
_TOKENS = re.compile(r"token rate limit|tokens per min", re.IGNORECASE)
_POLICY = re.compile(r"content_filter|content_policy_violation|moderation_blocked|ResponsibleAIPolicyViolation")
_STATUS = re.compile(r"[45][0-9][0-9]")

_BY_STATUS = {
    401: ErrorClass.AUTH,
    402: ErrorClass.QUOTA_EXHAUSTED,
    403: ErrorClass.PERMISSION,
    404: ErrorClass.NOT_FOUND,
    408: ErrorClass.TIMEOUT,
    409: ErrorClass.CONFLICT,
    410: ErrorClass.NOT_FOUND,
    413: ErrorClass.PAYLOAD_TOO_LARGE,
    424: ErrorClass.SERVER_ERROR,
    425: ErrorClass.RATE_LIMIT_REQUESTS,
    429: ErrorClass.RATE_LIMIT_REQUESTS,
    498: ErrorClass.OVERLOADED,
    499: ErrorClass.CONNECTION,
    501: ErrorClass.BAD_REQUEST,
    503: ErrorClass.OVERLOADED,
    504: ErrorClass.TIMEOUT,
    529: ErrorClass.OVERLOADED,
}

_STATUS_OF = {
    ErrorClass.BAD_REQUEST: 400,
    ErrorClass.CONTEXT_LENGTH_EXCEEDED: 400,
    ErrorClass.CONTENT_POLICY: 400,
    ErrorClass.AUTH: 401,
    ErrorClass.PERMISSION: 403,
    ErrorClass.NOT_FOUND: 404,
    ErrorClass.CONFLICT: 409,
    ErrorClass.PAYLOAD_TOO_LARGE: 413,
    ErrorClass.RATE_LIMIT_REQUESTS: 429,
    ErrorClass.RATE_LIMIT_TOKENS: 429,
    ErrorClass.QUOTA_EXHAUSTED: 429,
    ErrorClass.OVERLOADED: 503,
    ErrorClass.TIMEOUT: 504,
}

_LIMITS_RATE = frozenset(
    (ErrorClass.RATE_LIMIT_REQUESTS, ErrorClass.RATE_LIMIT_TOKENS, ErrorClass.QUOTA_EXHAUSTED),
)
_MOVES_ON = _LIMITS_RATE | frozenset(
    (
        ErrorClass.OVERLOADED,
        ErrorClass.SERVER_ERROR,
        ErrorClass.TIMEOUT,
        ErrorClass.CONNECTION,
        ErrorClass.MALFORMED_RESPONSE,
        ErrorClass.STREAM_INTERRUPTED,
    )
)


def moves_on(error_class: ErrorClass) -> bool:
    """Whether another target may do better; what is wrong with the request is wrong everywhere."""
    return error_class in _MOVES_ON


def limits_rate(error_class: ErrorClass) -> bool:
    """Whether the target has refused the call for how much was asked of it, not for what."""
    return error_class in _LIMITS_RATE


def status_of(error_class: ErrorClass) -> int:
    """The HTTP status for an error that a provider reported inside a 200."""
    return _STATUS_OF.get(error_class, 502)


def classify(status: int, body: bytes) -> ErrorClass:
    """The class of an answer whose status is not 2xx; `body` may be anything."""
    error = error_object(body)
    return _classify(status, error or {})


def classify_in_band(error: dict[str, Any]) -> tuple[int, ErrorClass]:
    """The status and class of an error object that came inside a 200."""
    code = _words(error, "code")
    status = int(code) if _STATUS.fullmatch(code) else _status_of_words(_words(error, "code", "type"))
    error_class = _classify(status, error)
    return (status if status != 500 else status_of(error_class)), error_class


def error_object(body: bytes) -> dict[str, Any] | None:
    """The error object of a body, be it `{"error": {…}}`, an array of one such, or flat; None when there is none."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if isinstance(error, dict):
        return error
    return {"message": error, **value} if isinstance(error, str) else value if "message" in value else None


def is_openai_shaped(body: bytes) -> bool:
    """Whether a client that expects OpenAI's error shape can read this body."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and isinstance(value.get("error"), dict)


def _classify(status: int, error: dict[str, Any]) -> ErrorClass:
    details = error.get("details")
    words = _words(error, "code", "type", "message")
    if isinstance(details, dict):
        words += " " + _words(details, "error_code")
    if _QUOTA.search(words):
        return ErrorClass.QUOTA_EXHAUSTED
    if status != 429 and _CONTEXT.search(words):
        return ErrorClass.CONTEXT_LENGTH_EXCEEDED
    if _POLICY.search(words):
        return ErrorClass.CONTENT_POLICY
    if status in (429, 413) and (error.get("type") == "tokens" or _TOKENS.search(words)):
        return ErrorClass.RATE_LIMIT_TOKENS
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 400 <= status < 500:
        return ErrorClass.BAD_REQUEST
    return ErrorClass.SERVER_ERROR if status >= 500 else ErrorClass.UNKNOWN


def _words(error: dict[str, Any], *fields: str) -> str:
    """What these fields say, as far as they are plain: anything else may be nested too deep even to be printed."""
    return " ".join(str(error[field]) for field in fields if isinstance(error.get(field), (str, int)))


def _status_of_words(words: str) -> int:
    """A status for the words of an error that came without one."""
    if "overloaded" in words or "unavailable" in words:
        return 503
    if "rate_limit" in words:
        return 429
    return 400 if "invalid_request" in words or "context_length" in words or "validation" in words else 500
