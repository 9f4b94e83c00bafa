"""Servers on free ports, a clock that tests move, and a raw client that sees the wire as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import httpx
import orjson
import pytest
import uvloop

from gateway.emulator.app import Emulator, EmulatorServer
from gateway.emulator.config import EmulatorConfig

StartServer = Callable[..., Awaitable[EmulatorServer]]
NONE: Mapping[str, str] = MappingProxyType({})
WALL_S = 1_790_000_000.0  # 2026-09-21T14:13:20Z


@dataclass
class FakeClock:
    """Time that moves only by `sleep` and by hand."""

    at_s: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.at_s

    def wall(self) -> float:
        return WALL_S + self.at_s - 1000.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at_s += seconds
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Seen:
    """All that came back on a connection until it ended, and whether it ended by a reset."""

    data: bytes
    is_reset: bool

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def head(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[0].lower()

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What reaches down to the transport runs on both loops, because their transports differ."""
    if item.path.stem in ("test_faults_on_the_wire", "test_control", "test_listener"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    """Starts servers that are stopped at the end of the test."""
    servers: list[EmulatorServer] = []

    async def start(config: EmulatorConfig | None = None, **clocks: Any) -> EmulatorServer:
        server = EmulatorServer(config, **clocks)
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()


def client_of(emulator: Emulator) -> httpx.AsyncClient:
    """An HTTP client that calls the app without a socket."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=emulator), base_url="http://emulator")


def chat_body(*, stream: bool = False, model: str = "gpt-4o", **extra: Any) -> dict[str, Any]:
    """A small chat request."""
    return {"model": model, "messages": [{"role": "user", "content": "hello there"}], "stream": stream, **extra}


def raw_request(path: str, body: dict[str, Any], *, close: bool = True, headers: Mapping[str, str] = NONE) -> bytes:
    """The bytes of a POST."""
    content = orjson.dumps(body)
    tail = "connection: close\r\n" if close else ""
    tail += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nhost: emulator\r\ncontent-length: {len(content)}\r\n{tail}\r\n"
    return head.encode() + content


async def connect(server: EmulatorServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A plain TCP connection to the server."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def exchange(
    server: EmulatorServer,
    body: dict[str, Any],
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] = NONE,
) -> Seen:
    """Posts over a plain socket and reads until the connection ends."""
    reader, writer = await connect(server)
    writer.write(raw_request(path, body, headers=headers))
    data, is_reset = b"", False
    try:
        async with asyncio.timeout(60):
            while chunk := await reader.read(65536):
                data += chunk
    except ConnectionResetError:
        is_reset = True
    writer.close()
    return Seen(data, is_reset)


async def until(fact: Callable[[], bool]) -> None:
    """Lets the loop turn until `fact` holds."""
    async with asyncio.timeout(60):
        while not fact():  # noqa: ASYNC110 - the facts are counters, which set no event
            await asyncio.sleep(0)


def dechunk(body: bytes) -> bytes:
    """The content of a chunked body, as far as it goes."""
    content = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        content, body = content + rest[:length], rest[length + 2 :]
        if not length:
            break
    return content


def events(content: bytes) -> list[bytes]:
    """The data of each SSE event."""
    return [line[6:] for line in content.split(b"\n") if line.startswith(b"data: ")]
