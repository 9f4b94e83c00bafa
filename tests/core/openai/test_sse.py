"""Server-sent events as bytes: where they end, what they say, and that text inside them is only text."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.error_tables import error_object as diagnosis_error
from gateway.core.error_tables import is_openai_shaped
from gateway.core.openai.sse import (
    PENDING_LIMIT,
    EventCutter,
    answer_object,
    chat_error,
    error_in,
    event_data,
    event_json,
    is_silent,
    is_whole,
    message_error,
    response_error,
    split_events,
)
from gateway.dialects.conversion import as_stream, ends_well
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

ENDS = (b"\n\n", b"\r\n\r\n", b"\r\n\n", b"\n\r\n")
EVENT_END = re.compile(rb"(\r?\n\r?\n|\r\r)\Z")

DELTA = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
DONE = b"data: [DONE]\n\n"

CORPUS = {
    "lf": DELTA + USAGE + DONE,
    "crlf": (DELTA + USAGE + DONE).replace(b"\n", b"\r\n"),
    "cr": (DELTA + DONE).replace(b"\n", b"\r"),
    "mixed": DELTA.replace(b"\n", b"\r\n") + DELTA + b"data: a\r\n\ndata: b\n\r\n" + DONE,
    "comments": b": keep-alive\n\n" + DELTA + b":\r\n\r\n: OPENROUTER PROCESSING\n\n" + DONE,
    "multi-line data": b'event: x\nid: 7\ndata: {"a":\ndata: 1}\n\nretry: 5\ndata\n\n' + DONE,
    "extra blank lines": b"\n\n" + DELTA + b"\n\n\n\n" + DELTA + b"\r\n\r\n\r\n" + DONE,
    "unfinished": DELTA + b'data: {"choices":[{"delta":{"content":"H',
}

lines = st.builds(
    lambda name, text: name + text.encode().replace(b"\r", b"").replace(b"\n", b""),
    st.sampled_from([b"data: ", b"data:", b"event: ", b": ", b"id: ", b""]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
events = st.builds(
    lambda some, line_end, end: line_end.join(line for line in some if line) + end,
    st.lists(lines, min_size=1, max_size=3),
    st.sampled_from([b"\n", b"\r\n"]),
    st.sampled_from(ENDS),
)


def cut_up(stream: bytes, cuts: list[int]) -> list[bytes]:
    """The stream in chunks, split at these offsets."""
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    return [stream[start:end] for start, end in pairwise(edges)]


def feed_all(chunks: list[bytes]) -> tuple[list[bytes], bytes]:
    """What a cutter returns for the chunks, and its rest; checks its promises on the way."""
    cutter = EventCutter()
    blocks = []
    fed = returned = 0
    for chunk in chunks:
        block = cutter.feed(chunk)
        fed, returned = fed + len(chunk), returned + len(block)
        assert not block or cutter.inside or EVENT_END.search(block)
        assert fed - returned <= PENDING_LIMIT + len(chunk)
        blocks.append(block)
    return blocks, cutter.rest()


@rows("stream", CORPUS.values(), ids=CORPUS.keys())
def test_a_stream_split_anywhere_comes_out_in_whole_events(stream: bytes) -> None:
    """Every split into two chunks, and byte by byte: nothing is lost, and only an unfinished event is held back."""
    _, unfinished = feed_all([stream])
    splits = [cut_up(stream, [at]) for at in range(len(stream))]

    for chunks in [*splits, cut_up(stream, list(range(len(stream))))]:
        blocks, rest = feed_all(chunks)

        assert b"".join(blocks) + rest == stream
        assert rest == unfinished


@BOUNDED
@given(st.lists(events, max_size=6), st.binary(max_size=10), st.lists(st.integers(0, 200), max_size=8))
def test_any_events_in_any_chunks_are_kept_whole(some: list[bytes], tail: bytes, cuts: list[int]) -> None:
    """Nothing is lost, whatever the bytes; each block ends where an event ends."""
    stream = b"".join(some) + tail

    blocks, rest = feed_all(cut_up(stream, cuts))

    assert b"".join(blocks) + rest == stream
    assert tail or not rest


@rows("size", [1000, 65_536, 300_000])
def test_an_endless_event_is_passed_on_in_parts(size: int) -> None:
    """Memory stays bounded; `inside` says that the client is in the middle of an event, until it ends."""
    cutter = EventCutter()
    got = bytearray()

    for _ in range(5):
        got += cutter.feed(b"x" * size)
    was_inside = cutter.inside
    got += cutter.feed(b"y\n\n")

    assert was_inside == (5 * size > PENDING_LIMIT)
    assert not cutter.inside
    assert bytes(got) == b"x" * 5 * size + b"y\n\n"
    assert cutter.feed(DELTA) is DELTA


@rows("end", [*ENDS, b"\r\r"])
def test_the_end_of_a_long_event_is_seen_across_chunks(end: bytes) -> None:
    """The last bytes are kept back so that a split line end is still one."""
    for at in range(len(end)):
        cutter = EventCutter()
        cutter.feed(b"x" * (PENDING_LIMIT + 1))
        cutter.feed(end[:at])

        cutter.feed(end[at:])

        assert not cutter.inside
        assert cutter.rest() == b""


def test_a_chunk_of_whole_events_is_passed_on_as_it_is() -> None:
    """The usual case costs no copy."""
    assert EventCutter().feed(DELTA) is DELTA


@BOUNDED
@given(st.lists(events, max_size=6))
def test_split_events_splits_and_loses_nothing(some: list[bytes]) -> None:
    """As many events as were joined, for each kind of line end."""
    assert b"".join(split_events(b"".join(some))) == b"".join(some)
    assert list(split_events(DELTA * 2 + DONE.replace(b"\n", b"\r\n"))) == [
        DELTA,
        DELTA,
        DONE.replace(b"\n", b"\r\n"),
    ]


@rows("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_of_blank_lines_is_not_an_event_for_each(line_end: bytes) -> None:
    """A provider can send millions of them in a few bytes, packed."""
    delta, blank = DELTA.replace(b"\n", line_end), line_end * 1000

    assert list(split_events(blank + delta + blank + delta)) == [blank, delta, blank, delta]


@rows(
    ("event", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\r\n\r\n", b"a"),
        (b"data:  a\n\n", b" a"),
        (b"event: x\ndata: a\nid: 1\ndata: b\n\n", b"a\nb"),
        (b": data: a\n\n", b""),
        (b"database: a\n\n", b""),
    ],
)
def test_data_lines_are_joined(event: bytes, data: bytes) -> None:
    """One space behind the colon is not data; comments and other fields aren't either."""
    assert event_data(event) == data


def test_only_an_object_is_taken_as_json() -> None:
    """`[DONE]` and broken JSON are none."""
    assert event_json(b'data: {"a":\ndata: 1}\n\n') == {"a": 1}
    assert [event_json(event) for event in (DONE, b'data: {"a"\n\n', b"data: [1]\n\n", b"\n")] == [None] * 4


@rows(
    ("event", "silent"),
    [
        (b": keep-alive\n\n", True),
        (b"event: ping\r\nid: 1\r\n\r\n", True),
        (b"\n", True),
        (b"data:\n\n", True),
        (b"retry: 5\n\n", True),
        (b"<html>\n\n", False),
        (b'{"detail": 1}\n\n', False),
        (b"upstream connect error\n\n", False),
    ],
)
def test_what_says_nothing_is_told_from_what_is_no_event(event: bytes, silent: bool) -> None:
    """Comments and fields without data are harmless; anything else without data is no SSE."""
    assert is_silent(event) is silent


@rows(
    ("rest", "whole"),
    [
        (DONE[:-1], True),
        (DONE[:-2], True),
        (DELTA[:-2], True),
        (DELTA[:-3], False),
        (DONE[:-3], False),
        (b": comment", False),
        (b"", False),
    ],
)
def test_an_event_may_lack_nothing_but_its_end(rest: bytes, whole: bool) -> None:
    """Then its reader has lost nothing."""
    assert is_whole(rest) is whole


# -- errors: the shapes that providers send inside a 200 -----------------------------------------------------------------

OPENAI: dict[str, Any] = {"message": "m", "type": "server_error", "param": None, "code": None}
FLAT: dict[str, Any] = {"type": "error", "code": "c", "message": "m", "param": None, "sequence_number": 2}
OVERLOADED = {"type": "service_unavailable_error", "code": "server_is_overloaded", "message": "m"}
GEMINI = {"code": 503, "message": "m", "status": "UNAVAILABLE"}
OPENROUTER = {"code": 502, "message": "m", "metadata": {"error_type": "provider_unavailable"}}
SGLANG = {"object": "error", "message": "m", "type": "BadRequestError", "param": None, "code": 400}
ANTHROPIC = {"type": "overloaded_error", "message": "Overloaded"}
TGI = {"message": "Model is overloaded", "type": "overloaded", "code": None}


LLAMA = {"code": 500, "message": "m", "type": "server_error"}


def data(value: object, before: bytes = b"data: ", end: bytes = b"\n\n") -> bytes:
    return before + orjson.dumps(value) + end


ERRORS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "openai": (data({"error": OPENAI}), OPENAI),
    "openai, crlf": (data({"error": OPENAI}, end=b"\r\n\r\n"), OPENAI),
    "responses, flat": (data(FLAT, b"event: error\ndata: "), FLAT),
    "responses, flat, unnamed": (data(FLAT), FLAT),
    "responses, nested": (data({"type": "error", "sequence_number": 2, "error": OVERLOADED}), OVERLOADED),
    "gemini": (data({"error": GEMINI}), GEMINI),
    "gemini, in an array": (data([{"error": GEMINI}]), GEMINI),
    "openrouter": (
        data({"id": "g", "object": "chat.completion.chunk", "error": OPENROUTER, "choices": []}),
        OPENROUTER,
    ),
    "vllm, sglang": (data({"error": SGLANG}), SGLANG),
    "mistral": (data(SGLANG), SGLANG),
    "tgi": (data({"error": "Model is overloaded", "error_type": "overloaded"}, b"data:"), TGI),
    "anthropic": (data({"type": "error", "error": ANTHROPIC, "request_id": "r"}, b"event: error\ndata: "), ANTHROPIC),
    "responses, failed": (
        data({"type": "response.failed", "response": {"status": "failed", "error": OVERLOADED}}),
        OVERLOADED,
    ),
    "responses, failed, no reason": (
        data({"type": "response.failed", "response": {"status": "failed"}}),
        {"message": "the response failed", "type": "server_error", "code": None},
    ),
    "llama.cpp, old": (b'error: {"code":500,"message":"m","type":"server_error"}\n\n', LLAMA),
    "named, no json": (b"event: error\r\ndata: it broke\r\n\r\n", {"message": "it broke"}),
    "named, other json": (b'event:error\ndata: {"detail":"d"}\n\n', {"detail": "d"}),
}


@rows(("event", "error"), ERRORS.values(), ids=ERRORS.keys())
def test_error_events_of_every_provider_are_read(event: bytes, error: dict[str, Any]) -> None:
    """Flat or nested, named or not."""
    assert error_in(event) == error


@rows("wrap", [lambda error: error, lambda error: [error]], ids=["object", "array"])
def test_a_bare_error_behind_a_broken_stream_is_read(wrap: Any) -> None:
    """Gemini appends its error as pretty-printed JSON, without `data:`."""
    bare = orjson.dumps(wrap({"error": GEMINI}), option=orjson.OPT_INDENT_2) + b"\n"

    assert error_in(bare) == GEMINI
    assert error_in(b"data: " + bare) == GEMINI


@rows(
    "event",
    [
        DELTA,
        DONE,
        b": error\n\n",
        b"data: error\n\n",
        b'data: {"choices":[],"error":null}\n\n',
        b'data: {"choices":[],"error":{}}\n\n',
        b'data: {"choices":[],"error":""}\n\n',
        b'data: {"type":"response.completed","response":{"error":null}}\n\n',
        b'data: {"choices":[{"delta":{"content":"event: error"}}]}\n\n',
        b"data: [1]\n\n",
        b'data: [{"error":{"a":1}},2]\n\n',
    ],
)
def test_other_events_are_no_errors(event: bytes) -> None:
    """Neither the word in a text, nor a field that says there is none."""
    assert error_in(event) is None


def test_our_own_error_events_are_errors_too() -> None:
    """They are what clients read, in the shape of each endpoint."""
    assert error_in(chat_error("m", "c")) == {"message": "m", "type": "server_error", "param": None, "code": "c"}
    assert error_in(response_error("m", "c")) == {**FLAT, "sequence_number": 0}
    assert error_in(message_error("m", "c")) == {"type": "api_error", "message": "m", "code": "c"}


LIES = (
    '{"finish_reason":"stop"}',
    '\n"finish_reason": "stop"',
    '\\"finish_reason":"stop"',
    "data: [DONE]",
    "\n\ndata: [DONE]\n\n",
    "\r\rdata: [DONE]\r\r",
    "\nevent: response.completed\n",
    '\ndata: {"type":"response.completed"}\n\n',
    '\n\nevent: error\ndata: {"type":"error"}\n\n',
    '\n\ndata: {"error":{"message":"x"}}\n\n',
    '{"error":"text"}',
    '"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}',
)


@rows("lie", LIES)
def test_text_that_the_model_writes_is_no_error(lie: str) -> None:
    """In content, tool arguments, keys, however often escaped, and wherever the start of the event is cut off."""
    delta = {"content": lie, "tool_calls": [{"function": {"arguments": orjson.dumps({lie: lie}).decode()}}], lie: lie}
    event = data({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    for at in range(len(event)):
        assert error_in(event[at:]) is None


@BOUNDED
@given(st.lists(st.sampled_from(LIES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=4))
def test_no_mixture_of_texts_is_an_error(texts: list[str]) -> None:
    """Whatever stands next to it."""
    assert error_in(data({"choices": [{"delta": {"content": "".join(texts)}, "finish_reason": None}]})) is None


def test_answers_that_would_take_long_to_parse_are_not() -> None:
    """By their values, not by their length; what is not read is taken for no object, no error, and no answer to be kept."""
    crowded = b'{"error":{"message":"no"},"x":[' + b"[]," * 120_000 + b"1]}"
    long = b'{"error":{"message":"no"},"x":"' + b"words " * 200_000 + b'"}'

    assert (answer_object(crowded), answer_object(b"[]")) == (None, None)
    assert (answer_object(long) or {})["error"] == {"message": "no"}
    assert (is_openai_shaped(crowded), is_openai_shaped(long)) == (False, True)
    assert (diagnosis_error(crowded), diagnosis_error(long)) == (None, {"message": "no"})
    assert not ends_well("moderations", is_stream=False, body=crowded)
    assert as_stream("chat", b'{"choices":[' + b"{}," * 120_000 + b"{}]}", include_usage=False) is None
