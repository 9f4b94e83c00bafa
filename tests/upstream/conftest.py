"""What the egress tests share: both event loops, both transports, a clock moved by hand, a private CA."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import httpx
import pytest
import trustme
import uvloop

from gateway.core.http.client.httpx_transport import HttpxTransport
from gateway.core.http.client.transport import Http1Transport


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every async test of this folder on the stock loop and on uvloop."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass
class FakeClock:
    """Seconds that pass only when a test says so."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """A verifying client context that trusts the private CA, and nobody else: loading the system's takes 35 ms."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


def server_tls(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """A server context with a certificate for `names`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


MakeTransport = Callable[[ssl.SSLContext | None], httpx.AsyncBaseTransport]


def _ours(tls: ssl.SSLContext | None) -> httpx.AsyncBaseTransport:
    return Http1Transport(ssl_context=tls)


def _stock(tls: ssl.SSLContext | None) -> httpx.AsyncBaseTransport:
    return HttpxTransport(ssl_context=tls if tls is not None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


@pytest.fixture(params=[_ours, _stock], ids=["Http1Transport", "HttpxTransport"])
async def transport(
    request: pytest.FixtureRequest, trusting: ssl.SSLContext
) -> AsyncIterator[httpx.AsyncBaseTransport]:
    """Each transport in turn, trusting the private CA."""
    make: MakeTransport = request.param
    transport = make(trusting)
    yield transport
    await transport.aclose()


@dataclass(frozen=True, slots=True)
class Answer:
    """A response read to its end."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    extensions: dict[str, object]


async def fetch(transport: httpx.AsyncBaseTransport, request: httpx.Request) -> Answer:
    """Send `request` and read the whole answer."""
    response = await transport.handle_async_request(request)
    body = await read_body(response)
    return Answer(response.status_code, response.headers.raw, body, dict(response.extensions))


async def read_body(response: httpx.Response) -> bytes:
    """Read the rest of a response's stream and close it."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    try:
        return b"".join([chunk async for chunk in response.stream])
    finally:
        await response.stream.aclose()
