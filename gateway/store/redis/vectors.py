"""The rows of the semantic index, shared: a list per partition in the store, and news of each row for those who have it in
memory.

Nothing is kept while the store is out of reach: the index has what it has. Invariants: a partition keeps to its rows with
every write; what is written there is noted before, so that a purge finds all of it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from struct import Struct, error
from typing import Any

from gateway.ports import Later, News, NewsItem, VectorRow
from gateway.store.redis.lru import Now, Shelf, shelf_script
from gateway.store.redis.purges import Purges, Selection, encode_selection
from gateway.store.redis.registry import FIRST, Registry
from gateway.store.redis.values import CLOCKS_AGREE_S, ENTRY_BYTES, name_digest, owner
from gateway.store.redis_link.link import BackgroundTasks, Link, StoreGone

ADD = shelf_script("vectors_add", "vectors")
LOAD = shelf_script("vectors_load", "vectors")
REMOVE = shelf_script("vectors_remove", "vectors")
SWEEP = shelf_script("vectors_sweep", "vectors")
FORGET = shelf_script("vectors_forget", "vectors")

ROWS_AT_ONCE = 128
"""Loaded in one step: about a millisecond of the store's time."""
PURGE_S = 60.0
"""For so long the news of a purge is of use: what is loaded later is without it."""
MOST_SHELVES = 4096
"""Of so many partitions the numbers are known."""
PURGED_AT_ONCE = 32
"""Partitions."""
_HEAD = Struct(">32s32sddIII")
_LEFT = Struct(">d")


def encode_row(row: VectorRow) -> bytes:
    """For the store; `decode_row` reads it."""
    model, tenant = (name.encode("utf-8", "surrogatepass") for name in (row.model, row.tenant))
    head = _HEAD.pack(row.id, row.partition, row.stored_at, row.expires_at, len(model), len(tenant), len(row.facts))
    return b"".join((head, model, tenant, row.facts, row.vector))


def decode_row(data: bytes, left_s: float, wall: float) -> VectorRow:
    """The row, which has `left_s` left, with its times by this process's clock. Raises ValueError."""
    try:
        id, partition, stored_at, expires_at, *lengths = _HEAD.unpack_from(data)
    except error as failure:
        raise ValueError("no row") from failure
    parts, start = [], _HEAD.size
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    model, tenant = (part.decode("utf-8", "surrogatepass") for part in parts[:2])
    row = VectorRow(id, partition, data[start:], parts[2], model, tenant, stored_at, expires_at)
    shift_s = wall + left_s - expires_at
    if abs(shift_s) < CLOCKS_AGREE_S:
        return row
    return replace(row, stored_at=stored_at + shift_s, expires_at=expires_at + shift_s)


def encode_news(data: bytes, left_s: float) -> bytes:
    """Of a row that others should have in memory as well."""
    return _LEFT.pack(left_s) + data


def decode_news(detail: bytes, wall: float) -> VectorRow:
    """The row that a news item of the kind `vector` tells of, by this process's clock. Raises ValueError."""
    if len(detail) < _LEFT.size:
        raise ValueError("no row")
    return decode_row(detail[_LEFT.size :], _LEFT.unpack_from(detail)[0], wall)


class RedisVectors:
    """`gateway.ports.Vectors`."""

    def __init__(
        self, link: Link, chores: BackgroundTasks, wall: Callable[[], float], now: Now, most: int, news: News
    ) -> None:
        self._link = link
        self._chores = chores
        self._wall = wall
        self._now = now
        self._most = most
        self._news = news
        self._shelves: OrderedDict[bytes, Shelf] = OrderedDict()
        self._partitions = Registry(link, link.key("partitions"), now)
        self._cursor = FIRST
        self._found: list[bytes] = []
        self._purges = Purges(link, self._forget)

    def configure(self, most: int) -> None:
        """Keep to so many rows in a partition."""
        self._most = most

    def add(self, row: VectorRow) -> Later[None]:
        """Keep it, instead of one with its id in its partition, and tell the others."""
        left_s = row.expires_at - self._wall()
        if not self._link.is_up or left_s <= 0:
            return None
        data = encode_row(row)
        self._news.tell(NewsItem("vector", row.partition.hex(), left_s, encode_news(data, left_s)))
        return self._chores.start(self._add(row, data, left_s))

    def load(self, partition: bytes, most: int) -> Later[Sequence[VectorRow]]:
        """The rows of a partition that have not expired, the newest `most` of them, oldest first.

        In as many operations as it takes: nobody waits for it but whoever builds an index.
        """
        if not self._link.is_up or self._purges.is_pending:
            return ()
        return self._chores.start(self._load(partition, most))

    def remove(self, partition: bytes, ids: Sequence[bytes]) -> Later[None]:
        """Forget these of a partition."""
        if not self._link.is_up or not ids:
            return None
        return self._chores.start(self._remove(partition, ids))

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """As that of the answers; the key is the row's id. All others hear of it when it is done: then none can load it."""
        return self._chores.start(self._purges.forget(Selection(key, model, tenant)))

    def came_back(self) -> None:
        """The store is within reach again, and may have lost what it had."""
        self._partitions.lost()

    async def catch_up(self) -> None:
        """Carry out what the store has not heard."""
        await self._purges.catch_up()

    def sweeps(self) -> Iterator[Callable[[], Any]]:
        """What has to be done now and then, a partition at a time; each may raise StoreGone."""
        for partition in dict.fromkeys((*self._shelves, *self._found)):
            yield partial(self._sweep, partition)

    async def discover(self) -> None:
        """Learn of some of the partitions that others have made: they are looked through with those known. Raises StoreGone."""
        self._cursor, self._found = await self._partitions.page(self._cursor)

    def stats(self) -> dict[str, int]:
        """As last told; none while the store is away."""
        shelves = self._shelves.values() if self._link.is_up else ()
        return {"entries": sum(one.entries for one in shelves), "bytes": sum(one.bytes for one in shelves)}

    def _shelf(self, partition: bytes) -> Shelf:
        return self._shelves.get(partition) or Shelf(self._link, self._link.key("rows", partition), self._now)

    def _told(self, partition: bytes, shelf: Shelf, entries: int, taken: int) -> None:
        """These are its numbers; they are known from now on, unless there is nothing."""
        if not entries:
            self._shelves.pop(partition, None)
            return
        if partition not in self._shelves and len(self._shelves) >= MOST_SHELVES:
            self._shelves.popitem(last=False)
        self._shelves.setdefault(partition, shelf).told(entries, taken)

    def _keys(self, shelf: Shelf) -> tuple[bytes, ...]:
        return (*shelf.keys, shelf.value(b""))

    async def _add(self, row: VectorRow, data: bytes, left_s: float) -> None:
        shelf, whose = self._shelf(row.partition), owner(row.model, row.tenant)
        try:
            await self._partitions.note(row.partition, left_s)
            numbers = await self._link.run(
                ADD, self._keys(shelf), (self._now(), row.id, left_s, len(data) + ENTRY_BYTES, whose, self._most, data)
            )
        except StoreGone:
            return
        self._told(row.partition, shelf, *numbers)

    async def _load(self, partition: bytes, most: int) -> Sequence[VectorRow]:
        shelf, rows, before = self._shelf(partition), list[VectorRow](), b""
        try:
            while len(rows) < most:
                wanted = min(ROWS_AT_ONCE, most - len(rows))
                before, *found = await self._link.run(LOAD, self._keys(shelf), (self._now(), wanted, before))
                wall = self._wall()
                rows += [
                    decode_row(data, float(left), wall) for left, data in zip(found[::2], found[1::2], strict=True)
                ]
                if not before:
                    break
        except (StoreGone, ValueError):
            pass  # some are better than none
        return () if self._purges.is_pending else rows[::-1]

    async def _remove(self, partition: bytes, ids: Sequence[bytes]) -> None:
        shelf = self._shelf(partition)
        try:
            for start in range(0, len(ids), ROWS_AT_ONCE):
                numbers = await self._link.run(REMOVE, self._keys(shelf), ids[start : start + ROWS_AT_ONCE])
                self._told(partition, shelf, *numbers)
        except StoreGone:
            pass  # they run out by themselves

    async def _sweep(self, partition: bytes) -> None:
        shelf = self._shelf(partition)
        self._told(partition, shelf, *await self._link.run(SWEEP, self._keys(shelf), (self._now(), self._most)))

    async def _forget(self, selection: Selection) -> int:
        """In all partitions that anybody keeps. Raises StoreGone."""
        count = await self._forget_in([*self._shelves], selection)
        count += sum([await self._forget_in(names, selection) async for names in self._partitions.pages()])
        self._news.tell(NewsItem("purge", "", PURGE_S, encode_selection(selection)))
        return count

    async def _forget_in(self, partitions: Sequence[bytes], selection: Selection) -> int:
        count = 0
        for first in range(0, len(partitions), PURGED_AT_ONCE):
            some = partitions[first : first + PURGED_AT_ONCE]
            count += sum(await asyncio.gather(*[self._forget_of(one, selection) for one in some]))
        return count

    async def _forget_of(self, partition: bytes, selection: Selection) -> int:
        shelf = self._shelf(partition)
        model, tenant = name_digest(selection.model), name_digest(selection.tenant)
        count, cursor = 0, b"0"
        while True:
            cursor, entries, taken, gone = await self._link.run(
                FORGET, self._keys(shelf), (model, tenant, selection.key or b"", cursor)
            )
            self._told(partition, shelf, entries, taken)
            count += int(gone)
            if cursor == b"0":
                return count
