"""A response as the stream of named events that the Responses API makes of it.

Invariant: sequence numbers count up by one from 0 through a stream, and only `tail` carries the terminal event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.emulator.answers.reply import Stream, frame

_Event = tuple[str, dict[str, Any]]


def stream_of(pieces: Sequence[str], opened: dict[str, Any], closed: dict[str, Any], item: Mapping[str, Any]) -> Stream:
    """Returns the events of a response with one item: `opened` before there is any, `closed` at its end; a piece is a delta."""
    is_call = item["type"] == "function_call"
    lead, tail = _around_call(item) if is_call else _around_text(item)
    kind = "response.function_call_arguments.delta" if is_call else "response.output_text.delta"
    place = {"item_id": item["id"], "output_index": 0} | ({} if is_call else {"content_index": 0, "logprobs": []})
    empty: dict[str, Any] = {"arguments": ""} if is_call else {"content": []}
    lead = [
        ("response.created", {"response": opened}),
        ("response.in_progress", {"response": opened}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress", **empty}}),
        *lead,
    ]
    end = "response.completed" if closed["status"] == "completed" else "response.incomplete"
    tail = [*tail, ("response.output_item.done", {"output_index": 0, "item": item}), (end, {"response": closed})]
    return Stream(
        lead=_frames(lead, 0),
        frames=_deltas(kind, place, pieces, len(lead)),
        tail=_frames(tail, len(lead) + len(pieces)),
        tokens=len(pieces),
        error_frame=response_error,
    )


def response_error(error_body: bytes) -> bytes:
    """Returns an error event as seen on the wire: the error nested under its own key."""
    return b'event: error\ndata: {"type":"error","sequence_number":2,' + error_body[1:] + b"\n\n"


def _around_text(item: Mapping[str, Any]) -> tuple[list[_Event], list[_Event]]:
    """Returns the events before and behind the pieces of a message's text."""
    (part,) = item["content"]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    return (
        [("response.content_part.added", place | {"part": part | {"text": ""}})],
        [
            ("response.output_text.done", place | {"text": part["text"], "logprobs": []}),
            ("response.content_part.done", place | {"part": part}),
        ],
    )


def _around_call(item: Mapping[str, Any]) -> tuple[list[_Event], list[_Event]]:
    """Returns the events before and behind the pieces of a call's arguments."""
    place = {"item_id": item["id"], "output_index": 0}
    done = place | {"name": item["name"], "arguments": item["arguments"]}
    return [], [("response.function_call_arguments.done", done)]


def _frames(events: Sequence[_Event], first: int) -> bytes:
    return b"".join(
        frame({"type": name, "sequence_number": number} | fields, name)
        for number, (name, fields) in enumerate(events, first)
    )


def _deltas(kind: str, place: dict[str, Any], pieces: Sequence[str], first: int) -> Iterator[bytes]:
    opening = orjson.dumps({"type": kind} | place)[:-1]
    before = b"event: " + kind.encode() + b"\ndata: " + opening + b',"delta":'
    for number, piece in enumerate(pieces, first):
        yield before + orjson.dumps(piece) + b',"sequence_number":%d}\n\n' % number
