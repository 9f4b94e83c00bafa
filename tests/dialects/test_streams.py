"""Converted streams, event by event: interleavings, cuts, errors in the middle, and any nonsense."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.openai.sse import first_error, is_plain_chat
from gateway.dialects import streams as module
from gateway.dialects.base import Reader, ServerFacts
from gateway.dialects.openai.translators import ChatOverResponses, ResponsesOverChat
from tests.dialects.cases import as_bytes, events_of
from tests.dialects.grammar import check_chat, check_responses
from tests.dialects.odd import odd_bodies
from tests.rows import rows

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


@rows("at", range(len(STREAM) - 2))
def test_an_error_ends_the_stream_wherever_it_comes(at: int) -> None:
    """In the caller's shape, with the next number, and nothing behind it."""
    broken: list[dict[str, Any]] = [
        *STREAM[:at],
        {"error": {"message": "it broke", "type": "server_error", "code": None}},
        *STREAM[at:],
    ]
    last = check_responses(events_of(through(to_responses(), as_bytes("chat", broken))))

    assert (last["type"], last["message"], last["code"]) == ("error", "it broke", "server_error")


@pytest.mark.parametrize("begun", [[], [delta(role="assistant", content="")]])
def test_an_error_before_any_output_is_told_in_full(begun: list[dict[str, Any]]) -> None:
    """Another target is looked for by it: its kind, its wait, what a router says of whoever stands behind it."""
    raw = {"message": "m", "code": 429, "metadata": {"error_type": "rate_limit_exceeded", "raw": "x"}}
    made = through(to_responses(), as_bytes("chat", [*begun, {"error": raw}]))
    assert first_error(made.split(b"\n\n")[-2]) == raw
    back = through(to_chat(), as_bytes("responses", [{"type": "error", **raw}]))
    assert events_of(back)[-1]["error"].items() >= raw.items()


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


@pytest.mark.parametrize("size", [101, 16_384])
def test_an_event_of_any_length_is_read(size: int) -> None:
    """A response that repeats long instructions, arguments of 100 kB; however the bytes and characters are split."""
    long, words = "x" * 100_000, "wéñ 漢字 🙂"
    chat = [piece(0, f'{{"x":"{long}"}}', id="c", name="f"), delta(content=words), delta("tool_calls")]
    raw = as_bytes("chat", chat)
    reader = to_responses(instructions=long)
    made = b"".join(reader.feed(raw[at : at + size]) for at in range(0, len(raw), size)) + reader.close(is_clean=True)
    whole = check_responses(events_of(made))
    assert len(whole["output"][0]["arguments"]) > 70_000
    assert whole["output"][1]["content"][0]["text"] == words

    back = to_chat()
    stream = b"".join(back.feed(made[at : at + size]) for at in range(0, len(made), size)) + back.close(is_clean=True)
    message = check_chat(events_of(stream), stream)
    assert len(message["tool_calls"][0]["function"]["arguments"]) > 70_000
    assert message["content"] == words


def test_an_event_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has one."""
    monkeypatch.setattr(module, "MOST_EVENT_BYTES", 1_000)
    for reader in (to_responses(), to_chat()):
        made = reader.feed(b"data: " + b"x" * 900) + reader.feed(b"x" * 900) + reader.feed(b"data: {}\n\n")
        assert b"too long" in made
        assert len(events_of(made)) == 1


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_end_in_any_way(line_end: str) -> None:
    """As servers of all kinds send them, byte by byte."""
    raw = as_bytes("chat", STREAM)
    other = raw.replace(b"\n", line_end.encode())
    reader = to_responses()
    made = b"".join(reader.feed(other[at : at + 1]) for at in range(len(other))) + reader.close(is_clean=True)
    assert made == through(to_responses(), raw)


@pytest.mark.parametrize("language", ["chat", "responses"])
def test_a_stream_that_is_cut_anywhere_has_no_end(language: str) -> None:
    """At any byte: nothing of a torn event comes out, and no end before it came."""
    raw = as_bytes("chat", STREAM)
    make, end = (to_responses, b"response.completed") if language == "chat" else (to_chat, b"[DONE]")
    if language == "responses":
        raw = through(to_responses(), raw)
    last = raw.rindex(b"data: {", 0, raw.rindex(b'"tool_calls"}') if language == "chat" else len(raw))
    for cut in range(0, last + 1, 1 if language == "chat" else 11):
        reader = make()
        made = reader.feed(raw[:cut]) + reader.close(is_clean=True)
        assert end not in made
        events_of(made)


def test_a_name_without_data_is_no_event() -> None:
    """Clients would take it for one; comments go on."""
    for reader in (to_responses(), to_chat()):
        assert reader.feed(b"event: ping\n\n: alive\n\nretry: 5\n\n") == b": alive\n\n"


def test_done_is_no_end_where_no_reason_was_given() -> None:
    """Whoever follows the stream says that it was cut."""
    made = through(to_responses(), as_bytes("chat", [delta(content="a")]))
    assert events_of(made)[-1]["type"] == "response.output_text.delta"
    assert through(to_responses(), b"data: [DONE]\n\n") == b""


def test_calls_that_share_an_index_are_told_apart() -> None:
    """By their ids, as Gemini sends them; a call without an id gets one; its name may come late."""
    events = [
        piece(0, '{"a":1}', id="c1", name="f"),
        piece(0, '{"b":2}', id="c2", name="g"),
        piece(1, "{"),
        piece(1, "}", name="h"),
        delta("tool_calls"),
    ]
    whole = check_responses(events_of(through(to_responses(), as_bytes("chat", events))))

    said = [(item["name"], item["call_id"], item["arguments"]) for item in whole["output"]]
    assert said == [("f", "c1", '{"a":1}'), ("g", "c2", '{"b":2}'), ("h", "call_abc01", "{}")]


def test_a_call_without_a_name_is_an_error() -> None:
    """As in a whole answer."""
    made = events_of(through(to_responses(), as_bytes("chat", [piece(0, "{}", id="c"), delta("tool_calls")])))
    assert check_responses(made)["code"] == "malformed_response"


def test_words_in_parts_and_old_functions_are_heard() -> None:
    """Mistral's reasoning models answer in parts; some servers send objects for arguments; the first choice counts."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    events = [
        delta(content=[thinking]),
        delta(content=[{"type": "text", "text": "so"}]),
        {"model": "m", "choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": None}]},
        delta(function_call={"name": "f", "arguments": {"x": 1}}),
        delta("function_call"),
    ]
    streamed = check_responses(events_of(through(to_responses(), as_bytes("chat", events))))["output"]
    message = {
        "content": [thinking, {"type": "text", "text": "so"}],
        "function_call": {"name": "f", "arguments": {"x": 1}},
    }
    pair = ResponsesOverChat()
    request = pair.request({"model": "m", "input": "x"}, ServerFacts(), 1.7e9, lambda: "abc")
    choices = [{"index": 1, "message": {"content": "other"}}, {"index": 0, "message": message, "finish_reason": "stop"}]

    assert [item["type"] for item in streamed] == ["reasoning", "message", "function_call"]
    assert streamed[2]["arguments"] == '{"x":1}'
    assert pair.answer(request, {"model": "m", "choices": choices})["output"] == streamed


def test_free_text_of_a_server_that_has_such_tools_stays_so() -> None:
    """Piece by piece in both directions."""
    events = [
        delta(tool_calls=[{"index": 0, "id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** "}}]),
        delta(tool_calls=[{"index": 0, "custom": {"input": "Begin"}}]),
        delta("tool_calls"),
    ]
    responses = through(to_responses(), as_bytes("chat", events))
    item = check_responses(events_of(responses))["output"][0]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin")
    stream = through(to_chat(), responses)
    assert check_chat(events_of(stream), stream)["tool_calls"][0]["custom"] == {"name": "patch", "input": "*** Begin"}


WHOLE = [
    {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": one} for one in ("a", "b")]},
    {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
    {"id": "fc", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"id": "rs_2", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
    {"id": "ctc", "type": "custom_tool_call", "call_id": "d", "name": "g", "input": "free"},
]


@pytest.mark.parametrize("tells", ["items", "nothing"])
def test_what_is_only_told_as_a_whole_is_heard(tells: str) -> None:
    """By servers that send no pieces of an item, or nothing but the whole answer."""
    items = [
        {"type": f"response.output_item.{what}", "output_index": place, "item": item}
        for place, item in enumerate(WHOLE)
        for what in ("added", "done")
    ]
    last: dict[str, Any] = {
        "type": "response.completed",
        "response": {"status": "completed", "model": "m", "output": WHOLE},
    }
    stream = through(to_chat(), as_bytes("responses", [*(items if tells == "items" else []), last]))
    told = check_chat(events_of(stream), stream)
    pair = ChatOverResponses()
    request = pair.request({"model": "m", "messages": []}, ServerFacts(), 1.7e9, lambda: "abc")
    whole = pair.answer(request, last["response"])["choices"][0]["message"]

    assert (
        (told["content"], told["reasoning_content"])
        == (whole["content"], whole["reasoning_content"])
        == ("so", "a\n\nb")
    )
    assert [call["id"] for call in told["tool_calls"]] == [call["id"] for call in whole["tool_calls"]] == ["c", "d"]
    assert whole["reasoning_details"][0]["index"] == 3


def test_citations_come_at_once() -> None:
    """The official SDK puts pieces of other lists together by an index, which citations have not."""
    said: list[dict[str, Any]] = [
        {"type": "response.output_text.delta", "output_index": 0, "delta": "so"},
        *(
            {
                "type": "response.output_item.done",
                "output_index": 0,
                "item": {
                    "type": "message",
                    "content": [
                        {"type": "output_text", "text": "so", "annotations": [{"type": "url_citation", "url": url}]}
                    ],
                },
            }
            for url in ("a", "b")
        ),
        {"type": "response.completed", "response": {"status": "completed"}},
    ]
    told = [
        c["delta"]["annotations"]
        for e in events_of(through(to_chat(), as_bytes("responses", said)))
        for c in e["choices"]
        if "annotations" in c["delta"]
    ]
    assert [[one["url_citation"]["url"] for one in each] for each in told] == [["a", "b"]]


def test_citations_keep_their_places_in_what_is_one_text() -> None:
    """Responses count from the beginning of each part, of which chat completions make one text; streamed and whole."""
    cited = {"type": "url_citation", "url": "u", "title": "t", "start_index": 1, "end_index": 3}
    parts = [{"type": "output_text", "text": text, "annotations": [cited]} for text in ("one", "three", "four")]
    items = [{"type": "message", "content": parts[:2]}, {"type": "message", "content": parts[2:]}]
    whole = {"status": "completed", "output": items}
    stream = through(to_chat(), as_bytes("responses", [{"type": "response.completed", "response": whole}]))
    sent = ChatOverResponses().request({"model": "m", "messages": []}, ServerFacts(), 0.0, lambda: "id")

    told = ChatOverResponses().answer(sent, whole)["choices"][0]["message"]["annotations"]
    assert [one["url_citation"]["start_index"] for one in told] == [1, 4, 9]
    assert [one["url_citation"]["end_index"] for one in told] == [3, 6, 11]
    assert [
        c["delta"]["annotations"] for e in events_of(stream) for c in e["choices"] if "annotations" in c["delta"]
    ] == [told]


@pytest.mark.parametrize("status", ["cancelled", "failed", "in_progress"])
def test_an_answer_that_was_given_up_is_no_end(status: str) -> None:
    """Whole and streamed, whatever its last event is called."""
    response: dict[str, Any] = {"status": status, "output": [], "model": "m"}
    stream = through(to_chat(), as_bytes("responses", [{"type": "response.completed", "response": response}]))
    pair = ChatOverResponses()
    request = pair.request({"model": "m", "messages": []}, ServerFacts(), 1.7e9, lambda: "abc")

    assert "error" in events_of(stream)[-1]
    assert b"[DONE]" not in stream
    assert "error" in pair.answer(request, response)


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
