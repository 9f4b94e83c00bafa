"""Purges, which are remembered until the store has carried them out.

While a purge is pending, this replica returns no entry of the store. Invariant: a replica that accepted a purge never returns
a purged entry again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import orjson

from gateway.drivers.redis.link import Link, StoreGone

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
    """The purges of one part of the store; `forget` carries one out, and raises StoreGone."""

    __slots__ = ("_forget", "_link", "_pending")

    def __init__(self, link: Link, forget: Callable[[Selection], Awaitable[int]]) -> None:
        self._link = link
        self._forget = forget
        self._pending: list[Selection] = []

    @property
    def is_pending(self) -> bool:
        """Tells whether some purges are not carried out yet."""
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
        """Carries out the pending purges."""
        try:
            while self._pending and self._link.is_up:
                first = self._pending[0]
                await self._forget(first)
                if first in self._pending:
                    self._pending.remove(first)
        except StoreGone:
            pass  # the next tick goes on
