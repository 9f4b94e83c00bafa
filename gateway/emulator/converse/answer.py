"""Answers a call of Bedrock's Converse: one JSON object, or frames of an event stream.

It must not know limits, faults or time. Invariant: the events of a stream, put together, say what the JSON would have said,
and only `tail` carries `messageStop` and `metadata`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from gateway.emulator.answers.reply import EmulatedReply, Stream, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.converse.request import ends_with_result, schema_of, segments_of, wish_of
from gateway.emulator.dialects.compose import Block, Composed, compose
from gateway.emulator.dialects.dialects.frames import EVENT_STREAM, event, exception, frame_of
from gateway.emulator.dialects.dialects.signatures import CLAUDE, sign
from gateway.emulator.messages_answer import arguments_of
from gateway.emulator.responses.writer.writer import Writer

_STOP_REASONS: Mapping[str, str] = MappingProxyType(
    {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "content_filtered"}
)
_PADDING = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LATENCY_MS = 1
_BROKEN_HEADERS = {
    ":event-type": "contentBlockDelta",
    ":content-type": "application/json",
    ":message-type": "event",
}


def answer_converse(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with the whole object."""
    composed = _compose(request, writer)
    content = [_block(block, _tool_id(block, writer)) for block in composed.blocks]
    answer = {
        "metrics": {"latencyMs": _LATENCY_MS},
        "output": {"message": {"content": content, "role": "assistant"}},
        "stopReason": _STOP_REASONS[composed.ending],
        "usage": _usage(request, writer, composed),
    }
    return json_reply(answer, composed.tokens)


def stream_converse(request: CheckedRequest, writer: Writer) -> Stream:
    """Answers with the frames of an event stream."""
    composed = _compose(request, writer)
    last = len(composed.blocks) - 1
    closing = _event("contentBlockStop", {"contentBlockIndex": last}) if composed.blocks else b""
    metadata = {"usage": _usage(request, writer, composed), "metrics": {"latencyMs": _LATENCY_MS}}
    stop = _event("messageStop", {"stopReason": _STOP_REASONS[composed.ending]})
    return Stream(
        lead=_event("messageStart", {"role": "assistant"}),
        frames=_frames(composed, writer),
        tail=closing + stop + _event("metadata", metadata),
        tokens=composed.tokens,
        error_frame=lambda body: exception("serviceUnavailableException", body),
        broken=frame_of(_BROKEN_HEADERS, b'{"contentBlockIndex":0,"delta":{"te'),
        content_type=EVENT_STREAM,
    )


def _compose(request: CheckedRequest, writer: Writer) -> Composed:
    data = request.data
    wish, schema = wish_of(data), schema_of(data)
    return compose(
        request,
        writer,
        tools=wish.schemas,
        calls=wish.calls(request, is_result=ends_with_result(data)),
        is_thinking=_thinks(data),
        schema=schema if isinstance(schema, dict) else None,
    )


def _thinks(data: Mapping[str, Any]) -> bool:
    extra = data.get("additionalModelRequestFields") or {}
    thinking = extra.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive")


def _usage(request: CheckedRequest, writer: Writer, composed: Composed) -> dict[str, int]:
    used = writer.prompt_cache.use(request.model, segments_of(request.data, request.data["_turns"]))
    return {
        "inputTokens": used.fresh,
        "outputTokens": composed.tokens,
        "totalTokens": used.total + composed.tokens,
        "cacheReadInputTokens": used.read,
        "cacheWriteInputTokens": used.written,
    }


def _tool_id(block: Block, writer: Writer) -> str:
    return writer.new_id("tooluse_") if block.kind == "tool" else ""


def _block(block: Block, tool_id: str) -> dict[str, Any]:
    match block.kind:
        case "thought":
            told = {"text": block.text, "signature": sign(CLAUDE, block.text)}
            return {"reasoningContent": {"reasoningText": told}}
        case "tool":
            return {"toolUse": {"toolUseId": tool_id, "name": block.name, "input": arguments_of(block)}}
    return {"text": block.text}


def _frames(composed: Composed, writer: Writer) -> Iterator[bytes]:
    """One a token; what opens or closes a block goes with its first or last token."""
    last = len(composed.blocks) - 1
    for index, block in enumerate(composed.blocks):
        before = after = b""
        if block.kind == "tool":
            start = {"toolUse": {"toolUseId": _tool_id(block, writer), "name": block.name}}
            before = _event("contentBlockStart", {"contentBlockIndex": index, "start": start})
        if block.kind == "thought":
            after = _delta(index, {"reasoningContent": {"signature": sign(CLAUDE, block.text)}})
        if index != last:
            after += _event("contentBlockStop", {"contentBlockIndex": index})
        if not block.pieces:
            yield before + after
        for number, piece in enumerate(block.pieces):
            told = _delta(index, _news(block, piece))
            yield (b"" if number else before) + told + (after if number == len(block.pieces) - 1 else b"")


def _news(block: Block, piece: str) -> dict[str, Any]:
    match block.kind:
        case "thought":
            return {"reasoningContent": {"text": piece}}
        case "tool":
            return {"toolUse": {"input": piece}}
    return {"text": piece}


def _delta(index: int, delta: Mapping[str, Any]) -> bytes:
    return _event("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})


def _event(kind: str, payload: Mapping[str, Any]) -> bytes:
    """Every event has padding of some length, so that its size does not tell its text."""
    size = 1 + len(str(payload)) % len(_PADDING)
    return event(kind, {**payload, "p": _PADDING[:size]})
