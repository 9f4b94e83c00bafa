"""Converts a streamed answer of Anthropic's Messages into a whole one, and the other way round.

The events of a stream are a message without content, its blocks one after the other, each in pieces, and what is known at the
end: why it ended, and its usage, whose last numbers hold. It must not know where answers come from. Invariants: blocks have the
indexes 0, 1, 2 …, one is open at a time, and each that begins ends; what is not known to grow is not put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import orjson

from gateway.core.openai.sse import answer_object, event_json, split_events
from gateway.dialects.conversion.chat import PIECE_LENGTH, Ambiguous, Text, add_text

Json = dict[str, Any]

_DELTAS: Mapping[str, tuple[str, str]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}
"""By the type of a delta its text, and the field of the block that this belongs to."""
_GROWING: Mapping[str, tuple[tuple[str, str], ...]] = {
    "text": (("text", "text_delta"),),
    "thinking": (("thinking", "thinking_delta"), ("signature", "signature_delta")),
}
"""By the type of a block the texts that come in pieces, in their order."""
_ENDS = ("stop_reason", "stop_sequence")
_TOOL_CALLS = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))
"""The blocks whose `input` comes as the text of a JSON object."""


def message_of(frames: bytes) -> Json:
    """Returns the message that these events are the stream of; its texts are still `Text`. Raises Ambiguous."""
    message: Json | None = None
    blocks: list[Json] = []
    is_open = is_over = False
    for frame in split_events(frames):
        event = event_json(frame)
        kind = None if event is None else event.get("type")
        if event is None or kind == "ping":
            continue
        if is_over or kind == "error":
            raise Ambiguous("an error, or an event behind the last one")
        if kind == "message_start" and message is None:
            message = dict(_object(event.get("message")))
        elif message is None:
            raise Ambiguous("an event before the first one")
        elif kind == "content_block_start" and not is_open:
            _is_at(event, len(blocks))
            blocks.append(_begun(_object(event.get("content_block"))))
            is_open = True
        elif kind == "content_block_delta" and is_open:
            _is_at(event, len(blocks) - 1)
            _add(blocks[-1], _object(event.get("delta")))
        elif kind == "content_block_stop" and is_open:
            _is_at(event, len(blocks) - 1)
            blocks[-1] = _closed(blocks[-1])
            is_open = False
        elif kind == "message_delta" and not is_open:
            message |= _object(event.get("delta"))
            if event.get("usage"):
                message["usage"] = _object(message.get("usage") or {}) | _object(event["usage"])
            message |= {name: value for name, value in event.items() if name not in ("type", "delta", "usage")}
        elif kind == "message_stop" and not is_open:
            is_over = True
        else:
            raise Ambiguous("an event out of its turn")
    if message is None or not is_over or not message.get("stop_reason"):
        raise Ambiguous("a message without an end")
    return message | {"content": blocks}


def events_of(message: Json) -> bytes:
    """Returns the events of a whole message. Raises Ambiguous where it is none."""
    blocks = message.get("content")
    if message.get("type") != "message" or not isinstance(blocks, list) or not message.get("stop_reason"):
        raise Ambiguous("no message")
    opened, ended = message | {"content": []}, {"delta": {name: message[name] for name in _ENDS if name in message}}
    opened |= dict.fromkeys(ended["delta"])
    if "usage" in message:
        ended["usage"] = _object(message["usage"])
        opened["usage"] = message["usage"] | {name: 0 for name in ("output_tokens",) if name in message["usage"]}
    frames = [_messages_frame("message_start", {"message": opened})]
    for index, block in enumerate(blocks):
        frames += [_messages_frame(kind, {"index": index, **fields}) for kind, fields in _block_events(_object(block))]
    frames.append(_messages_frame("message_delta", ended))
    frames.append(_messages_frame("message_stop", {}))
    return b"".join(frames)


def last_reason(body: bytes, *, is_stream: bool) -> str | None:
    """Returns why a complete message ended; None: it did not, or is none."""
    message: Json | None
    if is_stream:
        at = body.rfind(b'"message_delta"')
        start = body.rfind(b"\ndata:", 0, at) + 1 if at >= 0 else -1
        is_over = at >= 0 and body.rfind(b'"message_stop"') > at
        event = event_json(body[start:].partition(b"\n")[0] + b"\n\n") if is_over else None
        message = None if event is None else event.get("delta")
    else:
        message = answer_object(body)
        if message is not None and message.get("type") != "message":
            return None
    reason = message.get("stop_reason") if isinstance(message, dict) else None
    return reason if isinstance(reason, str) else None


def _object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise Ambiguous("an event that lacks what it is about")
    return value


def _is_at(event: Json, index: int) -> None:
    if event.get("index") != index:
        raise Ambiguous("a block out of its turn")


def _begun(block: Json) -> Json:
    return {name: _grown(name, value) for name, value in block.items()}


def _grown(name: str, value: Any) -> Any:
    """Returns the value of a field as it may grow."""
    if not isinstance(value, str) or name not in ("text", "thinking", "signature"):
        return value
    text = Text()
    text.pieces.append(value)
    return text


def _add(block: Json, delta: Json) -> None:
    kind = delta.get("type")
    if kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        return
    source, field = _DELTAS.get(str(kind), ("", ""))
    piece = delta.get(source)
    if not isinstance(piece, str):
        raise Ambiguous("a delta of a kind that is not known")
    if field == "input" and not isinstance(block.get("input"), Text):
        if block.get("input"):
            raise Ambiguous("an input in two forms")
        block["input"] = Text()
    known = block.setdefault(field, Text())
    if not isinstance(known, Text):
        raise Ambiguous("a text that is none")
    known.pieces.append(piece)


def _closed(block: Json) -> Json:
    """Returns a block with its input parsed, which came as text."""
    arguments = block.get("input")
    if not isinstance(arguments, Text):
        return block
    try:
        return block | {"input": orjson.loads(str(arguments) or "{}")}
    except orjson.JSONDecodeError:
        raise Ambiguous("an input that is not JSON") from None


def _block_events(block: Json) -> Iterator[tuple[str, Json]]:
    kind = block.get("type")
    texts = [(name, delta) for name, delta in _GROWING.get(str(kind), ()) if isinstance(block.get(name), str)]
    opened = block | {name: "" for name, _ in texts}
    is_call = kind in _TOOL_CALLS and isinstance(block.get("input"), dict)
    if is_call:
        opened["input"] = {}
    cited = block.get("citations") if kind == "text" else None
    if cited:
        opened["citations"] = []
    yield "content_block_start", {"content_block": opened}
    for name, delta in texts:
        for at in range(0, len(block[name]), PIECE_LENGTH):
            yield "content_block_delta", {"delta": {"type": delta, name: block[name][at : at + PIECE_LENGTH]}}
    for citation in cited or ():
        yield "content_block_delta", {"delta": {"type": "citations_delta", "citation": citation}}
    if is_call:
        arguments = orjson.dumps(block["input"]).decode()
        for at in range(0, len(arguments), PIECE_LENGTH):
            piece = {"type": "input_json_delta", "partial_json": arguments[at : at + PIECE_LENGTH]}
            yield "content_block_delta", {"delta": piece}
    yield "content_block_stop", {}


def _messages_frame(kind: str, fields: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


# Converts a streamed response into a whole one, and the other way round.
#
# The last event of a Responses stream has all of the whole answer in it; the events that lead there are made of it, in the
# order in which OpenAI sends them. It must not know where answers come from. Invariants: sequence numbers count up by one
# from 0; every item, part and text that begins also ends, and ends as it stands in the whole answer.


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
    return b"".join(_responses_frame(kind, next(numbers), fields) for kind, fields in _events(name, body, output))


def _is_item(item: Any) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return False
    parts = [item.get(name) or [] for name in ("content", "summary")]
    return all(isinstance(each, list) and all(isinstance(part, dict) for part in each) for each in parts)


def _responses_frame(kind: str, number: int, fields: Json) -> bytes:
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
    extra = {"logprobs": part.get("logprobs") or []} if name == "output_text" else {}
    if isinstance(part.get(field), str):
        *deltas, done = _text_events(name, field, part[field], place)
        for number, (kind, delta) in enumerate(deltas):
            yield kind, delta | ({"logprobs": []} if extra and number else extra)
        for number, annotation in enumerate(part.get("annotations") or ()):
            fields = place | {"annotation_index": number, "annotation": annotation}
            yield "response.output_text.annotation.added", fields
        yield done[0], done[1] | extra
    yield "response.content_part.done", place | {"part": part}


def _emptied(part: Json, field: str) -> Json:
    """Returns a part as it is at its beginning."""
    empty = part | {name: [] for name in ("annotations", "logprobs") if part.get(name)}
    return empty | {field: ""} if isinstance(part.get(field), str) else empty


def _text_events(name: str, field: str, text: str, place: Json) -> Iterator[Event]:
    for at in range(0, len(text), PIECE_LENGTH):
        yield f"response.{name}.delta", place | {"delta": text[at : at + PIECE_LENGTH]}
    yield f"response.{name}.done", place | {field: text}


# Converts a streamed answer of Gemini's into a whole one.
#
# Each event is an answer with some more parts of its candidates; what else it says holds until a later event says it anew.
# Invariants: candidates stay in the order of their indexes; two texts become one only where neither has anything else to say
# than that it is a thought, because a signature belongs to its own part.


def generated_of(events: Iterable[Json]) -> Json:
    """Returns the whole answer that these events are the stream of; its texts are still `Text`. Raises Ambiguous."""
    whole: Json = {}
    candidates: dict[int, Json] = {}
    for event in events:
        if event.get("error"):
            raise Ambiguous("an error")
        whole |= event
        for news in event.get("candidates") or ():
            index = _object(news).get("index") or 0
            known = candidates.setdefault(index, {})
            parts = _object(known.get("content") or {}).get("parts", [])
            content = _object(news.get("content") or {})
            for part in content.get("parts") or ():
                _add_part(parts, _object(part))
            known |= news | {"content": {**known.get("content", {}), **content, "parts": parts}}
    if not all(candidate.get("finishReason") for candidate in candidates.values()):
        raise Ambiguous("a candidate without an end")
    if candidates:
        whole["candidates"] = [candidates[index] for index in sorted(candidates)]
    elif not _object(whole.get("promptFeedback") or {}).get("blockReason"):
        raise Ambiguous("an answer without an end")
    return whole


def _add_part(parts: list[Json], part: Json) -> None:
    text = part.get("text")
    if not isinstance(text, str) or not part.keys() <= {"text", "thought"}:
        parts.append(part)
        return
    last = parts[-1] if parts else {}
    known = last.get("text")
    if isinstance(known, Text) and last.get("thought") == part.get("thought"):
        known.pieces.append(text)
    else:
        parts.append(part | {"text": add_text(None, text)})
