"""An LRU in Redis that is bounded by bytes: lists of its entries, and their values under keys of their own.

The lists are in one slot with the values, so that each script is one atomic step which counts the bytes of entries that come
and go. A script may touch only the keys that it is given, so it cannot delete the values of the entries that it evicts: it
returns their ids, and the caller deletes the values; if the caller dies, a later sweep does. Invariant: no script takes more
than a millisecond or two, however much is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from gateway.drivers.redis.link import Link, Script
from gateway.drivers.redis.wire import FOLDER, script_of

WallTime: TypeAlias = Callable[[], str]
"""Returns the time that scripts use; empty: the server's own."""

LIBRARY = "lru"
AT_ONCE = 64
"""Entries that one run of a script evicts. Keep in sync with `lua/lru.lua`."""
MOST_RUNS = 16
"""Runs of one sweep, at most."""


def lru_script(name: str, *before: str) -> Script:
    """Returns a script that works on an LRU, with the scripts `before` it as its library."""
    return script_of(name, "".join((FOLDER / f"{part}.lua").read_text() for part in (LIBRARY, *before, name)))


SWEEP = lru_script("lru_sweep")
DROP = lru_script("lru_drop")
FORGET = lru_script("lru_forget")


class SharedLru:
    """The keys of one LRU in the store, and its size as last reported."""

    __slots__ = ("_link", "_parts", "_values", "bytes", "entries", "keys", "now")

    def __init__(self, link: Link, base: bytes, now: WallTime) -> None:
        self._link = link
        self._values = base + b":value:"
        self._parts = base + b":parts:"
        self.keys = tuple(base + b":" + part for part in (b"order", b"ends", b"facts", b"gone"))
        self.now = now
        self.entries = 0
        self.bytes = 0

    def value(self, id: bytes) -> bytes:
        """Returns the key of an entry's value."""
        return self._values + id

    def parts(self, id: bytes) -> bytes:
        """Returns the key of a long value's chunks."""
        return self._parts + id

    def note_size(self, entries: int, taken: int) -> None:
        """Notes the size that the store reported."""
        self.entries, self.bytes = entries, taken

    async def drop(self, ids: Sequence[bytes]) -> None:
        """Deletes the values of evicted entries, and entries that have lost their value. Raises StoreGone."""
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            values = [key for id in some for key in (self.value(id), self.parts(id))]
            await self._link.run(DROP, (*self.keys, *values), some)

    async def sweep(self, bound: int, *running: bytes, late_s: float = 0.0) -> int:
        """Drops some expired entries and some above the bound; returns how many were not expired. Raises StoreGone.

        `running` is the key of a list of claims, which count towards the size without being entries, and are dropped `late_s`
        after their leases ended.
        """
        lost = 0
        for _ in range(MOST_RUNS):
            entries, taken, more_lost, gone, some = await self._link.run(
                SWEEP, (*self.keys, *running), (self.now(), bound, late_s)
            )
            self.note_size(entries, taken)
            lost += int(more_lost)
            await self.drop([*{*gone, *some}])
            if len(gone) < AT_ONCE:
                break
        return lost

    async def forget(self, model: bytes, tenant: bytes, id: bytes) -> int:
        """Forgets the entries that match all arguments (empty: any) and returns their number. Raises StoreGone."""
        count, cursor = 0, b"0"
        while True:
            cursor, entries, taken, gone = await self._link.run(FORGET, self.keys, (model, tenant, id, cursor))
            self.note_size(entries, taken)
            count += len(gone)
            await self.drop(gone)
            if cursor == b"0":
                return count
