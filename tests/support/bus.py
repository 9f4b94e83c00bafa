"""News between replicas of one process, in virtual time: what a store that they share would carry, with its delays and gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from gateway.core.health.breaker import Breaker
from gateway.core.limits.target_limits import Gate
from gateway.core.ports import Later, PeerMessage
from gateway.fleet.news import FleetNews
from tests.support.outage import City, Fate, Provider
from tests.support.virtual import LoopClock

HOP_S = 0.002


class Told(NamedTuple):
    """One item, by whom, when."""

    who: int
    at: float
    item: PeerMessage


class Bus:
    """The store. `is_up` is its health; what is told while it is down is lost here, as it is not by a real one."""

    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.is_up = True
        self.told: list[Told] = []
        self.kept: dict[tuple[str, str], tuple[float, PeerMessage]] = {}
        """Until when, and what; what was told last comes last."""
        self.slots: dict[str, tuple[int, float]] = {}
        self.taken: list[tuple[int, str, bool]] = []
        self.members: dict[int, Callable[[PeerMessage], None]] = {}

    def later(self, callback: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(HOP_S, callback)

    def tell(self, who: int, item: PeerMessage, *, lasts: bool) -> None:
        self.told.append(Told(who, self.clock.now, item))
        about, ends_at = (item.kind, item.name), self.clock.now + item.left_s
        if lasts and not item.left_s:
            self.kept.pop(about, None)
        elif lasts:
            if about in self.kept and self.kept[about][0] >= ends_at:
                return
            self.kept.pop(about, None)
            self.kept[about] = ends_at, item
        for other, heard in self.members.items():
            if other != who:
                self.later(partial(heard, item))

    def take(self, who: int, name: str, for_s: float) -> bool:
        holder, until = self.slots.get(name, (who, 0.0))
        is_ours = holder == who or until <= self.clock.now
        if is_ours:
            self.slots[name] = who, self.clock.now + for_s
        self.taken.append((who, name, is_ours))
        return is_ours

    def give(self, who: int, name: str) -> None:
        if self.slots.get(name, (None,))[0] == who:
            del self.slots[name]

    def of_kind(self, kind: str) -> list[Told]:
        return [told for told in self.told if told.item.kind == kind]


class BusNews:
    """One replica's end of it."""

    def __init__(self, bus: Bus, who: int) -> None:
        self._bus = bus
        self._who = who

    def listen(self, heard: Callable[[PeerMessage], None]) -> None:
        self._bus.members[self._who] = heard
        for ends_at, item in [*self._bus.kept.values()]:
            if ends_at > self._bus.clock.now:
                heard(item._replace(left_s=ends_at - self._bus.clock.now))

    def tell(self, item: PeerMessage, *, lasts: bool = False) -> None:
        if self._bus.is_up:
            self._bus.tell(self._who, item, lasts=lasts)

    def take_slot(self, name: str, for_s: float) -> Later[bool]:
        if not self._bus.is_up:
            return True
        said: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._bus.later(lambda: said.set_result(self._bus.take(self._who, name, for_s)))
        return said

    def give_slot(self, name: str) -> None:
        if self._bus.is_up:
            self._bus.give(self._who, name)


class Replica(City):
    """A gateway of the fleet, with providers of its own that all have the same fate."""

    gossip: FleetNews

    def joins(self, bus: Bus, who: int) -> Replica:
        self.gossip = FleetNews(self.clock, BusNews(bus, who), self.admission, self.bench.draw)
        return self

    def asked(self, since: float = 0.0, number: int = 0) -> int:
        """How many calls have reached the provider."""
        return self.providers[number].asked(since, float("inf"))


class Fleet:
    """Replicas on one bus."""

    def __init__(self, clock: LoopClock, fates: Sequence[Fate], size: int = 3, **changes: Any) -> None:
        self.clock = clock
        self.bus = Bus(clock)
        self._changes = changes
        self._fates = list(fates)
        self.replicas: list[Replica] = []
        for _ in range(size):
            self.join()

    def join(self) -> Replica:
        """One more."""
        replica = Replica([Provider(fate) for fate in self._fates], self.clock, **self._changes)
        self.replicas.append(replica.joins(self.bus, len(self.replicas)))
        return replica

    def leave(self, replica: Replica) -> None:
        """It dies without a word: nothing of it is heard any more, nor does it hear."""
        who = self.replicas.index(replica)
        del self.bus.members[who]
        replica.gossip._turns._news = replica.gossip._news = _Silence()

    def fates(self, *fates: Fate, number: int = 0) -> None:
        """Each replica has its own way to the provider."""
        for replica, fate in zip(self.replicas, fates, strict=True):
            replica.providers[number].fate = fate

    def fate(self, fate: Fate, number: int = 0) -> None:
        self._fates[number] = fate
        for replica in self.replicas:
            replica.providers[number].fate = fate

    def gates(self, number: int = 0) -> list[Gate]:
        return [replica.gate(number) for replica in self.replicas]

    def breakers(self, number: int = 0) -> list[Breaker]:
        return [replica.breaker_of(number) for replica in self.replicas]

    def states(self, number: int = 0) -> list[str]:
        return [breaker.state for breaker in self.breakers(number)]

    async def hop(self) -> None:
        """Until what was told has been heard, and met."""
        await asyncio.sleep(3 * HOP_S)

    def rest(self) -> None:
        """For stories of many hours."""
        for replica in self.replicas:
            replica.rest()

    async def settle(self) -> None:
        for replica in self.replicas:
            await replica.settle()


class _Silence:
    """Of the dead."""

    def listen(self, heard: Callable[[PeerMessage], None]) -> None: ...
    def tell(self, item: PeerMessage, *, lasts: bool = False) -> None: ...
    def take_slot(self, name: str, for_s: float) -> Later[bool]:
        return False

    def give_slot(self, name: str) -> None: ...
