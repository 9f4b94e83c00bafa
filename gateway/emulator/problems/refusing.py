"""Refusals in the words of the provider that reads the request: of bad requests, of scripted faults, of wrong keys.

It must not know when one is due. Sources: the providers' error pages, and captured answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from gateway.emulator.problems.problems import FAULT_PROBLEMS, EmulatedProblem, ProblemError

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
    """Tells whether a value is a text of this pattern."""
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
