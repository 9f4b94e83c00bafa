"""Registers the names whose entries are in slots of their own, so that all of them can be found again.

Invariants: a name is registered before an entry is kept under it, and for longer than the entry; the number of names is
bounded, and no operation reads them all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from gateway.drivers.redis.link import Link, StoreRefused, load_script
from gateway.features.reuse.redis.lru import Now

log = logging.getLogger("gateway.store")

REGISTER = load_script("register")

LEAST_S = 3600.0
"""The least number of seconds between two registrations of a name."""
MOST_NOTED = 10_000
"""Names whose registration this process remembers, at most."""
MOST_NAMES = 100_000
"""Registered names, at most; entries of further names are not kept until others expire."""
PAGE = 500
"""About the number of names that one operation reads, in well under a millisecond."""
FIRST = b"0"
"""The cursor at which a scan begins, and which ends it."""


class Registry:
    """One list of names in the store."""

    __slots__ = ("_cursor", "_has_warned", "_key", "_link", "_noted", "_now", "found")

    def __init__(self, link: Link, key: bytes, now: Now) -> None:
        self._link = link
        self._key = key
        self._now = now
        self._noted: dict[bytes, float] = {}
        self._cursor = FIRST
        self.found: list[bytes] = []
        """The names that the last `discover` has found."""
        self._has_warned = False

    async def note(self, name: bytes, left_s: float) -> None:
        """Registers a name whose entries live `left_s` seconds from now. Raises StoreGone; StoreRefused: too many names."""
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

    async def discover(self) -> None:
        """Reads the next of the registered names, and after the last the first again. Raises StoreGone."""
        self._cursor, self.found = await self._page(self._cursor)

    async def _page(self, cursor: bytes) -> tuple[bytes, list[bytes]]:
        """Returns the next cursor and some names; the scan is complete when the cursor is `FIRST`. Raises StoreGone."""
        after, found = await self._link.command(b"ZSCAN", self._key, cursor, b"COUNT", PAGE)
        return after, found[::2]

    async def pages(self) -> AsyncIterator[list[bytes]]:
        """Yields all names, some more than once. Raises StoreGone."""
        cursor, names = await self._page(FIRST)
        yield names
        while cursor != FIRST:
            cursor, names = await self._page(cursor)
            yield names

    def lost(self) -> None:
        """Has all names registered anew, because the store may have lost them."""
        self._noted.clear()

    def _warn(self) -> None:
        """Logs once that entries are not kept."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "A shared cache has answers of %d tenants, models and parameters: those of others are not shared until some "
                "have run out.",
                MOST_NAMES,
            )
