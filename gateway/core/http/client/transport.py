"""The default egress transport: HTTP/1.1 over asyncio and httptools, pooled per origin.

A target's wire calls `Http1Transport.exchange`, which takes a request as bytes and gives back what the core reads, without
httpx's objects between them. To everybody else it is an `httpx.AsyncBaseTransport`, the seam that it shares with
`HttpxTransport` (HTTP/2, proxies) and with `httpx.MockTransport`. No task, timer or context manager per request: one
periodic sweep looks after every deadline, so timeouts are late by at most `sweep_interval_s`. It knows nothing of retries
beyond one: a kept-alive connection that turns out dead as soon as it is written to is replaced once. Invariant: when a
request has failed, been cancelled or been read to its end, it holds nothing.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

import httpx

from gateway.core.http.client.connection import LoopTurns
from gateway.core.http.client.exchange import (
    EncodedRequest,
    Exchange,
    OriginKey,
    WireTimeouts,
    encode,
    origin_of,
    read_timeouts,
)
from gateway.core.http.client.pool import Dial, Origin, OriginPool, dial_by_name
from gateway.core.http.client.wire.redaction import phase_of, with_phase
from gateway.core.types import Phase, Progress

__all__ = ["Http1Transport", "PoolStats", "phase_of"]

_DEFAULT_PORTS = {"http": 80, "https": 443}


ERRORS: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.StreamError)
"""What an exchange may raise, before its head and while its body is read."""


class Asker(Protocol):
    """On whose behalf an exchange is made."""

    def on_message(self, exchange: Exchange) -> None:
        """The head has come, and nobody has read of it yet."""
        ...

    def unanswered(self, error: Exception) -> Exception:
        """What to raise instead of `error`, with which the request has failed before its answer's head."""
        ...


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Connections in use (or being opened), connections idle, and requests waiting for one."""

    active: int
    idle: int
    waiting: int


class Http1Transport(httpx.AsyncBaseTransport):
    """Send requests over pooled HTTP/1.1 connections.

    Timeouts come with each request, as `WireTimeouts` or in httpx's `timeout` extension (seconds; absent or None is no
    limit): `connect` covers name, TCP and TLS together; `pool` the wait for a free connection; `write` each 64 KiB of the
    request; `first_byte` (else `read`) from the request's last byte to the end of the answer's head, starting again with
    each 1xx; `read` each silence in the body. Errors are httpx's, with an attribute `phase` (`redaction.phase_of`). A transport
    belongs to one event loop.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int = 256,
        idle_expiry_s: float = 30.0,
        sweep_interval_s: float = 0.05,
        now: Callable[[], float] = time.monotonic,
        turns: LoopTurns | None = None,
        dial: Dial = dial_by_name,
    ) -> None:
        """`max_connections` is per origin; `ssl_context` is used as it is, the default one verifies; `dial` opens connections.

        `turns` is shared by the transports of a process: who reads fast takes turns with all that do.
        """
        self._turns = LoopTurns() if turns is None else turns
        self._ssl_context = ssl_context
        self._dial = dial
        self._max_connections = max_connections
        self._idle_expiry_s = idle_expiry_s
        self._sweep_interval_s = sweep_interval_s
        self._now = now
        self._pools: dict[OriginKey, OriginPool] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_sweeping_fast = False
        self._is_closed = False

    def __repr__(self) -> str:
        pools = ", ".join(map(repr, self._pools.values())) or "no connections"
        return f"<Http1Transport {pools}{', closed' if self._is_closed else ''}>"

    def stats(self) -> PoolStats:
        """Count connections and waiting requests over all origins."""
        pools = self._pools.values()
        return PoolStats(sum(p.active for p in pools), sum(p.idle for p in pools), sum(p.waiting for p in pools))

    async def exchange(
        self,
        outgoing: EncodedRequest,
        timeouts: WireTimeouts,
        origin: OriginKey,
        signs: Progress | None = None,
        asker: Asker | None = None,
    ) -> Exchange:
        """Send a request and return once the answer's head is there; what has come of the body by then is in `whole`.

        `signs.last_activity_at` is set when anything comes before the head is complete. Raises what `asker` makes of
        httpx's errors, without one these, which tell their phase. Cancelling closes the connection.
        """
        try:
            pool = self._pools.get(origin) or self._open_pool(origin)
            if not self._is_sweeping_fast:
                self._sweep_fast()
            # A body that can be sent once goes over a new connection, if there may be one: a kept one may turn out to be dead.
            kept = None if outgoing.body is None and pool.has_room else pool.take_idle()
            connection = kept or await pool.connect(timeouts)
            while True:
                exchange = connection.start(outgoing, timeouts, signs)
                try:
                    await exchange.opening
                except BaseException:
                    exchange.abandon()
                    if exchange.is_stale:  # cancelled in the moment it died: nobody will take over its slot
                        connection.discard()
                    raise
                if not exchange.is_stale:
                    break
                connection = await pool.replace(connection, timeouts)  # a new connection cannot be stale
            if exchange.error is not None and not exchange.status:
                raise exchange.take_error()
        except ERRORS as error:
            if asker is None:
                raise
            raise asker.unanswered(error) from error
        if exchange.is_complete:
            exchange.keep_whole()
        if asker is not None:
            asker.on_message(exchange)
        return exchange

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As any httpx transport: `exchange`, for callers that have httpx's objects."""
        extensions = request.extensions
        exchange = await self.exchange(
            encode(request), read_timeouts(extensions), origin_of(request.url), extensions.get("signs")
        )
        return httpx.Response(
            exchange.status,
            headers=[*exchange.headers],
            stream=_ExchangeStream(exchange),
            extensions={"http_version": exchange.version, "reason_phrase": exchange.reason},
        )

    async def aclose(self) -> None:
        """Close every connection; running exchanges and waiting requests fail."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for pool in self._pools.values():
            pool.close()
        await asyncio.sleep(0)  # sockets are closed in the loop's next turn

    def sweep(self) -> None:
        """Act on every deadline that has passed: timeouts, and connections idle for too long."""
        for pool in self._pools.values():
            pool.sweep()

    def _open_pool(self, key: OriginKey) -> OriginPool:
        scheme, host, port = key
        default_port = _DEFAULT_PORTS.get(scheme)
        if default_port is None or not host:
            raise with_phase(
                httpx.UnsupportedProtocol(f"not an http or https URL with a host: {scheme}:"), Phase.NOTHING_SENT
            )
        if self._is_closed:
            raise with_phase(httpx.ConnectError("the transport is closed"), Phase.NOTHING_SENT)
        tls = self._verifying_context() if scheme == "https" else None
        origin = Origin(host, port or default_port, tls)
        pool = OriginPool(
            origin,
            self._turns,
            max_connections=self._max_connections,
            idle_expiry_s=self._idle_expiry_s,
            now=self._now,
            dial=self._dial,
        )
        self._pools[key] = pool
        return pool

    def _verifying_context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
            self._ssl_context.set_alpn_protocols(["http/1.1"])
        return self._ssl_context

    def _sweep_fast(self) -> None:
        """Run the sweep while anything is active; once all is idle it only comes back to expire connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._is_sweeping_fast = True
        self._sweeper = asyncio.get_running_loop().call_later(self._sweep_interval_s, self._tick)

    def _tick(self) -> None:
        try:
            self.sweep()
        finally:  # whatever went wrong with one deadline, the next ones must still be seen
            self._sweep_again()

    def _sweep_again(self) -> None:
        stats = self.stats()
        if stats.active or stats.waiting:
            self._sweep_fast()
        else:
            self._is_sweeping_fast = False
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(self._idle_expiry_s, self._tick) if stats.idle else None


class _ExchangeStream(httpx.AsyncByteStream):
    """An exchange's body for readers that expect httpx's stream: one that is left before its end closes the connection."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._exchange:
                yield chunk
        except BaseException:
            self._exchange.abandon()
            raise

    async def aclose(self) -> None:
        """Finish with the answer; before its end this closes the connection at once."""
        self._exchange.abandon()
