"""Turns over WebSocket: events become the bodies of POSTs, event streams become frames, in any cut."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import BodyTooComplex, InvalidRequest
from gateway.core.openai.json_edit import MalformedJson, Outline, read_outline
from gateway.core.openai.sse import response_error
from gateway.products.responses.socket import MOST_EACH, MOST_EACH_BYTES, ConversationMemory
from gateway.products.responses.socket_turns import (
    EventFrames,
    error_frame,
    read_turn,
    turn_body,
    with_fields,
    with_output,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(
    st.sampled_from(["type", "stream_id", "generate", "background", "stream", "store", "model", "tools", "é", "a\\b"])
    | st.text(max_size=4),
    JSON,
    max_size=6,
)
ITEM = {"type": "message", "role": "user", "content": "x"}


def outline_of(data: bytes) -> Outline:
    """As the edge reads it."""
    steps = read_outline(data, 100_000)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            outline: Outline = done.value
            return outline


@given(
    FIELDS,
    st.sampled_from([None, b"", b'{"a":1}']),
    st.sampled_from([None, "x", [], [ITEM], [ITEM, ITEM]]),
    st.booleans(),
)
def test_a_body_is_the_event_without_its_envelope(
    fields: dict[str, Any], before: bytes | None, given_input: Any, spaced: bool
) -> None:
    """Whatever else is in it, and however it is written; what came before stands before the input."""
    event = {**fields, "previous_response_id": "resp_1", "input": given_input}
    data = json.dumps(event, indent=1 if spaced else None).encode()
    body, items = turn_body(data, outline_of(data), before)
    made = orjson.loads(body)
    ours = ("type", "stream_id", "generate", "background", "stream")
    assert made.pop("stream") is True
    said = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}]
    own = said if given_input == "x" else given_input or []
    assert orjson.loads(b"[%b]" % items) == [*orjson.loads(b"[%b]" % (before or b"")), *own]
    expected = {name: value for name, value in event.items() if name not in ours}
    if before is not None:
        del expected["previous_response_id"]
        expected["input"] = orjson.loads(b"[%b]" % items)
    assert made == orjson.loads(orjson.dumps(expected))


@given(st.binary(max_size=60) | FIELDS.map(orjson.dumps))
def test_reading_is_total(data: bytes) -> None:
    """An event is read, or refused."""
    with contextlib.suppress(InvalidRequest, BodyTooComplex, MalformedJson):
        read_turn(data, outline_of(data))


STREAM = (
    b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
    b": waiting\n\n"
    b'data: {"type":"response.output_text.delta","delta":"\xc3\xa9"}\n\n'
    b'event: response.in_progress\r\ndata: {"type":"response.in_progress",\r\ndata: "x":1}\r\n\r\n'
    b'data: {"error":{"message":"no","code":"c"}}\n\n' + response_error("late", "server_error", 7) + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_frames_do_not_depend_on_how_a_stream_is_cut(cuts: list[int]) -> None:
    """Comments and the end's mark are none; errors are nested, with their place among the events."""
    at = [0, *sorted(cuts), len(STREAM)]
    frames = EventFrames()
    told = [frame for start, end in itertools.pairwise(at) for frame in frames.feed(STREAM[start:end])]
    assert [orjson.loads(data)["type"] for _, data in told] == [
        *("response.created", "response.output_text.delta", "response.in_progress", "error", "error")
    ]
    assert told[1].data == b'{"type":"response.output_text.delta","delta":"\xc3\xa9"}'
    assert [orjson.loads(data).get("error", {}).get("code") for _, data in told[3:]] == ["c", "server_error"]
    assert orjson.loads(told[4].data)["sequence_number"] == 7


@pytest.mark.parametrize(
    ("status", "kind"), [(None, "invalid_request_error"), (400, "invalid_request_error"), (502, "server_error")]
)
def test_an_error_has_the_shape_of_openais(status: int | None, kind: str) -> None:
    """Nested; with a type, whatever its source says."""
    event = orjson.loads(error_frame({"message": "m", "code": "c"}, status=status, headers={"retry-after": "1"}))
    assert event["type"] == "error"
    assert event["error"] == {"type": kind, "code": "c", "message": "m", "param": None, "headers": {"retry-after": "1"}}
    assert event.get("status") == status
    assert orjson.loads(with_fields(orjson.dumps(event), b'"stream_id":"a",'))["stream_id"] == "a"


@pytest.mark.parametrize(("status", "told"), [(404, 400), (502, 400), (429, 429)])
def test_an_error_that_is_final_has_a_status_that_says_so(status: int, told: int) -> None:
    """Codex tries every frame five times whose status is neither 400 nor 429, and reads no `x-should-retry`."""
    event = orjson.loads(error_frame({"message": "m"}, status=status, headers={"x-should-retry": "false"}))
    assert (event["status"], event["error"]["status"]) == (told, status)
    assert event["headers"] == {"x-should-retry": "false"}
    assert orjson.loads(error_frame({}, status=status, headers={"x-should-retry": "true"}))["status"] == status


def test_what_cannot_be_said_again_is_left_out_of_a_conversation() -> None:
    """Reasoning that its provider has not given, and calls cut short."""
    output = [{"type": "reasoning", "id": "rs_1"}, {"type": "function_call", "status": "incomplete"}, ITEM]
    assert orjson.loads(b"[%b]" % with_output(b"", {"output": output})) == [ITEM]


def test_the_memory_of_connections_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By connection and in all: the oldest goes; one that is over is forgotten, and nobody reads another's."""
    memory = ConversationMemory()
    for number in range(MOST_EACH + 3):
        memory.remember(1, f"r{number}", b"x")
    assert [memory.find(1, name) for name in ("r2", "r3", "r18")] == [None, b"x", b"x"]
    memory.remember(2, "r3", b"y")
    assert (memory.find(2, "r3"), memory.find(3, "r3")) == (b"y", None)
    memory.remember(2, "long", b"x" * (MOST_EACH_BYTES + 1))
    assert memory.find(2, "long") is None
    monkeypatch.setattr("gateway.products.responses.socket.MOST_BYTES", 1000)
    memory.remember(2, "last", b"z" * 600)
    assert memory.bytes <= 1000
    assert memory.find(2, "last") is not None
    for connection in (1, 2):
        memory.forget(connection)
    assert memory.bytes == 0
