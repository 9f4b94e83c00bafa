"""One request on its connection: its head, its body as it comes, and how far its answer is.

`Cycle` is for the hot endpoints, which are served without ASGI's messages; `AsgiCycle` is uvicorn's, for every application
behind it. The connection feeds both in the same way, and `writing.py` answers both. They must not know what a request means.
Invariants: no more of a body is held than the connection's high-water mark until somebody asks for it, and then no more than
was asked for; whoever waits for a body is woken when it is complete, when it is too large, and when its client has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from io import BytesIO
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from gateway.core.errors import BodyTooLarge
from gateway.core.types.words import Endpoint

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientGone(Exception):
    """The client left before its body was complete."""


class CycleOwner(Protocol):
    """What a cycle knows of the connection it belongs to."""

    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop
    server_state: ServerState
    tasks: set[asyncio.Task[None]]
    logger: logging.Logger
    access_logger: logging.Logger
    url: bytes
    on_gone: Callable[[], None] | None

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Another protocol has the connection from now on."""

    def on_response_complete(self) -> None:
        """The answer has been written: whatever came behind its request has its turn."""


class Cycle:
    """A POST to a hot endpoint, whose URL is the endpoint's path and nothing else."""

    # What most requests leave as it is stands here, so that making a cycle sets what differs.
    method = "POST"
    query = b""
    task: asyncio.Task[None] | None = None
    """Serves it, once its turn has come."""
    is_refused = False
    """Its body turned out to be wrong before its turn came."""
    waiting_for_100_continue = False
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = 0
    first: bytes = b""
    """The body, or the first piece of it, until somebody takes it."""
    rest: BytesIO | None = None
    """All pieces of a body that has come in several; to join them in the end would take milliseconds."""
    waiter: asyncio.Future[None] | None = None
    """Wakes the one who waits for the body."""
    _limit = 0

    def __init__(
        self,
        connection: CycleOwner,
        endpoint: Endpoint,
        headers: list[tuple[bytes, bytes]],
        index: dict[bytes, bytes],
        http_version: str,
        keep_alive: bool,  # positional, as it is made once per request
    ) -> None:
        self.connection = connection
        self.transport = connection.transport
        self.flow = connection.flow
        self.default_headers = connection.server_state.default_headers
        self.url = connection.url
        self.endpoint = endpoint
        self.headers = headers
        self.index = index
        self.http_version = http_version
        self.keep_alive = keep_alive

    @property
    def scope(self) -> dict[str, Any]:
        """The request as ASGI has it, for the few who want that."""
        return {"method": self.method, "path": self.url.decode("ascii"), "raw_path": self.url}

    def add(self, part: bytes) -> int:
        """Take a piece of the body; returns how many bytes wait for somebody to take them."""
        if self.rest is None:
            self.rest = BytesIO()
            self.rest.write(self.first)
            self.first = b""
        self.rest.write(part)
        length = self.rest.tell()
        if self.waiter is None:
            return length
        if length <= self._limit:
            return 0
        self.wake()
        return length

    def wake(self) -> None:
        """Tell whoever waits for the body to look again."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def leave(self) -> None:
        """The client has gone, or is taken to be."""
        self.disconnected = True
        self.wake()

    async def read_body(self, limit: int) -> bytes:
        """The whole body. Raises BodyTooLarge before much more than `limit` bytes are held, ClientGone when it breaks off."""
        self._limit = limit
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(CONTINUE)
            self.waiting_for_100_continue = False
        while self.more_body and not self.disconnected and self._length() <= limit:
            self.flow.resume_reading()
            self.waiter = self.connection.loop.create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        if self.disconnected:
            raise ClientGone
        if self._length() > limit:
            raise too_large(limit)
        body = self.first if self.rest is None else self.rest.getvalue()
        self.first, self.rest = b"", None
        return body

    def _length(self) -> int:
        return len(self.first) if self.rest is None else self.rest.tell()


class AsgiCycle(RequestResponseCycle):
    """A request to an ASGI application."""

    waiter: Any = True  # as if somebody always waited
    first = b"taken"
    rest = None
    is_refused = False
    task: asyncio.Task[None] | None = None
    endpoint: Any = None
    """Set by the edge, where it is one of its own."""
    reshape: Callable[[bytes], bytes] | None = None
    """Makes the body what the endpoint reads, where the path says a part of it; set by the edge."""

    def __init__(
        self, connection: CycleOwner, scope: Any, index: dict[bytes, bytes], *, expects: bool, keep_alive: bool
    ) -> None:
        super().__init__(
            scope=scope,
            transport=connection.transport,
            flow=connection.flow,
            logger=connection.logger,
            access_logger=connection.access_logger,
            access_log=False,
            default_headers=connection.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=expects,
            keep_alive=keep_alive,
            on_response=connection.on_response_complete,
        )
        self.connection = connection
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.index = index
        self.method: str = scope["method"]
        self.query: bytes = scope["query_string"]
        self.http_version: str = scope["http_version"]

    def add(self, part: bytes) -> int:
        """As a `Cycle`'s."""
        self.body += part
        self.message_event.set()
        return len(self.body)

    def wake(self) -> None:
        """As a `Cycle`'s."""
        self.message_event.set()

    def leave(self) -> None:
        """As a `Cycle`'s."""
        self.disconnected = True
        self.message_event.set()

    async def read_body(self, limit: int) -> bytes:
        """As a `Cycle`'s."""
        whole = BytesIO()
        while True:
            message: Any = await self.receive()
            if message["type"] != "http.request":
                raise ClientGone
            if whole.write(message["body"]) and whole.tell() > limit:
                raise too_large(limit)
            if not message["more_body"]:
                return whole.getvalue() if self.reshape is None else self.reshape(whole.getvalue())


AnyCycle = Cycle | AsgiCycle


def too_large(limit: int) -> BodyTooLarge:
    """Refuses a body that has grown above the limit."""
    return BodyTooLarge(f"The request body is larger than the limit of {limit} bytes.")
