"""JSON Schemas in the words that Gemini knows: what a reference leads to stands in its place, a constant is the one value.

Beside a `$ref` nothing else may stand there, nor may it lead elsewhere than into `$defs`; `const` and an `allOf` of one are not
known. What has another meaning without them, or no end, goes on as it is, and the provider says what it makes of it.
Source: google-genai, `GenerationConfig.response_json_schema`.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

import orjson

from gateway.dialects.base.base import Json

_ODD: Final = re.compile(rb'"(?:\$ref|const|allOf|\$schema)"')
_ONE: Final = ("additionalProperties", "contains", "else", "if", "items", "not", "then")
_SEVERAL: Final = ("anyOf", "oneOf", "allOf", "items", "prefixItems")
_NAMED: Final = ("properties", "patternProperties")
_DEFINITIONS: Final = ("$defs", "definitions")
_ANNOTATIONS: Final = frozenset(
    ("default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly", "$comment")
)
"""What may stand beside a reference without saying anything else of the values."""
_MOST_NODES: Final = 2_000
_MOST_DEPTH: Final = 100
_TYPES: Final = {str: "string", int: "integer", float: "number"}


class _TooLarge(Exception):
    """A schema without references would be too large, or without an end."""


def plain_schema(schema: Any) -> Any:
    """Returns a schema that says the same in other words; the same one where all of its words are known."""
    if not isinstance(schema, dict) or not has_odd_words(schema):
        return schema
    if "$schema" in schema:  # the name of the language, which some servers take for a word of it
        schema = {name: one for name, one in schema.items() if name != "$schema"}
    try:
        made = _Plain(schema).of(schema, 0, frozenset())
    except _TooLarge:
        return schema
    if b'"$ref"' not in orjson.dumps({name: one for name, one in made.items() if name not in _DEFINITIONS}):
        made = {name: one for name, one in made.items() if name not in _DEFINITIONS}
    return made


def has_odd_words(schemas: Any) -> bool:
    """Returns whether there may be words in schemas, or in what has some in it, that Gemini does not know."""
    try:
        return _ODD.search(orjson.dumps(schemas)) is not None
    except orjson.JSONEncodeError:  # nested too deeply to be looked at
        return False


class _Plain:
    """Puts one schema into plain words."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._nodes = 0

    def of(self, schema: Any, depth: int, inside: frozenset[str]) -> Any:
        """Returns a schema within the root; `inside` are the references that led to it. Raises _TooLarge."""
        if not isinstance(schema, dict):
            return schema
        self._nodes += 1
        if self._nodes > _MOST_NODES or depth > _MOST_DEPTH:
            raise _TooLarge
        ref = schema.get("$ref")
        if isinstance(ref, str):
            beside = {name: one for name, one in schema.items() if name != "$ref"}
            target = None if ref in inside else self._at(ref)
            if target is None or not _are_apart(beside, target):
                return schema
            return self.of({**target, **beside}, depth + 1, inside | {ref})
        whole = schema.get("allOf")
        if isinstance(whole, list) and len(whole) == 1 and isinstance(whole[0], dict):
            beside = {name: one for name, one in schema.items() if name != "allOf"}
            inner = self.of(whole[0], depth + 1, inside)
            if _are_apart(beside, inner):
                return self.of({**inner, **beside}, depth + 1, inside)
        return self._each(_without_constant(schema), depth, inside)

    def _each(self, schema: Json, depth: int, inside: frozenset[str]) -> Json:
        made = dict(schema)
        for name in _ONE:
            if isinstance(schema.get(name), dict):
                made[name] = self.of(schema[name], depth + 1, inside)
        for name in _SEVERAL:
            if isinstance(schema.get(name), list):
                made[name] = [self.of(one, depth + 1, inside) for one in schema[name]]
        for name in _NAMED:
            if isinstance(schema.get(name), dict):
                made[name] = {key: self.of(one, depth + 1, inside) for key, one in schema[name].items()}
        return made

    def _at(self, ref: str) -> Json | None:
        """Returns what a reference leads to (RFC 6901); None: it leads out of the schema, or to nothing."""
        if not ref.startswith("#/"):
            return None
        found: Any = self._root
        for step in unquote(ref[2:]).split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict):
                found = found.get(name)
            else:
                return None
        return found if isinstance(found, dict) else None


def _are_apart(beside: Json, target: Json) -> bool:
    """Returns whether two schemas that both hold are one with the words of both."""
    return all(name in _ANNOTATIONS or name in _DEFINITIONS or name not in target for name in beside)


def _without_constant(schema: Json) -> Json:
    """Returns the schema with a text or number that it is held to as the one value of a list, which says the same."""
    kind = _TYPES.get(type(schema.get("const")))
    if kind is None or "enum" in schema:
        return schema
    made = {name: one for name, one in schema.items() if name != "const"}
    return {"type": kind, **made, "enum": [schema["const"]]}
