"""What a WebSocket of Responses says: the events of a stream without their framing, one frame each, and errors as events.

Events are not parsed but for those of the end and errors. Source: OpenAI's guide to the WebSocket mode of Responses, and the
types of its SDK (`responses_server_event.py`); its errors are nested there, unlike those of a stream over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.openai.sse.sse import DONE, error_in, event_data, json_object, last_event_end, split_events

MOST_EVENT_BYTES: Final = 16 * 1024 * 1024
MOST_RETURNED_BYTES: Final = 262_144
FINAL: Final = frozenset((b"response.completed", b"response.incomplete", b"response.failed", b"response.cancelled"))
KEPT: Final = frozenset((b"response.completed", b"response.incomplete"))
ERROR: Final = b"error"
_NAME: Final = b"event: "
_DATA: Final = b"data: "


class OverlongEvent(Exception):
    """An event has more than MOST_EVENT_BYTES."""


class EventFrame(NamedTuple):
    """An event of a response."""

    kind: bytes
    """Its type; empty: it has none that is known."""
    data: bytes
    """Its JSON."""


class EventFrames:
    """Takes the bytes of an event stream, in any cut, and gives its events."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[EventFrame]:
        """Yields the events that are complete now. Raises OverlongEvent."""
        pending = self._pending
        if not pending and chunk.endswith(b"\n\n"):
            return _frames(chunk)
        searched = max(0, len(pending) - 3)  # an end may be split over chunks
        pending += chunk
        cut = last_event_end(pending, searched)
        block = bytes(pending[:cut])
        del pending[:cut]
        if len(pending) > MOST_EVENT_BYTES:
            raise OverlongEvent
        return _frames(block)


def error_frame(
    error: Mapping[str, Any], *, status: int | None = None, headers: Mapping[str, str] | None = None, number: Any = None
) -> bytes:
    """Returns an error as an event; `number` is its place among the events of a stream."""
    told = {"type": "invalid_request_error" if status is None or status < 500 else "server_error", **error}
    event: dict[str, Any] = {"type": "error"}
    if status is not None:
        event["status"] = status
    if number is not None:
        event["sequence_number"] = number
    if told["type"] in (None, "error"):
        told["type"] = "server_error"
    event["error"] = {name: told.get(name) for name in ("type", "code", "message", "param")}
    if headers:
        event["error"]["headers"] = dict(headers)
    return orjson.dumps(event)


def steer_failed(data: bytes) -> bytes:
    """Returns the answer to a `response.steer`: what it brings is given back, if that is not much."""
    event = (json_object(data) if len(data) <= MOST_RETURNED_BYTES else None) or {}
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "Responses are not steered here; send the input with the next 'response.create'.",
    }
    steer = {"input": event.get("input"), "previous_response_id": event.get("previous_response_id")}
    return orjson.dumps({"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer})


def with_fields(data: bytes, fields: bytes) -> bytes:
    """Returns an event with these fields in front, which are JSON that ends in a comma."""
    return b"{%b%b" % (fields, data[1:]) if fields and data[:1] == b"{" else data


def _frames(block: bytes) -> Iterator[EventFrame]:
    for event in split_events(block):
        at = event.find(_DATA)
        is_line = at == 0 or event[at - 1 : at] == b"\n"
        is_plain = is_line and event.find(b"\n", at) == len(event) - 2  # one line of data, the last of its event
        data = event[at + 6 : -2] if is_plain else event_data(event)
        if not data or data == DONE:
            continue
        kind = event[7 : event.find(b"\n")].rstrip(b"\r") if event.startswith(_NAME) else b""
        if kind.startswith(b"response."):
            yield EventFrame(kind, data)
        else:
            yield _looked_at(event, data)


def _looked_at(event: bytes, data: bytes) -> EventFrame:
    """Returns an event that is an error, or whose name does not say what it is."""
    parsed = json_object(data)
    kind = b"" if parsed is None else str(parsed.get("type")).encode()
    if parsed is not None and kind.startswith(b"response."):
        return EventFrame(kind, data)
    error = error_in(event)
    if error is None:
        return EventFrame(kind, data)
    number = None if parsed is None else parsed.get("sequence_number")
    return EventFrame(ERROR, error_frame(error, number=number))
