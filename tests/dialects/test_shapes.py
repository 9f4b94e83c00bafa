"""Errors, pings, counts and lists of models in the shapes of the four languages that callers speak."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.core.errors import KeyRateLimited
from gateway.core.render import error_body, error_headers
from gateway.dialects import shapes
from tests.dialects.ways import GENERATE
from tests.rows import rows

TOLD: dict[str, Any] = {
    "message": "too many", "status": 429, "type": "rate_limit_error", "code": "key_rate_limited", "param": "model",
    "request_id": "req_1",
}  # fmt: skip
NESTED = {"message": "too many", "type": "rate_limit_error", "param": "model", "code": "key_rate_limited"}
SHAPES: list[tuple[shapes.Language, dict[str, Any]]] = [
    ("chat", {"error": NESTED}),
    ("responses", {"error": NESTED}),
    ("messages", {"type": "error", "error": NESTED, "request_id": "req_1"}),
    (
        "generate",
        {
            "error": {
                "code": 429,
                "message": "too many",
                "status": "RESOURCE_EXHAUSTED",
                "details": [
                    {
                        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                        "reason": "KEY_RATE_LIMITED",
                        "domain": "gateway",
                        "metadata": {"field": "model"},
                    }
                ],
            }
        },
    ),
]


@rows("language,expected", SHAPES)
def test_an_error_has_its_callers_shape(language: shapes.Language, expected: dict[str, Any]) -> None:
    """With all that is known of it."""
    assert shapes.error(language, **TOLD) == expected


@rows("delay_s,told", [(0.0, "0.001s"), (0.2501, "0.251s"), (12.0, "12.0s"), (7200.5, "7200.5s")])
def test_googles_callers_read_a_delay_in_the_body(delay_s: float, told: str) -> None:
    """As a duration of protocol buffers; never earlier than the headers say. Others read it in the headers alone."""
    body = shapes.error("generate", "m", status=503, retry_after_s=delay_s)
    assert body["error"]["details"] == [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": told}]
    assert shapes.with_retry_info(orjson.dumps(body), 1.0) == orjson.dumps(body)
    assert shapes.error("chat", "m", status=503, retry_after_s=delay_s) == shapes.error("chat", "m", status=503)
    for odd in (b"", b"[]", b'{"error":"m"}', b'{"error":{"details":{}}}'):
        assert shapes.with_retry_info(odd, 1.0) == odd


def test_a_refusal_of_ours_says_in_googles_body_what_its_headers_say() -> None:
    """The one at a limit of a key."""
    error = KeyRateLimited("m", retry_after_s=3.25)
    *_, info = orjson.loads(error_body(error, GENERATE))["error"]["details"]
    assert info["retryDelay"] == "3.25s"
    assert (b"retry-after-ms", b"3250") in error_headers(error, 1)


ANTHROPIC = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 405: "invalid_request_error", 408: "invalid_request_error", 413: "request_too_large",
    415: "invalid_request_error", 422: "invalid_request_error", 429: "rate_limit_error", 500: "api_error",
    502: "api_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error", 418: "invalid_request_error",
}  # fmt: skip


@rows("status,expected", ANTHROPIC.items())
def test_anthropics_types_go_by_the_status(status: int, expected: str) -> None:
    """Whatever OpenAI would call it, but for a type that is Anthropic's own."""
    assert shapes.anthropic_type(status, "server_error") == expected
    assert shapes.anthropic_type(status, "invalid_request_error") == expected
    assert shapes.anthropic_type(status, "overloaded_error") == "overloaded_error"


def test_little_is_known_of_some_errors() -> None:
    """Then as little is told."""
    assert shapes.error("chat", "m", status=500)["error"] == {
        "message": "m", "type": "server_error", "param": None, "code": None,
    }  # fmt: skip
    assert shapes.error("messages", "m", status=500)["error"] == {"type": "api_error", "message": "m"}
    assert shapes.error("generate", "m", status=500)["error"] == {"code": 500, "message": "m", "status": "INTERNAL"}
    assert shapes.google_status(418) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("language", ["chat", "responses", "messages", "generate"])
def test_an_error_is_the_last_event_of_a_stream(language: shapes.Language) -> None:
    """Named where clients go by names."""
    raw = shapes.error_event(language, "m", status=503, code="x", number=7)
    name, _, data = raw.removesuffix(b"\n\n").rpartition(b"data: ")
    assert (name == b"event: error\n") == (language in ("responses", "messages"))
    said = orjson.loads(data)
    if language == "responses":
        assert said == {"type": "error", "code": "x", "message": "m", "param": None, "sequence_number": 7}
    elif language == "messages":
        assert said == {"type": "error", "error": {"type": "overloaded_error", "message": "m", "code": "x"}}
    else:
        assert said["error"]["message"] == "m"
    assert shapes.ping(language).endswith(b"\n\n")


@rows(
    "raw,type",
    [
        ({"type": "overloaded_error", "message": "m"}, "overloaded_error"),
        ({"type": "server_error", "code": 429}, "rate_limit_error"),
        ({"code": "rate_limit_exceeded"}, "rate_limit_error"),
        ({"type": "tokens", "code": "x"}, "rate_limit_error"),
        ({"code": "server_is_overloaded"}, "overloaded_error"),
        ({"type": "insufficient_quota"}, "billing_error"),
        ({"code": "invalid_api_key", "type": "invalid_request_error"}, "invalid_request_error"),
        ({}, "api_error"),
        ({"type": 5, "message": {}, "code": [1]}, "api_error"),
    ],
)
def test_a_providers_error_gets_a_type_of_anthropics(raw: dict[str, Any], type: str) -> None:
    """Whatever its form."""
    made = shapes.message_error(raw)
    assert made["type"] == type
    assert made["message"]


def test_counts() -> None:
    """As each API answers them."""
    assert shapes.count("messages", 5) == {"input_tokens": 5}
    assert shapes.count("generate", 5) == {"totalTokens": 5}
    assert shapes.count("responses", 5) == {"object": "response.input_tokens", "input_tokens": 5}


MODELS = [(name, 1_700_000_000.0) for name in "abcde"]
PAGES: list[tuple[dict[str, Any], str, bool]] = [
    ({}, "abcde", False),
    ({"limit": 2}, "ab", True),
    ({"limit": 2, "after": "b"}, "cd", True),
    ({"limit": 2, "after": "d"}, "e", False),
    ({"limit": 2, "before": "d"}, "bc", True),
    ({"limit": 5, "before": "c"}, "ab", False),
    ({"after": "a", "before": "d"}, "bc", False),
    ({"after": "unknown"}, "abcde", False),
    ({"after": "e"}, "", False),
    ({"limit": 0}, "a", True),
]


@rows("asked,names,has_more", PAGES)
def test_pages_of_models(asked: dict[str, Any], names: str, has_more: bool) -> None:
    """Behind one, or ahead of one."""
    page = shapes.model_page(MODELS, **asked)
    assert "".join(model["id"] for model in page["data"]) == names
    assert page["has_more"] is has_more
    assert (page["first_id"], page["last_id"]) == ((names[0], names[-1]) if names else (None, None))


def test_a_model_tells_when_it_was_made() -> None:
    """Or that nobody knows."""
    assert shapes.model_page([("a", 1_700_000_000)])["data"] == [
        {"type": "model", "id": "a", "display_name": "a", "created_at": "2023-11-14T22:13:20Z", "lifecycle": "active"}
    ]
    assert shapes.model_page([("a", 0)])["data"][0]["created_at"] == "1970-01-01T00:00:00Z"
