"""Turns of Gemini's whose signatures the caller drops: they go back where they were, to who made them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.dialects.base import ModelFacts, ServerFacts
from gateway.dialects.gemini.translators import ChatOverGenerate
from gateway.dialects.issuers import STAND_IN
from gateway.dialects.memory import ThoughtMemory

PAIR = ChatOverGenerate()
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
GO = {"role": "user", "content": "go"}
PARTS: list[dict[str, Any]] = [
    {"text": "hm", "thought": True},
    {"text": "so "},
    {"text": "on"},
    {"functionCall": {"name": "f", "args": {"n": 1}, "id": "a"}, "thoughtSignature": "sig=="},
    {"functionCall": {"name": "f", "args": {}, "id": "b"}},
]


def facts(of: ThoughtMemory, tenant: str = "t", issuer: str = "gemini") -> ServerFacts:
    memory = of.of(tenant, None, issuer, keeps_all=False)
    return ServerFacts(issuer=issuer, model=ModelFacts(thinking="level"), memory=memory)


def request(known: ServerFacts, messages: list[Any]) -> Any:
    return PAIR.request({"model": "m", "messages": messages, "tools": [TOOL]}, known, 1.7e9, lambda: "abc")


def replayed(known: ServerFacts, messages: list[Any]) -> Any:
    contents = request(known, messages).body["contents"]
    return next(one["parts"] for one in contents if one["role"] == "model")


@pytest.mark.parametrize("streamed", [False, True])
def test_signatures_go_back_where_they_were(streamed: bool) -> None:
    """Streamed or not; to their own tenant and issuer alone, and only where the turn is the same."""
    of = ThoughtMemory(lambda: 0.0)
    sent = request(facts(of), [GO])
    whole = {"candidates": [{"index": 0, "content": {"role": "model", "parts": PARTS}, "finishReason": "STOP"}]}
    said = PAIR.answer(request(ServerFacts(issuer="gemini"), [GO]), whole)["choices"][0]["message"]
    if streamed:
        reader = PAIR.reader(sent)
        for part in PARTS:
            event = {"candidates": [{"index": 0, "content": {"role": "model", "parts": [part]}}]}
            reader.feed(b"data: %b\n\n" % orjson.dumps(event))
        reader.feed(b'data: {"candidates":[{"index":0,"finishReason":"STOP"}]}\n\n')
        reader.close(is_clean=True)
    else:
        PAIR.answer(sent, whole)
    calls = [{name: one[name] for name in ("id", "type", "function")} for one in said["tool_calls"]]
    message = {"role": "assistant", "content": said["content"], "tool_calls": calls}
    messages = [GO, message, *({"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in calls)]

    def signatures(known: ServerFacts) -> list[Any]:
        return [part.get("thoughtSignature") for part in replayed(known, messages)]

    assert signatures(facts(of)) == [None, "sig==", None]
    for other in (facts(of, tenant="u"), facts(of, issuer="vertex")):
        assert signatures(other) == [None, STAND_IN, None]
    lost = PAIR.gaps({"model": "m", "messages": messages, "tools": [TOOL]}, facts(of, issuer="vertex"))
    assert [(gap.field, gap.how) for gap in lost] == [("messages.reasoning_details", "dropped")]
    message["content"] = "other"
    assert signatures(facts(of)) == [None, STAND_IN, None]


def test_another_turn_with_the_same_id_is_another() -> None:
    """With fewer calls, or others: it is no defect, and gets nothing of the first."""
    of = ThoughtMemory(lambda: 0.0)
    said = PAIR.answer(
        request(facts(of), [GO]), {"candidates": [{"content": {"parts": PARTS}, "finishReason": "STOP"}]}
    )
    first = said["choices"][0]["message"]
    calls = [{name: one[name] for name in ("id", "type", "function")} for one in first["tool_calls"]]
    first = {"role": "assistant", "content": first["content"], "tool_calls": calls}
    second = {"role": "assistant", "content": "no", "tool_calls": calls[:1]}
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in calls]
    messages = [GO, first, *results, GO, second, results[0]]
    turns = [one["parts"] for one in request(facts(of), messages).body["contents"] if one["role"] == "model"]

    assert [part.get("thoughtSignature") for part in turns[0]][-2] == "sig=="
    assert [part.get("thoughtSignature") for part in turns[1]] == [None, STAND_IN]
