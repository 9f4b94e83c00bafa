"""What is to be forgotten, until it has been.

A purge that the store does not hear is remembered: until it has been carried out, this replica gives nothing of what is there.
Invariant: what was to be forgotten is never given again by whoever was told so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import orjson

from gateway.store.redis_link.link import Link, StoreGone

MOST_PENDING = 256
"""Beyond that, everything is forgotten instead of each."""


class Selection(NamedTuple):
    """What matches all that is given; everything, when nothing is."""

    key: bytes | None = None
    model: str | None = None
    tenant: str | None = None


def encode_selection(selection: Selection) -> bytes:
    """For a news item of the kind `purge`."""
    key = None if selection.key is None else selection.key.hex()
    return orjson.dumps((key, selection.model, selection.tenant))


def decode_selection(detail: bytes) -> Selection:
    """What others want forgotten. Raises ValueError."""
    key, model, tenant = orjson.loads(detail)
    return Selection(None if key is None else bytes.fromhex(key), model, tenant)


class Purges:
    """Of one use of the store; `forget` carries one out, and raises StoreGone."""

    __slots__ = ("_forget", "_link", "_pending")

    def __init__(self, link: Link, forget: Callable[[Selection], Awaitable[int]]) -> None:
        self._link = link
        self._forget = forget
        self._pending: list[Selection] = []

    @property
    def is_pending(self) -> bool:
        """The store has not heard of all of them."""
        return bool(self._pending)

    async def forget(self, selection: Selection) -> int:
        """Forget what matches, now or when the store is back; how many there were."""
        if selection.key == b"":  # nothing has it, and to scripts it means any
            return 0
        if self._link.is_up:
            try:
                return await self._forget(selection)
            except StoreGone:
                pass
        self._pending = [*self._pending, selection] if len(self._pending) < MOST_PENDING else [Selection()]
        return 0

    async def catch_up(self) -> None:
        """Carry out what is left."""
        try:
            while self._pending and self._link.is_up:
                first = self._pending[0]
                await self._forget(first)
                if first in self._pending:
                    self._pending.remove(first)
        except StoreGone:
            pass  # the next tick goes on
