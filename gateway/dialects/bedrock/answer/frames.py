"""The frames of an event stream of AWS's, which is no text: each has its length, headers, payload and two checksums.

    total u32 | headers u32 | crc32 of those 8 bytes | headers | payload | crc32 of all before

All numbers are big-endian. A header is a name (u8 length), a type, and a value; those that matter here are strings (type 7, u16
length). Source: `application/vnd.amazon.eventstream`, Smithy's specification "Amazon Event Stream".
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple, cast

from gateway.core.openai.json_edit.json_text import is_overcrowded

MOST_FRAME_BYTES: Final = 16 * 1024 * 1024
"""The longest frame that is waited for."""
_PRELUDE_BYTES: Final = 12
_LEAST_BYTES: Final = _PRELUDE_BYTES + 4
_unpack: Final = Struct(">III").unpack_from
_FIXED_SIZES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""The bytes of a header's value, by its type, where these do not vary."""
_BYTES, _STRING = 6, 7
_MOST_KNOWN: Final = 64


class Frame(NamedTuple):
    """One frame, whose checksums are right."""

    event: str | None
    """The event's name; None: the frame is no event but an error."""
    headers: Mapping[str, str]
    """Those that are strings."""
    payload: bytes


_FRAME: Final = cast("Callable[[tuple[Any, ...]], Frame]", partial(tuple.__new__, Frame))
"""Makes one in a third of the time: there are as many as words."""


class BadFrame(Exception):
    """The bytes are no frames; what follows cannot be read."""


class FrameReader:
    """Holds back what is no whole frame yet."""

    __slots__ = ("_known", "_pending", "_wanted", "fault")

    def __init__(self) -> None:
        self.fault: str | None = None
        """Why nothing more can be read, once it is so: what follows is not read."""
        self._pending = bytearray()
        self._wanted = _PRELUDE_BYTES
        """The bytes that have to be there before anything more can be said."""
        self._known: dict[bytes, tuple[str | None, Mapping[str, str]]] = {}
        """Headers by their bytes, and the event that they name: a stream repeats a few."""

    @property
    def is_between(self) -> bool:
        """Returns whether nothing is held back: the stream could end here."""
        return not self._pending

    def feed(self, chunk: bytes) -> list[Frame]:
        """Returns the frames that are complete now, up to what is none (see `fault`)."""
        frames: list[Frame] = []
        if self.fault is None:
            try:
                self._read(chunk, frames)
            except BadFrame as error:
                self.fault = str(error)
                self._pending.clear()
        return frames

    def _read(self, chunk: bytes, frames: list[Frame]) -> None:
        if self._pending:
            self._pending += chunk
            if len(self._pending) < self._wanted:
                return
            chunk = bytes(self._pending)
            self._pending.clear()
            if is_overcrowded(chunk):
                raise BadFrame("a frame has too many values")
        start, there = 0, len(chunk)
        while there - start >= _PRELUDE_BYTES:
            total, size, told = _unpack(chunk, start)
            if crc32(chunk[start : start + 8]) != told:
                raise BadFrame("the checksum of a frame's lengths is wrong")
            if total > MOST_FRAME_BYTES:
                raise BadFrame(f"a frame is longer than {MOST_FRAME_BYTES} bytes")
            if size + _LEAST_BYTES > total:
                raise BadFrame("the headers of a frame are longer than the frame")
            end = start + total
            if end > there:
                self._wanted = total
                self._pending += chunk[start:]
                return
            at = end - 4
            if crc32(chunk[start:at]) != int.from_bytes(chunk[at:end], "big"):
                raise BadFrame("the checksum of a frame is wrong")
            payload = start + _PRELUDE_BYTES + size
            head = chunk[start + _PRELUDE_BYTES : payload]
            event, headers = self._known.get(head) or self._learn(head)
            frames.append(_FRAME((event, headers, chunk[payload:at])))
            start = end
        self._wanted = _PRELUDE_BYTES
        if start < there:
            self._pending += chunk[start:]

    def _learn(self, head: bytes) -> tuple[str | None, Mapping[str, str]]:
        headers = headers_in(head)
        found = headers.get(":event-type") if headers.get(":message-type") == "event" else None, headers
        if len(self._known) < _MOST_KNOWN:
            self._known[head] = found
        return found


def headers_in(head: bytes) -> Mapping[str, str]:
    """Returns the headers that are strings. Raises BadFrame where the bytes are no headers."""
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(head):
            end = at + 1 + head[at]
            name, kind = head[at + 1 : end].decode(), head[end]
            at = end + 1
            if kind in (_BYTES, _STRING):
                size = int.from_bytes(head[at : at + 2], "big")
                at += 2
            else:
                size = _FIXED_SIZES[kind]
            if at + size > len(head):
                raise BadFrame("a header of a frame is longer than its headers")
            if kind == _STRING:
                found[name] = head[at : at + size].decode()
            at += size
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise BadFrame("the headers of a frame cannot be read") from error
    return found
