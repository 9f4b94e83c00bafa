"""What the tests of the caches stand on: gateways that keep answers, providers that say exact bytes, a wall clock to move."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, Response, Running, config_of, connect, post
from tests.support.raw_server import READ, RawServer

CHAT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"
PRICES = {"m": {"input_usd": 2e-6, "output_usd": 8e-6}}
STREAMS = Path(__file__).parents[1] / "support" / "streams"
ONCE = {"attempts": 1}

Start = Callable[..., Awaitable[Running]]


@dataclass
class Wall:
    """The gateway's wall clock, ahead of the machine's."""

    ahead_s: float = 0.0

    def now(self) -> float:
        return time.time() + self.ahead_s


def keeping(folder: Path, **sections: Any) -> dict[str, Any]:
    """A section of the config under which all answers are kept for a minute, unless `sections` of cache.yaml say otherwise."""
    exact = {"requests": "always", "ttl": "1m", **sections.pop("exact", {})}
    for name, policy in ({"cache": {"exact": exact, **sections}, "retries": ONCE}).items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"default": policy}))
    return {"policies": str(folder), "admin": {"key": ADMIN_KEY}}


def config(folder: Path, caching: dict[str, Any] | None = None, **sections: Any) -> Callable[[str], dict[str, Any]]:
    """A gateway that keeps answers."""
    return lambda url: config_of(url, **{**keeping(folder, **(caching or {})), **sections})


async def ask(gateway: Running, body: Any, *headers: str, path: str = CHAT) -> Response:
    """One request on a connection of its own, and its answer."""
    async with connect(gateway.url) as peer:
        return await peer.exchange(post(path, body, *headers))


def saying(text: str, **fields: Any) -> dict[str, Any]:
    """A chat that asks this."""
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **fields}


def streaming(text: str, **fields: Any) -> dict[str, Any]:
    """The same, streamed."""
    return saying(text, stream=True, **fields)


WITH_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


def cache_of(response: Response) -> str | None:
    """What the gateway says of the answer: `hit`, `miss` and so on."""
    return response.header("x-gateway-cache")


def events(frames: bytes, size: int = 1000) -> bytes:
    """The HTTP answer that streams these frames, in chunks of this size, and leaves."""
    parts = [frames[at : at + size] for at in range(0, len(frames), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    head = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    return b"HTTP/1.1 200 OK\r\n%b%b0\r\n\r\n" % (head, chunks)


def whole(body: bytes, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    """An HTTP answer in one piece."""
    head = b"".join(header + b"\r\n" for header in (b"content-type: application/json", b"connection: close", *headers))
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, head, len(body), body)


@asynccontextmanager
async def behind(
    start: StartGateway, folder: Path, *answers: bytes, caching: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[tuple[Running, RawServer]]:
    """A gateway that keeps answers, whose provider gives these, one to each call."""
    async with RawServer([[READ, answer] for answer in answers]) as provider:
        yield await start(lambda _url: config(folder, caching, **sections)(f"{provider.url}/v1")), provider
