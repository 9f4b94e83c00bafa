"""The rows of the semantic index in Redis: one LRU per partition, and news of each row for replicas with the index in memory.

While the store is out of reach no row is kept; the index in memory goes on. Invariants: a partition keeps to its bound with
every write; a partition is registered before it is written, so that a purge finds it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from struct import Struct, error
from typing import Any

from gateway.core.ports import Later, PeerBus, PeerMessage
from gateway.drivers.memory import CLOCKS_AGREE_S
from gateway.drivers.redis.link import BackgroundTasks, Link, StoreGone
from gateway.drivers.redis.lru import SharedLru, WallTime, lru_script
from gateway.drivers.redis_answers import (
    ENTRY_BYTES,
    Purges,
    Selection,
    encode_selection,
    name_digest,
    owner,
)
from gateway.drivers.redis_store import SharedPart
from gateway.features.semantic.store import VectorRow
from gateway.fleet.redis import Registry

ADD = lru_script("vectors_add", "vectors")
LOAD = lru_script("vectors_load", "vectors")
REMOVE = lru_script("vectors_remove", "vectors")
SWEEP = lru_script("vectors_sweep", "vectors")
FORGET = lru_script("vectors_forget", "vectors")

ROWS_AT_ONCE = 128
"""Rows loaded in one step, which takes about a millisecond of the store's time."""
PURGE_S = 60.0
"""Seconds for which the news of a purge lasts: an index loaded later does not have the purged rows."""
MOST_PARTITIONS = 4096
"""Partitions whose sizes this process knows, at most."""
PURGED_AT_ONCE = 32
"""Partitions that a purge handles at once."""
_HEAD = Struct(">32s32sddIII")
_LEFT = Struct(">d")


def encode_row(row: VectorRow) -> bytes:
    """Returns the row as a value of the store, which `decode_row` reads."""
    model, tenant = (name.encode("utf-8", "surrogatepass") for name in (row.model, row.tenant))
    head = _HEAD.pack(row.id, row.partition, row.stored_at, row.expires_at, len(model), len(tenant), len(row.facts))
    return b"".join((head, model, tenant, row.facts, row.vector))


def decode_row(data: bytes, left_s: float, wall: float) -> VectorRow:
    """Returns the row, which has `left_s` seconds left, with its times by this process's clock. Raises ValueError."""
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
    """Returns the details of the news of a row, for other replicas' indexes."""
    return _LEFT.pack(left_s) + data


def decode_news(detail: bytes, wall: float) -> VectorRow:
    """Returns the row of a news item of the kind `vector`, by this process's clock. Raises ValueError."""
    if len(detail) < _LEFT.size:
        raise ValueError("no row")
    return decode_row(detail[_LEFT.size :], _LEFT.unpack_from(detail)[0], wall)


class RedisVectors(SharedPart):
    """Implements `gateway.features.semantic.store.Vectors`."""

    def __init__(
        self,
        link: Link,
        background: BackgroundTasks,
        wall: Callable[[], float],
        now: WallTime,
        most: int,
        news: PeerBus,
    ) -> None:
        self._link = link
        self._background = background
        self._wall = wall
        self._now = now
        self._most = most
        self._news = news
        self._lrus: OrderedDict[bytes, SharedLru] = OrderedDict()
        self._partitions = Registry(link, link.key("partitions"), now)
        self._purges = Purges(link, self._forget)

    def configure(self, most: int) -> None:
        self._most = most

    def add(self, row: VectorRow) -> Later[None]:
        """Keeps the row in place of one with its id in its partition, and sends it to the other replicas."""
        left_s = row.expires_at - self._wall()
        if not self._link.is_up or left_s <= 0:
            return None
        data = encode_row(row)
        self._news.tell(PeerMessage("vector", row.partition.hex(), left_s, encode_news(data, left_s)))
        return self._background.start(self._add(row, data, left_s))

    def load(self, partition: bytes, most: int) -> Later[Sequence[VectorRow]]:
        """Returns the newest `most` rows of a partition that have not expired, oldest first.

        It takes as many operations as there are steps: only the build of an index waits for it, no call does.
        """
        if not self._link.is_up or self._purges.is_pending:
            return ()
        return self._background.start(self._load(partition, most))

    def remove(self, partition: bytes, ids: Sequence[bytes]) -> Later[None]:
        if not self._link.is_up or not ids:
            return None
        return self._background.start(self._remove(partition, ids))

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """Forgets every row that matches all given arguments; `key` is the row's id.

        The other replicas hear of it when it is done, because then none can load a purged row again.
        """
        return self._background.start(self._purges.forget(Selection(key, model, tenant)))

    def came_back(self) -> None:
        """Has all partitions registered anew, because the store may have lost its data."""
        self._partitions.lost()

    async def catch_up(self) -> None:
        await self._purges.catch_up()

    def sweeps(self) -> Iterator[Callable[[], Any]]:
        """Yields one sweep per partition; each may raise StoreGone."""
        for partition in dict.fromkeys((*self._lrus, *self._partitions.found)):
            yield partial(self._sweep, partition)

    async def discover(self) -> None:
        """Finds some of the partitions of other replicas, which are swept as well. Raises StoreGone."""
        await self._partitions.discover()

    def stats(self) -> dict[str, int]:
        """Returns the numbers that the store last reported; zeros while it is gone."""
        known = self._lrus.values() if self._link.is_up else ()
        return {"entries": sum(one.entries for one in known), "bytes": sum(one.bytes for one in known)}

    def _lru(self, partition: bytes) -> SharedLru:
        return self._lrus.get(partition) or SharedLru(self._link, self._link.key("rows", partition), self._now)

    def _note_size(self, partition: bytes, lru: SharedLru, entries: int, taken: int) -> None:
        """Notes a partition's size; one with rows is known from now on."""
        if not entries:
            self._lrus.pop(partition, None)
            return
        if partition not in self._lrus and len(self._lrus) >= MOST_PARTITIONS:
            self._lrus.popitem(last=False)
        self._lrus.setdefault(partition, lru).note_size(entries, taken)

    def _keys(self, lru: SharedLru) -> tuple[bytes, ...]:
        return (*lru.keys, lru.value(b""))

    async def _add(self, row: VectorRow, data: bytes, left_s: float) -> None:
        lru, whose = self._lru(row.partition), owner(row.model, row.tenant)
        try:
            await self._partitions.note(row.partition, left_s)
            numbers = await self._link.run(
                ADD, self._keys(lru), (self._now(), row.id, left_s, len(data) + ENTRY_BYTES, whose, self._most, data)
            )
        except StoreGone:
            return
        self._note_size(row.partition, lru, *numbers)

    async def _load(self, partition: bytes, most: int) -> Sequence[VectorRow]:
        lru, rows, before = self._lru(partition), list[VectorRow](), b""
        try:
            while len(rows) < most:
                wanted = min(ROWS_AT_ONCE, most - len(rows))
                before, *found = await self._link.run(LOAD, self._keys(lru), (self._now(), wanted, before))
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
        lru = self._lru(partition)
        try:
            for start in range(0, len(ids), ROWS_AT_ONCE):
                numbers = await self._link.run(REMOVE, self._keys(lru), ids[start : start + ROWS_AT_ONCE])
                self._note_size(partition, lru, *numbers)
        except StoreGone:
            pass  # they run out by themselves

    async def _sweep(self, partition: bytes) -> None:
        lru = self._lru(partition)
        self._note_size(partition, lru, *await self._link.run(SWEEP, self._keys(lru), (self._now(), self._most)))

    async def _forget(self, selection: Selection) -> int:
        """Forgets in every partition that some replica has. Raises StoreGone."""
        count = await self._forget_in([*self._lrus], selection)
        count += sum([await self._forget_in(names, selection) async for names in self._partitions.pages()])
        self._news.tell(PeerMessage("purge", "", PURGE_S, encode_selection(selection)))
        return count

    async def _forget_in(self, partitions: Sequence[bytes], selection: Selection) -> int:
        count = 0
        for first in range(0, len(partitions), PURGED_AT_ONCE):
            some = partitions[first : first + PURGED_AT_ONCE]
            count += sum(await asyncio.gather(*[self._forget_of(one, selection) for one in some]))
        return count

    async def _forget_of(self, partition: bytes, selection: Selection) -> int:
        lru = self._lru(partition)
        model, tenant = name_digest(selection.model), name_digest(selection.tenant)
        count, cursor = 0, b"0"
        while True:
            cursor, entries, taken, gone = await self._link.run(
                FORGET, self._keys(lru), (model, tenant, selection.key or b"", cursor)
            )
            self._note_size(partition, lru, entries, taken)
            count += int(gone)
            if cursor == b"0":
                return count
