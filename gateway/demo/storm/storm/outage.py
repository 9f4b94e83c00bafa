"""The scenario "outage": steady traffic while a provider dies, falls silent, crawls, flaps, throttles and errs.

Two worlds run at the same time, so that both have the same machine: in one the app calls the provider itself, in the other
a gateway that knows a second provider. It must not know how results are shown. Invariant: the primary providers of both
worlds have the same faults at the same time, and both apps have the same client.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from gateway.demo.record.record import Now, Sleep, Trial, keep_calling
from gateway.demo.storm.clients.clients import Ask, Client, Habits
from gateway.demo.storm.storm.stage import gateway_between, provider
from gateway.emulator.config.config.config import EmulatorConfig
from gateway.emulator.config.config.faults import parse_rule
from gateway.emulator.server.server import EmulatorServer

DIRECT, THROUGH = "straight to the provider", "through the gateway"
ATTEMPTS = "x-gateway-attempts"
_REFUSED = re.compile(r"primary/\S+:connection\(0\.0s\)")  # failed at once: nothing listened there
_WARM_UP_CALLS = 4
_PACE = EmulatorConfig(ttft_s=0.2, tokens_per_second=50.0, output_tokens=8, recorded_requests=0)


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
    pace: EmulatorConfig = _PACE

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
        await _warm_up(worlds)
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

    def heard(_status: int, headers: Mapping[str, str]) -> None:
        trial.tried(*tries_told(headers))

    client = connect(url, heard, habits=_habits(outage, lambda: None))
    return World(trial, await stack.enter_async_context(client), primary, fallback)


def tries_told(headers: Mapping[str, str]) -> tuple[int, int]:
    """Returns the gateway's tries for an answer, from its headers, and how many of them found the primary dead."""
    trail = headers.get(ATTEMPTS, "")
    return len(trail.split()), len(_REFUSED.findall(trail))


async def _provider(stack: AsyncExitStack, outage: Outage) -> EmulatorServer:
    return await stack.enter_async_context(provider(replace(outage.pace, **outage.limits(QUIET))))


def _habits(outage: Outage, sent: Callable[[], None]) -> Habits:
    return Habits(is_streamed=lambda number: number % 2 == 1, timeout_s=outage.timeout_s, sent=sent)


async def _warm_up(worlds: Iterable[World]) -> None:
    """Makes a client's first calls, which load half of its package, before the outage."""
    for world in worlds:
        first = (world.ask(-1 - number) for number in range(_WARM_UP_CALLS))
        await asyncio.gather(*first, return_exceptions=True)  # if they fail, so will those that count
