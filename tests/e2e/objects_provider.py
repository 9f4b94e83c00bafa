"""A provider that keeps objects for one account: whoever has its key sees all of them, as at OpenAI."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson

Answer = tuple[int, bytes, bytes]
PREFIXES = {
    "files": "file-",
    "batches": "batch_",
    "responses": "resp_",
    "conversations": "conv_",
    "threads": "thread_",
    "assistants": "asst_",
    "vector_stores": "vs_",
    "containers": "cntr_",
    "fine_tuning/jobs": "ftjob-",
    "evals": "eval_",
    "uploads": "upload_",
    "videos": "video_",
    "chat/completions": "chatcmpl-",
}
NOT_FOUND = (
    b'{"error":{"message":"the provider says: no such thing","type":"invalid_request_error","param":null,"code":null}}'
)


@dataclass
class ObjectsProvider:
    """Creates, shows, lists and deletes; `seen` is every request that reached it."""

    objects: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {kind: {} for kind in PREFIXES})
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    page: int = 20
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields of new objects, by kind; and the `output` of responses."""
    url: str = ""
    is_packing: bool = False
    """It compresses its answers, although it was asked not to."""
    _numbers: count[int] = field(default_factory=count)
    _server: asyncio.Server | None = None
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __aenter__(self) -> ObjectsProvider:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()

    def make(self, kind: str, **fields: Any) -> str:
        """An object that was there before."""
        id = f"{PREFIXES[kind]}{next(self._numbers)}"
        self.objects[kind][id] = {"id": id, "object": kind, **self.extra.get(kind, {}), **fields}
        return id

    def requests(self) -> list[tuple[str, str]]:
        """Method and path of what came."""
        return [(method, path) for method, path, _, _ in self.seen]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in head[1:] if line}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append((method, target, headers, body))
                status, kind, content = self._answer(method, target, body)
                packed = b""
                if self.is_packing:
                    content, packed = gzip.compress(content), b"content-encoding: gzip\r\n"
                start = b"HTTP/1.1 %d X\r\n%bcontent-type: %b\r\n" % (status, packed, kind)
                start += b"content-length: %d\r\n\r\n" % len(content)
                writer.write(start + (b"" if method == "HEAD" else content))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, method: str, target: str, body: bytes) -> Answer:
        path, _, query = target.partition("?")
        steps = unquote(path).lower().removeprefix("/v1/").split("/")
        depth = 2 if "/".join(steps[:2]) in self.objects else 1
        kind, rest = "/".join(steps[:depth]), unquote(path).removeprefix("/v1/").split("/")[depth:]
        if kind not in self.objects:
            return _json(200, {"object": "other"})
        if not rest:
            return self._create(kind, body) if method == "POST" else _json(200, self._list(kind, query))
        if rest == ["runs"]:
            thread = self.make("threads")
            return _json(200, {"id": "run_1", "object": "thread.run", "thread_id": thread})
        found = self.objects[kind].get(rest[0])
        if found is None:
            return 404, b"application/json", NOT_FOUND
        if method == "DELETE" and len(rest) == 1:
            del self.objects[kind][rest[0]]
            return _json(200, {"id": rest[0], "deleted": True})
        if rest[1:] == ["complete"]:
            found = {**found, "file": {"id": self.make("files"), "object": "file"}}
        return _json(200, found)

    def _create(self, kind: str, body: bytes) -> Answer:
        asked: dict[str, Any] = orjson.loads(body) if body.startswith(b"{") else {}
        id = self.make(kind)
        made = self.objects[kind][id]
        if kind == "chat/completions":
            made |= {
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]
            }
        if kind != "responses":
            return _json(200, made)
        made |= {"object": "response", "status": "completed", "output": self.extra.get("output", [])}
        if asked.get("background"):
            made |= {"status": "queued", "usage": None}
        if not asked.get("stream"):
            return _json(200, made)
        early = {**made, "status": "in_progress", "output": []}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "sequence_number": 0, "response": early},
            *({"type": "response.output_item.added", "item": item} for item in made["output"]),
            {"type": "response.output_text.delta", "delta": "hi"},
            {"type": "response.completed", "response": made},
        ]
        written = b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), orjson.dumps(e)) for e in events)
        return 200, b"text/event-stream", written

    def _list(self, kind: str, query: str) -> dict[str, Any]:
        asked = dict(parse_qsl(query))
        ids = [*reversed(self.objects[kind])]
        limit = int(asked.get("limit", self.page))
        if "after" in asked:
            ids = ids[ids.index(asked["after"]) + 1 :]
        shown = ids[:limit]
        return {
            "object": "list",
            "data": [self.objects[kind][id] for id in shown],
            "first_id": shown[0] if shown else None,
            "last_id": shown[-1] if shown else None,
            "has_more": len(ids) > limit,
        }


def _json(status: int, value: object) -> Answer:
    return status, b"application/json", orjson.dumps(value)
