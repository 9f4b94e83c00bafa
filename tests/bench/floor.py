"""The floor: the least a Python proxy can do. uvicorn (httptools, uvloop) in front, a bare httptools client behind.

No policy, no checks, no error handling, no log: what is left is the price of carrying a call in Python at all, so a ratio to
it tells what the gateway's work costs. A whole answer is sent on in one piece, a stream chunk by chunk.

    python -m tests.bench.floor PORT UPSTREAM_PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools
import uvicorn

DROPPED = frozenset((b"transfer-encoding", b"connection", b"keep-alive", b"date", b"server"))


class Connection(asyncio.Protocol):
    """One kept-alive connection to the provider: one answer at a time, read as it comes."""

    def __init__(self) -> None:
        self._parser: Any = None
        self._transport: Any = None  # asyncio.Transport; uvloop's share no base class with it
        self._waiter: asyncio.Future[None] | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.chunks: list[bytes] = []
        self.status = 0
        self.is_complete = False

    def send(self, request: bytes) -> None:
        """Write a request and get ready for its answer."""
        self._parser = httptools.HttpResponseParser(self)
        self.headers, self.chunks = [], []
        self.status, self.is_complete = 0, False
        self._transport.write(request)

    async def more(self) -> None:
        """Wait until more of the answer is here."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name not in DROPPED:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    def on_message_complete(self) -> None:
        self.is_complete = True


class Floor:
    """The ASGI application."""

    def __init__(self, upstream_port: int) -> None:
        self._port = upstream_port
        self._idle: list[Connection] = []
        self._head = (
            b"POST %%b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer sk-bench\r\ncontent-length: %%d\r\n\r\n%%b" % upstream_port
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await _read_body(receive)
        connection = self._idle.pop() if self._idle else await self._connect()
        connection.send(self._head % (scope["raw_path"], len(body), body))
        await connection.more()
        while not connection.status:
            await connection.more()
        start = {"type": "http.response.start", "status": connection.status, "headers": connection.headers}
        if any(name == b"content-length" for name, _ in connection.headers):
            await _send_whole(connection, start, send)
        else:
            await _send_stream(connection, start, send)
        self._idle.append(connection)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", self._port)
        return connection


async def _read_body(receive: Any) -> bytes:
    message = await receive()
    body: bytes = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    return body


async def _send_whole(connection: Connection, start: dict[str, Any], send: Any) -> None:
    while not connection.is_complete:
        await connection.more()
    await send(start)
    await send({"type": "http.response.body", "body": b"".join(connection.chunks)})


async def _send_stream(connection: Connection, start: dict[str, Any], send: Any) -> None:
    await send(start)
    while True:
        chunks, connection.chunks = connection.chunks, []
        if chunks:
            await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": True})
        elif connection.is_complete:
            break
        else:
            await connection.more()
    await send({"type": "http.response.body", "body": b""})


def config_of(upstream_port: int, port: int = 0) -> uvicorn.Config:
    """How uvicorn serves the floor in front of a provider at `upstream_port`."""
    return uvicorn.Config(
        Floor(upstream_port),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        backlog=4096,
    )


if __name__ == "__main__":
    uvicorn.Server(config_of(int(sys.argv[2]), int(sys.argv[1]))).run()
