"""Answers a Messages call as JSON or as named events, and counts tokens.

It must not know limits, faults or time. Invariant: the events of a stream, put together, say what the JSON would have said,
and only `tail` carries `stop_reason` and `message_stop`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import orjson

from gateway.emulator.answers.reply import EmulatedReply, Stream, frame, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.dialects.compose import Block, Composed, compose
from gateway.emulator.dialects.dialects import CLAUDE, EVENT_STREAM, CacheUse, event, exception, sign
from gateway.emulator.messages_request import ends_with_result, form_of, read_turns, segments_of, wish_of
from gateway.emulator.responses.writer import Writer

_STOP_REASONS: Mapping[str, str] = MappingProxyType(
    {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
)
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_PING_EVERY = 50
_BROKEN = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","te\n\n'
)
Event = Mapping[str, Any]
Render = Callable[[Event], bytes]


def answer_messages(request: CheckedRequest, writer: Writer) -> EmulatedReply | Stream:
    """Answers with a message, as JSON or as a stream of server-sent events."""
    composed, message = _message(request, writer)
    if not request.is_stream:
        return json_reply(message, composed.tokens)

    def render(event: Event) -> bytes:
        return frame(event, str(event["type"]))

    return Stream(
        lead=_lead(message, render, _PING),
        frames=_with_pings(_frames(composed, message, render)),
        tail=_tail(composed, message, render),
        tokens=composed.tokens,
        error_frame=lambda body: b"event: error\ndata: " + body + b"\n\n",
        broken=_BROKEN,
    )


def answer_invoked(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers a Messages call that Bedrock carries, with the message."""
    composed, message = _message(request, writer)
    return json_reply(message, composed.tokens)


def stream_invoked(request: CheckedRequest, writer: Writer) -> Stream:
    """Answers a Messages call that Bedrock carries, with frames of `chunk` events."""
    composed, message = _message(request, writer)

    def render(inner: Event) -> bytes:
        return event("chunk", {"bytes": b64encode(orjson.dumps(inner)).decode()})

    return Stream(
        lead=_lead(message, render, b""),
        frames=_frames(composed, message, render),
        tail=_tail(composed, message, render),
        tokens=composed.tokens,
        error_frame=lambda body: exception("serviceUnavailableException", body),
        broken=event("chunk", {"bytes": b64encode(b'{"type":"content_block_delta","inde').decode()}),
        content_type=EVENT_STREAM,
    )


def answer_token_count(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with the tokens of a prompt."""
    return json_reply({"input_tokens": request.prompt_tokens})


def _message(request: CheckedRequest, writer: Writer) -> tuple[Composed, dict[str, Any]]:
    data = request.data
    wish = wish_of(data)
    composed = compose(
        request,
        writer,
        tools=wish.schemas,
        calls=wish.calls(request, is_result=ends_with_result(data)),
        is_thinking=_thinks(data),
        schema=form_of(data).get("schema"),
    )
    turns = read_turns(data["messages"], request.model)
    used = writer.prompt_cache.use(request.model, segments_of(data, turns))
    is_shown = (data.get("thinking") or {}).get("display") != "omitted"
    return composed, {
        "id": writer.new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [_block(block, writer, is_shown=is_shown) for block in composed.blocks],
        "stop_reason": _STOP_REASONS[composed.ending],
        "stop_sequence": None,
        "stop_details": _STOP_DETAILS if composed.ending == "content_filter" else None,
        "usage": _usage(used, composed),
    }


_STOP_DETAILS = {"type": "refusal", "category": "general_harms", "explanation": "It was refused (emulated)."}


def _thinks(data: Mapping[str, Any]) -> bool:
    return (data.get("thinking") or {}).get("type") in ("enabled", "adaptive")


def _usage(used: CacheUse, composed: Composed) -> dict[str, Any]:
    return {
        "input_tokens": used.fresh,
        "cache_creation_input_tokens": used.written,
        "cache_read_input_tokens": used.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": used.written - used.hourly,
            "ephemeral_1h_input_tokens": used.hourly,
        },
        "output_tokens": composed.tokens,
        "output_tokens_details": {"thinking_tokens": composed.thought_tokens},
        "service_tier": "standard",
    }


def _block(block: Block, writer: Writer, *, is_shown: bool) -> dict[str, Any]:
    match block.kind:
        case "thought":
            thought = block.text if is_shown else ""
            return {"type": "thinking", "thinking": thought, "signature": sign(CLAUDE, thought)}
        case "tool":
            return {"type": "tool_use", "id": writer.new_id("toolu_"), "name": block.name, "input": arguments_of(block)}
    return {"type": "text", "text": block.text}


def arguments_of(block: Block) -> object:
    """Returns the arguments of a call; none when the answer was cut in the middle of them."""
    try:
        return orjson.loads(block.text)
    except orjson.JSONDecodeError:
        return {}


def _lead(message: Mapping[str, Any], render: Render, ping: bytes) -> bytes:
    usage = message["usage"] | {"output_tokens": 1}
    opening = {**message, "content": [], "stop_reason": None, "stop_details": None, "usage": usage}
    return render({"type": "message_start", "message": opening}) + ping


def _frames(composed: Composed, message: Mapping[str, Any], render: Render) -> Iterator[bytes]:
    """One frame a token; what opens or closes a block goes with its first or last token."""
    last = len(composed.blocks) - 1
    for index, (block, shown) in enumerate(zip(composed.blocks, message["content"], strict=True)):
        before = render({"type": "content_block_start", "index": index, "content_block": _opened(shown)})
        deltas = [delta for piece in block.pieces if (delta := _delta(block, shown, piece)) is not None]
        after = b""
        if block.kind == "thought":
            signed = {"type": "signature_delta", "signature": shown["signature"]}
            after = render({"type": "content_block_delta", "index": index, "delta": signed})
        if index != last:
            after += render({"type": "content_block_stop", "index": index})
        if not deltas:
            yield before + after
        for number, delta in enumerate(deltas):
            event = render({"type": "content_block_delta", "index": index, "delta": delta})
            yield (b"" if number else before) + event + (after if number == len(deltas) - 1 else b"")


def _opened(shown: Mapping[str, Any]) -> dict[str, Any]:
    match shown["type"]:
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "tool_use":
            return {**shown, "input": {}}
    return {"type": "text", "text": ""}


def _delta(block: Block, shown: Mapping[str, Any], piece: str) -> dict[str, Any] | None:
    match block.kind:
        case "thought":
            return {"type": "thinking_delta", "thinking": piece} if shown["thinking"] else None
        case "tool":
            return {"type": "input_json_delta", "partial_json": piece}
    return {"type": "text_delta", "text": piece}


def _tail(composed: Composed, message: Mapping[str, Any], render: Render) -> bytes:
    closing = b""
    if composed.blocks:
        closing = render({"type": "content_block_stop", "index": len(composed.blocks) - 1})
    named = ("stop_reason", "stop_sequence", "stop_details")
    usage = {name: count for name, count in message["usage"].items() if name not in ("cache_creation", "service_tier")}
    delta = {"type": "message_delta", "delta": {name: message[name] for name in named}, "usage": usage}
    return closing + render(delta) + render({"type": "message_stop"})


def _with_pings(frames: Iterator[bytes]) -> Iterator[bytes]:
    for number, each in enumerate(frames, 1):
        yield each if number % _PING_EVERY else each + _PING
