"""The way out to URLs of strangers: to public addresses, and nothing else.

In this order: the verdict on a URL and its addresses, which is pure (who resolves names hands them in); the ports; the guard;
requests without a look at addresses; guarded requests; and the opening of both ways. One reading of the URL serves the verdict
and the connection, so that no second parser can see another host in it. What has two readings anywhere (numbers in odd bases,
backslashes, escapes, letters that fold into others) is refused, not repaired. Source: RFC 3986; the IANA registries of
special-purpose addresses (RFC 6890 and its updates), 2026-11; RFC 6052 (NAT64).
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network
from threading import Thread
from typing import Final, NamedTuple, Protocol

import httpx

from gateway.core.http.client.exchange import EncodedRequest, WireTimeouts
from gateway.core.http.client.pool import Origin
from gateway.core.http.client.transport import ERRORS, Http1Transport, HttpxTransport, certificate_error
from gateway.core.types import RawHeaders

PORTS: Final = (443, 8443)
MOST_URL_CHARS: Final = 2048
_URL: Final = re.compile(r"https://(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+)(?::([0-9]{1,5}))?((?:/[!-~]*)?(?:\?[!-~]*)?)")
_LABEL: Final = re.compile(r"[0-9a-z](?:[0-9a-z-]{0,61}[0-9a-z])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_INTERNAL: Final = frozenset(
    [
        "alt",
        "arpa",
        "corp",
        "example",
        "home",
        "internal",
        "intranet",
        "invalid",
        "lan",
        "local",
        "localdomain",
        "localhost",
        "onion",
        "private",
        "test",
    ]
)
"""Last labels that no public name has (RFC 6761, 6762, 7686, 9476; ICANN's reserved ones), and those of routers at home."""

_RESERVED_4: Final = tuple(
    IPv4Network(net)
    for net in (
        "0.0.0.0/8",  # this network: on most systems this machine
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT; Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's platform, at a public address
        "169.254.0.0/16",  # link-local: metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_GLOBAL_6: Final = IPv6Network("2000::/3")
"""All that was ever given out for the public; the rest (unspecified, loopback, local, multicast, mapped) lies outside."""
_RESERVED_6: Final = tuple(
    IPv6Network(net)
    for net in (
        "2001::/23",  # protocol assignments: benchmarks, ORCHID, AMT, AS112; Teredo is looked into before
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
_MAPPED, _NAT64, _SIX_TO_FOUR, _TEREDO = (
    IPv6Network(net) for net in ("::ffff:0:0/96", "64:ff9b::/96", "2002::/16", "2001::/32")
)
_ISATAP: Final = frozenset((0x00005EFE, 0x02005EFE))
"""The upper half of an interface's id that holds an IPv4 address in the lower one (RFC 5214)."""


class NotPublic(Exception):
    """A URL, or an address that its name stands for, is not one that a stranger may name. The message names no path."""


class PublicUrl(NamedTuple):
    """A URL that has one reading."""

    host: str
    """The host, in small letters: a name, or an IP address without brackets."""
    port: int
    target: str
    """Path and query."""
    is_address: bool
    """The host is an address, which is public; a name still has to be resolved, and what it stands for judged."""

    @property
    def origin(self) -> str:
        """Returns scheme, host and port, which may be shown."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}" if self.port == PORTS[0] else f"https://{host}:{self.port}"


def read_public_url(url: str) -> PublicUrl:
    """Reads a URL of a stranger's. Raises NotPublic with what is wrong."""
    if len(url) > MOST_URL_CHARS:
        raise NotPublic(f"has more than {MOST_URL_CHARS} characters")
    found = _URL.fullmatch(url)
    if found is None:
        raise NotPublic(_why_unreadable(url))
    host, port_text, target = found[1].lower(), found[2], found[3]
    port = PORTS[0] if port_text is None else int(port_text)
    if port not in PORTS or (port_text or "443").startswith("0"):
        raise NotPublic("must have the port 443 or 8443")
    target = target if target.startswith("/") else f"/{target}"
    if "#" in target or "\\" in target:
        raise NotPublic("must not have a fragment, or a backslash")
    if host.startswith("["):
        return PublicUrl(_public_literal(host[1:-1]), port, target, is_address=True)
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # as browsers and resolvers tell an address from a name
        return PublicUrl(_public_literal(host), port, target, is_address=True)
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise NotPublic("must have a host name of letters, digits and inner hyphens, without a dot at its end")
    if len(labels) < 2 or labels[-1] in _INTERNAL:
        raise NotPublic("must have a public host name, such as hooks.example.com")
    return PublicUrl(host, port, target, is_address=False)


def refuse_private(addresses: Sequence[str]) -> None:
    """Raises NotPublic unless each of the addresses that a name stands for is public: which of them is used is chance."""
    for address in addresses:
        if not is_public(address):
            raise NotPublic("stands for an address that is not public")


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public Internet, also in what it wraps: mapped, 6to4, NAT64, Teredo, ISATAP."""
    try:
        if ":" not in address:
            return _is_public_4(IPv4Address(address))
        return "%" not in address and _is_public_6(IPv6Address(address))
    except AddressValueError:
        return False


def _is_public_4(address: IPv4Address) -> bool:
    return not any(address in net for net in _RESERVED_4)


def _is_public_6(address: IPv6Address) -> bool:
    number = int(address)
    if address in _MAPPED or address in _NAT64:
        return _is_public_4(IPv4Address(number & 0xFFFFFFFF))
    if address in _SIX_TO_FOUR:
        return _is_public_4(IPv4Address(number >> 80 & 0xFFFFFFFF))
    if address in _TEREDO:  # the server, and the client behind its NAT, of which each bit is turned
        wrapped = number >> 64 & 0xFFFFFFFF, ~number & 0xFFFFFFFF
        return all(_is_public_4(IPv4Address(one)) for one in wrapped)
    if address not in _GLOBAL_6 or any(address in net for net in _RESERVED_6):
        return False
    return number >> 32 & 0xFFFFFFFF not in _ISATAP or _is_public_4(IPv4Address(number & 0xFFFFFFFF))


def _public_literal(host: str) -> str:
    """Returns an address in its only spelling. Raises NotPublic."""
    try:
        address = str(IPv6Address(host)) if ":" in host else str(IPv4Address(host))
    except AddressValueError:
        raise NotPublic("has an address that is no plain one: write it as 93.184.215.14 or [2606:2800::1]") from None
    if not is_public(address):
        raise NotPublic("has an address that is not public")
    return address


def _why_unreadable(url: str) -> str:
    if not url.startswith("https://"):
        return "must begin with https://"
    if not url.isascii():
        return "must be ASCII: write other letters of the host as xn--…, those of the path as %XX"
    authority = re.split(r"[/?#\\]", url.removeprefix("https://"), maxsplit=1)[0]
    if "@" in authority:
        return "must not carry a user or password: deliveries are signed"
    return "is no plain URL: https://, a host name, if need be :8443, a path and a query"


# --- the ports of requests to addresses that are no provider's ---


class Unreachable(Exception):
    """There was no HTTP answer, or none in time. The message says why, and names no path."""


class FetchRefused(Unreachable):
    """The guard lets no request out to that address; nothing was sent."""


class OutwardAnswer(NamedTuple):
    """The part of an answer from outside that is read."""

    status: int
    retry_after: bytes = b""
    """The header of that name."""


class Outward(Protocol):
    """Requests to addresses that are no provider's."""

    async def post(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, timeout_s: float
    ) -> OutwardAnswer:
        """Posts a body; a redirect is an answer like any other. Raises Unreachable. Cancelling ends the request."""
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


# --- the guard of every request to a URL that a caller has named ---


class AddressGuard:
    """Decides which addresses a URL that a caller named may lead to; whoever fetches such a URL asks it twice."""

    def read(self, url: str) -> PublicUrl:
        """Returns the URL's parts, of which the connection is made. Raises FetchRefused."""
        try:
            return read_public_url(url)
        except NotPublic as error:
            raise FetchRefused(f"the URL {error}") from None

    def check(self, addresses: Sequence[str]) -> None:
        """Looks at all addresses that the URL's name stands for, one of which is connected to. Raises FetchRefused."""
        try:
            refuse_private(addresses)
        except NotPublic as error:
            raise FetchRefused(f"its host {error}") from None


# --- requests over the usual transport, without a look at addresses ---

MOST_READ_BYTES: Final = 4096
CONNECTIONS: Final = 16
"""The most connections to each origin."""
OUTWARD_ERRORS: tuple[type[Exception], ...] = (*ERRORS, httpx.InvalidURL)


class HttpOutward:
    """Posts over the gateway's own HTTP/1.1 transport, or another one; either belongs to one event loop.

    Implements `Outward`. TLS is verified against the system's authorities, no proxy of the environment is used, no redirect is
    followed, and of an answer's body only as much is read as lets the connection be used again. What it says is never shown.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` is one through a proxy, or with authorities of its own."""
        self._transport = transport or Http1Transport(max_connections=CONNECTIONS)

    async def post(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, timeout_s: float
    ) -> OutwardAnswer:
        """Posts a body, within `timeout_s` from the connection to the end of what is read. Raises Unreachable."""

        async def send(answered: list[OutwardAnswer]) -> None:
            extensions = {"timeout": timeouts_of(timeout_s).as_extension()}
            request = httpx.Request("POST", url, headers=[*headers], content=body, extensions=extensions)
            await post_over(self._transport, request, answered)

        return await answer_within(timeout_s, send)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._transport.aclose()


async def answer_within(timeout_s: float, send: Callable[[list[OutwardAnswer]], Awaitable[None]]) -> OutwardAnswer:
    """Returns the answer that `send` notes as soon as its head has come; the rest may be late. Raises Unreachable."""
    answered: list[OutwardAnswer] = []
    try:
        async with asyncio.timeout(timeout_s):
            await send(answered)
    except (TimeoutError, httpx.TimeoutException):
        if not answered:  # else only its body was late
            raise Unreachable(f"no answer within {timeout_s:g} s") from None
    except OUTWARD_ERRORS as error:
        raise Unreachable(in_words(error)) from error
    return answered[0]


async def post_over(transport: httpx.AsyncBaseTransport, request: httpx.Request, answered: list[OutwardAnswer]) -> None:
    """Sends a request; the answer is in `answered` as soon as its head has come."""
    response = await transport.handle_async_request(request)
    try:
        answered.append(OutwardAnswer(response.status_code, response.headers.get("retry-after", "").encode()))
        await read_some(response.aiter_raw())
    finally:
        await response.aclose()


async def read_some(chunks: AsyncIterable[bytes]) -> None:
    """Reads a short body to its end; a long one, or one that breaks off, costs the connection, and changes nothing."""
    read = 0
    with suppress(*ERRORS):
        async for chunk in chunks:
            read += len(chunk)
            if read > MOST_READ_BYTES:
                return


def timeouts_of(timeout_s: float) -> WireTimeouts:
    """Returns clocks of which none is longer than the whole."""
    return WireTimeouts(timeout_s, timeout_s, timeout_s, timeout_s, timeout_s)


def in_words(error: Exception) -> str:
    """Returns why there was no answer, in few words, which name no path."""
    certificate = certificate_error(error)
    if certificate is not None:
        return f"its TLS certificate is not accepted: {str(certificate.verify_message)[:100]}"
    return f"{type(error).__name__}: {str(error)[:100]}"


# --- requests to URLs that callers have named, to public addresses only ---

MOST_LOOKUPS: Final = 32
"""Names that are looked up at a time: a name server that never answers holds a thread for its time-out."""
SWEEP_S: Final = 1.0
"""The sweep of the transport; the time of a whole request is kept by a timer of its own."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns all addresses of a name, for a port. Raises OSError."""
Connect = Callable[[Callable[[], asyncio.BaseProtocol], str, Origin], Awaitable[object]]
"""Connects to an address, in the name of an origin. Raises OSError."""


class Resolver:
    """Looks names up in threads of its own: a slow one of a caller's choice must not delay those of providers."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MOST_LOOKUPS)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Returns all addresses of a name. Raises OSError."""
        await self._room.acquire()
        found: Future[list[str]] = Future()
        loop = asyncio.get_running_loop()
        found.add_done_callback(lambda _: _quietly(loop, self._room.release))
        Thread(target=_look_up, args=(found, host, port), name="webhook-name", daemon=True).start()
        return await asyncio.shield(asyncio.wrap_future(found))


async def connect_to(make: Callable[[], asyncio.BaseProtocol], address: str, origin: Origin) -> None:
    """Connects to the address, and has the certificate verified for the origin's name."""
    loop = asyncio.get_running_loop()
    await loop.create_connection(make, address, origin.port, ssl=origin.tls, server_hostname=origin.host)


class GuardedOutward:
    """Posts to public addresses.

    Implements `Outward`.

        guard reads the URL -> one look-up of the name -> guard sees every address -> connect to one of them, by its number

    The name is looked up once, and what was judged is what is connected to: a name that changes its mind in between (DNS
    rebinding) changes nothing. TLS is verified against the name, which is also the Host. Each request has a connection of its
    own, so nothing is kept for the many hosts that callers may name. Behind an egress proxy the proxy looks names up, and is
    their guard; what is written as a private address is refused before it is asked.
    """

    def __init__(
        self,
        guard: AddressGuard,
        tls: Callable[[], ssl.SSLContext],
        proxied: httpx.AsyncBaseTransport | None = None,
        resolve: Resolve | None = None,
        connect: Connect = connect_to,
    ) -> None:
        """`tls` makes the context at first use; `proxied` is the transport through an egress proxy, if there is one."""
        self._guard = guard
        self._make_tls = tls
        self._proxied = proxied
        self._resolve = resolve
        self._connect = connect
        self._tls: ssl.SSLContext | None = None

    async def post(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, timeout_s: float
    ) -> OutwardAnswer:
        """Posts a body, within `timeout_s` from the look-up to the end of what is read. Raises FetchRefused, Unreachable."""
        place = self._guard.read(url)
        if self._proxied is not None:
            return await answer_within(
                timeout_s, partial(self._post_proxied, self._proxied, place, headers, body, timeout_s)
            )
        return await answer_within(timeout_s, partial(self._post_pinned, place, headers, body, timeout_s))

    async def aclose(self) -> None:
        """Closes the connections to the proxy; those to others end with their requests."""
        if self._proxied is not None:
            await self._proxied.aclose()

    async def _post_pinned(
        self, place: PublicUrl, headers: RawHeaders, body: bytes, timeout_s: float, answered: list[OutwardAnswer]
    ) -> None:
        addresses = await self._addresses(place)
        self._tls = self._tls or self._make_tls()
        dial = partial(self._dial, addresses)
        transport = Http1Transport(ssl_context=self._tls, max_connections=1, sweep_interval_s=SWEEP_S, dial=dial)
        try:
            outgoing, origin = _encoded(place, headers, body), ("https", place.host, place.port)
            exchange = await transport.exchange(outgoing, timeouts_of(timeout_s), origin)
            answered.append(OutwardAnswer(exchange.status, dict(exchange.headers).get(b"retry-after", b"")))
            await read_some(exchange)
        finally:
            await transport.aclose()

    async def _post_proxied(
        self,
        proxied: httpx.AsyncBaseTransport,
        place: PublicUrl,
        headers: RawHeaders,
        body: bytes,
        timeout_s: float,
        answered: list[OutwardAnswer],
    ) -> None:
        url = httpx.URL(scheme="https", host=place.host, port=place.port, raw_path=place.target.encode())
        extensions = {"timeout": timeouts_of(timeout_s).as_extension()}
        request = httpx.Request("POST", url, headers=[*headers], content=body, extensions=extensions)
        await post_over(proxied, request, answered)

    async def _addresses(self, place: PublicUrl) -> Sequence[str]:
        """Returns the addresses that may be connected to. Raises FetchRefused, Unreachable."""
        if place.is_address:
            return [place.host]
        self._resolve = self._resolve or Resolver()
        try:
            addresses = await self._resolve(place.host, place.port)
        except OSError:
            raise Unreachable("its host name is not known") from None
        if not addresses:
            raise Unreachable("its host name has no address")
        self._guard.check(addresses)
        return addresses

    async def _dial(self, addresses: Sequence[str], make: Callable[[], asyncio.BaseProtocol], origin: Origin) -> None:
        """Connects to the first address that answers. Raises OSError."""
        for last, address in enumerate(addresses, 1 - len(addresses)):
            try:
                await self._connect(make, address, origin)
            except ssl.SSLError:
                raise
            except OSError:
                if not last:
                    raise
            else:
                return


def _encoded(place: PublicUrl, headers: RawHeaders, body: bytes) -> EncodedRequest:
    """The bytes of the request, from the parts that were judged; no header of ours has a line end."""
    fields = [(b"host", place.origin.removeprefix("https://").encode()), *headers]
    lines = b"\r\n".join(b"%b: %b" % field for field in fields)
    head = b"POST %b HTTP/1.1\r\n%b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return EncodedRequest(head % (place.target.encode(), lines, len(body)), body, None, len(body))


def _look_up(found: Future[list[str]], host: str, port: int) -> None:
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found.set_result(list(dict.fromkeys(str(entry[4][0]) for entry in entries)))
    except (OSError, UnicodeError) as error:
        found.set_exception(error if isinstance(error, OSError) else OSError(str(error)))


def _quietly(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    """Has it done in the loop, if that still runs."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act)


# --- the ways by which webhooks leave ---


def open_outwards(guard: AddressGuard, egress_proxy: str | None, ca_file: str | None) -> tuple[Outward, Outward]:
    """Returns the way to endpoints of the config, and the guarded one. Raises OSError for a `ca_file` that cannot be read.

    That to endpoints of the config, which may be internal, has no guard.
    """

    def tls() -> ssl.SSLContext:
        context = ssl.create_default_context()
        if ca_file is not None:
            context.load_verify_locations(ca_file)
        context.set_alpn_protocols(["http/1.1"])
        return context

    if egress_proxy is not None:
        own, others = (_through(egress_proxy, tls) for _ in range(2))
        return HttpOutward(own), GuardedOutward(guard, tls, others)
    context = None if ca_file is None else tls()  # the default one is loaded at first use
    return HttpOutward(Http1Transport(ssl_context=context, max_connections=CONNECTIONS)), GuardedOutward(guard, tls)


def _through(proxy: str, tls: Callable[[], ssl.SSLContext]) -> httpx.AsyncBaseTransport:
    return HttpxTransport(ssl_context=tls(), max_connections=8 * CONNECTIONS, proxy=proxy)
