"""What the worker needs of others: calls made of stored requests, and somebody who counts."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from gateway.call import Call, Reply
from gateway.policy.jobs.job import Job, JobState, LineResult
from gateway.words import Lane


class StoredRequest(NamedTuple):
    """A request as a job keeps it. No credential: the job runs on the keys of the config."""

    id: str
    """Of the call that is made of it, for logs and traces."""
    endpoint: str
    """Such as `/v1/chat/completions`."""
    body: bytes
    headers: Sequence[tuple[bytes, bytes]]
    """The caller's headers that may go to a provider."""
    key: str
    """The name of the key that pays."""
    tenant: str
    lane: Lane
    deadline_s: float
    """From now: the job's own time that is left."""
    group_most: int = 0
    """So many inputs may go to a provider together with its own; 0: as its model has it."""
    parsed: dict[str, Any] | None = None
    """The body, read, where it is known to be one that all parsers read alike: then nobody reads it again."""


class MakeCall(Protocol):
    """Makes calls of stored requests, under the policy that is in force when they run."""

    async def __call__(self, request: StoredRequest) -> Call:
        """Returns the call. Raises GatewayError as the edge would, also when the key is gone or may not use the model."""
        ...


class ServeCall(Protocol):
    """The pipeline's `handle`."""

    def __call__(self, call: Call) -> Coroutine[Any, Any, Reply]:
        """Serves the call. Raises GatewayError."""
        ...


class JobMeter(Protocol):
    """The sink of what is counted of jobs. Every method is cheap and synchronous, and never raises."""

    def began(self, job: Job, waited_s: float) -> None:
        """Counts a job whose first piece has begun, so long after it could have."""
        ...

    def ended(self, job: Job, state: JobState, ran_s: float) -> None:
        """Counts a job that has ended, so long after it began."""
        ...

    def tried_again(self, error_class: str) -> None:
        """Counts an attempt that came to nothing, after which there is another."""
        ...

    def lines(self, results: Sequence[LineResult]) -> None:
        """Counts lines of batches whose results were committed."""
        ...

    def claim_lost(self) -> None:
        """Counts a claim that ended while its worker still worked on it."""
        ...

    def braked(self, error_class: str) -> None:
        """Counts a batch that was slowed down to single tries."""
        ...

    def degraded(self, code: str) -> None:
        """Counts a call that became a job where it would have been refused with this code."""
        ...

    def delivered(self, endpoint: str, result: str) -> None:
        """Counts an attempt to tell a webhook something; `endpoint` is its name in the config."""
        ...
