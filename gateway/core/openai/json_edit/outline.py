"""The outline of a large JSON body: its top level, found a piece at a time without parsing the values in it.

The caller drives the generator and lets others run between its steps. Of fields that the gateway reads itself
short values are parsed; all others are `UNREAD`. Of a body that is only read in outline is not known: whether what is nested
in it is JSON to the last byte (its strings, brackets and top level are), and how its messages divide into tokens. Invariants:
the top level is read as strictly as a parser would; each step takes a few milliseconds at most, whatever the body is.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.errors import BodyTooComplex
from gateway.core.openai.json_edit.json_edit import Field
from gateway.core.openai.json_edit.json_text import (
    FIRST_PIECE_BYTES,
    PIECE_BYTES,
    Container,
    MalformedJson,
    TokenCounter,
    piece_at,
)

Steps = Generator[None, None, int]
MAX_FIELDS = 4_096
"""The most fields at the top level of a large body; requests have a few dozen."""
MAX_VALUE_BYTES = 32_768
"""A longer value is not read, whatever its field."""
_BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n")
_ABILITIES = ("tools", "functions", "response_format", "text")
_REPEATS = ("temperature", "seed", "conversation", "background")
_KEPT = ("store", "previous_response_id")
READ = frozenset(("model", "stream", "stream_options", *_BOUNDS, *_ABILITIES, *_REPEATS, *_KEPT))
"""The fields that decide about a call. They are parsed where they are short."""

_MAX_KEY_BYTES = 1_024  # of what is longer none is ours, however it is spelled
_FIELDS_A_STEP = 32
_HASHED_BYTES = 262_144
_SPACE = re.compile(rb"[ \t\r\n]*+")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]++")
_PICTURES = re.compile(rb'"(?:image_url|input_image|image|computer_screenshot|document)"')
_WORD_BYTES = 32


class _Unread:
    """The mark of a value that is there, and was not read."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNREAD"


UNREAD: Final = _Unread()


@dataclass(slots=True)
class Outline:
    """The top level of a body; of a repeated field the last one counts, as in parsers."""

    fields: dict[str, Any]
    spans: dict[str, Field]
    repeated: set[str]
    tally: TokenCounter


class Contents(NamedTuple):
    """The findings in a body that is not parsed."""

    digest: bytes
    """The SHA-256 of the whole body."""
    may_show_images: bool
    """Some string in it is one of the words for a picture."""


def read_outline(body: bytes, max_values: int, *, counts_numbers: bool = True) -> Generator[None, None, Outline]:
    """Reads the top level of the body in steps; the generator returns the outline.

    Raises MalformedJson, or BodyTooComplex.
    """
    reader = _OutlineReader(body, TokenCounter(max_values, counts_numbers=counts_numbers))
    outline = Outline({}, {}, set(), reader.tally)
    at = yield from reader.space(0)
    if body[at : at + 1] != b"{":
        raise MalformedJson("it does not begin with {")
    at = yield from reader.space(at + 1)
    if body[at : at + 1] != b"}":
        at = yield from _read_fields(reader, outline, at)
    at = yield from reader.space(at + 1)
    if at < len(body):
        raise MalformedJson(f"something follows its end, at byte {at}")
    for name in READ.intersection(outline.spans):
        span = outline.spans[name]
        if span.end - span.start <= MAX_VALUE_BYTES:
            outline.fields[name] = _parsed(body, span)
            yield
    return outline


def read_contents(body: bytes) -> Generator[None, None, Contents]:
    """Reads all bytes once, and returns the findings. Raises MalformedJson for a body that is not UTF-8."""
    whole = sha256()
    decoder = codecs.getincrementaldecoder("utf-8")()
    may_show_images = False
    for start in range(0, len(body), _HASHED_BYTES):
        piece = body[start : start + _HASHED_BYTES]
        whole.update(piece)
        try:
            decoder.decode(piece, final=start + len(piece) == len(body))
        except UnicodeDecodeError:
            raise MalformedJson("it is not valid UTF-8") from None
        if not may_show_images:
            seen = body[start - _WORD_BYTES : start] + piece if start else piece
            may_show_images = (b"image" in seen or b"screenshot" in seen or b"document" in seen) and _PICTURES.search(
                seen
            ) is not None
        yield
    return Contents(whole.digest(), may_show_images)


def _read_fields(reader: _OutlineReader, outline: Outline, at: int) -> Steps:
    """Reads the fields, from the first key; returns the offset of the closing bracket."""
    body, count = reader.body, 0
    while True:
        key_at = at
        at = yield from reader.string(at)
        name = _name(body, key_at, at)
        at = yield from reader.space(at)
        if body[at : at + 1] != b":":
            raise MalformedJson(f"a colon is missing at byte {at}")
        start = yield from reader.space(at + 1)
        at = yield from reader.value(start)
        if name is not None:
            if name in outline.spans:
                outline.repeated.add(name)
            outline.fields[name] = UNREAD
            outline.spans[name] = Field(key_at, start, at)
        at = yield from reader.space(at)
        mark = body[at : at + 1]
        if mark == b"}":
            return at
        if mark != b",":
            raise MalformedJson(f"a comma or the end is missing at byte {at}")
        at = yield from reader.space(at + 1)
        count += 1
        if count == MAX_FIELDS:
            raise BodyTooComplex(
                f"The request body has more than {MAX_FIELDS:,} fields at its top level, the most that is taken of one "
                "of this size; send fewer."
            )
        if not count % _FIELDS_A_STEP:
            yield


class _OutlineReader:
    """Finds the ends of values."""

    __slots__ = ("body", "tally")

    def __init__(self, body: bytes, tally: TokenCounter) -> None:
        self.body = body
        self.tally = tally

    def space(self, at: int) -> Steps:
        """Returns the end of the white space that may begin at `at`."""
        while True:
            found = _SPACE.match(self.body, at, at + PIECE_BYTES)
            end = at if found is None else found.end()
            if end < at + PIECE_BYTES:
                return end
            at = end
            yield

    def value(self, at: int) -> Steps:
        """Returns the end of the value that begins at `at`."""
        self.tally.add(1)
        mark = self.body[at : at + 1]
        if mark == b'"':
            return (yield from self.string(at))
        if mark in (b"{", b"["):
            return (yield from self._container(at))
        end = at
        while True:
            found = _SCALAR.match(self.body, end, end + PIECE_BYTES)
            if found is None:
                break
            end = found.end()
            yield
        if end == at:
            raise MalformedJson(f"a value is missing at byte {at}")
        if end - at <= MAX_VALUE_BYTES:
            _parsed(self.body, Field(at, at, end))
        return end

    def string(self, at: int) -> Steps:
        """Returns the end of the string whose first quote is at `at`."""
        if self.body[at : at + 1] != b'"':
            raise MalformedJson(f"a string is missing at byte {at}")
        at, size = at + 1, FIRST_PIECE_BYTES
        while at < len(self.body):
            piece = piece_at(self.body, at, size)
            end = piece.find(b'"')
            if end >= 0:
                return at + end + 1
            self.tally.inside_string(piece)
            at += len(piece)
            size = min(2 * size, PIECE_BYTES)
            yield
        raise MalformedJson("a string does not end")

    def _container(self, at: int) -> Steps:
        container, size = Container(self.tally, 1), FIRST_PIECE_BYTES
        while at < len(self.body):
            piece = piece_at(self.body, at, size)
            end = container.feed(piece)
            if end is not None:
                return at + end
            at += len(piece)
            size = min(2 * size, PIECE_BYTES)
            yield
        raise MalformedJson("an object or a list does not end")


def _name(body: bytes, start: int, end: int) -> str | None:
    """Returns the name that a key reads; None for one that is too long for any field of the gateway."""
    if end - start > _MAX_KEY_BYTES:
        return None
    name = _parsed(body, Field(start, start, end))
    return name if isinstance(name, str) else None


def _parsed(body: bytes, span: Field) -> object:
    try:
        return orjson.loads(body[span.start : span.end])
    except orjson.JSONDecodeError as exc:
        raise MalformedJson(f"{exc.msg.partition(':')[0]}, at byte {span.start}") from None
