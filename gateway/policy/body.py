"""Surgery on JSON bodies: change one top-level field and leave every other byte as the client sent it.

The body is known to be a valid JSON object (the edge parsed it). A key may be written with escapes (`"mod\\u0065l"`),
may occur again deeper down or inside a string; only the one at the top level counts, and it must be there once only,
because two parsers may disagree about which of two wins.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import orjson

# One token that matters for depth: a whole string, or a bracket. Everything else is skipped by the search itself.
# Possessive, because one remembered way back per character of a long string would take 100 times its size.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)
_COLON = re.compile(rb"\s*:\s*")
_SCALAR_END = re.compile(rb"[,}\]\s]")
_ESCAPED_LETTER = re.compile(
    rb"\\u00[4-7]"
)  # encoders escape accents and controls, never the letters of a field's name
_NO_FIELDS = re.compile(rb"\s*}")


class Field(NamedTuple):
    """Where a top-level field stands: `body[key:]` starts with its key, `body[start:end]` is its value."""

    key: int
    start: int
    end: int


def is_written_once(body: bytes, name: str) -> bool:
    """Whether the top-level field `name` (known to be there) is written only once, escaped spellings included."""
    plain = b'"%s"' % name.encode()
    if body.count(plain) == 1 and not _ESCAPED_LETTER.search(body):
        return True
    return _is_plain(body, plain) or len(find_fields(body, name)) == 1


def _is_plain(body: bytes, key: bytes) -> bool:
    """Whether the quoted `key`, known to be there, can only be the top-level one: no look at the tokens is needed."""
    return not _ESCAPED_LETTER.search(body) and len(re.findall(re.escape(key) + rb"\s*:", body)) == 1


def find_fields(body: bytes, name: str) -> list[Field]:
    """Every place where the top-level object has a key that reads `name`."""
    depth = 0
    found: list[Field] = []
    open_key: tuple[int, int] | None = None  # a wanted key whose value is a container or string still being passed
    for token in _TOKEN.finditer(body):
        mark = body[token.start()]
        if open_key is not None and open_key[1] == token.start() and mark == 0x22:  # its value is a string
            found.append(Field(*open_key, token.end()))
            open_key = None
        elif mark in b"{[":
            depth += 1
        elif mark in b"}]":
            depth -= 1
            if open_key is not None and depth == 1:
                found.append(Field(*open_key, token.end()))
                open_key = None
        elif depth == 1 and open_key is None:
            colon = _COLON.match(body, token.end())
            if colon is not None and orjson.loads(token.group()) == name:
                start = colon.end()
                if body[start] in b'"{[':
                    open_key = (token.start(), start)
                else:
                    found.append(Field(token.start(), start, _scalar_end(body, start)))
    return found


def replace_field(body: bytes, name: str, value: bytes) -> bytes:
    """The body with the value of the top-level field `name` (known to be there) replaced by the JSON text `value`."""
    field = _last_field(body, name)
    return body[: field.start] + value + body[field.end :]


def insert_field(body: bytes, name: str, value: bytes) -> bytes:
    """The body with a top-level field added in front; it must not be there yet."""
    brace = body.index(b"{") + 1
    comma = b"" if _NO_FIELDS.match(body, brace) else b","
    return b'%s"%s":%s%s%s' % (body[:brace], name.encode(), value, comma, body[brace:])


def with_model(body: bytes, model: str) -> bytes:
    """The body with another model name."""
    return replace_field(body, "model", orjson.dumps(model))


def with_include_usage(body: bytes, stream_options: object) -> bytes:
    """The body asking for usage in its stream; `stream_options` is its parsed value, None when absent or null."""
    if isinstance(stream_options, dict):
        field = _last_field(body, "stream_options")
        edit = replace_field if "include_usage" in stream_options else insert_field
        options = edit(body[field.start : field.end], "include_usage", b"true")
        return body[: field.start] + options + body[field.end :]
    if (b"stream_options" in body or b"\\u00" in body) and find_fields(body, "stream_options"):
        return replace_field(body, "stream_options", b'{"include_usage":true}')
    return insert_field(body, "stream_options", b'{"include_usage":true}')


def _last_field(body: bytes, name: str) -> Field:
    """The field of that name, the last one when it is repeated: that is the one which was parsed.

    A plain string search when that is unambiguous, a walk over the tokens otherwise.
    """
    plain = b'"%s"' % name.encode()
    if body.count(plain) == 1 and not _ESCAPED_LETTER.search(body):
        key = body.index(plain)
        colon = _COLON.match(body, key + len(plain))
        if colon is not None and body[colon.end()] == 0x22:
            string = _TOKEN.match(body, colon.end())
            if string is not None:
                return Field(key, colon.end(), string.end())
    return find_fields(body, name)[-1]


def _scalar_end(body: bytes, start: int) -> int:
    end = _SCALAR_END.search(body, start)
    return end.start() if end is not None else len(body)
