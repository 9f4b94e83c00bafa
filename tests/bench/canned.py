"""The canned provider that every system is measured against: far cheaper per call than anything in front of it.

A raw asyncio protocol without a real HTTP parser: it finds the end of the request, looks for `"stream": true`, and writes
prebuilt bytes. Stream pace is asked for in the body (`interval_ms=10 events=200` anywhere in it). Each event is a chunk of
its own, written in a loop turn of its own, so that it leaves as a packet of its own.

    python -m tests.bench.canned PORT
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import uvloop

EVENT_BYTES = 250
ANSWER_BYTES = 1024
DEFAULT_PACE = (10, 200)

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_STREAM = re.compile(rb'"stream" ?: ?true')
_USAGE = re.compile(rb'"include_usage" ?: ?true')
_PACE = re.compile(rb"interval_ms=(\d+) events=(\d+)")

_HEADERS = b"".join(
    line + b"\r\n"
    for line in (
        b"x-request-id: req_5b1e7f0d3c2a49869e1f0a7b6c5d4e3f",
        b"openai-organization: bench",
        b"openai-processing-ms: 12",
        b"openai-project: proj_bench",
        b"openai-version: 2020-10-01",
        b"x-ratelimit-limit-requests: 30000",
        b"x-ratelimit-limit-tokens: 150000000",
        b"x-ratelimit-remaining-requests: 29999",
        b"x-ratelimit-remaining-tokens: 149999796",
        b"x-ratelimit-reset-requests: 2ms",
        b"x-ratelimit-reset-tokens: 0s",
    )
)
_USAGE_NUMBERS = {"prompt_tokens": 204, "completion_tokens": 120, "total_tokens": 324}


def answer_body() -> bytes:
    """A chat completion of about 1 KB."""
    return _filled(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": "gpt-4o-mini-2024-07-18",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}],
            "usage": _USAGE_NUMBERS,
            "system_fingerprint": "fp_bench",
        },
        lambda value: value["choices"][0]["message"],
        ANSWER_BYTES,
    )


def whole_body(data: bytes) -> bytes | None:
    """The body of the one HTTP message that `data` begins with; None while bytes are missing."""
    head_end = data.find(b"\r\n\r\n") + 4
    if head_end < 4:
        return None
    length = _LENGTH.search(data, 0, head_end)
    if length is not None:
        body = data[head_end:]
        return body if len(body) >= int(length[1]) else None
    if b"chunked" in data[:head_end]:
        return data[head_end:] if data.endswith(b"0\r\n\r\n") else None
    return b""


class Canned(asyncio.Protocol):
    """One connection of a client that waits for each answer before it asks again."""

    def __init__(self, events: list[bytes]) -> None:
        self._events = events
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None
        self._transport: Any = None  # asyncio.Transport; uvloop's share no base class with it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        body = whole_body(data)
        if body is None:
            self._buffer = data
            return
        self._buffer = b""
        if _STREAM.search(body):
            self._stream(body)
        else:
            self._transport.write(ANSWER)

    def _stream(self, body: bytes) -> None:
        pace = _PACE.search(body)
        interval_ms, count = (int(pace[1]), int(pace[2])) if pace else DEFAULT_PACE
        role, text, stop, usage, done = self._events
        events = [role, *[text] * (count - 2), stop, *([usage] if _USAGE.search(body) else []), done]
        self._transport.write(STREAM_HEAD)
        self._write_next(iter(events), interval_ms / 1000)

    def _write_next(self, events: Iterator[bytes], interval_s: float) -> None:
        event = next(events, None)
        if event is not None:
            self._transport.write(event)
            self._timer = asyncio.get_running_loop().call_later(interval_s, self._write_next, events, interval_s)


def stream_events() -> list[bytes]:
    """A stream's five kinds of events in order (role, text, stop, usage, done), each as an HTTP chunk."""
    usage = {**_frame({}), "choices": [], "usage": _USAGE_NUMBERS}
    frames = [
        _filled(_frame({"role": "assistant", "content": ""}), _delta, EVENT_BYTES),
        _filled(_frame({"content": ""}), _delta, EVENT_BYTES),
        json.dumps(_frame({}, "stop"), separators=(",", ":")).encode(),
        json.dumps(usage, separators=(",", ":")).encode(),
    ]
    events = [b"data: %b\n\n" % frame for frame in frames]
    return [_chunk(event) for event in events] + [_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]


def message_events() -> list[bytes]:
    """A message's stream as Anthropic sends it (start, text, end), each as an HTTP chunk; a text is as long as a chat's."""
    usage = {"input_tokens": 204, "output_tokens": 1}
    said = {"id": "msg_bench", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "content": []}
    start = {"type": "message_start", "message": {**said, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}}
    around = len(_named(text)) - len(json.dumps(text, separators=(",", ":"))) - len(b"data: \n\n")
    filled = _filled(text, lambda value: value["delta"], EVENT_BYTES - around, "text")
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 120}}
    last = (_named({"type": "content_block_stop", "index": 0}), _named(end), _named({"type": "message_stop"}))
    return [
        _chunk(_named(start) + _named(block)),
        _chunk(b"event: content_block_delta\ndata: %b\n\n" % filled),
        _chunk(b"".join(last)) + b"0\r\n\r\n",
    ]


def _named(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


def _frame(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


def _delta(frame: dict[str, Any]) -> Any:
    return frame["choices"][0]["delta"]


def _filled(value: dict[str, Any], part: Any, size: int, field: str = "content") -> bytes:
    """The value as JSON, its text grown until it has `size` bytes."""
    missing = size - len(json.dumps(value, separators=(",", ":")))
    part(value)[field] = ("The quick brown fox jumps over the lazy dog. " * (missing // 40 + 1))[: max(0, missing)]
    return json.dumps(value, separators=(",", ":")).encode()


def refusal_body() -> bytes:
    """The error of a request that is over a limit."""
    error = {"message": "slow down please", "type": "requests", "code": "rate_limit_exceeded"}
    return json.dumps({"error": error}, separators=(",", ":")).encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b" % (
    len(answer_body()),
    _HEADERS,
    answer_body(),
)
REFUSAL_WAIT_MS = 20
REFUSAL = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after-ms: %d\r\ncontent-length: %d\r\n\r\n%b"
    % (
        REFUSAL_WAIT_MS,
        len(refusal_body()),
        refusal_body(),
    )
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n%b\r\n" % _HEADERS


async def _serve(port: int) -> None:
    events = stream_events()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Canned(events), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
