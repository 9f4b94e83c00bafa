"""What the worker needs of others: calls made of stored requests, somebody who counts, and providers' own Batch APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gateway.core.call import Call, Reply
from gateway.core.snapshot.snapshot.provider import Provider
from gateway.core.snapshot.snapshot.snapshot import Key
from gateway.core.types.words import Lane
from gateway.features.runs.rules.run import RunChange
from gateway.features.runs.rules.workflow import RunWords
from gateway.products.batches.native.formats.remote import RemoteBatch
from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import DeadGroup
from gateway.products.jobs.model.job import Job, JobState
from gateway.products.jobs.model.lines import LineResult

TellRun = Callable[[str, str, RunChange], None]
"""Hears of a run: its tenant, its id, and what is to be added to it."""


def tell_nobody(_tenant: str, _run: str, _change: RunChange) -> None:
    """Counts nothing."""


STRICT = b"x-gateway-strict", b"true"
"""Goes with the headers of a stored call that may lose nothing on its way; it is not for providers."""


def headers_to_keep(call: Call) -> list[tuple[str, str]]:
    """Returns the headers of a call as a job keeps them."""
    headers = [*call.headers, STRICT] if call.model.on_loss == "refuse" else call.headers
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


class StoredRequest(NamedTuple):
    """A request as a job keeps it. No credential: the job runs on the keys of the config."""

    id: str
    """Of the call that is made of it, for logs and traces."""
    endpoint: str
    """Such as `/v1/chat/completions`."""
    body: bytes
    headers: Sequence[tuple[bytes, bytes]]
    """The caller's headers that may go to a provider, and `STRICT`, which may not."""
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
    idempotency_key: bytes | None = None
    """It is served under the record of this key, as if its caller had sent it again: whoever runs first pays."""
    part: RunWords = RunWords()
    """Which part of which run its call is."""
    query: bytes = b""
    """What the caller had behind the path, which goes to a provider, too."""
    step: StepOfRun | None = None
    """None: it is no step."""
    is_held: bool = False
    """Nobody reads its stream as it comes: it is to be checked before anything is kept of it, whatever its model's rule is."""


class StepOfRun(NamedTuple):
    """The step of a pipeline's run that a request is made for."""

    run: str
    workflow: str
    """The pipeline, as a model."""
    step: str
    usd_per_run: float | None
    output: Mapping[str, Any] | None
    """The rule for its answer, as in the pipeline's source; None: whatever its model's policy says."""


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

    def paid(self, model: str, target: str, key: str, results: Sequence[LineResult]) -> None:
        """Counts what lines have used and cost at a provider's own Batch API, all by their names in the config."""
        ...

    def lost(self, target: str, gaps: Mapping[tuple[str, str], int]) -> None:
        """Counts fields of lines that did not reach a provider's own Batch API as they were said, by field and how."""
        ...

    def dead(self, groups: Sequence[DeadGroup], now: float) -> None:
        """Sets how many dead letters there are; `now` is wall-clock seconds."""
        ...

    def replayed(self, error_class: str, *, is_ok: bool) -> None:
        """Counts the end of a dead letter's replay."""
        ...


class NativeAccounts(Protocol):
    """What keys may spend, where no call is made of it."""

    def is_spent(self, key: Key) -> bool:
        """Tells whether the key has nothing left of its budget."""
        ...

    def paid(self, key: Key, usd: float) -> None:
        """Books what was paid on the key's account."""
        ...

    @property
    def outlives(self) -> bool:
        """Tells whether what is booked is known to whoever comes after this process."""
        ...

    async def charge(self, key: Key, usd: float) -> int | None:
        """Books ahead what is going to be paid; returns the day it counts for. None: the budget has not so much left."""
        ...

    def correct(self, key: str, day: int, usd: float) -> None:
        """Corrects what was charged on a day by so much (below 0: less was spent). A day that is over gives nothing back."""
        ...


class ProviderBatches(Protocol):
    """Providers' own Files and Batch APIs, with the credentials of the config.

    Every method raises ProviderRefused, or Unreachable where there was no answer, or one that says nothing: then what was
    asked may have been done.
    """

    async def upload(self, provider: Provider, filename: str, size: int, content: AsyncIterator[bytes]) -> str:
        """Uploads the input file of a batch, of so many bytes; returns its id."""
        ...

    async def find_file(self, provider: Provider, filename: str, not_before: float) -> str | None:
        """Returns the id of the input file of that name; older ones than `not_before` are not looked at."""
        ...

    async def create(
        self, provider: Provider, file_id: str, endpoint: str, part: str, may_send: Callable[[], bool]
    ) -> RemoteBatch:
        """Makes a batch that can be told by `part`, unless `may_send`, asked as the last thing before, says no.

        Raises NeverSent where nothing was asked of the provider.
        """
        ...

    async def submit(
        self, provider: Provider, size: int, content: AsyncIterator[bytes], may_send: Callable[[], bool]
    ) -> RemoteBatch:
        """Makes a batch of lines that go along, `size` bytes of them; `may_send` is asked before each piece is sent.

        Raises NeverSent where not all of them were: then there is no batch.
        """
        ...

    async def find_submitted(
        self,
        provider: Provider,
        is_ours: Callable[[str], bool],
        lines: int,
        others: Collection[str],
        not_before: float,
    ) -> RemoteBatch | None:
        """Returns the batch of so many lines that went along, by their names; `others` are known to be somebody else's.

        Raises NotToldYet where one that may be it tells nothing of its lines yet.
        """
        ...

    async def find_batch(self, provider: Provider, part: str, file_id: str, not_before: float) -> RemoteBatch | None:
        """Returns the batch that was made for `part`, or of that file where the provider keeps no metadata."""
        ...

    async def look(self, provider: Provider, batch_id: str) -> RemoteBatch:
        """Returns a batch as it is now."""
        ...

    async def cancel(self, provider: Provider, batch_id: str) -> None:
        """Asks a batch to stop."""
        ...

    def content(self, provider: Provider, file_id: str) -> AsyncIterator[bytes]:
        """Yields the bytes of a file; what comes before an error is good."""
        ...

    async def remove(self, provider: Provider, file_id: str) -> None:
        """Removes a file; one that is not there is removed."""
        ...
