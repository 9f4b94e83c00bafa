"""Answers by exact key, shared: a shelf per group in the store, or several of a large group so that a cluster shares the load.

While the store is out of reach they are in this process's memory, and forgotten when it is back. It must not know what may
be kept, nor for how long. Invariants: a group keeps to its bytes with every write; the least recently used go first; what
was forgotten is not given again, by nobody when the store has heard of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gateway.ports import Later
from gateway.store.memory.answers import MemoryAnswers
from gateway.store.redis.lru import Now, Shelf, shelf_script
from gateway.store.redis.purges import Purges, Selection
from gateway.store.redis.registry import Registry
from gateway.store.redis.values import (
    ENTRY_BYTES,
    MOST_BYTES,
    ChunkedValue,
    framed,
    is_head,
    moved,
    name_digest,
    owner,
    unframed,
)
from gateway.store.redis_link.link import BackgroundTasks, Link, StoreGone
from gateway.words import Kept

GET = shelf_script("answers_get")
PUT = shelf_script("answers_put")

SHARD_BYTES = 64 * 1024 * 1024
"""A group has a shelf for each of these."""
MOST_SHARDS = 16
LARGEST_PART = 4
"""What is more than a quarter of a shelf is not kept: too much would have to go for it."""
MOST_TURNS = 1000
"""A put makes room in so many steps at most."""
LOCAL_PART, LOCAL_BYTES = 4, 64 * 1024 * 1024
"""A quarter of a group's bytes, but no more than this, is kept in memory while the store is away."""


def shards_of(bound: int) -> int:
    """How many shelves a group has: a power of two."""
    return 1 << (min(MOST_SHARDS, max(1, bound // SHARD_BYTES)).bit_length() - 1)


class RedisAnswers:
    """`gateway.ports.Answers`."""

    def __init__(
        self, link: Link, chores: BackgroundTasks, wall: Callable[[], float], now: Now, bounds: Mapping[str, int]
    ) -> None:
        self._link = link
        self._chores = chores
        self._wall = wall
        self._now = now
        self._bounds = bounds
        self._shelves: dict[tuple[str, int], Shelf] = {}
        self._groups = Registry(link, link.key("groups"), now)
        self._purges = Purges(link, self._forget)
        self._parts = ChunkedValue(link)
        self._local = MemoryAnswers(wall)
        self._local.configure(_local_of(bounds))

    def configure(self, bounds: Mapping[str, int]) -> None:
        """Keep to so many bytes by group."""
        self._bounds = bounds
        self._local.configure(_local_of(bounds))

    def get(self, key: bytes, group: str) -> Later[Kept | None]:
        """What is kept and not past its `stale_until`."""
        bound = self._bounds.get(group)
        if bound is None:
            return None
        if not self._link.is_up:
            return self._local.get(key, group)
        if self._purges.is_pending:
            return None
        shelf = self._shelf_of(key, group, bound)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Kept | None] = loop.create_future()
        asked = self._link.run(GET, (*shelf.keys, shelf.value(key)), (self._now(), key))
        asked.add_done_callback(partial(self._got, future, key, group, loop.time() + self._link.timeout_s))
        return future

    def put(self, key: bytes, kept: Kept) -> Later[None]:
        """Keep it, instead of what was there; not if it alone is more than a quarter of a shelf."""
        bound = self._bounds.get(kept.group)
        if bound is None:
            return None
        if not self._link.is_up:
            self._local.put(key, kept)
            return None
        return self._chores.start(self._put(key, kept, bound))

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """Forget whatever matches all that is given; what the store does not hear is carried out when it is back."""
        here = self._local.forget(key=key, model=model, tenant=tenant)
        return self._chores.start(self._forgotten(here, Selection(key, model, tenant)))

    def came_back(self) -> None:
        """The store is within reach again: what was kept here meanwhile is nobody's, for others may have purged it."""
        self._local.forget()

    async def catch_up(self) -> None:
        """Carry out what the store has not heard."""
        await self._purges.catch_up()

    def sweeps(self) -> Iterator[Callable[[], Any]]:
        """What has to be done now and then, a shelf at a time; each may raise StoreGone."""
        for group, bound in self._bounds.items():
            for shard in range(shards_of(bound)):
                yield partial(self._shelf(group, shard).sweep, bound // shards_of(bound))

    def tick(self) -> None:
        """What is here of it is kept in order."""
        self._local.tick()

    def stats(self) -> dict[str, int]:
        """As last told; while the store is away, what is here."""
        if not self._link.is_up:
            return self._local.stats()
        shelves = [self._shelf(group, n) for group, bound in self._bounds.items() for n in range(shards_of(bound))]
        return {"entries": sum(one.entries for one in shelves), "bytes": sum(one.bytes for one in shelves)}

    def _shelf(self, group: str, shard: int) -> Shelf:
        shelf = self._shelves.get((group, shard))
        if shelf is None:
            base = self._link.key("answers", group, b"%d" % shard)
            shelf = self._shelves[(group, shard)] = Shelf(self._link, base, self._now)
        return shelf

    def _shelf_of(self, key: bytes, group: str, bound: int) -> Shelf:
        return self._shelf(group, key[0] % shards_of(bound))

    def _got(
        self, future: asyncio.Future[Kept | None], key: bytes, group: str, by: float, asked: asyncio.Future[Any]
    ) -> None:
        if future.done():
            return
        try:
            reply = asked.result()
        except (StoreGone, asyncio.CancelledError):
            future.set_result(self._local.get(key, group))
            return
        if reply and is_head(reply[1]):
            self._chores.start(self._got_long(future, key, group, by, reply))
        else:
            future.set_result(self._read(reply[1], reply[0]) if reply else None)

    async def _got_long(
        self, future: asyncio.Future[Kept | None], key: bytes, group: str, by: float, reply: Sequence[bytes]
    ) -> None:
        """What does not come by then is not there."""
        bound = self._bounds.get(group, 0)
        try:
            value = await self._parts.read(self._shelf_of(key, group, bound).parts(key), reply[1], by)
        except StoreGone:
            value = None
        if not future.done():
            future.set_result(None if value is None else self._read(value, reply[0]))

    def _read(self, value: bytes, left_s: bytes) -> Kept | None:
        kept = None if self._purges.is_pending else unframed(value)
        return None if kept is None else moved(kept, self._wall() + float(left_s) - kept.stale_until)

    async def _put(self, key: bytes, kept: Kept, bound: int) -> None:
        shelf, bound = self._shelf_of(key, kept.group, bound), bound // shards_of(bound)
        value, left_s = framed(kept), kept.stale_until - self._wall()
        size = len(value) + ENTRY_BYTES
        if left_s <= 0 or size > min(bound // LARGEST_PART, MOST_BYTES):
            value = b""
        whose = owner(kept.model, kept.tenant)
        try:
            await self._groups.note(kept.group.encode(), left_s)
            value, staged = await self._parts.stage(shelf.parts(key), value)
            keys = (*shelf.keys, shelf.value(key), shelf.parts(key), staged)
            for _ in range(MOST_TURNS):
                reply = await self._link.run(PUT, keys, (self._now(), key, left_s, size, whose, bound, value))
                is_done, entries, taken, gone = reply
                shelf.told(entries, taken)
                if gone:
                    await shelf.drop(gone)
                if is_done:
                    return
        except StoreGone:
            if not self._link.is_up:
                self._local.put(key, kept)

    async def _forgotten(self, here: int, selection: Selection) -> int:
        return max(here, await self._purges.forget(selection))

    async def _forget(self, selection: Selection) -> int:
        """In all groups that anybody keeps, on all shelves that there may be. Raises StoreGone."""
        model, tenant = name_digest(selection.model), name_digest(selection.tenant)
        groups = {*self._bounds, *[name.decode() async for names in self._groups.pages() for name in names]}
        shelves = [self._shelf(group, shard) for group in groups for shard in range(MOST_SHARDS)]
        return sum([await shelf.forget(model, tenant, selection.key or b"") for shelf in shelves])


def _local_of(bounds: Mapping[str, int]) -> dict[str, int]:
    return {group: min(size // LOCAL_PART, LOCAL_BYTES) for group, size in bounds.items()}
