"""Both sides of a WebSocket of Responses: the events that the gateway sends, and the `response.create` of a client.

First what is sent: the events of a stream without their framing, one frame each, and errors as events. Then what a client
sends: an event with the body of a POST and an envelope around it. Events are edited as bytes: what is nested in them is looked
at by whoever reads the body afterwards. Source: OpenAI's guide to the WebSocket mode of Responses, and the types of its SDK
(`responses_client_event.py`, `responses_server_event.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.openai.json_edit import Field, Outline, insert_field, remove_fields
from gateway.core.openai.sse import DONE, error_in, event_data, json_object, last_event_end, split_events
from gateway.products.responses.rules import MOST_ID_CHARS, items_of, repeated

# --- frames to the client: the events of a stream without their framing, and errors as events ---

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
    """Takes the bytes of an event stream, in any cut, and gives its events.

    Events are not parsed but for those of the end and errors.
    """

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
    """Returns an error as an event; `number` is its place among the events of a stream.

    `headers` stand beside the error, where Codex reads them, and in it. Of whether to try again its clients read the status
    alone: where `x-should-retry` says no it is 400, and the true one is the error's.

    The errors of a WebSocket are nested, unlike those of a stream over HTTP.
    """
    fields = {"type": "invalid_request_error" if status is None or status < 500 else "server_error", **error}
    event: dict[str, Any] = {"type": "error"}
    is_final = headers is not None and headers.get("x-should-retry") == "false"
    if status is not None:
        event["status"] = 400 if is_final and status != 429 else status
    if number is not None:
        event["sequence_number"] = number
    if fields["type"] in (None, "error"):
        fields["type"] = "server_error"
    event["error"] = {name: fields.get(name) for name in ("type", "code", "message", "param")}
    if is_final and status is not None:
        event["error"]["status"] = status
    if headers:
        event["headers"] = event["error"]["headers"] = dict(headers)
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
            yield _parsed_frame(event, data)


def _parsed_frame(event: bytes, data: bytes) -> EventFrame:
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


CREATE: Final = "response.create"
STEER: Final = "response.steer"
MOST_LANE_CHARS: Final = 128
_ENVELOPE: Final = ("type", "stream_id", "generate", "background", "stream")
_SHORT_BYTES: Final = 4096


class TurnRequest(NamedTuple):
    """An event of the client's, as far as it is for the gateway."""

    kind: str
    lane: str | None
    """The `stream_id`: turns of one lane go one after the other; None: it names none."""
    previous_id: str
    """The response that it goes on from; empty: none."""
    generates: bool
    """False: the model is not to be asked, the input is to be known for the turns behind it."""
    stores: bool | None
    """The value of its `store`."""


class TurnBody(NamedTuple):
    """The request that a turn makes."""

    body: bytes
    items: bytes
    """All items of the conversation up to here, as JSON with commas between them."""


def read_turn(data: bytes, outline: Outline) -> TurnRequest:
    """Reads an event. Raises InvalidRequest, naming the field."""
    repeated = outline.repeated.intersection((*_ENVELOPE, "input", "previous_response_id", "store"))
    if repeated:
        name = min(repeated)
        raise InvalidRequest(
            f"The field '{name}' occurs more than once; send it once.", param=name, code="duplicate_field"
        )
    lane = lane_of(data, outline)
    kind = _short(data, outline, "type")
    if not isinstance(kind, str):
        raise InvalidRequest("An event needs a 'type', such as 'response.create'.", param="type", code="invalid_type")
    if kind not in (CREATE, STEER):
        raise InvalidRequest(
            f"There is no event '{kind[:64]}' here; send 'response.create'.", param="type", code="invalid_value"
        )
    if _flag(data, outline, "background"):
        raise InvalidRequest(
            "Responses in the background are none of a WebSocket's; POST them, or leave 'background' out.",
            param="background",
            code="background_not_allowed",
        )
    previous = _short(data, outline, "previous_response_id")
    if previous is not None and not (isinstance(previous, str) and len(previous) <= MOST_ID_CHARS):
        raise InvalidRequest(
            "The field 'previous_response_id' must be the id of a response.",
            param="previous_response_id",
            code="invalid_type",
        )
    generates = _flag(data, outline, "generate") is not False
    return TurnRequest(kind, lane, previous or "", generates, _flag(data, outline, "store"))


def lane_of(data: bytes, outline: Outline) -> str | None:
    lane = _short(data, outline, "stream_id")
    if lane is None or (isinstance(lane, str) and 0 < len(lane) <= MOST_LANE_CHARS and lane.isprintable()):
        return lane
    raise InvalidRequest(
        f"The field 'stream_id' must be a text of 1 to {MOST_LANE_CHARS} printable characters.",
        param="stream_id",
        code="invalid_value",
    )


def turn_body(data: bytes, outline: Outline, before: bytes | None) -> TurnBody:
    """Returns the body that a POST would have, and the items of the conversation.

    `before` is put in front of its input, in place of `previous_response_id`; None: that goes as it is. Raises InvalidRequest.
    """
    spans = dict(outline.spans)
    at = spans.get("input")
    own = _items(data[at.start : at.end]) if at is not None else b""
    items = b",".join([part for part in (before, own) if part])
    left_out = _ENVELOPE if before is None else (*_ENVELOPE, "previous_response_id")
    if before is not None and at is not None:
        grown = len(items) + 2 - (at.end - at.start)
        data = b"%b[%b]%b" % (data[: at.start], items, data[at.end :])
        spans = {name: _moved(span, at.start, grown) for name, span in spans.items()}
    body = remove_fields(data, sorted(spans[name] for name in left_out if name in spans))
    if before is not None and at is None:
        body = insert_field(body, "input", b"[%b]" % items)
    return TurnBody(insert_field(body, "stream", b"true"), items)


def with_output(items: bytes, response: dict[str, Any]) -> bytes:
    """Returns the items of a conversation behind those that a response has added."""
    output = orjson.dumps(repeated(response.get("output")))[1:-1]
    return b",".join([part for part in (items, output) if part])


def warm_response(id: str, now: float, model: str, previous_id: str) -> list[dict[str, Any]]:
    """Returns the events of a turn that only makes its input known: no model was asked, nothing was used."""
    response: dict[str, Any] = {
        "id": id,
        "object": "response",
        "created_at": int(now),
        "status": "in_progress",
        "model": model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": previous_id or None,
        "store": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    usage = {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }
    ended = {**response, "status": "completed", "usage": usage}
    return [
        {"type": "response.created", "sequence_number": 0, "response": response},
        {"type": "response.completed", "sequence_number": 1, "response": ended},
    ]


def _items(text: bytes) -> bytes:
    """Returns an `input` as items with commas between them. Raises InvalidRequest where it is none."""
    if text[:1] == b"[":
        return text[1:-1].strip()
    return orjson.dumps(items_of(_parsed(text)))[1:-1]


def _moved(span: Field, behind: int, by: int) -> Field:
    return Field(*(at + by if at > behind else at for at in span))


def _flag(data: bytes, outline: Outline, name: str) -> bool | None:
    value = _short(data, outline, name)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"The field '{name}' must be true or false.", param=name, code="invalid_type")
    return value


def _short(data: bytes, outline: Outline, name: str) -> Any:
    """Returns the value of a field that is short by nature; None: it is null, or not there."""
    span = outline.spans.get(name)
    if span is None:
        return None
    if span.end - span.start > _SHORT_BYTES:
        raise InvalidRequest(f"The field '{name}' is too long.", param=name, code="invalid_value")
    return _parsed(data[span.start : span.end])


def _parsed(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as fault:
        raise InvalidRequest(f"The event is not valid JSON: {fault}.", code="invalid_json") from None
