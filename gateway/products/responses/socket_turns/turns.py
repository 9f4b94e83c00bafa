"""What a client says over a WebSocket of Responses: `response.create`, with the body of a POST and an envelope around it.

Events are edited as bytes: what is nested in them is looked at by whoever reads the body afterwards. Source: OpenAI's guide to
the WebSocket mode of Responses, and the types of its SDK (`responses_client_event.py`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.openai.json_edit.json_edit import Field, insert_field, remove_fields
from gateway.core.openai.json_edit.outline import Outline
from gateway.products.responses.rules.response_object.asked import MOST_ID_CHARS, items_of
from gateway.products.responses.rules.response_object.chain import said_again

CREATE: Final = "response.create"
STEER: Final = "response.steer"
MOST_LANE_CHARS: Final = 128
_ENVELOPE: Final = ("type", "stream_id", "generate", "background", "stream")
_SHORT_BYTES: Final = 4096


class TurnAsked(NamedTuple):
    """An event of the client's, as far as it is for the gateway."""

    kind: str
    lane: str | None
    """The `stream_id`: turns of one lane go one after the other; None: it names none."""
    previous_id: str
    """The response that it goes on from; empty: none."""
    generates: bool
    """False: the model is not to be asked, the input is to be known for the turns behind it."""
    stores: bool | None
    """What it says of `store`."""


class TurnBody(NamedTuple):
    """The request that a turn makes."""

    body: bytes
    items: bytes
    """All items of the conversation up to here, as JSON with commas between them."""


def read_turn(data: bytes, outline: Outline) -> TurnAsked:
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
    return TurnAsked(kind, lane, previous or "", generates, _flag(data, outline, "store"))


def lane_of(data: bytes, outline: Outline) -> str | None:
    """Returns the lane that an event names. Raises InvalidRequest."""
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
    said = orjson.dumps(said_again(response.get("output")))[1:-1]
    return b",".join([part for part in (items, said) if part])


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
