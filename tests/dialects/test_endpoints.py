"""The table of endpoints: what each is, and that every shape reads and writes what its callers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GatewayError, KeyRateLimited
from gateway.core.openai.sse import error_in, split_events
from gateway.core.render import named_request
from gateway.core.types import AnswerShape, Endpoint, ErrorClass, ProviderError, UpstreamFailed
from gateway.dialects.endpoints import CHAT, COUNT_GENERATED, ENDPOINTS, GENERATE, MESSAGES, RESPONSES, WORK
from tests.rows import rows

ALL = (*ENDPOINTS, GENERATE, COUNT_GENERATED)
OVERLOADED = KeyRateLimited("slow down", retry_after_s=2.0)
ERRORS: dict[str, bytes] = {
    "chat": b'{"error":{"message":"m","type":"server_error","param":null,"code":null}}',
    "messages": b'{"type":"error","error":{"type":"overloaded_error","message":"m"}}',
    "generate": b'{"error":{"code":503,"message":"m","status":"UNAVAILABLE"}}',
}
"""A provider's error, by the stream of those who write it so."""
WHOLE: dict[str, dict[str, Any]] = {
    "chat": {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]},
    "completions": {"choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}]},
    "messages": {"type": "message", "content": [{"type": "text", "text": "hi"}]},
    "generate": {"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]},
}


def names(has: Callable[[Endpoint], object]) -> set[str]:
    return {endpoint.name for endpoint in ALL if has(endpoint)}


def test_what_sets_endpoints_apart() -> None:
    """A new endpoint is put into these rows; no part of the core asks for its name."""
    assert names(lambda one: one.takes_comments) == {
        *("chat", "completions", "responses", "messages", "count_tokens", "images"),
    }
    assert names(lambda one: one.is_no_job) == {"count_tokens", "generate", "count_generated"}
    assert names(lambda one: one.counts_tokens) == {"count_tokens", "count_generated"}
    assert names(lambda one: one.may_end_later) == {"responses"}
    assert names(lambda one: one.has_many_texts) == {"embeddings", "completions"}
    assert names(lambda one: one.has_vectors) == {"embeddings"}
    assert names(lambda one: one.is_completed) == {"embeddings", "images"}
    assert names(lambda one: one.media) == {"images", "speech", "transcriptions"}
    assert names(lambda one: one.names_model) == {"messages", "count_tokens"}
    assert names(lambda one: one.shape.request_id_header) == {"messages", "count_tokens"}
    assert {one.name for one in WORK} == {one.name for one in ENDPOINTS} - {"count_tokens"}


@rows("endpoint", ALL)
def test_an_error_of_ours_is_one_error_whole_and_as_an_event(endpoint: Endpoint) -> None:
    """With the same words in both."""
    shape = endpoint.shape
    whole = orjson.loads(shape.error_body(OVERLOADED, "req_1"))
    events = list(split_events(shape.error_event(OVERLOADED, "req_1")))
    assert whole["error"]["message"] == "slow down"
    assert "slow down" in str(error_in(events[0]))


@rows("endpoint", ALL)
def test_the_id_of_a_request_stands_where_callers_look_for_it(endpoint: Endpoint) -> None:
    named = dict(named_request(endpoint.shape, [(b"x-request-id", b"req_1")]))
    assert named == {b"x-request-id": b"req_1"} | (
        {b"request-id": b"req_1"} if endpoint.shape.stream == "messages" else {}
    )


def told(
    shape: AnswerShape, body: bytes, *, status: int = 503, is_converted: bool = False, is_readable: bool = False
) -> bytes | None:
    code = ErrorClass.OVERLOADED
    return shape.provider_error(ProviderError(status, body, (), code, is_converted, is_readable, "req_1"))


@rows("endpoint,language", [(CHAT, "chat"), (RESPONSES, "chat"), (MESSAGES, "messages"), (GENERATE, "generate")])
def test_a_providers_error_reaches_callers_in_their_shape(endpoint: Endpoint, language: str) -> None:
    """Its own body where it is in that shape; else with the same message."""
    for shape, body in ERRORS.items():
        made = told(endpoint.shape, body, is_readable=shape == "chat")
        assert made is not None
        assert (made is body) == (shape == language)
        assert orjson.loads(made)["error"]["message"] == "m"


@rows("endpoint", [CHAT, RESPONSES, MESSAGES, GENERATE])
def test_an_error_that_nobody_can_read_is_the_callers_only_below_500(endpoint: Endpoint) -> None:
    """A page of a proxy says nothing; of a refusal at least the status is told."""
    assert told(endpoint.shape, b"<html>") is None
    assert b"status 422" in (told(endpoint.shape, b"<html>", status=422) or b"")


@rows("endpoint", [CHAT, MESSAGES, GENERATE])
def test_an_answer_of_another_api_is_none(endpoint: Endpoint) -> None:
    """With status 200, at the wrong server; its own is one, and tells its error."""
    for shape, answer in WHOLE.items():
        is_own = shape == endpoint.name or (endpoint is CHAT and shape == "completions")
        assert is_answer(endpoint.shape, answer) is is_own, shape
        assert endpoint.shape.error_inside({**answer, "error": {"message": "m"}}) == {"message": "m"}
    with pytest.raises(UpstreamFailed) as failed:
        endpoint.shape.error_inside({"id": "x"})
    assert failed.value.error_class is ErrorClass.MALFORMED_RESPONSE


def is_answer(shape: AnswerShape, answer: dict[str, Any]) -> bool:
    try:
        return shape.error_inside(answer) is None
    except UpstreamFailed:
        return False


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["error", "choices", "content", "candidates", "promptFeedback", "object", "finish_reason"])


@given(st.sampled_from(ALL), st.dictionaries(FIELDS, JSON, max_size=4), st.integers(200, 599))
def test_shapes_are_total(endpoint: Endpoint, answer: dict[str, Any], status: int) -> None:
    """On any answer with status 200, and on any error."""
    shape, body = endpoint.shape, orjson.dumps(answer)
    is_answer(shape, answer)
    assert shape.as_event(status, body).endswith((b"\n\n", b"\r\n\r\n"))
    shape.as_stream(body, include_usage=True)
    shape.choices_wanted(answer)
    assert told(shape, body, status=status, is_converted=True) is not None or status >= 500
    assert shape.with_retry_advice(body, [(b"retry-after", b"3")])


def test_only_googles_callers_read_a_delay_in_the_body() -> None:
    error: GatewayError = OVERLOADED
    for endpoint in ALL:
        body = endpoint.shape.error_body(error, "req_1")
        assert (b"retryDelay" in body) == (endpoint.shape.stream == "generate")
