"""What lists of models tell becomes facts; what they do not tell, or tell in an unknown way, becomes none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.base import ModelFacts
from gateway.dialects.known import first_page, read_page
from tests.rows import rows

_NAMES = st.sampled_from(
    ("id", "name", "capabilities", "supported", "types", "effort", "thinking", "max_tokens", "thinkingx")
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=12,
)


def can(**supported: Any) -> dict[str, Any]:
    return {name: {"supported": one} if isinstance(one, bool) else one for name, one in supported.items()}


def thinking(supported: bool = True, **types: bool) -> dict[str, Any]:
    return {"supported": supported, "types": can(**types)}


NEWER = can(
    structured_outputs=True, image_input=True, pdf_input=False,
    effort={"supported": True, **can(low=True, medium=True, high=True, max=False)},
    thinking=thinking(adaptive=True, enabled=False, disabled=False, between_tools=True),
)  # fmt: skip


@rows(
    ("model", "facts"),
    [
        (
            {"max_input_tokens": 200, "max_tokens": 64, "capabilities": NEWER},
            {"max_input": 200, "max_output": 64, "json_schema": True, "reads": ("image",), "thinking": "adaptive",
             "efforts": ("low", "medium", "high"), "thinking_off": "between_tools"},
        ),
        ({"capabilities": can(thinking=thinking(enabled=True, disabled=True, between_tools=False))},
         {"thinking": "budget", "thinking_off": "disabled"}),
        ({"capabilities": can(thinking=thinking(adaptive=True, disabled=False, between_tools=False))},
         {"thinking": "adaptive", "thinking_off": "never"}),
        ({"capabilities": can(thinking=thinking(supported=False), effort={"supported": False})},
         {"thinking": "none", "efforts": ()}),
        ({"max_input_tokens": 0, "max_tokens": "64", "capabilities": can(image_input=True)}, None),
        ({"max_tokens": None, "capabilities": None}, None),
    ],
)  # fmt: skip
def test_what_anthropic_tells(model: dict[str, Any], facts: dict[str, Any] | None) -> None:
    page = read_page("anthropic", {"data": [{"id": "claude-x", **model}], "has_more": True, "last_id": "claude x"})

    assert page.facts == ({} if facts is None else {"claude-x": facts})
    assert page.next == b"limit=1000&after_id=claude+x"
    ModelFacts(**(facts or {}))


def test_what_gemini_tells() -> None:
    models = [
        {"name": "models/gemini-x", "inputTokenLimit": 1048576, "outputTokenLimit": 65536, "thinking": True},
        {"name": "models/plain", "thinking": False},
        {"name": "models/silent"},
    ]
    page = read_page("gemini", {"models": models})

    assert page.facts == {"gemini-x": {"max_input": 1048576, "max_output": 65536}, "plain": {"thinking": "none"}}
    assert page.next is None
    assert read_page("gemini", {"nextPageToken": "a/b"}).next == b"pageSize=1000&pageToken=a%2Fb"
    assert first_page("gemini") == b"pageSize=1000"


@pytest.mark.parametrize("dialect", ["anthropic", "gemini"])
@settings(max_examples=100)
@given(ANY_JSON)
def test_any_list_is_read(dialect: str, odd: Any) -> None:
    """Whatever stands in it, facts come of it that a model can have."""
    for name in ("data", "models", "capabilities"):
        page = read_page(dialect, {name: odd, "data": [{"id": "x", name: odd}], "last_id": odd, "nextPageToken": odd})
        assert all(ModelFacts(**facts) for facts in page.facts.values())
