"""What tests of conversions into generateContent share: models as they are told, and one exchange with a tool."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.dialects.base import ConvertedRequest, ModelFacts, Reader, ServerFacts
from gateway.dialects.registry import pair_of

Json = dict[str, Any]
PAIR = pair_of("chat", "generate").translator
LEVEL = ModelFacts(
    max_output=65_536, thinking="level", efforts=("low", "high"), thinking_off="never", json_schema=True, logprobs=True
)
BUDGET = ModelFacts(max_output=65_536, thinking="budget", json_schema=True, tools_with_schema=False)
PLAIN = ModelFacts()
USER: Json = {"role": "user", "content": "go"}
TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL: Json = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
TURN: Json = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Json = {"role": "tool", "tool_call_id": "call_a", "content": "ok"}
CALLED: Json = {"functionCall": {"name": "f", "args": {"x": 1}, "id": "call_a"}}
ANSWERED: Json = {"functionResponse": {"name": "f", "response": {"output": "ok"}, "id": "call_a"}}
STAND_IN = "skip_thought_signature_validator"


def facts(model: ModelFacts = BUDGET, issuer: str = "gemini", *, approximates: bool = False) -> ServerFacts:
    return ServerFacts(issuer=issuer, model=model, approximates=approximates)


def sent(given: ServerFacts | None = None, /, **body: Any) -> Json:
    """What goes out."""
    return PAIR.request({"model": "m", "messages": [USER]} | body, given or facts(), 1.7e9, lambda: "abc").body


def contents(*messages: Json, given: ServerFacts | None = None) -> list[Json]:
    made: list[Json] = sent(given, messages=list(messages))["contents"]
    return made


def gaps(given: ServerFacts | None = None, /, **body: Any) -> dict[str, str]:
    """What is lost, and how."""
    found = PAIR.gaps({"model": "m", "messages": [USER]} | body, given or facts())
    return {gap.field: gap.how.value for gap in found}


def asked(issuer: str = "gemini", **body: Any) -> ConvertedRequest:
    return PAIR.request({"model": "m", "messages": [USER]} | body, facts(issuer=issuer), 1.7e9, lambda: "abc")


def reader(**body: Any) -> Reader:
    return PAIR.reader(asked(stream=True, **body))


def said(*parts: Json, end: str | None = None, index: int = 0, **more: Any) -> Json:
    """One answer, or one event."""
    candidate: Json = {"content": {"role": "model", "parts": list(parts)}, "index": index}
    return {"candidates": [candidate | ({"finishReason": end} if end else {})], "modelVersion": "g", **more}


def raw_of(*events: Json) -> bytes:
    return b"".join(b"data: %b\r\n\r\n" % orjson.dumps(event) for event in events)
