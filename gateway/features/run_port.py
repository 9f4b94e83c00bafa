"""What durable work says of the runs of workflows, and what it needs of them: plain data, and `RunPort`.

Jobs, batches and pipelines know no more of runs than stands here; a gateway without runs has the port's own methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from gateway.core.call import Call, Slot
from gateway.core.errors import InvalidRequest

T = TypeVar("T")

NO_JOB: Final[Slot[Callable[[str, str], InvalidRequest]]] = Slot("no job")
"""Set on a call whose place no job may take: makes the error for what asks for one, and in which parameter."""


class RunWords(NamedTuple):
    """The workflow, run and task that a call names; empty: none."""

    workflow: str = ""
    run: str = ""
    task: str = ""


class RunEnd(NamedTuple):
    """How the run of a pipeline has ended."""

    at: float
    """When, in wall-clock seconds."""
    workflow: str
    """The pipeline, as a model."""
    outcome: str
    """One of `succeeded`, `failed` and `cancelled`."""


class ServedLines(NamedTuple):
    """What lines of a batch came to that a provider's own Batch API has served: no call of the gateway's was made of them."""

    at: float
    """When that became known, in wall-clock seconds."""
    words: RunWords
    """The part of a run that they are."""
    costs_usd: Sequence[float]
    """The cost of each."""
    failed: int
    is_last_ok: bool
    input_tokens: int
    output_tokens: int


class RunPort:
    """Runs as durable work has them. These methods are those of a gateway that counts none."""

    def read_words(self, headers: Mapping[bytes, bytes]) -> RunWords:
        """Returns what a request says of its run. Raises InvalidRequest for a name that is none."""
        return RunWords()

    def words_of(self, call: Call) -> RunWords | None:
        """Returns which part of which run a call is; None: of none."""
        return None

    def join(self, call: Call, words: RunWords, lost_tries: int) -> None:
        """Makes a call that a job makes the part of the run that its words name.

        `lost_tries` is the number of earlier tries that may have been in flight when their process died.
        """

    def join_as_step(self, call: Call, words: RunWords, usd_per_run: float | None, lost_tries: int) -> None:
        """Does the same with the call for a step of a pipeline, whose run may cost at most `usd_per_run`."""

    def run_ended(self, tenant: str, run: str, end: RunEnd) -> None:
        """Adds how a run of a pipeline has ended."""

    def lines_served(self, tenant: str, run: str, lines: ServedLines) -> None:
        """Adds lines of a batch to their run."""

    def write_behind(self, tenant: str, run: str, write: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Writes behind the sum of a run, so that whoever finds what is written finds what it has cost; returns its result."""
        return write()


NO_RUNS: Final = RunPort()
