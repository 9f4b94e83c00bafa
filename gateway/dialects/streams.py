"""Cuts a stream of bytes into events for the readers that convert them, however long an event is.

What passes through as it is may be passed on in parts (`sse.EventCutter`); what is converted has to be whole. A response that
repeats long instructions, many tools or a picture is one event of megabytes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, Final

import orjson

from gateway.core.openai import sse
from gateway.core.openai.json_edit import is_overcrowded
from gateway.dialects.base import ConvertedRequest, Json, text_of
from gateway.dialects.shapes import chat_error

MOST_EVENT_BYTES: Final = 16 * 1024 * 1024
"""The longest event that is waited for."""
TOO_LONG: Final = "malformed_response"
"""The code of the error that a longer one is."""
UNCONVERTIBLE: Final[Json] = {"message": "an event of the provider's is nested too deeply", "code": TOO_LONG}
"""The error that ends a stream at an event with something in it that cannot be written again."""

_LINE_END = re.compile(rb"\r\n?")


class EventReader:
    """Holds back what is no whole event yet. Events come without the blank line that ends them."""

    __slots__ = ("_has_begun", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._has_begun = False
        """More than a byte order mark has come."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the events that are complete now. Raises EventTooLong, also where one has too many values to be read."""
        if not self._has_begun:
            chunk = self._begin(chunk)
        if not self._pending and chunk.endswith(b"\n\n") and b"\r" not in chunk:
            return chunk[:-2].split(b"\n\n")  # the usual case
        if not self._pending and chunk.endswith(b"\r\n\r\n") and chunk.find(b"\r") == len(chunk) - 4:
            return [chunk[:-4]] if chunk.find(b"\n") == len(chunk) - 3 else chunk[:-4].split(b"\n\n")  # Google's
        searched = max(0, len(self._pending) - 3)  # an end may be split over chunks
        self._pending += chunk
        cut = sse.last_event_end(self._pending, searched)
        if not cut:
            if len(self._pending) > MOST_EVENT_BYTES:
                self._pending.clear()
                raise EventTooLong
            return []
        block = bytes(self._pending[:cut])
        del self._pending[:cut]
        if is_overcrowded(block):
            raise EventTooLong
        return [event for event in _unified(block).split(b"\n\n") if event]

    def _begin(self, chunk: bytes) -> bytes:
        """Returns what has come so far without a byte order mark; nothing where that may be one which is not whole."""
        chunk = bytes(self._pending) + chunk
        self._has_begun = not sse.BYTE_ORDER_MARK.startswith(chunk)
        self._pending[:] = b"" if self._has_begun else chunk
        return chunk.removeprefix(sse.BYTE_ORDER_MARK) if self._has_begun else b""

    def rest(self) -> bytes:
        """Returns the last event, where it lacks only its blank line; empty where it was cut, which is no event."""
        rest = _unified(bytes(self._pending)).strip(b"\n")
        self._pending.clear()
        return rest if rest and (sse.is_whole(rest) or sse.error_in(rest) is not None) else b""


class EventTooLong(Exception):
    """An event did not end within MOST_EVENT_BYTES, or is too long to be parsed."""


class ConvertingReader(ABC):
    """What the readers have in common that convert event streams (see `base.Reader`).

    Whatever a provider sends, it ends with the caller's words for it, and never with a defect of ours.
    """

    def __init__(self) -> None:
        self._events = EventReader()
        self._is_over = False
        """The end was told, or an error: nothing follows."""
        self.reported: Any = None
        """As `base.Reader` has it."""

    @property
    def is_over(self) -> bool:
        return self._is_over

    def feed(self, chunk: bytes) -> bytes:
        if self._is_over:
            return b""
        try:
            events = self._events.feed(chunk)
        except EventTooLong:
            return self._fail({"message": "an event of the provider's is too long to be converted", "code": TOO_LONG})
        made = []
        for event in events:
            if not event:  # a stream may consist of blank lines
                continue
            try:
                made.append(self._read(event))
            except orjson.JSONEncodeError:
                made.append(self._fail_unconvertible())
        return made[0] if len(made) == 1 else b"".join(made)

    def close(self, *, is_clean: bool) -> bytes:
        made = b""
        try:
            if rest := self._events.rest():
                made = self._read(rest)
            return made + self._at_end(is_clean=is_clean)
        except orjson.JSONEncodeError:
            return made + self._fail_unconvertible()

    def _at_end(self, *, is_clean: bool) -> bytes:
        """Returns what follows the last event. Where a stream has an event as its end, nothing: one without it was cut."""
        return b""

    def _fail_unconvertible(self) -> bytes:
        """Ends the stream at an event that was not told, for what is in it cannot be written again."""
        return self._fail(UNCONVERTIBLE)

    @abstractmethod
    def _read(self, event: bytes) -> bytes:
        """Returns the events that this one becomes. Raises JSONEncodeError where it cannot be told."""

    @abstractmethod
    def _fail(self, error: Json) -> bytes:
        """Ends the stream with an error."""


def chat_failure(sent: ConvertedRequest, error: Json, *, has_begun: bool) -> bytes:
    """Returns the last event of a stream of chat completions that an error has ended.

    Before any output the error is not for the caller yet: whoever looks for another target reads all that the provider said.
    And so does the conversion that follows, where the caller speaks another language.
    """
    message = text_of(error.get("message")) or "the provider reported an error"
    is_last = has_begun and sent.via is None
    return b"data: %b\n\n" % sse.error_json(chat_error(error) if is_last else {**error, "message": message})


def data_of(event: bytes) -> bytes:
    """Returns what follows the first `data:` of an event: its data, if that is JSON; else it may be anything."""
    return event[6:] if event.startswith(b"data: ") else event.partition(b"\ndata: ")[2]


def _unified(block: bytes) -> bytes:
    return _LINE_END.sub(b"\n", block) if b"\r" in block else block
