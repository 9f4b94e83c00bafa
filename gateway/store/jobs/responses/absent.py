"""Logs and responses of a store that cannot keep them yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.policy.jobs.errors import JobsUnavailable
from gateway.policy.jobs.job import ClaimedWork, WriteResult
from gateway.policy.responses.stored_response import LogPage, LogPart, StoredResponse

_WHY = "Responses cannot be kept now: this store of jobs does not keep them."


class AbsentEventLogs:
    """Implements `gateway.job_ports.event_logs.EventLogs`."""

    async def append(self, work: ClaimedWork, part: LogPart) -> WriteResult:
        """Raises JobsUnavailable."""
        raise JobsUnavailable(_WHY)

    async def read(self, job_id: str, tenant: str, after: int, most_bytes: int = 1024 * 1024) -> LogPage | None:
        """Raises JobsUnavailable."""
        raise JobsUnavailable(_WHY)

    async def drop(self, job_id: str) -> None:
        """Raises JobsUnavailable."""
        raise JobsUnavailable(_WHY)

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Watches nothing."""
        return lambda: None


class AbsentKeptResponses:
    """Implements `gateway.job_ports.kept_responses.KeptResponses`."""

    early = 0

    async def put(self, response: StoredResponse) -> None:
        """Raises JobsUnavailable."""
        raise JobsUnavailable(_WHY)

    async def find(self, response_id: str, tenant: str) -> StoredResponse | None:
        """Raises JobsUnavailable."""
        raise JobsUnavailable(_WHY)

    async def chain(
        self, response_id: str, tenant: str, most: int, most_bytes: int = 8 * 1024 * 1024
    ) -> Sequence[StoredResponse]:
        """Raises JobsUnavailable."""
        raise JobsUnavailable(_WHY)

    async def remove(self, response_id: str, tenant: str, *, is_expected: bool = False) -> bool:
        """Raises JobsUnavailable."""
        raise JobsUnavailable(_WHY)

    async def trim(self, most: int) -> int:
        """Forgets nothing."""
        return 0
