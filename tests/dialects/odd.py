"""Bodies that make no sense, as far as their JSON does."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_LEAVES = st.sampled_from(
    [None, True, 0, -1.5, "", "x", "function", "message", "assistant", "call_a", "custom", "reasoning"]
)
_NAMES = ("type", "role", "content", "name", "call_id", "id", "output", "arguments", "function", "custom", "text", "message",
          "tool_calls", "delta", "index", "format", "finish_reason", "logprobs", "annotations", "input", "summary")  # fmt: skip
_OBJECTS = st.dictionaries(st.sampled_from(_NAMES), _LEAVES, max_size=4)
_VALUES = _LEAVES | _OBJECTS | st.lists(_LEAVES | _OBJECTS, max_size=3)
_DEEP = st.dictionaries(st.sampled_from(_NAMES), _VALUES, max_size=4)


def odd_bodies(*fields: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these fields, each with anything in it."""
    return st.dictionaries(st.sampled_from(fields), _VALUES | _DEEP | st.lists(_DEEP, max_size=3), max_size=5)
