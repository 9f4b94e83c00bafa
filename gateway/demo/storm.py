"""The scenarios "outage" and "storm", straight at the provider and through the gateway, with all servers in this process.

In this order: the servers, the outage, the storm. An outage is steady traffic while a provider dies, falls silent, crawls,
flaps, throttles and errs; two worlds run at the same time, so that both have the same machine: in one the app calls the
provider itself, in the other a gateway that knows a second provider. A storm is more calls at once than the limit allows.
It must not know how results are shown. Invariants: both ways meet the same limit and the same faults at the same time, with
the same client; no server is left when its context ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.app import Gateway
from gateway.demo.clients import API_KEY, MODEL, AnswerBrokenError, Ask, CallFailedError, Client, Connect, Habits
from gateway.demo.record import Run, Trial
from gateway.emulator.app import EmulatorServer
from gateway.emulator.call import Stats
from gateway.emulator.config import EmulatorConfig, parse_rule
from gateway.settings import Settings

# --- The servers ---


class _Nowhere(StringIO):
    """A stream that discards its text."""

    def write(self, text: str, /) -> int:
        return len(text)


@asynccontextmanager
async def provider(config: EmulatorConfig) -> AsyncIterator[EmulatorServer]:
    """Yields a started emulator with full limits."""
    server = EmulatorServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def gateway_before(base_url: str, *, rpm: int, burst: int) -> AsyncIterator[str]:
    """Yields the base URL of a gateway whose config names the provider's limit."""
    config = {
        "providers": {"provider": _entry(base_url)},
        "models": {MODEL: {"targets": [{"provider": "provider", "model": MODEL, "rpm": rpm, "burst": burst}]}},
    }
    async with gateway_of(config) as url:
        yield url


@asynccontextmanager
async def gateway_between(primary: str, fallback: str) -> AsyncIterator[str]:
    """Yields the base URL of a gateway that calls the provider at `primary` and, where that fails, the other one."""
    config = {
        "policies": "policies",
        "providers": {"primary": _entry(primary), "fallback": _entry(fallback)},
        "models": {
            MODEL: {"targets": [f"primary/{MODEL}"], "fallbacks": ["spare"]},
            "spare": {"targets": [f"fallback/{MODEL}"]},
        },
    }
    timeouts = {"connect": "1s", "first_byte": "5s", "idle": "5s", "total": "30s"}
    async with gateway_of(config, {"timeouts.yaml": {"default": timeouts}}) as url:
        yield url


@asynccontextmanager
async def gateway_of(config: Mapping[str, Any], policies: Mapping[str, Any] | None = None) -> AsyncIterator[str]:
    """Yields the base URL of a gateway with this config and these policy files; its logs are discarded."""
    with TemporaryDirectory(prefix="gateway-demo-") as name, _silenced(logging.getLogger("gateway")):
        folder = Path(name)
        (folder / "policies").mkdir()
        (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        for file, content in (policies or {}).items():
            (folder / "policies" / file).write_text(json.dumps(content))
        settings = Settings(config=folder / "config.yaml", host="127.0.0.1", port=0)
        gateway = Gateway(settings, {}, log_stream=_Nowhere())
        await gateway.start()
        try:
            yield f"{gateway.url}/v1"
        finally:
            await gateway.stop()


@contextmanager
def _silenced(logger: logging.Logger) -> Iterator[None]:
    """Silences a logger, whose lines would break the line of progress."""
    handler = logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _entry(base_url: str) -> dict[str, str]:
    return {"dialect": "openai", "kind": "openai", "base_url": base_url, "api_key": API_KEY}


# --- The outage ---


ATTEMPTS = "x-gateway-attempts"
_REFUSED = re.compile(r"primary/\S+:connection\(0\.0s\)")  # failed at once: nothing listened there
_WARM_UP_CALLS = 4
DIRECT, THROUGH = "straight to the provider", "through the gateway"
_OUTAGE_PACE = EmulatorConfig(ttft_s=0.2, tokens_per_second=50.0, output_tokens=8, recorded_requests=0)


@dataclass(frozen=True, slots=True)
class Act:
    """A fault of the primary provider from one share of the time to another."""

    label: str
    start: float
    end: float
    faults: tuple[str, ...] = ()
    takes: float | None = None
    """The share of the traffic that its rate limit admits; None: more than all of it."""
    is_everywhere: bool = False
    """The fallback has the fault, too."""


QUIET = Act("", 0.0, 1.0)
ACTS = (
    Act("dead", 0.06, 0.17, ("refuse",)),
    Act("silent", 0.22, 0.35, ("silence",)),  # takes every call, and answers none
    Act("slow", 0.41, 0.51, ("slow_first_token;seconds=1.8",)),  # ten times its time to the first token
    Act("flapping", 0.56, 0.66, ("refuse;on_s=0.6;off_s=0.6",)),
    Act("throttled", 0.71, 0.80, takes=0.25),
    Act("10 % 5xx", 0.84, 0.92, ("e500=0.05", "e503=0.03", "html502=0.022")),
    Act("both dead", 0.95, 0.98, ("refuse",), is_everywhere=True),
)


@dataclass(frozen=True, slots=True)
class Outage:
    """The scenario: `rate_per_s` calls for `seconds`, every other one streamed."""

    seconds: float = 40.0
    rate_per_s: float = 20.0
    late_s: float = 1.5
    timeout_s: float = 10.0
    """The timeout of each try of the app's client."""
    acts: Sequence[Act] = ACTS
    pace: EmulatorConfig = _OUTAGE_PACE

    @property
    def calls(self) -> int:
        return max(1, round(self.seconds * self.rate_per_s))

    def act_at(self, time_s: float) -> Act:
        """Returns the act at this time."""
        share = time_s / self.seconds
        return next((act for act in self.acts if act.start <= share < act.end), QUIET)

    def limits(self, act: Act) -> dict[str, Any]:
        """Returns the primary's rate limit during an act: requests per minute, and the burst."""
        per_s = self.rate_per_s * (10.0 if act.takes is None else act.takes)
        return {"rpm": max(1, round(60 * per_s)), "burst": max(1, round(per_s))}


@dataclass(frozen=True, slots=True)
class World:
    """One way to the providers, and the trial of the calls that take it."""

    trial: Trial
    ask: Ask
    primary: EmulatorServer
    fallback: EmulatorServer | None = None


async def run_outage(
    outage: Outage,
    connect: Client,
    begin: Callable[[list[Trial]], None],
    now: Now = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> list[Trial]:
    """Runs both worlds at the same time; `begin` gets their trials before the first call, to show their progress."""
    trials = [Trial(name, outage.calls, outage.late_s) for name in (DIRECT, THROUGH)]
    begin(trials)
    async with AsyncExitStack() as stack:
        direct, through = trials
        worlds = [
            await _straight(stack, outage, direct, connect),
            await _through_gateway(stack, outage, through, connect),
        ]
        await _warm_up_worlds(worlds)
        _begin(worlds, now())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(play(outage, worlds, now, sleep))
            for world in worlds:
                tasks.create_task(keep_calling(world.trial, world.ask, outage.rate_per_s, now, sleep))
    return trials


def _begin(worlds: Iterable[World], now: float) -> None:
    for world in worlds:
        world.trial.begin(now)
        world.primary.emulator.reset()  # what flaps, flaps in step


async def play(outage: Outage, worlds: Iterable[World], now: Now, sleep: Sleep) -> None:
    """Sets the faults of each act at its time."""
    began_at = now()
    for start, end in _scenes(outage.acts):
        act = outage.act_at(start * outage.seconds)
        for world in worlds:
            await _set(world.primary, act, outage)
            if world.fallback is not None:
                await _set(world.fallback, act if act.is_everywhere else QUIET, outage)
        await sleep(max(0.0, began_at + end * outage.seconds - now()))


def _scenes(acts: Iterable[Act]) -> Iterable[tuple[float, float]]:
    """Yields the times between which nothing changes."""
    return pairwise(sorted({0.0, 1.0, *(share for act in acts for share in (act.start, act.end))}))


async def _set(server: EmulatorServer, act: Act, outage: Outage) -> None:
    rules = tuple(map(parse_rule, act.faults))
    await server.configure(faults=rules, **outage.limits(act))


async def _straight(stack: AsyncExitStack, outage: Outage, trial: Trial, connect: Client) -> World:
    primary = await _provider(stack, outage)

    def sent() -> None:
        trial.tried(1, at_dead=int(primary.emulator.connection_fault() is not None))

    client = connect(primary.base_url, lambda _status, _headers: None, habits=_habits(outage, sent))
    return World(trial, await stack.enter_async_context(client), primary)


async def _through_gateway(stack: AsyncExitStack, outage: Outage, trial: Trial, connect: Client) -> World:
    primary, fallback = await _provider(stack, outage), await _provider(stack, outage)
    url = await stack.enter_async_context(gateway_between(primary.base_url, fallback.base_url))

    def on_answer(_status: int, headers: Mapping[str, str]) -> None:
        trial.tried(*count_tries(headers))

    client = connect(url, on_answer, habits=_habits(outage, lambda: None))
    return World(trial, await stack.enter_async_context(client), primary, fallback)


def count_tries(headers: Mapping[str, str]) -> tuple[int, int]:
    """Returns the gateway's tries for an answer, from its headers, and how many of them found the primary dead."""
    trail = headers.get(ATTEMPTS, "")
    return sum([":skipped(" not in one for one in trail.split()]), len(_REFUSED.findall(trail))


async def _provider(stack: AsyncExitStack, outage: Outage) -> EmulatorServer:
    return await stack.enter_async_context(provider(replace(outage.pace, **outage.limits(QUIET))))


def _habits(outage: Outage, sent: Callable[[], None]) -> Habits:
    return Habits(is_streamed=lambda number: number % 2 == 1, timeout_s=outage.timeout_s, sent=sent)


async def _warm_up_worlds(worlds: Iterable[World]) -> None:
    """Makes a client's first calls, which load half of its package, before the outage."""
    for world in worlds:
        first = (world.ask(-1 - number) for number in range(_WARM_UP_CALLS))
        await asyncio.gather(*first, return_exceptions=True)  # if they fail, so will those that count


# --- The storm ---


_FILES_PER_CALL = 4  # two connections of two ends each, all in this process
_TICK_S = 0.02
_STORM_PACE = EmulatorConfig(ttft_s=0.2, tokens_per_second=200.0, output_tokens=40)


@dataclass(frozen=True, slots=True)
class Storm:
    """The scenario: `calls` at once against a limit of `rpm` requests per minute, `burst` of them at once."""

    calls: int = 300
    rpm: int = 600
    burst: int = 10
    pace: EmulatorConfig = _STORM_PACE
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
        ask = await stack.enter_async_context(connect(base_url, run.record))
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


# --- The traffic of a trial ---


Now = Callable[[], float]


Sleep = Callable[[float], Awaitable[None]]


async def keep_calling(trial: Trial, ask: Ask, rate_per_s: float, now: Now, sleep: Sleep) -> None:
    """Makes all calls of a trial that has begun, and waits for the last to end."""
    began_at = now()
    async with asyncio.TaskGroup() as tasks:
        for number in range(trial.calls):
            due = began_at + number / rate_per_s
            if due > now():
                await sleep(due - now())
            tasks.create_task(_try(trial, partial(ask, number), now(), now))


async def _try(trial: Trial, ask: Callable[[], Awaitable[int]], made_at: float, now: Now) -> None:
    try:
        await ask()
    except CallFailedError as error:
        trial.end(made_at, now(), is_answered=False, is_broken=isinstance(error, AnswerBrokenError))
    else:
        trial.end(made_at, now(), is_answered=True)
