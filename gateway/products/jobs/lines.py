"""A line of a batch's input that has been checked, read again: by the batch, and by who redrives a line that is dead."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from gateway.core.openai.json_edit import find_fields

_NOT_CHECKED = "this is no line of a batch that was checked"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_BEFORE_BODY = re.compile(
    rb'\s*\{(?:\s*"(?!body")[^"\\]*+"\s*:\s*(?:%s|[^\s"{}\[\],]++)\s*,)*+\s*"body"\s*:\s*' % _STRING
)


class BatchLine(NamedTuple):
    """A checked line, to be run."""

    custom_id: str
    body: bytes
    """The body, as it was uploaded."""
    parsed: dict[str, Any]
    """The same, read."""


def read_line(text: bytes) -> BatchLine:
    """Returns the parts of a line that has been checked. Raises ValueError for one that is another than was checked."""
    return _body_at_end(text) or _anywhere(text)


def read_custom_id(text: bytes) -> str:
    """Returns the custom_id of a line that has been checked. Raises ValueError for one that is another than was checked."""
    return _custom_id(orjson.loads(text))


def _body_at_end(text: bytes) -> BatchLine | None:
    """Returns the parts where the body stands behind the other fields, which are plain, as in nearly all files; else None.

    What stands between its colon and the line's last brace is the body if it is JSON by itself.
    """
    before = _BEFORE_BODY.match(text)
    if before is None:
        return None
    body = text[before.end() : text.rindex(b"}")].rstrip()
    try:
        return BatchLine(_custom_id(orjson.loads(before[0] + b"0}")), body, _object(orjson.loads(body)))
    except ValueError:
        return None


def _anywhere(text: bytes) -> BatchLine:
    value = orjson.loads(text)
    places = find_fields(text, "body")
    if len(places) != 1:
        raise ValueError(_NOT_CHECKED)
    return BatchLine(_custom_id(value), text[places[0].start : places[0].end], _object(value["body"]))


def _custom_id(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get("custom_id"), str):
        return str(value["custom_id"])
    raise ValueError(_NOT_CHECKED)


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ValueError(_NOT_CHECKED)
