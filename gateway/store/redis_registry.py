"""Names that something is kept under in slots of their own, so that all of it can be found again.

Invariant: a name is noted before anything is kept under it, and for longer than that is.
"""

from __future__ import annotations

import asyncio

from gateway.store.redis_link import Link, load_script
from gateway.store.redis_shelf import Now

REGISTER = load_script("register")

LEAST_S = 3600.0
"""So long at least before it is noted again."""
MOST_NOTED = 10_000
"""Of so many names it is known here until when they are noted."""


class Registry:
    """One list of names."""

    __slots__ = ("_key", "_link", "_noted", "_now")

    def __init__(self, link: Link, key: bytes, now: Now) -> None:
        self._link = link
        self._key = key
        self._now = now
        self._noted: dict[bytes, float] = {}

    async def note(self, name: bytes, left_s: float) -> None:
        """Something of this name is kept for so long from now on. Raises StoreGone."""
        loop_s = asyncio.get_running_loop().time()
        if self._noted.get(name, 0.0) > loop_s + left_s:
            return
        for_s = 2 * max(left_s, 0.0) + LEAST_S
        await self._link.run(REGISTER, (self._key,), (self._now(), for_s, name))
        if len(self._noted) >= MOST_NOTED:
            self._noted.clear()
        self._noted[name] = loop_s + for_s

    async def names(self) -> list[bytes]:
        """All of them. Raises StoreGone."""
        return list(await self._link.command(b"ZRANGE", self._key, 0, -1))

    def lost(self) -> None:
        """The store may have lost them: all are noted anew."""
        self._noted.clear()
