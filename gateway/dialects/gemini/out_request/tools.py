"""Tools of a chat completion, and which of them is to be called, as generateContent has them.

A function's parameters go on as the JSON Schema that they are (`parametersJsonSchema`): OpenAPI's kind of schema has no unions
(UKGovernmentBEIS/inspect_ai#3097). Whether arguments are held to their schemas is said for all functions at once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gateway.core.types.words import Gap, How
from gateway.dialects.base.base import MOST_NAMED, Json, object_of, objects, text_of
from gateway.dialects.gemini.out_request.plain_schema import has_odd_words, plain_schema

_OF_TOOLS: Final = frozenset(("type", "function", "cache_control"))
_OF_FUNCTIONS: Final = frozenset(("name", "description", "parameters", "strict", "cache_control"))
_FUNCTIONS_ALONE: Final = "the target has functions alone as tools"
_MODES: Final = {"none": "NONE", "auto": "AUTO", "required": "ANY"}


class ToldTools(NamedTuple):
    """Fields of a generateContent request, and what was lost on the way to them."""

    fields: Json
    gaps: list[Gap]


def tools_and_choice(body: Json) -> ToldTools:
    """Returns `tools` and `toolConfig`. Raises nothing: what makes no sense is left out."""
    gaps: list[Gap] = []
    given = _given(body, gaps)
    is_odd = has_odd_words(given)
    declared = [_declaration(tool, gaps, is_odd=is_odd) for tool in given]
    choice = _choice(body.get("tool_choice", body.get("function_call")), gaps)
    if body.get("parallel_tool_calls") not in (None, True):
        gaps.append(Gap("parallel_tool_calls", How.DROPPED, "the model may call several tools at once"))
    if not declared:
        if choice.get("mode") == "ANY":
            gaps.append(Gap("tool_choice", How.DROPPED, "there are no tools to choose from"))
        return ToldTools({}, gaps)
    strict = [bool(_function(tool).get("strict")) for tool in given]
    if any(strict) and choice.get("mode", "AUTO") == "AUTO":
        if all(strict):
            choice["mode"] = "VALIDATED"
        else:
            gaps.append(Gap("tools.strict", How.DROPPED, "all tools are held to their schemas, or none"))
    fields: Json = {"tools": [{"functionDeclarations": declared}]}
    return ToldTools(fields | ({"toolConfig": {"functionCallingConfig": choice}} if choice else {}), gaps)


def has_tools(body: Json) -> bool:
    """Returns whether a request defines tools."""
    return bool(body.get("tools") or body.get("functions"))


def _given(body: Json, gaps: list[Gap]) -> list[Json]:
    """Returns the functions among the tools; others run at a provider that has them."""
    found = []
    for tool in objects(body.get("tools")):
        kind = text_of(tool.get("type", "function"))
        if kind == "function":
            found.append(tool)
        else:
            gaps.append(Gap(f"tools.{kind}"[:MOST_NAMED], How.REFUSED, _FUNCTIONS_ALONE))
    return found + [{"type": "function", "function": one} for one in objects(body.get("functions"))]


def _declaration(tool: Json, gaps: list[Gap], *, is_odd: bool) -> Json:
    named = _function(tool)
    if not (tool.keys() <= _OF_TOOLS and named.keys() <= _OF_FUNCTIONS):
        gaps.append(Gap("tools.other", How.DROPPED, "the target's tools have no such field"))
    if "cache_control" in tool or "cache_control" in named:
        gaps.append(Gap("cache_control", How.DROPPED, "the target keeps beginnings of prompts by itself"))
    made: Json = {"name": named.get("name")}
    if named.get("description"):
        made["description"] = named["description"]
    if parameters := named.get("parameters"):
        made["parametersJsonSchema"] = plain_schema(parameters) if is_odd else parameters
    return made


def _choice(choice: Any, gaps: list[Gap]) -> Json:
    """Returns how functions are to be called; empty where nothing is said."""
    if choice is None:
        return {}
    if not isinstance(choice, dict):
        if text_of(choice) in _MODES:
            return {"mode": _MODES[choice]}
        gaps.append(Gap("tool_choice", How.DROPPED, "there is no such choice"))
        return {}
    kind = text_of(choice.get("type", "function"))
    if kind == "allowed_tools":
        allowed = object_of(choice.get("allowed_tools"))
        names = [name for one in objects(allowed.get("tools")) if (name := _name_in(one)) is not None]
        # AUTO takes no names; VALIDATED leaves it to the model, too, whether it calls one.
        return {"mode": "ANY" if allowed.get("mode") == "required" else "VALIDATED", "allowedFunctionNames": names}
    if kind != "function":
        gaps.append(Gap(f"tool_choice.{kind}"[:MOST_NAMED], How.REFUSED, _FUNCTIONS_ALONE))
        return {}
    return {"mode": "ANY", "allowedFunctionNames": [_name_in(choice)]}


def _function(tool: Json) -> Json:
    return object_of(tool.get("function"))


def _name_in(tool: Json) -> str | None:
    name = _function(tool).get("name", tool.get("name"))
    return name if isinstance(name, str) else None
