"""JSON Schemas of pipelines: whether one can be used, and whether a value fits it. They are those of answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from gateway.features.output.schema.schema import MOST_BYTES, SchemaUnusable, compile_schema, is_installed
from gateway.products.pipelines.conditions import NEEDS_EXTRA
from gateway.products.pipelines.templates.templates.problems import Path

MOST_SCHEMA_BYTES: Final = MOST_BYTES
_NAMING: Final = ("$id", "$ref", "$dynamicRef", "$recursiveRef")
MOST_VISITS: Final = 500_000.0
"""Of values by the schema: some tens of milliseconds."""


def schema_problem(schema: object) -> str:
    """Returns what is wrong with a schema; empty: nothing is."""
    if not is_installed():
        return NEEDS_EXTRA
    if not isinstance(schema, dict):
        return "is no JSON Schema: a mapping is expected"
    try:
        compile_schema(orjson.dumps(schema))
    except SchemaUnusable as error:
        return f"cannot be used as a schema: {error}"
    return ""


def input_problem(schema: Mapping[str, Any]) -> tuple[Path, str] | None:
    """Returns what is wrong with the schema of an input, and where in it; None: nothing is.

    A schema of answers may be checked at any length by a process of its own. An input is checked where its caller waits, so
    that the work of that has to be known: where a reference leads, whatever `$id` is around it, it is not.
    """
    problem = schema_problem(schema)
    if problem:
        return (), problem
    if not compile_schema(orjson.dumps(schema)).is_heavy(b"{}", MOST_VISITS):
        return None
    inner = next((path for path, name, _ in _named(schema) if name == "$id" and len(path) > 1), None)
    if inner is not None:
        return inner, (
            "gives a part of the schema a place of its own, so that where a `$ref` leads is not known, and no input would be "
            "accepted: leave it out, and refer to the part as #/$defs/NAME"
        )
    outside = next((path for path, name, value in _named(schema) if name != "$id" and not value.startswith("#")), None)
    if outside is not None:
        return outside, (
            "leads out of the schema, so that no input would be accepted: put what it refers to into `$defs`, and refer to it "
            "as #/$defs/NAME"
        )
    return (), "is too much work to be checked, so that no input would be accepted: have fewer ways through it"


def _named(schema: object) -> Iterator[tuple[Path, str, str]]:
    """Yields the places of names and references in a schema, with which it is and what it says."""
    todo: list[tuple[Path, object]] = [((), schema)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, dict):
            for name, inner in value.items():
                todo.append(((*path, name), inner))
                if name in _NAMING and isinstance(inner, str):
                    yield (*path, name), name, inner
        elif isinstance(value, list):
            todo.extend(((*path, index), inner) for index, inner in enumerate(value))


def misfit_of(schema: Mapping[str, Any], value: object) -> tuple[str, str] | None:
    """Returns where a value does not fit a schema, as a path such as `document.title`, and why; None: it fits."""
    compiled = compile_schema(orjson.dumps(schema))
    try:
        is_heavy = compiled.is_heavy(orjson.dumps(value), MOST_VISITS)
    except orjson.JSONEncodeError:  # deeper than it writes
        is_heavy = True
    if is_heavy:
        return "", "is too large, or nested too deep, to be checked by this schema"
    if compiled.accepts(value):
        return None
    rule, pointer = compiled.first_error(value)
    where = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    if rule == "required" and not where and isinstance(value, dict):
        return next((name for name in schema.get("required", ()) if name not in value), ""), "is missing"
    return ".".join(where), f"does not fit the rule `{rule}` of the schema"


def with_defaults(schema: Mapping[str, Any] | None, value: Any) -> Any:
    """Returns an object with the defaults of the schema's properties in place of those that are missing."""
    properties = (schema or {}).get("properties")
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    defaults = {name: one["default"] for name, one in properties.items() if isinstance(one, dict) and "default" in one}
    return {**defaults, **value}
