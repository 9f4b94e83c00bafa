"""Tools in namespaces, which Responses group them in, as tools of one list, and their calls back in their namespaces.

A tool's name in the list is made of its namespace's and its own, and is the same in each turn, so that calls of former turns
have it, too. Source: OpenAI's API reference, `POST /v1/responses`, `tools` of type `namespace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.core.types import Gap, How
from gateway.dialects.base import Json, object_of, objects, text_of
from gateway.dialects.schema_tools.tools import OPENAIS

GAP: Final = Gap(
    "tools.namespace", How.APPROXIMATED, "its tools have its name before theirs, and their calls get it back"
)
_SEPARATOR: Final = "__"
_CALLS: Final = ("function_call", "custom_tool_call")
_RESULTS: Final = tuple(f"{kind}_output" for kind in _CALLS)
_Qualified = tuple[str, str]
"""A namespace's name, and the name of a tool in it."""


class FlatRequest(NamedTuple):
    """A Responses request without namespaces."""

    body: Json
    """The request itself where it has none."""
    names: Mapping[str, _Qualified]
    """By the name that a tool goes by, its namespace's and its own."""


def flattened(body: Json) -> FlatRequest:
    """Returns a Responses request whose tools, calls and choice of tools have no namespace.

    Raises nothing: what makes no sense stays as it is.
    """
    tools, items = body.get("tools"), body.get("input")
    grouped = [one for one in objects(tools) if one.get("type") == "namespace"]
    called = [one for one in objects(items) if one.get("namespace")]
    if not grouped and not called:
        return FlatRequest(body, {})
    plain = {text_of(one.get("name")) for one in objects(tools) if one.get("type") != "namespace"}
    flat: dict[_Qualified, str] = {}
    for group in grouped:
        for tool in objects(group.get("tools")):
            _add((text_of(group.get("name")), text_of(tool.get("name"))), flat, plain)
    for call in (one for one in called if one.get("type") in _CALLS):
        _add((text_of(call.get("namespace")), text_of(call.get("name"))), flat, plain)
    made = dict(body)
    if grouped:
        made["tools"] = [one for tool in tools or () for one in _ungrouped(tool, flat)]
    if called:
        made["input"] = [_renamed(one, flat) for one in items or ()]
    if isinstance(choice := body.get("tool_choice"), dict):
        made["tool_choice"] = _chosen(choice, flat, plain)
    return FlatRequest(made, {name: qualified for qualified, name in flat.items()})


def _add(qualified: _Qualified, flat: dict[_Qualified, str], plain: set[str]) -> None:
    """Puts the name for one tool in `flat`: no two tools have the same."""
    if not all(qualified) or qualified in flat:
        return
    namespace, name = qualified
    joined = OPENAIS.of(f"{namespace.removesuffix(_SEPARATOR)}{_SEPARATOR}{name}")
    is_taken = joined in plain or joined in flat.values()
    flat[qualified] = OPENAIS.of(f"{namespace}:{name}") if is_taken else joined


def _ungrouped(tool: Any, flat: Mapping[_Qualified, str]) -> list[Any]:
    """Returns the tools of a namespace, the first of which says what the namespace is; another tool is itself."""
    if not isinstance(tool, dict) or tool.get("type") != "namespace":
        return [tool]
    namespace, about = text_of(tool.get("name")), text_of(tool.get("description"))
    made = [
        {**one, "name": flat.get((namespace, text_of(one.get("name"))), one.get("name"))}
        for one in objects(tool.get("tools"))
    ]
    if about and made:
        told = f"About the tools of {namespace}: {about}"
        made[0]["description"] = "\n\n".join(filter(None, (text_of(made[0].get("description")), told)))
    return made


def _renamed(item: Any, flat: Mapping[_Qualified, str]) -> Any:
    """Returns a call by its tool's name in the list, and its result, which repeats that name; another item is itself."""
    if not isinstance(item, dict) or not item.get("namespace") or item.get("type") not in (*_CALLS, *_RESULTS):
        return item
    name = flat.get((text_of(item.get("namespace")), text_of(item.get("name"))))
    if name is None and item["type"] in _CALLS:
        return item
    return {one: value for one, value in item.items() if one != "namespace"} | ({"name": name} if name else {})


def _chosen(choice: Json, flat: Mapping[_Qualified, str], plain: set[str]) -> Json:
    """Returns the choice of a tool, or of several, by their names in the list."""
    if choice.get("type") == "allowed_tools":
        return {
            **choice,
            "tools": [one for tool in objects(choice.get("tools")) for one in _allowed(tool, flat, plain)],
        }
    return _allowed(choice, flat, plain)[0]


def _allowed(tool: Json, flat: Mapping[_Qualified, str], plain: set[str]) -> list[Json]:
    """Returns a tool that is chosen, or all of the namespace that is; a tool's own name may stand without its namespace."""
    name, namespace = text_of(tool.get("name")), text_of(tool.get("namespace"))
    if tool.get("type") == "namespace":
        return [{"type": "function", "name": joined} for (space, _), joined in flat.items() if space == name] or [tool]
    if name in plain and not namespace:
        return [tool]
    found = [joined for (space, own), joined in flat.items() if own == name and namespace in ("", space)]
    return [{"type": tool.get("type"), "name": found[0]}] if found else [tool]


def qualified(item: Json, names: Mapping[str, _Qualified]) -> Json:
    """Returns a call's item under its tool's own name, in its namespace."""
    found = names.get(text_of(object_of(item).get("name")))
    return item if found is None else {**item, "namespace": found[0], "name": found[1]}
