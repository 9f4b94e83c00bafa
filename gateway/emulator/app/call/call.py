"""One call on the wire: its request, and every way to answer it or to fail to.

It knows ASGI and, through `EmulatorServer`, the transport below it. It must not know the contents of bodies. Invariant: a peer
that leaves before the last byte is noticed at once, counted once, and ends every wait of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.emulator.answers.reply import EmulatedReply, Headers
from gateway.emulator.app.call.stats import Recorded, Stats
from gateway.emulator.problems.shapes import LANGUAGES
from gateway.emulator.server.listener import reset

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Sleep = Callable[[float], Awaitable[None]]

TRANSPORT = "emulator.transport"  # where EmulatorServer puts the asyncio transport into the scope
CONNECTIONS = "emulator.connections"  # and the collection of its open connections


class PeerGoneError(Exception):
    """The peer left before the request was complete."""


class EmulatedCall:
    """One request and its answer; `dialect` is the shape of its errors, `request_id` what they call it."""

    __slots__ = (
        "_identity",
        "_receive",
        "_send",
        "_sleep",
        "_stats",
        "_task",
        "_transport",
        "_watcher",
        "arrived_at",
        "body",
        "dialect",
        "endpoint",
        "headers",
        "is_finished",
        "is_peer_gone",
        "limit_headers",
        "method",
        "model",
        "now",
        "path",
        "recorded",
        "request_id",
        "scope",
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, stats: Stats, now: Callable[[], float], sleep: Sleep
    ) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.body = b""
        self.endpoint = "other"
        self.model = ""
        self.dialect = "openai"
        self.request_id = ""
        self.arrived_at = now()
        self.is_finished = False
        self.is_peer_gone = False
        self.limit_headers: Callable[[], Headers] | None = None
        self.recorded: Recorded | None = None
        self._identity: Headers = ()
        self._receive = receive
        self._send = send
        self._stats = stats
        self.now = now
        self._sleep = sleep
        # Absent without EmulatorServer; then a call that should break the connection just ends without an answer.
        self._transport: asyncio.Transport | None = scope.get(TRANSPORT)
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def header(self, name: bytes) -> bytes:
        """Returns the first value of a header (name in lower case), or nothing."""
        return next((value for each, value in self.headers if each == name), b"")

    def identify(self, dialect: str, request_id: str, identity: Headers) -> None:
        """Says whose API is asked, and sets the headers that every answer to this call carries."""
        self.dialect, self.request_id, self._identity = dialect, request_id, identity

    async def read_body(self) -> None:
        """Reads the whole body; raises PeerGoneError when the peer leaves before its end."""
        message = await self._receive()
        chunks = [message.get("body", b"")]
        while message["type"] == "http.request" and message.get("more_body"):
            message = await self._receive()
            chunks.append(message.get("body", b""))
        if message["type"] != "http.request":
            self._note_departure()
            raise PeerGoneError
        self.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._stats.bytes_in += len(self.body)

    async def reply(self, reply: EmulatedReply) -> None:
        """Sends a whole reply."""
        await self.start(reply, len(reply.body))
        await self.finish(reply.body)

    async def start(self, reply: EmulatedReply, length: int | None) -> None:
        """Sends status and headers; a `length` of None means chunked."""
        self._stats.statuses[reply.status] += 1
        if self.recorded is not None:
            self.recorded.status = reply.status
        headers = [(b"content-type", reply.content_type), *reply.headers]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        if not reply.is_foreign:
            headers += self._identity
            if self.dialect not in LANGUAGES:
                headers.append((b"openai-processing-ms", b"%d" % ((self.now() - self.arrived_at) * 1000)))
        if self.limit_headers is not None and not (reply.is_bare or reply.is_foreign):
            headers += self.limit_headers()
        await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Sends a part of the body; once the connection is lost it waits for the watcher to end the call."""
        if self._transport is not None and self._transport.is_closing():
            await self.hang()
        self._stats.bytes_out += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Sends the last part of the body."""
        self.is_finished = True
        self._stats.bytes_out += len(data)
        await self._send({"type": "http.response.body", "body": data})

    async def sleep(self, seconds: float) -> None:
        """Waits on the emulator's clock; ends early, with the call, when the peer leaves."""
        self.watch()
        await self._sleep(seconds)

    async def hang(self) -> None:
        """Waits until the peer leaves."""
        self.watch()
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Closes the connection in an orderly way, in the middle of whatever was being sent."""
        self.is_finished = True
        if self._transport is not None:
            self._transport.close()
            await self._until_disconnect()

    async def reset(self) -> None:
        """Closes the connection with a TCP RST."""
        self.is_finished = True
        if self._transport is not None:
            reset(self._transport)
            await self._until_disconnect()

    def smuggle(self, data: bytes) -> None:
        """Writes bytes past the end of the body onto the connection."""
        if self._transport is not None:
            self._transport.write(data)

    def watch(self) -> None:
        """Watches for the peer's leaving from now on; when it leaves, the current task is cancelled."""
        if self._watcher is None:
            self._task = asyncio.current_task()
            self._watcher = asyncio.create_task(self._watch())

    def end(self) -> None:
        """Stops watching."""
        if self._watcher is not None:
            self._watcher.cancel()

    async def _watch(self) -> None:
        await self._until_disconnect()
        if not self.is_finished:
            self._note_departure()
            if self._task is not None:
                self._task.cancel()

    def _note_departure(self) -> None:
        self.is_peer_gone = True
        if self.recorded is not None:
            self.recorded.is_left = True
        self._stats.peer_left(self.path, self.model, self.now())

    async def _until_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
