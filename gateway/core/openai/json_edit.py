"""Edits JSON bodies, and reads large ones a piece at a time: every byte that is not changed stays as the client sent it.

First the edits of one top-level field, then passes over JSON text that is not parsed, then the outline of a large body. An
edited body is known to be a valid JSON object (the edge parsed it). A key may be written with escapes (`"mod\\u0065l"`),
may occur again deeper down or inside a string; only the one at the top level counts, and it must be there once only,
because two parsers may disagree about which of two wins.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.errors import BodyTooComplex

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
_KEY_MARK = b"\0"  # never in JSON, where it is escaped
_BRACES = bytes.maketrans(b"[]", b"{}")
_NO_STRUCTURE = bytes(set(range(256)).difference(b'"{}[]' + _KEY_MARK))


_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
"""A pair of surrogates; half of one, which is the group; any other escape."""
_REPLACED = b"\\ufffd"


def mended_json(text: bytes) -> Any:
    """Returns the value of a JSON text that the parser has refused, with U+FFFD for each half of a surrogate pair that stands
    alone; None where it is none all the same.

    JSON allows them (RFC 8259, 8.2), and models break off in the middle of an emoji.
    """
    if not has_lone_surrogate(text):
        return None
    try:
        return orjson.loads(_SURROGATE.sub(_without_half, text))
    except orjson.JSONDecodeError:
        return None


def has_lone_surrogate(text: bytes) -> bool:
    """Returns whether a JSON text has half of a surrogate pair in it."""
    if not (b"\\ud" in text or b"\\uD" in text):
        return False
    return any(found.group(1) for found in _SURROGATE.finditer(text))


def _without_half(escape: re.Match[bytes]) -> bytes:
    return _REPLACED if escape.group(1) else escape.group()


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
    return [Field(at, start, value_end(body, start)) for at, start in keys]


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
    bare = key.sub(_KEY_MARK, body).replace(rb"\\", b"").replace(rb"\"", b"").translate(_BRACES, _NO_STRUCTURE)
    brackets = b"".join(bare.replace(b'""', b"").split(b'"')[::2])
    # Nothing behind the last key changes the depth of one.
    pieces = brackets.split(_KEY_MARK)[:-1]
    # Most pieces are alike, so each kind is counted once.
    rises = {piece: piece.count(b"{") - piece.count(b"}") for piece in set(pieces)}
    return list(accumulate(map(rises.__getitem__, pieces)))


def value_end(body: bytes, start: int) -> int:
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
    # From the last one on, so that the places of those before it stay right.
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
    # It may be there as null, in any spelling; another one would make it repeated.
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
        return Field(only.start(), only.end(), value_end(body, only.end()))
    return find_fields(body, name)[-1]


# --- passes over JSON text that is not parsed: a piece at a time, each pass in C, so that no body blocks the loop ---
#
# What is found is exact for valid JSON. Text that is none is refused where its tokens show it (what stands outside strings is
# no JSON, two strings meet), so that no parser can take for structure what was taken for text here. It must not know what the
# fields of a request mean. Invariants: a piece costs a few milliseconds at most, whatever is in it; nothing is kept of it.


MAX_DEPTH = 128
"""The nesting depth. Parsers of providers stop at 128 (Go's protobuf) to 1,000 (Python's); real requests at 20."""
PLAIN_BYTES = 65_536
CROWDED_VALUES = 100_000
MOST_CONTAINERS, MOST_VALUES = 500_000, 2_000_000
"""The most that an answer may have that has to be parsed whatever that takes: the vectors of 250 texts are 768,000 numbers."""
PIECE_BYTES = 32_768
FIRST_PIECE_BYTES = 1_024
"""The first piece of a value, for most values are short."""

_WHITESPACE = b" \t\r\n"
_NUMBER = b"0123456789+-.eE"
_OUTSIDE = _WHITESPACE + _NUMBER + b'"{}[]:,truefalsn'
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"
_FOLD = bytes.maketrans(b"[]", b"{}")
_NO_BRACKET = bytes(set(range(256)).difference(b"{}[]"))
_RISE = [{0x7B: 1, 0x7D: -1}.get(byte, 0) for byte in range(256)]
_STRING_OR_BRACKET = re.compile(rb'"[^"]*+"?|[{}\[\]]')
_NUMBERS = re.compile(rb"(?:(?<=\[)|\A),++(?=\]|\Z)")
_ESCAPE = b"\0\0"  # as long as what it stands for, and nothing that may stand outside a string


class MalformedJson(ValueError):
    """The text is no JSON; the message completes the sentence `the body is not valid JSON:`."""


def is_crowded(text: bytes) -> bool:
    """Returns whether the text may take tens of milliseconds to parse, by its commas and brackets."""
    return len(text) > PLAIN_BYTES and text.count(b",") + text.count(b"{") + text.count(b"[") > CROWDED_VALUES


def is_overcrowded(text: bytes) -> bool:
    """Returns whether the text may take seconds to parse, in which nothing else runs in this process."""
    if len(text) <= MOST_CONTAINERS:
        return False
    return text.count(b"{") + text.count(b"[") > MOST_CONTAINERS or text.count(b",") > MOST_VALUES


def is_too_deep(body: bytes) -> bool:
    """Returns whether valid JSON is nested deeper than MAX_DEPTH; for most bodies the number of brackets decides."""
    bare = b"".join(without_escapes(body).split(b'"')[::2])
    return max(accumulate(map(_RISE.__getitem__, bare.translate(_FOLD, _NO_BRACKET))), default=0) > MAX_DEPTH


def without_escapes(text: bytes) -> bytes:
    """Returns JSON text in which every quote begins or ends a string, with every byte in its place."""
    return text.replace(rb"\\", _ESCAPE).replace(rb"\"", _ESCAPE) if b"\\" in text else text


def outside_strings(text: bytes) -> bytes:
    """Returns the JSON text outside its strings."""
    return b"".join(text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def piece_at(body: bytes, at: int, size: int) -> bytes:
    """Returns about `size` bytes of the body from `at`, without escapes, and none cut in two."""
    piece = body[at : at + size]
    if b"\\" not in piece:
        return piece
    backslashes = len(piece) - len(piece.rstrip(b"\\"))
    if backslashes % 2 and at + size < len(body):
        # The last backslash belongs to the character behind this piece.
        piece = piece[:-1]
    return without_escapes(piece)


class TokenCounter:
    """The counts of a body's values so far."""

    __slots__ = ("_counts_numbers", "_in_data", "_max_values", "data_bytes", "data_strings", "values")

    def __init__(self, max_values: int, *, counts_numbers: bool) -> None:
        """`counts_numbers` is False where lists of token numbers are usual: these count as their list alone."""
        self._max_values = max_values
        self._counts_numbers = counts_numbers
        self._in_data = False
        self.values = 0
        self.data_bytes = 0
        """The bytes of strings that look like Base64 and are longer than two pieces: pictures, sound, files."""
        self.data_strings = 0

    def add(self, values: int) -> None:
        """Adds to the count. Raises BodyTooComplex when there are more values than the body may have."""
        self.values += values
        if self.values > self._max_values:
            raise BodyTooComplex(
                f"The request body has more than {self._max_values:,} JSON values; send less at a time, or raise "
                "server.max_json_values."
            )

    def count(self, tight: bytes, last: bytes) -> None:
        """Counts the values of a text without strings and white space; `last` is the character before it."""
        openings = tight.count(b"{") + tight.count(b"[")
        commas = tight.count(b",")
        joined = last + tight
        if not self._counts_numbers and commas:
            bare = tight.translate(None, _NUMBER)
            commas -= len(bare) - len(_NUMBERS.sub(b"", bare))
        self.add(commas + openings - joined.count(b"{}") - joined.count(b"[]"))

    def inside_string(self, piece: bytes) -> None:
        """Counts a piece of a string, without a quote in it."""
        is_data = len(piece) > PIECE_BYTES // 2 and not piece.replace(rb"\/", b"").translate(None, _BASE64)
        if is_data:
            self.data_bytes += len(piece)
            self.data_strings += not self._in_data
        self._in_data = is_data


class Container:
    """An object or a list, from its opening bracket to its closing one, a piece at a time."""

    __slots__ = ("_above", "_depth", "_in_string", "_last", "_tally")

    def __init__(self, tally: TokenCounter, depth: int) -> None:
        """`depth` is that of the value around it."""
        self._tally = tally
        self._above = self._depth = depth
        self._in_string = False
        self._last = b""

    def feed(self, piece: bytes) -> int | None:
        """Returns the offset in the piece behind the closing bracket; None: it comes later.

        Raises MalformedJson or BodyTooComplex.
        """
        if self._in_string and b'"' not in piece:
            self._tally.inside_string(piece)
            return None
        bare, in_string = self._bare(piece)
        brackets = bare.translate(_FOLD, _NO_BRACKET)
        end = None
        if brackets:
            heights = list(accumulate(map(_RISE.__getitem__, brackets), initial=self._depth))
            if min(heights[1:]) <= self._above:
                closing = heights.index(self._above, 1)
                end = self._bracket(piece, closing)
                # Behind the bracket another value begins, which must not be checked or counted as a part of this one.
                bare, in_string = self._bare(piece[:end])
                del heights[closing + 1 :]
            if max(heights) > MAX_DEPTH:
                raise too_deep()
            self._depth = heights[-1]
        tight = bare.translate(None, _WHITESPACE)
        if b'""' in self._last + tight or tight.translate(None, _OUTSIDE):
            raise MalformedJson("what stands between its strings is no JSON")
        self._tally.count(tight, self._last)
        # A piece may lie within a string or in white space: then the character before it still counts.
        self._last = tight[-1:] or self._last
        self._in_string = in_string
        return end

    def _bare(self, piece: bytes) -> tuple[bytes, bool]:
        """Returns the text outside strings, with a quote for each string that begins, and whether it ends in a string."""
        parts = piece.split(b'"')
        in_string = self._in_string ^ (len(parts) % 2 == 0)
        bare = b'"'.join(parts[self._in_string :: 2])
        return (bare + b'"' if in_string else bare), in_string

    def _bracket(self, piece: bytes, number: int) -> int:
        """Returns the end of the bracket with this number, from 1; brackets in strings do not count."""
        start = piece.index(b'"') + 1 if self._in_string else 0
        brackets = (mark for mark in _STRING_OR_BRACKET.finditer(piece, start) if piece[mark.start()] != 0x22)
        return next(islice(brackets, number - 1, None)).end()


def too_deep() -> BodyTooComplex:
    """Returns the error for a body that is nested too deeply."""
    return BodyTooComplex(
        f"The request body is nested deeper than {MAX_DEPTH} levels, the most that is taken; send it flatter."
    )


# --- the outline of a large body: its top level, found a piece at a time without parsing the values in it ---


Steps = Generator[None, None, int]
MAX_FIELDS = 4_096
"""The most fields at the top level of a large body; requests have a few dozen."""
MAX_VALUE_BYTES = 32_768
"""A longer value is not read, whatever its field."""
_BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of")
_ABILITIES = ("tools", "functions", "response_format", "text")
_REPEATS = ("temperature", "seed", "conversation", "background")
_KEPT = ("store", "previous_response_id")
READ = frozenset(("model", "stream", "stream_options", *_BOUNDS, *_ABILITIES, *_REPEATS, *_KEPT))
"""The fields that decide about a call. They are parsed where they are short."""

_MAX_KEY_BYTES = 1_024  # of what is longer none is ours, however it is spelled
_FIELDS_A_STEP = 32
_HASHED_BYTES = 262_144
_WHITESPACE_RUN = re.compile(rb"[ \t\r\n]*+")
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

    The caller drives the generator and lets others run between its steps. Of fields that the gateway reads itself short
    values are parsed; all others are `UNREAD`. Of a body that is only read in outline is not known: whether what is nested
    in it is JSON to the last byte (its strings, brackets and top level are), and how its messages divide into tokens.
    Invariants: the top level is read as strictly as a parser would; each step takes a few milliseconds at most, whatever
    the body is. Raises MalformedJson, or BodyTooComplex.
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
            # A word may lie across two pieces.
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
            found = _WHITESPACE_RUN.match(self.body, at, at + PIECE_BYTES)
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
        # Parsed for the refusal alone: the pattern also matches what is no number and no literal.
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
