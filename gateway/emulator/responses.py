"""Bodies and events of the Responses API.

It must not know limits, faults or time. Invariant: sequence numbers count up by one from 0 through a stream, and only
`tail` carries the terminal event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from gateway.emulator.asks import Ask
from gateway.emulator.chat import shaped
from gateway.emulator.reply import Reply, Stream, frame, json_reply
from gateway.emulator.writer import Draft, Writer

_Event = tuple[str, dict[str, Any]]
_DELTA = "response.output_text.delta"


def answer_response(ask: Ask, writer: Writer) -> Reply | Stream:
    """A response as JSON or as a stream of named events."""
    settings = ask.data.get("text")
    draft = shaped(ask, writer, settings.get("format") if isinstance(settings, dict) else None)
    item_id = writer.new_id("msg_")
    opened = _response(ask, writer)
    if ask.is_stream:
        return _stream(ask, draft, opened, item_id)
    return json_reply(_closed(ask, draft, opened, item_id), len(draft.pieces))


def response_error(error_body: bytes) -> bytes:
    """An error event as seen on the wire: the error nested under its own key."""
    return b'event: error\ndata: {"type":"error","sequence_number":2,' + error_body[1:] + b"\n\n"


def _response(ask: Ask, writer: Writer) -> dict[str, Any]:
    data = ask.data
    return {
        "id": writer.new_id("resp_"),
        "object": "response",
        "created_at": writer.created(),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": data.get("instructions"),
        "max_output_tokens": ask.max_tokens,
        "model": ask.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": data.get("previous_response_id"),
        "store": data.get("store", True),
        "temperature": data.get("temperature", 1.0),
        "text": {"format": {"type": "text"}},
        "tool_choice": data.get("tool_choice", "auto"),
        "tools": data.get("tools", []),
        "top_p": data.get("top_p", 1.0),
        "truncation": "disabled",
        "usage": None,
        "user": data.get("user"),
        "metadata": data.get("metadata") or {},
    }


def _closed(ask: Ask, draft: Draft, opened: dict[str, Any], item_id: str) -> dict[str, Any]:
    produced = len(draft.pieces)
    is_cut = draft.finish_reason == "length"
    return opened | {
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": [_item(item_id, draft, is_cut=is_cut)],
        "usage": {
            "input_tokens": ask.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": produced,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": ask.prompt_tokens + produced,
        },
    }


def _item(item_id: str, draft: Draft, *, is_cut: bool) -> dict[str, Any]:
    status = "incomplete" if is_cut else "completed"
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": [_part(draft.text)]}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _stream(ask: Ask, draft: Draft, opened: dict[str, Any], item_id: str) -> Stream:
    closed = _closed(ask, draft, opened, item_id)
    empty_item = {"id": item_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    place = {"item_id": item_id, "output_index": 0, "content_index": 0}
    lead: list[_Event] = [
        ("response.created", {"response": opened}),
        ("response.in_progress", {"response": opened}),
        ("response.output_item.added", {"output_index": 0, "item": empty_item}),
        ("response.content_part.added", place | {"part": _part("")}),
    ]
    tail: list[_Event] = [
        ("response.output_text.done", place | {"text": draft.text, "logprobs": []}),
        ("response.content_part.done", place | {"part": _part(draft.text)}),
        ("response.output_item.done", {"output_index": 0, "item": closed["output"][0]}),
        ("response.completed" if closed["status"] == "completed" else "response.incomplete", {"response": closed}),
    ]
    first_delta = len(lead)
    return Stream(
        lead=_events(lead, 0),
        frames=_deltas(draft, place, first_delta),
        tail=_events(tail, first_delta + len(draft.pieces)),
        tokens=len(draft.pieces),
        error_frame=response_error,
    )


def _events(events: list[_Event], first: int) -> bytes:
    return b"".join(
        frame({"type": name, "sequence_number": number} | fields, name)
        for number, (name, fields) in enumerate(events, first)
    )


def _deltas(draft: Draft, place: dict[str, Any], first: int) -> Iterator[bytes]:
    opening = orjson.dumps({"type": _DELTA} | place | {"logprobs": []})[:-1]
    before = b"event: " + _DELTA.encode() + b"\ndata: " + opening + b',"delta":'
    for number, piece in enumerate(draft.pieces, first):
        yield before + orjson.dumps(piece) + b',"sequence_number":%d}\n\n' % number
