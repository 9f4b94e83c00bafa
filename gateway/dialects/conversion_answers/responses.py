"""Converts a streamed response into a whole one, and the other way round.

The last event of a Responses stream has all of the whole answer in it; the events that lead there are made of it, in the
order in which OpenAI sends them. It must not know where answers come from. Invariants: sequence numbers count up by one
from 0; every item, part and text that begins also ends, and ends as it stands in the whole answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import orjson

from gateway.core.openai.sse.sse import event_json, split_events
from gateway.dialects.conversion.chat.chat import PIECE_LENGTH

Json = dict[str, Any]
Event = tuple[str, Json]

_LAST: Mapping[str, str] = {"response.completed": "completed", "response.incomplete": "incomplete"}
"""The events that end an answer, with the answer's status."""
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
_CUT: Mapping[str, tuple[str, str]] = {
    "function_call": ("arguments", "function_call_arguments"),
    "mcp_call": ("arguments", "mcp_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
    "code_interpreter_call": ("code", "code_interpreter_call_code"),
}
"""The items with a text that comes in pieces: its field, and the name of its events."""
_STEPS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "web_search_call": (("in_progress", "searching"), ("completed",)),
    "file_search_call": (("in_progress", "searching"), ("completed",)),
    "image_generation_call": (("in_progress", "generating"), ("completed",)),
    "code_interpreter_call": (("in_progress",), ("interpreting", "completed")),
    "mcp_call": (("in_progress",), ("completed",)),
    "mcp_list_tools": (("in_progress",), ("completed",)),
}
"""The progress events of a provider's own tools, before and after their text."""
_PART_TEXTS: Mapping[str, tuple[str, str]] = {
    "output_text": ("text", "output_text"),
    "refusal": ("refusal", "refusal"),
    "reasoning_text": ("text", "reasoning_text"),
}
"""The parts of a message or of reasoning: their text's field, and the name of its events."""
_NOT_YET = ("usage", "completed_at", "incomplete_details", "output_text")
"""The fields that a response lacks at its beginning."""


def last_response(frames: bytes) -> Json | None:
    """Returns the response that a stream ends with, complete or incomplete; None when it ends in no such way."""
    for name, status in _LAST.items():
        event = event_json(_event_around(frames, frames.rfind(b'"%b"' % name.encode())))
        response = event.get("response") if event is not None and event.get("type") == name else None
        if isinstance(response, dict) and response.get("status") == status and not response.get("error"):
            return response
    return None


def response_of(frames: bytes) -> Json | None:
    """Returns the whole answer of these frames. Some providers leave its output to the events before."""
    response = last_response(frames)
    if response is None:
        return None
    if not response.get("output"):
        items = _finished_items(frames)
        if items is None:
            return None
        response["output"] = items
    return response if isinstance(response["output"], list) else None


def _finished_items(frames: bytes) -> list[Json] | None:
    """Returns all items in their order; None when one of them has not ended."""
    begun: set[Any] = set()
    done: dict[Any, Any] = {}
    for frame in split_events(frames):
        if b"response.output_item." not in frame:
            continue
        event = event_json(frame) or {}
        if event.get("type") == "response.output_item.added":
            begun.add(event.get("output_index"))
        elif event.get("type") == "response.output_item.done":
            done[event.get("output_index")] = event.get("item")
    if not begun <= done.keys() or not all(type(at) is int and isinstance(done[at], dict) for at in done):
        return None
    return [done[index] for index in sorted(done)]


def _event_around(frames: bytes, at: int) -> bytes:
    """Returns the event that has the byte at this offset; none for a negative one."""
    if at < 0:
        return b""
    starts = ((frames.rfind(line, 0, at), len(line)) for line in _BLANK_LINES)
    start = max((end + length for end, length in starts if end >= 0), default=0)
    return next(split_events(frames[start:]))


def frames_of(body: Json) -> bytes | None:
    """Returns the events of a whole answer; None when it has not ended, or is none."""
    name = next((name for name, status in _LAST.items() if status == body.get("status")), None)
    output = body.get("output")
    if name is None or body.get("error") or not isinstance(output, list) or not all(map(_is_item, output)):
        return None
    numbers = count()
    return b"".join(_frame(kind, next(numbers), fields) for kind, fields in _events(name, body, output))


def _is_item(item: Any) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return False
    parts = [item.get(name) or [] for name in ("content", "summary")]
    return all(isinstance(each, list) and all(isinstance(part, dict) for part in each) for each in parts)


def _frame(kind: str, number: int, fields: Json) -> bytes:
    event = {"type": kind, "sequence_number": number, **fields}
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))


def _events(last: str, body: Json, output: list[Json]) -> Iterator[Event]:
    begun = body | {name: None for name in _NOT_YET if name in body} | {"status": "in_progress", "output": []}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(output):
        opened = _opened(item)
        yield "response.output_item.added", {"output_index": index, "item": opened}
        place = {"item_id": item["id"]} if "id" in item else {}
        yield from _item_events(item, place | {"output_index": index})
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield last, {"response": body}


def _opened(item: Json) -> Json:
    """Returns an item as it is at its beginning."""
    opened = item | {"status": "in_progress"} if "status" in item else dict(item)
    opened |= {name: [] for name in ("content", "summary") if item.get(name)}
    text = _CUT.get(item["type"])
    if text is not None and isinstance(item.get(text[0]), str):
        opened[text[0]] = ""
    return opened


def _item_events(item: Json, place: Json) -> Iterator[Event]:
    kind = item["type"]
    before, after = _STEPS.get(kind, ((), ())) if item.get("status", "completed") == "completed" else ((), ())
    for step in before:
        yield f"response.{kind}.{step}", place
    field, name = _CUT.get(kind, ("", ""))
    if isinstance(item.get(field), str):
        yield from _text_events(name, field, item[field], place)
    for number, part in enumerate(item.get("summary") or ()):
        yield from _summary_events(part, place | {"summary_index": number})
    for number, part in enumerate(item.get("content") or ()):
        yield from _part_events(part, place | {"content_index": number})
    for step in after:
        yield f"response.{kind}.{step}", place


def _summary_events(part: Json, place: Json) -> Iterator[Event]:
    yield "response.reasoning_summary_part.added", place | {"part": _emptied(part, "text")}
    if isinstance(part.get("text"), str):
        yield from _text_events("reasoning_summary_text", "text", part["text"], place)
    yield "response.reasoning_summary_part.done", place | {"part": part}


def _part_events(part: Json, place: Json) -> Iterator[Event]:
    field, name = _PART_TEXTS.get(str(part.get("type")), ("", ""))
    yield "response.content_part.added", place | {"part": _emptied(part, field)}
    told = {"logprobs": part.get("logprobs") or []} if name == "output_text" else {}
    if isinstance(part.get(field), str):
        *deltas, done = _text_events(name, field, part[field], place)
        for number, (kind, delta) in enumerate(deltas):
            yield kind, delta | ({"logprobs": []} if told and number else told)
        for number, annotation in enumerate(part.get("annotations") or ()):
            fields = place | {"annotation_index": number, "annotation": annotation}
            yield "response.output_text.annotation.added", fields
        yield done[0], done[1] | told
    yield "response.content_part.done", place | {"part": part}


def _emptied(part: Json, field: str) -> Json:
    """Returns a part as it is at its beginning."""
    empty = part | {name: [] for name in ("annotations", "logprobs") if part.get(name)}
    return empty | {field: ""} if isinstance(part.get(field), str) else empty


def _text_events(name: str, field: str, text: str, place: Json) -> Iterator[Event]:
    for at in range(0, len(text), PIECE_LENGTH):
        yield f"response.{name}.delta", place | {"delta": text[at : at + PIECE_LENGTH]}
    yield f"response.{name}.done", place | {field: text}
