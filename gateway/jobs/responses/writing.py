"""Writes the events of a response into its log, a few together, while the next ones come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.clock import Clock
from gateway.job_ports.jobs import JobStore
from gateway.jobs.responses.live import LiveLog
from gateway.jobs.running import RunningWork, until_done
from gateway.policy.responses.stored_response import LogPart

EVERY_S = 0.1
"""Events wait at most so long for others to go with."""
PART_BYTES = 8192
"""So many go at once."""
MOST_WAITING_BYTES = 4 * 1024 * 1024
"""With so many that the store has not taken the provider is read no further."""


class LogWriter:
    """Writes one generation."""

    def __init__(self, store: JobStore, running: RunningWork, live: LiveLog, clock: Clock) -> None:
        self._store = store
        self._running = running
        self._live = live
        self._clock = clock
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._wake = asyncio.Event()
        self._written = asyncio.Event()
        self._hurries = False
        self._writing: asyncio.Task[None] | None = None

    async def add(self, events: Sequence[bytes]) -> None:
        """Shows events to readers here, and has them written; waits only where the store is far behind."""
        self._waiting += events
        self._bytes += sum(map(len, events))
        self._live.add(events)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_always())
        if self._bytes >= PART_BYTES:
            self._wake.set()
        while self._bytes > MOST_WAITING_BYTES and self._running.is_ours:
            self._written.clear()
            await self._written.wait()

    async def flush(self) -> None:
        """Returns when all is written, or is another worker's to write."""
        self._hurries = True
        self._wake.set()
        if self._writing is not None:
            await self._writing

    def abandon(self) -> None:
        """Writes nothing more."""
        if self._writing is not None:
            self._writing.cancel()

    async def _write_always(self) -> None:
        """Writes until all is written and nothing more comes; the first event goes at once."""
        while self._running.is_ours:
            events, self._waiting, self._bytes = self._waiting, [], 0
            if events:
                part = LogPart(self._live.logged, self._live.logged + len(events) - 1, b"".join(events))
                await self._append(part)
            if not self._waiting and self._hurries:
                break
            self._wake.clear()
            if self._bytes < PART_BYTES and not self._hurries:
                timer = self._clock.call_at(self._clock.monotonic() + EVERY_S, self._wake.set)
                await self._wake.wait()
                timer.cancel()
        self._written.set()

    async def _append(self, part: LogPart) -> None:
        append = self._store.events.append
        self._running.note(await until_done(lambda: append(self._running.work, part), self._clock))
        self._live.logged = part.last + 1
        self._written.set()
