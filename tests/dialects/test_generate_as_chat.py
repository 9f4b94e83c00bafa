"""Gemini's answers for callers of chat completions, whole and event by event: ends, errors, cuts, and any nonsense."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.core.openai.sse import first_error, is_plain_chat
from gateway.core.types import UpstreamFailed
from gateway.dialects import streams as module
from gateway.dialects.base import MalformedAnswer
from gateway.dialects.registry import pair_of
from tests.dialects.cases import events_of
from tests.dialects.google import PAIR, RESULT, TURN, USER, asked, facts, raw_of, reader, said
from tests.dialects.grammar import check_chat
from tests.dialects.odd import odd_bodies
from tests.rows import rows

Json = dict[str, Any]
CALL: Json = {"functionCall": {"name": "f", "args": {"x": 1}, "id": "c"}, "thoughtSignature": "s"}
CALL_GIVEN = {"name": "f", "arguments": "{}"}
USAGE = {"promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "totalTokenCount": 10}


def through(raw: bytes, size: int = 0, *, is_clean: bool = True, **body: Any) -> bytes:
    size = size or max(1, len(raw))
    one = reader(**body)
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    return b"".join(map(one.feed, pieces)) + one.close(is_clean=is_clean)


def told(*events: Json, **body: Any) -> Json:
    stream = through(raw_of(*events), **body)
    return check_chat(events_of(stream), stream)


def whole(*parts: Json, end: str | None = "STOP", **more: Any) -> Json:
    choice: Json = PAIR.answer(asked(), said(*parts, end=end, **more))["choices"][0]
    return choice


@rows(
    "reason, finish, with_call",
    [
        ("STOP", "stop", "tool_calls"),
        ("SOMETHING_NEW", "stop", "tool_calls"),
        ("MAX_TOKENS", "length", "length"),
        ("CONTINUATION", "length", "length"),
        *(
            (reason, "content_filter", "content_filter")
            for reason in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "LANGUAGE",
                           "IMAGE_SAFETY", "NO_IMAGE")
        ),
    ],
)  # fmt: skip
def test_why_it_ended_is_told(reason: str, finish: str, with_call: str) -> None:
    """A limit or a filter is never taken for calls, whose chunk may come long before (EA#2399, hermes-agent#43478)."""
    assert whole({"text": "a"}, end=reason)["finish_reason"] == finish
    assert whole(CALL, end=reason)["finish_reason"] == with_call
    assert told(said({"text": "a"}), said({"text": ""}, end=reason))["finish_reason"] == finish
    assert told(said(CALL), said({"text": ""}, end=reason))["finish_reason"] == with_call


@pytest.mark.parametrize("reason", ["UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"])
def test_a_call_that_the_provider_did_not_expect_is_one(reason: str) -> None:
    """Its caller says that there is no such tool, and the model goes on (Vertex AI sends both in one event)."""
    for choice in (
        whole(CALL, end=reason),
        told(said(CALL, end=reason)),
        told(said(CALL), said({"text": ""}, end=reason)),
    ):
        assert choice["finish_reason"] == "tool_calls"
    assert whole(CALL, end=reason)["message"]["tool_calls"]


@pytest.mark.parametrize(
    "reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "OTHER", "MALFORMED_RESPONSE"]
)
def test_an_answer_that_was_given_up_is_an_error(reason: str) -> None:
    """Which another try may mend, if nothing was said yet."""
    with pytest.raises(MalformedAnswer, match=reason):
        whole(end=reason)
    for begun in ([], [said({"text": "a"})]):
        stream = through(raw_of(*begun, said(end=reason), said({"text": "b"}, end="STOP")))
        assert events_of(stream)[-1]["error"]["code"] == "malformed_response"
        assert b"[DONE]" not in stream


def test_a_prompt_that_is_blocked_is_filtered() -> None:
    """There is an answer, with nothing in it, and why."""
    body = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": USAGE, "modelVersion": "g"}
    choice = PAIR.answer(asked(), body)["choices"][0]
    streamed = told(body)

    for made, finish in ((choice["message"], choice["finish_reason"]), (streamed, streamed["finish_reason"])):
        assert (made["content"], made["refusal"], finish) == ("", "SAFETY", "content_filter")
    with pytest.raises(MalformedAnswer):
        PAIR.answer(asked(), {"modelVersion": "g"})


def test_thoughts_calls_and_words_come_whole_and_streamed_the_same() -> None:
    """The places of details are dense: clients put them together by these."""
    parts: list[Json] = [
        {"text": "hm", "thought": True},
        {"text": " so", "thought": True},
        {"text": "it", "thoughtSignature": "a"},
        {"text": " is"},
        {"text": "", "thoughtSignature": "b"},
        CALL,
        {"functionCall": {"name": "g"}},
    ]
    message = whole(*parts)["message"]
    streamed = told(*map(said, parts), said(end="STOP"))

    assert (message["content"], message["reasoning_content"]) == ("it is", "hm so")
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "hm so", "format": "google-gemini-v1", "index": 0},
        {"type": "reasoning.encrypted", "data": "a", "format": "google-gemini-v1", "index": 1},
        {"type": "reasoning.encrypted", "data": "b", "format": "google-gemini-v1", "index": 2},
    ]
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"x":1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert [call["id"] for call in message["tool_calls"]] == ["c", "call_abc01"]
    assert (streamed["content"], streamed["reasoning_content"]) == ("it is", "hm so")
    assert [{**call, "index": 0} for call in message["tool_calls"]] == [
        {**call, "index": 0} for call in streamed["tool_calls"]
    ]


def test_a_signature_says_whose_it_is() -> None:
    """The Gemini API and Vertex AI refuse each other's."""
    for issuer, google, form in (
        ("gemini", {"thought_signature": "s"}, "google-gemini-v1"),
        ("vertex", {"thought_signature": "s", "issuer": "vertex"}, "google-vertex-v1"),
    ):
        answer = PAIR.answer(asked(issuer), said({"text": "a", "thoughtSignature": "t"}, CALL, end="STOP"))
        message = answer["choices"][0]["message"]
        assert message["tool_calls"][0]["extra_content"] == {"google": google}
        assert message["reasoning_details"][0]["format"] == form


def test_candidates_are_choices() -> None:
    """Each with its own calls and end; none has an end before all have."""
    both = [said(CALL, end="STOP"), said({"text": "b"}, end="MAX_TOKENS", index=1)]
    answer = PAIR.answer(asked(n=2), {"candidates": [one["candidates"][0] for one in both]})
    assert [(one["index"], one["finish_reason"]) for one in answer["choices"]] == [(0, "tool_calls"), (1, "length")]
    events = [said({"text": "a"}), said({"text": "b"}, index=1), said(CALL, end="STOP"), said(end="STOP", index=1)]
    assert b"[DONE]" not in through(raw_of(*events[:3]))
    made = events_of(through(raw_of(*events)))
    ends = {one["index"]: one["finish_reason"] for event in made for one in event["choices"] if one["finish_reason"]}
    assert ends == {0: "tool_calls", 1: "stop"}


def test_what_is_counted_is_all_that_was_read_and_written() -> None:
    """With the tools' prompts and the thoughts; of a stream the last count holds, and only where it was asked for."""
    counts = USAGE | {"toolUsePromptTokenCount": 2, "totalTokenCount": 12, "cachedContentTokenCount": 4}
    usage = PAIR.answer(asked(), said({"text": "a"}, end="STOP", usageMetadata=counts))["usage"]

    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 5, 12)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 3
    events = [said({"text": "a"}, usageMetadata=USAGE), said(end="STOP", usageMetadata=counts)]
    assert told(*events, stream_options={"include_usage": True})["usage"] == usage
    assert told(*events)["usage"] is None


def test_pictures_and_probabilities_arrive() -> None:
    """Pictures as OpenRouter has them."""
    picture = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    message = whole({"text": "see"}, picture)["message"]
    assert message["images"][0]["image_url"]["url"] == "data:image/png;base64,AAAA"
    result = {"chosenCandidates": [{"token": "é", "logProbability": -0.5}], "topCandidates": [{"candidates": []}]}
    body = said({"text": "é"}, end="STOP")
    body["candidates"][0]["logprobsResult"] = result
    content = [{"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}]
    assert PAIR.answer(asked(), body)["choices"][0]["logprobs"]["content"] == content
    chunks = events_of(through(raw_of(body)))
    assert [one["logprobs"]["content"] for each in chunks for one in each["choices"] if "logprobs" in one] == [content]


ERROR = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
PRETTY = orjson.dumps(ERROR, option=orjson.OPT_INDENT_2)


@pytest.mark.parametrize(
    "tail",
    [raw_of(ERROR), b"data: [%b]\r\n\r\n" % orjson.dumps(ERROR), PRETTY, PRETTY + b"\n", b"[%b\n]" % PRETTY],
    ids=["event", "array", "raw", "raw line", "raw array"],
)
@pytest.mark.parametrize("begun", [0, 1, 2])
def test_an_error_ends_the_stream_wherever_it_comes(tail: bytes, begun: int) -> None:
    """In each of its forms, the raw one without `data:`, at any place and cut anywhere; behind output in the caller's shape."""
    shaped = {"message": "overloaded", "type": "server_error", "param": None, "code": "UNAVAILABLE"}
    raw = raw_of(*[said({"text": "a"}), said({"text": "b"}, end="STOP")][:begun]) + tail
    for size in (len(raw), 1, 13):
        stream = through(raw, size)
        assert first_error(stream.split(b"\n\n")[-2]) == (shaped if begun else ERROR["error"])
        assert b"[DONE]" not in stream


def test_a_stream_that_is_cut_has_no_end() -> None:
    """At any byte, and where the last word was said but the bytes did not end cleanly."""
    raw = raw_of(said({"text": "a"}), said(CALL), said({"text": ""}, end="STOP", usageMetadata=USAGE))
    stream = through(raw)
    assert stream.endswith(b"data: [DONE]\n\n")
    assert b"[DONE]" not in through(raw, is_clean=False)
    for cut in range(len(raw) - 5):
        assert b"[DONE]" not in through(raw[:cut])
    for size in (1, 2, 3, 7, 50):
        assert through(raw, size) == stream
    for line_end in (b"\n", b"\r"):
        assert through(raw.replace(b"\r\n", line_end)) == stream


def test_no_word_is_held_back() -> None:
    """Each leaves with the event that it came in, and needs no second reading."""
    one = reader()
    one.feed(raw_of(said({"text": "a"})))
    thought = {"text": "hm", "thought": True}

    for part in ({"text": "b"}, thought, thought, CALL):
        assert is_plain_chat(one.feed(raw_of(said(part))))


def test_an_end_that_is_told_with_every_event_is_one() -> None:
    """As older models do; what comes behind it is heard."""
    assert told(said({"text": "a"}, end="STOP"), said({"text": "b"}, end="STOP"))["content"] == "ab"


def test_what_is_no_event_is_left_out() -> None:
    """Comments go on; a `[DONE]` of a router is not Google's."""
    one = reader()
    assert one.feed(b"event: ping\n\n: alive\n\ndata: [DONE]\n\n") == b": alive\n\n"
    assert one.feed(b"data: {nonsense\n\n") == b"data: {nonsense\n\n"
    assert one.feed(raw_of(said({"text": "a"}))) == b""


def test_an_event_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has one."""
    monkeypatch.setattr(module, "MOST_EVENT_BYTES", 1_000)
    one = reader()
    made = one.feed(b"data: " + b"x" * 900) + one.feed(b"x" * 900) + one.feed(b"data: {}\n\n")

    assert b"too long" in made


def test_what_would_take_seconds_to_read_is_an_error() -> None:
    """By its values: a parser lets nothing else run. Vectors of numbers are read."""
    crowded = b'{"candidates":[],"x":[' + b"{}," * 600_000 + b"1]}"
    numbers = b'{"candidates":[{"finishReason":"STOP"}],"x":[' + b"0," * 600_000 + b"1]}"
    for body, is_read in ((crowded, False), (numbers, True)):
        one = reader()
        made = b"".join(one.feed(part) for part in (b"data: ", body, b"\r\n\r\n")) + one.close(is_clean=True)
        assert (b"too long" in made) is not is_read
        assert (b"[DONE]" in made) is is_read
    with pytest.raises(UpstreamFailed, match="too many values"):
        pair_of("chat", "generate").answer(asked(), crowded)


def test_a_long_picture_is_read() -> None:
    """In one event of a megabyte."""
    data = base64.b64encode(b"x" * 700_000).decode()
    stream = through(raw_of(said({"inlineData": {"mimeType": "image/png", "data": data}}, end="STOP")), 16_384)

    assert data.encode() in stream


@rows(
    "part",
    [{"functionCall": {"args": {}}}, {"functionCall": {"name": "f", "args": [1]}}, {"functionCall": {"name": 1}}],
)
def test_a_call_that_is_none_is_an_error(part: Json) -> None:
    with pytest.raises(MalformedAnswer):
        whole(part)
    assert events_of(through(raw_of(said(part))))[-1]["error"]["code"] == "malformed_response"


PARTS = odd_bodies("text", "thought", "thoughtSignature", "functionCall", "inlineData", "name", "args")
CANDIDATES = st.builds(
    lambda parts, more: {"content": {"parts": parts}} | more,
    st.lists(PARTS, max_size=3),
    odd_bodies("index", "finishReason", "content", "logprobsResult"),
)
BODIES = st.builds(
    lambda candidates, more: {"candidates": candidates} | more,
    st.lists(CANDIDATES, max_size=2),
    odd_bodies("usageMetadata", "promptFeedback", "responseId", "modelVersion", "error"),
)


@given(st.lists(BODIES, max_size=5), st.integers(1, 40))
def test_any_stream_is_read(events: list[Json], size: int) -> None:
    """Nothing is raised, and the same comes out however the bytes arrive."""
    raw = raw_of(*events)

    assert through(raw, size) == through(raw)


@given(BODIES)
def test_any_answer_is_read(body: Json) -> None:
    """Or said to be none."""
    try:
        PAIR.answer(asked(), body)
    except MalformedAnswer:
        return


@pytest.mark.parametrize("depth", [300, 1000])
def test_what_is_nested_too_deeply_is_refused(depth: int) -> None:
    """In arguments and results of tools, which are texts and pass all bounds of bodies; and in what comes back."""
    deep = '{"$a":' * depth + "1" + "}" * depth
    pair = pair_of("chat", "generate")
    for turn, result in (({**CALL_GIVEN, "arguments": deep}, "ok"), (CALL_GIVEN, deep)):
        messages = [USER, {**TURN, "tool_calls": [{"id": "call_a", "function": turn}]}, {**RESULT, "content": result}]
        with pytest.raises(InvalidRequest, match="too deeply"):
            pair.request(orjson.dumps({"model": "m", "messages": messages}), facts(), 0.0, str)
    body = orjson.dumps(said({"functionCall": {"name": "f", "args": 0}}, end="STOP")).replace(
        b'"args":0', b'"args":' + deep.encode()
    )
    with pytest.raises(UpstreamFailed):
        pair.answer(asked(), body)
    assert b"malformed_response" in through(b"data: %b\n\n" % body)


def test_what_an_answer_is_grounded_in_is_cited() -> None:
    """By characters, where Google counts bytes; streamed or not; what is no place or no page is none."""
    words, segments = ["héllo ✓ ", "wörld", " and on"], [("✓ wörld", 0), ("on", 1), ("on", 2), ("on", 9)]
    text = "".join(words)
    supports: list[Any] = [
        {
            "segment": {
                "startIndex": len(text[: text.index(one)].encode()),
                "endIndex": len(text[: text.index(one) + len(one)].encode()),
            },
            "groundingChunkIndices": [place, "0"],
        }
        for one, place in segments
    ]
    supports += [{"segment": {"endIndex": 999}, "groundingChunkIndices": [0]}, {"segment": {"startIndex": -1}}, 1]
    chunks = [{"web": {"uri": "https://a", "title": "A"}}, {"maps": {"uri": "https://b"}}, {"image": {}}]
    metadata = {"groundingSupports": supports, "groundingChunks": chunks}
    event = said({"text": words[2]}, end="STOP")
    event["candidates"][0]["groundingMetadata"] = metadata
    answer = said(*({"text": one} for one in words), end="STOP")
    answer["candidates"][0]["groundingMetadata"] = metadata
    message = PAIR.answer(asked(), answer)["choices"][0]["message"]
    stream = through(raw_of(*(said({"text": one}) for one in words[:2]), event))

    cited = [one["url_citation"] for one in message["annotations"]]
    assert [(text[one["start_index"] : one["end_index"]], one["url"], one["title"]) for one in cited] == [
        ("✓ wörld", "https://a", "A"),
        ("on", "https://b", ""),
    ]
    assert [
        one
        for event in events_of(stream)
        for choice in event["choices"]
        for one in choice["delta"].get("annotations", [])
    ] == message["annotations"]
    answer["candidates"][0]["groundingMetadata"] = {"groundingSupports": 1, "groundingChunks": {}}
    assert "annotations" not in PAIR.answer(asked(), answer)["choices"][0]["message"]
