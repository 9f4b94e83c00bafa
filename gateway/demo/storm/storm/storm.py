"""The scenario "storm": more calls at once than the limit allows, straight at the provider and through the gateway.

It must not know how results are shown. Invariant: both runs meet the same limit at the same level, with the same client.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

from gateway.demo.record.record import Run
from gateway.demo.storm.clients.clients import Ask, CallFailedError, Connect
from gateway.demo.storm.storm.stage import gateway_before, provider
from gateway.emulator.app.call.stats import Stats
from gateway.emulator.config.config.config import EmulatorConfig

DIRECT, THROUGH = "straight to the provider", "through the gateway"
_FILES_PER_CALL = 4  # two connections of two ends each, all in this process
_TICK_S = 0.02
_PACE = EmulatorConfig(ttft_s=0.2, tokens_per_second=200.0, output_tokens=40)

Now = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Storm:
    """The scenario: `calls` at once against a limit of `rpm` requests per minute, `burst` of them at once."""

    calls: int = 300
    rpm: int = 600
    burst: int = 10
    pace: EmulatorConfig = _PACE
    """The pace of the provider's answers."""

    @property
    def rate_per_s(self) -> float:
        return self.rpm / 60.0


async def run_storm(
    storm: Storm, connect: Connect, begin: Callable[[Run], None], now: Now = time.monotonic
) -> list[Run]:
    """Makes both runs, one after the other; `begin` gets each before its first call, to show its progress."""
    _allow_files(storm.calls * _FILES_PER_CALL + 256)
    runs = []
    for name in (DIRECT, THROUGH):
        run = Run(name, storm.calls, storm.rate_per_s)
        begin(run)
        await measure(run, storm, connect, now)
        runs.append(run)
    return runs


async def measure(run: Run, storm: Storm, connect: Connect, now: Now) -> None:
    """Makes one run, with servers of its own."""
    await _warm_up(connect)
    async with AsyncExitStack() as stack:
        limited = replace(storm.pace, rpm=storm.rpm, burst=storm.burst, recorded_requests=0)
        server = await stack.enter_async_context(provider(limited))
        base_url = server.base_url
        if run.name == THROUGH:
            base_url = await stack.enter_async_context(gateway_before(base_url, rpm=storm.rpm, burst=storm.burst))
        ask = await stack.enter_async_context(connect(base_url, run.heard))
        run.begin(level=storm.burst, now=now())
        counting = asyncio.create_task(_keep_counting(run, server.emulator.stats, now))
        try:
            await fire(run, ask, now)
        finally:
            counting.cancel()
        _count(run, server.emulator.stats, now())


async def _warm_up(connect: Connect) -> None:
    """Makes one call beforehand: a client's first call loads half of its package, which is no part of the storm."""
    async with provider(EmulatorConfig()) as server, connect(server.base_url, lambda _status, _headers: None) as ask:
        await ask(0)


async def fire(run: Run, ask: Ask, now: Now) -> None:
    """Makes all calls of a run at once and waits for the last."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(run.calls):
            tasks.create_task(_call(run, ask, number, now))


async def _keep_counting(run: Run, stats: Stats, now: Now) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        _count(run, stats, now())


def _count(run: Run, stats: Stats, now: float) -> None:
    run.counted(stats.total, stats.statuses[200], stats.statuses[429], now)


async def _call(run: Run, ask: Ask, number: int, now: Now) -> None:
    called_at = now()
    try:
        tokens: int | None = await ask(number)
    except CallFailedError:
        tokens = None
    run.ended(tokens, called_at, now())


def _allow_files(count: int) -> None:
    """Raises this process's limit of open files as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        with suppress(OSError, ValueError):  # the calls that find no file then fail and are shown as failed
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
