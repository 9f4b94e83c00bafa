"""The load: plain calls in a closed loop (wrk when it is there, else our own generator), and event streams.

Runs on another core than the system under test. It knows a base URL's port and bytes, nothing of what is behind it; an
answer that is not what the canned provider sent is an error, never a sample.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from tests.bench.canned import whole_body

PATH = "/v1/chat/completions"
MESSAGES_PATH = "/v1/messages"
MODEL = "gpt-4o-mini"
CLAUDE = "claude-haiku-4-5"
PROMPT_BYTES = 900
_MARK = b"data: "


class LoadError(Exception):
    """The system under test gave a wrong answer."""


@dataclass(frozen=True, slots=True)
class PlainResult:
    """What a run of plain calls saw; latencies as seen by the client, in milliseconds."""

    calls: int
    seconds: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What a run of streams saw; `reads` tells whether events arrived one by one."""

    events: int
    reads: int


def chat_body(*, stream: bool = False, interval_ms: int = 0, events: int = 0) -> bytes:
    """A chat request of about 1 KB."""
    body: dict[str, Any] = {"model": MODEL, "messages": _said(), "temperature": 0.2}
    if stream:
        body |= {"stream": True, "user": f"interval_ms={interval_ms} events={events}"}
    return json.dumps(body, separators=(",", ":")).encode()


def messages_body() -> bytes:
    """A streamed request of Messages, of about 1 KB."""
    body = {"model": CLAUDE, "max_tokens": 256, "messages": _said(), "stream": True}
    return json.dumps(body, separators=(",", ":")).encode()


def _said() -> list[dict[str, str]]:
    text = ("Tell me how a gateway decides what to do with a call. " * 20)[:PROMPT_BYTES]
    return [{"role": "user", "content": text}]


def request(port: int, body: bytes, headers: Mapping[str, str], path: str = PATH) -> bytes:
    """The request on the wire."""
    fields = {"host": f"127.0.0.1:{port}", "content-type": "application/json", "content-length": len(body), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def run_plain(port: int, headers: Mapping[str, str], *, connections: int, seconds: float) -> PlainResult:
    """Keep `connections` calls going for `seconds`. Raises LoadError when any of them fails."""
    if shutil.which("wrk"):
        return _run_wrk(port, headers, connections, seconds)
    return uvloop.run(_run_own(port, headers, connections, seconds))


def run_paced(port: int, headers: Mapping[str, str], *, per_s: float, connections: int, seconds: float) -> PlainResult:
    """Make so many calls a second, each when it is due or as soon as its connection is free. Raises LoadError."""
    return uvloop.run(_run_own(port, headers, connections, seconds, pace_s=connections / per_s))


def generator() -> str:
    """Which load generator plain calls use."""
    return "wrk" if shutil.which("wrk") else "asyncio"


def _run_wrk(port: int, headers: Mapping[str, str], connections: int, seconds: float) -> PlainResult:
    script = Path(__file__).with_name("wrk.lua")
    extra = "\n".join(f"{name}: {value}" for name, value in headers.items())
    done = subprocess.run(
        [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{max(1, round(seconds))}s",
            "-s",
            script,
            f"http://127.0.0.1:{port}{PATH}",
        ],
        env={**os.environ, "BENCH_BODY": chat_body().decode(), "BENCH_HEADERS": extra},
        capture_output=True,
        text=True,
        check=False,
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise LoadError(f"wrk failed: {(done.stderr or done.stdout).strip()[-300:]}")
    result = json.loads(line.removeprefix("RESULT "))
    if result["errors"] or not result["calls"]:
        raise LoadError(f"{result['errors']} of {result['calls']} calls failed")
    return PlainResult(result["calls"], result["seconds"], result["p50_us"] / 1000, result["p99_us"] / 1000)


class _PlainClient(asyncio.Protocol):
    """One connection that asks again as soon as it is answered, or every `pace_s`, first after `first_s`."""

    def __init__(self, message: bytes, latencies: list[float], pace_s: float = 0.0, first_s: float = 0.0) -> None:
        self._message = message
        self._latencies = latencies
        self._pace_s = pace_s
        self._due = asyncio.get_running_loop().time() + first_s
        self._buffer = b""
        self._sent_at = 0.0
        self._transport: Any = None  # asyncio.Transport; uvloop's share no base class with it
        self.error: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask_in_time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = self.error or "connection lost"

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._buffer.startswith(b"HTTP/1.1 200"):
            self.error = self._buffer[:200].decode("latin-1")
        elif whole_body(self._buffer) is not None:
            self._latencies.append(time.perf_counter() - self._sent_at)
            self._ask_in_time()

    def _ask_in_time(self) -> None:
        if not self._pace_s:
            self._ask()
            return
        loop = asyncio.get_running_loop()
        self._due += self._pace_s
        loop.call_at(self._due, self._ask)

    def _ask(self) -> None:
        if self._transport.is_closing():
            return
        self._buffer = b""
        self._sent_at = time.perf_counter()
        self._transport.write(self._message)

    def close(self) -> None:
        self._transport.close()


async def _run_own(
    port: int, headers: Mapping[str, str], connections: int, seconds: float, pace_s: float = 0.0
) -> PlainResult:
    latencies: list[float] = []
    message = request(port, chat_body(), headers)
    loop = asyncio.get_running_loop()
    firsts = iter(pace_s * at / connections for at in range(connections))
    clients = [
        (
            await loop.create_connection(
                lambda: _PlainClient(message, latencies, pace_s, next(firsts)), "127.0.0.1", port
            )
        )[1]
        for _ in range(connections)
    ]
    latencies.clear()
    started_at = time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed_s = time.perf_counter() - started_at
    errors = [client.error for client in clients if client.error]
    for client in clients:
        client.close()
    if errors or not latencies:
        raise LoadError(f"{len(errors)} of {connections} connections failed: {errors[:1]}")
    latencies.sort()
    p50, p99 = (latencies[int(len(latencies) * share)] * 1000 for share in (0.5, 0.99))
    return PlainResult(len(latencies), elapsed_s, p50, p99)


class StreamClient(asyncio.Protocol):
    """One stream: counts events, and tells when the first and the last are here."""

    def __init__(self, message: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._message = message
        self._carry = b""
        self._transport: Any = None  # asyncio.Transport; uvloop's share no base class with it
        self.began: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.events = 0
        self.reads = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        data = self._carry + data  # a mark may be split over reads
        self._carry = data[-(len(_MARK) - 1) :]
        found = data.count(_MARK)
        self.events += found
        self.reads += found > 0
        if found and not self.began.done():
            self.began.set_result(None)
        if b"[DONE]" in data and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in (self.began, self.ended):
            if not waiting.done():
                waiting.set_exception(LoadError(f"a stream broke off after {self.events} events"))
                waiting.exception()  # whoever waits sees it; nobody else has to

    def close(self) -> None:
        self._transport.close()


class Streams:
    """Many streams at once; close them when done."""

    def __init__(self, port: int, headers: Mapping[str, str], *, interval_ms: int, events: int) -> None:
        self._port = port
        self._events = events
        body = chat_body(stream=True, interval_ms=interval_ms, events=events)
        self._message = request(port, body, headers)
        self._clients: list[StreamClient] = []

    async def open(self, count: int, timeout_s: float = 30.0) -> None:
        """Open streams one after the other, which also spreads their ticks, and wait for each one's first event."""
        loop = asyncio.get_running_loop()
        for _ in range(count):
            _, client = await loop.create_connection(lambda: StreamClient(self._message), "127.0.0.1", self._port)
            self._clients.append(client)
        async with asyncio.timeout(timeout_s):
            for client in self._clients:
                await client.began

    async def finish(self, timeout_s: float = 60.0) -> StreamResult:
        """Wait for their ends. Raises LoadError when an event is missing or there is one too many."""
        async with asyncio.timeout(timeout_s):
            for client in self._clients:
                await client.ended
        expected = self._events + 1  # and [DONE]
        wrong = [client.events for client in self._clients if client.events != expected]
        if wrong:
            raise LoadError(f"{len(wrong)} streams had {wrong[0]} events instead of {expected}")
        return StreamResult(sum(c.events for c in self._clients), sum(c.reads for c in self._clients))

    def close(self) -> None:
        """Hang up."""
        for client in self._clients:
            client.close()
