"""Passes over JSON text that is not parsed: a piece at a time, each pass in C, so that no body blocks the event loop.

What is found is exact for valid JSON. Text that is none is told where its tokens tell it (what stands outside strings is no
JSON, two strings meet), so that no parser can take for structure what was taken for text here. It must not know what the
fields of a request mean. Invariants: a piece costs a few milliseconds at most, whatever is in it; nothing is kept of it.
"""

from __future__ import annotations

import re
from itertools import accumulate, islice

from gateway.core.errors import BodyTooComplex

MAX_DEPTH = 128
"""The nesting depth. Parsers of providers stop at 128 (Go's protobuf) to 1,000 (Python's); real requests at 20."""
PLAIN_BYTES = 65_536
CROWDED_VALUES = 100_000
MOST_CONTAINERS, MOST_VALUES = 500_000, 2_000_000
"""What an answer may have that has to be parsed whatever that takes: the vectors of 250 texts are 768,000 numbers."""
PIECE_BYTES = 32_768
FIRST_PIECE_BYTES = 1_024
"""The first piece of a value, for most values are short."""

_SPACE = b" \t\r\n"
_NUMBER = b"0123456789+-.eE"
_OUTSIDE = _SPACE + _NUMBER + b'"{}[]:,truefalsn'
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"
_FOLD = bytes.maketrans(b"[]", b"{}")
_NO_BRACKET = bytes(set(range(256)).difference(b"{}[]"))
_RISE = [{0x7B: 1, 0x7D: -1}.get(byte, 0) for byte in range(256)]
_MARK = re.compile(rb'"[^"]*+"?|[{}\[\]]')
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
    """Returns whether valid JSON is nested deeper than MAX_DEPTH; for most bodies the number of brackets tells."""
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
                bare, in_string = self._bare(piece[:end])
                del heights[closing + 1 :]
            if max(heights) > MAX_DEPTH:
                raise too_deep()
            self._depth = heights[-1]
        tight = bare.translate(None, _SPACE)
        if b'""' in self._last + tight or tight.translate(None, _OUTSIDE):
            raise MalformedJson("what stands between its strings is no JSON")
        self._tally.count(tight, self._last)
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
        brackets = (mark for mark in _MARK.finditer(piece, start) if piece[mark.start()] != 0x22)
        return next(islice(brackets, number - 1, None)).end()


def too_deep() -> BodyTooComplex:
    """Returns the error for a body that is nested too deeply."""
    return BodyTooComplex(
        f"The request body is nested deeper than {MAX_DEPTH} levels, the most that is taken; send it flatter."
    )
