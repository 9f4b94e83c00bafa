"""A real gateway and a real emulator in the test's own event loop, and clients that see the wire as it is.

Nothing is mocked: ports, processes' worth of wiring and bytes are those of production. Invariant: after `stop` neither a
call nor a connection of the gateway is left.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml
from openai import AsyncOpenAI, OpenAI

from gateway.app import Gateway
from gateway.core.intake import InFlight
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, parse_script_entry
from gateway.products.realtime.service import RealtimeSessions
from gateway.settings import Settings
from tests.loopback import blocking_plain_http, plain_http

PROVIDER_KEY = "sk-provider-canary-1f0e9d8c7b6a"
WEB_KEY = "web-canary-key-0123456789abcdef"
NIGHTLY_KEY = "nightly-canary-key-fedcba9876543210"
ADMIN_KEY = "admin-canary-key-00112233445566"
KEYS: list[dict[str, Any]] = [
    {"name": "web", "key": WEB_KEY},
    {"name": "nightly", "key": NIGHTLY_KEY, "lane": "batch", "models": ["gpt-4o*"]},
]
PATIENCE_S = 60.0
"""When a wait for something that must happen is called a failure."""


def config_of(base_url: str, **sections: Any) -> dict[str, Any]:
    """A config whose one provider is at `base_url`; `sections` replace or add top-level entries, None removes."""
    config: dict[str, Any] = {
        "providers": {"main": {"dialect": "openai", "base_url": base_url, "api_key": PROVIDER_KEY}},
        "models": {
            "gpt-4o": {"targets": ["main/gpt-4o"]},
            "renamed": {"targets": ["main/gpt-4o-mini"]},
            "*": {"targets": ["main"]},
        },
        **sections,
    }
    return {name: value for name, value in config.items() if value is not None}


def to_yaml(config: Mapping[str, Any]) -> str:
    """The text of a config file; written by the C library, which says the same in a quarter of the time."""
    return str(yaml.dump(dict(config), Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))


@dataclass
class Running:
    """A started gateway; `emulator` is the provider behind it unless the config names another."""

    gateway: Gateway
    emulator: EmulatorServer
    config_path: Path
    log: io.StringIO
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The root of the data plane."""
        return self.gateway.url

    @property
    def connections(self) -> set[Any]:
        """The client connections of its data plane."""
        return set(self.gateway._servers[0]._state.connections)

    @property
    def inflight(self) -> InFlight:
        """Whom it serves right now."""
        return self.gateway._inflight

    @property
    def sessions(self) -> RealtimeSessions:
        """Its realtime sessions."""
        assert self.gateway._realtime is not None
        return self.gateway._realtime

    def write_config(self, config: Mapping[str, Any] | str) -> None:
        """Replace the config file."""
        self.config_path.write_text(config if isinstance(config, str) else to_yaml(config))

    def script(self, *faults: str, model: str = "*") -> None:
        """The faults of the emulator's next calls, in order; `ok` is none."""
        self.emulator.emulator.faults.script(model, [parse_script_entry(fault) for fault in faults])

    def received(self) -> list[dict[str, Any]]:
        """The requests that reached the emulator."""
        return self.emulator.emulator.recorder.last(10_000)

    def upstream_calls(self) -> int:
        """How many requests reached the emulator."""
        return self.emulator.emulator.stats.total

    def sdk(self, api_key: str = WEB_KEY, **options: Any) -> AsyncOpenAI:
        """The SDK through the gateway."""
        options.setdefault("http_client", plain_http())
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, **options)

    def direct(self, api_key: str = PROVIDER_KEY, **options: Any) -> AsyncOpenAI:
        """The SDK at the emulator."""
        options.setdefault("http_client", plain_http())
        return AsyncOpenAI(base_url=self.emulator.base_url, api_key=api_key, max_retries=0, **options)

    def blocking_sdk(self, api_key: str = WEB_KEY) -> OpenAI:
        """The synchronous SDK through the gateway; use it in a thread."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, http_client=blocking_plain_http())

    def blocking_direct(self, api_key: str = PROVIDER_KEY) -> OpenAI:
        """The synchronous SDK at the emulator; use it in a thread."""
        return OpenAI(
            base_url=self.emulator.base_url, api_key=api_key, max_retries=0, http_client=blocking_plain_http()
        )

    async def idle(self) -> None:
        """Wait until nobody is being served."""
        await until(lambda: len(self.inflight) == 0)

    async def stop(self) -> None:
        """Stop the gateway and the emulator, and read the call log."""
        await self.gateway.stop()
        await self.emulator.stop()
        self.records = [orjson.loads(line) for line in self.log.getvalue().split("\n") if line]


async def start_gateway(
    folder: Path,
    config: Callable[[str], Mapping[str, Any]] = config_of,
    *,
    emulator: EmulatorConfig | None = None,
    environ: Mapping[str, str] | None = None,
    host: str | None = None,
    wall: Callable[[], float] = time.time,
) -> Running:
    """Start an emulator, and a gateway whose config is made from the emulator's base URL."""
    server = EmulatorServer(emulator, wall=wall)
    await server.start()
    path = folder / "config.yaml"
    path.write_text(to_yaml(config(server.base_url)))
    log = io.StringIO()
    try:
        gateway = Gateway(Settings(config=path, port=0, host=host), environ or {}, log_stream=log)
        await gateway.start()
    except BaseException:
        await server.stop()
        raise
    return Running(gateway, server, path, log)


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP response as it came; `raw` is its head and its body as framed."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    raw: bytes

    def header(self, name: str) -> str | None:
        """The value of a header, None when absent; two of the same name are a fault of the server."""
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1, f"{name} occurs {len(found)} times"
        return found[0] if found else None

    @property
    def error(self) -> dict[str, Any]:
        """The error object, checked to be exactly of OpenAI's shape."""
        assert self.header("content-type") == "application/json", self.raw
        value = orjson.loads(self.body)
        assert set(value) == {"error"}, value
        assert set(value["error"]) == {"message", "type", "param", "code"}, value
        assert isinstance(value["error"]["message"], str)
        assert value["error"]["message"]
        assert self.header("x-request-id"), self.raw
        found: dict[str, Any] = value["error"]
        return found


class Peer:
    """A plain TCP client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Put bytes on the wire."""
        self.writer.write(data)

    async def response(self, *, head: bool = False) -> Response:
        """Read one response to its end; `head`: it answers a HEAD request."""
        async with asyncio.timeout(PATIENCE_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
            line, *lines = raw[:-4].decode("latin-1").split("\r\n")
            headers = tuple(_header(each) for each in lines)
            status = int(line.split(" ")[1])
            if status == 100:
                return Response(status, headers, b"", raw)
            body, framed = b"", b""
            if not head and status not in (204, 304):
                body, framed = await self._body(dict(headers))
            return Response(status, headers, body, raw + framed)

    async def exchange(self, data: bytes) -> Response:
        """Send bytes and read one response."""
        self.send(data)
        return await self.response()

    async def rest(self, patience_s: float = PATIENCE_S) -> bytes:
        """All bytes until the connection ends, whichever way it does."""
        data = b""
        async with asyncio.timeout(patience_s):
            try:
                while part := await self.reader.read(65536):
                    data += part
            except ConnectionError:
                pass
        return data

    def close(self) -> None:
        """Leave without a word: what was not read makes it a reset."""
        self.writer.transport.abort()

    async def _body(self, headers: dict[str, str]) -> tuple[bytes, bytes]:
        if headers.get("transfer-encoding") == "chunked":
            return await self._chunked()
        length = headers.get("content-length")
        body = await self.reader.readexactly(int(length)) if length is not None else await self.rest()
        return body, body

    async def _chunked(self) -> tuple[bytes, bytes]:
        body, framed = b"", b""
        while True:
            line = await self.reader.readline()
            size = int(line, 16)
            part = await self.reader.readexactly(size + 2)
            body, framed = body + part[:-2], framed + line + part
            if not size:
                return body, framed


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name, value


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Peer]:
    """A plain TCP connection to the server at `url`, dropped at the end."""
    host, _, port = url.removeprefix("http://").partition(":")
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    try:
        yield peer
    finally:
        peer.close()


def post(
    path: str = "/v1/chat/completions",
    body: bytes | Mapping[str, Any] | None = None,
    *headers: str,
    method: str = "POST",
    length: int | None = None,
) -> bytes:
    """The bytes of a request: by default a good chat request; header lines may replace the content type."""
    content = body if isinstance(body, bytes) else orjson.dumps(chat() if body is None else body)
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: localhost",
        f"content-length: {len(content) if length is None else length}",
    ]
    if not any(header.lower().startswith("content-type") for header in headers):
        lines.append("content-type: application/json")
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + content


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    """The bytes of a request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *headers, "", ""]).encode("latin-1")


def chat(model: str = "gpt-4o", **extra: Any) -> dict[str, Any]:
    """A small chat request."""
    return {"model": model, "messages": [{"role": "user", "content": "hello there"}], **extra}


async def until(fact: Callable[[], bool]) -> None:
    """Let the loop turn until `fact` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not fact():  # noqa: ASYNC110 - the facts are counters of other tasks, which set no event
            await asyncio.sleep(0.001)
