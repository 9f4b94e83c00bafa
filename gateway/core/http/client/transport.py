"""The transports towards providers: our own HTTP/1.1 over asyncio and httptools, pooled per origin, and httpx's.

First `Http1Transport`: a target's wire calls its `exchange`, which takes a request as bytes and gives back what the core
reads, without httpx's objects between them. To everybody else it is an `httpx.AsyncBaseTransport`, the seam that it shares
with `HttpxTransport` (HTTP/2, proxies), which follows, and with `httpx.MockTransport`. No task, timer or context manager
per request: one periodic sweep looks after every deadline, so timeouts are late by at most `sweep_interval_s`. It knows
nothing of retries beyond one: a kept-alive connection that turns out dead as soon as it is written to is replaced once.
Then come the words for certificates that TLS refuses and for connections that do not come about, and last `Pools`, the
transports by provider. Invariant: when a request has failed, been cancelled or been read to its end, it holds nothing.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Protocol, cast

import anyio
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
from gateway.core.http.client.redaction import phase_of, with_phase
from gateway.core.snapshot import Provider
from gateway.core.types import EMULATOR, Phase, Progress

__all__ = ["Http1Transport", "PoolStats", "phase_of"]

_DEFAULT_PORTS = {"http": 80, "https": 443}


ERRORS: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.StreamError)
"""The errors that an exchange may raise, before its head and while its body is read."""


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
            # With a status the answer has begun: its error comes while the body is read.
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


# --- `transport: httpx`: HTTP/2 and proxies ---
#
# httpcore forgets HTTP/2 streams that it has dropped, without a RST_STREAM. The provider would go on writing an answer, and
# being paid for it, and what comes fills the connection's window, which is never opened again. There is no interface for it, so
# this reaches into httpcore's connections; what it does not find there it leaves alone, and the conformance tests of the
# transports notice.


CANCEL = 0x8
"""RFC 9113, 7: the stream is no longer needed."""
LOW_WINDOW_BYTES = 2**23
"""The bytes below which the connection's window is opened anew: what was dropped has used it up; it began at twice this."""


def reset_stream(transport: httpx.AsyncHTTPTransport, extensions: Mapping[str, Any]) -> list[Coroutine[Any, Any, None]]:
    """Reset the stream that an answer's `extensions` name, at once for us; what is returned sends it to the provider."""
    number, network = extensions.get("stream_id"), extensions.get("network_stream")
    for connection in _connections(transport):
        if number is not None and connection._network_stream is network:
            return _reset(connection, [number])
    return []


def reset_abandoned(transport: httpx.AsyncHTTPTransport) -> list[Coroutine[Any, Any, None]]:
    """Reset every stream that is open and that nobody waits for, at once for us; what is returned sends it to the provider."""
    flushes = []
    for connection in _connections(transport):
        streams = connection._h2_state.streams
        flushes += _reset(connection, [number for number in streams if number not in connection._events])
    return flushes


def _reset(connection: Any, numbers: list[int]) -> list[Coroutine[Any, Any, None]]:
    state = connection._h2_state
    open_ones = [number for number in numbers if number in state.streams and not state.streams[number].closed]
    if not open_ones or not connection.is_available():
        return []
    for number in open_ones:
        state.reset_stream(number, CANCEL)
    if state.inbound_flow_control_window < LOW_WINDOW_BYTES:
        state.increment_flow_control_window(LOW_WINDOW_BYTES)
    return [connection._write_outgoing_data(httpx.Request("POST", ""))]


def _connections(transport: httpx.AsyncHTTPTransport) -> Iterator[Any]:
    """The HTTP/2 connections of the pool; a proxy's lie one or two layers deeper."""
    for connection in getattr(transport._pool, "connections", ()):
        inner: Any = connection
        while inner is not None and not hasattr(inner, "_h2_state"):
            inner = getattr(inner, "_connection", None)
        if inner is not None:
            yield inner


_STRAY_OF_HTTP2: tuple[type[Exception], ...] = (
    (import_module("h2.exceptions").H2Error,) if find_spec("h2") is not None else ()
)
_STRAY: tuple[type[Exception], ...] = (
    OSError,  # ssl.SSLError is one: a broken record, an alert
    EOFError,
    anyio.BrokenResourceError,
    anyio.BusyResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    *_STRAY_OF_HTTP2,
)
_STRAY_IN_BODY: tuple[type[Exception], ...] = (*_STRAY, httpx.LocalProtocolError)  # the request went out long ago
_STRAY_IN_WRITE: tuple[type[Exception], ...] = (*_STRAY, httpx.HTTPError)


class HttpxTransport(httpx.AsyncBaseTransport):
    """Send requests over httpx's own transport; `http2` needs the package h2. Errors and phases are as `Http1Transport`'s.

    Three things are added to `httpx.AsyncHTTPTransport`, as `Http1Transport` promises them and httpx leaves them open.
    Errors of the libraries below it, which it lets through as they are, become httpx's. An answer that only the end of a
    TLS connection ends is whole after a close_notify alone (RFC 8446, 6.1). And a stream of HTTP/2 that nobody reads any
    more is reset, so that the provider stops working on it (RFC 9113, 8.7).
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext,
        max_connections: int = 256,
        idle_expiry_s: float = 30.0,
        http2: bool = False,
        proxy: str | None = None,
    ) -> None:
        """`ssl_context` belongs to this transport alone: httpx sets the protocols it offers on it."""
        limits = httpx.Limits(
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=idle_expiry_s,
        )
        self._inner = httpx.AsyncHTTPTransport(verify=ssl_context, limits=limits, http2=http2, proxy=proxy)
        self._is_http2 = http2
        self._resets: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As any transport; raises httpx's errors only. Cancelling ends the exchange at the provider, too."""
        try:
            response = await self._inner.handle_async_request(request)
        except _STRAY as exc:
            self._reset_abandoned()
            raise _as_httpx_error(exc, Phase.SENT) from exc
        except httpx.LocalProtocolError as exc:
            self._reset_abandoned()
            if _is_of_http2(exc):  # also said of what the provider sent, after the request had gone out
                raise _as_httpx_error(exc, Phase.SENT) from exc
            raise
        except BaseException:
            # A cancelled call leaves a stream, too, that nobody waits for.
            self._reset_abandoned()
            raise
        response.stream = _Body(self, request, response)
        return response

    async def aclose(self) -> None:
        """Close every connection; running exchanges fail."""
        for task in list(self._resets):
            task.cancel()
        await self._inner.aclose()

    def abandon(self, response: httpx.Response) -> None:
        """Reset the answer's stream, where it is one of HTTP/2; does not wait until that is written."""
        if self._is_http2:
            self._write(reset_stream(self._inner, response.extensions))

    def _reset_abandoned(self) -> None:
        if self._is_http2:
            self._write(reset_abandoned(self._inner))

    def _write(self, flushes: list[Any]) -> None:
        for flush in flushes:
            task = asyncio.get_running_loop().create_task(_flush(flush))
            self._resets.add(task)
            task.add_done_callback(self._resets.discard)


class _Body(httpx.AsyncByteStream):
    """An answer's body; iterate it once."""

    __slots__ = ("_ends_with_connection", "_is_complete", "_response", "_stream", "_transport")

    def __init__(self, transport: HttpxTransport, request: httpx.Request, response: httpx.Response) -> None:
        self._transport = transport
        self._response = response
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        self._is_complete = False
        self._ends_with_connection = _ends_with_connection(request, response)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except _STRAY_IN_BODY as exc:
            raise _as_httpx_error(exc, Phase.ANSWERED) from exc
        if self._ends_with_connection and not _is_end_announced(self._response):
            error = httpx.RemoteProtocolError(
                "the provider closed the connection without saying that its answer was over (TLS close_notify)"
            )
            raise with_phase(error, Phase.ANSWERED)
        self._is_complete = True

    async def aclose(self) -> None:
        """Finish with the answer; before its end this ends the exchange at the provider."""
        if not self._is_complete:
            self._is_complete = True
            self._transport.abandon(self._response)
        try:
            await self._stream.aclose()
        except _STRAY:
            return  # it could not be closed because it had broken


def _ends_with_connection(request: httpx.Request, response: httpx.Response) -> bool:
    """Whether nothing but the end of the connection ends the body (RFC 9112, 6.3)."""
    if response.extensions.get("http_version") == b"HTTP/2" or response.status_code in (204, 304):
        return False
    headers = response.headers
    return request.method != "HEAD" and "content-length" not in headers and "transfer-encoding" not in headers


def _is_end_announced(response: httpx.Response) -> bool:
    """Whether TLS, if there is any, was ended by the provider and not by somebody on the way."""
    stream = response.extensions.get("network_stream")
    tls = None if stream is None else stream.get_extra_info("ssl_object")
    if tls is None:
        return True
    try:
        return not tls.read(1)
    except ssl.SSLZeroReturnError:
        return True
    except ssl.SSLError:
        return False


def _is_of_http2(error: httpx.LocalProtocolError) -> bool:
    args = getattr(error.__cause__, "args", ())
    return bool(_STRAY_OF_HTTP2) and any(isinstance(arg, _STRAY_OF_HTTP2) for arg in args)


def _as_httpx_error(error: Exception, phase: Phase) -> httpx.TransportError:
    if isinstance(error, (httpx.LocalProtocolError, *_STRAY_OF_HTTP2)):
        return with_phase(httpx.RemoteProtocolError(f"bad answer: {str(error) or type(error).__name__}"), phase)
    return with_phase(httpx.ReadError(f"the connection broke: {str(error) or type(error).__name__}"), phase)


async def _flush(flush: Any) -> None:
    """Write what has been reset. Where that cannot be written the connection has broken, and nothing is left to reset."""
    try:
        await flush
    except _STRAY_IN_WRITE:
        return


# --- connections that do not come about: certificates that TLS does not take, and all other reasons ---


_EXPIRED, _NOT_YET_VALID, _WRONG_NAME, _WRONG_ADDRESS = 10, 9, 62, 64
_SELF_SIGNED = frozenset((18, 19))
_UNKNOWN_AUTHORITY = frozenset((2, 20, 21, 27))
"""OpenSSL's X509_V_ERR_ numbers (x509_vfy.h): they are the same in every version, its words are not."""


def certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The refused certificate that an error comes from, however often it was wrapped; None: it is about something else.

    Nothing was sent then, and nothing will be until somebody renews a certificate or corrects the config.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__  # httpcore raises again `from None`
    return cause


def explain(error: ssl.SSLCertVerificationError, provider: str) -> tuple[str, str]:
    """What is wrong, fit for everybody; and the remedy, for the operator."""
    code = error.verify_code
    there = f"providers.{provider}"
    if code == _EXPIRED:
        return "its TLS certificate has expired", "it has to be renewed there"
    if code == _NOT_YET_VALID:
        return "its TLS certificate is not valid yet", "is the clock of this machine right?"
    if code in (_WRONG_NAME, _WRONG_ADDRESS):
        return "its TLS certificate is for another name", f"correct {there}.base_url, or the certificate there"
    if code in _SELF_SIGNED or code in _UNKNOWN_AUTHORITY:
        return "its TLS certificate is of an unknown authority", f"name the authority's certificate in {there}.ca_file"
    reason = str(error.verify_message or error.reason or "certificate verify failed")[:100]
    return f"its TLS certificate is not accepted: {reason}", f"see {there}.ca_file and {there}.base_url"


_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")


def why_unreachable(error: BaseException) -> str:
    """Returns why no connection came about, in words that hold no address."""
    cause = error.__cause__ or error
    if isinstance(cause, socket.gaierror):
        return "no such host"
    if isinstance(cause, ssl.SSLError):
        reason = getattr(cause, "reason", None)  # set by OpenSSL's own errors alone
        return f"TLS failed: {reason.lower().replace('_', ' ')}" if reason else "TLS failed"
    number = _ERRNO.search(str(cause))  # of several addresses, asyncio raises one error with the words of all
    return os.strerror(int(number[1])).lower() if number else "no connection"


# --- transports by provider ---

StartEmulator = Callable[[str], Awaitable[str]]
"""Starts the emulator of that name inside the process, once, and returns its base URL."""


class EmulatedTransport(httpx.AsyncBaseTransport):
    """`emulator://NAME`: starts the emulator with the first request and sends everything there."""

    def __init__(self, name: str, start: StartEmulator, turns: LoopTurns) -> None:
        self._name = name
        self._start = start
        self.inner = Http1Transport(turns=turns)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As any transport; the origin is the emulator's, the path stays."""
        origin = httpx.URL(await self._start(self._name))
        url = request.url.copy_with(scheme=origin.scheme, host=origin.host, port=origin.port)
        headers = httpx.Headers([*request.headers.raw])
        headers["host"] = origin.netloc.decode()
        moved = httpx.Request(
            request.method, url, headers=headers, stream=request.stream, extensions=request.extensions
        )
        return await self.inner.handle_async_request(moved)

    async def aclose(self) -> None:
        """Close its connections; the emulator itself belongs to the application."""
        await self.inner.aclose()


class Pools:
    """All transports of the process, by provider: equal providers share one, a reload that changes nothing keeps every
    connection.

    A transport that no provider uses any more is closed once every call has ended that came in before: a call keeps its
    policy to its end, and may turn to any target of it late. Policies are compiled in a thread, so the tables are only ever
    iterated as copies.
    """

    def __init__(self, start_emulator: StartEmulator) -> None:
        self._start_emulator = start_emulator
        self._turns = LoopTurns()
        self._by_provider: dict[Provider, httpx.AsyncBaseTransport] = {}
        self._retired: dict[httpx.AsyncBaseTransport, Set[object]] = {}  # with the calls that may still use it
        self._default_tls: ssl.SSLContext | None = None
        self._tls_of_file: dict[tuple[str, str | None], ssl.SSLContext] = {}

    def transport(self, provider: Provider) -> httpx.AsyncBaseTransport:
        """The transport for this provider, made at its first use."""
        found = self._by_provider.get(provider)
        if found is None:
            found = self._by_provider[provider] = self._build(provider)
        return found

    def keep_only(self, providers: set[Provider], calls: Set[object]) -> None:
        """Retire the transports that none of these providers uses; `calls` are those being served now."""
        for provider in [one for one in self._by_provider if one not in providers]:
            self._retired[self._by_provider.pop(provider)] = calls
        used = {(one.ca_file, one.ca_digest) for one in providers}
        self._tls_of_file = {content: tls for content, tls in self._tls_of_file.items() if content in used}

    async def close_retired(self, calls: Set[object]) -> None:
        """Close retired transports that none of `calls`, those being served now, can use; called about once a second."""
        for transport in [one for one, users in list(self._retired.items()) if users.isdisjoint(calls)]:
            # Before the wait: the next look must not close it again.
            del self._retired[transport]
            await transport.aclose()

    def stats(self) -> dict[str, dict[str, int]]:
        """Connections by provider and state (`active`, `idle`, `waiting`), where the transport can tell."""
        return {
            provider.name: asdict(ours.stats())
            for provider, transport in list(self._by_provider.items())
            if isinstance(ours := getattr(transport, "inner", transport), Http1Transport)
        }

    async def aclose(self) -> None:
        """Close everything, answers being read included."""
        for transport in [*self._by_provider.values(), *self._retired.keys()]:
            await transport.aclose()
        self._by_provider.clear()
        self._retired.clear()

    def _build(self, provider: Provider) -> httpx.AsyncBaseTransport:
        if provider.base_url.startswith(EMULATOR):
            return EmulatedTransport(httpx.URL(provider.base_url).host, self._start_emulator, self._turns)
        if provider.transport == "httpx":
            return HttpxTransport(
                ssl_context=self._tls(provider),
                max_connections=provider.max_connections,
                idle_expiry_s=provider.idle_expiry_s,
                http2=provider.http2,
                proxy=provider.proxy,
            )
        needs_tls = httpx.URL(provider.base_url).scheme == "https" or provider.ca_file is not None
        return Http1Transport(
            ssl_context=self._tls(provider) if needs_tls else None,
            max_connections=provider.max_connections,
            idle_expiry_s=provider.idle_expiry_s,
            turns=self._turns,
        )

    def socket_tls(self, provider: Provider) -> ssl.SSLContext:
        """Returns the context for connections that are in no pool; each content of a file of authorities is loaded once."""
        if provider.ca_file is None:
            return self._tls(replace(provider, transport="http1"))
        content = (provider.ca_file, provider.ca_digest)
        known = self._tls_of_file.get(content)
        if known is None:
            known = self._tls_of_file[content] = self._tls(provider)
        return known

    def _tls(self, provider: Provider) -> ssl.SSLContext:
        """Loading the system's authorities takes time and memory: providers without their own share one context.

        The httpx transport gets one to itself, because it sets the protocols of each connection on the context.
        """
        is_shared = provider.ca_file is None and provider.transport == "http1"
        if is_shared and self._default_tls is not None:
            return self._default_tls
        context = ssl.create_default_context(cafile=provider.ca_file)
        context.set_alpn_protocols(["http/1.1"])
        if is_shared:
            self._default_tls = context
        return context
