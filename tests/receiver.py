"""Who receives webhooks: a server on loopback, which remembers what was posted to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver:
    """A server that gives `answer` to each request; None: it never answers."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                if self.answer is None:
                    await reader.read()
                    return
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def receiver(answer: bytes | None) -> AsyncIterator[Receiver]:
    """A receiver on a port of its own."""
    one = Receiver(answer)
    server = await asyncio.start_server(one.handle, "127.0.0.1", 0)
    one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks?t=1"
    try:
        yield one
    finally:
        server.close()
