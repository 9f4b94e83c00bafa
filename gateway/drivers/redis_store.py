"""A store in the Redis that replicas share; while it is out of reach, each replica goes on alone.

It orders start and stop, and the work in the background; the modules beside it keep the data. Invariants: no method raises,
and no call waits longer than one operation's timeout, once; while the store is gone, calls use this process's memory. Keys
hold neither prompts nor other text of users, only digests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from secrets import token_bytes

from gateway.core.ports import PeerBus, StoreHealth
from gateway.core.types import SharedState, StoreBounds
from gateway.drivers.redis.link import BackgroundTasks, Link, StoreGone
from gateway.drivers.redis.lru import WallTime
from gateway.drivers.redis_answers import RedisAnswers
from gateway.drivers.redis_records import RedisRecords
from gateway.drivers.store import Answers, Records
from gateway.fleet.leases import Leases
from gateway.fleet.redis import RedisLeases, RedisNews

Work = Callable[[], Awaitable[object]]
"""A piece of background work, which may raise StoreGone."""

SWEPT_AT_ONCE = 4
"""LRUs and partitions that one tick sweeps, in turn."""
SETTLE_AGAIN_S = 0.005
"""Seconds between two attempts to send owed answers when the gateway stops."""


class SharedPart:
    """What a product keeps in the store, beside records and answers; it does nothing of what it does not override."""

    @property
    def owed(self) -> int:
        """The number of entries that the store still has to take before the gateway stops."""
        return 0

    def came_back(self) -> None:
        """Is called when the store is back, and may have lost its data."""

    async def catch_up(self) -> None:
        """Sends what the store missed; called about once a second."""

    async def discover(self) -> None:
        """Finds what other replicas have, to be swept as well. Raises StoreGone."""

    def sweeps(self) -> Iterator[Work]:
        """Yields pieces of work that drop what has expired."""
        return iter(())

    def stats(self) -> Mapping[str, int]:
        """Returns entries and bytes; nothing: they are not shown."""
        return {}


class RedisStore:
    """Implements `gateway.drivers.store.SharedStore` in one event loop; raises ValueError for a url that
    is no store address.

    `wall` returns seconds since the epoch; `now` replaces the server's clock, and `connect` the link, in tests.
    """

    is_local: bool = False

    def __init__(
        self,
        shared: SharedState,
        wall: Callable[[], float],
        bounds: StoreBounds,
        *,
        now: Callable[[], float] | None = None,
        connect: Callable[[SharedState], Link] = Link,
    ) -> None:
        self._timeout_s = shared.timeout_s
        self.link = link = connect(shared)
        """The link, for the parts of products, as are the two below."""
        self.background = BackgroundTasks()
        self._turn: Iterator[Work] = iter(())
        self._is_tidying = False
        self._parts: dict[str, SharedPart] = {}
        self.replica_id = token_bytes(16)
        self._news = RedisNews(link, self.replica_id)
        self._leases = RedisLeases(link, self.replica_id, shared.replicas, now)

        def now_text() -> str:
            return "" if now is None else repr(now())

        self.now: WallTime = now_text
        self._records = RedisRecords(link, self.background, wall, now_text, bounds.records)
        self._answers = RedisAnswers(link, self.background, wall, now_text, bounds.answers)
        self.records: Records = self._records
        self.answers: Answers = self._answers
        self.leases: Leases = self._leases
        self.news: PeerBus = self._news
        link.on_change(self._changed)

    def add(self, name: str, part: SharedPart) -> None:
        """Looks after a product's part from now on; `name` is the one of its sizes in `stats`."""
        self._parts[name] = part

    async def start(self) -> None:
        """Connects; returns within half a second at the latest, and goes on trying in the background."""
        self._news.start()
        await self.link.start()

    def configure(self, bounds: StoreBounds) -> None:
        """Sets new bounds; entries above a lowered bound are evicted step by step."""
        self._records.configure(bounds.records)
        self._answers.configure(bounds.answers)

    def tick(self) -> None:
        """Is called about once a second: starts to send what the store missed, and to sweep expired entries."""
        self._leases.ask(())  # to be counted, though nothing is asked for
        self._records.tick()
        self._answers.tick()
        if self.link.is_up and not self._is_tidying:
            self._is_tidying = True
            self.background.start(self._tidy())

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Returns the contents that the store last reported; while it is gone, those of this process's memory."""
        sizes = {name: part.stats() for name, part in self._parts.items()}
        return {
            "answers": self._answers.stats(),
            "records": self._records.stats(),
            "vectors": {"entries": 0, "bytes": 0},
            **{name: size for name, size in sizes.items() if size},
        }

    def on_change(self, changed: Callable[[bool], None]) -> None:
        """Has `changed(is_up)` called, in the loop's thread, when the store goes out of reach and when it is back."""
        self.link.on_change(changed)

    def health(self) -> StoreHealth:
        link = self.link
        counts = self._leases.replicas, link.operations, link.failures
        return StoreHealth(link.is_up, link.since, link.reason, *counts, is_deaf=link.is_deaf)

    @property
    def owed(self) -> int:
        """Returns the number of answers that the store still has to take."""
        return self._records.owed

    async def aclose(self) -> None:
        """Takes nothing more, sends what it can within one operation's timeout, and closes the link."""
        self.background.start(self._settle_up())
        await self.background.aclose(self._timeout_s)
        await self._news.aclose()
        await self.link.aclose()

    def _changed(self, is_up: bool) -> None:
        if is_up:
            self._leases.ask(())
            self._records.came_back()
            self._answers.came_back()
            for part in self._parts.values():
                part.came_back()

    async def _settle_up(self) -> None:
        """Sends owed answers, repeatedly while the store may be about to come back; the caller sets the end."""
        parts = self._parts.values()
        while (self._records.owed or any(part.owed for part in parts)) and self.link.is_up:
            owing = [part.catch_up() for part in parts if part.owed]
            await asyncio.gather(self._records.catch_up(), *owing)
            await asyncio.sleep(SETTLE_AGAIN_S)

    async def _tidy(self) -> None:
        try:
            await asyncio.gather(
                self._records.catch_up(),
                self._answers.catch_up(),
                *(part.catch_up() for part in self._parts.values()),
                self._sweep(),
            )
        finally:
            self._is_tidying = False

    async def _sweep(self) -> None:
        turn = [*islice(self._turn, SWEPT_AT_ONCE)]
        if not turn:
            for part in self._parts.values():
                await _quietly(part.discover)
            await _quietly(self._records.discover)
            self._turn = self._sweeps()
            turn = [*islice(self._turn, SWEPT_AT_ONCE)]
        await asyncio.gather(*map(_quietly, turn))

    def _sweeps(self) -> Iterator[Work]:
        yield from self._records.sweeps()
        yield from self._answers.sweeps()
        for part in self._parts.values():
            yield from part.sweeps()


async def _quietly(work: Work) -> None:
    """Runs the work; where the store is gone, a later turn does it."""
    with suppress(StoreGone):
        await work()
