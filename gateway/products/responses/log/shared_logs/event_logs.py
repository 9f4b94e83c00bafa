"""The port of event logs: what a response has said so far, for whoever comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.products.jobs.model.job import ClaimedWork, WriteResult
from gateway.products.responses.rules.response_object.stored_response import LogPage, LogPart


class EventLogs(Protocol):
    """The logs of jobs of kind `response`, each of one generation at a time, from its event 0. All raise JobsUnavailable.

    A generation is known by the fence of the claim that writes it: the first part of a new one takes the place of all that an
    earlier one wrote, and an earlier one writes nothing any more. A log is forgotten with its job, or by `drop`.
    """

    @property
    def every_s(self) -> float:
        """Returns how long events may wait for others to be added with: short where other replicas read them."""
        ...

    async def append(self, work: ClaimedWork, part: LogPart) -> WriteResult:
        """Adds a part that follows the last one; the generation is the claim's fence. A part that is there already is left.

        A log that grows beyond the store's bound (16 MiB by default) is cut: its parts go, and later ones are not kept. So is
        one that would have a gap: a Redis that fails may lose the parts of its last second, which are not waited for. Where
        an append fails, the same part may be sent again, but not put together with others.
        """
        ...

    async def read(self, job_id: str, tenant: str, after: int, most_bytes: int = 1024 * 1024) -> LogPage | None:
        """Returns the parts with events behind `after` (-1: all), whole ones, at least one if there is any.

        None: there is no such job, or it is another tenant's.
        """
        ...

    async def drop(self, job_id: str) -> None:
        """Forgets the log of a job."""
        ...

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Has `wake` called, in the loop's thread, when a part of the job may have come, here or in another replica.

        Returns what ends that. A wake may be missed between replicas: readers look once a second besides.
        """
        ...
