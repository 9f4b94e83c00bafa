"""The verdict on one text."""

from __future__ import annotations

import orjson

from gateway.features.output.rules.rules import Violation
from gateway.features.output.schema.schema import OutputSchema

NO_JSON = Violation("json", "")


def violation_of(schema: OutputSchema, text: bytes) -> Violation | None:
    """Returns where a model's text breaks the schema; None: nowhere. A code fence around JSON is no JSON.

    Takes as long as it takes: ask `schema.is_dear` first.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return NO_JSON
    return None if schema.accepts(value) else Violation(*schema.first_error(value))
