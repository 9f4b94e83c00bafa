"""Several replicas in one virtual time, and the store that they share: the model of its script, a millisecond away.

A call is only admitted, held for as long as it says, and settled; nothing is sent anywhere. Invariant: what a replica
admits is written down with the moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.core.admission.admission import Admission
from gateway.core.admission.queue import DelayQueue
from gateway.core.errors import GatewayError
from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Counting, Key
from gateway.core.types import Usage
from gateway.fleet.lease import LeaseAsk, LeaseReply
from gateway.fleet.leases import Sharing
from tests.support.flow import Bench, ScriptedUpstream
from tests.support.pool import Pool
from tests.support.virtual import LoopClock

TRIP_S = 0.001
TIMEOUT_S = 0.05


@dataclass
class SharedPools:
    """The store: a pool for each limit, made with the first ask for it."""

    clock: LoopClock
    replicas: int
    pools: dict[str, Pool] = field(default_factory=dict)
    is_up: bool = True
    lost: str | None = None
    """Of limits with this in their name there is never an answer."""
    rounds: int = 0
    listeners: list[Callable[[bool], None]] = field(default_factory=list)

    def leases(self, name: str) -> ReplicaLeases:
        """The store as one replica sees it."""
        return ReplicaLeases(self, name)

    def turn(self, is_up: bool) -> None:
        """Go away or come back, and have everybody hear of it."""
        self.is_up = is_up
        for changed in self.listeners:
            changed(is_up)

    def answer(self, replica: str, ask: LeaseAsk) -> LeaseReply:
        """What the store says at this moment."""
        pool = self.pools.get(ask.name)
        if pool is None:
            pool = self.pools[ask.name] = Pool(ask.capacity, ask.rate_per_s, ask.window_s)
        return pool.ask(f"{replica}:{ask.incarnation}", ask, self.clock.now)


@dataclass
class ReplicaLeases:
    """`gateway.fleet.leases.Leases` of one replica."""

    store: SharedPools
    name: str
    has_left: bool = False

    @property
    def replicas(self) -> int:
        return self.store.replicas

    def ask(self, asks: Sequence[LeaseAsk]) -> asyncio.Future[Sequence[LeaseReply | None]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[LeaseReply | None]] = loop.create_future()
        self.store.rounds += 1

        def arrive() -> None:
            if self.store.is_up:
                lost = self.store.lost
                replies = [None if lost and lost in ask.name else self.store.answer(self.name, ask) for ask in asks]
                loop.call_later(TRIP_S / 2, end, replies)
            else:
                loop.call_later(TIMEOUT_S, end, [None] * len(asks))

        def end(replies: Sequence[LeaseReply | None]) -> None:
            if not future.done():
                future.set_result(replies)

        loop.call_later(TRIP_S / 2, arrive)
        return future

    def leave(self) -> None:
        self.has_left = True


class Replica:
    """One gateway's admission; `p0/m` is its target."""

    def __init__(self, store: SharedPools, name: str, limits: Limits, keys: Sequence[Key] = ()) -> None:
        self.name = name
        self.clock = store.clock
        self.leases = store.leases(name)
        bench = Bench([ScriptedUpstream()], clock=store.clock, limits=[limits], keys=keys)
        self.bench = bench
        counting = Counting(learns=False)
        assert bench.counting == counting
        queue = DelayQueue(store.clock, bench.policy.queue)
        self.sharing = Sharing(store.clock, self.leases, queue, lambda: 0.5)
        self.admission = Admission(store.clock, bench.meter, bench.policy, lambda: 0.5, queue, self.sharing)
        store.listeners.append(self.sharing.changed)
        self.sharing.changed(store.is_up)
        self.admitted: list[float] = []
        self.refused: list[GatewayError] = []

    async def call(self, *, lasts_s: float = 0.0, usage: Usage | None = None, **changes: object) -> bool:
        """One call from its admission to its end; whether it was let in."""
        call = self.bench.call(received_at=self.clock.now, **{"deadline": self.clock.now + 30, **changes})
        try:
            attempt = await self.admission.enter(call)
        except GatewayError as error:
            self.refused.append(error)
            self.admission.outcomes.settle(call, None, None)
            return False
        self.admitted.append(self.clock.now)
        if lasts_s:
            await self.clock.sleep(lasts_s)
        self.admission.outcomes.answered(call, attempt, [])
        self.admission.outcomes.settle(call, attempt, usage)
        return True

    async def offer(self, per_s: float, for_s: float, **how: object) -> None:
        """Calls at even distances; returns when all of them have ended."""
        calls = []
        for number in range(int(per_s * for_s)):
            calls.append(asyncio.ensure_future(self.call(**how)))  # type: ignore[arg-type]  # as `call` takes them
            await self.clock.sleep((number + 1) / per_s - number / per_s)
        await asyncio.gather(*calls)

    def admitted_between(self, start: float, end: float) -> int:
        """How many calls went then."""
        return sum(start <= at < end for at in self.admitted)


def fleet(clock: LoopClock, size: int, limits: Limits, keys: Sequence[Key] = ()) -> tuple[SharedPools, list[Replica]]:
    """So many replicas of one store."""
    store = SharedPools(clock, size)
    return store, [Replica(store, f"r{number}", limits, keys) for number in range(size)]


def admitted(replicas: Sequence[Replica], start: float, end: float) -> int:
    """How many calls all of them let go then."""
    return sum(replica.admitted_between(start, end) for replica in replicas)
