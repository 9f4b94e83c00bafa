"""One run of the model for a response: a generation of events, on their way to readers here and into the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.clock import Clock
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import RunningWork
from gateway.products.responses.events.own_events import OwnEvents
from gateway.products.responses.log.reader.live import LiveLogs
from gateway.products.responses.log.reader.writing import LogWriter
from gateway.products.responses.rules.response_object.response_object import GENERATION, begun, own_fields


class ModelRun:
    """Of a claim; its number is noted in the store before anybody sees an event of it."""

    def __init__(self, store: JobStore, running: RunningWork, lives: LiveLogs, clock: Clock) -> None:
        job = running.work.job
        self.number = job.marks.get(GENERATION, -1) + 1
        self.events = OwnEvents(own_fields(job), begun(job, "queued"), self.number)
        self.is_seen = False
        """There may be readers of it."""
        self._store = store
        self._running = running
        self._writer = LogWriter(store, running, lives.begin(running, self.number), clock)

    async def feed(self, chunk: bytes) -> None:
        """Takes a chunk of the provider's stream."""
        events = self.events.feed(chunk)
        if events:
            await self._begin()
            await self._writer.add(events)

    def take(self, event: bytes) -> bool:
        """Takes a usual event in passing, one that only brings more of the answer; False: it has to be fed."""
        if not self.is_seen or self._writer.is_behind:
            return False
        own = self.events.plain(event)
        if own is None:
            return False
        self._writer.pass_on(own)
        return True

    async def flush(self) -> None:
        """Returns when all events so far are in the log."""
        await self._writer.flush()

    async def end(self, response: Mapping[str, Any]) -> None:
        """Tells the end, and returns when all events are in the log."""
        await self._begin()
        await self._writer.end(self.events.end(response))

    def abandon(self) -> None:
        """Writes nothing more."""
        self._writer.abandon()

    async def _begin(self) -> None:
        if not self.is_seen:
            note = self._store.note
            await self._running.write(lambda: note(self._running.work, {GENERATION: self.number}))
            self.is_seen = True
