"""Converts a streamed answer of Anthropic's Messages into a whole one, and the other way round.

The events of a stream are a message without content, its blocks one after the other, each in pieces, and what is known at the
end: why it ended, and its usage, whose last numbers hold. It must not know where answers come from. Invariants: blocks have the
indexes 0, 1, 2 …, one is open at a time, and each that begins ends; what is not known to grow is not put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.core.openai.sse.sse import answer_object, event_json, split_events
from gateway.dialects.conversion.chat.chat import PIECE_LENGTH
from gateway.dialects.conversion.chat.merge import Ambiguous, Text

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
    frames = [_frame("message_start", {"message": opened})]
    for index, block in enumerate(blocks):
        frames += [_frame(kind, {"index": index, **fields}) for kind, fields in _block_events(_object(block))]
    frames.append(_frame("message_delta", ended))
    frames.append(_frame("message_stop", {}))
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
    said = block.get("input")
    if not isinstance(said, Text):
        return block
    try:
        return block | {"input": orjson.loads(str(said) or "{}")}
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
        said = orjson.dumps(block["input"]).decode()
        for at in range(0, len(said), PIECE_LENGTH):
            piece = {"type": "input_json_delta", "partial_json": said[at : at + PIECE_LENGTH]}
            yield "content_block_delta", {"delta": piece}
    yield "content_block_stop", {}


def _frame(kind: str, fields: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
