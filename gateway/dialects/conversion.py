"""Converts an answer between its forms: streamed or whole, with the usage that its client wants or without.

Who wants a stream may get what another was given whole, and the other way round. In this order: what callers use
(`as_whole`, `as_stream`, `ends_well`, and usage in chunks), what an answer says, then the three languages whose streams are
named events; those of chat completions are in `conversion_chat`. Where answers come from, what is kept, and for how long,
is decided elsewhere. Invariants: what is made of an answer says all that the answer says and nothing else, or is not made
at all (None); of a stream that stays one, only what is about usage changes, every other byte stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, Final

import orjson

from gateway.core.openai import sse
from gateway.core.openai.json_edit import is_crowded
from gateway.core.openai.sse import (
    GIVEN_UP,
    answer_object,
    choices_of,
    event_json,
    failed_reason,
    is_plain_chat,
    split_events,
)
from gateway.core.openai.transcript import NULL_USAGE
from gateway.dialects.conversion_chat import (
    PIECE_LENGTH,
    Ambiguous,
    Text,
    add_text,
    chunks_of,
    completion_of,
    normal,
    plain,
)

# --- What callers use ---


_DONE_FRAME = b"data: [DONE]\n\n"
_GIVES_UP = (Ambiguous, RecursionError, orjson.JSONEncodeError)
"""The errors of a conversion; the last two mean that the answer is nested too deeply."""
_REASONS = re.compile(rb'(?<!\\)"finishReason" ?: ?"([A-Z_]+)"')
_FINISHES = (b'"finish_reason":"', b'"finish_reason": "')
_BLOCKED = b'"blockReason"'
_NO_DATA = re.compile(rb'"data"\s*:\s*\[\s*\]')


def as_whole(endpoint: str, frames: bytes, usage_event: bytes = b"") -> bytes | None:
    """Returns the JSON form of the complete answer in these frames; None where that is not certain.

    `usage_event`: what was taken out of the stream for a client that had not asked for it.
    """
    try:
        if endpoint == "responses":
            response = response_of(frames)
            return None if response is None else orjson.dumps(response)
        if endpoint == "messages":
            return orjson.dumps(message_of(frames), default=plain)
        if endpoint == "generate":
            return orjson.dumps(generated_of(_chunks(frames, usage_event)), default=plain)
        return orjson.dumps(completion_of(_chunks(frames, usage_event), is_chat=endpoint == "chat"), default=plain)
    except _GIVES_UP:
        return None


def as_stream(endpoint: str, body: bytes, *, include_usage: bool) -> bytes | None:
    """Returns the frames of an answer that was given whole; None where that is not certain.

    `include_usage` is what `stream_options` asks for; streams of Responses and Messages tell it in any case.
    """
    whole = sse.answer_object(body)
    if whole is None:
        return None
    try:
        if endpoint == "responses":
            return frames_of(whole)
        if endpoint == "messages":
            return _message_stream(whole)
        return _chat_stream(endpoint, whole, include_usage=include_usage)
    except _GIVES_UP:
        return None


def with_usage(frames: bytes, usage_event: bytes) -> bytes:
    """Returns the stream for a client that asks for usage, made of one without; `usage_event` is the missing event."""
    if not usage_event:
        return frames
    follower = _after_usage(usage_event)
    events = [_with_null(event, follower) for event in _events(frames)]
    at = next((at for at in range(len(events) - 1, -1, -1) if _is_done(events[at])), len(events))
    return b"".join([*events[:at], usage_event, *events[at:]])


def without_usage(frames: bytes) -> bytes:
    """Returns the stream for a client that does not ask for usage, as the relay would have passed it on."""
    return b"".join([event for event in _events(frames) if not _is_only_usage(event)]).replace(NULL_USAGE, b"")


def ends_well(endpoint: str, is_stream: bool, body: bytes) -> bool:
    """Returns whether a complete answer may be given to other calls: it is marked as complete, and reports no error.

    One without a reason for its end may have been cut, and one that says nothing is a mishap more often than an answer.
    """
    if endpoint in _PARTS_OF:
        if not (_stream_ended(endpoint, body) if is_stream else _ended(endpoint, body)):
            return False
        return _has_content(endpoint, is_stream, body)
    if is_stream:
        return True
    if endpoint == "embeddings" and _NO_DATA.search(body):
        return False
    return b'"error"' not in body or not (is_crowded(body) or (sse.json_object(body) or {}).get("error"))


def _stream_ended(endpoint: str, body: bytes) -> bool:
    if endpoint == "responses":
        response = last_response(body)
        return response is not None and response.get("status") == "completed"
    if endpoint == "messages":
        return last_reason(body, is_stream=True) is not None
    if endpoint == "generate":
        return _ended(endpoint, body)
    return any(finish in body for finish in _FINISHES)


def _ended(endpoint: str, body: bytes) -> bool:
    if endpoint == "messages":
        return last_reason(body, is_stream=False) is not None
    if endpoint == "generate":
        reasons = _REASONS.findall(body)
        return bool(reasons or _BLOCKED in body) and GIVEN_UP.isdisjoint(one.decode() for one in reasons)
    whole = sse.answer_object(body) or {}
    if endpoint == "responses":
        return whole.get("status") == "completed" and not whole.get("error")
    is_over = all(choice.get("finish_reason") for choice in choices_of(whole))
    return is_over and not whole.get("error") and failed_reason(whole) is None


# --- What an answer says: text, a call of a tool, a picture … ---


def _has_content(endpoint: str, is_stream: bool, body: bytes) -> bool:
    """Returns whether a complete answer says anything: what its model thinks is no answer, and a refusal is one."""
    if endpoint == "generate" and _BLOCKED in body:
        return True
    if endpoint == "messages" and last_reason(body, is_stream=is_stream) == "refusal":
        return True
    parts_of = _PARTS_OF[endpoint]
    try:
        objects = _chunks(body, b"") if is_stream else iter([sse.answer_object(body) or {}])
        return any(_has_words(part) for one in objects for part in parts_of(one))
    except _GIVES_UP:
        return True


def _has_words(part: dict[str, Any]) -> bool:
    """Returns whether a part of an answer is more than an empty text."""
    if part.get("thought") is True or str(part.get("type")) in _THOUGHTS:
        return False
    return any(value for name, value in part.items() if name not in _BESIDE)


def _chat_parts(chunk: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for choice in choices_of(chunk):
        yield {"text": choice.get("text")}
        message = _as_object(choice.get("message") or choice.get("delta"))
        if isinstance(message.get("content"), list):  # Mistral's, of models that think
            yield from _objects(message["content"])
            message = {**message, "content": None}
        yield message


def _message_parts(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if event.get("type") == "message":
        yield from _objects(event.get("content"))
    elif event.get("type") in ("content_block_start", "content_block_delta"):
        yield _as_object(event.get("content_block") or event.get("delta"))


def _generated_parts(chunk: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for candidate in _objects(chunk.get("candidates")):
        yield from _objects(_as_object(candidate.get("content")).get("parts"))


def _response_parts(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the items of a whole response, or that an event has finished; of messages their parts."""
    response = _as_object(event.get("response") or event)
    for item in (*_objects(response.get("output")), _as_object(event.get("item"))):
        if event.get("type") == "response.output_item.added":
            continue  # it is told again when it is finished
        yield from _objects(item.get("content")) if item.get("type") == "message" else (item,)


_PARTS_OF: Final = MappingProxyType(
    {
        "chat": _chat_parts,
        "completions": _chat_parts,
        "messages": _message_parts,
        "generate": _generated_parts,
        "responses": _response_parts,
    }
)
_THOUGHTS: Final = frozenset(("thinking", "redacted_thinking", "reasoning", "thinking_delta", "signature_delta"))
_BESIDE: Final = frozenset(
    ("type", "role", "id", "index", "status", "annotations", "citations", "logprobs", "thoughtSignature", "signature")
) | {
    *("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks"),
    *("provider_specific_fields", "extra_content"),
}
"""Fields beside what a part says."""


def _as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _chunks(frames: bytes, usage_event: bytes) -> Iterator[dict[str, Any]]:
    """Yields the objects of a stream's events. Raises Ambiguous for other events."""
    for event in _events(frames):
        data = sse.event_data(event).strip()
        if data == sse.DONE:
            break
        chunk = sse.json_object(data)
        if chunk is not None:
            yield chunk
        elif data or not sse.is_silent(event):
            raise Ambiguous("an event that is no object")
    if usage_event:
        yield sse.event_json(usage_event) or {}


# --- Whole answers as streams, and usage in chunks ---


def _chat_stream(endpoint: str, whole: dict[str, Any], *, include_usage: bool) -> bytes | None:
    """Returns the frames of a chat or text completion; None when they do not make that answer again."""
    is_chat = endpoint == "chat"
    body = normal(whole, is_chat=is_chat)
    chunks = chunks_of(body, is_chat=is_chat, include_usage=include_usage)
    frames = [b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks]
    if sse.json_object(as_whole(endpoint, b"".join(frames)) or b"") != body:
        return None
    if not include_usage and not chunks[-1]["choices"]:
        frames.pop()
    return b"".join(frames) + _DONE_FRAME


def _message_stream(whole: dict[str, Any]) -> bytes | None:
    """Returns the events of a message; None when they do not make that message again."""
    frames = events_of(whole)
    return frames if sse.json_object(as_whole("messages", frames) or b"") == whole else None


def _events(frames: bytes) -> list[bytes]:
    """Returns all events with their line ends: most streams have only one kind of these."""
    if b"\r" in frames:
        return list(sse.split_events(frames))
    *events, rest = frames.split(b"\n\n")
    return [event + b"\n\n" for event in events] + ([rest] if rest else [])


def _is_only_usage(event: bytes) -> bool:
    """Returns whether the relay takes this event out. Keep in sync with `core/openai/transcript.py`."""
    if b'"usage"' not in event or is_plain_chat(event):
        return False
    chunk = sse.event_json(event)
    return chunk is not None and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def _is_done(event: bytes) -> bool:
    return sse.event_data(event).strip() == sse.DONE


def _after_usage(usage_event: bytes) -> bytes:
    """Returns the beginning of the JSON field that the provider writes behind `usage`; empty: it is the last."""
    names = list(sse.event_json(usage_event) or ())
    after = names[names.index("usage") + 1 :] if "usage" in names else []
    return b',"%b":"' % after[0].encode() if len(after) == 1 else b""


def _with_null(event: bytes, follower: bytes) -> bytes:
    """Returns the chunk with `"usage":null`, as a provider writes it that was asked for usage.

    A chunk with blanks between its fields was never stripped of it, and comes back as it is.
    """
    if b'"choices":[' not in event or b'"usage":' in event:
        return event
    at = event.rfind(follower) if follower else -1
    if at < 0:
        at = event.rfind(b"}")
    changed = event[:at] + NULL_USAGE + event[at:]
    parsed = sse.event_json(changed)
    return changed if parsed is not None and "usage" in parsed and parsed["usage"] is None else event


# --- Anthropic's Messages ---


Json = dict[str, Any]

_DELTAS: Mapping[str, tuple[str, str]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}
"""The text of a delta, and the field of the block that this belongs to, by the delta's type."""
_GROWING: Mapping[str, tuple[tuple[str, str], ...]] = {
    "text": (("text", "text_delta"),),
    "thinking": (("thinking", "thinking_delta"), ("signature", "signature_delta")),
}
"""The texts of a block that come in pieces, in their order, by the block's type."""
_ENDS = ("stop_reason", "stop_sequence")
_TOOL_CALLS = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))
"""The blocks whose `input` comes as the text of a JSON object."""


def message_of(frames: bytes) -> Json:
    """Returns the message that these events are the stream of; its texts are still `Text`. Raises Ambiguous.

    The events are a message without content, its blocks one after the other, each in pieces, and what is known at the end:
    why it ended, and its usage, whose last numbers hold. Blocks have the indexes 0, 1, 2 …, one is open at a time, and each
    that begins ends; what is not known to grow is not put together.
    """
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


# --- Responses ---


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
    """Returns the events of a whole answer; None when it has not ended, or is none.

    The last event has all of the whole answer in it; the events that lead there are made of it, in the order in which
    OpenAI sends them. Sequence numbers count up by one from 0; every item, part and text that begins also ends.
    """
    name = next((name for name, status in _LAST.items() if status == body.get("status")), None)
    output = body.get("output")
    if name is None or body.get("error") or not isinstance(output, list) or not all(map(_is_item, output)):
        return None
    numbers = count()
    return b"".join(
        _responses_frame(kind, next(numbers), fields) for kind, fields in _response_events(name, body, output)
    )


def _is_item(item: Any) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return False
    parts = [item.get(name) or [] for name in ("content", "summary")]
    return all(isinstance(each, list) and all(isinstance(part, dict) for part in each) for each in parts)


def _responses_frame(kind: str, number: int, fields: Json) -> bytes:
    event = {"type": kind, "sequence_number": number, **fields}
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))


def _response_events(last: str, body: Json, output: list[Json]) -> Iterator[Event]:
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


# --- Gemini's ---


def generated_of(events: Iterable[Json]) -> Json:
    """Returns the whole answer that these events are the stream of; its texts are still `Text`. Raises Ambiguous.

    Each event is an answer with some more parts of its candidates; what else it says holds until a later event says it
    anew. Candidates stay in the order of their indexes; two texts become one only where neither has anything else to say
    than that it is a thought, because a signature belongs to its own part.
    """
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
