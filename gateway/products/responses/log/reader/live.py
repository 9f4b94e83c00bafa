"""The responses that run in this process: their last events, for readers here, and a way to stop them at once.

Readers elsewhere, and those who come late, read the log in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from gateway.products.jobs.model.job import JobState, WriteResult
from gateway.products.jobs.worker.running import RunningWork

MOST_BYTES = 256 * 1024
"""Of events that are in the log, too: whoever is slower reads them there."""


class LiveReader(Protocol):
    """Reads the events of a response."""

    def wake(self) -> None:
        """Is told that there is news."""
        ...

    def take(self, live: LiveLog, event: bytes) -> bool:
        """Takes the event that has just come, in passing; False: the reader has to be woken for it."""
        ...


class LiveLog:
    """The events of one generation, from some event on, as they come."""

    def __init__(self, generation: int, readers: Callable[[], Sequence[LiveReader]]) -> None:
        """`readers` gives those who read here now."""
        self.generation = generation
        self._readers = readers
        self._events: deque[bytes] = deque()
        self._first = 0
        self._bytes = 0
        self.logged = 0
        """So many events are in the log."""
        self.is_told = False
        """The last of them is among them: the response is kept, though its job may not have ended yet."""

    @property
    def count(self) -> int:
        """Returns how many events there have been."""
        return self._first + len(self._events)

    def add(self, events: Sequence[bytes]) -> None:
        """Adds events, and lets the oldest go that are in the log."""
        self._events.extend(events)
        self._grown(sum(map(len, events)))
        for reader in self._readers():
            reader.wake()

    def pass_on(self, event: bytes) -> None:
        """Adds a usual event, which is none to end with: whoever has all before it may take it without being woken."""
        self._events.append(event)
        self._grown(len(event))
        for reader in self._readers():
            if not reader.take(self, event):
                reader.wake()

    def _grown(self, size: int) -> None:
        self._bytes += size
        while self._bytes > MOST_BYTES and self._first < self.logged:
            self._bytes -= len(self._events.popleft())
            self._first += 1

    def behind(self, after: int) -> bytes | None:
        """Returns the events behind the one at this place (-1: all); None: some of them are in the log only."""
        skipped = after + 1 - self._first
        return None if skipped < 0 else b"".join(islice(self._events, skipped, None))


class LiveLogs:
    """All of them, by the ids of their jobs."""

    def __init__(self) -> None:
        self._logs: dict[str, LiveLog] = {}
        self._running: dict[str, RunningWork] = {}
        self._readers: dict[str, tuple[LiveReader, ...]] = {}

    def begin(self, running: RunningWork, generation: int) -> LiveLog:
        """Returns the log of a run of the model that begins."""
        job_id = running.work.job.id
        log = self._logs[job_id] = LiveLog(generation, lambda: self._readers.get(job_id, ()))
        return log

    def run(self, running: RunningWork) -> None:
        """Notes a response that runs here."""
        self._running[running.work.job.id] = running

    def end(self, running: RunningWork) -> None:
        """Forgets a response that runs here no more."""
        job_id = running.work.job.id
        if self._running.get(job_id) is running:
            del self._running[job_id]
            self._logs.pop(job_id, None)
        self.wake(job_id)

    def find(self, job_id: str) -> LiveLog | None:
        """Returns the log of a response of which there are events here."""
        log = self._logs.get(job_id)
        return log if log is not None and log.count else None

    def cancel(self, job_id: str) -> None:
        """Stops a response that runs here, which the store has been told of already."""
        running = self._running.get(job_id)
        if running is not None:
            running.note(WriteResult(is_ours=True, ends_as=JobState.CANCELLED))

    def watch(self, job_id: str, reader: LiveReader) -> Callable[[], None]:
        """Has `reader` told of news of a response; returns what ends that."""
        self._readers[job_id] = (*self._readers.get(job_id, ()), reader)

        def end() -> None:
            left = tuple(one for one in self._readers.get(job_id, ()) if one is not reader)
            if left:
                self._readers[job_id] = left
            else:
                self._readers.pop(job_id, None)

        return end

    def wake(self, job_id: str) -> None:
        """Wakes all who watch a response."""
        for reader in self._readers.get(job_id, ()):
            reader.wake()
