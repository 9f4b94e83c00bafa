"""Recorded conversations, said to Claude: requests are as recorded, but for what is listed; answers and streams convert."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from openai.types.chat import ChatCompletion

from gateway.core.types import How
from gateway.dialects.anthropic.translators import ChatOverMessages
from gateway.dialects.base import ConvertedRequest, ModelFacts, ServerFacts
from tests.dialects.cases import Recorded, as_bytes, needs_cases, recorded
from tests.dialects.streamed_chat import check_streamed

pytestmark = needs_cases

PAIR = ChatOverMessages()
REFUSED = {"nMultipleCompletionsParam": {"n"}, "chatCompletionsUrlBackedVideoFileParam": {"messages.file"}}
"""Cases that Messages have no words for, and the fields that say so."""
DIFFERENT = {
    (
        "chatCompletionsSystemCacheControlParam",
        "system",
    ): "the part's own `cache_control` holds, not the other mark's time",
    (
        "chatCompletionsAssistantCacheControlParam",
        "messages",
    ): "the part's own `cache_control` holds, not the other mark's",
    ("metadataParam", "metadata"): "the recorded request names a user, the chat completion does not",
    ("parallelToolCallsDisabledParam", "messages"): "the recorded user says it in other words",
    ("parallelToolCallsDisabledParam", "tools"): "the recorded schema is open, the chat completion's is closed",
    ("promptCacheKeyParam", "system"): "the recorded request has instructions, the chat completion has none",
    ("reasoningRequestTruncated", "messages"): "the answer was cut before its first word, and no empty turn is said",
    ("simpleRequest", "thinking"): "the recorded request does not ask for an effort",
    ("toolChoiceRequiredParam", "tools"): "the recorded schema is open, the chat completion's is closed",
}
"""In which fields what we send is not what was recorded, by case, and why."""

NOT_TOLD = (
    "type", "role", "stop_sequence", "stop_details",
    "content.text.citations.cited_text", "content.text.citations.encrypted_index", "content.tool_use.caller.",
    "content.server_tool_use.", "content.tool_search_tool_result.", "content.web_search_tool_result.",
    "usage.cache_creation.", "usage.inference_geo", "usage.server_tool_use.",
)  # fmt: skip
"""What of an answer has no place in a chat completion, and how it is told; a refusal's details are, a null is not."""
OTHERWISE = {"stop_reason": "refusal", "usage.service_tier": "priority"}
"""Values that mean something."""


def facts_for(model: str) -> ServerFacts:
    is_adaptive = "4-7" in model
    efforts = ("low", "medium", "high", "xhigh", "max") if is_adaptive else ()
    facts = ModelFacts(
        max_output=64_000, sampling=not is_adaptive, thinking="adaptive" if is_adaptive else "budget", efforts=efforts,
        json_schema=is_adaptive or "4-5" in model,
    )  # fmt: skip
    return ServerFacts(issuer="anthropic", model=facts)


def sent(**more: Any) -> ConvertedRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **more}
    return PAIR.request(body, facts_for(""), 1.7e9, lambda: "abc")


def alike(messages: list[dict[str, Any]], *, is_later: bool) -> list[Any]:
    """Messages with their text as blocks; of a later turn, whose answers differ, the kinds of blocks alone."""
    found = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found.append(
            (message["role"], [block["type"] for block in blocks if block["type"] != "text"] if is_later else blocks)
        )
    return found


def test_what_goes_out_is_what_was_recorded() -> None:
    """Field by field; each difference is listed, and what is listed differs."""
    siblings = {case.name: case.request for case in recorded("messages")}
    different = set()
    compared = 0
    for case in recorded("chat"):
        name, turn = case.name.split(" ")
        sibling = siblings.get(case.name, {})
        facts = facts_for(sibling.get("model", "claude-sonnet-4-5"))
        refused = {gap.field for gap in PAIR.gaps(case.request, facts) if gap.how is How.REFUSED}
        assert refused == REFUSED.get(name, set()), case.name
        if refused:
            continue
        made = PAIR.request(case.request, facts, 1.7e9, lambda: "abc").body
        compared += bool(sibling)
        for field in (made.keys() | sibling.keys()) - {"model", "max_tokens"} if sibling else ():
            ours, theirs = made.get(field), sibling.get(field)
            if field == "messages":
                ours, theirs = (alike(one["messages"], is_later=bool(turn)) for one in (made, sibling))
            if ours != theirs:
                different.add((name, field))
    assert different == DIFFERENT.keys()
    assert compared >= 30


def test_what_comes_back_is_valid() -> None:
    """Every whole answer, for the official SDK; the words, calls and counts are those of the source."""
    answers = [case.answer for case in recorded("messages") if case.answer is not None]
    for said in answers:
        made = PAIR.answer(sent(), said)
        ChatCompletion.model_validate(made, strict=True)
        message = made["choices"][0]["message"]
        blocks = said["content"]
        assert (message["content"] or "") == "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [(call["id"], orjson.loads(call["function"]["arguments"])) for call in message.get("tool_calls", ())]
        assert calls == [(block["id"], block["input"]) for block in blocks if block["type"] == "tool_use"]
        counts = said["usage"]
        came = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert made["usage"]["prompt_tokens"] == sum(counts[name] for name in came)
        assert made["usage"]["completion_tokens"] == counts["output_tokens"]
    assert len(answers) >= 40


def test_nothing_of_an_answer_is_lost_unlisted() -> None:
    """What is changed in it changes what comes out, or is listed."""
    lost = set()
    for case in recorded("messages"):
        if case.answer is not None:
            whole = PAIR.answer(sent(service_tier="auto"), case.answer)
            for path, changed in changes(case.answer):
                if PAIR.answer(sent(service_tier="auto"), changed) == whole:
                    lost.add(path)
    assert {path for path in lost if not path.startswith(NOT_TOLD)} == set()


def changes(answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the answer with one leaf after the other changed, each by its path."""
    kinds: set[str] = set()

    def walk(node: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(node, dict):
            within = f"{path}.{node['type']}" if path == "content" else path
            for name, value in node.items():
                for inner, made in walk(value, f"{within}.{name}".lstrip(".")):
                    yield inner, {**node, name: made}
        elif isinstance(node, list):
            for place, value in enumerate(node):
                for inner, made in walk(value, path):
                    yield inner, [*node[:place], made, *node[place + 1 :]]
        elif path not in kinds:
            kinds.add(path)
            yield path, 7_777_777 if isinstance(node, int) else OTHERWISE.get(path, "told")

    yield from walk(answer, "")


def test_streams_are_good_chat() -> None:
    """Each chunk valid, the grammar kept, the same however the bytes arrive, and as the same answer not streamed."""
    streams = [case for case in recorded("messages") if case.events]
    request = sent(stream=True, stream_options={"include_usage": True})
    for case in streams:
        raw = as_bytes("messages", case.events or [])
        check_streamed(PAIR, request, raw, whole_of(case), 199)
    assert len(streams) >= 40


def whole_of(case: Recorded) -> dict[str, Any]:
    """The message that a recorded stream tells, put together here and by nothing of ours."""
    events = case.events or []
    whole: dict[str, Any] = dict(events[0]["message"])
    blocks: list[dict[str, Any]] = []
    for event in events[1:]:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[-1]["text"] = blocks[-1].get("text", "") + delta.get("text", "")
            blocks[-1]["json"] += delta.get("partial_json", "")
        elif event["type"] == "message_delta":
            whole |= event["delta"]
            whole["usage"] = whole["usage"] | event["usage"]
    for block in blocks:
        if block["json"]:
            block["input"] = orjson.loads(block["json"])
    return whole | {"content": blocks}
