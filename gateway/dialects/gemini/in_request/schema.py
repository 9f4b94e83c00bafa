"""Gemini's own schemas, a part of OpenAPI 3.0's, as JSON Schemas. Source: the Gemini API's reference, Schema."""

from __future__ import annotations

from typing import Any, Final

from gateway.dialects.base.base import strings
from gateway.dialects.gemini.in_answer.names import camel

MOST_DEPTH: Final = 60
_NUMBERS: Final = frozenset(("maxItems", "minItems", "maxLength", "minLength", "maxProperties", "minProperties"))
"""Numbers that Google's JSON has as strings, because they are of 64 bits."""
_NULL: Final = {"type": "null"}
_NOT_THERE: Final = frozenset(("nullable", "propertyOrdering"))
"""What JSON Schema says otherwise."""


def json_schema(schema: Any, depth: int = MOST_DEPTH) -> Any:
    """Returns a schema of theirs as a JSON Schema; one that is a JSON Schema already stays what it is."""
    if not isinstance(schema, dict) or not depth:
        return schema
    given, made = camel(schema), dict[str, Any]()
    for name, value in given.items():
        if name in _NOT_THERE:
            continue
        if name == "type" and isinstance(value, str):
            made[name] = value.lower()
        elif name == "properties" and isinstance(value, dict):
            # the names in it are the caller's own, and stay as they are
            made[name] = {
                key: json_schema(value[key], depth - 1) for key in _ordered(value, given.get("propertyOrdering"))
            }
        elif name == "items":
            made[name] = json_schema(value, depth - 1)
        elif name == "anyOf" and isinstance(value, list):
            made[name] = [json_schema(one, depth - 1) for one in value]
        elif name in _NUMBERS and isinstance(value, str) and value.isdigit():
            made[name] = int(value)
        elif name == "example":
            made["examples"] = [value]
        elif name != "format" or value != "enum":
            made[name] = value
    return _nullable(made) if given.get("nullable") is True else made


def _ordered(properties: dict[str, Any], order: Any) -> list[str]:
    """Returns the names of properties as they are to come: models keep to the order in which a schema has them."""
    first = [name for name in strings(order) if name in properties]
    return [*dict.fromkeys([*first, *properties])]


def _nullable(made: dict[str, Any]) -> dict[str, Any]:
    """Lets nothing be a value, too: in each word that says what the values are."""
    if isinstance(made.get("type"), str) and made["type"] != "null":
        made["type"] = [made["type"], "null"]
    if isinstance(made.get("enum"), list) and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
    if isinstance(made.get("anyOf"), list) and _NULL not in made["anyOf"]:
        made["anyOf"] = [*made["anyOf"], _NULL]
    return made
