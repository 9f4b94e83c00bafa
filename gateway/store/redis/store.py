"""A store in the Redis that replicas share: one truth for all of them, and each goes on alone while it is out of reach.

It decides who does what in the background, and in which order things begin and end; how things are kept is the business of
the modules beside it. Invariants: nothing raises, and no call waits longer than one operation's timeout, once; while the
store is away what a call needs is in this process's memory. Prompts are not keys: those are digests, and so is whatever else
comes from users.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from secrets import token_bytes

from gateway.policy.snapshot import SharedState, StoreBounds
from gateway.ports import Answers, Leases, News, Objects, Records, StoreHealth, Vectors
from gateway.store.redis.answers import RedisAnswers
from gateway.store.redis.leases import RedisLeases
from gateway.store.redis.news import RedisNews
from gateway.store.redis.objects import RedisObjects
from gateway.store.redis.records import RedisRecords
from gateway.store.redis.vectors import RedisVectors
from gateway.store.redis_link.link import BackgroundTasks, Link, StoreGone

Chore = Callable[[], Awaitable[object]]
"""What may raise StoreGone."""

SWEPT_AT_ONCE = 4
"""Shelves and partitions that are looked through in a tick, in turn."""
SETTLE_AGAIN_S = 0.005
"""At the end, between two attempts to tell what is owed."""


class RedisStore:
    """`gateway.ports.SharedStore`. To be made and used in one event loop; raises ValueError when the url is none.

    `wall` gives seconds since the epoch; `now` stands in for the server's clock, and `connect` for its link, in tests.
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
        self._link = link = connect(shared)
        self._chores = BackgroundTasks()
        self._turn: Iterator[Chore] = iter(())
        self._is_tidying = False
        self.replica_id = token_bytes(16)
        self._news = RedisNews(link, self.replica_id)
        self._leases = RedisLeases(link, self.replica_id, shared.replicas, now)

        def told() -> str:
            return "" if now is None else repr(now())

        self._records = RedisRecords(link, self._chores, wall, told, bounds.records)
        self._answers = RedisAnswers(link, self._chores, wall, told, bounds.answers)
        self._vectors = RedisVectors(link, self._chores, wall, told, bounds.vectors, self._news)
        self.records: Records = self._records
        self.answers: Answers = self._answers
        self.vectors: Vectors = self._vectors
        self._objects = RedisObjects(link, self._chores, told, bounds.objects)
        self.objects: Objects = self._objects
        self.leases: Leases = self._leases
        self.news: News = self._news
        link.on_change(self._changed)

    async def start(self) -> None:
        """Connect; returns within half a second whether or not there is anybody, and goes on trying."""
        self._news.start()
        await self._link.start()

    def configure(self, bounds: StoreBounds) -> None:
        """Keep to these from now on; what is too much by now goes step by step."""
        self._records.configure(bounds.records)
        self._answers.configure(bounds.answers)
        self._vectors.configure(bounds.vectors)
        self._objects.configure(bounds.objects)

    def tick(self) -> None:
        """Called about once a second: begins to tell the store what it missed, and to forget what has run out."""
        self._leases.ask(())  # to be counted, though nothing is asked for
        self._records.tick()
        self._answers.tick()
        if self._link.is_up and not self._is_tidying:
            self._is_tidying = True
            self._chores.start(self._tidy())

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """What the store has, as last told; while it is away, what this process keeps instead."""
        return {
            "answers": self._answers.stats(),
            "records": self._records.stats(),
            "vectors": self._vectors.stats(),
        }

    def on_change(self, changed: Callable[[bool], None]) -> None:
        """`changed(is_up)` is called, in the loop's thread, when the store goes out of reach and when it is back."""
        self._link.on_change(changed)

    def health(self) -> StoreHealth:
        """For `/readyz` and the metrics."""
        link = self._link
        counts = self._leases.replicas, link.operations, link.failures
        return StoreHealth(link.is_up, link.since, link.reason, *counts, is_deaf=link.is_deaf)

    @property
    def owed(self) -> int:
        """Answers that were paid for while the store was away, and that it has still to be told of."""
        return self._records.owed

    async def aclose(self) -> None:
        """What the store can be told within one operation's timeout it is told; nothing more is taken."""
        self._chores.start(self._settle_up())
        await self._chores.aclose(self._timeout_s)
        await self._news.aclose()
        await self._link.aclose()

    def _changed(self, is_up: bool) -> None:
        if is_up:
            self._leases.ask(())
            self._records.came_back()
            self._answers.came_back()
            self._vectors.came_back()

    async def _settle_up(self) -> None:
        """Tell the store what it missed, again and again while it may be about to come back; whoever waits sets the end."""
        while (self._records.owed or self._objects.owed) and self._link.is_up:
            await asyncio.gather(self._records.catch_up(), self._objects.catch_up())
            await asyncio.sleep(SETTLE_AGAIN_S)

    async def _tidy(self) -> None:
        try:
            await asyncio.gather(
                self._records.catch_up(),
                self._answers.catch_up(),
                self._vectors.catch_up(),
                self._objects.catch_up(),
                self._sweep(),
            )
        finally:
            self._is_tidying = False

    async def _sweep(self) -> None:
        turn = [*islice(self._turn, SWEPT_AT_ONCE)]
        if not turn:
            await _quietly(self._vectors.discover)
            await _quietly(self._records.discover)
            self._turn = self._sweeps()
            turn = [*islice(self._turn, SWEPT_AT_ONCE)]
        await asyncio.gather(*map(_quietly, turn))

    def _sweeps(self) -> Iterator[Chore]:
        """All there is to look through, once."""
        yield from self._records.sweeps()
        yield from self._answers.sweeps()
        yield from self._vectors.sweeps()


async def _quietly(chore: Chore) -> None:
    """It is done, or will be in a later turn."""
    with suppress(StoreGone):
        await chore()
