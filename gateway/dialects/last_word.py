"""The last word of an event stream, which tells a client that all is there, in each of the languages that clients read."""

from __future__ import annotations

import re
from itertools import product
from typing import Final

_ENDS: Final = (b"response.completed", b"response.incomplete", b"response.failed", b"message_stop")
_LINES: Final = (
    *(b"data:" + blank + b"[DONE]" for blank in (b" ", b"")),
    *(b"event:" + blank + end for blank, end in product((b" ", b""), _ENDS)),
)
"""The beginnings of lines that are last words."""
_VALUES: Final = tuple(b'"' + end + b'"' for end in _ENDS)
"""The last words as values of JSON, for providers that name no events; where text says it, its quotes are escaped."""
_LONGEST: Final = max(map(len, _LINES + _VALUES))
_AT_START: Final = re.compile(b"|".join(map(re.escape, _LINES)))
_WITHIN: Final = re.compile(rb"[\r\n](?:" + _AT_START.pattern + b")|" + b"|".join(map(re.escape, _VALUES)))


def is_last_word(chunk: bytes) -> bool:
    """Returns whether one of these events tells the client that the stream is complete."""
    return _AT_START.match(chunk) is not None or _WITHIN.search(chunk) is not None


class LastWord:
    """Holds back the end of an event stream, from the piece with its last word on, and what may be the beginning of that.

    Invariant: what `feed` has returned and what is held are, put together, exactly what was fed.

    The last word may come in several pieces.
    """

    __slots__ = ("_begins_line", "_held", "is_seen")

    def __init__(self) -> None:
        self._held = bytearray()
        self._begins_line = True
        """What is held, or the next piece, is at the beginning of a line."""
        self.is_seen = False

    @property
    def held(self) -> bytes:
        """Returns what is to be passed on once all is kept."""
        return bytes(self._held)

    def feed(self, chunk: bytes) -> bytes:
        """Returns what may be passed on now; empty when there is none."""
        if self.is_seen:
            self._held += chunk
            return b""
        if self._held:
            chunk = bytes(self._held) + chunk
            self._held.clear()
        begins_line = self._begins_line
        if (begins_line and _AT_START.match(chunk)) or _WITHIN.search(chunk):
            self.is_seen = True
            self._held += chunk
            return b""
        begun = 0 if chunk.endswith(b"\n") else _begun(chunk, begins_line=begins_line)
        if begun:
            self._held += chunk[-begun:]
            chunk = chunk[:-begun]
        if chunk:
            self._begins_line = chunk.endswith((b"\n", b"\r"))
        return chunk


def _begun(chunk: bytes, *, begins_line: bool) -> int:
    """Returns how many bytes at the end may be the beginning of a last word."""
    for length in range(min(_LONGEST, len(chunk)), 0, -1):
        end = chunk[-length:]
        before = chunk[-length - 1 : -length]
        words = _LINES + _VALUES if before in (b"\n", b"\r") or (not before and begins_line) else _VALUES
        if any(word.startswith(end) for word in words):
            return length
    return 0
