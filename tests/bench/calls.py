"""How many functions a call runs through: Python and C calls per plain call and per event of a stream, gateway and floor.

The gateway runs in this process, behind its own server on loopback; a thread is its client and its provider in turn, so
that each byte is answered before the next one is sent and nothing depends on how fast the machine is. The event loop's
thread counts with `sys.setprofile` from a request's first byte to its answer's last one, and what is done behind that.
Left out are the flush of log and counters, which many calls share, and the ticks. The figures are differences of two runs,
and time is a row of numbers, so that what is due every few milliseconds is done equally often in each run.

    python -m tests.bench.calls           # count
    python -m tests.bench.calls --write   # and renew this Python's entry in results/calls.json
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import socket
import sys
import tempfile
from array import array
from asyncio import futures
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import FrameType

import uvicorn
import uvloop

from gateway.app import Gateway
from gateway.clock import SystemClock
from gateway.settings import Settings
from gateway.telemetry import Telemetry
from gateway.upstream.http1.transport import Http1Transport
from tests.bench.canned import ANSWER, STREAM_HEAD, stream_events, whole_body
from tests.bench.floor import config_of
from tests.bench.load import chat_body, request
from tests.bench.systems import write_gateway_config

RESULTS = Path(__file__).with_name("results") / "calls.json"
LEFT_OUT = (
    Telemetry.flush,
    Gateway._keep_watch,
    Gateway._keep_house,
    Http1Transport._tick,
    uvicorn.Server.serve,
    vars(futures)["_set_result_unless_cancelled"],  # with which a sleep ends: only ticks sleep
)
LOOK_S = 20e-6
"""So much later it is with each look at the clock: a plain call looks some 10 times, which makes its 0.2 ms."""
LOOKS = 100_000
GROWN_UP_S = 60.0
"""When the gateway does nothing any more that it does only after its start."""
WARM, FEW, MANY = 50, 50, 250
"""Calls of a run, and events of a stream."""
PATIENCE_S = 30.0

Counts = dict[str, float]
"""By `python` and `c`: what one plain call or one event takes."""


class Counter:
    """Counts the calls of the thread that it is installed in with `sys.setprofile`."""

    def __init__(self) -> None:
        self.python = 0
        self.c = 0
        self._left_out = {function.__code__ for function in LEFT_OUT}
        self._outside: FrameType | None = None
        """The frame of a function that is left out, while it runs."""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """What happens in a frame; a coroutine that goes on is called again."""
        if self._outside is not None:
            if frame is self._outside and event == "return":
                self._outside = None
        elif event == "c_call":
            self.c += 1
        elif event == "call":
            if frame.f_code in self._left_out:
                self._outside = frame
            else:
                self.python += 1


class BothEnds:
    """The client and the provider of a system, which does one thing after the other and waits for what comes of it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._provider: socket.socket | None = None
        self._client: socket.socket | None = None
        self._port = 0

    @property
    def provider_port(self) -> int:
        """Where it answers."""
        return int(self._listener.getsockname()[1])

    def connect(self, port: int) -> None:
        """Be the client of this port from now on, over one connection."""
        self._port = port
        self._client = socket.create_connection(("127.0.0.1", port), PATIENCE_S)

    def close(self) -> None:
        """Close its sockets."""
        for one in (self._client, self._provider, self._listener):
            if one is not None:
                one.close()

    def plain(self, calls: int) -> None:
        """Make so many plain calls."""
        for _ in range(calls):
            self._ask(chat_body())
            self._answer(ANSWER, lambda data: whole_body(data) is not None)

    def stream(self, events: int) -> None:
        """Make one call that is answered with so many events of text, each alone."""
        role, text, stop, _, done = stream_events()
        self._ask(chat_body(stream=True))
        self._answer(STREAM_HEAD + role, _ends_an_event)
        for _ in range(events):
            self._answer(text, _ends_an_event)
        self._answer(stop + done, lambda data: data.endswith(b"0\r\n\r\n"))

    def _ask(self, body: bytes) -> None:
        assert self._client is not None
        self._client.sendall(request(self._port, body, {}))
        if self._provider is None:
            self._provider, _ = self._listener.accept()
            self._provider.settimeout(PATIENCE_S)
        _read(self._provider, lambda data: whole_body(data) is not None)

    def _answer(self, data: bytes, is_over: Callable[[bytes], bool]) -> None:
        assert self._client is not None
        assert self._provider is not None
        self._provider.sendall(data)
        received = _read(self._client, is_over)
        assert b"chatcmpl-bench" in received or b"[DONE]" in received, received


def _ends_an_event(data: bytes) -> bool:
    return data.endswith(b"\n\n\r\n")


def _read(connection: socket.socket, is_over: Callable[[bytes], bool]) -> bytes:
    data = b""
    while not is_over(data):
        part = connection.recv(65536)
        assert part, f"cut off behind {data!r}"
        data += part
    return data


@asynccontextmanager
async def gateway(provider_port: int) -> AsyncIterator[int]:
    """A gateway with two written limits and all default policies; yields its port."""
    with tempfile.TemporaryDirectory(prefix="gateway-calls-") as folder:
        config = write_gateway_config(Path(folder), 0, provider_port)
        one = Gateway(Settings(config=config, port=0), {}, log_stream=io.StringIO())
        await one.start()
        try:
            yield int(one.url.rpartition(":")[2])
        finally:
            await one.stop()


@asynccontextmanager
async def floor(provider_port: int) -> AsyncIterator[int]:
    """The floor; yields its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(config_of(provider_port))
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        await serving


async def count(system: Callable[[int], AbstractAsyncContextManager[int]]) -> dict[str, Counts]:
    """What a plain call and an event take in this system."""
    times = array("d", _row_from(0.0))
    SystemClock.monotonic = staticmethod(times.pop)
    ends = BothEnds()
    try:
        async with system(ends.provider_port) as port:
            ends.connect(port)
            await asyncio.to_thread(ends.plain, WARM)
            times[:] = _row_from(GROWN_UP_S)
            await asyncio.to_thread(ends.plain, WARM)
            await asyncio.to_thread(ends.stream, WARM)
            return {"plain": await _difference(ends.plain), "event": await _difference(ends.stream)}
    finally:
        ends.close()


def _row_from(start_s: float) -> array[float]:
    """The times that a clock shows from `start_s` on, the last one first."""
    return array("d", [start_s + look * LOOK_S for look in range(LOOKS, 0, -1)])


async def _difference(run: Callable[[int], None]) -> Counts:
    few, many = await _counted(run, FEW), await _counted(run, MANY)
    return {
        "python": round((many.python - few.python) / (MANY - FEW), 1),
        "c": round((many.c - few.c) / (MANY - FEW), 1),
    }


async def _counted(run: Callable[[int], None], times: int) -> Counter:
    counter = Counter()
    sys.setprofile(counter)
    try:
        await asyncio.to_thread(run, times)
        await asyncio.sleep(0.02)  # what is done behind the last answer
    finally:
        sys.setprofile(None)
    return counter


def this_python() -> str:
    """Whose counts these are: they differ from one minor version to the next."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def main() -> int:
    """Count, and tell as JSON; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.calls", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help=f"renew the entry of Python {this_python()} in {RESULTS.name}"
    )
    options = parser.parse_args()
    found = {one.__name__: uvloop.run(count(one)) for one in (gateway, floor)}
    if options.write:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**known, this_python(): found}, indent=2, sort_keys=True) + "\n")
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
