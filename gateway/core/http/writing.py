"""One request on its connection: its body is read, its framing checked, its answer written; in this order.

A whole answer is one write, a part of a stream is one write. `Cycle` is for the hot endpoints, which are served without
ASGI's messages; `AsgiCycle` is uvicorn's, for every application behind it. The connection feeds both in the same way, and
the writers answer both; last comes `WholeResponse`, for routes that starlette has found. It must not know what a request or
an answer means. Invariants: whoever sends a part waits until the client has taken enough of what was written before; no
more of a body is held than the connection's high-water mark until somebody asks for it, and then no more than was asked
for; whoever waits for a body is woken when it is complete, when it is too large, and when its client has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sized
from io import BytesIO
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.core.errors import (
    BodyTooLarge,
    CallerFault,
    GatewayError,
    HeadersTooLarge,
    InvalidRequest,
    NotSupported,
    VersionNotSupported,
)
from gateway.core.render import OPENAI, error_body, error_headers, named_request
from gateway.core.types import Endpoint

# --- a request: its head, its body as it comes, and how far its answer is ---


STEP_BYTES = 256 * 1024
"""The bytes of a body that may come before it is counted."""
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
        # Reading goes on, because whoever waits has set a bound.
        if length <= self._limit:
            return 0
        self.wake()
        return length

    def wake(self) -> None:
        """Wake whoever waits for the body, to look again."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def leave(self) -> None:
        """The client has gone, or is taken to be."""
        self.disconnected = True
        self.wake()

    async def read_body(self, limit: int, count: Callable[[int], None]) -> bytes:
        """The whole body. Raises BodyTooLarge before much more than `limit` bytes are held, ClientGone when it breaks off.

        `count` gets the size of each STEP_BYTES that have come, while more is awaited.
        """
        counted = 0
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(CONTINUE)
            self.waiting_for_100_continue = False
        while self.more_body and not self.disconnected and (length := self._length()) <= limit:
            count(length - counted)
            counted = length
            # Up to so many bytes, `add` wakes nobody.
            self._limit = min(limit, length + STEP_BYTES)
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

    async def run_asgi(self, app: Any) -> None:
        """Has the application answer. What it does not take of the scope, it gives up with its end."""
        try:
            await super().run_asgi(app)
        finally:
            self.scope["state"].pop("cycle", None)  # it holds the scope: only the collector could free both

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

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the body as it comes. When the client leaves it waits: whoever reads is stopped by then."""
        while True:
            message: Any = await self.receive()
            if message["type"] != "http.request":
                await self.connection.loop.create_future()
            yield message["body"]
            if not message["more_body"]:
                return

    def give_back(self, read: bytes) -> None:
        """Lets whoever reads the body next begin with these bytes, which somebody has read."""
        self.body[:0] = read
        self.message_event.set()

    async def read_body(self, limit: int, count: Callable[[int], None]) -> bytes:
        """As a `Cycle`'s."""
        whole = BytesIO()
        while True:
            message: Any = await self.receive()
            if message["type"] != "http.request":
                raise ClientGone
            if whole.write(message["body"]) and whole.tell() > limit:
                raise too_large(limit)
            if message["more_body"]:
                count(len(message["body"]))
            if not message["more_body"]:
                return whole.getvalue() if self.reshape is None else self.reshape(whole.getvalue())


AnyCycle = Cycle | AsgiCycle


def too_large(limit: int) -> BodyTooLarge:
    """Refuses a body above the limit, which `server.max_body` sets, or else the endpoint."""
    return BodyTooLarge(
        f"The request body is larger than the limit of {limit} bytes. Send less, or have a larger server.max_body configured."
    )


# --- framing: how much of head and trailers is taken, which codings, versions and offers are refused ---
#
# Sources: RFC 9112 (2.3 versions, 6.1 transfer codings, 7.1.2 trailers), RFC 9110 (7.8 Upgrade).


MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 256
MAX_TRAILER_BYTES = 65_536
MAX_TRAILER_LINES = 100
LINE_OVERHEAD_BYTES = 4
"""A header line's colon, space and line end."""

Header = tuple[bytes, bytes]
FRAMING = (b"content-length", b"transfer-encoding")


class TrailersTooLarge(Exception):
    """A chunked body is followed by more than anybody needs; raised in the parser's callback, it stops the parser."""


class Trailers:
    """Where header lines behind a chunked body go instead of into the head: they are counted and forgotten.

    Nothing of ours needs one, and one merged into the head could authenticate a request or change what a provider gets
    (RFC 9112, 7.1.2 allows to discard them).
    """

    __slots__ = ("_bytes", "_lines")

    def __init__(self) -> None:
        self._bytes = self._lines = 0

    def append(self, header: Header) -> None:
        """Forget a line. Raises TrailersTooLarge when there are too many."""
        self._lines += 1
        self._bytes += len(header[0]) + len(header[1]) + LINE_OVERHEAD_BYTES
        if self._lines > MAX_TRAILER_LINES or self._bytes > MAX_TRAILER_BYTES:
            raise TrailersTooLarge


def fault_of_version(version: str) -> CallerFault | None:
    """Why a request of another version than 1.0 and 1.1 is refused; None: it has one of these."""
    if version in ("1.0", "1.1"):
        return None
    return no_version() if version.startswith("0.") else other_version()


def no_version() -> InvalidRequest:
    """Refuses HTTP/0.9, whose request line is all there is."""
    return InvalidRequest("HTTP/0.9 is not spoken here; send HTTP/1.1.", code="invalid_http")


def other_version() -> VersionNotSupported:
    """Refuses a version that came in HTTP/1's clothes."""
    return VersionNotSupported("This port speaks HTTP/1.1 and HTTP/1.0; switch HTTP/2 off in the client or the proxy.")


def fault_of_coding(coding: bytes) -> CallerFault | None:
    """Why a body of this `Transfer-Encoding`, of one or more lines, cannot be read (RFC 9112, 6.1 and 6.3)."""
    codings = [each.strip(b" \t").lower() for each in coding.split(b",")]
    if codings == [b"chunked"]:
        return None
    if codings[-1] != b"chunked" or codings.count(b"chunked") > 1:
        return not_http("the end of the body cannot be told")
    return NotSupported(
        "A Transfer-Encoding other than 'chunked' is not supported; send the body uncompressed.",
        param="Transfer-Encoding",
        code="transfer_encoding_not_supported",
    )


def fault_of_offer(method: bytes, headers: Iterable[Header], *, has_sessions: bool = False) -> CallerFault | None:
    """Why an offer of another protocol is refused and not just declined: a WebSocket handshake has no other meaning.

    None: the request is one without the offer, too (h2c, TLS), or its path `has_sessions`.
    """
    offers = b",".join([value for name, value in headers if name == b"upgrade"]).lower()
    names = {offer.partition(b"/")[0].strip() for offer in offers.split(b",")}  # a version may follow the name
    if method != b"GET" or b"websocket" not in names or has_sessions:
        return None
    return NotSupported(
        "No WebSockets are served at this path; use the HTTP endpoint.",
        param="Upgrade",
        code="websocket_not_supported",
    )


def head_too_large() -> HeadersTooLarge:
    """Refuses a head over MAX_HEAD_BYTES."""
    return HeadersTooLarge(f"The request line and headers exceed {MAX_HEAD_BYTES} bytes.")


def trailers_too_large() -> HeadersTooLarge:
    """Refuses what follows a body's last chunk, or stands in the head of one."""
    return HeadersTooLarge(
        f"The body's trailers exceed {MAX_TRAILER_LINES} lines or {MAX_TRAILER_BYTES} bytes, or a chunk's head does."
    )


def not_http(reason: str) -> CallerFault:
    """Refuses what the parser cannot read, for its `reason`."""
    if "HTTP version" in reason or "PRI" in reason:  # HTTP/2's connection preface
        return other_version()
    return InvalidRequest(
        "The request is not valid HTTP/1.1: check its request line, headers and body framing.", code="invalid_http"
    )


def body_framing(headers: Iterable[Header]) -> list[bytes]:
    """The header lines that say where the body ends; empty: there is none."""
    return [b"%s: %s\r\n" % header for header in headers if header[0] in FRAMING]


def head_bytes(url: bytes, headers: Iterable[Header]) -> int:
    """How many bytes a head has, but for its first line's method and version."""
    return len(url) + sum(len(name) + len(value) + LINE_OVERHEAD_BYTES for name, value in headers)


UNSENT_BYTES = 8 * 1024
"""The bytes that may wait in the process for a client, beside a part that is being written; the kernel takes more."""
LARGE_BYTES = 2048
UNKNOWN = -1
"""The length of an answer that ends with its connection."""


class BackpressureFlow(FlowControl):
    """Reads nothing more while requests are waiting for their turn: a peer cannot queue up without bound."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting
        transport.set_write_buffer_limits(UNSENT_BYTES, UNSENT_BYTES // 4)

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


def refusal_bytes(error: GatewayError, request_id: str) -> bytes:
    """The bytes of an error that answers no request."""
    body = error_body(error)
    headers = error_headers(error, len(body))
    headers += [(b"x-request-id", request_id.encode()), (b"connection", b"close")]
    return b"".join((STATUS_LINE[error.status], *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body))


async def answer_at_once(cycle: AnyCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Give a whole answer, once the client has taken enough of what was written before."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    write_whole(cycle, status, headers, body)


async def answer_error(cycle: AnyCycle, error: GatewayError, extra: list[tuple[bytes, bytes]]) -> None:
    """Answer with an error; `extra` carries the request id and whatever the call's trail has to tell."""
    shape = OPENAI if cycle.endpoint is None else cycle.endpoint.shape
    request_id = dict(named_request(shape, extra)).get(shape.request_id_header or b"x-request-id", b"")
    body = shape.error_body(error, request_id.decode("latin-1"))
    await answer_at_once(cycle, error.status, error_headers(error, len(body)) + extra, body)


def write_whole(cycle: AnyCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Write a whole answer at once, instead of in the two pieces that ASGI messages make.

    The headers are trusted: those of a provider have passed a strict parser, ours are made here.
    """
    if cycle.disconnected:
        return
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    lines = b"\r\n".join(map(b": ".join, [*cycle.default_headers, *headers]))
    end = b"\r\n\r\n" if cycle.keep_alive else b"\r\nconnection: close\r\n\r\n"
    cycle.transport.write(STATUS_LINE[status] + lines + end + (body if cycle.method != "HEAD" else b""))
    cycle.response_complete = True
    # Before the next line, which starts no waiting request on a transport that is closing.
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.connection.on_response_complete()


async def start_stream(cycle: AnyCycle, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    """Write the head of an answer that comes in parts, once the client has taken enough of what was written before."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if not cycle.disconnected:
        begin_stream(cycle, headers, b"", status)


def begin_stream(cycle: AnyCycle, headers: list[tuple[bytes, bytes]], first: bytes, status: int = 200) -> None:
    """Write the head and the first part of an answer; `send_chunk` and `end_stream` do the rest.

    As long as its `content-length` says, else chunked, or for a client of HTTP/1.0, which does not know chunks, up to the end
    of the connection.
    """
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    length = next((value for name, value in headers if name == b"content-length"), None)
    has_body = cycle.method != "HEAD" and status not in (204, 304)
    cycle.chunked_encoding = has_body and length is None and cycle.http_version == "1.1"
    cycle.expected_content_length = 0 if not has_body else UNKNOWN if length is None else int(length)
    if cycle.chunked_encoding:
        headers = [*headers, (b"transfer-encoding", b"chunked")]
    elif cycle.expected_content_length == UNKNOWN:
        cycle.keep_alive = False
    lines = b"\r\n".join(map(b": ".join, [*cycle.default_headers, *headers]))
    end = b"\r\n\r\n" if cycle.keep_alive else b"\r\nconnection: close\r\n\r\n"
    cycle.transport.write(STATUS_LINE[status] + lines + end + (_framed(cycle, first) if first else b""))


def write_chunk(cycle: AnyCycle, chunk: bytes) -> None:
    """Write a part of a stream, however much waits for the client already."""
    cycle.transport.write(_framed(cycle, chunk))


async def send_chunk(cycle: AnyCycle, chunk: bytes) -> None:
    """Write the next part of a stream, and wait until its client has taken enough.

    What waits is all there is of the stream here: whoever makes the next part holds none while this one waits.
    """
    if chunk and not cycle.disconnected:  # an empty chunk would end the body
        if not cycle.chunked_encoding:
            _write_plain(cycle, chunk)
        elif len(chunk) > LARGE_BYTES:
            cycle.transport.writelines((b"%x\r\n" % len(chunk), chunk, b"\r\n"))  # not copied
        else:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()


def chunk_writer(cycle: AnyCycle) -> Callable[[bytes], bool]:
    """Returns a function that writes a part of a chunked stream, unless its client has to be waited for: then it does
    nothing and returns False, and the part is for `send_chunk`."""
    flow, write = cycle.flow, cycle.transport.write

    def write_part(chunk: bytes) -> bool:
        if flow.write_paused or cycle.disconnected:
            return False
        write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        return True

    return write_part


async def end_stream(cycle: AnyCycle, last: bytes = b"") -> None:
    """End what `begin_stream` began, behind these bytes. Raises RuntimeError where its length was announced as another."""
    await send_chunk(cycle, last)
    if cycle.disconnected:
        return
    if cycle.chunked_encoding:
        cycle.transport.write(b"0\r\n\r\n")
    elif cycle.expected_content_length > 0:
        raise RuntimeError("the answer is shorter than its content-length")
    cycle.response_complete = True
    # Before the next line, as in `write_whole`.
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.connection.on_response_complete()


def _write_plain(cycle: AnyCycle, chunk: bytes) -> None:
    if cycle.method == "HEAD":
        return
    if cycle.expected_content_length != UNKNOWN:
        cycle.expected_content_length -= len(chunk)
        if cycle.expected_content_length < 0:
            raise RuntimeError("the answer is longer than its content-length")
    cycle.transport.write(chunk)


def _framed(cycle: AnyCycle, chunk: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(chunk), chunk) if cycle.chunked_encoding else chunk


# --- a whole answer of a route that starlette has found ---


class WholeResponse(Response):
    """An answer whose body is there: head and body are one write, where ASGI's two messages make two.

    Behind another server, or one of starlette's own applications in a test, it is a response as any other.
    """

    def __init__(self, body: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:  # pylint: disable=super-init-not-called
        """`headers` are made here, not by a caller: they are written as they are. The length of the body is added."""
        self.body = body
        self.status_code = status
        self.background = None
        self.raw_headers = [*headers, (b"content-length", b"%d" % len(body))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request."""
        cycle = scope.get("state", {}).pop("cycle", None)  # it holds the scope: only the collector could free both
        if isinstance(cycle, AsgiCycle):
            await answer_at_once(cycle, self.status_code, self.raw_headers, bytes(self.body))
        else:
            await super().__call__(scope, receive, send)
