"""Calls of chat completions at Claude, for the tests of what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.dialects.base import ModelFacts, ServerFacts
from gateway.dialects.registry import pair_of

PAIR = pair_of("chat", "messages").translator
USER = {"role": "user", "content": "go"}
CALL = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
USE = {"type": "tool_use", "id": "call_a", "name": "f", "input": {"x": 1}}
TURN = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_a", "content": "ok"}
OPEN = {"type": "object", "properties": {}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": []}}}
OTHER = {"type": "function", "function": {"name": "g"}}
EFFORTS = ("low", "medium", "high", "xhigh", "max")
FORMAT = "anthropic-claude-v1"
THOUGHT = {"type": "reasoning.text", "text": "hm", "signature": "S", "format": FORMAT, "index": 0}
HIDDEN = {"type": "reasoning.encrypted", "data": "D", "format": FORMAT, "index": 2}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "S"}
REDACTED = {"type": "redacted_thinking", "data": "D"}

PLAIN = ModelFacts(max_output=64_000)
BUDGET = replace(PLAIN, thinking="budget", json_schema=True)
ADAPTIVE = replace(BUDGET, thinking="adaptive", efforts=EFFORTS, sampling=False)
BOUND = replace(ADAPTIVE, binds_thinking=True)
CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


def sent(model: Any = BUDGET, *, approximates: Any = False, **body: Any) -> dict[str, Any]:
    """The Messages request that a chat completion becomes."""
    facts = ServerFacts(issuer="anthropic", model=model, approximates=approximates)
    return PAIR.request({"model": "m", "messages": [USER], **body}, facts, 1.7e9, lambda: "abc").body


def messages(*said: Any, model: ModelFacts = BUDGET) -> list[Any]:
    found: list[Any] = sent(model, messages=list(said))["messages"]
    return found


def gaps(model: Any = BUDGET, *, approximates: Any = False, **body: Any) -> dict[str, str]:
    facts = ServerFacts(issuer="anthropic", model=model, approximates=approximates)
    return {gap.field: gap.how.value for gap in PAIR.gaps({"model": "m", "messages": [USER], **body}, facts)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def in_part(part: dict[str, Any]) -> dict[str, Any]:
    """A call with one part in its one message."""
    return {"messages": [{"role": "user", "content": [part]}]}
