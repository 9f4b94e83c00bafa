"""A provider's error for callers of another language: the same words, status and kind; its own language's stays as it is."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.render import client_status
from gateway.dialects.shapes import for_messages, for_openai
from tests.rows import rows

ANTHROPICS = b'{"type":"error","error":{"type":"overloaded_error","message":"m"},"request_id":"r"}'
GOOGLES = b'[{"error":{"code":404,"message":"m","status":"NOT_FOUND"}}]'
BEDROCKS = [(b"x-amzn-errortype", b"UnrecognizedClientException:http://x/")]
OPENAIS = b'{"error":{"message":"m","type":"requests","param":"n","code":"rate_limit_exceeded"}}'


@rows(
    ("status", "body", "error"),
    [
        (429, OPENAIS, {"type": "rate_limit_error", "message": "m", "code": "rate_limit_exceeded", "param": "n"}),
        (400, b'{"detail":"m"}', {"type": "invalid_request_error", "message": "m", "code": "ours"}),
        (404, GOOGLES, {"type": "not_found_error", "message": "m", "code": "ours"}),
        (503, b"<html>", {"type": "overloaded_error", "message": "The provider answered with status 503.", "code": "ours"}),
        (413, b'{"type":"error","error":"m"}', {"type": "request_too_large", "message": "m", "code": "ours"}),
    ],
)  # fmt: skip
def test_any_error_is_readable_for_callers_of_messages(status: int, body: bytes, error: Any) -> None:
    shaped = for_messages(status, body, "ours", "req_1")

    assert shaped is not None
    assert orjson.loads(shaped) == {"type": "error", "error": error, "request_id": "req_1"}


def test_an_error_stays_as_it_is_for_its_own_callers() -> None:
    """To the byte: fields that nobody here knows, too."""
    assert for_messages(529, ANTHROPICS, "ours", "req_1") is None
    assert for_openai(429, OPENAIS, "ours") is None
    assert for_openai(400, b'{"detail":"m"}', "ours") is None


@rows(("status", "kind"), [(400, "invalid_request_error"), (429, "rate_limit_error"), (529, "server_error")])
def test_an_error_of_anthropics_is_readable_for_callers_of_openais(status: int, kind: str) -> None:
    shaped = orjson.loads(for_openai(status, ANTHROPICS, "overloaded") or b"null")

    assert shaped == {"error": {"message": "m", "type": kind, "param": None, "code": "overloaded"}}


@rows(
    ("status", "body", "headers", "code", "error"),
    [
        (403, b'{"message":"m"}', BEDROCKS, "auth", (401, "m", "authentication_error")),
        (503, b'{"message":"m"}', BEDROCKS, "overloaded", (503, "m", "server_error")),
        (404, GOOGLES, (), "model_not_found", (404, "m", "invalid_request_error")),
        (400, GOOGLES[1:-1], (), "auth", (401, "m", "authentication_error")),
        (400, ANTHROPICS, (), "quota_exhausted", (429, "m", "rate_limit_error")),
    ],
)
def test_an_error_of_any_provider_has_the_status_that_clients_know(
    status: int, body: bytes, headers: Any, code: str, error: tuple[int, str, str]
) -> None:
    """Of another language's: Google says 400, and Bedrock 403, of a bad key; Anthropic 400 of an account without credit."""
    shaped = orjson.loads(for_openai(status, body, code, headers) or b"null")

    assert shaped == {"error": {"message": error[1], "type": error[2], "param": None, "code": code}}
    assert client_status(status, code) == error[0]


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=40) | st.recursive(st.none() | st.text(max_size=5), lambda inner: st.dictionaries(
    st.sampled_from(["type", "error", "message", "code", "param"]), inner | st.lists(inner, max_size=2), max_size=4)
).map(orjson.dumps))  # fmt: skip
def test_whatever_a_provider_says_becomes_an_error(body: bytes) -> None:
    shaped = orjson.loads(for_messages(500, body, None, "r") or body)

    assert shaped["type"] == "error"
    assert isinstance(shaped["error"]["message"], str)
    for_openai(500, body, None, BEDROCKS)
