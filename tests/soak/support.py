"""What the leak tests and the sweeps share: what a process holds, clients that die on purpose, a gateway of its own process.

Nothing here judges a gateway by its own word alone: descriptors come from the kernel, tasks from the loop, calls from
both ends of the wire. Invariant: a helper that opened something closes it on every path.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import signal
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, Literal

import orjson
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.http.client.transport import Http1Transport
from tests.e2e.harness import PATIENCE_S, Running, connect, get

Manner = Literal["reset", "close", "half_close"]
MANNERS: tuple[Manner, ...] = ("reset", "close", "half_close")
_RST_ON_CLOSE = struct.pack("ii", 1, 0)
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


# What is held.


def descriptors(pid: int | str = "self") -> int:
    """Open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def rss_kib(pid: int | str = "self") -> int:
    """Resident memory of a process, in KiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_KIB


@dataclass(frozen=True, slots=True)
class Held:
    """What a gateway, its emulator and the test hold together, kept-alive provider connections left out."""

    descriptors: int
    tasks: int
    calls: int
    in_flight: float
    connections: int
    """Provider connections in use, or waited for."""

    @classmethod
    def by(cls, *running: Running) -> Held:
        """Count now; an idle connection to an emulator has both its ends in this process."""
        pools = [pool for one in running for pool in one.gateway._pools.stats().values()]
        return cls(
            descriptors=descriptors() - 2 * sum(pool["idle"] for pool in pools),
            tasks=len(asyncio.all_tasks()),
            calls=sum(len(one.inflight) for one in running),
            in_flight=sum(sum_of(metrics(one), "gateway_calls_in_flight") for one in running),
            connections=sum(pool["active"] + pool["waiting"] for pool in pools),
        )


async def until_only(before: Held, *running: Running, patience_s: float = PATIENCE_S) -> None:
    """Wait until nothing more is held than before; says what is left when that does not happen."""
    ends_at = time.monotonic() + patience_s
    while (now := Held.by(*running)) != before:
        assert time.monotonic() < ends_at, f"still held: {now}, before: {before}"
        await asyncio.sleep(0.005)


class Nowhere(io.StringIO):
    """A call log that is not kept."""

    def write(self, text: str, /) -> int:
        return len(text)


def discard_log(running: Running) -> None:
    """Keep no call log from now on: a sweep's would be what grows."""
    running.gateway._call_log._stream = Nowhere()


# Numbers.


def metrics(running: Running) -> list[Metric]:
    """All metric families of a gateway in this process."""
    return list(running.gateway._telemetry.registry.collect())


def sum_of(families: list[Metric], sample: str, **labels: str) -> float:
    """The samples of this name with these labels, added up."""
    return sum(
        one.value
        for family in families
        for one in family.samples
        if one.name == sample and labels.items() <= one.labels.items()
    )


def settled(running: Running) -> dict[str, float]:
    """How many calls have been settled, by outcome."""
    found: dict[str, float] = {}
    for family in metrics(running):
        for one in family.samples:
            if one.name == "gateway_requests_total":
                found[one.labels["outcome"]] = found.get(one.labels["outcome"], 0) + one.value
    return found


def spread(values: list[float]) -> str:
    """p50, p99 and maximum of durations in seconds, as milliseconds."""
    if len(values) < 2:
        return "too few"
    cuts = quantiles(values, n=100)
    p50, p99, top = (f"{value * 1000:.1f}" for value in (cuts[49], cuts[98], max(values)))
    return f"p50 {p50} ms, p99 {p99} ms, max {top} ms (n={len(values)})"


def slope(points: list[tuple[float, float]]) -> float:
    """Least-squares slope of (x, y) points."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


# Clients that die.


class Mortal:
    """A client on a bare socket: it reads exactly what it is told to, and leaves in the manner it is told to."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        """Put all of it on the wire."""
        await self._loop.sock_sendall(self._socket, data)

    async def read(self, count: int) -> bytes:
        """Exactly `count` bytes, or less when the stream ends."""
        data = b""
        while len(data) < count and (part := await self._loop.sock_recv(self._socket, count - len(data))):
            data += part
        return data

    async def die(self, manner: Manner) -> float:
        """Leave; returns the monotonic time of it. Unread bytes turn a close into a reset.

        Whoever only ends his side still reads, and is answered: to leave takes a second step.
        """
        at = time.monotonic()
        if manner == "half_close":
            self._socket.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0)
        elif manner == "reset":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        self._socket.close()
        return at

    def close(self) -> None:
        """Let go of the socket, whatever became of it."""
        self._socket.close()


@asynccontextmanager
async def mortal(url: str, *, receive_buffer: int | None = None) -> AsyncIterator[Mortal]:
    """A bare connection to the server at `url`; `receive_buffer` bytes bound what the kernel takes unread."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = socket.socket()
    try:
        connection.setblocking(False)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
        yield Mortal(connection)
    finally:
        connection.close()


def draw_cut(rng: random.Random, length: int) -> int:
    """A place to die at, small ones as likely as large ones: heads are short and where most states change."""
    return min(length, int(length ** rng.random()) or 1)


# A gateway in a process of its own.


@dataclass(frozen=True, slots=True)
class Served:
    """A running `gateway serve`."""

    process: asyncio.subprocess.Process
    url: str
    log: Path
    """Its standard error."""
    calls: Path
    """Its call log."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def hang_up(self) -> None:
        """Send SIGHUP."""
        self.process.send_signal(signal.SIGHUP)

    async def inside(self, command: str) -> dict[str, Any]:
        """What the process says of itself; it must be one of `tests.soak.inside`, which tells the commands."""
        answers = self.log.with_suffix(".inside")
        answers.write_text("")
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command} {answers}\n".encode())
        await wait_for(lambda: answers.read_text().endswith("\n"), lambda: f"no answer to {command}")
        found: dict[str, Any] = orjson.loads(answers.read_text())
        return found

    async def metrics(self) -> list[Metric]:
        """What /metrics says."""
        async with connect(self.url) as peer:
            text = (await peer.exchange(get("/metrics"))).body.decode()
        return list(text_string_to_metric_families(text))


@asynccontextmanager
async def serve(config: Path, module: str = "gateway") -> AsyncIterator[Served]:
    """Run `gateway serve` on a free port; ends it at the end and expects exit code 0. `module` may be one around it."""
    log, calls = config.with_suffix(".err"), config.with_suffix(".calls")
    command = (sys.executable, "-m", module, "serve", "--config", str(config), "--port", "0")
    with log.open("w") as stderr, calls.open("w") as stdout:
        stdin = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=stdin, stderr=stderr, stdout=stdout)
    try:
        await wait_for(lambda: "listens on" in log.read_text(), log.read_text)
        url = log.read_text().partition("listens on ")[2].partition(",")[0]
        yield Served(process, url, log, calls)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def wait_for(fact: Callable[[], bool], why: Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """Wait until `fact` holds; fails with `why()` when it never does."""
    ends_at = time.monotonic() + patience_s
    while not fact():
        assert time.monotonic() < ends_at, why()
        await asyncio.sleep(0.005)


# Readers that do not read.


def buffered_bytes(running: Running) -> list[int]:
    """What the gateway itself holds of each streamed answer: read from the provider, not yet taken by the client's socket."""
    unsent = [one.transport.get_write_buffer_size() for one in running.connections]
    unread = [
        one._exchange.buffered
        for transport in running.gateway._pools._by_provider.values()
        if isinstance(transport, Http1Transport)
        for pool in transport._pools.values()
        for one in pool.connections
        if one._exchange is not None
    ]
    return [sum(pair) for pair in zip(sorted(unsent)[-len(unread) :], sorted(unread), strict=False)] or [0]


async def until_still(count: Callable[[], int], turns: int = 40) -> int:
    """Wait until a counter has not moved for this many looks at it; returns where it stands."""
    seen, still, ends_at = count(), 0, time.monotonic() + 60.0
    while still < turns:
        assert time.monotonic() < ends_at, f"it still moves: {seen}"
        await asyncio.sleep(0.005)
        now = count()
        seen, still = now, (still + 1 if now == seen else 0)
    return seen
