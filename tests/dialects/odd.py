"""Bodies that make no sense, as far as their JSON does."""

from __future__ import annotations

from collections.abc import Iterator
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


def spoiled(body: Any) -> st.SearchStrategy[Any]:
    """The body with something else in one place, at any depth, or with that place left out."""
    places = list(_places(body, ()))
    return st.builds(
        lambda place, value: _with(body, place, value), st.sampled_from(places), _VALUES | st.just(_NOTHING)
    )


_NOTHING = object()


def _places(value: Any, above: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield above
    for name, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from _places(inner, (*above, name))


def _with(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return {} if new is _NOTHING or not isinstance(new, dict) else new
    copy = value.copy()
    if len(place) > 1:
        copy[place[0]] = _with(value[place[0]], place[1:], new)
    elif new is _NOTHING:
        del copy[place[0]]
    else:
        copy[place[0]] = new
    return copy
