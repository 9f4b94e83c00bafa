"""Thousands of calls at once over bare sockets, and what became of them at both ends of the wire.

    python -m tests.soak.storms URL COUNT       holds that many calls at a gateway until it is killed

Connections are made before the clock runs, so that times are those of the calls alone. It must not know how the gateway
decides. Invariant: every connection that was made is closed on every path.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import orjson

from gateway.emulator.app import EmulatorServer
from tests.e2e.harness import chat, get, post

AT_ONCE = 250
"""So many connections are made at a time."""
AN_HOUR_S = 3600.0
HOLD_PER_S = 1000
"""So fast do those come who are to be held."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What one call came to; times are monotonic seconds."""

    status: int
    headers: dict[str, str]
    body: bytes
    sent_at: float
    ended_at: float

    @property
    def took_s(self) -> float:
        return self.ended_at - self.sent_at

    @property
    def queue_s(self) -> float:
        """How long the gateway says it was held."""
        return int(self.headers["x-gateway-queue-ms"]) / 1000

    @property
    def own_s(self) -> float:
        """How long the gateway says that it has worked on it."""
        return float(self.headers["x-gateway-overhead-ms"]) / 1000

    @property
    def retry_after_s(self) -> float:
        """When it may come back."""
        return int(self.headers["retry-after-ms"]) / 1000

    @property
    def code(self) -> str:
        """`ok`, or the code of the error."""
        return "ok" if self.status == 200 else f"{self.status} {orjson.loads(self.body)['error']['code']}"

    @property
    def input_tokens(self) -> int:
        return int(orjson.loads(self.body)["usage"]["prompt_tokens"])


class Client:
    """One kept-alive connection, with all the patience in the world."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, request: bytes) -> None:
        """Put a request on the wire."""
        self._writer.write(request)

    async def ask(self, request: bytes) -> Answered:
        """Send a request and read its answer, which must say how long it is."""
        sent_at = time.monotonic()
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1")
        line, *lines = head.split("\r\n")
        headers = dict(one.split(": ", 1) for one in lines)
        body = await self._reader.readexactly(int(headers["content-length"]))
        return Answered(int(line[9:12]), headers, body, sent_at, time.monotonic())

    def close(self) -> None:
        """Leave without a word."""
        self._writer.transport.abort()


@asynccontextmanager
async def clients(url: str, count: int) -> AsyncIterator[list[Client]]:
    """So many connected clients."""
    host, _, port = url.removeprefix("http://").partition(":")
    made: list[Client] = []
    try:
        for start in range(0, count, AT_ONCE):
            more = min(AT_ONCE, count - start)
            streams = await asyncio.gather(*(asyncio.open_connection(host, int(port)) for _ in range(more)))
            made += [Client(*pair) for pair in streams]
        yield made
    finally:
        for one in made:
            one.close()


async def _at_once() -> None:
    return None


async def storm(
    url: str, requests: Sequence[bytes], *, begin: Callable[[], Awaitable[None]] = _at_once
) -> list[Answered]:
    """All requests at once, when `begin` returns, each over its own connection; the answers in their order."""
    async with clients(url, len(requests)) as made:
        await begin()
        return list(await asyncio.gather(*(one.ask(request) for one, request in zip(made, requests, strict=True))))


def request(*headers: str, deadline_s: float | None = None, **body: Any) -> bytes:
    """A chat request."""
    if deadline_s is not None:
        headers = (*headers, f"x-gateway-deadline-ms: {deadline_s * 1000:.0f}")
    return post("/v1/chat/completions", chat("m", **body), *headers)


def poisson(rng: random.Random, per_s: float, for_s: float) -> list[float]:
    """When calls come."""
    due, found = rng.expovariate(per_s), list[float]()
    while due < for_s:
        found.append(due)
        due += rng.expovariate(per_s)
    return found


async def come(url: str, due_s: Sequence[float], requests: Sequence[bytes]) -> list[Answered]:
    """Each request when it is due, whether or not earlier ones have been answered."""
    async with clients(url, len(requests)) as made:
        began_at = time.monotonic()

        async def one(client: Client, at_s: float, content: bytes) -> Answered:
            await asyncio.sleep(began_at + at_s - time.monotonic())
            return await client.ask(content)

        return list(await asyncio.gather(*map(one, made, due_s, requests)))


async def obey(
    url: str, due_s: Sequence[float], requests: Sequence[bytes]
) -> tuple[list[Answered], dict[int, Answered]]:
    """Each request when it is due, and those that are refused once more when they were told to: their second answers."""
    seconds: dict[int, Answered] = {}
    async with clients(url, len(requests)) as made:
        began_at = time.monotonic()

        async def one(number: int) -> Answered:
            await asyncio.sleep(began_at + due_s[number] - time.monotonic())
            answer = await made[number].ask(requests[number])
            if answer.status == 503:
                await asyncio.sleep(answer.ended_at + answer.retry_after_s - time.monotonic())
                seconds[number] = await made[number].ask(requests[number])
            return answer

        return list(await asyncio.gather(*map(one, range(len(requests))))), seconds


# What they came to.


def finished_s(answers: Sequence[Answered]) -> float:
    """From the first call to the last answer."""
    return max(one.ended_at for one in answers) - min(one.sent_at for one in answers)


def codes(answers: Sequence[Answered]) -> dict[str, int]:
    """How many ended how."""
    return dict(Counter(one.code for one in answers))


def percentile(values: Sequence[float], percent: int) -> float:
    """Of at least two values."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def refused_share(calls: int, *providers: EmulatorServer) -> float:
    """429s that the providers sent, per call."""
    return sum(one.emulator.stats.statuses[429] for one in providers) / calls


def arrivals(provider: EmulatorServer) -> list[float]:
    """When each request reached the provider (monotonic seconds), in order; it must have been told to record them."""
    return sorted(float(one["mono_s"]) for one in provider.emulator.recorder.last(1_000_000))


# How a process stands it.


@asynccontextmanager
async def loop_lag(url: str) -> AsyncIterator[list[float]]:
    """How late the loop of the server at `url` runs, in seconds, as a small request feels it every 10 ms."""
    felt: list[float] = []

    async def feel(client: Client) -> None:
        while True:
            felt.append((await client.ask(get("/livez"))).took_s)
            await asyncio.sleep(0.01)

    async with clients(url, 1) as (client,):
        feeling = asyncio.ensure_future(feel(client))
        try:
            yield felt
        finally:
            feeling.cancel()
            with suppress(asyncio.CancelledError):
                await feeling


def allow_files(count: int) -> None:
    """Raise this process's limit of open files as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


# Callers in a process of their own.


@asynccontextmanager
async def held(url: str, count: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has sent `count` calls and waits for their answers; killed at the end, if it was not before."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.soak.storms", url, str(count), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"sent\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _hold(url: str, count: int) -> None:
    allow_files(count + 100)
    async with clients(url, count) as made:
        began_at = time.monotonic()
        for number, one in enumerate(made):
            one.send(request(deadline_s=AN_HOUR_S, stream=number % 2 == 0))
            await asyncio.sleep(max(0.0, began_at + number / HOLD_PER_S - time.monotonic()))
        print("sent", flush=True)  # noqa: T201 - whoever started this process waits for it
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_hold(sys.argv[1], int(sys.argv[2])))
