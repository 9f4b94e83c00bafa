"""Names that something is kept under in slots of their own, so that all of it can be found again.

Invariants: a name is noted before anything is kept under it, and for longer than that is; there are so many at most, and
no operation reads them all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from gateway.store.redis.lru import Now
from gateway.store.redis_link.link import Link, StoreRefused, load_script

log = logging.getLogger("gateway.store")

REGISTER = load_script("register")

LEAST_S = 3600.0
"""So long at least before it is noted again."""
MOST_NOTED = 10_000
"""Of so many names it is known here until when they are noted."""
MOST_NAMES = 100_000
"""Beyond that, nothing is kept under a new one until others run out."""
PAGE = 500
"""Names that are read at once, about; in well under a millisecond."""
FIRST = b"0"
"""Where reading begins; and ends."""


class Registry:
    """One list of names."""

    __slots__ = ("_has_warned", "_key", "_link", "_noted", "_now")

    def __init__(self, link: Link, key: bytes, now: Now) -> None:
        self._link = link
        self._key = key
        self._now = now
        self._noted: dict[bytes, float] = {}
        self._has_warned = False

    async def note(self, name: bytes, left_s: float) -> None:
        """Something of this name is kept for so long from now on. Raises StoreGone, also where it must not be."""
        loop_s = asyncio.get_running_loop().time()
        if self._noted.get(name, 0.0) > loop_s + left_s:
            return
        for_s = 2 * max(left_s, 0.0) + LEAST_S
        if not await self._link.run(REGISTER, (self._key,), (self._now(), for_s, name, MOST_NAMES)):
            self._warn()
            raise StoreRefused("there are too many names")
        if len(self._noted) >= MOST_NOTED:
            self._noted.clear()
        self._noted[name] = loop_s + for_s

    async def page(self, cursor: bytes) -> tuple[bytes, list[bytes]]:
        """Where to go on, and some of them; who goes on until `FIRST` has had all. Raises StoreGone."""
        after, found = await self._link.command(b"ZSCAN", self._key, cursor, b"COUNT", PAGE)
        return after, found[::2]

    async def pages(self) -> AsyncIterator[list[bytes]]:
        """All of them, some more than once. Raises StoreGone."""
        cursor, names = await self.page(FIRST)
        yield names
        while cursor != FIRST:
            cursor, names = await self.page(cursor)
            yield names

    def lost(self) -> None:
        """The store may have lost them: all are noted anew."""
        self._noted.clear()

    def _warn(self) -> None:
        """Said once: something is not kept."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "A shared cache has answers of %d tenants, models and parameters: those of others are not shared until some "
                "have run out.",
                MOST_NAMES,
            )
