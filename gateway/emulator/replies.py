"""What the emulator answers with: whole replies, streams and their frames, and errors in the words of each provider.

In this order: the plain values `EmulatedReply` and `EmulatedStream`, in which limits, answers and faults meet without knowing
each other: they have everything about the bytes to send and nothing about when these are sent; server-sent events and
event-stream frames; errors in each provider's words (`EmulatedProblem`), those of OpenAI's API, and those of the others,
with the checks that raise them. When an error is due is decided elsewhere; the texts keep the phrases and codes that
clients match on. Invariant: every problem renders to a JSON object with a message. Sources: the providers' error pages,
google.rpc.Status, the Bedrock Runtime API reference, and captured answers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from zlib import crc32

import orjson

Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]

JSON = b"application/json"
SSE = b"text/event-stream; charset=utf-8"
BROKEN_CHUNK = b'data: {"id":"chatcmpl-broken","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"con\n\n'
"""A chunk of a chat completion that was cut in its middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedReply:
    """A whole answer; `tokens` are the output tokens it holds, which pace it and count against output limits."""

    body: bytes
    status: int = 200
    content_type: bytes = JSON
    headers: Headers = ()
    tokens: int = 0
    is_bare: bool = False  # the reply brings its own limit headers, or none at all
    is_foreign: bool = False  # not the provider speaking but something in front of it: no provider headers either


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedStream:
    """A streamed answer: `lead` opens it, each of `frames` holds one token, `tail` is all that marks a proper end.

    `error_frame` makes an event of the JSON of an error, and `broken` is an event whose JSON is not.
    """

    lead: bytes
    frames: Iterable[bytes]
    tail: bytes
    tokens: int
    error_frame: Callable[[bytes], bytes]
    broken: bytes = BROKEN_CHUNK
    content_type: bytes = SSE


def json_reply(value: Mapping[str, Any], tokens: int = 0, headers: Headers = ()) -> EmulatedReply:
    """Returns a 200 with `value` as JSON."""
    return EmulatedReply(body=orjson.dumps(value), tokens=tokens, headers=headers)


def frame(value: Mapping[str, Any], event: str | None = None) -> bytes:
    """Returns one SSE event with `value` as JSON."""
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + orjson.dumps(value) + b"\n\n"


def around(template: Mapping[str, Any], event: str | None = None) -> tuple[bytes, bytes]:
    """Returns the bytes before and after the one changing string of an event; mark its place in `template` with `SLOT`.

    The last mark wins, so that a mark smuggled in by an earlier field (a model name) changes nothing.
    """
    before, _, after = frame(template, event).rpartition(_SLOT_JSON)
    return before, after


SLOT = "\x00"
_SLOT_JSON = orjson.dumps(SLOT)


# --- Event-stream frames, as Bedrock has them ---


EVENT_STREAM = b"application/vnd.amazon.eventstream"


_STRING = 7


def event(kind: str, payload: Mapping[str, Any]) -> bytes:
    """Returns the frame of one event."""
    return frame_of(
        {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}, orjson.dumps(payload)
    )


def exception(kind: str, payload: bytes) -> bytes:
    """Returns the frame of an exception in the middle of a stream; `payload` is its JSON."""
    return frame_of(
        {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}, payload
    )


def frame_of(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Returns one frame.

    It is a prelude (length of the whole and of the headers, CRC of both), headers, a payload, and a CRC over all before.
    Source: "Event stream encoding" in the Amazon Transcribe and Bedrock documentation.
    """
    head = b"".join(
        struct.pack(f"!B{len(name)}sBH", len(name), name.encode(), _STRING, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    frame = prelude + struct.pack("!I", crc32(prelude)) + head + payload
    return frame + struct.pack("!I", crc32(frame))


# --- Errors in each provider's words ---


LANGUAGES = ("messages", "generate", "converse")
"""The languages that are not OpenAI's: Anthropic's Messages, Gemini's generateContent, Bedrock's Converse."""

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
    """Returns the headers with what the body lacks: Bedrock's name of the exception."""
    if language != "converse":
        return ()
    name = kind or _BEDROCK.get(status, "ValidationException")
    return ((b"x-amzn-errortype", f"{name}:http://internal.amazon.com/coral/com.amazon.bedrock/".encode()),)


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
    """A refusal by a limit, with all the headers of limits."""

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


# --- The problems of OpenAI's API ---


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


# --- The problems of the other APIs, and the checks that raise them ---


_RPC = "type.googleapis.com/google.rpc."
_A_DAY_S = 34_000
_EMULATED = "emulated"


def refused(text: str, status: int = 400) -> ProblemError:
    """Returns what to raise for a request that the provider refuses with `text`."""
    return ProblemError(EmulatedProblem(status, text))


def fault_problem(kind: str, dialect: str, path: str = "") -> EmulatedProblem | None:
    """Returns the refusal that a fault consists of, in the words of `dialect`; None for what breaks a good answer."""
    if kind == "e401" and dialect == "generate":
        return invalid_credential(dialect, path, is_missing=False)
    own = _FAULTS.get(dialect, {}).get(kind)
    if own is not None:
        return own
    make = FAULT_PROBLEMS.get(kind)
    return make(dialect) if make is not None else None


def overload(dialect: str) -> EmulatedProblem:
    """Returns the error that comes in the middle of a stream."""
    kind = "e529" if dialect == "messages" else "e503"
    return fault_problem(kind, dialect) or EmulatedProblem(503, "Overloaded")


def unknown_model(language: str, model: str) -> EmulatedProblem:
    """Returns the refusal of a model that is not served."""
    texts = {
        "messages": f"model: {model}",
        "generate": f"models/{model} is not found for API version v1beta, or is not supported for generateContent.",
        "converse": f"Could not resolve the foundation model from the provided model identifier: {model}",
    }
    return EmulatedProblem(404, texts[language])


def too_long(language: str, window: int, used: int) -> EmulatedProblem:
    """Returns the refusal of a prompt beyond `window` tokens."""
    texts = {
        "messages": f"prompt is too long: {used} tokens > {window} maximum",
        "generate": f"The input token count ({used}) exceeds the maximum number of tokens allowed ({window}).",
        "converse": "Input is too long for requested model.",
    }
    return EmulatedProblem(400, texts[language])


def invalid_credential(language: str, path: str = "", *, is_missing: bool) -> EmulatedProblem:
    """Returns the refusal of a wrong key, or of none; Vertex AI, whose paths name a project, takes no keys but tokens."""
    if language == "messages":
        return EmulatedProblem(401, "x-api-key header is required" if is_missing else "invalid x-api-key")
    if language == "converse":
        if is_missing:
            return EmulatedProblem(403, "Missing Authentication Token", kind="MissingAuthenticationTokenException")
        text = "The security token included in the request is invalid."
        return EmulatedProblem(403, text, kind="UnrecognizedClientException")
    if "/projects/" in path:
        text = (
            "Request had invalid authentication credentials. Expected OAuth 2 access token, or other valid credential."
        )
        return EmulatedProblem(401, text)
    if is_missing:
        text = "Method doesn't allow unregistered callers. Please use API Key or other form of API consumer identity."
        return EmulatedProblem(403, text)
    details = {
        "@type": f"{_RPC}ErrorInfo",
        "reason": "API_KEY_INVALID",
        "domain": "googleapis.com",
        "metadata": {"service": "generativelanguage.googleapis.com"},
    }
    return EmulatedProblem(400, "API key not valid. Please pass a valid API key.", details=(details,))


def google_quota(model: str, dimension: str, limit: int, wait_s: float, *, is_daily: bool = False) -> EmulatedProblem:
    """Returns Google's 429: which quota it was, and when to come again."""
    metric = "generate_content_paid_tier_requests"
    quota = "GenerateRequestsPer{}PerProjectPerModel"
    if dimension == "tokens":
        metric, quota = "generate_content_paid_tier_input_token_count", "GenerateContentInputTokensPerModelPer{}"
    metric = f"generativelanguage.googleapis.com/{metric}"
    text = (
        "You exceeded your current quota, please check your plan and billing details.\n"
        f"* Quota exceeded for metric: {metric}, limit: {limit}, model: {model}\nPlease retry in {wait_s:.9g}s."
    )
    violation = {
        "quotaMetric": metric,
        "quotaId": quota.format("Day" if is_daily else "Minute"),
        "quotaDimensions": {"location": "global", "model": model},
        "quotaValue": str(limit),
    }
    details = (
        {"@type": f"{_RPC}QuotaFailure", "violations": [violation]},
        {"@type": f"{_RPC}RetryInfo", "retryDelay": f"{wait_s:.9g}s"},
    )
    return EmulatedProblem(429, text, details=details)


def read_object(body: bytes, language: str) -> dict[str, Any]:
    """Returns the body as an object; raises ProblemError."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        texts = {
            "messages": f"The request body is not valid JSON: {exc}",
            "generate": f"Invalid JSON payload received. {exc}",
            "converse": f"Unable to parse the request body as JSON: {exc}",
        }
        raise refused(texts[language]) from None
    if not isinstance(data, dict):
        raise refused("The request body is not a JSON object.")
    return data


def text_of(value: object) -> str:
    """Returns a value as the JSON that counts towards the prompt."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as exc:  # nested deeper than orjson writes
        raise refused(f"The request body is nested too deeply: {exc}.") from exc


def held(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the object that `data` holds under `name`, empty where there is none; raises ProblemError for what is none."""
    value = data.get(name)
    if value is not None and not isinstance(value, dict):
        raise refused(f"{name}: expected an object")
    return value or {}


def is_name(pattern: re.Pattern[str], value: object) -> bool:
    """Returns whether a value is a text of this pattern."""
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def objects(value: object, where: str, complaint: str) -> list[Mapping[str, Any]]:
    """Returns a list of objects; raises ProblemError with `where` and `complaint`."""
    if not isinstance(value, list):
        raise refused(f"{where}: {complaint}")
    for index, each in enumerate(value):
        if not isinstance(each, dict):
            raise refused(f"{where}.{index}: {complaint}")
    return value


_FAULTS: Mapping[str, Mapping[str, EmulatedProblem]] = MappingProxyType(
    {
        "messages": {
            "quota": EmulatedProblem(
                400,
                "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing (emulated).",
            ),
            "e401": invalid_credential("messages", is_missing=False),
            "e403": EmulatedProblem(403, "Your API key does not have permission to use the specified resource."),
            "e404": unknown_model("messages", _EMULATED),
            "e500": EmulatedProblem(500, "Internal server error"),
            "e503": EmulatedProblem(503, "Service temporarily unavailable"),
            "e529": EmulatedProblem(529, "Overloaded"),
            "content_filter": EmulatedProblem(400, "Output blocked by content filtering policy"),
            "context_length": too_long("messages", 8192, 9001),
        },
        "generate": {
            "quota": google_quota(_EMULATED, "requests", 250, _A_DAY_S, is_daily=True),
            "e403": EmulatedProblem(403, "Your project has been denied access. Please contact support."),
            "e404": unknown_model("generate", _EMULATED),
            "e500": EmulatedProblem(500, "An internal error has occurred. Please retry."),
            "e503": EmulatedProblem(503, "The model is overloaded. Please try again later."),
            "e529": EmulatedProblem(503, "The model is overloaded. Please try again later."),
            "context_length": too_long("generate", 8192, 9001),
        },
        "converse": {
            "quota": EmulatedProblem(429, "Too many tokens per day, please wait before trying again."),
            "e401": invalid_credential("converse", is_missing=False),
            "e403": EmulatedProblem(403, "You don't have access to the model with the specified model ID."),
            "e404": unknown_model("converse", _EMULATED),
            "e500": EmulatedProblem(500, "The system encountered an unexpected error during processing."),
            "e503": EmulatedProblem(503, "Bedrock is unable to process your request."),
            "e529": EmulatedProblem(529, "Bedrock is overloaded, please wait before trying again."),
            "content_filter": EmulatedProblem(
                400, "The model returned the following errors: Output blocked by content filtering policy"
            ),
            "context_length": too_long("converse", 8192, 9001),
        },
    }
)
