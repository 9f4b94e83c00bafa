"""Stores on real servers, without the time it takes to connect each."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from secrets import token_hex
from typing import Any

from redis import Redis

from gateway.core.types import SharedState, StoreBounds
from gateway.drivers.redis.link import Link, NoReply, Script, StoreGone
from gateway.features.semantic.store import VectorRow
from tests.support.conformance import settle
from tests.support.stores import RedisStore

PATIENT_S = 5.0
"""For tests that are not about time: this machine may be busy."""


class Lent(Link):
    """A link that was started before, under a namespace of its own, and with trouble of its own."""

    def __init__(self, lender: Link, shared: SharedState) -> None:
        super().__init__(shared)
        self._lender = lender
        self._told: list[Callable[[bool], None]] = []
        self._is_away = False
        self.unheard: set[str] = set()
        """Scripts that are carried out, but whose answers are lost."""
        self.lost: Counter[str] = Counter()
        """How many answers of scripts are lost; what comes then is heard."""
        self.refused: set[str] = set()
        """Scripts that are not carried out."""
        self.ran: list[str] = []
        self.longest = 0
        """Of all arguments."""

    @property
    def is_up(self) -> bool:
        return self._lender.is_up and not self._is_away

    def on_change(self, changed: Callable[[bool], None]) -> None:
        self._told.append(changed)

    def go(self, *, away: bool) -> None:
        """Out of reach, or back."""
        self._is_away = away
        for changed in self._told:
            changed(not away)

    def run(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes | str | int | float]
    ) -> asyncio.Future[Any]:
        self.ran.append(script.name)
        self.longest = max(self.longest, *(len(arg) for arg in args if isinstance(arg, bytes)), 0)
        if self._is_away or script.name in self.refused:
            return self._lost()
        asked = self._lender.run(script, keys, args)
        if script.name not in self.unheard and not self.lost[script.name]:
            return asked
        self.lost[script.name] -= script.name not in self.unheard
        return self._lost(asked)

    def command(self, *parts: bytes | str | int) -> asyncio.Future[Any]:
        return self._lost() if self._is_away else self._lender.command(*parts)

    def command_near(self, key: bytes, *parts: bytes | str | int) -> asyncio.Future[Any]:
        return self._lost() if self._is_away else self._lender.command_near(key, *parts)

    def _lost(self, asked: asyncio.Future[Any] | None = None) -> asyncio.Future[Any]:
        """An answer that does not come; at once, or when it should have come."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if asked is None:
            future.set_exception(StoreGone("away"))
            future.exception()
        else:
            asked.add_done_callback(lambda _: future.set_exception(NoReply("lost")))
        return future

    async def start(self) -> None:
        """It is."""

    async def aclose(self) -> None:
        """Its lender does that."""

    async def subscribe(self, channel: bytes, heard: Callable[[bytes], None], joined: Callable[[], None]) -> None:
        await asyncio.Event().wait()


class Lender:
    """Makes stores over one link, each with a namespace of its own unless one is named; `links` are theirs, in order."""

    def __init__(self, url: str, link: Link) -> None:
        self.url = url
        self.link = link
        self.links: list[Lent] = []
        self.stores: list[RedisStore] = []
        self._name = token_hex(8)
        self._numbers = count()

    def make(self, bounds: StoreBounds, wall: Callable[[], float]) -> RedisStore:
        """A new, empty one, whose server has the same clock as it has."""
        store = self.replica(bounds, wall, now=wall, namespace=f"{self._name}-{next(self._numbers)}")
        self.stores.remove(store)  # whoever made it closes it
        return store

    def replica(
        self, bounds: StoreBounds, wall: Callable[[], float], *, now: Callable[[], float] | None, namespace: str = ""
    ) -> RedisStore:
        """One of those that share what is in a namespace; `now` is the server's clock."""
        shared = SharedState(self.url, namespace=namespace or self._name, timeout_s=PATIENT_S)
        self.stores.append(RedisStore(shared, wall, bounds, now=now, connect=self._lend))
        return self.stores[-1]

    def _lend(self, shared: SharedState) -> Link:
        self.links.append(Lent(self.link, shared))
        return self.links[-1]

    def all_keys(self) -> Iterator[bytes]:
        """All that its replicas have on the server."""
        with Redis.from_url(self.url) as client:
            yield from client.scan_iter(match=f"{self._name}:*", count=1000)


@asynccontextmanager
async def lender(url: str) -> AsyncIterator[Lender]:
    """One whose link is up."""
    link = Link(SharedState(url, namespace="lender", timeout_s=PATIENT_S))
    await link.start()
    lends = Lender(url, link)
    try:
        yield lends
    finally:
        for store in lends.stores:
            await store.aclose()
        await link.aclose()


async def loaded(store: RedisStore, partition: bytes, most: int = 10) -> list[VectorRow]:
    """The rows that the store has of a partition."""
    rows: Sequence[VectorRow] = await settle(store.vectors.load(partition, most))
    return list(rows)


async def until(fact: Callable[[], object], within_s: float = 60.0) -> None:
    """Wait for what another process, or a task, does."""
    end = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.005)
