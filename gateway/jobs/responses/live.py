"""The responses that run in this process: their last events, for readers here, and a way to stop them at once.

Readers elsewhere, and those who come late, read the log in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from gateway.jobs.running import RunningWork
from gateway.policy.jobs.job import JobState, WriteResult

MOST_BYTES = 256 * 1024
"""Of events that are in the log, too: whoever is slower reads them there."""


class LiveLog:
    """The events of one generation, from some event on, as they come."""

    def __init__(self, generation: int, wake: Callable[[], None]) -> None:
        self.generation = generation
        self._wake = wake
        self._events: deque[bytes] = deque()
        self._first = 0
        self._bytes = 0
        self.logged = 0
        """So many events are in the log."""

    @property
    def count(self) -> int:
        """Returns how many events there have been."""
        return self._first + len(self._events)

    def add(self, events: Sequence[bytes]) -> None:
        """Adds events, and lets the oldest go that are in the log."""
        self._events.extend(events)
        self._bytes += sum(map(len, events))
        while self._bytes > MOST_BYTES and self._first < self.logged:
            self._bytes -= len(self._events.popleft())
            self._first += 1
        self._wake()

    def behind(self, after: int) -> bytes | None:
        """Returns the events behind the one at this place (-1: all); None: some of them are in the log only."""
        skipped = after + 1 - self._first
        return None if skipped < 0 else b"".join(islice(self._events, skipped, None))


class LiveLogs:
    """All of them, by the ids of their jobs."""

    def __init__(self) -> None:
        self._logs: dict[str, LiveLog] = {}
        self._running: dict[str, RunningWork] = {}
        self._wakes: dict[str, list[Callable[[], None]]] = {}

    def begin(self, running: RunningWork, generation: int) -> LiveLog:
        """Returns the log of a run of the model that begins."""
        job_id = running.work.job.id
        log = self._logs[job_id] = LiveLog(generation, lambda: self.wake(job_id))
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

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Has `wake` called when there is news of a response; returns what ends that."""
        self._wakes.setdefault(job_id, []).append(wake)

        def end() -> None:
            wakes = self._wakes.get(job_id, [])
            if wake in wakes:
                wakes.remove(wake)
            if not wakes:
                self._wakes.pop(job_id, None)

        return end

    def wake(self, job_id: str) -> None:
        """Wakes all who watch a response."""
        for wake in tuple(self._wakes.get(job_id, ())):
            wake()
