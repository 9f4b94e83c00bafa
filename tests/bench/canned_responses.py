"""The canned provider, with streams of Responses: each event tells when it was sent, by the clock that all processes share.

python -m tests.bench.canned_responses PORT
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any

import uvloop

from tests.bench.canned import DEFAULT_PACE, STREAM_HEAD, Canned

TEXT = "The quick brown fox jumps over the lazy dog. "
_PACE = re.compile(rb"interval_ms=(\d+) events=(\d+)")
_RESPONSE = {
    "id": "resp_bench",
    "object": "response",
    "created_at": 1_760_000_000,
    "model": "gpt-4o-mini-2024-07-18",
    "output": [],
    "usage": None,
}
_ITEM = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": []}
_USAGE = {"input_tokens": 204, "output_tokens": 120, "total_tokens": 324}


class CannedResponses(Canned):
    """One connection; every request is answered with a stream at the pace that it names."""

    def __init__(self) -> None:
        super().__init__([])

    def _stream(self, body: bytes) -> None:
        pace = _PACE.search(body)
        interval_ms, count = (int(pace[1]), int(pace[2])) if pace else DEFAULT_PACE
        self._transport.write(STREAM_HEAD)
        self._tell("response.created", 0, response={**_RESPONSE, "status": "in_progress"})
        self._tell("response.in_progress", 1, response={**_RESPONSE, "status": "in_progress"})
        self._next(2, count, interval_ms / 1000)

    def _next(self, number: int, count: int, interval_s: float) -> None:
        if number < count - 2:
            place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
            self._tell("response.output_text.delta", number, **place, delta=TEXT, obfuscation=f"{time.monotonic_ns()}")
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(interval_s, self._next, number + 1, count, interval_s)
            return
        self._tell("response.output_item.done", number, output_index=0, item=_ITEM)
        done = {**_RESPONSE, "status": "completed", "output": [_ITEM], "usage": _USAGE}
        self._tell("response.completed", number + 1, response=done)
        self._transport.write(b"0\r\n\r\n")

    def _tell(self, kind: str, number: int, **fields: Any) -> None:
        data = json.dumps({"type": kind, **fields, "sequence_number": number}, separators=(",", ":"))
        event = f"event: {kind}\ndata: {data}\n\n".encode()
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(CannedResponses, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
