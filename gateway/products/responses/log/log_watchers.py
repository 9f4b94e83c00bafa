"""Who wants to hear of new events in a log, in this process."""

from __future__ import annotations

from collections.abc import Callable


class LogWatchers:
    """Wakes readers by the ids of their jobs, in the loop's thread."""

    __slots__ = ("_wakes",)

    def __init__(self) -> None:
        self._wakes: dict[str, list[Callable[[], None]]] = {}

    def has(self, job_id: str) -> bool:
        """Tells whether somebody watches a job."""
        return job_id in self._wakes

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Has `wake` called at each `wake` of the job; returns what ends that, which may be called again."""
        self._wakes.setdefault(job_id, []).append(wake)
        left = [wake]

        def end() -> None:
            if left:
                there = self._wakes[job_id]
                there.remove(left.pop())
                if not there:
                    del self._wakes[job_id]

        return end

    def wake(self, job_id: str) -> None:
        """Wakes all who watch a job."""
        for wake in tuple(self._wakes.get(job_id, ())):
            wake()

    def wake_all(self) -> None:
        """Wakes everybody: something may have been missed."""
        for job_id in tuple(self._wakes):
            self.wake(job_id)
