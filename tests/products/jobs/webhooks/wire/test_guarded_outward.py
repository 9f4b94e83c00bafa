"""Requests to URLs that callers name: what is connected to, over real TLS on loopback, whatever names are made to say."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme

from gateway.core.http.client.pool import Origin
from gateway.drivers.outward import (
    MOST_LOOKUPS,
    AddressGuard,
    FetchRefused,
    GuardedOutward,
    OutwardAnswer,
    Resolver,
    Unreachable,
)
from tests.fixtures.transports import server_tls
from tests.products.jobs.webhooks.ssrf_table import ALLOWED, NAMES, SPELLINGS
from tests.receiver import OK, Receiver

HOST, PUBLIC = "hooks.example.com", "93.184.215.14"
HEADERS = [(b"content-type", b"application/json"), (b"webhook-id", b"msg_1")]


class World:
    """Names and addresses as a test has them: every address leads to the receiver, and is remembered."""

    def __init__(self, trusting: ssl.SSLContext) -> None:
        self.names: Callable[[str], Sequence[str]] = lambda _name: [PUBLIC]
        self.looked_up: list[str] = []
        self.connected: list[str] = []
        self.dead: set[str] = set()
        self.port = 0
        self.outward = GuardedOutward(
            AddressGuard(),
            lambda: trusting,
            resolve=self._resolve,
            connect=self._connect,
        )

    async def _resolve(self, host: str, _port: int) -> Sequence[str]:
        self.looked_up.append(host)
        return self.names(host)

    async def _connect(self, make: Callable[[], asyncio.BaseProtocol], address: str, origin: Origin) -> None:
        self.connected.append(address)
        if address in self.dead:
            raise ConnectionRefusedError
        options: dict[str, Any] = {"ssl": origin.tls, "server_hostname": origin.host}
        await asyncio.get_running_loop().create_connection(make, "127.0.0.1", self.port, **options)


@pytest.fixture
def world(trusting: ssl.SSLContext) -> World:
    return World(trusting)


@asynccontextmanager
async def tls_receiver(
    world: World, authority: trustme.CA, answer: bytes | None, name: str = HOST
) -> AsyncIterator[Receiver]:
    """A receiver with a certificate for the name."""
    one = Receiver(answer)
    server = await asyncio.start_server(one.handle, "127.0.0.1", 0, ssl=server_tls(authority, name))
    world.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()


async def test_a_body_is_posted_to_the_address_that_was_looked_at(world: World, authority: trustme.CA) -> None:
    """Under the name, in TLS and in the Host; and each request looks anew, on a connection of its own."""
    async with tls_receiver(world, authority, OK) as there:
        url = f"https://{HOST.upper()}:8443/in?t=1"
        answers = [await world.outward.post(url, HEADERS, b'{"a":1}', 5.0) for _ in range(2)]

    assert answers == 2 * [OutwardAnswer(204)]
    assert (world.looked_up, world.connected) == (2 * [HOST], 2 * [PUBLIC])
    assert there.connections == 2
    head, _, body = there.requests[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /in?t=1 HTTP/1.1",
        b"host: hooks.example.com:8443",
        b"content-type: application/json",
        b"webhook-id: msg_1",
        b"content-length: 7",
        b"connection: close",
    ]
    assert body == b'{"a":1}'


async def test_no_spelling_of_a_private_address_is_connected_to(world: World) -> None:
    """Nor looked up: a resolver would read many of them as numbers."""
    world.names = lambda _name: ["127.0.0.1"]
    for url in SPELLINGS:
        with pytest.raises(FetchRefused) as refused:
            await world.outward.post(url, HEADERS, b"{}", 5.0)
        assert "s3cret" not in str(refused.value)

    assert (world.looked_up, world.connected) == ([], [])


async def test_no_name_of_a_private_address_is_connected_to(world: World) -> None:
    """Not even where it stands for a public one, too."""
    world.names = NAMES.__getitem__
    for name in NAMES:
        with pytest.raises(FetchRefused, match="its host stands for an address that is not public"):
            await world.outward.post(f"https://{name}/s3cret", HEADERS, b"{}", 5.0)

    assert (world.looked_up, world.connected) == ([*NAMES], [])


async def test_public_urls_are_connected_to(world: World) -> None:
    """What is written as an address is not looked up."""
    world.dead = {PUBLIC, *(found[0] for found in ALLOWED.values() if found[3])}
    for url in ALLOWED:
        with pytest.raises(Unreachable, match="ConnectError") as refused:
            await world.outward.post(url, HEADERS, b"{}", 5.0)
        assert not isinstance(refused.value, FetchRefused)

    assert world.connected == [found[0] if found[3] else PUBLIC for found in ALLOWED.values()]


async def test_a_name_that_changes_its_mind_is_looked_up_once(world: World, authority: trustme.CA) -> None:
    """First public, then this machine: the first answer is judged, and connected to; the second one is refused."""
    world.names = lambda _name: [PUBLIC] if len(world.looked_up) == 1 else ["127.0.0.1"]
    async with tls_receiver(world, authority, OK) as there:
        assert await world.outward.post(f"https://{HOST}/", HEADERS, b"{}", 5.0) == OutwardAnswer(204)
        with pytest.raises(FetchRefused):
            await world.outward.post(f"https://{HOST}/", HEADERS, b"{}", 5.0)

    assert world.connected == [PUBLIC]
    assert len(there.requests) == 1


async def test_the_next_address_is_tried_where_one_does_not_answer(world: World, authority: trustme.CA) -> None:
    """All of them were looked at."""
    world.names = lambda _name: ["2606:4700::1111", PUBLIC]
    world.dead = {"2606:4700::1111"}
    async with tls_receiver(world, authority, OK):
        assert await world.outward.post(f"https://{HOST}/", HEADERS, b"{}", 5.0) == OutwardAnswer(204)

    assert world.connected == ["2606:4700::1111", PUBLIC]


async def test_a_certificate_for_another_name_is_refused(world: World, authority: trustme.CA) -> None:
    """Whoever has the address is not the name's."""
    async with tls_receiver(world, authority, OK, "other.example.com") as there:
        with pytest.raises(Unreachable, match="its TLS certificate is not accepted"):
            await world.outward.post(f"https://{HOST}/", HEADERS, b"{}", 5.0)

    assert there.requests == []


@pytest.mark.parametrize("place", ["https://127.0.0.1/", "http://169.254.169.254/", "https://hooks.example.com/else"])
async def test_a_redirect_is_an_answer_and_is_not_followed(world: World, authority: trustme.CA, place: str) -> None:
    """Wherever it leads."""
    answer = f"HTTP/1.1 302 Go\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n".encode()
    async with tls_receiver(world, authority, answer) as there:
        assert await world.outward.post(f"https://{HOST}/", HEADERS, b"{}", 5.0) == OutwardAnswer(302)

    assert (len(there.requests), len(world.connected)) == (1, 1)


async def test_of_an_answer_little_is_read_and_its_wish_is_heard(world: World, authority: trustme.CA) -> None:
    """A body without end is left; Retry-After counts."""
    answer = b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\ncontent-length: 99999999\r\n\r\n" + b"x" * 100_000
    async with tls_receiver(world, authority, answer):
        assert await world.outward.post(f"https://{HOST}/", HEADERS, b"{}", 5.0) == OutwardAnswer(429, b"7")


async def test_silence_is_left_in_time_and_a_late_body_changes_nothing(world: World, authority: trustme.CA) -> None:
    """The status was there."""
    async with tls_receiver(world, authority, None) as there:
        with pytest.raises(Unreachable, match=r"no answer within 0\.3 s"):
            await world.outward.post(f"https://{HOST}/", HEADERS, b"{}", 0.3)
        there.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nab"
        assert await world.outward.post(f"https://{HOST}/", HEADERS, b"{}", 0.3) == OutwardAnswer(200)


async def test_a_name_that_nobody_knows_is_said_without_its_url(world: World) -> None:
    """Neither the resolver's word nor the path."""

    def unknown(_name: str) -> Sequence[str]:
        raise socket.gaierror(-2, "Name or service not known")

    world.names = unknown
    with pytest.raises(Unreachable, match=r"^its host name is not known$"):
        await world.outward.post(f"https://{HOST}/s3cret", HEADERS, b"{}", 5.0)


async def test_names_are_looked_up_in_threads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many at a time; those of providers do not wait behind them."""
    go_on, under_way = threading.Event(), []

    def slow(host: str, _port: int, **_: Any) -> Any:
        under_way.append(host)
        go_on.wait(5.0)
        return [(2, 1, 6, "", (PUBLIC, 443)), (2, 1, 6, "", (PUBLIC, 443))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    resolver = Resolver()
    looks = [asyncio.create_task(resolver(f"h{number}.example.com", 443)) for number in range(MOST_LOOKUPS + 3)]
    while len(under_way) < MOST_LOOKUPS:  # noqa: ASYNC110 - threads tell nobody
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert len(under_way) == MOST_LOOKUPS
    looks[0].cancel()
    go_on.set()
    found = await asyncio.gather(*looks, return_exceptions=True)

    assert found[1:] == [[PUBLIC]] * (MOST_LOOKUPS + 2)
    assert threading.active_count() < MOST_LOOKUPS
