"""Cuts a stream of bytes into events for the readers that convert them, however long an event is.

What passes through as it is may be passed on in parts (`sse.EventCutter`); what is converted has to be whole. A response that
repeats long instructions, many tools or a picture is one event of megabytes.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.policy.openai import sse

MOST_EVENT_BYTES: Final = 16 * 1024 * 1024
"""The longest event that is waited for."""
TOO_LONG: Final = "malformed_response"
"""The code of the error that a longer one is."""

_LINE_END = re.compile(rb"\r\n?")


class EventReader:
    """Holds back what is no whole event yet. Events come without the blank line that ends them."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the events that are complete now. Raises EventTooLong."""
        if not self._pending and chunk.endswith(b"\n\n") and b"\r" not in chunk:
            return chunk[:-2].split(b"\n\n")  # the usual case
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
        return [event for event in _unified(block).split(b"\n\n") if event]

    def rest(self) -> bytes:
        """Returns the last event, where it lacks only its blank line; empty where it was cut, which is no event."""
        rest = _unified(bytes(self._pending)).strip(b"\n")
        self._pending.clear()
        return rest if rest and (sse.is_whole(rest) or sse.error_in(rest) is not None) else b""


class EventTooLong(Exception):
    """An event did not end within MOST_EVENT_BYTES."""


def data_of(event: bytes) -> bytes:
    """Returns what follows the first `data:` of an event: its data, if that is JSON; else it may be anything."""
    return event[6:] if event.startswith(b"data: ") else event.partition(b"\ndata: ")[2]


def _unified(block: bytes) -> bytes:
    return _LINE_END.sub(b"\n", block) if b"\r" in block else block
