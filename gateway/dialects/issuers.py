"""A request as one provider takes it: its tools and ids fit the provider's bounds.

Works on the bytes that go there, so that it is the same for every caller's language, converted or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from gateway.core.openai.json_edit import insert_field, replace_field, value_end
from gateway.core.types import Edit
from gateway.dialects.anthropic.in_answer.ids import MOST_ID, shortened
from gateway.dialects.base import object_of

# What OpenAI and Azure refuse, although it means something: schemas of tools without `properties`, and long ids of calls.


OPENAIS_KINDS: Final = ("openai", "azure")
LANGUAGES: Final[Mapping[str, str]] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/responses/compact": "responses",
    "/responses/input_tokens": "responses",
}
"""The language of a request, by its path below the base URL."""
MOST_CALL_ID: Final = 64
"""The characters of a `call_id` that Responses take; chat completions take `MOST_ID`."""
_PARAMETERS: Final = b'"parameters'
_FITTING: Final = re.compile(
    rb'"parameters"\s*:\s*\{\s*(?:"(?!properties")[a-zA-Z$]+"\s*:\s*(?:"[^"\\]*"|\[(?:[^\[\]{}"]|"[^"\\]*")*\]|[a-z0-9]+)\s*,\s*)*"properties"\s*:\s*\{'
)
"""A schema whose `properties` stand behind nothing but plain values, as most do."""
_SCHEMA: Final = re.compile(rb'"parameters"\s*:\s*(?=\{)')
_ID: Final = re.compile(rb'"(?:tool_)?call_id"\s*:\s*("(?:[^"\\]|\\.){%d,}")' % MOST_ID)
_IDS: Final[Mapping[str, tuple[bytes, int]]] = {
    "chat": (b'"tool_call_id', MOST_ID),
    "responses": (b'"call_id', MOST_CALL_ID),
}
"""By the language, how the field begins with the id of a call that a result is of, and the most characters of an id."""


def fitted(body: bytes, language: str) -> bytes:
    """Returns a request in one of OpenAI's languages as OpenAI and Azure take it; the same object where it fits already.

    A tool whose schema is an object without `properties` gets empty ones (400 `object schema missing properties`), and an id of
    a call that is too long is shortened, the same way wherever it stands.
    """
    made, kept = [], 0
    for at in _places(body, _PARAMETERS):
        if at >= kept and (edit := _with_properties(body, at)) is not None:
            made += [body[kept : edit[0]], edit[2]]
            kept = edit[1]
    body = b"".join([*made, body[kept:]]) if made else body
    key, most = _IDS[language]
    for written in {found.group(1) for at in _places(body, key) if (found := _ID.match(body, at)) is not None}:
        id = _read(written)
        if isinstance(id, str) and len(id) > most:
            body = body.replace(written, orjson.dumps(shortened(id, most)))
    return body


def _places(body: bytes, key: bytes) -> Iterator[int]:
    """Yields where a key, or the like of it, is written."""
    at = body.find(key)
    while at >= 0:
        yield at
        at = body.find(key, at + len(key))


def _with_properties(body: bytes, at: int) -> Edit | None:
    """Returns the edit that a tool's schema needs; None: it has properties, or is no schema."""
    if _FITTING.match(body, at) is not None or (found := _SCHEMA.match(body, at)) is None:
        return None
    start = found.end()
    end = value_end(body, start)
    written = body[start:end]
    schema = object_of(_read(written))
    if schema.get("type") != "object" or isinstance(schema.get("properties"), dict):
        return None
    edit = replace_field if "properties" in schema else insert_field
    return start, end, edit(written, "properties", b"{}")


def _read(written: bytes) -> Any:
    """Returns what a piece of a body says; None where it cannot be read by itself."""
    try:
        return orjson.loads(written)
    except orjson.JSONDecodeError:
        return None
