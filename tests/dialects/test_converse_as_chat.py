"""What models of Bedrock's answer by Converse, whole and streamed, for callers of chat completions."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.core.openai.sse import first_error, is_plain_chat
from gateway.dialects.anthropic.out_thoughts import thought_blocks
from gateway.dialects.base import ConvertedRequest, MalformedAnswer, ServerFacts
from gateway.dialects.bedrock.request import ChatOverConverse
from tests.dialects.aws_frames import event, exception, frame
from tests.dialects.cases import events_of
from tests.dialects.grammar import check_chat
from tests.dialects.odd import odd_bodies
from tests.rows import rows

PAIR = ChatOverConverse()
Json = dict[str, Any]
USAGE = {
    "inputTokens": 3,
    "outputTokens": 7,
    "totalTokens": 130,
    "cacheReadInputTokens": 20,
    "cacheWriteInputTokens": 100,
}
PAGE = {"title": "X", "location": {"web": {"url": "https://x"}}}
HIDDEN = b64encode(b"DATA").decode()
RAW = b64encode(b"\xff\x00").decode()
CONTENT: list[Json] = [
    {"reasoningContent": {"reasoningText": {"text": "hm ✓", "signature": "S"}}},
    {"text": "so "},
    {"citationsContent": {"content": [{"text": "it ✓"}], "citations": [PAGE, {"location": {"documentPage": {}}}]}},
    {"toolUse": {"toolUseId": "tooluse_a", "name": "f", "input": {"x": 1}}},
    {"reasoningContent": {"redactedContent": HIDDEN}},
    {"toolUse": {"toolUseId": "tooluse_b", "name": "g", "input": {}}},
    {"image": {}},
]


def request(**asked: Any) -> ConvertedRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **asked}
    return PAIR.request(body, ServerFacts(), 1.7e9, lambda: "abc")


def answer(*content: Json, reason: str = "end_turn", **rest: Any) -> Json:
    message = {"role": "assistant", "content": list(content)}
    return {"output": {"message": message}, "stopReason": reason, "usage": USAGE, **rest}


def answered(*content: Json, reason: str = "end_turn", **rest: Any) -> Json:
    made = PAIR.answer(request(), answer(*content, reason=reason, **rest))
    ChatCompletion.model_validate(made, strict=True)
    return made


def pieces(text: str, count: int) -> list[str]:
    step = max(1, -(-len(text) // count))
    return [text[at : at + step] for at in range(0, len(text), step)]


def stream_of(*content: Json, reason: str = "end_turn", count: int = 2) -> list[bytes]:
    """The frames by which Bedrock tells an answer."""
    frames = [event("messageStart", {"role": "assistant"})]
    for place, block in enumerate(content):
        deltas: list[Json] = []
        if "toolUse" in block:
            start = {name: block["toolUse"][name] for name in ("toolUseId", "name")}
            frames.append(event("contentBlockStart", {"start": {"toolUse": start}, "contentBlockIndex": place}))
            given = block["toolUse"]["input"]
            told = pieces(orjson.dumps(given).decode(), count) if given else [""]
            deltas = [{"toolUse": {"input": one}} for one in told]
        elif "reasoningContent" in block:
            inner = block["reasoningContent"]
            if "redactedContent" in inner:
                deltas = [{"reasoningContent": inner}]
            else:
                grown = [{"text": one} for one in pieces(inner["reasoningText"]["text"], count)]
                signed = {"signature": inner["reasoningText"]["signature"]}
                deltas = [{"reasoningContent": one} for one in (*grown, signed)]
        elif "citationsContent" in block:
            inner = block["citationsContent"]
            deltas = [{"citation": one} for one in inner["citations"]]
            deltas += [{"text": one["text"]} for one in inner["content"]]
        elif "text" in block:
            deltas = [{"text": one} for one in pieces(block["text"], count)]
        frames += [event("contentBlockDelta", {"contentBlockIndex": place, "delta": one}) for one in deltas]
        frames.append(event("contentBlockStop", {"contentBlockIndex": place}))
    end = event("messageStop", {"stopReason": reason})
    return [*frames, end, event("metadata", {"usage": USAGE, "metrics": {"latencyMs": 5}})]


STREAM = stream_of(*CONTENT, reason="tool_use")


def through(raw: bytes, size: int | None = None, **asked: Any) -> bytes:
    one = PAIR.reader(request(stream=True, stream_options={"include_usage": True}, **asked))
    step = size or max(1, len(raw))
    made = [one.feed(raw[at : at + step]) for at in range(0, len(raw), step)]
    return b"".join(made) + one.close(is_clean=True)


def test_all_blocks_become_one_message() -> None:
    made = answered(*CONTENT, reason="tool_use")
    assert (made["id"], made["model"], made["created"]) == ("chatcmpl-abc", "m", 1_700_000_000)
    message = made["choices"][0]["message"]
    assert message["content"] == "so it ✓"
    assert message["reasoning_content"] == "hm ✓"
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"x":1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert [one["url_citation"] for one in message["annotations"]] == [
        {"start_index": 3, "end_index": 7, "url": "https://x", "title": "X"}
    ]
    assert thought_blocks(message) == [
        (0, {"type": "thinking", "thinking": "hm ✓", "signature": "S"}),
        (4, {"type": "redacted_thinking", "data": "DATA"}),
    ]


def test_counts_are_of_all_that_was_read_and_written() -> None:
    """BerriAI/litellm#9812, #11789: what the cache held is counted once, streamed or not."""
    usage = answered({"text": "a"})["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (123, 7, 130)
    details = usage["prompt_tokens_details"]
    assert (details["cached_tokens"], details["cache_write_tokens"]) == (20, 100)
    assert check_chat(events_of(through(b"".join(STREAM))), through(b"".join(STREAM)))["usage"] == usage


@rows(
    ("reason", "content", "finish"),
    [
        ("end_turn", {"text": "a"}, "stop"),
        ("stop_sequence", {"text": "a"}, "stop"),
        ("unknown", {"text": "a"}, "stop"),
        ("tool_use", CONTENT[3], "tool_calls"),
        ("end_turn", CONTENT[3], "tool_calls"),
        ("max_tokens", CONTENT[3], "length"),
        ("model_context_window_exceeded", {"text": "a"}, "length"),
        ("guardrail_intervened", {"text": "a"}, "content_filter"),
        ("content_filtered", CONTENT[3], "content_filter"),
    ],
)
def test_why_it_ended(reason: str, content: Json, finish: str) -> None:
    assert answered(content, reason=reason)["choices"][0]["finish_reason"] == finish
    events = events_of(through(b"".join(stream_of(content, reason=reason))))
    assert events[-2]["choices"][0]["finish_reason"] == finish


@rows("reason", ["malformed_model_output", "malformed_tool_use"])
def test_an_answer_that_could_not_be_read_is_none(reason: str) -> None:
    with pytest.raises(MalformedAnswer):
        answered({"text": "a"}, reason=reason)
    made = through(b"".join(stream_of({"text": "a"}, reason=reason)))
    assert events_of(made)[-1]["error"]["code"] == "malformed_response"
    assert b"[DONE]" not in made


@rows(
    "said",
    [
        {},
        {"output": {}},
        answer({"toolUse": {"name": "f"}}),
        answer({"toolUse": {**CONTENT[3]["toolUse"], "input": 5}}),
    ],
)
def test_what_is_no_answer_is_told(said: Json) -> None:
    with pytest.raises(MalformedAnswer):
        PAIR.answer(request(), said)


def test_the_tier_is_told_where_one_was_asked_for() -> None:
    said = answer({"text": "a"}, serviceTier={"type": "flex"})
    assert PAIR.answer(request(service_tier="flex"), said)["service_tier"] == "flex"
    assert "service_tier" not in PAIR.answer(request(), said)


def test_hidden_thoughts_that_are_no_text_stay_as_they_are() -> None:
    """They do not go back: what they are under their base64 is not known."""
    (detail,) = answered({"reasoningContent": {"redactedContent": RAW}})["choices"][0]["message"]["reasoning_details"]
    assert (detail["data"], detail["format"]) == (RAW, "bedrock-converse-v1")


def test_unsigned_thoughts_have_no_maker() -> None:
    """Of models that sign nothing: whoever they come back to does not take them for Claude's."""
    made = answered({"reasoningContent": {"reasoningText": {"text": "hm"}}})["choices"][0]["message"]
    assert made["reasoning_content"] == "hm"
    assert made["reasoning_details"] == [{"type": "reasoning.text", "text": "hm", "index": 0}]
    assert thought_blocks(made) == []


@rows("count", [1, 2, 100])
def test_a_stream_says_the_same_as_the_answer(count: int) -> None:
    """To the official SDK's accumulator, too; thoughts go back as they came."""
    raw = b"".join(stream_of(*CONTENT, reason="tool_use", count=count))
    made = through(raw)
    state = ChatCompletionStreamState()
    for chunk in events_of(made):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    told = check_chat(events_of(made), made)
    whole = answered(*CONTENT, reason="tool_use")
    message = whole["choices"][0]["message"]
    assert (told["content"], told["finish_reason"]) == (message["content"], whole["choices"][0]["finish_reason"])
    assert told["tool_calls"] == [{"index": at, **call} for at, call in enumerate(message["tool_calls"])]
    snapshot = state.current_completion_snapshot.choices[0].message.model_dump()
    assert snapshot["reasoning_content"] == message["reasoning_content"]
    assert thought_blocks(snapshot) == thought_blocks(message)
    details = [
        one
        for each in events_of(made)
        for choice in each["choices"]
        for one in choice["delta"].get("reasoning_details", ())
    ]
    assert thought_blocks({"reasoning_details": details}) == thought_blocks(message)
    assert [one["url_citation"] for one in snapshot["annotations"]] == [
        {"start_index": 3, "end_index": 7, "url": "https://x", "title": "X"}
    ]


def test_any_cut_gives_the_same() -> None:
    raw = b"".join(STREAM)
    whole = through(raw)
    for size in (1, 2, 3, 7, 61, 500):
        assert through(raw, size) == whole


def test_a_cut_is_no_end() -> None:
    """At every byte: the end is the counts, or a clean end behind the reason."""
    raw = b"".join(STREAM)
    behind = len(raw) - len(STREAM[-1])
    for cut in range(len(raw)):
        assert (b"[DONE]" in through(raw[:cut])) == (cut == behind)
    one = PAIR.reader(request(stream=True))
    one.feed(raw[:behind])
    assert one.close(is_clean=False) == b""


def test_each_delta_leaves_with_its_frame_in_the_plain_form() -> None:
    one = PAIR.reader(request(stream=True))
    for raw in STREAM[:-2]:
        made = one.feed(raw)
        assert not made or is_plain_chat(made)
        assert not one.feed(b"")
    assert sum(bool(PAIR.reader(request()).feed(raw)) for raw in STREAM) > 0


def test_an_error_ends_the_stream_wherever_it_comes() -> None:
    """Before any output by its own name and words, which the tables of errors read; behind it in the caller's shape."""
    raw = {"type": "ThrottlingException", "message": "Too many tokens"}
    shaped = {"message": "Too many tokens", "type": "rate_limit_error", "param": None, "code": "ThrottlingException"}
    for place in range(len(STREAM)):
        made = through(
            b"".join([*STREAM[:place], exception("throttlingException", "Too many tokens"), *STREAM[place:]])
        )
        last = b"data: " + made.rpartition(b"data: ")[2]
        assert first_error(last) == (raw if place < 2 else shaped)
        assert b"[DONE]" not in made


@rows(
    ("raw", "error"),
    [
        (
            frame(b"", message_type="error", error_code="InternalFailure", error_message="gone"),
            {"type": "InternalFailure", "message": "gone"},
        ),
        (
            frame(
                b'{"Message":"m","originalStatusCode":500}',
                message_type="exception",
                exception_type="modelStreamErrorException",
            ),
            {"Message": "m", "originalStatusCode": 500, "type": "ModelStreamErrorException", "message": "m"},
        ),
        (frame(b"", message_type="other"), {"type": "Unknown", "message": "the provider reported an error"}),
        (
            frame(b"[1]", message_type="event", event_type="contentBlockDelta"),
            {"code": "malformed_response", "message": "an event of the provider's is no JSON object"},
        ),
        (
            event("metadata", {"usage": USAGE}),
            {"code": "malformed_response", "message": "the provider ended its answer without a reason"},
        ),
        (
            event("contentBlockStart", {"start": {"toolUse": {}}, "contentBlockIndex": 0}),
            {"code": "malformed_response", "message": "a call of a tool has no id, no name, or no object as its input"},
        ),
        (
            b"<html>502 Bad Gateway</html>",
            {
                "code": "malformed_response",
                "message": "the provider's stream cannot be read: the checksum of a frame's lengths is wrong",
            },
        ),
    ],
)
def test_what_is_told_of_a_bad_stream(raw: bytes, error: Json) -> None:
    assert events_of(through(raw))[-1] == {"error": error}


def test_a_changed_byte_ends_the_stream_with_an_error() -> None:
    """All before it is told."""
    raw = bytearray(b"".join(STREAM))
    raw[len(raw) - len(STREAM[-1]) - len(STREAM[-2]) + 40] ^= 1
    made = through(bytes(raw))
    assert events_of(made)[-1]["error"]["code"] == "malformed_response"
    assert events_of(made)[:-1] == events_of(through(b"".join(STREAM[:-2])))
    assert through(bytes(raw), 7) == made


def test_calls_at_once_are_told_apart() -> None:
    """Portkey-AI/gateway#1275: the number of a call is its place among the calls; a server that ends no block is helped."""
    starts = [
        event("contentBlockStart", {"start": {"toolUse": {"toolUseId": id, "name": "f"}}, "contentBlockIndex": at})
        for at, id in ((3, "a"), (5, "b"))
    ]
    grown = [
        event("contentBlockDelta", {"contentBlockIndex": at, "delta": {"toolUse": {"input": text}}})
        for at, text in ((5, '{"y"'), (3, "{}"), (5, ":2}"))
    ]
    made = through(b"".join([*starts, *grown, *STREAM[-2:]]))
    told = check_chat(events_of(made), made)
    assert [call["function"]["arguments"] for call in told["tool_calls"]] == ["{}", '{"y":2}']


def test_usage_is_told_where_it_was_asked_for() -> None:
    one = PAIR.reader(request(stream=True))
    made = b"".join(map(one.feed, STREAM))
    assert not any("usage" in each for each in events_of(made))


EVENTS = (
    "messageStart",
    "contentBlockStart",
    "contentBlockDelta",
    "contentBlockStop",
    "messageStop",
    "metadata",
    "odd",
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(EVENTS),
            odd_bodies("contentBlockIndex", "delta", "start", "stopReason", "usage", "serviceTier"),
        ),
        max_size=5,
    ),
    st.integers(1, 40),
)
def test_any_stream_is_read_alike_in_any_cut(told: list[tuple[str, Json]], size: int) -> None:
    raw = b"".join(event(kind, payload) for kind, payload in told)
    assert through(raw, size) == through(raw)


@settings(max_examples=80, deadline=None)
@given(
    odd_bodies("output", "stopReason", "usage"), st.lists(odd_bodies("text", "toolUse", "reasoningContent"), max_size=3)
)
def test_any_answer_is_converted_or_told_to_be_none(said: Json, content: list[Json]) -> None:
    for one in (said, {**said, "output": {"message": {"content": content}}}):
        with suppress(MalformedAnswer):
            PAIR.answer(request(), one)
