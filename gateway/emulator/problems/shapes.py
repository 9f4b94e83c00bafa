"""An error in each provider's own shape: body, and headers that belong to it.

It must not know when an error is due. Sources: Anthropic's "Errors" page, google.rpc.Status, the Bedrock Runtime API reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

LANGUAGES = ("messages", "generate", "converse")
"""Anthropic's Messages, Gemini's generateContent, Bedrock's Converse."""

_ANTHROPIC: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        402: "billing_error",
        403: "permission_error",
        404: "not_found_error",
        409: "conflict_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        502: "api_error",
        503: "api_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
)
_GOOGLE: Mapping[int, str] = MappingProxyType(
    {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
        405: "UNIMPLEMENTED",
        429: "RESOURCE_EXHAUSTED",
        500: "INTERNAL",
        503: "UNAVAILABLE",
        504: "DEADLINE_EXCEEDED",
        529: "UNAVAILABLE",
    }
)
_BEDROCK: Mapping[int, str] = MappingProxyType(
    {
        400: "ValidationException",
        401: "UnrecognizedClientException",
        403: "AccessDeniedException",
        404: "ResourceNotFoundException",
        408: "ModelTimeoutException",
        424: "ModelErrorException",
        429: "ThrottlingException",
        500: "InternalServerException",
        503: "ServiceUnavailableException",
        529: "ServiceUnavailableException",
    }
)


def error_body(
    language: str, status: int, message: str, kind: str | None, details: Sequence[Mapping[str, Any]], request_id: str
) -> bytes:
    """Returns the body; `kind` is the provider's name of the error where the status does not tell."""
    if language == "messages":
        error = {"type": kind or _ANTHROPIC.get(status, "invalid_request_error"), "message": message}
        if details:
            error |= {"details": details[0]}  # type: ignore[dict-item]  # a plain object
        return orjson.dumps({"type": "error", "error": error, "request_id": request_id or None})
    if language == "generate":
        shown: dict[str, Any] = {"code": status, "message": message, "status": kind or _GOOGLE.get(status, "UNKNOWN")}
        if details:
            shown["details"] = list(details)
        return orjson.dumps({"error": shown}, option=orjson.OPT_INDENT_2)
    return orjson.dumps({"message": message})


def error_headers(language: str, status: int, kind: str | None) -> tuple[tuple[bytes, bytes], ...]:
    """Returns the headers that tell what the body does not: Bedrock's name of the exception."""
    if language != "converse":
        return ()
    name = kind or _BEDROCK.get(status, "ValidationException")
    return ((b"x-amzn-errortype", f"{name}:http://internal.amazon.com/coral/com.amazon.bedrock/".encode()),)
