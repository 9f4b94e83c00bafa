"""A message of Anthropic's, whole and streamed: either makes the other, or nothing is made."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.sse import event_json, split_events
from gateway.core.openai.transcript import Transcript
from gateway.dialects.conversion import as_stream, as_whole, ends_well
from gateway.dialects.conversion_chat import PIECE_LENGTH
from tests.dialects.grammar import check_messages
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)
USAGE = {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 2}
TEXT = {"type": "text", "text": "hello"}
KINDS = (
    TEXT,
    {"type": "text", "text": "x" * (PIECE_LENGTH + 1), "citations": [{"type": "char_location"}]},
    {"type": "thinking", "thinking": "hm", "signature": "sig"},
    {"type": "redacted_thinking", "data": "zzz"},
    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1, {}]}},
    {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "t", "content": [{"type": "x"}]},
)


def message(*blocks: Any, **fields: Any) -> dict[str, Any]:
    begun = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [*blocks]}
    return {**begun, "stop_reason": "end_turn", "stop_sequence": None, "usage": USAGE, **fields}


def streamed(whole: Any) -> bytes:
    frames = as_stream("messages", orjson.dumps(whole), include_usage=False)
    assert frames is not None
    return frames


def frame(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


@BOUNDED
@given(st.lists(st.sampled_from(KINDS), max_size=4), st.sampled_from(["end_turn", "tool_use", "refusal"]))
def test_a_message_survives_being_streamed(blocks: list[Any], reason: str) -> None:
    """There and back again, in events that clients and our own relay take for a whole stream."""
    whole = message(*blocks, stop_reason=reason, container={"id": "c"})
    frames = streamed(whole)

    assert orjson.loads(as_whole("messages", frames) or b"null") == whole
    assert check_messages(frames) == whole
    said = Transcript("messages")
    assert said.read(frames) == frames
    assert said.is_over
    assert ends_well("messages", True, frames) is ends_well("messages", False, orjson.dumps(whole))
    for end in range(0, len(frames) - 1, 41):
        assert as_whole("messages", frames[:end]) is None


def test_what_a_stream_repeats_or_adds_is_said_once() -> None:
    """The last numbers of its usage hold, and pings are nothing; input that never came is none."""
    first = message(stop_reason=None, usage={"input_tokens": 3, "output_tokens": 1})
    frames = b"".join(
        (
            frame("message_start", message=first),
            frame("ping"),
            frame(
                "content_block_start", index=0, content_block={"type": "tool_use", "id": "t", "name": "f", "input": {}}
            ),
            frame("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": ""}),
            frame("content_block_stop", index=0),
            frame(
                "message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5}, context_management={}
            ),
            frame("message_stop"),
        )
    )

    whole = orjson.loads(as_whole("messages", frames) or b"null")

    assert whole["content"] == [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]
    assert (whole["usage"], whole["stop_reason"]) == ({"input_tokens": 3, "output_tokens": 5}, "tool_use")
    assert whole["context_management"] == {}


DELTA = frame("content_block_delta", index=0, delta={"type": "text_delta", "text": "hello"})


@rows(
    ("old", "new"),
    [
        (DELTA, frame("content_block_delta", index=1, delta={"type": "text_delta", "text": "hello"})),
        (DELTA, frame("content_block_delta", index=0, delta={"type": "new_delta", "text": "hello"})),
        (DELTA, frame("content_block_delta", index=0, delta={"type": "text_delta", "text": 1})),
        (DELTA, frame("content_block_start", index=1, content_block=TEXT)),
        (DELTA, frame("error", error={"type": "api_error", "message": "m"})),
        (DELTA, frame("new_event")),
        (frame("content_block_stop", index=0), b""),
        (frame("message_stop"), b""),
        (frame("message_stop"), frame("message_stop") * 2),
    ],
)
def test_a_stream_that_says_it_otherwise_is_no_message(old: bytes, new: bytes) -> None:
    frames = streamed(message(TEXT))
    assert old in frames

    assert as_whole("messages", frames.replace(old, new)) is None


@rows(
    "whole",
    [
        {"type": "error", "error": {"type": "api_error", "message": "m"}},
        {"object": "chat.completion", "choices": []},
        {"type": "message", "content": "text", "stop_reason": "end_turn"},
        {"type": "message", "content": [1], "stop_reason": "end_turn"},
        {"type": "message", "content": [], "stop_reason": None},
        {"type": "message", "content": [{"type": "text", "text": "a", "citations": 3}], "stop_reason": "end_turn"},
    ],
)
def test_what_is_no_whole_message_is_not_streamed(whole: Any) -> None:
    assert as_stream("messages", orjson.dumps(whole), include_usage=False) is None


def test_events_are_named_and_begin_with_the_message() -> None:
    events = [event_json(event) or {} for event in split_events(streamed(message(TEXT)))]

    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    begun = events[0]["message"]
    assert (begun["content"], begun["stop_reason"], begun["usage"]["output_tokens"]) == ([], None, 0)
    assert events[4]["usage"] == USAGE
