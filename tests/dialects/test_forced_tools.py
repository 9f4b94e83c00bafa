"""A form of the answer beside a tool that the model has to call, at models that cannot be told both."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.core.types import How
from tests.dialects.test_nothing_is_lost import TARGETS, Heard

Json = dict[str, Any]
SCHEMA: Json = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
CALLERS: dict[str, tuple[Json, Json, Json]] = {
    "chat": (
        {"messages": [{"role": "user", "content": "x"}],
         "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
         "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": SCHEMA}}},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tool_choice": "required"},
    ),
    "responses": (
        {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}],
         "text": {"format": {"type": "json_schema", "name": "f", "schema": SCHEMA}}},
        {"tool_choice": {"type": "function", "name": "f"}},
        {"tool_choice": "required"},
    ),
    "messages": (
        {"max_tokens": 99, "messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f", "input_schema": SCHEMA}],
         "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"tool_choice": {"type": "tool", "name": "f"}},
        {"tool_choice": {"type": "any"}},
    ),
}  # fmt: skip
"""By the caller's language, a call with both, and two ways to demand the tool."""


@pytest.mark.parametrize("name", ["Gemini", "Nova"])
@pytest.mark.parametrize("asked", CALLERS)
def test_with_a_forced_tool_the_form_is_left_out(asked: str, name: str) -> None:
    """As libraries for structured answers ask; without the demand the form matters, and the target cannot serve it."""
    body, *choices = CALLERS[asked]
    heard = Heard(asked, TARGETS[name])
    for choice in choices:
        sent, gaps = heard._converted({**body, **choice})
        assert [(gap.field, gap.how) for gap in gaps if gap.how is not How.APPROXIMATED] == [
            ("response_format.json_schema", How.DROPPED)
        ]
        assert b"Schema" not in orjson.dumps(sent.get("generationConfig", {}))
        assert "ANY" in str(sent.get("toolConfig")) or "toolChoice" in sent["toolConfig"]
    _, gaps = heard._converted(body)
    assert [gap.field for gap in gaps if gap.how is How.REFUSED] == ["response_format.json_schema"]


@pytest.mark.parametrize("name", ["Gemini at Vertex", "Claude"])
def test_who_takes_both_gets_both(name: str) -> None:
    """Gemini 3 and Claude."""
    body, choice, _ = CALLERS["chat"]
    sent, gaps = Heard("chat", TARGETS[name])._converted({**body, **choice})
    assert not gaps
    assert orjson.dumps(sent).count(b'"additionalProperties":false') == 2
