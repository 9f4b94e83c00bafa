"""Names of fields as Google's APIs take them: `inlineData` as its JSON has them, or `inline_data` as its protocol buffers do.

Source: protobuf.dev, ProtoJSON: parsers take both.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.dialects.base.base import Json, object_of

_STEP: Final = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")


def camel(value: Any) -> Json:
    """Returns an object with all its names in camel case; an empty one where the value is none."""
    given = object_of(value)
    for name in given:
        if "_" in name:
            return {_STEP.sub(_raised, one): said for one, said in given.items()}
    return given


def inner(value: Json, name: str) -> Json:
    """Returns the object in a field of an object, both with their names in camel case."""
    return camel(value.get(name))


def listed(value: Any) -> list[Any]:
    """Returns a list as it is; one thing that stands where a list is wanted as the only one of it, and nothing as none."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _raised(found: re.Match[str]) -> str:
    return found.group(1).upper()
