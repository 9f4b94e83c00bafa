"""Writes the events of a response into its log, a few together, while the next ones come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.core.clock import Clock
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import RunningWork, until_done
from gateway.products.responses.log.reader.live import LiveLog
from gateway.products.responses.rules.response_object.stored_response import LogPart

PART_BYTES = 16 * 1024
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
        self._rests = False
        """Nothing waits: the next event is to wake it."""
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_behind(self) -> bool:
        """Tells whether the store has to be waited for."""
        return self._bytes > MOST_WAITING_BYTES

    async def add(self, events: Sequence[bytes]) -> None:
        """Shows events to readers here, and has them written; waits only where the store is far behind."""
        self._waiting += events
        self._live.add(events)
        self._note(sum(map(len, events)))
        while self.is_behind and self._running.is_ours:
            self._written.clear()
            await self._written.wait()

    def pass_on(self, event: bytes) -> None:
        """Does the same with one event, for who cannot wait: not where it is behind, nor with a last event."""
        self._waiting.append(event)
        self._live.pass_on(event)
        self._note(len(event))

    async def end(self, events: Sequence[bytes]) -> None:
        """Shows the last events, and returns when all is written."""
        self._live.is_told = True
        await self.add(events)
        await self.flush()

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

    def _note(self, size: int) -> None:
        self._bytes += size
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_always())
        if self._rests or self._bytes >= PART_BYTES:
            self._wake.set()

    async def _write_always(self) -> None:
        """Writes until all is written and nothing more comes; an event behind a silence goes at once."""
        while self._running.is_ours and (self._waiting or not self._hurries):
            if not self._waiting:
                self._rests = True
                await self._pause()
                self._rests = False
                continue
            events, self._waiting, self._bytes = self._waiting, [], 0
            await self._append(LogPart(self._live.logged, self._live.logged + len(events) - 1, b"".join(events)))
            if self._bytes < PART_BYTES and not self._hurries:
                timer = self._clock.call_at(self._next_turn(), self._wake.set)
                await self._pause()
                timer.cancel()
        self._written.set()

    def _next_turn(self) -> float:
        """Returns when the log is written the next time: all are at the same moments, so that the store takes them at once."""
        every_s = self._store.events.every_s
        return (self._clock.monotonic() // every_s + 1) * every_s

    async def _pause(self) -> None:
        """Returns when it is woken."""
        self._wake.clear()
        await self._wake.wait()

    async def _append(self, part: LogPart) -> None:
        append = self._store.events.append
        self._running.note(await until_done(lambda: append(self._running.work, part), self._clock))
        self._live.logged = part.last + 1
        self._written.set()
