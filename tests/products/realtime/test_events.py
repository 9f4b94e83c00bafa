"""Which events are read, and what they say, whatever a provider sends; and what a handshake's subprotocols say."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.core.ledger import usage_usd
from gateway.core.openai.usage import ABSURD
from gateway.core.snapshot import Rates
from gateway.core.types import Usage, UsageParts
from gateway.products.realtime.http import read_subprotocols
from gateway.products.realtime.rules import ReadEvent, error_event, is_read, read_event, usage_of_response
from tests.products.realtime.provider import created, delta, done

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def test_only_ends_errors_and_sessions_are_read() -> None:
    """A byte search decides; what a model says about them is parsed in vain, and counts for nothing."""
    assert is_read(done().encode())
    assert is_read(error_event("x", "y", "z"))
    assert is_read(created().encode())
    assert not is_read(delta("hello").encode())
    assert read_event(delta('"response.done"').encode()) is None


def test_usage_is_read_as_realtime_says_it() -> None:
    """`input_token_details` where others say `input_tokens_details`."""
    event = read_event(done().encode())
    assert event is not None
    assert event.usage == Usage(20, 10, 8)


def test_sound_has_prices_of_its_own() -> None:
    """Where the model has any; else it costs as text does."""
    said = {
        "input_tokens": 100,
        "output_tokens": 50,
        "input_token_details": {"audio_tokens": 60, "cached_tokens": 30, "cached_tokens_details": {"audio_tokens": 20}},
        "output_token_details": {"audio_tokens": 40},
    }
    event = read_event(done(said).encode())
    assert event is not None
    assert event.usage == Usage(100, 50, 30, parts=UsageParts(audio_input=60, audio_output=40, audio_cached=20))
    as_text = Rates(4.0, 16.0, 0.4)
    assert usage_usd(as_text, event.usage) == pytest.approx(70 * 4 + 30 * 0.4 + 50 * 16)
    as_sound = Rates(4.0, 16.0, 0.4, None, None, 32.0, 64.0, 0.5)
    text_usd = 30 * 4 + 10 * 0.4 + 10 * 16
    assert usage_usd(as_sound, event.usage) == pytest.approx(text_usd + 40 * 32 + 20 * 0.5 + 40 * 64)


def test_pictures_have_prices_of_their_own() -> None:
    """A session may be shown some; what is cached of them is told apart from cached sound."""
    said = {
        "input_tokens": 100,
        "output_tokens": 5,
        "input_token_details": {
            "image_tokens": 50,
            "cached_tokens": 30,
            "cached_tokens_details": {"image_tokens": 20, "audio_tokens": 0},
        },
    }
    event = read_event(done(said).encode())
    assert event is not None
    assert event.usage == Usage(100, 5, 30, parts=UsageParts(image_input=50, image_cached=20))


def test_what_no_response_can_have_used_is_estimated() -> None:
    """Output by what has come of it, sound as sound; input by the response before, whose context it reads again."""
    came = Usage(0, 70, estimated=True, parts=UsageParts(audio_output=60))
    event = read_event(done({"input_tokens": 2**31, "output_tokens": 2**31}).encode())
    assert event is not None
    assert usage_of_response(event.usage, came, 500) == Usage(500, 70, estimated=True, parts=came.parts, doubt=ABSURD)
    event = read_event(done({"input_tokens": 2**31, "output_tokens": 9}).encode())
    assert event is not None
    assert usage_of_response(event.usage, came, 500) == Usage(500, 9, estimated=True, doubt=ABSURD)
    assert usage_of_response(None, came, 500) == came
    assert usage_of_response(Usage(20, 10, 8), came, 500) == Usage(20, 10, 8)
    assert usage_of_response(None, None, 500) is None


def test_a_failed_response_is_an_error_with_its_usage() -> None:
    """Its code is the provider's."""
    details = {"type": "failed", "error": {"type": "server_error", "code": "rate_limit_exceeded"}}
    event = read_event(done(status="failed", status_details=details).encode())
    assert event is not None
    assert (event.is_done, event.error, event.usage is not None) == (True, "rate_limit_exceeded", True)
    failed = read_event(b'{"type": "error", "error": {"type": "invalid_request_error", "code": null}}')
    assert failed == ReadEvent(is_done=False, usage=None, error="invalid_request_error")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b'{"type":"response.done"}', b'{"type":"response.done","response":1}']
)
def test_what_is_no_event_counts_for_nothing(text: bytes) -> None:
    """Broken JSON included."""
    assert read_event(text) is None


@given(JSON, JSON, JSON)
def test_reading_is_total(usage: object, details: object, error: object) -> None:
    """Whatever stands in the fields, nothing is raised."""
    response = {"usage": usage, "status": "failed", "status_details": details}
    read_event(orjson.dumps({"type": "response.done", "response": response}, default=str))
    read_event(orjson.dumps({"type": "error", "error": error}, default=str))


def test_a_key_is_taken_out_of_the_subprotocols() -> None:
    """On however many lines."""
    name = b"sec-websocket-protocol"
    offered = read_subprotocols(
        [
            (name, b"realtime, openai-insecure-api-key.sk-1"),
            (b"other", b"x"),
            (name, b"openai-organization.org-1,openai-beta.realtime-v1, realtime"),
        ]
    )
    assert offered == (b"sk-1", [b"openai-organization.org-1"], [b"realtime", b"openai-beta.realtime-v1"])
    assert read_subprotocols([]) == (None, [], [])


@pytest.mark.parametrize("value", [b"a b", b"r\xc3\xa4", b"openai-insecure-api-key.sk-\x00x", b'"x"'])
def test_what_is_no_token_is_refused_without_being_quoted(value: bytes) -> None:
    """It could be a key with a slip in it."""
    with pytest.raises(InvalidRequest) as refused:
        read_subprotocols([(b"sec-websocket-protocol", value)])
    assert "sk-" not in refused.value.message


def test_two_keys_are_refused() -> None:
    """Nobody could tell which counts."""
    with pytest.raises(InvalidRequest):
        read_subprotocols([(b"sec-websocket-protocol", b"openai-insecure-api-key.a, openai-insecure-api-key.b")])
