"""Turns of Claude's at Bedrock whose thoughts the caller drops: they go back as they came, or not at all."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson
import pytest

from gateway.dialects.base import ServerFacts
from gateway.dialects.bedrock.request import ChatOverConverse
from gateway.dialects.config import read_models
from gateway.dialects.memory import IN_ID, ThoughtMemory
from gateway.dialects.registry import pair_of
from tests.dialects.aws_frames import event
from tests.dialects.cases import events_of
from tests.dialects.claude import OTHER, TOOL, USER

PAIR = ChatOverConverse()
TABLE = read_models(None)
CLAUDE, BUDGET, BOUND = "anthropic.claude-opus-4-8", "anthropic.claude-haiku-4-5-v1:0", "anthropic.claude-fable-5-1"
HIDDEN = b64encode(b"\xff\x00hidden").decode()
Json = dict[str, Any]
CONTENT: list[Json] = [
    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "S=="}}},
    {"text": "so "},
    {"toolUse": {"toolUseId": "tooluse_1", "name": "f", "input": {"x": 1, "y": [1.5, True, None, "é"]}}},
    {"reasoningContent": {"redactedContent": HIDDEN}},
    {"text": "on"},
    {"toolUse": {"toolUseId": "tooluse_2", "name": "g", "input": {}}},
]
"""Thoughts, words and calls in an order that chat completions have no way to say."""
USAGE = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}


def facts(of: ThoughtMemory | None, model: str = CLAUDE, tenant: str = "t", issuer: str = "bedrock") -> ServerFacts:
    known = TABLE.of(model)
    memory = None if of is None else of.of(tenant, None, f"{issuer} converse", keeps_all=known.binds_thinking)
    return ServerFacts(issuer=issuer, model=known, memory=memory)


def frames(content: list[Json]) -> bytes:
    """The stream that tells a content in small pieces."""
    made = [event("messageStart", {"role": "assistant"})]
    for place, block in enumerate(content):
        deltas: list[Json] = []
        if use := block.get("toolUse"):
            start = {name: use[name] for name in ("toolUseId", "name")}
            made.append(event("contentBlockStart", {"contentBlockIndex": place, "start": {"toolUse": start}}))
            written = orjson.dumps(use["input"]).decode() if use["input"] else ""
            deltas = [{"toolUse": {"input": one}} for one in written]
        elif "text" in block:
            deltas = [{"text": one} for one in block["text"]]
        elif told := block["reasoningContent"].get("reasoningText"):
            deltas = [{"reasoningContent": {"text": one}} for one in told["text"]]
            deltas += [{"reasoningContent": {"signature": told["signature"]}}] if told.get("signature") else []
        else:
            deltas = [{"reasoningContent": block["reasoningContent"]}]
        made += [event("contentBlockDelta", {"contentBlockIndex": place, "delta": one}) for one in deltas]
        made.append(event("contentBlockStop", {"contentBlockIndex": place}))
    return b"".join([*made, event("messageStop", {"stopReason": "tool_use"}), event("metadata", {"usage": USAGE})])


def asked(**body: Any) -> Json:
    return {"model": "m", "messages": [USER], "tools": [TOOL, OTHER], **body}


def answer(known: ServerFacts, content: list[Json] = CONTENT, *, streamed: bool = False) -> Json:
    """The message of a client that keeps of an answer what OpenAI's own have."""
    sent = PAIR.request(asked(), known, 1.7e9, lambda: "abc")
    if streamed:
        reader = PAIR.reader(sent)
        assert events_of(reader.feed(frames(content)) + reader.close(is_clean=True))
        known = ServerFacts(issuer=known.issuer, model=known.model)
        sent = PAIR.request(asked(), known, 1.7e9, lambda: "abc")
    body = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "tool_use", "usage": USAGE}
    whole = PAIR.answer(sent, body)["choices"][0]["message"]
    return {name: whole[name] for name in ("role", "content", "tool_calls")}


def after(message: Json, **body: Any) -> Json:
    """The next request, with the results of the calls."""
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in message["tool_calls"]]
    return asked(messages=[USER, message, *results], **body)


def replayed(known: ServerFacts, body: Json) -> Any:
    made = PAIR.request(body, known, 1.7e9, lambda: "abc").body
    return next(one["content"] for one in made["messages"] if one["role"] == "assistant")


def gaps(known: ServerFacts, body: Json) -> dict[str, str]:
    return {gap.field: gap.how.value for gap in PAIR.gaps(body, known)}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_turn_goes_back_as_it_came(streamed: bool) -> None:
    """All of it, in its order; to its own tenant and provider, and only where the turn is the same."""
    of = ThoughtMemory(lambda: 0.0)
    message = answer(facts(of), streamed=streamed)
    bare = [{"text": "so on"}, CONTENT[2], CONTENT[5]]

    assert orjson.dumps(replayed(facts(of), after(message))) == orjson.dumps(CONTENT)
    assert gaps(facts(of), after(message)) == {}
    assert replayed(facts(None), after(message)) == replayed(facts(of, tenant="u"), after(message)) == bare
    assert gaps(facts(of, issuer="anthropic"), after(message)) == {"messages.reasoning_details": "dropped"}
    assert gaps(facts(of, model="amazon.nova-pro-v1:0", issuer="x"), after(message)) == {
        "messages.reasoning_details": "dropped"
    }
    changed = {**message, "content": "other"}
    assert replayed(facts(of), after(changed)) == [{"text": "other"}, CONTENT[2], CONTENT[5]]


def test_ids_with_a_signature_in_them_are_the_same_ids() -> None:
    of = ThoughtMemory(lambda: 0.0)
    message = answer(facts(of))
    message["tool_calls"][0]["id"] += f"{IN_ID}AbC+/="
    made = PAIR.request(after(message), facts(of), 1.7e9, lambda: "abc").body["messages"]

    assert made[1]["content"] == CONTENT
    assert [one["toolResult"]["toolUseId"] for one in made[2]["content"]] == ["tooluse_1", "tooluse_2"]


def test_points_for_the_cache_are_kept() -> None:
    of = ThoughtMemory(lambda: 0.0)
    message, mark = answer(facts(of)), {"cache_control": {"type": "ephemeral"}}
    point = {"cachePoint": {"type": "default"}}
    message["tool_calls"][0] |= mark
    assert replayed(facts(of), after(message)) == [*CONTENT[:3], point, *CONTENT[3:]]
    assert replayed(facts(of), after({**answer(facts(of)), **mark})) == [*CONTENT, point]


def test_a_budget_for_thinking_stays_where_the_thoughts_are_remembered() -> None:
    of = ThoughtMemory(lambda: 0.0)
    body = after(answer(facts(of, BUDGET)), reasoning_effort="low")
    assert gaps(facts(of, BUDGET), body)["reasoning_effort"] == "approximated"
    assert gaps(facts(None, BUDGET), body)["reasoning_effort"] == "dropped"


def test_bound_thoughts_stay_behind_where_anything_was_changed() -> None:
    of = ThoughtMemory(lambda: 0.0)
    body = after(answer(facts(of, BOUND)))
    assert replayed(facts(of, BOUND), body) == CONTENT
    changed = body | {"response_format": {"type": "json_object"}}  # which adds an instruction
    assert replayed(facts(of, BOUND), changed) == [{"text": "so on"}, CONTENT[2], CONTENT[5]]
    assert gaps(facts(of, BOUND), changed)["messages.reasoning_details"] == "dropped"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        CONTENT[:2],
        [{"reasoningContent": {"reasoningText": {"text": "hm"}}}, *CONTENT[1:]],
    ],
)
def test_what_cannot_be_repeated_is_not_remembered(content: list[Json], streamed: bool) -> None:
    of = ThoughtMemory(lambda: 0.0)
    sent = PAIR.request(asked(), facts(of), 1.7e9, lambda: "abc")
    if streamed:
        PAIR.reader(sent).feed(frames(content))
    else:
        PAIR.answer(sent, {"output": {"message": {"content": content}}, "stopReason": "tool_use"})
    assert not len(of)


def test_a_stream_that_was_cut_is_not_remembered() -> None:
    of = ThoughtMemory(lambda: 0.0)
    reader = PAIR.reader(PAIR.request(asked(), facts(of), 1.7e9, lambda: "abc"))
    raw = frames(CONTENT)
    for at in range(0, len(raw) - 200, 50):
        reader.feed(raw[at : at + 50])
    reader.close(is_clean=False)
    assert not len(of)


def test_callers_of_responses_have_it_too() -> None:
    """Their calls are items, and what was thought goes back with none of them."""
    pair, of = pair_of("responses", "converse").translator, ThoughtMemory(lambda: 0.0)
    tools = [{"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}} for name in "fg"]
    go = {"role": "user", "content": "go"}
    sent = pair.request({"model": "m", "input": [go], "tools": tools}, facts(of), 1.7e9, lambda: "abc")
    said = pair.answer(sent, {"output": {"message": {"content": CONTENT}}, "stopReason": "tool_use", "usage": USAGE})
    items = [one for one in said["output"] if one["type"] in ("message", "function_call")]
    results = [
        {"type": "function_call_output", "call_id": one["call_id"], "output": "ok"} for one in items if "call_id" in one
    ]
    body = {"model": "m", "input": [go, *items, *results], "tools": tools}
    made = pair.request(body, facts(of), 1.7e9, lambda: "abc").body["messages"]
    assert made[1]["content"] == CONTENT


def test_thoughts_that_go_back_never_stand_last() -> None:
    """Texts were joined, so that a thought's place may be behind them all."""
    hidden = {"type": "reasoning.encrypted", "data": "D", "format": "anthropic-claude-v1", "index": 4}
    told = {"role": "assistant", "content": "so", "reasoning_details": [hidden], "cache_control": {"type": "ephemeral"}}
    made = PAIR.request(asked(messages=[USER, told, USER]), facts(None), 1.7e9, lambda: "abc").body["messages"][1]
    assert [next(iter(one)) for one in made["content"]] == ["reasoningContent", "text", "cachePoint"]
