"""JSON Schemas as providers take them that answer by one strictly.

Such a schema closes every object and knows few keywords; what else it says goes into the description, where the model may heed
it. Source: the transformation that Anthropic's SDK does (`lib/_parse/_transform.py`), which this follows; it is total, that one
raises.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from gateway.core.types import Gap, How
from gateway.dialects.base import MOST_NAMED, Json, ServerFacts, object_of, text_of

_FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)
_UNIONS: Final = ("anyOf", "oneOf", "allOf")
_MOST_DEPTH: Final = 64
"""Deeper schemas are taken for ones without an end."""


class Size(NamedTuple):
    """What a strict schema costs its provider, which compiles it."""

    optional: int
    """Properties that may be left out, at any depth."""
    unions: int
    """Properties with alternatives, or several types."""


class SchemaTooDeep(Exception):
    """A schema refers to itself, or is nested too deeply."""


def strict_schema(schema: Any) -> Any:
    """Returns the schema as a strict one; the same where it is one. Raises SchemaTooDeep."""
    made = _strict(schema, 0)
    if _refers_to_itself(made):
        raise SchemaTooDeep
    return made


def size_of(schema: Any) -> Size:
    """Returns what a strict schema costs."""
    optional = unions = 0
    for node in _nodes(schema, 0):
        needed = node.get("required")
        named = object_of(node.get("properties"))
        optional += len(named.keys() - set(filter(_is_text, needed if isinstance(needed, list) else ())))
        unions += sum(1 for one in named.values() if _is_union(one))
    return Size(optional, unions)


def described(form: Json) -> Any:
    """Returns the schema of a `json_schema` format with what the format says of it besides, which its model would read, too."""
    schema, description = form.get("schema"), form.get("description")
    if not isinstance(schema, dict) or not isinstance(description, str) or not description:
        return schema
    own = schema.get("description")
    return {**schema, "description": f"{description}\n\n{own}" if isinstance(own, str) and own else description}


JSON_IN_WORDS: Final = "Answer with one JSON object and nothing else."
SCHEMA_IN_WORDS: Final = "Answer with JSON and nothing else. It has to be valid against this JSON Schema:\n"
FORM_GAP: Final = "the model is made to call a tool, and has no form for its answer besides"
_WORDS_ONLY: Final = "it is told in words, at the end of the instructions"


class RequestedForm(NamedTuple):
    """How a request to a target demands an answer in a form; without any field it demands text."""

    schema: Json | None = None
    """The one that it holds to strictly."""
    instruction: str | None = None
    """What has to stand at the end of the instructions."""
    gaps: tuple[Gap, ...] = ()


def requested_form(
    response_format: object, facts: ServerFacts, *, has_description: bool, is_call_forced: bool
) -> RequestedForm:
    """Returns how a target that answers by strict schemas alone is asked for a form of chat completions.

    `has_description`: what the format says besides its schema goes into a field of its own; else it stands in the schema.
    `is_call_forced`: the model has to call a tool, so that a form that it does not have is left out.
    """
    kind = text_of(response_format.get("type")) if isinstance(response_format, dict) else "text"
    if kind == "text":
        return RequestedForm()
    if kind == "json_object":
        return RequestedForm(None, JSON_IN_WORDS, (Gap("response_format.json_object", How.APPROXIMATED, _WORDS_ONLY),))
    if kind != "json_schema":
        why = "the target has no such format"
        return RequestedForm(gaps=(Gap(f"response_format.{kind}"[:MOST_NAMED], How.REFUSED, why),))
    given = object_of(object_of(response_format).get("json_schema"))
    schema, in_words = given.get("schema") if has_description else described(given), JSON_IN_WORDS
    if isinstance(schema, dict):
        why, in_words = "the model answers by no schema", SCHEMA_IN_WORDS + orjson.dumps(schema).decode()
        if facts.model.json_schema:
            try:
                closed = strict_schema(schema)
            except SchemaTooDeep:
                why = "the schema refers to itself"
            else:
                gap = Gap("response_format.json_schema", How.APPROXIMATED, "what cannot be checked is told in words")
                return RequestedForm(closed, gaps=() if closed == schema else (gap,))
        if is_call_forced and facts.model.forced_tools:
            return RequestedForm(gaps=(Gap("response_format.json_schema", How.DROPPED, FORM_GAP),))
        if not facts.approximates:
            return RequestedForm(gaps=(Gap("response_format.json_schema", How.REFUSED, why),))
    return RequestedForm(None, in_words, (Gap("response_format.json_schema", How.APPROXIMATED, _WORDS_ONLY),))


def object_schema(parameters: Any) -> Json:
    """Returns the schema of a function's arguments; without one, a function has none."""
    if not isinstance(parameters, dict) or not parameters:
        return {"type": "object", "properties": {}}
    return parameters if "type" in parameters else {"type": "object", **parameters}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_union(node: Any) -> bool:
    return isinstance(node, dict) and ("anyOf" in node or isinstance(node.get("type"), list))


def _strict(schema: Any, depth: int) -> Any:
    if not isinstance(schema, dict):
        return schema
    if depth > _MOST_DEPTH:
        raise SchemaTooDeep
    left = dict(schema)
    made: Json = {}
    if isinstance(defs := left.pop("$defs", None), dict):
        made["$defs"] = {name: _strict(one, depth + 1) for name, one in defs.items()}
    if (ref := left.pop("$ref", None)) is not None:
        return made | {"$ref": ref}
    kinds = _take_kind(left, made, depth)
    for name in ("description", "title"):
        if (dropped := left.pop(name, None)) is not None:
            made[name] = dropped
    if "object" in kinds:
        _take_object(left, made, depth)
    if "array" in kinds:
        _take_array(left, made, depth)
    if "string" in kinds and text_of(left.get("format")) in _FORMATS:
        made["format"] = left.pop("format")
    if left:
        rest = "{" + ", ".join(f"{name}: {_as_text(value)}" for name, value in left.items()) + "}"
        made["description"] = f"{made['description']}\n\n{rest}" if made.get("description") else rest
    return made


def _take_kind(left: Json, made: Json, depth: int) -> list[Any]:
    """Moves what says of which kind a value is: its literals, alternatives or type. Returns its types."""
    kind = left.pop("type", None)
    literals = left.get("enum")
    if isinstance(literals, list) and literals and not any(isinstance(one, dict | list) for one in literals):
        made["enum"] = left.pop("enum")
    if "const" in left and not isinstance(left["const"], dict | list):
        made["const"] = left.pop("const")
    if made.keys() & {"enum", "const"}:
        kind = None
    has_variants = False
    for name in _UNIONS:
        if not has_variants and isinstance(left.get(name), list):
            made["allOf" if name == "allOf" else "anyOf"] = [_strict(one, depth + 1) for one in left.pop(name)]
            has_variants = True
    if kind is not None and not has_variants:
        made["type"] = kind
    return kind if isinstance(kind, list) else [kind]


def _take_object(left: Json, made: Json, depth: int) -> None:
    named = left.pop("properties", None)
    made["properties"] = {name: _strict(one, depth + 1) for name, one in object_of(named).items()}
    left.pop("additionalProperties", None)
    made["additionalProperties"] = False
    if (needed := left.pop("required", None)) is not None:
        made["required"] = needed


def _take_array(left: Json, made: Json, depth: int) -> None:
    if (items := left.pop("items", None)) is not None:
        made["items"] = _strict(items, depth + 1)
    if left.get("minItems") in (0, 1):
        made["minItems"] = left.pop("minItems")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def _refers_to_itself(schema: Any) -> bool:
    """Returns whether following the references of a schema has no end."""
    defs = object_of(object_of(schema).get("$defs"))
    reached = {name: _refs(one) & defs.keys() for name, one in defs.items()}
    if "#" in _all_refs(schema):
        return True
    for name in reached:
        seen, ahead = set[str](), set(reached[name])
        while ahead:
            if name in ahead:
                return True
            seen |= ahead
            ahead = {further for one in ahead for further in reached[one]} - seen
    return False


def _refs(schema: Any) -> set[str]:
    return {ref.removeprefix("#/$defs/") for ref in _all_refs(schema)}


def _all_refs(schema: Any) -> set[str]:
    return {ref for node in _nodes(schema, 0) if isinstance(ref := node.get("$ref"), str)}


def _nodes(schema: Any, depth: int) -> list[Json]:
    """Returns a strict schema and all schemas in it."""
    if not isinstance(schema, dict) or depth > _MOST_DEPTH:
        return []
    inner = [*object_of(schema.get("properties")).values(), *object_of(schema.get("$defs")).values()]
    inner.append(schema.get("items"))
    for name in ("anyOf", "allOf"):
        if isinstance(variants := schema.get(name), list):
            inner += variants
    return [schema, *(node for one in inner for node in _nodes(one, depth + 1))]
