"""A provider that does exactly what its script says, byte by byte.

Each connection runs one script: a flat list of steps. `READ` takes one request, bytes are written, `CLOSE` and `RESET`
end the connection, an `asyncio.Event` is waited for, a `Cut` writes bytes in pieces that arrive one by one. After the
last step the connection stays open until the peer leaves.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType


class Step(Enum):
    """What a script can do besides writing and waiting."""

    READ = "read one request"
    READ_HEAD = "read one request's head"
    CLOSE = "close the connection"
    DROP = "end the connection without TLS's goodbye"
    RESET = "reset the connection"
    STOP_READING = "leave what the peer sends in the kernel"


READ, READ_HEAD, CLOSE, DROP, RESET, STOP_READING = (
    Step.READ,
    Step.READ_HEAD,
    Step.CLOSE,
    Step.DROP,
    Step.RESET,
    Step.STOP_READING,
)


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes that arrive in pieces, cut at these indexes."""

    data: bytes
    at: tuple[int, ...]

    def pieces(self) -> list[bytes]:
        edges = [0, *self.at, len(self.data)]
        return [self.data[a:b] for a, b in itertools.pairwise(edges) if a < b]


Script = Sequence[bytes | Cut | Step | asyncio.Event]


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came over the wire; a chunked body is decoded."""

    head: bytes
    body: bytes

    @property
    def line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    def header(self, name: bytes) -> bytes | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b": ")
            if key.lower() == name:
                return value
        return None


@dataclass
class RawServer:
    """Serve scripts on loopback; the n-th connection gets the n-th script, later ones the last."""

    scripts: list[Script]
    tls: ssl.SSLContext | None = None
    requests: list[Received] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)  # bytes of requests that did not come whole
    connections: int = 0
    protocols: list[str | None] = field(default_factory=list)  # what ALPN chose, per TLS connection
    gone: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))  # one permit per closed connection
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await yield_to_peer()  # a connection just accepted has no task yet
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await yield_to_peer()

    def stop_listening(self) -> None:
        """Refuse further connections; open ones go on."""
        assert self._server is not None
        self._server.close()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        if self.tls is not None:
            self.protocols.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        try:
            await self._play(script, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            self.raw.append(getattr(exc, "partial", b""))
        except asyncio.CancelledError:
            return  # the test is over; asyncio's streams would report the cancellation as an error
        finally:
            writer.transport.abort()
            self.gone.release()
            self._tasks.discard(task)

    async def _play(self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for step in script:
            if writer.transport.is_closing():
                return
            match step:
                case bytes():
                    writer.write(step)
                    await writer.drain()
                case Cut():
                    for piece in step.pieces():
                        if writer.transport.is_closing():  # uvloop's write raises
                            return
                        writer.write(piece)
                        await yield_to_peer()
                case asyncio.Event():
                    await step.wait()
                case Step.READ:
                    self.requests.append(await _read_request(reader))
                case Step.READ_HEAD:
                    await reader.readuntil(b"\r\n\r\n")
                case Step.STOP_READING:
                    writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport of start_server reads
                case Step.CLOSE:
                    writer.close()
                    await writer.wait_closed()
                    return
                case Step.DROP:
                    await yield_to_peer()
                    writer.transport.abort()  # closes the socket; no close_notify
                    return
                case Step.RESET:
                    _reset(writer)
                    return
        await reader.read()


async def yield_to_peer() -> None:
    """Let both ends of a loopback connection see what was written."""
    for _ in range(3):
        await asyncio.sleep(0)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> Received:
    head = await reader.readuntil(b"\r\n\r\n")
    request = Received(head[:-4], b"")
    length = request.header(b"content-length")
    if length is not None:
        return Received(request.head, await reader.readexactly(int(length)))
    if request.header(b"transfer-encoding") is None:
        return request
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return Received(request.head, body)
