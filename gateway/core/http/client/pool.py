"""The connections to one origin: who has one, who waits for one, and when each must be over.

First the pool, then the way through a proxy for connections that are in no pool (`dial_through`).

A *slot* is the right to have one connection open; there are `max_connections`. It is held by every member of `connections`,
by every connect under way, and passes on to the longest waiting request when it is given up. All operations are O(1) except
the periodic `sweep`. Invariant: `slots_taken` equals members plus connects under way, and nobody waits while a slot or an
idle connection is free.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Any, cast

import httpx

from gateway.core.http.client.connection import Http1Connection, LoopTurns
from gateway.core.http.client.exchange import WireTimeouts
from gateway.core.http.client.redaction import with_phase
from gateway.core.types import Phase

EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Neither a connection that comes nor one that goes out can be had for want of these (accept(2), socket(2))."""
_OUTGOING = EXHAUSTED | {errno.EADDRNOTAVAIL}
"""Nor can one that goes out where every local port is taken (connect(2))."""
MAX_AGE_S = 300.0
"""A connection that is older is used no more: by a new one a provider is found that its name leads to by now."""
AGAIN_S = 0.05
"""How soon a connection is tried again that could not be had for a want of descriptors or ports."""
READ_BYTES = 16 * 1024
"""The bytes that the loop takes at once; left to itself it takes 256 KiB, which then waits for each slow reader."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a pool connects to; `tls` None is plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


Dial = Callable[[Callable[[], asyncio.BaseProtocol], Origin], Awaitable[object]]
"""Opens a connection to an origin, with TLS where it has one, for the protocol that the function makes. Raises OSError."""


async def dial_by_name(make: Callable[[], asyncio.BaseProtocol], origin: Origin) -> None:
    """Connects to whatever address the origin's name has now."""
    options: dict[str, Any] = {}
    if origin.tls is not None:
        options = {"ssl": origin.tls, "server_hostname": origin.host}
    # No `happy_eyeballs_delay`: uvloop has no such option, and CPython's loses the winning socket when cancelled.
    await asyncio.get_running_loop().create_connection(make, origin.host, origin.port, **options)


def is_own_want(error: BaseException) -> bool:
    """Whether no connection could be opened for a want of this process or machine, however often its error was wrapped."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and (cause.errno in _OUTGOING or _hides_want(cause)):
            return True
        cause = cause.__cause__ or cause.__context__  # httpcore raises again `from None`
    return False


def _hides_want(error: OSError) -> bool:
    """Whether a name was not resolved because this process can open nothing any more.

    The resolver needs files and sockets; without them it may answer as for a name that nobody has.
    """
    if not isinstance(error, socket.gaierror):
        return False
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as own:
        return own.errno in EXHAUSTED
    return False


class OriginPool:
    """Keep-alive connections to one origin; the newest idle one is used first, so that surplus ones expire."""

    __slots__ = (
        "_connecting",
        "_dialler",
        "_idle",
        "_idle_expiry_s",
        "_is_closed",
        "_max_connections",
        "_now",
        "_origin",
        "_waiting",
        "connections",
        "read_buffer",
        "slots_taken",
        "turns",
    )

    def __init__(
        self,
        origin: Origin,
        turns: LoopTurns,
        *,
        max_connections: int,
        idle_expiry_s: float,
        now: Callable[[], float],
        dial: Dial = dial_by_name,
    ) -> None:
        self._origin = origin
        self._dialler = dial
        self.turns = turns
        self._max_connections = max_connections
        self._idle_expiry_s = idle_expiry_s
        self._now = now
        self._idle: dict[Http1Connection, None] = {}  # a stack that any member can leave
        self._waiting: OrderedDict[asyncio.Future[Http1Connection | None], float] = OrderedDict()  # with deadlines
        self._connecting: dict[asyncio.Task[Http1Connection], float] = {}  # with deadlines
        self._is_closed = False
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.connections: set[Http1Connection] = set()
        self.slots_taken = 0

    def __repr__(self) -> str:
        return f"{self._origin} active={self.active} idle={self.idle} waiting={self.waiting}"

    @property
    def active(self) -> int:
        return self.slots_taken - len(self._idle)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # Getting a connection.

    @property
    def has_room(self) -> bool:
        """Whether another connection may be opened now."""
        return self.slots_taken < self._max_connections

    def take_idle(self) -> Http1Connection | None:
        """Return the connection used last, closing those that idled too long."""
        while self._idle:
            connection, _ = self._idle.popitem()
            # `is_usable`, without a call: each call of each client comes by.
            if not connection.is_closed and self._now() < connection.deadline and not connection.transport.is_closing():
                return connection
            connection.discard()
        return None

    async def connect(self, timeouts: WireTimeouts) -> Http1Connection:
        """Return a connection when none is idle: a new one, or the next one given back when all slots are taken.

        Raises `httpx.PoolTimeout`, `ConnectTimeout` or `ConnectError`; on these and on cancellation the slot is free.
        """
        if self.slots_taken < self._max_connections:
            self.slots_taken += 1
            return await self._open(timeouts)
        connection = await self._wait_for_slot(timeouts)
        if connection is None:
            # A slot has been passed on without a connection; it stays counted as taken.
            return await self._open(timeouts)
        if not connection.is_usable():  # died between being handed over and being taken
            return await self.replace(connection, timeouts)
        return connection

    async def replace(self, dead: Http1Connection, timeouts: WireTimeouts) -> Http1Connection:
        """Open a new connection in the slot of a dead one."""
        self.connections.discard(dead)
        return await self._open(timeouts)

    async def _wait_for_slot(self, timeouts: WireTimeouts) -> Http1Connection | None:
        turn: asyncio.Future[Http1Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = self._now() + timeouts.pool_s
        try:
            return await turn
        except BaseException:
            self._waiting.pop(turn, None)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on(turn.result())  # it was our turn, and we are cancelled
            raise

    def _pass_on(self, connection: Http1Connection | None) -> None:
        if connection is None:
            self._free_slot()
        elif connection.is_usable():
            self.release(connection)
        else:
            connection.discard()

    async def _open(self, timeouts: WireTimeouts) -> Http1Connection:
        """Open a connection in a slot that is already taken; the slot is freed on failure.

        Where this process lacks what a connection takes, it waits for others to end, as long as a connect may take.
        """
        gives_up_at = self._now() + timeouts.connect_s
        try:
            while True:
                try:
                    connect_s = gives_up_at - self._now()
                    if self._is_closed:
                        raise self._unreachable(httpx.ConnectError, "the transport is closed")
                    attempt = asyncio.get_running_loop().create_task(self._dial())
                    self._connecting[attempt] = self._now() + connect_s
                    try:
                        # `wait` leaves the attempt alone when we are cancelled, so the two cancellations stay apart.
                        await asyncio.wait((attempt,))
                    except BaseException:
                        attempt.cancel()
                        attempt.add_done_callback(_abort_result)
                        raise
                    finally:
                        del self._connecting[attempt]
                    connection = self._result_of(attempt)
                    connection.ages_at = self._now() + MAX_AGE_S
                    self.connections.add(connection)
                    return connection
                except httpx.ConnectError as error:
                    if not is_own_want(error) or self._now() + AGAIN_S > gives_up_at:
                        raise
                await asyncio.sleep(AGAIN_S)
        except BaseException:
            self._free_slot()
            raise

    def _result_of(self, attempt: asyncio.Task[Http1Connection]) -> Http1Connection:
        if attempt.cancelled():
            if self._is_closed:
                raise self._unreachable(httpx.ConnectError, "the transport is closed")
            raise self._unreachable(httpx.ConnectTimeout, "no connection in time")
        error = attempt.exception()
        if isinstance(error, (OSError, UnicodeError)):  # ssl.SSLError is an OSError; IDNA refuses with UnicodeError
            raise self._unreachable(httpx.ConnectError, str(error) or type(error).__name__) from error
        connection = attempt.result()
        if not connection.is_usable():
            connection.abort()
            raise self._unreachable(httpx.ConnectError, "the connection was closed before it was used")
        return connection

    def _unreachable(self, kind: type[httpx.TransportError], reason: str) -> httpx.TransportError:
        return with_phase(kind(f"cannot connect to {self._origin}: {reason}"), Phase.NOTHING_SENT)

    async def _dial(self) -> Http1Connection:
        connection = Http1Connection(self, self._now)
        try:
            await self._dialler(lambda: connection, self._origin)
        except BaseException:
            connection.abort()
            raise
        return connection

    # What connections tell.

    def release(self, connection: Http1Connection) -> None:
        """Take a clean connection back, or hand it to whoever has waited longest; an old one is closed."""
        now = self._now()
        if now > connection.ages_at:
            connection.discard()
            return
        turn = self._next_turn() if self._waiting else None
        if turn is not None:
            # The sweep must not expire it before its new owner takes it.
            connection.deadline = inf
            turn.set_result(connection)
            return
        connection.deadline = now + self._idle_expiry_s
        self._idle[connection] = None

    def drop(self, connection: Http1Connection) -> None:
        """Forget a closed connection and free its slot; does nothing for one that is not a member."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._idle.pop(connection, None)
            self._free_slot()

    def closed_while_unused(self, connection: Http1Connection) -> None:
        """Forget an idle connection that closed; one just handed over keeps its slot for whoever takes it."""
        if connection in self._idle:
            self.drop(connection)

    def _free_slot(self) -> None:
        turn = self._next_turn()
        if turn is None:
            self.slots_taken -= 1
        else:
            turn.set_result(None)

    def _next_turn(self) -> asyncio.Future[Http1Connection | None] | None:
        while self._waiting:
            turn, _ = self._waiting.popitem(last=False)
            if not turn.done():
                return turn
        return None

    # Time and the end.

    def sweep(self) -> None:
        """Act on every deadline that has passed."""
        now = self._now()
        # A list, for an expired connection leaves the set.
        for connection in [member for member in self.connections if now >= member.deadline]:
            connection.expire()
        # Not a copy: a cancelled attempt leaves the table in a later turn of the loop.
        for attempt, deadline in self._connecting.items():
            if now >= deadline:
                attempt.cancel()
        for turn in [turn for turn, deadline in self._waiting.items() if now >= deadline]:
            self._give_up(turn, httpx.PoolTimeout(f"no connection to {self._origin} became free in time"))

    def _give_up(self, turn: asyncio.Future[Http1Connection | None], error: httpx.TransportError) -> None:
        self._waiting.pop(turn, None)
        if not turn.done():
            turn.set_exception(with_phase(error, Phase.NOTHING_SENT))

    def close(self) -> None:
        """Close every connection and refuse every waiting request."""
        self._is_closed = True
        # Before connections are closed, because each of them would pass its slot on to one of these.
        for turn in list(self._waiting):
            self._give_up(turn, httpx.ConnectError(f"{self._origin}: the transport is closed"))
        for attempt in self._connecting:
            attempt.cancel()
        for connection in list(self.connections):
            connection.fail(httpx.ReadError("the transport was closed"))
            # An idle connection has no exchange that could fail.
            connection.discard()


def _abort_result(attempt: asyncio.Task[Http1Connection]) -> None:
    """Close what an abandoned attempt still opened, and look at its error so that nobody reports it as lost."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().abort()


# --- a way through a proxy to a provider, for connections that are in no pool ---


MAX_HEAD_BYTES = 16 * 1024
_PORT = 80


async def dial_through(proxy: str, passenger: asyncio.Protocol, origin: Origin) -> None:
    """Connects the protocol to the origin by way of an `http://` proxy, with TLS where it has one. Raises OSError.

    It sends `CONNECT`, and TLS goes inside (RFC 9110, 9.3.6). It must not know what goes through. Errors never quote the
    proxy's credentials.
    """
    loop = asyncio.get_running_loop()
    url = httpx.URL(proxy)
    guide = _Guide(loop.create_future())
    await loop.create_connection(lambda: guide, url.host, url.port or _PORT)
    transport = guide.transport
    try:
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        lines = [f"CONNECT {host}:{origin.port} HTTP/1.1", f"Host: {host}:{origin.port}"]
        if url.userinfo:
            named = f"{url.username}:{url.password}".encode()
            lines.append(f"Proxy-Authorization: Basic {b64encode(named).decode()}")
        transport.write("\r\n".join([*lines, "", ""]).encode())
        status = (await guide.head).split(b" ", 2)[1:2]
        if status != [b"200"]:
            status_line = b"".join(status)[:20].decode("latin-1")
            raise ConnectionRefusedError(f"the proxy answered CONNECT with {status_line or 'nothing known'}")
        if origin.tls is None:
            transport.set_protocol(passenger)
        else:
            secured = await loop.start_tls(transport, passenger, origin.tls, server_hostname=origin.host)
            if secured is None:
                raise ConnectionResetError("the connection was closed during the TLS handshake")
            transport = secured
    except BaseException:
        transport.abort()
        raise
    passenger.connection_made(transport)


class _Guide(asyncio.Protocol):
    """Reads the proxy's answer."""

    def __init__(self, head: asyncio.Future[bytes]) -> None:
        self.head = head
        self.transport: asyncio.Transport
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.head.done():
            return
        if b"\r\n\r\n" in self._received:
            self.head.set_result(self._received)
        elif len(self._received) > MAX_HEAD_BYTES:
            self.head.set_exception(ConnectionRefusedError("the proxy's answer has no end"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.head.done():
            self.head.set_exception(ConnectionResetError("the proxy closed the connection"))
