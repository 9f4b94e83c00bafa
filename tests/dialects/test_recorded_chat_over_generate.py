"""Recorded conversations, said to Gemini: requests are as recorded, but for what is listed; answers and streams convert."""

from __future__ import annotations

from typing import Any

import orjson
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.core.types import How
from gateway.dialects.base import ConvertedRequest, ModelFacts, ServerFacts
from gateway.dialects.gemini.translators import ChatOverGenerate
from tests.dialects.cases import Recorded, as_bytes, events_of, needs_cases, recorded
from tests.dialects.grammar import check_chat
from tests.dialects.streamed_chat import fed

pytestmark = needs_cases

PAIR = ChatOverGenerate()
FACTS = ServerFacts(
    issuer="gemini",
    model=ModelFacts(max_output=65_536, thinking="level", efforts=("low", "high"), json_schema=True, logprobs=True),
)
OTHER_SCHEMA = "the recorded tool has OpenAPI's kind of schema, ours is JSON Schema"
CLOSED = "the recorded schema is open, the chat completion's is closed; it asks for no bound and no temperature"
DIFFERENT = {
    ("exclusiveMinimumToolParam", "tools"): f"{OTHER_SCHEMA}, in which the provider knows the keyword",
    ("googleToolCallThoughtSignatureReplayParam", "contents"): "the caller's `reasoning_signature` is nobody's field",
    ("googleToolCallThoughtSignatureReplayParam", "toolConfig"): "the caller says `auto`, which the other leaves out",
    ("googleToolCallThoughtSignatureReplayParam", "tools"): OTHER_SCHEMA,
    ("jsonSchemaFormatParam", "generationConfig"): CLOSED,
    ("jsonSchemaMinimumMaximumParam", "generationConfig"): CLOSED,
    ("simpleRequest", "generationConfig"): "the recorded request does not ask for an effort",
    ("textFormatJsonSchemaParam", "generationConfig"): CLOSED,
    ("toolCallRequest", "tools"): OTHER_SCHEMA,
    ("toolChoiceRequiredParam", "tools"): OTHER_SCHEMA,
}
"""In which fields what we send is not what was recorded, by case, and why."""
CUT_SHORT = {"reasoningRequestTruncated"}
"""The answer was cut before its first word: no empty turn is said, and the user's two become one."""
GIVEN_UP = {"speechConfigParam "}
"""Answers that the provider itself gave up on (`OTHER`)."""


def sent(**more: Any) -> ConvertedRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **more}
    return PAIR.request(body, FACTS, 1.7e9, lambda: "abc")


def shape(contents: list[dict[str, Any]]) -> list[Any]:
    """Of a later turn, whose answers differ, who said what kinds of parts."""
    return [
        (one.get("role"), [sorted(part.keys() - {"thoughtSignature"}) for part in one["parts"]]) for one in contents
    ]


def test_what_goes_out_is_what_was_recorded() -> None:
    """Field by field; each difference is listed, and what is listed differs. Nothing is refused."""
    siblings = {case.name: case.request for case in recorded("generate")}
    different = set()
    compared = 0
    for case in recorded("chat"):
        name, turn = case.name.split(" ")
        assert [gap for gap in PAIR.gaps(case.request, FACTS) if gap.how is How.REFUSED] == [], case.name
        made = PAIR.request(case.request, FACTS, 1.7e9, lambda: "abc").body
        if (sibling := siblings.get(case.name)) is None:
            continue
        compared += 1
        if turn:
            if name not in CUT_SHORT:
                assert shape(made["contents"])[0] == shape(sibling["contents"])[0], case.name
            continue
        different |= {
            (name, field)
            for field in (made.keys() | sibling.keys()) - {"model"}
            if made.get(field) != sibling.get(field)
        }
    assert different == DIFFERENT.keys()
    assert compared >= 25


def test_what_comes_back_is_valid() -> None:
    """Every whole answer, for the official SDK; the words, calls and counts are those of the source."""
    answers = [case for case in recorded("generate") if case.answer is not None and case.name not in GIVEN_UP]
    for case in answers:
        said = case.answer or {}
        made = PAIR.answer(sent(), said)
        ChatCompletion.model_validate(made, strict=True)
        for choice, candidate in zip(made["choices"], said["candidates"], strict=True):
            message, parts = choice["message"], candidate["content"].get("parts", ())
            thoughts = [part["text"] for part in parts if part.get("thought")]
            texts = [part["text"] for part in parts if "text" in part and not part.get("thought")]
            assert (message["content"] or "") == "".join(texts)
            assert message.get("reasoning_content", "") == "".join(thoughts)
            calls = [call["function"] for call in message.get("tool_calls", ())]
            theirs = [part["functionCall"] for part in parts if "functionCall" in part]
            assert [(call["name"], orjson.loads(call["arguments"])) for call in calls] == [
                (call["name"], call["args"]) for call in theirs
            ]
            assert signatures_in(message) == [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]
        assert made["usage"]["total_tokens"] == said["usageMetadata"]["totalTokenCount"]
    assert len(answers) >= 35


def test_streams_are_good_chat() -> None:
    """Each chunk valid, the grammar kept, the same however the bytes arrive, and as the same answer not streamed."""
    streams = [case for case in recorded("generate") if case.events and case.name not in GIVEN_UP]
    request = sent(stream=True, stream_options={"include_usage": True})
    for case in streams:
        raw = as_bytes("generate", case.events or [])
        stream = fed(PAIR, request, raw, len(raw))
        assert fed(PAIR, request, raw, 61) == stream
        assert fed(PAIR, request, raw.replace(b"\r\n", b"\n"), 4096) == stream
        made = events_of(stream)
        state = ChatCompletionStreamState()
        for chunk in made:
            state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
        told, whole = check_chat(made, stream), PAIR.answer(request, whole_of(case))
        message, choice = whole["choices"][0]["message"], whole["choices"][0]
        assert told["content"] == (message["content"] or "")
        assert told["reasoning_content"] == message.get("reasoning_content", "")
        assert (told["finish_reason"], told["usage"]) == (choice["finish_reason"], whole["usage"])
        assert calls_in(told) == calls_in(message)
        put_together = state.current_completion_snapshot.choices[0].message.model_dump(exclude_unset=True)
        assert put_together["content"] == told["content"]
        assert put_together.get("reasoning_details") == message.get("reasoning_details")
        for cut in range(0, len(raw) - 4, 199):
            assert b"[DONE]" not in fed(PAIR, request, raw[:cut], len(raw))
    assert len(streams) >= 35


def calls_in(message: dict[str, Any]) -> list[Any]:
    calls = message.get("tool_calls", ())
    return [(call["id"], call["function"], call.get("extra_content")) for call in calls]


def signatures_in(message: dict[str, Any]) -> list[str]:
    """Those of calls last, as the messages of these conversations have them."""
    details = [one["data"] for one in message.get("reasoning_details", ()) if one["type"] == "reasoning.encrypted"]
    calls = [call["extra_content"]["google"]["thought_signature"] for call in message.get("tool_calls", ())]
    return details + calls


def whole_of(case: Recorded) -> dict[str, Any]:
    """The answer that a recorded stream tells, put together here and by nothing of ours."""
    events = case.events or []
    parts = [part for event in events for part in event["candidates"][0].get("content", {}).get("parts", ())]
    candidate = {**events[-1]["candidates"][0], "content": {"role": "model", "parts": parts}}
    return {**events[-1], "candidates": [candidate]}
