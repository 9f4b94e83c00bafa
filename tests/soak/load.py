"""An open-loop load: calls start when they are due, whether or not earlier ones have been answered.

A call's latency counts from its due time, so a gateway that stands still cannot hide it by slowing the load down.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from tests.e2e.harness import Peer, Response, connect

Check = Callable[[int, Response], str]
"""Judges the answer to the call of this number and says what kind it is; raises AssertionError when it is wrong."""


@dataclass(slots=True)
class Load:
    """`per_s` calls a second over kept-alive connections; `latencies_s` are from due time to last byte, by kind."""

    url: str
    per_s: float
    request: Callable[[int], bytes]
    check: Check
    latencies_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)
    _idle: list[Peer] = field(default_factory=list)
    _connections: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def calls(self) -> int:
        """How many have been answered, one way or the other."""
        return sum(map(len, self.latencies_s.values()))

    async def during(self, work: Awaitable[None]) -> None:
        """Call for as long as `work` takes, and wait for the last answers."""
        stop = asyncio.Event()
        calling = asyncio.create_task(self._dispatch(stop))
        try:
            await work
        finally:
            stop.set()
            await calling
            await self._connections.aclose()

    async def _dispatch(self, stop: asyncio.Event) -> None:
        began_at, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as calls:
            while not stop.is_set():
                due_at = began_at + number / self.per_s
                await asyncio.sleep(due_at - time.monotonic())
                calls.create_task(self._call(number, due_at))
                number += 1

    async def _call(self, number: int, due_at: float) -> None:
        kind = "failed"
        try:
            peer = self._idle.pop() if self._idle else await self._connections.enter_async_context(connect(self.url))
            kind = self.check(number, await peer.exchange(self.request(number)))
            self._idle.append(peer)
        except (OSError, EOFError, TimeoutError, AssertionError) as exc:
            self.faults.append(f"{type(exc).__name__}: {str(exc)[:500]}")
        self.latencies_s[kind].append(time.monotonic() - due_at)
