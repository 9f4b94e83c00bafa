"""A provider that streams as fast as it is read, and clients of such streams: each in a process of its own.

    python -m tests.soak.flood provider PORT
    python -m tests.soak.flood clients HOST PORT COUNT (read|ask)

A client that reads takes all it can get; one that asks sends its request and never reads. Clients say on standard output,
in one line, when all have asked, and how many bytes they had when their input ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from typing import Any

import orjson
import uvloop

from tests.e2e.harness import chat, post

EVENTS_PER_WRITE = 40
_FRAME = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
_CHOICE = {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}
EVENT = b"data: %b\n\n" % orjson.dumps({**_FRAME, "choices": [_CHOICE]})
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MESSAGE = {"role": "assistant", "content": "word"}
_WHOLE = orjson.dumps({**_FRAME, "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}]})
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_WHOLE), _WHOLE)


class Provider(asyncio.Protocol):
    """One connection: a stream without end, or a whole answer."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._is_paused = self._is_gone = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_gone = True

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._write()

    def data_received(self, data: bytes) -> None:
        if b'"stream":true' in data:
            self._transport.write(HEAD)
            self._write()
        else:
            self._transport.write(WHOLE)

    def _write(self) -> None:
        if not (self._is_paused or self._is_gone):
            self._transport.write(CHUNK * EVENTS_PER_WRITE)
            asyncio.get_running_loop().call_soon(self._write)


async def provide(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def ask(host: str, port: int, count: int, receive_buffer: int | None) -> list[socket.socket]:
    """This many connections, each with a stream asked for."""
    request = post(body=chat(stream=True))
    clients = []
    for _ in range(count):
        client = socket.socket()
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.connect((host, port))
        client.sendall(request)
        clients.append(client)
    return clients


async def read_all(clients: list[socket.socket]) -> None:
    """Take everything, until the input of this process ends."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    total, buffer = 0, bytearray(65536)

    def take(client: socket.socket) -> None:
        nonlocal total
        total += client.recv_into(buffer)

    def end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(done.set)

    for client in clients:
        client.setblocking(False)
        loop.add_reader(client, take, client)
    threading.Thread(target=end, daemon=True).start()
    await done.wait()
    say(str(total))
    os._exit(0)


def say(word: str) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    """See the module."""
    if sys.argv[1] == "provider":
        uvloop.run(provide(int(sys.argv[2])))
        return
    host, port, count, manner = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    clients = ask(host, port, count, None if manner == "read" else 65_536)
    say("asked")
    if manner == "read":
        uvloop.run(read_all(clients))
    else:
        sys.stdin.read()


if __name__ == "__main__":
    main()
