"""Errors as the providers word them: one `EmulatedProblem` value, rendered in the dialect's shape.

It must not know when an error is due. The wire texts keep the phrases and codes that clients match on. Invariant: every
problem renders to a JSON object with an `error` object that has a `message`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from gateway.emulator.answers.reply import EmulatedReply, Headers
from gateway.emulator.problems.shapes import LANGUAGES, error_body, error_headers

_ANTHROPIC_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        503: "api_error",
        529: "overloaded_error",
    }
)
_AZURE_CODES: Mapping[int, str] = MappingProxyType(
    {401: "401", 404: "DeploymentNotFound", 429: "429", 500: "InternalServerError", 503: "ServiceUnavailable"}
)


@dataclass(frozen=True, slots=True)
class EmulatedProblem:
    """One refusal, in OpenAI's words; `innererror` is Azure's extra detail.

    In a provider's own API `kind` is its name of the error where the status does not tell, `details` what comes with it.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    innererror: Mapping[str, Any] | None = None
    kind: str | None = None
    details: tuple[Mapping[str, Any], ...] = ()

    def render(self, dialect: str, request_id: str = "") -> bytes:
        """Returns the JSON body in the shape of `dialect`, which may be a provider's own API."""
        if dialect in LANGUAGES:
            return error_body(dialect, self.status, self.message, self.kind, self.details, request_id)
        return orjson.dumps({"error": self._error(dialect)})

    def reply(
        self, dialect: str, headers: Headers = (), *, is_bare: bool = False, request_id: str = ""
    ) -> EmulatedReply:
        """Returns the whole answer that refuses the call."""
        body = self.render(dialect, request_id)
        headers += error_headers(dialect, self.status, self.kind)
        return EmulatedReply(status=self.status, body=body, headers=headers, is_bare=is_bare)

    def _error(self, dialect: str) -> dict[str, Any]:
        if dialect == "anthropic":
            kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
            return {"message": self.message, "type": kind, "param": None, "code": None}
        if dialect == "azure" and self.type != "insufficient_quota" and self.status in _AZURE_CODES:
            return {"code": _AZURE_CODES[self.status], "message": self.message}
        error: dict[str, Any] = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        if self.innererror is not None:
            error |= {"type": None, "status": self.status, "innererror": self.innererror}
        return error


@dataclass(frozen=True, slots=True)
class EmulatedRefusal:
    """A refusal by a limit, with all the headers that tell of limits."""

    problem: EmulatedProblem
    headers: Headers = ()

    def reply(self, dialect: str, request_id: str = "") -> EmulatedReply:
        """Returns the whole answer that refuses the call."""
        return self.problem.reply(dialect, self.headers, is_bare=True, request_id=request_id)


class ProblemError(Exception):
    """Carries a `EmulatedProblem` from where it is found to where it is answered."""

    def __init__(self, problem: EmulatedProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def unknown_url(method: str, path: str) -> EmulatedProblem:
    """Returns the 404 for an unknown path."""
    return EmulatedProblem(404, f"Invalid URL ({method} {path})", code="unknown_url")


def wrong_method(method: str, path: str, allowed: str) -> EmulatedProblem:
    """Returns the 405 for a known path asked with another method."""
    return EmulatedProblem(405, f"Not allowed to {method} on {path} (use {allowed})", code="method_not_supported")


def invalid_key(key: str) -> EmulatedProblem:
    """Returns the 401 for a wrong key, of which it shows no more than the ends."""
    if not key:
        return EmulatedProblem(401, "You didn't provide an API key; send it as `Authorization: Bearer KEY`.")
    shown = f"{key[:3]}***{key[-4:]}" if len(key) > 12 else "***"
    return EmulatedProblem(401, f"Incorrect API key provided: {shown}.", code="invalid_api_key")


def model_not_found(model: str) -> EmulatedProblem:
    """Returns the 404 for a model outside the configured ones."""
    return EmulatedProblem(
        404, f"The model `{model}` does not exist or you do not have access to it.", code="model_not_found"
    )


def context_length(dialect: str, window: int, used: int) -> EmulatedProblem:
    """Returns the 400 for a prompt beyond `window` tokens."""
    if dialect == "anthropic":
        return EmulatedProblem(400, f"prompt is too long: {used} tokens > {window} maximum")
    text = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {used} tokens."
        " Please reduce the length of the messages."
    )
    return EmulatedProblem(400, text, param="messages", code="context_length_exceeded")


def content_filter(dialect: str) -> EmulatedProblem:
    """Returns the 400 for a prompt the provider will not answer."""
    if dialect == "anthropic":
        return EmulatedProblem(400, "Output blocked by content filtering policy")
    if dialect == "openai":
        text = "Your request was rejected by the safety system (emulated)."
        return EmulatedProblem(400, text, code="content_policy_violation")
    safe = {"filtered": False, "severity": "safe"}
    verdict = {"hate": safe, "self_harm": safe, "sexual": safe, "violence": safe}
    verdict["jailbreak"] = {"filtered": True, "detected": True}
    inner = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": verdict}
    text = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy. (emulated)"
    return EmulatedProblem(400, text, param="prompt", code="content_filter", innererror=inner)


def refused_key(_dialect: str) -> EmulatedProblem:
    """Returns the 401 for a key that was valid once."""
    return EmulatedProblem(401, "Incorrect API key provided: *** (emulated).", code="invalid_api_key")


def not_permitted(_dialect: str) -> EmulatedProblem:
    """Returns the 403 for a key without access."""
    return EmulatedProblem(
        403, "Project `proj-emulator` does not have access to the model (emulated).", code="model_not_found"
    )


def no_such_model(dialect: str) -> EmulatedProblem:
    """Returns the 404 for any model."""
    if dialect == "anthropic":
        return EmulatedProblem(404, "model: emulated")
    return EmulatedProblem(
        404, "The model does not exist or you do not have access to it (emulated).", code="model_not_found"
    )


def quota(dialect: str) -> EmulatedProblem:
    """Returns the refusal of an account without credit: OpenAI's 429, Anthropic's 400."""
    if dialect == "anthropic":
        return EmulatedProblem(400, "Your credit balance is too low to access the Anthropic API (emulated).")
    text = "You exceeded your current quota, please check your plan and billing details (emulated)."
    return EmulatedProblem(429, text, type="insufficient_quota", code="insufficient_quota")


def server_error(_dialect: str) -> EmulatedProblem:
    """Returns the 500 of a provider's own failure."""
    return EmulatedProblem(
        500, "The server had an error while processing your request (emulated).", type="server_error"
    )


def overloaded_503(dialect: str) -> EmulatedProblem:
    """Returns the 503 for too many callers."""
    text = "The server is overloaded (emulated)."
    if dialect == "azure":
        text = "System is currently experiencing high demand and cannot process your request (emulated)."
    return EmulatedProblem(503, text, type="service_unavailable_error", code="server_is_overloaded")


def overloaded_529(_dialect: str) -> EmulatedProblem:
    """Returns the 529, Anthropic's word for overload."""
    return EmulatedProblem(529, "Overloaded", type="overloaded_error", code="overloaded_error")


FAULT_PROBLEMS: Mapping[str, Callable[[str], EmulatedProblem]] = MappingProxyType(
    {
        "quota": quota,
        "e401": refused_key,
        "e403": not_permitted,
        "e404": no_such_model,
        "e500": server_error,
        "e503": overloaded_503,
        "e529": overloaded_529,
        "content_filter": content_filter,
        "context_length": lambda dialect: context_length(dialect, 8192, 9001),
    }
)

CDN_PAGE = (
    b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head>\n"
    b"<body><center><h1>502 Bad Gateway</h1></center><hr><center>cloudflare</center></body></html>\n"
)
