"""What Claude answers, whole and streamed, for callers of chat completions."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from gateway.core.openai.sse import first_error, is_plain_chat
from gateway.dialects import streams as module
from gateway.dialects.anthropic.translators import ChatOverMessages
from gateway.dialects.base import ConvertedRequest, MalformedAnswer, ModelFacts, Reader, ServerFacts
from tests.dialects.cases import as_bytes, events_of
from tests.dialects.grammar import check_chat
from tests.dialects.odd import odd_bodies
from tests.rows import rows

PAIR = ChatOverMessages()
Json = dict[str, Any]
USAGE = {"input_tokens": 3, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 100, "output_tokens": 7}
CITED = {
    "type": "web_search_result_location",
    "url": "https://x",
    "title": "X",
    "cited_text": "c",
    "encrypted_index": "e",
}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "S"}
REDACTED = {"type": "redacted_thinking", "data": "D"}
CONTENT: list[Json] = [
    THINKING,
    {"type": "text", "text": "so "},
    {"type": "text", "text": "it ✓", "citations": [CITED, {"type": "char_location"}]},
    {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "q"}},
    {"type": "tool_use", "id": "toolu_a", "name": "f", "input": {"x": 1}},
    REDACTED,
    {"type": "tool_use", "id": "toolu_b", "name": "g", "input": {}},
]


def request(**asked: Any) -> ConvertedRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **asked}
    return PAIR.request(body, ServerFacts(model=ModelFacts()), 1.7e9, lambda: "abc")


def message(*content: Json, **rest: Any) -> Json:
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": list(content)}
    return {**whole, "stop_reason": "end_turn", "usage": USAGE, **rest}


def answered(*content: Json, **rest: Any) -> Json:
    return PAIR.answer(request(), message(*content, **rest))


def reader(**asked: Any) -> Reader:
    return PAIR.reader(request(stream=True, stream_options={"include_usage": True}, **asked))


def through(raw: bytes, size: int | None = None, **asked: Any) -> bytes:
    one, step = reader(**asked), size or max(1, len(raw))
    pieces = [one.feed(raw[at : at + step]) for at in range(0, len(raw), step)]
    return b"".join(pieces) + one.close(is_clean=True)


def start(**rest: Any) -> Json:
    return {
        "type": "message_start",
        "message": message(**{"stop_reason": None, "usage": {**USAGE, "output_tokens": 1}, **rest}),
    }


def block(place: int, begin: Json, *deltas: Json) -> list[Json]:
    grown = [{"type": "content_block_delta", "index": place, "delta": delta} for delta in deltas]
    first = {"type": "content_block_start", "index": place, "content_block": begin}
    return [first, *grown, {"type": "content_block_stop", "index": place}]


def end(reason: str | None = "end_turn", **rest: Any) -> list[Json]:
    told = {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None, **rest},
        "usage": {"output_tokens": 7},
    }
    return [told, {"type": "message_stop"}]


def deltas_of(text: str, pieces: int, form: Any) -> list[Json]:
    step = max(1, -(-len(text) // pieces))
    return [form(text[at : at + step]) for at in range(0, len(text), step)]


def stream_of(whole: Json, pieces: int = 2) -> list[Json]:
    """The events by which Anthropic tells a message."""
    events = [start()]
    for place, one in enumerate(whole["content"]):
        kind = one["type"]
        if kind == "text":
            grown = deltas_of(one["text"], pieces, lambda text: {"type": "text_delta", "text": text})
            cited = [{"type": "citations_delta", "citation": each} for each in one.get("citations", ())]
            events += block(place, {"type": "text", "text": ""}, *cited, *grown)
        elif kind == "thinking":
            grown = deltas_of(one["thinking"], pieces, lambda text: {"type": "thinking_delta", "thinking": text})
            signed = {"type": "signature_delta", "signature": one["signature"]}
            events += block(place, {"type": "thinking", "thinking": "", "signature": ""}, *grown, signed)
        elif kind.endswith("tool_use"):
            said = orjson.dumps(one["input"]).decode() if one["input"] else ""
            grown = deltas_of(said, pieces, lambda text: {"type": "input_json_delta", "partial_json": text})
            events += block(place, {**one, "input": {}}, {"type": "input_json_delta", "partial_json": ""}, *grown)
        else:
            events += block(place, one)
    return events + end(whole["stop_reason"])


STREAM = stream_of(message(*CONTENT, stop_reason="tool_use"))


# Whole answers.


def test_blocks_become_one_message() -> None:
    """Text is joined, calls are counted by themselves, thoughts are told in words and as what goes back."""
    choice = answered(*CONTENT, stop_reason="tool_use")["choices"][0]

    cited = {"start_index": 3, "end_index": 7, "url": "https://x", "title": "X"}
    assert choice == {
        "index": 0,
        "finish_reason": "tool_calls",
        "logprobs": None,
        "message": {
            "role": "assistant",
            "content": "so it ✓",
            "refusal": None,
            "reasoning_content": "hm",
            "reasoning_details": [
                {"type": "reasoning.text", "text": "hm", "signature": "S", "format": "anthropic-claude-v1", "index": 0},
                {"type": "reasoning.encrypted", "data": "D", "format": "anthropic-claude-v1", "index": 5},
            ],
            "tool_calls": [
                {"id": "toolu_a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"id": "toolu_b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
            "annotations": [{"type": "url_citation", "url_citation": cited}],
        },
    }


def test_usage_includes_what_the_cache_held() -> None:
    """Once, and what was thought is a part of what was written (litellm#9812, #11789)."""
    usage = answered(usage={**USAGE, "output_tokens_details": {"thinking_tokens": 5}})["usage"]

    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (123, 7, 130)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 20, "cache_write_tokens": 100, "audio_tokens": 0}
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 5


@rows(
    "reason, calls, finish",
    [
        ("end_turn", 0, "stop"),
        ("stop_sequence", 0, "stop"),
        ("pause_turn", 0, "stop"),
        ("compaction", 0, "stop"),
        ("something_new", 0, "stop"),
        ("max_tokens", 0, "length"),
        ("max_tokens", 1, "length"),
        ("model_context_window_exceeded", 0, "length"),
        ("tool_use", 1, "tool_calls"),
        ("end_turn", 1, "tool_calls"),
        ("refusal", 1, "content_filter"),
    ],
)
def test_why_it_ended(reason: str | None, calls: int, finish: str) -> None:
    """Calls never hide a limit or a refusal (NousResearch/hermes-agent#43478); streamed as whole."""
    said = message(*CONTENT[4:5][:calls], stop_reason=reason)
    stream = through(as_bytes("messages", stream_of(said)))

    assert PAIR.answer(request(), said)["choices"][0]["finish_reason"] == finish
    assert check_chat(events_of(stream), stream)["finish_reason"] == finish


def test_a_refusal_is_told_in_its_words() -> None:
    """Whole and streamed."""
    details = {"type": "refusal", "category": "cyber", "explanation": "not this"}
    stream = through(as_bytes("messages", [start(), *end("refusal", stop_details=details)]))

    assert answered(stop_reason="refusal", stop_details=details)["choices"][0]["message"]["refusal"] == "not this"
    assert check_chat(events_of(stream), stream)["refusal"] == "not this"


def test_who_answered_is_told() -> None:
    """The tier only where one was asked for."""
    made = PAIR.answer(request(service_tier="auto"), message(usage={**USAGE, "service_tier": "standard"}))

    assert (made["id"], made["model"], made["created"], made["service_tier"]) == (
        "msg_1",
        "claude",
        1_700_000_000,
        "default",
    )
    assert "service_tier" not in answered()
    assert PAIR.answer(request(), {"content": []})["id"] == "chatcmpl-abc"


@rows("body", [{}, {"content": "x"}, {"content": [{"type": "tool_use", "id": "a", "name": "f", "input": "x"}]}])
def test_what_is_no_answer_is_none(body: Json) -> None:
    """Another target is asked then."""
    with pytest.raises(MalformedAnswer):
        PAIR.answer(request(), body)


# Streams.


@settings(max_examples=40)
@given(st.data())
def test_a_stream_says_what_the_whole_answer_says(data: st.DataObject) -> None:
    """However it is cut, for the official SDK's accumulator; what was thought can go back as it came."""
    content = data.draw(st.lists(st.sampled_from(CONTENT), max_size=6))
    reason = data.draw(st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal"]))
    said = message(*content, stop_reason=reason)
    raw = as_bytes("messages", stream_of(said, data.draw(st.integers(1, 3))))
    stream = through(raw, data.draw(st.integers(1, 200)))
    assert stream == through(raw)
    made, whole = events_of(stream), PAIR.answer(request(), said)
    told, answer = check_chat(made, stream), whole["choices"][0]["message"]
    state = ChatCompletionStreamState()
    for chunk in made:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))

    assert told["content"] == (answer["content"] or "")
    assert told["reasoning_content"] == answer.get("reasoning_content", "")
    assert (told["finish_reason"], told["usage"]) == (whole["choices"][0]["finish_reason"], whole["usage"])
    calls = [(call["id"], orjson.loads(call["function"]["arguments"])) for call in told["tool_calls"]]
    assert calls == [(call["id"], orjson.loads(call["function"]["arguments"])) for call in answer.get("tool_calls", ())]
    final = state.current_completion_snapshot.choices[0].message.to_dict()
    assert (final.get("annotations") or []) == answer.get("annotations", [])
    assert going_back(final) == going_back(answer) == [one for one in content if one["type"].endswith("thinking")]


def going_back(answer: Any) -> list[Json]:
    """The thoughts that a message sends back."""
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": answer.get("content")}]
    said[1]["reasoning_details"] = answer.get("reasoning_details")
    made = PAIR.request({"model": "m", "messages": said}, ServerFacts(), 0.0, str).body["messages"]
    blocks = made[1]["content"] if len(made) > 1 else []
    return [one for one in blocks if isinstance(one, dict) and one["type"].endswith("thinking")]


def test_every_word_leaves_in_the_chunk_that_it_came_in() -> None:
    """And need not be read a second time."""
    one = reader()
    kinds = set()
    for event in STREAM:
        made = one.feed(as_bytes("messages", [event]))
        kind = event.get("delta", {}).get("type")
        if kind in ("text_delta", "thinking_delta", "signature_delta") or (kind and made):
            kinds.add(kind)
            assert is_plain_chat(made), event
    assert kinds == {"text_delta", "thinking_delta", "signature_delta", "input_json_delta"}


def test_a_call_without_arguments_has_an_empty_object() -> None:
    """Told at its end; one whose arguments came at its beginning has those (Portkey-AI/gateway#1275)."""
    tool = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    events = [start(), *block(0, tool), *block(1, {**tool, "id": "b", "input": {"x": 1}}), *end("tool_use")]
    stream = through(as_bytes("messages", events))
    calls = check_chat(events_of(stream), stream)["tool_calls"]

    assert [(call["index"], call["id"], call["function"]["arguments"]) for call in calls] == [
        (0, "a", "{}"),
        (1, "b", '{"x":1}'),
    ]


def test_counts_are_the_last_ones_told() -> None:
    """They are of all so far and never added; they come at the end where they are asked for (litellm#40006)."""
    told = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"input_tokens": 9, "output_tokens": 8},
    }
    events = [start(), {**told, "usage": {"output_tokens": 5}}, told, {"type": "message_stop"}]
    stream = through(as_bytes("messages", events))
    plain = PAIR.reader(request(stream=True)).feed(as_bytes("messages", events))

    usage = check_chat(events_of(stream), stream)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (129, 8)
    assert b"usage" not in plain


def test_what_is_unknown_is_left_out() -> None:
    """New kinds are promised; some servers begin twice, or pad their events."""
    events = [
        start(),
        start(id="msg_2", usage={"input_tokens": 999}),
        {"type": "news", "error": None},
        *block(0, {"type": "hologram"}, {"type": "hologram_delta", "text": "x"}),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "so"}),
        start(usage={"input_tokens": 999}),
        *end(),
        *block(2, {"type": "text", "text": "late"}),
    ]
    padded = as_bytes("messages", events).replace(b"}\n\n", b"}   \n\n")
    stream = through(padded)
    told = check_chat(events_of(stream), stream)

    assert (told["content"], told["usage"]["prompt_tokens"]) == ("so", 123)
    assert {event["id"] for event in events_of(stream)} == {"msg_1"}


def test_another_message_in_the_middle_is_an_error() -> None:
    """Of two that are merged, neither can go back (vercel/ai#18331); no call with half its arguments is taken for one."""
    tool = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    torn = block(0, tool, {"type": "input_json_delta", "partial_json": '{"x":'})[:-1]
    stream = through(as_bytes("messages", [start(), *torn, start(id="msg_2"), *block(0, tool), *end("tool_use")]))

    assert events_of(stream)[-1]["error"]["code"] == "malformed_response"
    assert b"[DONE]" not in stream


def test_what_is_told_at_the_beginning_is_heard() -> None:
    """As where a provider's own tools have run before."""
    said = message(*CONTENT, stop_reason="tool_use")
    stream = through(as_bytes("messages", [{"type": "message_start", "message": said}, {"type": "message_stop"}]))
    told, answer = check_chat(events_of(stream), stream), PAIR.answer(request(), said)["choices"][0]

    assert (told["content"], told["finish_reason"]) == (answer["message"]["content"], "tool_calls")
    assert [call["function"] for call in told["tool_calls"]] == [
        call["function"] for call in answer["message"]["tool_calls"]
    ]


def test_pings_are_comments() -> None:
    """Before and after the stream has begun."""
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    one = reader()

    assert one.feed(ping) == b": ping\n\n"
    assert one.feed(as_bytes("messages", [start()]) + ping).endswith(b"}\n\n: ping\n\n")
    assert one.feed(b": alive\n\nevent: ping\n\n") == b": alive\n\n"


@rows("at", range(len(STREAM) - 1))
def test_an_error_ends_the_stream_wherever_it_comes(at: int) -> None:
    """Before any output as the provider tells it, which is understood and another target asked; then in the caller's shape."""
    raw = {"type": "overloaded_error", "message": "Overloaded", "details": None}
    events = [*STREAM[:at], {"type": "error", "error": raw, "request_id": "r"}, *STREAM[at:]]
    stream = through(as_bytes("messages", events))

    shaped = {"message": "Overloaded", "type": "server_error", "param": None, "code": "overloaded_error"}
    has_begun = any(event["type"] == "content_block_delta" for event in STREAM[:at])
    assert events_of(stream)[-1] == {"error": shaped if has_begun else raw}
    assert b"[DONE]" not in stream
    assert first_error(stream.split(b"\n\n")[-2]) == (shaped if has_begun else raw)


@rows("line_end", [b"\n", b"\r\n", b"\r"])
def test_lines_end_in_any_way(line_end: bytes) -> None:
    """Byte by byte."""
    raw = as_bytes("messages", STREAM)

    assert through(raw.replace(b"\n", line_end), 1) == through(raw)


def test_a_stream_that_is_cut_anywhere_has_no_end() -> None:
    """At any byte: nothing of a torn event comes out."""
    raw = as_bytes("messages", STREAM)
    for cut in range(len(raw) - 3):
        stream = through(raw[:cut])
        assert b"[DONE]" not in stream
        assert all(not choice["finish_reason"] for event in events_of(stream) for choice in event["choices"])


def test_nonsense_goes_on_and_ends_it() -> None:
    """Whoever follows the stream says what is wrong with it; a call without a name is an error."""
    assert through(as_bytes("messages", [start()]) + b"data: <html>\n\ndata: {}\n\n").endswith(b"data: <html>\n\n")
    nameless = as_bytes("messages", [start(), *block(0, {"type": "tool_use", "id": "a"}), *end()])
    assert events_of(through(nameless))[-1]["error"]["code"] == "malformed_response"
    assert b"[DONE]" not in through(nameless)


def test_an_event_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has one."""
    monkeypatch.setattr(module, "MOST_EVENT_BYTES", 1_000)
    one = reader()

    assert b"too long" in one.feed(b"data: " + b"x" * 900) + one.feed(b"x" * 900)
    assert one.feed(b"data: {}\n\n") == b""


KINDS = st.sampled_from(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
).map(lambda kind: {"type": kind})
INNER = st.sampled_from(
    ["text", "thinking", "tool_use", "redacted_thinking", "text_delta", "input_json_delta", "citations_delta"]
)
BLOCKS = st.builds(
    lambda kind, odd: {**odd, "type": kind},
    INNER,
    odd_bodies("text", "thinking", "id", "name", "input", "partial_json", "citation"),
)


@given(
    st.lists(st.tuples(KINDS, odd_bodies("message", "delta", "index", "usage", "error"), BLOCKS), max_size=6),
    st.integers(1, 40),
)
def test_any_stream_is_read(events: list[tuple[Json, Json, Json]], size: int) -> None:
    """Nothing is raised, and the same comes out however the bytes arrive."""
    told = [{"content_block": inner, "delta": inner, **kind, **odd} for kind, odd, inner in events]
    raw = as_bytes("messages", told)

    assert through(raw, size) == through(raw)


@given(odd_bodies("content", "usage", "stop_reason", "id", "model"), st.lists(BLOCKS, max_size=3))
def test_any_answer_is_read_or_is_none(body: Json, content: list[Json]) -> None:
    """Nothing else is raised."""
    for one in (body, {**body, "content": content}):
        try:
            orjson.dumps(PAIR.answer(request(), one))
        except MalformedAnswer:
            continue
