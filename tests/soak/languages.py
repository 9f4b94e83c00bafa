"""Ways between languages as the gateway sets them up, what is sent over them, and what one turn of the work costs.

Models are those of the shipped table, turns are remembered, and tools are there: as in the conversation of an agent.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from gateway.dialects.base import ConvertedRequest, ServerFacts
from gateway.dialects.config import read_models
from gateway.dialects.memory import ThoughtMemory
from gateway.dialects.registry import Pair, pair_of
from gateway.dialects.target_languages import TargetLanguages

Json = dict[str, Any]
MODELS: Final = read_models(None)
TARGETS: Final[Mapping[str, tuple[str, str]]] = {
    "chat": ("openai", "gpt-5.9"),
    "responses": ("openai", "gpt-5.9"),
    "messages": ("anthropic", "claude-opus-4-8"),
    "generate": ("gemini", "gemini-3-pro"),
    "converse": ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
}
"""By language, the dialect of a provider that speaks it, and a model."""
TURNS, TOOL_ROUNDS, CONVERSATION_BYTES = 100, 25, 30_000
ROUNDS: Final = 9
SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The city"}, "days": {"type": "integer"}},
    "required": ["city"],
}
WORDS: Final = "The quick brown fox jumps over the lazy dog, and the dog does not mind. "


class Way(NamedTuple):
    """A way from a caller's language to a target's."""

    asked: str
    pair: Pair
    facts: ServerFacts
    model: str

    def converted(self, body: Json) -> ConvertedRequest:
        """Convert a request."""
        return self.pair.translator.request({**body, "model": self.model}, self.facts, 1.7e9, lambda: "abc")


def way(asked: str, spoken: str) -> Way:
    """The way, with all that the gateway knows of its target."""
    dialect, model = TARGETS[spoken]
    pair = pair_of(asked, spoken)
    facts = TargetLanguages(dialect, frozenset((spoken,)), dialect, MODELS.of).facts(pair, model)
    own = ThoughtMemory(time.monotonic).of("tenant", None, f"{facts.issuer} {spoken}", keeps_all=False)
    return Way(asked, pair, replace(facts, memory=own if facts.issuer else None), model)


def cost_us(work: Callable[[], object], number: int) -> float:
    """CPU microseconds of one turn of the work, in the best of some rounds: others have their part in the rest."""
    work()
    found = []
    gc.collect()
    for _ in range(ROUNDS):
        started = time.thread_time_ns()
        for _ in range(number):
            work()
        found.append((time.thread_time_ns() - started) / number)
    return min(found) / 1000


# Requests.


def conversation(asked: str, turns: int = TURNS, size: int = CONVERSATION_BYTES, **more: Any) -> Json:
    """A conversation of so many turns and bytes, every second pair of which is a call and its result."""
    few = _conversation(asked, turns, "")
    missing = size - len(orjson.dumps(few))
    return _conversation(asked, turns, (WORDS * (missing // turns // len(WORDS) + 2))[: missing // turns]) | more


def _conversation(asked: str, turns: int, words: str) -> Json:
    said = [_FOUR_TURNS[asked](number, words) for number in range(turns // 4)]
    flat = [one for four in said for one in four]
    tool: Json = {"name": "weather", "description": "Tells the weather of a city."}
    if asked == "messages":
        return {"model": "m", "max_tokens": 1000, "system": "Be brief.", "messages": flat,
                "tools": [{**tool, "input_schema": SCHEMA}]}  # fmt: skip
    if asked == "generate":
        declared = [{"functionDeclarations": [{**tool, "parametersJsonSchema": SCHEMA}]}]
        system = {"parts": [{"text": "Be brief."}]}
        return {"model": "m", "systemInstruction": system, "contents": flat, "tools": declared}
    if asked == "responses":
        return {"model": "m", "instructions": "Be brief.", "input": flat,
                "tools": [{"type": "function", "strict": False, **tool, "parameters": SCHEMA}]}  # fmt: skip
    return {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, *flat],
            "tools": [{"type": "function", "function": {**tool, "parameters": SCHEMA}}]}  # fmt: skip


def _chat(number: int, words: str) -> list[Json]:
    call = {"name": "weather", "arguments": f'{{"city":"city {number}"}}'}
    return [
        {"role": "user", "content": f"{number} {words}"},
        {"role": "assistant", "content": words,
         "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": words},
        {"role": "assistant", "content": words},
    ]  # fmt: skip


def _messages(number: int, words: str) -> list[Json]:
    use = {"type": "tool_use", "id": f"toolu_{number}", "name": "weather", "input": {"city": f"city {number}"}}
    return [
        {"role": "user", "content": f"{number} {words}"},
        {"role": "assistant", "content": [{"type": "text", "text": words}, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": words}]},
        {"role": "assistant", "content": words},
    ]


def _generate(number: int, words: str) -> list[Json]:
    call = {"name": "weather", "args": {"city": f"city {number}"}}
    return [
        {"role": "user", "parts": [{"text": f"{number} {words}"}]},
        {"role": "model", "parts": [{"text": words}, {"functionCall": call}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"output": words}}}]},
        {"role": "model", "parts": [{"text": words}]},
    ]


def _responses(number: int, words: str) -> list[Json]:
    call = {"call_id": f"call_{number}", "name": "weather", "arguments": f'{{"city":"city {number}"}}'}
    return [
        {"role": "user", "content": f"{number} {words}"},
        {"type": "function_call", **call},
        {"type": "function_call_output", "call_id": f"call_{number}", "output": words},
        {"role": "assistant", "content": words},
    ]


_FOUR_TURNS: Final[Mapping[str, Callable[[int, str], list[Json]]]] = {
    "chat": _chat,
    "messages": _messages,
    "generate": _generate,
    "responses": _responses,
}
