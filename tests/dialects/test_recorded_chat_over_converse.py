"""Recorded conversations, said to models of Bedrock's: requests are as recorded, but for what is listed; answers convert."""

from __future__ import annotations

from typing import Any

import orjson
from openai.types.chat import ChatCompletion

from gateway.core.types import How
from gateway.dialects.base import ConvertedRequest, ServerFacts
from gateway.dialects.bedrock.request import ChatOverConverse
from gateway.dialects.config import read_models
from tests.dialects.aws_frames import stream_of
from tests.dialects.cases import Recorded, needs_cases, recorded
from tests.dialects.streamed_chat import calls_in, check_streamed

pytestmark = needs_cases

PAIR = ChatOverConverse()
CLAUDE, NOVA, LLAMA = "us.anthropic.claude-haiku-4-5-20251001-v1:0", "us.amazon.nova-lite-v1:0", "us.meta.llama4-x-v1:0"
FORMATS = {
    "jsonSchemaFormatParam", "jsonSchemaMinimumMaximumParam", "textFormatJsonSchemaParam",
    "textFormatJsonSchemaMissingRequiredPropertyParam",
}  # fmt: skip
REFUSED = {
    "nMultipleCompletionsParam": {"n"},
    "chatCompletionsUrlBackedVideoFileParam": {"messages.file"},
    "imageUrlMimeTypeFallbackParam": {"messages.image_url"},
}
"""Cases that Converse has no words for, whatever the model, and the fields that say so."""
DIFFERENT = {
    ("reasoningRequestTruncated", "messages"): "the answer was cut before its first word, and no empty turn is said",
    ("simpleRequest", "additionalModelRequestFields"): "the recorded request does not ask for an effort",
}
"""In which fields what we send is not what was recorded, by case, and why."""
NOT_COMPARED = {"modelId", "inferenceConfig", "additionalModelResponseFieldPaths"}
"""The model is in the path; the most tokens are always told; the paths ask for what chat completions do not have."""
MODELS = read_models(None)


def facts_for(model: str) -> ServerFacts:
    return ServerFacts(issuer="bedrock", model=MODELS.of(model))


def sent(**more: Any) -> ConvertedRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **more}
    return PAIR.request(body, facts_for(CLAUDE), 1.7e9, lambda: "abc")


def alike(messages: list[dict[str, Any]], *, is_later: bool) -> list[Any]:
    """Messages; of a later turn, whose answers differ, the kinds of blocks alone."""
    return [
        (one["role"], [list(block) for block in one["content"]] if is_later else one["content"]) for one in messages
    ]


def test_what_goes_out_is_what_was_recorded() -> None:
    """Field by field; each difference is listed, and what is listed differs."""
    siblings = {case.name: case.request for case in recorded("converse")}
    different = set()
    compared = 0
    for case in recorded("chat"):
        name, turn = case.name.split(" ")
        sibling = siblings.get(case.name)
        facts = facts_for(CLAUDE if sibling is None else sibling["modelId"])
        refused = {gap.field for gap in PAIR.gaps(case.request, facts) if gap.how is How.REFUSED}
        assert refused == REFUSED.get(name, set()), case.name
        if refused or sibling is None:
            continue
        made = PAIR.request(case.request, facts, 1.7e9, lambda: "abc").body
        compared += 1
        for field in (made.keys() | sibling.keys()) - NOT_COMPARED:
            ours, theirs = made.get(field), sibling.get(field)
            if field == "messages":
                ours, theirs = (alike(one["messages"], is_later=bool(turn)) for one in (made, sibling))
            if ours != theirs:
                different.add((name, field))
    assert different == DIFFERENT.keys()
    assert compared == 12


def test_other_models_refuse_no_more_than_what_they_lack() -> None:
    for case in recorded("chat"):
        name = case.name.split(" ")[0]
        for model, lacks in (
            (NOVA, {}),
            (LLAMA, {"toolChoiceRequiredParam": {"tool_choice"}, "toolCallRequest": {"tool_choice"}}),
        ):
            refused = {gap.field for gap in PAIR.gaps(case.request, facts_for(model)) if gap.how is How.REFUSED}
            wanted = REFUSED.get(name, set()) | lacks.get(name, set())
            assert refused == wanted | ({"response_format.json_schema"} if name in FORMATS else set()), case.name


def test_what_comes_back_is_valid() -> None:
    """Every whole answer, for the official SDK; the words, calls and counts are those of the source."""
    answers = [case.answer for case in recorded("converse") if case.answer is not None]
    for said in answers:
        made = PAIR.answer(sent(), said)
        ChatCompletion.model_validate(made, strict=True)
        message = made["choices"][0]["message"]
        blocks = said["output"]["message"]["content"]
        assert (message["content"] or "") == "".join(block.get("text", "") for block in blocks)
        used = [block["toolUse"] for block in blocks if "toolUse" in block]
        assert calls_in(message) == [(one["toolUseId"], one["name"], one["input"]) for one in used]
        assert made["usage"]["total_tokens"] == said["usage"]["totalTokens"]
        assert made["usage"]["completion_tokens"] == said["usage"]["outputTokens"]
    assert len(answers) == 14


def test_streams_are_good_chat() -> None:
    """Each chunk valid, the grammar kept, the same however the bytes arrive, and as the same answer not streamed."""
    streams = [case for case in recorded("converse") if case.events]
    request = sent(stream=True, stream_options={"include_usage": True})
    for case in streams:
        raw = stream_of(case.events or [])
        check_streamed(PAIR, request, raw, whole_of(case), 499)
    assert len(streams) == 14


def whole_of(case: Recorded) -> dict[str, Any]:
    """The answer that a recorded stream tells, put together here and by nothing of ours."""
    blocks: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {}
    for one in case.events or []:
        for kind, told in one.items():
            if kind == "contentBlockStart":
                blocks[told["contentBlockIndex"]] = {"toolUse": {**told["start"]["toolUse"], "input": ""}}
            elif kind == "contentBlockDelta" and "text" in told["delta"]:
                block = blocks.setdefault(told["contentBlockIndex"], {"text": ""})
                block["text"] += told["delta"]["text"]
            elif kind == "contentBlockDelta":
                blocks[told["contentBlockIndex"]]["toolUse"]["input"] += told["delta"]["toolUse"]["input"]
            elif kind in ("messageStop", "metadata"):
                whole |= told
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = orjson.loads(block["toolUse"]["input"])
    return whole | {"output": {"message": {"role": "assistant", "content": [blocks[at] for at in sorted(blocks)]}}}
