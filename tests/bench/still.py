"""Systems for whom time stands still but for what calls make of it: what they do depends on their calls alone.

The gateway and the floor as they are, less what a machine's clock would drive: ticks and sweeps do not come, log and
counters are flushed when enough calls have ended, and the clock is a row of numbers, a little later with each look. So a
busy machine, or one that runs a hundred times slower because its instructions are counted, sees the same work as a quiet one.

    python -m tests.bench.still SYSTEM PROVIDER_PORT

starts one and prints its port; with each line of standard input it is a minute later, and with its end all is over.
"""

from __future__ import annotations

import asyncio
import io
import socket
import sys
import tempfile
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop

from gateway.app import Gateway
from gateway.core import telemetry
from gateway.core.clock import SystemClock
from gateway.core.http.client.transport import Http1Transport
from gateway.housekeeping import Housekeeping
from gateway.settings import Settings
from tests.bench.floor import config_of
from tests.bench.systems import write_gateway_config

LOOK_S = 20e-6
"""So much later it is with each look at the clock: a plain call looks some 10 times, which makes its 0.2 ms."""
LOOKS = 100_000
MINUTE_S = 60.0
"""Behind it the gateway does nothing any more that it does only after its start."""

Start = Callable[[int], AbstractAsyncContextManager["System"]]
"""Starts a system in front of a provider's port."""


class Times:
    """The times that the gateway will see."""

    def __init__(self) -> None:
        self._row = array("d")
        self._start_s = -MINUTE_S
        self.minute_later()

    @property
    def look(self) -> Callable[[], float]:
        """What takes the place of the clock: a function in C, as the clock is one."""
        return self._row.pop

    def minute_later(self) -> None:
        """Go on a minute after the last time that this was called."""
        self._start_s += MINUTE_S
        self._row[:] = array("d", [self._start_s + look * LOOK_S for look in range(LOOKS, 0, -1)])


@dataclass(frozen=True, slots=True)
class System:
    """A started system."""

    port: int
    times: Times


@asynccontextmanager
async def gateway(provider_port: int, more: str = "", of_model: str = "") -> AsyncIterator[System]:
    """A gateway with two written limits and all default policies; `more` and `of_model` are more of its config."""
    times = _stand_still()
    async with _started(provider_port, more, of_model) as port:
        yield System(port, times)


@asynccontextmanager
async def gateway_without_ticks(provider_port: int) -> AsyncIterator[int]:
    """The port of the same gateway with the machine's clock, for calls that wait. In a process it goes before `gateway`."""
    _stop_ticks()
    async with _started(provider_port) as port:
        yield port


@asynccontextmanager
async def _started(provider_port: int, more: str = "", of_model: str = "") -> AsyncIterator[int]:
    with tempfile.TemporaryDirectory(prefix="gateway-still-") as folder:
        config = write_gateway_config(Path(folder), 0, provider_port, more, of_model)
        one = Gateway(Settings(config=config, port=0), {}, log_stream=io.StringIO())
        await one.start()
        try:
            yield int(one.url.rpartition(":")[2])
        finally:
            await one.stop()


@asynccontextmanager
async def floor(provider_port: int) -> AsyncIterator[System]:
    """The floor."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = _StillServer(config_of(provider_port))
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield System(int(listener.getsockname()[1]), Times())
    finally:
        server.ended.set()
        await serving


SYSTEMS: dict[str, Start] = {"gateway": gateway, "floor": floor}


class _StillServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # sets the date header
        await self.ended.wait()


def _stand_still() -> Times:
    """Take its clock and what comes with time away from the gateway of this process."""
    _stop_ticks()
    times = Times()
    SystemClock.monotonic = staticmethod(times.look)
    return times


def _stop_ticks() -> None:
    telemetry.FLUSH_S = 1e6
    Housekeeping.start = _no_tick  # type: ignore[method-assign, assignment]  # it starts the loops; mypy misses self
    Http1Transport._tick = _no_tick  # type: ignore[method-assign, assignment]  # it ends the sweeps; mypy misses self


def _no_tick(_: object) -> None:
    """Takes the place of what comes with time."""


async def _serve(start: Start, provider_port: int) -> None:
    async with start(provider_port) as system:
        sys.stdout.write(f"{system.port}\n")
        sys.stdout.flush()
        while await asyncio.to_thread(sys.stdin.readline):
            system.times.minute_later()


if __name__ == "__main__":
    uvloop.run(_serve(SYSTEMS[sys.argv[1]], int(sys.argv[2])))
