"""The exact cache in Redis: one LRU per group, or several for a large group, so that a cluster spreads the load.

In this order: purges; answers as values of the store; and the port. While the store is out of reach answers are in this
process's memory, and dropped when it is back. Invariants: a group keeps to its bytes with every write; its least recently used
answers are evicted first; this replica does not return a forgotten answer, and once the store has carried out the purge no
replica does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from secrets import token_bytes
from struct import Struct
from typing import Any, NamedTuple

import orjson

from gateway.core.ports import Later
from gateway.core.types import Kept
from gateway.drivers.memory import MemoryAnswers, about, moved, restored
from gateway.drivers.redis.link import BackgroundTasks, Link, StoreGone, load_script
from gateway.drivers.redis.lru import SharedLru, WallTime, lru_script
from gateway.fleet.redis import Registry

# --- purges, which are remembered until the store has carried them out ---

MOST_PENDING = 256
"""Pending purges; more are replaced by one purge of everything."""


class Selection(NamedTuple):
    """Selects the entries that match all given fields; without any, all entries."""

    key: bytes | None = None
    model: str | None = None
    tenant: str | None = None


def encode_selection(selection: Selection) -> bytes:
    """Returns the details of a news item of the kind `purge`."""
    key = None if selection.key is None else selection.key.hex()
    return orjson.dumps((key, selection.model, selection.tenant))


def decode_selection(detail: bytes) -> Selection:
    """Returns the selection of another replica's purge. Raises ValueError."""
    key, model, tenant = orjson.loads(detail)
    return Selection(None if key is None else bytes.fromhex(key), model, tenant)


class Purges:
    """The purges of one part of the store; `forget` carries one out, and raises StoreGone.

    While a purge is pending, this replica returns no entry of the store. Invariant: a replica that accepted a purge never
    returns a purged entry again.
    """

    __slots__ = ("_forget", "_link", "_pending")

    def __init__(self, link: Link, forget: Callable[[Selection], Awaitable[int]]) -> None:
        self._link = link
        self._forget = forget
        self._pending: list[Selection] = []

    @property
    def is_pending(self) -> bool:
        return bool(self._pending)

    async def forget(self, selection: Selection) -> int:
        """Forgets the selected entries now, or when the store is back; returns the number known to be forgotten."""
        if selection.key == b"":  # no entry has an empty key, and to scripts it means any
            return 0
        if self._link.is_up:
            try:
                return await self._forget(selection)
            except StoreGone:
                pass
        self._pending = [*self._pending, selection] if len(self._pending) < MOST_PENDING else [Selection()]
        return 0

    async def catch_up(self) -> None:
        try:
            while self._pending and self._link.is_up:
                first = self._pending[0]
                await self._forget(first)
                if first in self._pending:
                    self._pending.remove(first)
        except StoreGone:
            pass  # the next tick goes on


# --- answers as values of the store: one value each, or, where one is long, a head and chunks ---

STAGE = load_script("stage")

ENTRY_BYTES = 768
"""About the bytes of an entry besides its value: its key, and its places in the lists (measured)."""
MOST_BYTES = 16 * 1024 * 1024 + 64 * 1024
"""The longest value that is kept: a body of 16 MiB and its description."""
_LENGTH = Struct(">I")
PART_BYTES = 128 * 1024
"""The length of a chunk, which takes some tenths of a millisecond to transfer."""
AT_ONCE = 4
"""Chunks in flight at once."""
STAGED_MS = 60_000
_HEAD = Struct(">4s16sII")
_MARK = b"\xff\xff\xff\xff"
"""The first bytes of a head, with which no value begins. Keep in sync with `lua/lru.lua`."""


def framed(kept: Kept) -> bytes:
    """Returns the whole answer as one value.

    Replicas' clocks differ by seconds, and the store's by as much again; what they agree on is the time that an answer has
    left. Scripts return that time, and the times of an answer that another replica wrote are moved to this replica's clock.
    Invariant: where the clocks agree, an answer is read as it was written.
    """
    known = about(kept)
    return b"".join((_LENGTH.pack(len(known)), known, kept.body))


def unframed(value: bytes) -> Kept | None:
    """Returns the answer, with its times as they were written; None for bytes that are none."""
    try:
        (length,) = _LENGTH.unpack_from(value)
        start = _LENGTH.size + length
        return restored(value[_LENGTH.size : start], value[start:])
    except Exception:  # noqa: BLE001  # another release or program may have written it; a call must not fail of that
        return None


def owner(model: str, tenant: str) -> bytes:
    """Returns the owner of an entry: 32 bytes, 16 for each name."""
    return name_digest(model) + name_digest(tenant)


def name_digest(name: str | None) -> bytes:
    """Returns 16 bytes for a name, none for None."""
    return b"" if name is None else blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def is_head(value: bytes) -> bool:
    """Returns whether the value is the head of a long value in chunks."""
    return len(value) == _HEAD.size and value.startswith(_MARK)


class ChunkedValue:
    """Writes and reads the long values of one link.

    A long value is staged chunk by chunk, so that no operation keeps the server or other callers waiting, and comes to its
    place in the one step that lists it. Invariants: a reader gets all chunks of one write or nothing; chunks that no entry
    lists are gone within a minute.
    """

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    async def stage(self, place: bytes, value: bytes) -> tuple[bytes, bytes]:
        """Returns the head of a long value (or the short value itself) and the key of its staged chunks. Raises StoreGone."""
        if len(value) <= PART_BYTES:
            return value, place + b":none"
        nonce = token_bytes(16)
        staged = place + b":" + nonce
        starts = range(0, len(value), PART_BYTES)

        def send(number: int) -> asyncio.Future[Any]:
            part = value[starts[number] : starts[number] + PART_BYTES]
            return self._link.run(STAGE, (staged,), (STAGED_MS, nonce, number, part))

        for first in range(0, len(starts), AT_ONCE):
            await asyncio.gather(*map(send, range(first, min(first + AT_ONCE, len(starts)))))
        return _HEAD.pack(_MARK, nonce, len(starts), len(value)), staged

    async def read(self, place: bytes, head: bytes, by: float) -> bytes | None:
        """Returns the value of a head, None where its chunks are gone. Raises StoreGone, also when it has not arrived by `by`.

        `by` is a time of the loop, because the caller has waited for the head already.
        """
        try:
            async with asyncio.timeout_at(by):
                return await self._read(place, head)
        except TimeoutError as late:
            raise StoreGone("it is too long for the time there is") from late

    async def _read(self, place: bytes, head: bytes) -> bytes | None:
        _, nonce, count, length = _HEAD.unpack(head)
        parts: list[bytes] = []
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            found = await asyncio.gather(*[self._link.command(b"HMGET", place, b"nonce", number) for number in numbers])
            if any(its_nonce != nonce or part is None for its_nonce, part in found):
                return None
            parts += [part for _, part in found]
        value = b"".join(parts)
        return value if len(value) == length else None


# --- the port ---

GET = lru_script("answers_get")
PUT = lru_script("answers_put")

SHARD_BYTES = 64 * 1024 * 1024
"""A group has one LRU per so many bytes of its bound."""
MOST_SHARDS = 16
LARGEST_PART = 4
"""An answer larger than a quarter of its LRU's bound is not kept: it would evict too many others."""
MOST_STEPS = 1000
"""Steps in which a put makes room, at most."""
LOCAL_PART, LOCAL_BYTES = 4, 64 * 1024 * 1024
"""While the store is gone, memory keeps a quarter of a group's bytes, up to this cap."""


def shards_of(bound: int) -> int:
    """Returns the number of LRUs of a group with this bound: a power of two."""
    return 1 << (min(MOST_SHARDS, max(1, bound // SHARD_BYTES)).bit_length() - 1)


class RedisAnswers:
    """Implements `gateway.drivers.store.Answers`."""

    def __init__(
        self,
        link: Link,
        background: BackgroundTasks,
        wall: Callable[[], float],
        now: WallTime,
        bounds: Mapping[str, int],
    ) -> None:
        self._link = link
        self._background = background
        self._wall = wall
        self._now = now
        self._bounds = bounds
        self._lrus: dict[tuple[str, int], SharedLru] = {}
        self._groups = Registry(link, link.key("groups"), now)
        self._purges = Purges(link, self._forget)
        self._parts = ChunkedValue(link)
        self._local = MemoryAnswers(wall)
        self._local.configure(_local_of(bounds))

    def configure(self, bounds: Mapping[str, int]) -> None:
        self._bounds = bounds
        self._local.configure(_local_of(bounds))

    def get(self, key: bytes, group: str) -> Later[Kept | None]:
        bound = self._bounds.get(group)
        if bound is None:
            return None
        if not self._link.is_up:
            return self._local.get(key, group)
        if self._purges.is_pending:
            return None
        lru = self._lru_of(key, group, bound)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Kept | None] = loop.create_future()
        reply = self._link.run(GET, (*lru.keys, lru.value(key)), (self._now(), key))
        reply.add_done_callback(partial(self._got, future, key, group, loop.time() + self._link.timeout_s))
        return future

    def put(self, key: bytes, kept: Kept) -> Later[None]:
        """Keeps the answer in place of an earlier one, unless it exceeds a quarter of its LRU's bound."""
        bound = self._bounds.get(kept.group)
        if bound is None:
            return None
        if not self._link.is_up:
            self._local.put(key, kept)
            return None
        return self._background.start(self._put(key, kept, bound))

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """Forgets every answer that matches all given arguments; a purge that the store misses follows when it is back."""
        here = self._local.forget(key=key, model=model, tenant=tenant)
        return self._background.start(self._forgotten(here, Selection(key, model, tenant)))

    def came_back(self) -> None:
        """Drops the answers of this process's memory when the store is back, because other replicas may have purged them."""
        self._local.forget()

    async def catch_up(self) -> None:
        await self._purges.catch_up()

    def sweeps(self) -> Iterator[Callable[[], Any]]:
        """Yields one sweep per LRU; each may raise StoreGone."""
        for group, bound in self._bounds.items():
            for shard in range(shards_of(bound)):
                yield partial(self._lru(group, shard).sweep, bound // shards_of(bound))

    def tick(self) -> None:
        """Sweeps the answers in this process's memory."""
        self._local.tick()

    def stats(self) -> dict[str, int]:
        """Returns the numbers that the store last reported; while it is gone, those of this process's memory."""
        if not self._link.is_up:
            return self._local.stats()
        lrus = [self._lru(group, n) for group, bound in self._bounds.items() for n in range(shards_of(bound))]
        return {"entries": sum(one.entries for one in lrus), "bytes": sum(one.bytes for one in lrus)}

    def _lru(self, group: str, shard: int) -> SharedLru:
        lru = self._lrus.get((group, shard))
        if lru is None:
            base = self._link.key("answers", group, b"%d" % shard)
            lru = self._lrus[(group, shard)] = SharedLru(self._link, base, self._now)
        return lru

    def _lru_of(self, key: bytes, group: str, bound: int) -> SharedLru:
        return self._lru(group, key[0] % shards_of(bound))

    def _got(
        self, future: asyncio.Future[Kept | None], key: bytes, group: str, by: float, getting: asyncio.Future[Any]
    ) -> None:
        if future.done():
            return
        try:
            reply = getting.result()
        except (StoreGone, asyncio.CancelledError):
            future.set_result(self._local.get(key, group))
            return
        if reply and is_head(reply[1]):
            self._background.start(self._got_long(future, key, group, by, reply))
        else:
            future.set_result(self._read(reply[1], reply[0]) if reply else None)

    async def _got_long(
        self, future: asyncio.Future[Kept | None], key: bytes, group: str, by: float, reply: Sequence[bytes]
    ) -> None:
        """Reads a long answer; one that has not arrived by `by` (the loop's time) counts as a miss."""
        bound = self._bounds.get(group, 0)
        try:
            value = await self._parts.read(self._lru_of(key, group, bound).parts(key), reply[1], by)
        except StoreGone:
            value = None
        if not future.done():
            future.set_result(None if value is None else self._read(value, reply[0]))

    def _read(self, value: bytes, left_s: bytes) -> Kept | None:
        kept = None if self._purges.is_pending else unframed(value)
        return None if kept is None else moved(kept, self._wall() + float(left_s) - kept.stale_until)

    async def _put(self, key: bytes, kept: Kept, bound: int) -> None:
        lru, bound = self._lru_of(key, kept.group, bound), bound // shards_of(bound)
        value, left_s = framed(kept), kept.stale_until - self._wall()
        size = len(value) + ENTRY_BYTES
        if left_s <= 0 or size > min(bound // LARGEST_PART, MOST_BYTES):
            value = b""
        whose = owner(kept.model, kept.tenant)
        try:
            await self._groups.note(kept.group.encode(), left_s)
            value, staged = await self._parts.stage(lru.parts(key), value)
            keys = (*lru.keys, lru.value(key), lru.parts(key), staged)
            for _ in range(MOST_STEPS):
                reply = await self._link.run(PUT, keys, (self._now(), key, left_s, size, whose, bound, value))
                is_done, entries, taken, gone = reply
                lru.note_size(entries, taken)
                if gone:
                    await lru.drop(gone)
                if is_done:
                    return
        except StoreGone:
            if not self._link.is_up:
                self._local.put(key, kept)

    async def _forgotten(self, here: int, selection: Selection) -> int:
        return max(here, await self._purges.forget(selection))

    async def _forget(self, selection: Selection) -> int:
        """Forgets in every LRU of every group that some replica has. Raises StoreGone."""
        model, tenant = name_digest(selection.model), name_digest(selection.tenant)
        groups = {*self._bounds, *[name.decode() async for names in self._groups.pages() for name in names]}
        lrus = [self._lru(group, shard) for group in groups for shard in range(MOST_SHARDS)]
        return sum([await lru.forget(model, tenant, selection.key or b"") for lru in lrus])


def _local_of(bounds: Mapping[str, int]) -> dict[str, int]:
    return {group: min(size // LOCAL_PART, LOCAL_BYTES) for group, size in bounds.items()}
