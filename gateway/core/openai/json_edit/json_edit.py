"""Edits JSON bodies: changes one top-level field and leaves every other byte as the client sent it.

The body is known to be a valid JSON object (the edge parsed it). A key may be written with escapes (`"mod\\u0065l"`),
may occur again deeper down or inside a string; only the one at the top level counts, and it must be there once only,
because two parsers may disagree about which of two wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import orjson

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# Possessive, because one remembered way back per character of a long string would take 100 times its size.
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_COLON = re.compile(rb"\s*:\s*")
_COMMA = re.compile(rb"\s*,\s*")
_WHITE = b" \t\r\n"
_SCALAR_END = re.compile(rb"[,}\]\s]")
_ESCAPED_LETTER = re.compile(
    rb"\\u00[4-7]"
)  # encoders escape accents and controls, never the letters of a field's name
_LETTERS = re.compile(r"[A-Za-z_]+")
_NO_FIELDS = re.compile(rb"\s*}")
_MARK = b"\0"  # never in JSON, where it is escaped
_BRACES = bytes.maketrans(b"[]", b"{}")
_NO_STRUCTURE = bytes(set(range(256)).difference(b'"{}[]' + _MARK))


class Field(NamedTuple):
    """The place of a top-level field: `body[key:]` starts with its key, `body[start:end]` is its value."""

    key: int
    start: int
    end: int


def is_written_once(body: bytes, name: str) -> bool:
    """Returns whether the top-level field `name` (known to be there) is written only once, escaped spellings included."""
    key = _key_pattern(body, name)
    return _only_match(key, body) is not None or _key_depths(body, key).count(1) == 1


def find_fields(body: bytes, name: str) -> list[Field]:
    """Returns every place where the top-level object has a key that reads `name`."""
    key = _key_pattern(body, name)
    keys = [found.span() for found, depth in zip(key.finditer(body), _key_depths(body, key), strict=True) if depth == 1]
    return [Field(at, start, _value_end(body, start)) for at, start in keys]


def _key_pattern(body: bytes, name: str) -> re.Pattern[bytes]:
    """Returns the pattern of a key that reads `name`, at any depth, with its colon and the space up to its value.

    Its first quote is not the escaped one inside a longer key, and what ends in a quote and a colon is a key.
    """
    may_be_escaped = b"\\u00" in body and _ESCAPED_LETTER.search(body) is not None
    return _any_key(name) if may_be_escaped or not name.isidentifier() else _plain_key(name)


@lru_cache(maxsize=64)
def _plain_key(name: str) -> re.Pattern[bytes]:
    """Returns the pattern of a key that is written as it is: a search for one fixed text is several times as fast."""
    plain = name.encode()
    return re.compile(rb'"%s"(?<!\\"%s")\s*:\s*' % (plain, plain)) if _LETTERS.fullmatch(name) else _any_key(name)


@lru_cache(maxsize=64)
def _any_key(name: str) -> re.Pattern[bytes]:
    return re.compile(rb'"(?<!\\")%s"\s*:\s*' % b"".join(map(_spellings, name)))


def _only_match(key: re.Pattern[bytes], body: bytes) -> re.Match[bytes] | None:
    first = key.search(body)
    return first if first is not None and key.search(body, first.end()) is None else None


def _spellings(character: str) -> bytes:
    """Returns the pattern of all ways to write a character inside a JSON string: as it is, escaped, by number."""
    units = character.encode("utf-16-be")
    number = b"".join(rb"\\u(?i:%04x)" % int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2))
    return b"(?:%s|%s)" % (re.escape(orjson.dumps(character)[1:-1]), number)


def _key_depths(body: bytes, key: re.Pattern[bytes]) -> list[int]:
    """Returns the depth of each match of `key`, in their order; 1 is the top level.

    A walk over the tokens would block the loop for seconds when a body has millions, so whole passes in C take away what
    does not count: escapes, then all but brackets and quotes, then strings (every other piece between quotes).
    """
    bare = key.sub(_MARK, body).replace(rb"\\", b"").replace(rb"\"", b"").translate(_BRACES, _NO_STRUCTURE)
    brackets = b"".join(bare.replace(b'""', b"").split(b'"')[::2])
    pieces = brackets.split(_MARK)[:-1]
    rises = {piece: piece.count(b"{") - piece.count(b"}") for piece in set(pieces)}
    return list(accumulate(map(rises.__getitem__, pieces)))


def _value_end(body: bytes, start: int) -> int:
    """Returns the offset at which the value that starts at `start` ends."""
    if body[start] not in b'"{[':
        end = _SCALAR_END.search(body, start)
        return end.start() if end is not None else len(body)
    depth = 0
    for token in _TOKEN.finditer(body, start):
        mark = body[token.start()]
        depth += (mark in b"{[") - (mark in b"}]")
        if depth == 0:
            return token.end()
    return len(body)


def replace_field(body: bytes, name: str, value: bytes) -> bytes:
    """Returns the body with the value of the top-level field `name` (known to be there) replaced by the JSON text `value`."""
    field = _last_field(body, name)
    return body[: field.start] + value + body[field.end :]


def insert_field(body: bytes, name: str, value: bytes) -> bytes:
    """Returns the body with a top-level field added in front; it must not be there yet."""
    brace = body.index(b"{") + 1
    comma = b"" if _NO_FIELDS.match(body, brace) else b","
    return b'%s"%s":%s%s%s' % (body[:brace], name.encode(), value, comma, body[brace:])


def remove_fields(body: bytes, fields: Sequence[Field]) -> bytes:
    """Returns the body without these top-level fields, which stand in it in this order."""
    for field in reversed(fields):
        behind = _COMMA.match(body, field.end)
        if behind is not None:
            body = body[: field.key] + body[behind.end() :]
        else:  # the last one: the comma before it goes, if there is one
            before = body[: field.key].rstrip(_WHITE)
            body = before.removesuffix(b",") + body[field.end :]
    return body


def with_model(body: bytes, model: str) -> bytes:
    """Returns the body with another model name."""
    return replace_field(body, "model", orjson.dumps(model))


def with_include_usage(body: bytes, stream_options: object) -> bytes:
    """Returns the body asking for usage in its stream; `stream_options` is its parsed value, None when absent or null."""
    if isinstance(stream_options, dict):
        field = _last_field(body, "stream_options")
        edit = replace_field if "include_usage" in stream_options else insert_field
        options = edit(body[field.start : field.end], "include_usage", b"true")
        return body[: field.start] + options + body[field.end :]
    if (b"stream_options" in body or b"\\u00" in body) and find_fields(body, "stream_options"):
        return replace_field(body, "stream_options", b'{"include_usage":true}')
    return insert_field(body, "stream_options", b'{"include_usage":true}')


def _last_field(body: bytes, name: str) -> Field:
    """Returns the field of that name, the last one when it is repeated: that is the one which was parsed.

    A plain string search finds it when that is unambiguous, a look at the depths otherwise.
    """
    plain = b'"%s"' % name.encode()
    if body.count(plain) == 1 and not _ESCAPED_LETTER.search(body):
        key = body.index(plain)
        colon = _COLON.match(body, key + len(plain))
        if colon is not None and body[colon.end()] == 0x22:
            string = _TOKEN.match(body, colon.end())
            if string is not None:
                return Field(key, colon.end(), string.end())
    only = _only_match(_key_pattern(body, name), body)
    if only is not None:
        return Field(only.start(), only.end(), _value_end(body, only.end()))
    return find_fields(body, name)[-1]
