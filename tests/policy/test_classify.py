"""What provider errors mean. The bodies are those that providers are seen to send."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ErrorClass
from gateway.policy.classify import (
    classify,
    classify_in_band,
    error_object,
    is_openai_shaped,
    moves_on,
    status_of,
)

BOUNDED = settings(max_examples=200, deadline=None, derandomize=True)

E = ErrorClass

plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner, max_size=2)
)
error_objects = st.dictionaries(st.sampled_from(["code", "type", "message", "param", "details", "error"]), values)

BY_STATUS = {
    **dict.fromkeys((400, 405, 415, 422, 418, 501), E.BAD_REQUEST),
    401: E.AUTH,
    402: E.QUOTA_EXHAUSTED,
    403: E.PERMISSION,
    404: E.NOT_FOUND,
    410: E.NOT_FOUND,
    408: E.TIMEOUT,
    409: E.CONFLICT,
    413: E.PAYLOAD_TOO_LARGE,
    424: E.SERVER_ERROR,
    425: E.RATE_LIMIT_REQUESTS,
    429: E.RATE_LIMIT_REQUESTS,
    498: E.OVERLOADED,
    499: E.CONNECTION,
    **dict.fromkeys((500, 502, 505, 520, 521, 522, 523, 524, 525, 526, 599), E.SERVER_ERROR),
    503: E.OVERLOADED,
    504: E.TIMEOUT,
    529: E.OVERLOADED,
    302: E.UNKNOWN,
}

AZURE_TOKENS = "Requests to the ChatCompletions_Create Operation have exceeded token rate limit of your current tier."
AZURE_TOKENS_TOO = "Your requests to gpt-4.1-nano in Sweden Central have exceeded the token rate limit of your quota."
AZURE_CALLS = "Requests to the Embeddings_Create Operation have exceeded call rate limit; see aka.ms/oai/quotaincrease."
OPENAI_TPM = "Rate limit reached for gpt-4o-mini on tokens per min (TPM): Limit 200000, Used 195869, Requested 4412."
ANTHROPIC_TPM = "This request would exceed your organization's rate limit of 30,000 input tokens per minute."
ANTHROPIC_SPENT = "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."
TOO_LONG = "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000"

# (status, type, code, message, class)
TABLE: list[tuple[int, str | None, str | int | None, str, ErrorClass]] = [
    (400, "invalid_request_error", "context_length_exceeded", "too long", E.CONTEXT_LENGTH_EXCEEDED),
    (400, "invalid_request_error", "content_policy_violation", "no", E.CONTENT_POLICY),
    (400, "image_generation_user_error", "moderation_blocked", "no", E.CONTENT_POLICY),
    (400, "invalid_request_error", "string_above_max_length", "no", E.BAD_REQUEST),
    (400, "invalid_request_error", "unsupported_parameter", "no", E.BAD_REQUEST),
    (401, "invalid_request_error", "invalid_api_key", "no", E.AUTH),
    (403, "request_forbidden", "unsupported_country_region_territory", "no", E.PERMISSION),
    (404, "invalid_request_error", "model_not_found", "no", E.NOT_FOUND),
    (429, "requests", "rate_limit_exceeded", "on requests per min (RPM)", E.RATE_LIMIT_REQUESTS),
    (429, "tokens", "rate_limit_exceeded", OPENAI_TPM, E.RATE_LIMIT_TOKENS),
    (429, None, "rate_limit_exceeded", OPENAI_TPM, E.RATE_LIMIT_TOKENS),
    (413, "tokens", "rate_limit_exceeded", "Request too large on tokens per minute (TPM)", E.RATE_LIMIT_TOKENS),
    (429, "rate_limit_error", "slow_down", "slow down", E.RATE_LIMIT_REQUESTS),
    (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota", E.QUOTA_EXHAUSTED),
    (429, "insufficient_quota", "credit_balance_exhausted", "no", E.QUOTA_EXHAUSTED),
    (429, "tokens", "organization_spend_limit_exceeded", "no", E.QUOTA_EXHAUSTED),
    (429, "requests", "project_spend_limit_exceeded", "no", E.QUOTA_EXHAUSTED),
    (429, None, "organization_usage_limit_exceeded", "no", E.QUOTA_EXHAUSTED),
    (500, "server_error", None, "The server had an error", E.SERVER_ERROR),
    (503, "service_unavailable_error", "server_is_overloaded", "no", E.OVERLOADED),
    (429, None, "429", AZURE_TOKENS, E.RATE_LIMIT_TOKENS),
    (429, None, "429", AZURE_TOKENS_TOO, E.RATE_LIMIT_TOKENS),
    (429, None, "429", AZURE_CALLS, E.RATE_LIMIT_REQUESTS),
    (400, None, "content_filter", "The response was filtered", E.CONTENT_POLICY),
    (404, None, "DeploymentNotFound", "no", E.NOT_FOUND),
    (500, None, "InternalServerError", "no", E.SERVER_ERROR),
    (
        400,
        "invalid_request_error",
        None,
        "prompt is too long: 205351 tokens > 200000 maximum",
        E.CONTEXT_LENGTH_EXCEEDED,
    ),
    (400, "invalid_request_error", None, TOO_LONG, E.CONTEXT_LENGTH_EXCEEDED),
    (400, "invalid_request_error", None, "Your credit balance is too low to access the API", E.QUOTA_EXHAUSTED),
    (400, "invalid_request_error", None, ANTHROPIC_SPENT, E.QUOTA_EXHAUSTED),
    (401, "authentication_error", None, "no", E.AUTH),
    (402, "billing_error", None, "no", E.QUOTA_EXHAUSTED),
    (403, "permission_error", None, "no", E.PERMISSION),
    (404, "not_found_error", None, "no", E.NOT_FOUND),
    (409, "conflict_error", None, "no", E.CONFLICT),
    (413, "request_too_large", None, "no", E.PAYLOAD_TOO_LARGE),
    (429, "rate_limit_error", None, ANTHROPIC_TPM, E.RATE_LIMIT_TOKENS),
    (429, "rate_limit_error", None, "limit of 50 requests per minute", E.RATE_LIMIT_REQUESTS),
    (500, "api_error", None, "no", E.SERVER_ERROR),
    (504, "timeout_error", None, "no", E.TIMEOUT),
    (529, "overloaded_error", None, "Overloaded", E.OVERLOADED),
    (400, "BadRequestError", 400, "This model's maximum context length is 8192 tokens.", E.CONTEXT_LENGTH_EXCEEDED),
    (429, None, "context_length_exceeded", "no window is ever a rate limit", E.RATE_LIMIT_REQUESTS),
]


@BOUNDED
@given(st.integers(100, 999), st.binary(max_size=60) | error_objects.map(lambda error: orjson.dumps({"error": error})))
def test_every_answer_has_a_class(status: int, body: bytes) -> None:
    """Whatever the status and the bytes."""
    assert classify(status, body) in ErrorClass
    assert is_openai_shaped(body) in (True, False)


@BOUNDED
@given(error_objects)
def test_every_error_inside_a_200_has_a_status_and_a_class(error: dict[str, Any]) -> None:
    """The status is one of an error, so that SDKs raise."""
    status, error_class = classify_in_band(error)

    assert 400 <= status < 600
    assert error_class in ErrorClass


@pytest.mark.parametrize("shape", ['{"error":{"code":%s,"type":%s,"message":%s}}', '{"code":%s,"type":%s,"error":%s}'])
def test_nesting_as_deep_as_the_parser_takes_it_has_a_class(shape: str) -> None:
    """What cannot be printed is not read."""
    deep = "[" * 1000 + "]" * 1000

    for fields in [(deep, "1", '"m"'), ('"c"', deep, '"m"'), ("null", "null", deep), (deep, deep, deep)]:
        body = (shape % fields).encode()

        assert classify(500, body) is E.SERVER_ERROR
        assert classify_in_band(error_object(body) or {})[1] is E.SERVER_ERROR


@pytest.mark.parametrize(("status", "error_class"), BY_STATUS.items())
@pytest.mark.parametrize(
    "body", [b"", b"<html>502 Bad Gateway</html>", b'{"detail":"x"}', b'{"error":null}', b"[]", b"7"]
)
def test_without_words_the_status_decides(status: int, error_class: ErrorClass, body: bytes) -> None:
    """HTML, other JSON, or nothing at all."""
    assert classify(status, body) is error_class


@pytest.mark.parametrize(("status", "kind", "code", "message", "error_class"), TABLE)
@pytest.mark.parametrize("shape", ["openai", "array", "flat", "anthropic"])
def test_known_errors_have_their_class(
    status: int, kind: str | None, code: object, message: str, error_class: ErrorClass, shape: str
) -> None:
    """In every shape that the error object comes in."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    nested = {"error": error}
    bodies: dict[str, Any] = {
        "openai": nested,
        "array": [nested],
        "flat": {"object": "error", **error},
        "anthropic": {"type": "error", "request_id": "req_1", **nested},
    }

    assert classify(status, orjson.dumps(bodies[shape])) is error_class


@pytest.mark.parametrize(
    ("status", "body", "error_class"),
    [
        (
            429,
            b'{"code":"Some resource has been exhausted","error":"Your team has used all available credits"}',
            "quota",
        ),
        (429, b'[{"error":{"code":429,"message":"Your prepayment credits are depleted"}}]', "quota"),
        (429, b'{"type":"error","error":{"details":{"error_code":"enforced_spend_limit_reached"}}}', "quota"),
        (401, b'{"error":"Unauthorized"}', "auth"),
        (429, b'{"error":"Model is overloaded","error_type":"overloaded"}', "rate_limit_requests"),
    ],
)
def test_errors_of_other_shapes_are_read(status: int, body: bytes, error_class: str) -> None:
    """A text instead of an object, or a code one level down."""
    assert classify(status, body).startswith(error_class)


@pytest.mark.parametrize(
    ("error", "status", "error_class"),
    [
        ({"type": "service_unavailable_error", "code": "server_is_overloaded"}, 503, E.OVERLOADED),
        ({"type": "overloaded_error", "message": "Overloaded"}, 503, E.OVERLOADED),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "m"}, 429, E.RATE_LIMIT_REQUESTS),
        ({"type": "tokens", "code": "rate_limit_exceeded"}, 429, E.RATE_LIMIT_TOKENS),
        ({"type": "insufficient_quota", "code": "insufficient_quota"}, 429, E.QUOTA_EXHAUSTED),
        ({"code": 503, "status": "UNAVAILABLE", "message": "m"}, 503, E.OVERLOADED),
        ({"code": "429", "message": "token rate limit"}, 429, E.RATE_LIMIT_TOKENS),
        ({"code": 502, "metadata": {"error_type": "provider_unavailable"}}, 502, E.SERVER_ERROR),
        ({"object": "error", "type": "BadRequestError", "code": 400, "message": "m"}, 400, E.BAD_REQUEST),
        ({"message": "Model is overloaded", "type": "overloaded", "code": None}, 503, E.OVERLOADED),
        ({"message": "m", "type": "validation", "code": None}, 400, E.BAD_REQUEST),
        ({"type": "invalid_request_error", "code": None, "message": "m"}, 400, E.BAD_REQUEST),
        ({"code": "context_length_exceeded"}, 400, E.CONTEXT_LENGTH_EXCEEDED),
        ({"code": "content_filter"}, 400, E.CONTENT_POLICY),
        ({"code": 200, "message": "m"}, 502, E.SERVER_ERROR),
        ({"code": True}, 502, E.SERVER_ERROR),
        ({"code": "server_error"}, 502, E.SERVER_ERROR),
        ({}, 502, E.SERVER_ERROR),
    ],
)
def test_errors_inside_a_200_get_the_status_they_should_have_had(
    error: dict[str, Any], status: int, error_class: ErrorClass
) -> None:
    """By their code where it is a status, else by their words."""
    assert classify_in_band(error) == (status, error_class)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"error":{"code":"c"}}', {"code": "c"}),
        (b'[{"error":{"code":"c"}}]', {"code": "c"}),
        (b'{"error":"text","code":"c"}', {"error": "text", "code": "c", "message": "text"}),
        (b'{"message":"text"}', {"message": "text"}),
        (b'{"detail":"text"}', None),
        (b'[{"error":{}},{}]', None),
        (b'"error"', None),
        (b"", None),
    ],
)
def test_error_objects_are_found_where_they_are(body: bytes, error: dict[str, Any] | None) -> None:
    """Nested, in an array, as a text, or flat."""
    assert error_object(body) == error


@pytest.mark.parametrize(
    ("body", "readable"),
    [(b'{"error":{"message":"m"}}', True), (b'{"error":"m"}', False), (b'[{"error":{}}]', False), (b"<html>", False)],
)
def test_only_openais_shape_is_shown_to_clients_as_it_is(body: bytes, readable: bool) -> None:
    """SDKs read `error` as an object."""
    assert is_openai_shaped(body) is readable


def test_what_is_wrong_with_the_request_stays_with_its_target() -> None:
    """The same request would fail at every other target too."""
    stays = {
        *(E.BAD_REQUEST, E.CONTEXT_LENGTH_EXCEEDED, E.CONTENT_POLICY, E.AUTH, E.PERMISSION, E.NOT_FOUND),
        *(E.PAYLOAD_TOO_LARGE, E.CONFLICT, E.UNKNOWN),
    }

    assert {error_class for error_class in ErrorClass if not moves_on(error_class)} == stays


def test_every_class_has_an_error_status() -> None:
    """An error inside a 200 is never passed on as a success."""
    assert all(400 <= status_of(error_class) < 600 for error_class in ErrorClass)
