"""Tools in namespaces, and those that come late, as tools of one list, and their calls back as Responses have them.

A tool's name in the list is made of its namespace's and its own, and is the same in each turn, so that calls of former turns
have it, too. Source: OpenAI's API reference, `POST /v1/responses`, its tools of type `namespace`
and `tool_search`, and its items of type `additional_tools`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.openai.sse import json_object
from gateway.core.types import Gap, How
from gateway.dialects.base import Json, object_of, objects, text_of
from gateway.dialects.schema_tools.tools import OPENAIS

GAP: Final = Gap(
    "tools.namespace", How.APPROXIMATED, "its tools have its name before theirs, and their calls get it back"
)
_SEPARATOR: Final = "__"
_CALLS: Final = ("function_call", "custom_tool_call")
TOOL_SEARCH: Final = "tool_search"
"""The type of the tool that finds tools, and the name of the function that it becomes, which is in no namespace."""
_LOADING: Final = ("additional_tools", "tool_search_output")
"""Items that bring tools."""
_SEARCHING: Final = ("tool_search_call", "tool_search_output")
_OWN_KINDS: Final = frozenset(("namespace", TOOL_SEARCH))
_SEARCH_GAP: Final = Gap(
    "tools.tool_search", How.APPROXIMATED, "it becomes a function, and what it finds is told in words"
)
_NO_SEARCH_GAP: Final = Gap("tools.tool_search", How.DROPPED, "all tools are there from the start")
_LATE_GAP: Final = Gap("input.additional_tools", How.APPROXIMATED, "they are there from the start")
_RESULTS: Final = tuple(f"{kind}_output" for kind in _CALLS)
_Qualified = tuple[str, str]
"""A namespace's name, and the name of a tool in it."""


class FlatRequest(NamedTuple):
    """A Responses request with all of its tools in one list, and none of them in a namespace."""

    body: Json
    """The request itself where it is one already."""
    names: Mapping[str, _Qualified]
    """By the name that a tool goes by, its namespace's and its own."""
    gaps: Sequence[Gap]
    """What is lost of its tools on the way."""


def flattened(body: Json) -> FlatRequest:
    """Returns a Responses request whose tools are functions and the like in one list, with its calls and its choice of them.

    Tools that come with the input are there from the start; who searches its tools by itself has a function for that.
    Raises nothing: what makes no sense stays as it is.
    """
    tools, items = body.get("tools"), body.get("input")
    has_namespaces = any(one.get("namespace") for one in objects(items))
    loading = [one for one in objects(items) if one.get("type") in _LOADING]
    kinds = {text_of(one.get("type")) for one in objects(tools)}
    if not isinstance(tools, list | None) or not (has_namespaces or loading or not kinds.isdisjoint(_OWN_KINDS)):
        return FlatRequest(body, {}, ())
    given = [*(tools or ()), *(tool for item in loading for tool in objects(item.get("tools")))]
    grouped = [one for one in objects(given) if one.get("type") == "namespace"]
    plain = {text_of(one.get("name")) for one in objects(given) if one.get("type") != "namespace"}
    flat: dict[_Qualified, str] = {}
    taken = set(plain)
    for group in grouped:
        for tool in objects(group.get("tools")):
            _add((text_of(group.get("name")), text_of(tool.get("name"))), flat, taken)
    for item in objects(items):
        if item.get("type") in _CALLS:
            _add((text_of(item.get("namespace")), text_of(item.get("name"))), flat, taken)
    searches = [one for one in objects(given) if one.get("type") == TOOL_SEARCH]
    if any(map(_is_clients, [*searches, *(one for one in objects(items) if one.get("type") in _SEARCHING)])):
        flat["", TOOL_SEARCH] = TOOL_SEARCH if TOOL_SEARCH not in plain else OPENAIS.of(f":{TOOL_SEARCH}")
    made = dict(body)
    if listed := _without_repeats([one for tool in given for one in _ungrouped(tool, flat)], len(tools or ())):
        made["tools"] = listed
    elif tools:
        del made["tools"]
    if isinstance(items, list):
        made["input"] = [made_item for one in items for made_item in _flat_item(one, flat)]
    if isinstance(choice := body.get("tool_choice"), dict):
        made["tool_choice"] = _chosen(choice, flat, plain)
    lost = [GAP] if grouped else []
    lost += [_SEARCH_GAP if _is_clients(one) else _NO_SEARCH_GAP for one in searches]
    lost += [_LATE_GAP] if any(one["type"] == "additional_tools" for one in loading) else []
    return FlatRequest(made, {name: qualified for qualified, name in flat.items()}, lost)


def _is_clients(search: Json) -> bool:
    """Returns whether the caller searches its tools by itself; else OpenAI does, among those that it is to load late."""
    return search.get("execution") == "client" and (
        search["type"] == TOOL_SEARCH or isinstance(search.get("call_id"), str)
    )


def _without_repeats(tools: list[Any], own: int) -> list[Any]:
    """Returns tools, of which one that was loaded stands for an earlier one of its name; the first `own` were not loaded."""
    places: dict[tuple[str, str], int] = {}
    kept: list[Any] = []
    for number, tool in enumerate(tools):
        name = text_of(object_of(tool).get("type")), text_of(object_of(tool).get("name"))
        if number >= own and name[1] and name in places:
            kept[places[name]] = tool
        else:
            places[name] = len(kept)
            kept.append(tool)
    return kept


def _flat_item(item: Any, flat: Mapping[_Qualified, str]) -> list[Any]:
    """Returns the items that one becomes."""
    kind = object_of(item).get("type")
    if kind == "additional_tools":
        return []
    if kind not in _SEARCHING or not _is_clients(item):
        return [_renamed(item, flat)]
    made: Json = {"call_id": item["call_id"]}
    if kind == "tool_search_call":
        arguments = orjson.dumps(object_of(item.get("arguments")), option=orjson.OPT_NON_STR_KEYS).decode()
        return [{"type": "function_call", "name": flat["", TOOL_SEARCH], "arguments": arguments, **made}]
    found = [text_of(tool.get("name")) for group in objects(item.get("tools")) for tool in _ungrouped(group, flat)]
    text = "These tools can be called now: " + ", ".join(filter(None, found)) if found else "No tool was found."
    return [{"type": "function_call_output", "output": text, **made}]


def _add(qualified: _Qualified, flat: dict[_Qualified, str], taken: set[str]) -> None:
    """Puts the name for one tool in `flat`, and among those that are taken: no two tools have the same."""
    if not all(qualified) or qualified in flat:
        return
    namespace, name = qualified
    joined = OPENAIS.of(f"{namespace.removesuffix(_SEPARATOR)}{_SEPARATOR}{name}")
    flat[qualified] = OPENAIS.of(f"{namespace}:{name}") if joined in taken else joined
    taken.add(flat[qualified])


def _ungrouped(tool: Any, flat: Mapping[_Qualified, str]) -> list[Any]:
    """Returns the tools of a namespace, the first of which says what the namespace is; another tool is itself."""
    if isinstance(tool, dict) and tool.get("type") == TOOL_SEARCH:
        if not _is_clients(tool):
            return []
        kept = {name: tool[name] for name in ("description", "parameters") if tool.get(name) is not None}
        return [{"type": "function", "name": flat["", TOOL_SEARCH], **kept, "strict": False}]
    if not isinstance(tool, dict) or tool.get("type") != "namespace":
        return [tool]
    namespace, about = text_of(tool.get("name")), text_of(tool.get("description"))
    made = [
        {**one, "name": flat.get((namespace, text_of(one.get("name"))), one.get("name"))}
        for one in objects(tool.get("tools"))
    ]
    if about and made:
        text = f"About the tools of {namespace}: {about}"
        made[0]["description"] = "\n\n".join(filter(None, (text_of(made[0].get("description")), text)))
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
    by_namespace: dict[str, list[str]] = {}
    by_name: dict[str, str] = {}
    for (space, own), joined in flat.items():
        by_namespace.setdefault(space, []).append(joined)
        by_name.setdefault(own, joined)

    def allowed(tool: Json) -> list[Json]:
        """Returns a tool, or all of the namespace that it is; a tool's own name may stand without its namespace."""
        name, namespace = text_of(tool.get("name")), text_of(tool.get("namespace"))
        if tool.get("type") == "namespace" and name in by_namespace:
            # Once: a body that repeats it could make more of itself than there is memory.
            joined_names, by_namespace[name] = by_namespace[name], []
            return [{"type": "function", "name": joined} for joined in joined_names]
        if tool.get("type") == "namespace" or (name in plain and not namespace):
            return [tool]
        found = flat.get((namespace, name)) if namespace else by_name.get(name)
        return [tool] if found is None else [{"type": tool.get("type"), "name": found}]

    if choice.get("type") == "allowed_tools":
        return {**choice, "tools": [one for tool in objects(choice.get("tools")) for one in allowed(tool)]}
    return allowed(choice)[0]


def qualified(item: Json, names: Mapping[str, _Qualified]) -> Json:
    """Returns a call's item under its tool's own name, in its namespace; a search of tools is an item of its own."""
    found = names.get(text_of(item.get("name")))
    if found is None:
        return item
    if found == ("", TOOL_SEARCH):
        given = item.get("arguments", item.get("input"))
        arguments = json_object(given.encode(errors="replace")) if isinstance(given, str) else None
        kept: Json = {name: item[name] for name in ("id", "status", "call_id") if name in item}
        return {**kept, "type": "tool_search_call", "execution": "client", "arguments": arguments or {}}
    return {**item, "namespace": found[0], "name": found[1]}
