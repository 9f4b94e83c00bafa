"""A provider that speaks HTTP/1.1 or HTTP/2 over TLS, and a wire in front of it that can be cut.

The provider does what the path says: `/whole` answers at once, `/silent` never begins, `/endless` writes events until it is
told to stop, and counts those, `/digest` tells what it was sent. The wire forwards TCP, as a proxy (CONNECT) or as it is.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from types import TracebackType

import h2.config
import h2.connection
import h2.events

EVENT = b'data: {"delta":"' + b"x" * 100 + b'"}\n\n'
TURNS_PER_EVENT = 5
"""Turns of the loop between two events: httpx's reader takes some for each, and would fall behind."""
BODY = b'{"object":"chat.completion"}'


@dataclass
class _Server:
    """Connections served by tasks that end with the server."""

    tls: ssl.SSLContext | None = None
    port: int = 0
    connections: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> _Server:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)

    def stop_listening(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            return  # the test is over; asyncio's streams would report it as an error
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


def digest(body: bytes) -> bytes:
    """What `/digest` answers with, once it has all of a body."""
    return sha256(body).hexdigest().encode()


@dataclass
class ProviderServer(_Server):
    """`asked` gets a permit for each request, `stopped` for each `/endless` that ended before its end."""

    written: int = 0
    asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    stopped: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
            await _Http2(self, reader, writer).run()
        else:
            await self._serve_http1(reader, writer)

    async def _serve_http1(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = b""
            if b"content-length: " in head:
                body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            path = head.split(b" ")[1]
            self.asked.release()
            if path == b"/whole":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY))
            elif path == b"/digest":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n" + digest(body))
            elif path == b"/silent":
                await reader.read()
                self.stopped.release()
                return
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                await self._write_events(lambda: self._chunk(reader, writer))

    async def _chunk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reader.at_eof() or writer.transport.is_closing():
            raise ConnectionResetError
        writer.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
        await writer.drain()

    async def _write_events(self, write: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                await write()
                self.written += 1
                for _ in range(TURNS_PER_EVENT):
                    await asyncio.sleep(0)
        except OSError:
            self.stopped.release()
            raise


class _Http2:
    """One HTTP/2 connection of a provider."""

    def __init__(self, server: ProviderServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._reset: set[int] = set()
        self._bodies: dict[int, bytes] = {}
        self._endless: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        self._state.initiate_connection()
        try:
            while True:
                self._writer.write(
                    self._state.data_to_send()
                )  # no `drain`: whoever only writes does not hear of a reset
                data = await self._reader.read(65_536)
                if not data:
                    return
                for event in self._state.receive_data(data):
                    self._handle(event)
        finally:
            for number, task in self._endless.items():
                task.cancel()
                if number not in self._reset:
                    self._server.stopped.release()

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            path = dict(event.headers or []).get(b":path", b"")
            number = event.stream_id
            assert number is not None
            if path == b"/whole":
                self._state.send_headers(number, [(":status", "200"), ("content-length", str(len(BODY)))])
                self._state.send_data(number, BODY, end_stream=True)
            elif path == b"/digest":
                self._bodies[number] = b""
            else:
                answers = self._answer(number, begins=path == b"/endless")
                self._endless[number] = asyncio.get_running_loop().create_task(answers)
            self._server.asked.release()
        elif isinstance(event, h2.events.DataReceived):
            assert event.flow_controlled_length is not None
            assert event.stream_id is not None
            self._state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if event.stream_id in self._bodies:
                self._bodies[event.stream_id] += event.data or b""
        elif isinstance(event, h2.events.StreamEnded) and event.stream_id in self._bodies:
            self._state.send_headers(event.stream_id, [(":status", "200"), ("content-length", "64")])
            self._state.send_data(event.stream_id, digest(self._bodies.pop(event.stream_id)), end_stream=True)
        elif isinstance(event, h2.events.StreamReset):
            assert event.stream_id is not None
            self._reset.add(event.stream_id)
            self._endless.pop(event.stream_id).cancel()
            self._server.stopped.release()

    async def _answer(self, number: int, *, begins: bool) -> None:
        if not begins:
            return
        self._state.send_headers(number, [(":status", "200"), ("content-type", "text/event-stream")])
        while True:
            if self._state.local_flow_control_window(number) > len(EVENT):
                self._state.send_data(number, EVENT)
                self._server.written += 1
            with suppress(OSError):
                await self._flush()
            for _ in range(TURNS_PER_EVENT):
                await asyncio.sleep(0)

    async def _flush(self) -> None:
        self._writer.write(self._state.data_to_send())
        await self._writer.drain()


@dataclass
class Wire(_Server):
    """TCP to `target`; `is_proxy`: after a CONNECT. The connections that are open can be cut, all at once."""

    target: int = 0
    is_proxy: bool = False
    _open: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_proxy:
            await reader.readuntil(b"\r\n\r\n")
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n" if self.is_proxy else b"")
            return
        if self.is_proxy:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self._open.append((writer, far_writer))
        try:
            await asyncio.wait(
                [asyncio.ensure_future(_pump(reader, far_writer)), asyncio.ensure_future(_pump(far_reader, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            far_writer.transport.abort()

    def cut(self) -> None:
        """End the connections to the client as if the provider's host had closed its sockets."""
        for near, _ in self._open:
            near.transport.abort()

    def reset(self) -> None:
        """Reset the connections to the client."""
        for near, _ in self._open:
            sock: socket.socket = near.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            near.transport.abort()

    def garble(self) -> None:
        """Put a TLS record that nobody can read into what the client gets."""
        for near, _ in self._open:
            near.write(b"\x17\x03\x03\x00\x20" + b"\0" * 32)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            if writer.transport.is_closing():
                return
            writer.write(data)
            await writer.drain()
