"""Entries in the store that keep to a bound: what is listed on a shelf is there, and what is not is not.

A shelf's lists are in one slot with its values, so that each script is one step: entries come and go with their bytes counted.
Scripts name only keys that they are given, so they cannot drop the values of what had to go: they say whose those are, and
whoever is told drops them; if nobody comes to it, the next one that sweeps does. Invariant: no script takes more than a
millisecond or two, whatever has to go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from gateway.store.redis_link.job import FOLDER, script_of
from gateway.store.redis_link.link import Link, Script

Now: TypeAlias = Callable[[], str]
"""The time as scripts are told it: empty for the server's own."""

LIBRARY = "shelf"
AT_ONCE = 64
"""Entries that go in one run. Keep in sync with `lua/shelf.lua`."""
MOST_RUNS = 16
"""Of a sweep that has more to do."""


def shelf_script(name: str, *before: str) -> Script:
    """One that works on a shelf, with the scripts `before` it as its library."""
    return script_of(name, "".join((FOLDER / f"{part}.lua").read_text() for part in (LIBRARY, *before, name)))


SWEEP = shelf_script("shelf_sweep")
DROP = shelf_script("shelf_drop")
FORGET = shelf_script("shelf_forget")


class Shelf:
    """The keys of one shelf, and its numbers as last told."""

    __slots__ = ("_link", "_parts", "_values", "bytes", "entries", "keys", "now")

    def __init__(self, link: Link, base: bytes, now: Now) -> None:
        self._link = link
        self._values = base + b":value:"
        self._parts = base + b":parts:"
        self.keys = tuple(base + b":" + part for part in (b"order", b"ends", b"facts", b"gone"))
        self.now = now
        self.entries = 0
        self.bytes = 0

    def value(self, id: bytes) -> bytes:
        """The key of an entry's value."""
        return self._values + id

    def parts(self, id: bytes) -> bytes:
        """The key of the parts of a long value."""
        return self._parts + id

    def told(self, entries: int, taken: int) -> None:
        """These are its numbers."""
        self.entries, self.bytes = entries, taken

    async def drop(self, ids: Sequence[bytes]) -> None:
        """Drop the values of what is gone, and forget what has lost its value. Raises StoreGone."""
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            values = [key for id in some for key in (self.value(id), self.parts(id))]
            await self._link.run(DROP, (*self.keys, *values), some)

    async def sweep(self, bound: int, *running: bytes, late_s: float = 0.0) -> int:
        """Some of what has run out or is too much goes; how much of it was still of use. Raises StoreGone.

        `running`: the key of a list of those that count without being entries, and are forgotten so long after their time.
        """
        lost = 0
        for _ in range(MOST_RUNS):
            entries, taken, more_lost, gone, some = await self._link.run(
                SWEEP, (*self.keys, *running), (self.now(), bound, late_s)
            )
            self.told(entries, taken)
            lost += int(more_lost)
            await self.drop([*{*gone, *some}])
            if len(gone) < AT_ONCE:
                break
        return lost

    async def forget(self, model: bytes, tenant: bytes, id: bytes) -> int:
        """Forget what matches, empty for any; returns how many there were. Raises StoreGone."""
        count, cursor = 0, b"0"
        while True:
            cursor, entries, taken, gone = await self._link.run(FORGET, self.keys, (model, tenant, id, cursor))
            self.told(entries, taken)
            count += len(gone)
            await self.drop(gone)
            if cursor == b"0":
                return count
