"""Large bodies that nobody here reads: they go to the provider as they come, and are never held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from gateway.core.request_fields import MOST_STREAMED_BYTES, STREAMED_FROM_BYTES
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEYS, WEB_KEY, config_of, connect, post, until
from tests.support.raw_server import READ, RawServer

FORM: Final = "content-type: multipart/form-data; boundary=b"
AUTH: Final = f"authorization: Bearer {WEB_KEY}"
MEGABYTE: Final = b"x" * 1_000_000
OK: Final = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{"id":"file-1"}'
FULL: Final = (
    b'HTTP/1.1 413 Large\r\ncontent-type: application/json\r\ncontent-length: 22\r\n\r\n{"error":{"code":"x"}}'
)


class Provider:
    """Takes one request as it comes, and answers it behind so many bytes of its body."""

    def __init__(self, answer: bytes, after: int) -> None:
        self.answer, self.after = answer, after
        self.head, self.body = b"", bytearray()
        self.url = ""
        self.is_gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = await reader.readuntil(b"\r\n\r\n")
        while len(self.body) < self.after and (piece := await reader.read(65536)):
            self.body += piece
        if len(self.body) >= self.after:
            writer.write(self.answer)
            await reader.read()
        self.is_gone.set()
        writer.close()


@asynccontextmanager
async def provider_of(answer: bytes, after: int) -> AsyncIterator[Provider]:
    provider = Provider(answer, after)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        server.close()


def relaying(url: str, **sections: Any) -> Mapping[str, Any]:
    return config_of(f"{url}/v1", passthrough="main", keys=KEYS, **sections)


@pytest.mark.parametrize(
    ("path", "keys"), [("/v1/files", KEYS), ("/v1/uploads/upload_1/parts", KEYS[:1]), ("/v1/images/edits", KEYS[:1])]
)
async def test_an_upload_arrives_while_it_is_sent(start: StartGateway, path: str, keys: Any) -> None:
    """Its first half is at the provider before the client has sent the second; no more than some buffers is held."""
    size = 20 * len(MEGABYTE)
    async with provider_of(OK, size) as provider:
        gateway = await start(lambda _: {**relaying(provider.url), "keys": keys})
        async with connect(gateway.url) as peer:
            peer.send(post(path, b"", AUTH, FORM, length=size))
            for _ in range(10):
                peer.send(MEGABYTE)
                await peer.writer.drain()
            await until(lambda: len(provider.body) > 5 * len(MEGABYTE))
            for _ in range(10):
                peer.send(MEGABYTE)
                await peer.writer.drain()
            answer = await peer.response()

    assert (answer.status, answer.body) == (200, b'{"id":"file-1"}')
    assert provider.body == MEGABYTE * 20
    assert b"content-length: %d\r\n" % size in provider.head


async def test_an_upload_goes_over_other_transports(start: StartGateway) -> None:
    """As over our own."""
    async with provider_of(OK, 2_000_000) as provider:
        config = relaying(provider.url)
        gateway = await start(
            lambda _: {**config, "providers": {"main": {**config["providers"]["main"], "transport": "httpx"}}}
        )
        async with connect(gateway.url) as peer:
            assert (await peer.exchange(post("/v1/files", MEGABYTE * 2, AUTH, FORM))).status == 200

    assert provider.body == MEGABYTE * 2


async def test_a_foreign_upload_is_refused_before_its_body(start: StartGateway) -> None:
    """Whose it is stands in the path."""
    async with provider_of(OK, 1) as provider:
        gateway = await start(lambda _: relaying(provider.url))
        async with connect(gateway.url) as peer:
            peer.send(post("/v1/uploads/upload_1/parts", b"x", AUTH, FORM, length=5_000_000))
            assert (await peer.response()).status == 404

    assert not provider.head


async def test_a_provider_may_refuse_before_the_end(start: StartGateway) -> None:
    """Its word reaches the client, which has not sent all."""
    async with provider_of(FULL, 1000) as provider:
        gateway = await start(lambda _: relaying(provider.url))
        async with connect(gateway.url) as peer:
            peer.send(post("/v1/files", MEGABYTE, AUTH, FORM, length=50_000_000))
            answer = await peer.response()

    assert answer.status == 413


async def test_a_client_that_leaves_ends_the_upload(start: StartGateway) -> None:
    """The provider sees the connection break, and no body that looks complete."""
    async with provider_of(OK, 5_000_000) as provider:
        gateway = await start(lambda _: relaying(provider.url))
        async with connect(gateway.url) as peer:
            peer.send(post("/v1/files", MEGABYTE, AUTH, FORM, length=5_000_000))
            await until(lambda: len(provider.body) == len(MEGABYTE))
        await provider.is_gone.wait()
        await until(lambda: len(gateway.inflight) == 0)

    assert len(provider.body) == len(MEGABYTE)


@pytest.mark.parametrize(
    ("size", "kind", "keys", "status"),
    [
        (MOST_STREAMED_BYTES + 1, FORM, KEYS, 413),
        (100_000_000, "content-type: application/json", KEYS[:1], 413),
        (STREAMED_FROM_BYTES, FORM, KEYS[:1], 200),
    ],
)
async def test_what_is_read_or_short_or_too_long_is_not_streamed(
    start: StartGateway, size: int, kind: str, keys: Any, status: int
) -> None:
    """JSON may ask for more than it seems; a short body is held as ever."""
    async with RawServer([[READ, OK]]) as provider:
        gateway = await start(lambda _: {**relaying(provider.url), "keys": keys})
        async with connect(gateway.url) as peer:
            peer.send(post("/v1/files", b"x" * size if status == 200 else b"x", AUTH, kind, length=size))
            assert (await peer.response()).status == status


async def test_a_bound_of_the_config_holds_for_streams(start: StartGateway) -> None:
    """As for all bodies."""
    async with RawServer([[READ, OK]]) as provider:
        gateway = await start(lambda _: relaying(provider.url, server={"max_body": "2MB"}))
        async with connect(gateway.url) as peer:
            peer.send(post("/v1/files", b"x", AUTH, FORM, length=2_000_001))
            assert (await peer.response()).status == 413


async def test_a_slow_client_is_told(start: StartGateway) -> None:
    """Each piece may take `body_timeout`."""
    async with provider_of(OK, 5_000_000) as provider:
        gateway = await start(lambda _: relaying(provider.url))
        async with connect(gateway.url) as peer:
            peer.send(post("/v1/files", MEGABYTE, AUTH, FORM, length=5_000_000))
            await until(lambda: len(provider.body) == len(MEGABYTE))
            gateway.inflight.sweep(float("inf"))
            assert (await peer.response()).status == 408
