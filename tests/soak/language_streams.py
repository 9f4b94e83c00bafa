"""Streams as providers of each language send them: how one begins, and one event of each kind that it repeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from tests.dialects.aws_frames import event as frame

Json = dict[str, Any]
WORDS: Final = " wooden boardwalk"
ARGUMENTS: Final = '{"city": "Par'


class Repeated(NamedTuple):
    """A stream that goes on."""

    start: list[bytes]
    delta: bytes


def _sse(said: Json, end: bytes = b"\n\n") -> bytes:
    name = b"event: %b\n" % said["type"].encode() if "type" in said else b""
    return b"%bdata: %b%b" % (name, orjson.dumps(said), end)


def _block(kind: str, **fields: Any) -> bytes:
    return _sse({"type": f"content_block_{kind}", "index": 0, **fields})


def _message(block: Json, delta: Json) -> Repeated:
    usage = {"input_tokens": 25, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "usage": usage}
    start = _sse({"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}})
    return Repeated([start, _block("start", content_block=block)], _block("delta", delta=delta))


def _generated(part: Json) -> bytes:
    told = {"promptTokenCount": 25, "candidatesTokenCount": 12, "totalTokenCount": 37}
    candidate = {"content": {"role": "model", "parts": [part]}, "index": 0}
    said = {"candidates": [candidate], "usageMetadata": told, "modelVersion": "gemini-3-pro", "responseId": "abc"}
    return _sse(said, b"\r\n\r\n")


def _generate(part: Json) -> Repeated:
    return Repeated([_generated(part)], _generated(part))


def _converse(delta: Json, *starts: Json) -> Repeated:
    begin = [frame("contentBlockStart", {"contentBlockIndex": 0, "start": start}) for start in starts]
    grown = frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta})
    return Repeated([frame("messageStart", {"role": "assistant"}), *begin], grown)


def _chunk(**delta: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_760_000_000, "model": "gpt-5.9"}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return _sse({**head, "system_fingerprint": "fp", "choices": [choice]})


def _chat(first: Json, delta: Json) -> Repeated:
    return Repeated([_chunk(role="assistant", content=""), _chunk(**first)], _chunk(**delta))


_CALL: Final = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
_USE: Final = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
STREAMS: Final[Mapping[str, Mapping[str, Repeated]]] = {
    "messages": {
        "text": _message({"type": "text", "text": ""}, {"type": "text_delta", "text": WORDS}),
        "tool": _message(_USE, {"type": "input_json_delta", "partial_json": ARGUMENTS}),
        "thinking": _message(
            {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": WORDS}
        ),
    },
    "generate": {
        "text": _generate({"text": WORDS}),
        "call": _generate({"functionCall": {"name": "weather", "args": {"city": "Paris"}}}),
        "thinking": _generate({"text": WORDS, "thought": True}),
    },
    "converse": {
        "text": _converse({"text": WORDS}),
        "tool": _converse({"toolUse": {"input": ARGUMENTS}}, {"toolUse": {"toolUseId": "t1", "name": "weather"}}),
        "thinking": _converse({"reasoningContent": {"text": WORDS}}),
    },
    "chat": {
        "text": _chat({"content": "a"}, {"content": WORDS}),
        "tool": _chat({"tool_calls": [_CALL]}, {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS}}]}),
        "thinking": _chat({"reasoning_content": "a"}, {"reasoning_content": WORDS}),
    },
}
"""By language and kind. Gemini's calls come whole, each in one event."""
