"""The socket under an HTTP/1.1 connection: what may be written and read now, and how long the next move may take.

It must not know HTTP's grammar, nor the pool. Invariant: while the next move is the caller's, no clock runs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from math import inf
from typing import Any

import httpx

from gateway.core.http.client.connection.turns import LoopTurns
from gateway.core.http.client.exchange.exchange import Exchange
from gateway.core.http.client.exchange.upload import Upload


class PacedSocket(asyncio.BufferedProtocol):
    """The flow control and the clock of one connection. `deadline` (of `now`) is the only timer; the pool looks at it."""

    __slots__ = (
        "_exchange",
        "_is_sent",
        "_is_writing_paused",
        "_now",
        "_tls",
        "_turns",
        "_upload",
        "deadline",
        "is_closed",
        "is_reading_paused",
        "transport",
    )

    def __init__(self, turns: LoopTurns, now: Callable[[], float]) -> None:
        self._turns = turns
        self._now = now
        self.transport: Any = None  # asyncio.Transport; uvloop's share no base class with it
        self._tls: ssl.SSLObject | None = None
        self._exchange: Exchange | None = None
        self._upload: Upload | None = None  # only for bodies that do not fit into one write
        self._is_sent = False  # the whole request has been given to the transport
        self._is_writing_paused = False
        self.is_reading_paused = False
        self.deadline = inf
        self.is_closed = False

    def is_usable(self) -> bool:
        """Tell whether a request can be written; a broken transport knows before `connection_lost` says so."""
        return not self.is_closed and not self.transport.is_closing()

    def abort(self) -> None:
        """Close the socket now, without flushing; the pool is not told."""
        self.is_closed = True
        self.deadline = inf
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._tls = transport.get_extra_info("ssl_object")
        if self.is_closed:  # given up while the handshake was finishing
            self.transport.abort()

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._set_deadline()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._upload is not None:
            self._upload.go_on()
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Start the clock of the phase the exchange is in; no clock runs while the next move is the caller's."""
        exchange = self._exchange
        if exchange is None:
            return
        timeouts = exchange.timeouts
        if exchange.status:
            seconds = inf if self.is_reading_paused else timeouts.read_s
        elif self._is_writing_paused:
            seconds = timeouts.write_s
        else:
            seconds = timeouts.first_byte_s if self._is_sent else inf
        self.deadline = self._now() + seconds

    def resume_reading(self) -> None:
        """Read on, if reading was paused, as soon as it is this connection's turn: the caller has drained the buffer."""
        if self.is_reading_paused:
            self._turns.ask(self)

    def read_on(self) -> None:
        """What `LoopTurns` calls."""
        if self.is_reading_paused and not self.transport.is_closing():
            self.is_reading_paused = False
            self.transport.resume_reading()
            self._set_deadline()

    @property
    def takes_more(self) -> bool:
        """Whether the socket takes bytes now."""
        return not self._is_writing_paused

    def write(self, data: bytes) -> None:
        """Write a piece of the request's body. Raises `httpx.WriteError` where the connection has broken."""
        if self.transport.is_closing():  # uvloop's raises a RuntimeError then
            raise httpx.WriteError("the connection broke while the request's body was written")
        self.transport.write(data)

    def gave_sign(self) -> None:
        """The provider takes what it is sent."""
        if self._exchange is not None and self._exchange.signs is not None:
            self._exchange.signs.sign_at = self._now()
