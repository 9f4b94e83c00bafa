"""Who calls, when, and with how much: bursts, Poisson arrivals, on and off, clients that wait for their answers.

Each arrival process is a coroutine to be started on the world's clock; all draws come from the world's own generator, so
a seed makes a run repeatable. It must not know how calls are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from gateway.core.types import Lane
from tests.sim.call import SimCall
from tests.sim.clock import until
from tests.sim.provider import Demand
from tests.sim.world import World

LONGEST_RETRY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of a call: medians and sigmas of lognormal draws (0: always the same)."""

    input_tokens: float = 200
    input_sigma: float = 0.0
    output_tokens: float = 100
    output_sigma: float = 0.0
    says_max: bool = True
    """`max_tokens` is what it will really use; else it does not say."""
    error_sigma: float = 0.0
    """How far the estimate of the input is off, as the sigma of a lognormal factor."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Where calls come from. Of several tenants each call is of the next."""

    lane: Lane = "interactive"
    tenants: Sequence[str] = ("t",)
    sizes: Sizes = Sizes()
    deadline_s: float | None = None
    """None: the lane's."""
    stream: bool = False

    def call(self, world: World, number: int = 0) -> SimCall:
        """A new call, now."""
        sizes = self.sizes
        real = _draw(world, sizes.input_tokens, sizes.input_sigma)
        output = _draw(world, sizes.output_tokens, sizes.output_sigma)
        estimate = _draw(world, real, sizes.error_sigma)
        demand = Demand(real, output, output if sizes.says_max else None)
        tenant = self.tenants[number % len(self.tenants)]
        return SimCall(
            world.policy, world.clock.now, self.lane, tenant, demand, estimate, self.deadline_s, stream=self.stream
        )


async def burst(world: World, caller: Caller, count: int, at_s: float = 0.0) -> None:
    """All at once."""
    await world.clock.sleep(at_s)
    for number in range(count):
        world.offer(caller.call(world, number))


async def poisson(world: World, caller: Caller, per_s: float, for_s: float) -> None:
    """So many in a second on average, each independent of the others."""
    ends_at = world.clock.now + for_s
    number = 0
    while (moment := world.clock.now + world.random.expovariate(per_s)) < ends_at:
        await until(moment)
        world.offer(caller.call(world, number))
        number += 1


async def on_off(world: World, caller: Caller, per_s: float, on_s: float, off_s: float, for_s: float) -> None:
    """Poisson arrivals for a while, then silence, and so on."""
    ends_at = world.clock.now + for_s
    while world.clock.now < ends_at:
        await poisson(world, caller, per_s, on_s)
        await world.clock.sleep(off_s)


def clients(world: World, caller: Caller, count: int, for_s: float = inf, think_s: float = 0.0) -> None:
    """So many clients, each with one call at a time."""
    for number in range(count):
        world.clock.start(_client(world, caller, number, world.clock.now + for_s, think_s))


def workers(world: World, caller: Caller, count: int, calls: int) -> None:
    """So many workers get through a list of calls, each with one at a time."""
    left = list(range(calls))

    async def work() -> None:
        while left:
            await world.serve(caller.call(world, left.pop()))

    for _ in range(count):
        world.clock.start(work())


async def _client(world: World, caller: Caller, number: int, ends_at: float, think_s: float) -> None:
    while world.clock.now < ends_at:
        call = await world.serve(caller.call(world, number))
        pause_s = think_s if call.outcome == "ok" else max(think_s, call.refused_s or 1.0)
        if pause_s:
            await world.clock.sleep(pause_s)


async def obedient(world: World, caller: Caller, number: int, refused: list[SimCall]) -> None:
    """A caller who, when refused with a time, comes back then, once; `refused` gets his second call."""
    first = await world.serve(caller.call(world, number))
    if first.refused_s is None or first.refused_s > LONGEST_RETRY_S:
        return
    await world.clock.sleep(first.refused_s)
    refused.append(await world.serve(caller.call(world, number)))


def _draw(world: World, median: float, sigma: float) -> int:
    return max(1, round(median * world.random.lognormvariate(0.0, sigma) if sigma else median))
