"""Turns at something that serves one at a time: tenants take them in rotation, however much one of them waits for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

MOST_WAITING = 16
"""The most turns that one tenant waits for. A turn lasts up to two seconds, and nobody waits longer than ten: more would wait
in vain.
"""
MOST_WAITING_BYTES = 64 * 1024 * 1024
"""The most bytes that wait, of all tenants."""


class NotATurn(Exception):
    """Too much waits already."""


class _Wait(NamedTuple):
    turn: asyncio.Future[None]
    size: int


class FairTurns:
    """Gives turns to tenants. Used by one event loop.

    Invariants: at most one turn is taken; what waits is bounded in number per tenant and in bytes over all, and it is the
    tenant with the most that gives way.
    """

    __slots__ = ("_bytes", "_served", "_waiting")

    def __init__(self) -> None:
        self._served: str | None = None
        self._bytes = 0
        self._waiting: OrderedDict[str, deque[_Wait]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, tenant: str, size: int) -> AsyncIterator[None]:
        """Waits for a turn of the tenant's, and gives it back at the end; `size` is what waits meanwhile, in bytes.

        Raises NotATurn, at once or when others need the place.
        """
        if self._served is None:
            self._served = tenant
        else:
            await self._wait(tenant, size)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, tenant: str, size: int) -> None:
        mine = self._waiting.setdefault(tenant, deque())
        if len(mine) >= MOST_WAITING:
            raise NotATurn
        wait = _Wait(asyncio.get_running_loop().create_future(), size)
        mine.append(wait)
        self._bytes += size
        while self._bytes > MOST_WAITING_BYTES:
            self._refuse_largest()
        try:
            await wait.turn
        except asyncio.CancelledError:
            if wait.turn.cancelled():
                self._drop(tenant, wait)
            elif wait.turn.exception() is None:  # its turn had just come
                self._next()
            raise

    def _next(self) -> None:
        """Hands the turn that has ended to the next tenant: to the same one only if nobody else waits."""
        waiting, served = self._waiting, self._served
        self._served = None
        if served is not None and served in waiting:
            waiting.move_to_end(served)
        while self._served is None and waiting:
            tenant, waits = next(iter(waiting.items()))
            wait = waits[0]
            self._drop(tenant, wait)
            if not wait.turn.done():  # else it is being cancelled
                self._served = tenant
                wait.turn.set_result(None)

    def _refuse_largest(self) -> None:
        tenant = max(self._waiting, key=lambda one: sum([wait.size for wait in self._waiting[one]]))
        wait = self._waiting[tenant][-1]
        self._drop(tenant, wait)
        if not wait.turn.done():
            wait.turn.set_exception(NotATurn())

    def _drop(self, tenant: str, wait: _Wait) -> None:
        mine = self._waiting.get(tenant)
        if mine is None or wait not in mine:
            return
        mine.remove(wait)
        self._bytes -= wait.size
        if not mine:
            del self._waiting[tenant]
