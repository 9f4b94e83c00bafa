"""Converted streams, event by event: interleavings, cuts, errors in the middle, and any nonsense."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import Reader, ServerFacts
from gateway.dialects.openai.translators import ChatOverResponses, ResponsesOverChat
from gateway.policy.openai.transcript import is_plain_chat
from tests.dialects.cases import as_bytes, events_of
from tests.dialects.grammar import check_chat, check_responses
from tests.dialects.odd import odd_bodies

PATCH = [{"type": "custom", "name": "patch"}]


def to_responses(**asked: Any) -> Reader:
    """Reads chat completions for a caller of Responses."""
    pair = ResponsesOverChat()
    return pair.reader(
        pair.request({"model": "m", "input": "x", "stream": True, **asked}, ServerFacts(), 1.7e9, lambda: "abc")
    )


def to_chat(**asked: Any) -> Reader:
    """Reads Responses for a caller of chat completions."""
    pair = ChatOverResponses()
    return pair.reader(
        pair.request({"model": "m", "messages": [], "stream": True, **asked}, ServerFacts(), 1.7e9, lambda: "abc")
    )


def through(reader: Reader, raw: bytes) -> bytes:
    return reader.feed(raw) + reader.close(is_clean=True)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def piece(index: int, arguments: str = "", **fields: Any) -> dict[str, Any]:
    """A piece of a call."""
    function = {"arguments": arguments, **({"name": fields.pop("name")} if "name" in fields else {})}
    return delta(tool_calls=[{"index": index, "function": function, **fields}])


STREAM = [
    delta(role="assistant", content=""),
    delta(reasoning_content="h"),
    delta(reasoning_content="m"),
    delta(content="so"),
    delta(content=" it is"),
    piece(0, id="call_a", name="f"),
    piece(0, '{"x"'),
    piece(1, id="call_b", name="g"),
    piece(0, ":1}"),
    delta("tool_calls"),
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
]


def test_reasoning_text_and_interleaved_calls_are_items() -> None:
    """In the order in which they began; a call without arguments has an empty object."""
    whole = check_responses(events_of(through(to_responses(), as_bytes("chat", STREAM))))

    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["arguments"] for item in whole["output"][2:]] == ['{"x":1}', "{}"]
    assert [item["call_id"] for item in whole["output"][2:]] == ["call_a", "call_b"]
    assert whole["output"][0]["content"][0]["text"] == "hm"
    assert whole["usage"]["output_tokens"] == 4


def test_words_behind_a_call_are_a_message_of_their_own() -> None:
    """One thing grows at a time, but for calls."""
    events = [delta(content="a"), piece(0, "{}", id="c", name="f"), delta(content="b"), delta("stop")]
    whole = check_responses(events_of(through(to_responses(), as_bytes("chat", events))))

    assert [item["type"] for item in whole["output"]] == ["message", "function_call", "message"]


def test_the_text_of_a_custom_tool_comes_out_again() -> None:
    """At its end, when it is known."""
    events = [piece(0, '{"inp', id="c", name="patch"), piece(0, 'ut":"*** Begin"}'), delta("tool_calls")]
    made = events_of(through(to_responses(tools=PATCH), as_bytes("chat", events)))
    whole = check_responses(made)

    assert whole["output"][0]["input"] == "*** Begin"
    assert "response.custom_tool_call_input.delta" in [event["type"] for event in made]


def test_every_word_leaves_in_the_chunk_that_it_came_in() -> None:
    """Nothing is held back."""
    reader = to_responses()
    for event in STREAM[:4]:
        assert reader.feed(b"data: %b\n\n" % orjson.dumps(event))


@pytest.mark.parametrize(
    ("finish", "kind"), [("length", "incomplete"), ("content_filter", "incomplete"), ("stop", "completed")]
)
def test_the_end_is_what_the_source_said(finish: str, kind: str) -> None:
    """With or without `[DONE]`."""
    raw = as_bytes("chat", [delta(content="a"), delta(finish)])
    for stream in (raw, raw.removesuffix(b"data: [DONE]\n\n")):
        assert check_responses(events_of(through(to_responses(), stream)))["status"] == kind


def test_a_cut_stream_has_no_end() -> None:
    """Whoever follows it says so; nothing is invented."""
    raw = as_bytes("chat", STREAM[:-2]).removesuffix(b"data: [DONE]\n\n")

    assert "response.completed" not in through(to_responses(), raw).decode()
    responses = through(to_responses(), as_bytes("chat", STREAM))
    for cut in range(0, len(responses) - 2, 97):
        assert b"[DONE]" not in through(to_chat(), responses[:cut])


@pytest.mark.parametrize("at", range(len(STREAM) - 2))
def test_an_error_ends_the_stream_wherever_it_comes(at: int) -> None:
    """In the caller's shape, with the next number, and nothing behind it."""
    broken: list[dict[str, Any]] = [
        *STREAM[:at],
        {"error": {"message": "it broke", "type": "server_error", "code": None}},
        *STREAM[at:],
    ]
    last = check_responses(events_of(through(to_responses(), as_bytes("chat", broken))))

    assert (last["type"], last["message"], last["code"]) == ("error", "it broke", "server_error")


def test_a_finish_reason_that_means_a_failure_is_an_error() -> None:
    """As some servers tell it."""
    last = check_responses(events_of(through(to_responses(), as_bytes("chat", [delta(content="a"), delta("error")]))))

    assert last["type"] == "error"


def test_a_failed_response_is_an_error_of_chat() -> None:
    """Before its end or at it; `[DONE]` does not follow."""
    failed = {
        "type": "response.failed",
        "response": {"status": "failed", "error": {"code": "server_error", "message": "it broke"}},
    }
    for event in (failed, {"type": "error", "code": "server_error", "message": "it broke"}):
        stream = through(to_chat(), as_bytes("responses", [{"type": "response.created", "response": {}}, event]))
        assert events_of(stream)[-1]["error"]["message"] == "it broke"
        assert b"[DONE]" not in stream


def test_there_and_back_is_the_same_message() -> None:
    """A chat completion that goes through Responses and comes back; its usage, where it was asked for."""
    responses = through(to_responses(), as_bytes("chat", STREAM))
    stream = through(to_chat(stream_options={"include_usage": True}), responses)
    message = check_chat(events_of(stream), stream)

    assert (message["content"], message["reasoning_content"], message["finish_reason"]) == (
        "so it is",
        "hm",
        "tool_calls",
    )
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"x":1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert message["usage"]["completion_tokens"] == 4
    assert not check_chat(events_of(through(to_chat(), responses)), through(to_chat(), responses))["usage"]


def test_words_need_no_second_reading() -> None:
    """Whoever follows the stream sees by their form that they are words."""
    reader = to_chat()
    reader.feed(b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n')

    made = reader.feed(
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n\n'
    )

    assert is_plain_chat(made)


@given(
    st.lists(odd_bodies("choices", "delta", "usage", "error", "model", "finish_reason"), max_size=6), st.integers(1, 40)
)
def test_any_chat_stream_is_read(events: list[dict[str, Any]], size: int) -> None:
    """Nothing is raised, and the same comes out however the bytes arrive."""
    raw = as_bytes("chat", events)
    reader = to_responses()
    pieces = b"".join(reader.feed(raw[at : at + size]) for at in range(0, len(raw), size)) + reader.close(is_clean=True)

    assert pieces == through(to_responses(), raw)


KINDS = st.sampled_from(
    [
        "created",
        "completed",
        "output_text.delta",
        "output_item.added",
        "output_item.done",
        "function_call_arguments.delta",
    ]
).map(lambda kind: {"type": f"response.{kind}"})


@given(
    st.lists(st.tuples(KINDS, odd_bodies("response", "delta", "item", "output_index", "logprobs")), max_size=6),
    st.integers(1, 40),
)
def test_any_response_stream_is_read(events: list[tuple[dict[str, Any], dict[str, Any]]], size: int) -> None:
    """Nothing is raised, and the same comes out however the bytes arrive."""
    raw = as_bytes("responses", [kind | fields for kind, fields in events])
    reader = to_chat()
    pieces = b"".join(reader.feed(raw[at : at + size]) for at in range(0, len(raw), size)) + reader.close(is_clean=True)

    assert pieces == through(to_chat(), raw)
