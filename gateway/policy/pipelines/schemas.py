"""JSON Schemas of pipelines: whether one can be used, and whether a value fits it.

The package is an extra, and is imported when the first schema is read. Patterns run in time linear in the text, and nothing is
fetched: a `$ref` leads into the same schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from gateway.policy.pipelines.conditions import NEEDS_EXTRA

MOST_SCHEMA_BYTES: Final = 64 * 1024


def schema_problem(schema: object) -> str:
    """Returns what is wrong with a schema; empty: nothing is."""
    try:
        import_module("jsonschema_rs")
    except ImportError:
        return NEEDS_EXTRA
    if not isinstance(schema, dict):
        return "is no JSON Schema: a mapping is expected"
    remote = _remote_reference(schema)
    if remote is not None:
        return f"refers to {remote[:100]!r}: a $ref may lead into the same schema only, such as #/$defs/NAME"
    try:
        _validator(schema)
    except ValueError as error:
        return f"is no valid JSON Schema: {' '.join(str(error).split())[:200]}"
    return ""


def misfit_of(schema: Mapping[str, Any], value: object) -> tuple[str, str] | None:
    """Returns where a value does not fit a schema, as a path such as `document.title`, and why; None: it fits."""
    for error in _validator(schema).iter_errors(value):
        where, rule = [str(step) for step in error.instance_path], str(error.kind.name)
        if rule == "required":
            return ".".join([*where, str(error.kind.property)]), "is missing"
        return ".".join(where), f"does not fit the rule `{rule}` of the schema"
    return None


def with_defaults(schema: Mapping[str, Any] | None, value: Any) -> Any:
    """Returns an object with the defaults of the schema's properties in place of those that are missing."""
    properties = (schema or {}).get("properties")
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    defaults = {name: one["default"] for name, one in properties.items() if isinstance(one, dict) and "default" in one}
    return {**defaults, **value}


def _validator(schema: Mapping[str, Any]) -> Any:
    jsonschema: Any = import_module("jsonschema_rs")
    return jsonschema.validator_for(schema, pattern_options=jsonschema.RegexOptions(), offline=True)


def _remote_reference(value: object) -> str | None:
    if isinstance(value, dict):
        for name, one in value.items():
            if name in ("$ref", "$dynamicRef") and isinstance(one, str) and not one.startswith("#"):
                return one
            if (found := _remote_reference(one)) is not None:
                return found
    elif isinstance(value, list):
        for one in value:
            if (found := _remote_reference(one)) is not None:
                return found
    return None
