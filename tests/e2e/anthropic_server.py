"""A small server of Anthropic's Messages: answers as it is told, and keeps what it was asked."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import orjson

HEADERS = "request-id: req_of_anthropic\r\nanthropic-ratelimit-requests-remaining: 41\r\n"


def message(*texts: str, **fields: Any) -> dict[str, Any]:
    """A whole answer with these texts."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [{"type": "text", "text": text} for text in texts],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 5,
            "cache_read_input_tokens": 100,
            "output_tokens": 9,
        },
        **fields,
    }


def error(kind: str, words: str = "as scripted") -> dict[str, Any]:
    """An error's body."""
    return {"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_of_anthropic"}


def event(kind: str, **fields: Any) -> bytes:
    """One event of a stream."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def events(*texts: str, is_whole: bool = True) -> bytes:
    """A stream whose one block has these deltas; not `is_whole`: it breaks off before its end."""
    usage = {"input_tokens": 7, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 1}
    parts = [
        event("message_start", message=message(stop_reason=None, usage=usage)),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        event("ping"),
        *(event("content_block_delta", index=0, delta={"type": "text_delta", "text": text}) for text in texts),
    ]
    if is_whole:
        parts += [
            event("content_block_stop", index=0),
            event(
                "message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 9}
            ),
            event("message_stop"),
        ]
    return b"".join(parts)


Answer = tuple[int, Any]
"""A status, and a body: an object is JSON, bytes are an event stream."""


@dataclass
class AnthropicServer:
    """Takes its answers from `script`, else says hello, in the form that it is asked for; `seen` is what it was asked."""

    script: deque[Answer] = field(default_factory=deque)
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    wait_s: float = 0.0
    """How long it thinks before it answers."""
    holds: deque[asyncio.Event] = field(default_factory=deque)
    """What it waits for before its next answers."""
    _server: asyncio.Server | None = None
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __aenter__(self) -> AnthropicServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()

    def paths(self) -> list[str]:
        """What came, with its query."""
        return [path for path, _, _ in self.seen]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in head[1:] if line}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append((head[0].split(" ")[1], headers, body))
                await asyncio.sleep(self.wait_s)
                if self.holds:
                    await self.holds.popleft().wait()
                status, said = self._answer(self.seen[-1][0], headers, body)
                kind = "text/event-stream" if isinstance(said, bytes) else "application/json"
                content = said if isinstance(said, bytes) else orjson.dumps(said)
                start = (
                    f"HTTP/1.1 {status} X\r\n{HEADERS}content-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n"
                )
                writer.write(start.encode() + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if "anthropic-version" not in headers:
            return 400, error("invalid_request_error", "anthropic-version: header is required")
        if self.script:
            return self.script.popleft()
        if path.startswith("/v1/messages/count_tokens"):
            return 200, {"input_tokens": 42}
        return 200, events("hel", "lo") if orjson.loads(body).get("stream") else message("hello")
