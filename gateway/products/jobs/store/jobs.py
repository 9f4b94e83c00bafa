"""The port of durable work: jobs and their pieces, implemented in `store/jobs/` and wired together in `wiring.py`.

Unlike the store of answers, whose failures cost a cache hit, it says the truth or raises JobsUnavailable: what is accepted is
durable, and what is not durable is not accepted. Every method that writes about claimed work is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gateway.core.types.words import Lane
from gateway.features.runs.step.runs import Runs
from gateway.products.jobs.dead_letters.rules.job_ports_dead_letters import DeadLetters
from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import DeadLetter
from gateway.products.jobs.model.job import (
    Accepted,
    ClaimAsk,
    ClaimedWork,
    Job,
    JobDepth,
    JobEnd,
    JobError,
    JobFlag,
    JobPage,
    JobQuery,
    NewJob,
    StoredAnswer,
    WriteResult,
)
from gateway.products.jobs.model.lines import ChunkPlan, ChunkResult, LineResult
from gateway.products.jobs.store.files import JobFiles
from gateway.products.responses.log.shared_logs.event_logs import EventLogs
from gateway.products.responses.rules.response_object.kept_responses import KeptResponses


class JobStore(Protocol):
    """Jobs and their pieces of work. Every method but the last four raises JobsUnavailable.

    The store's own clock says what is due. A transition and all that follows from it (the next chunk, the end) is one step:
    a crash leaves either all of it or nothing. However a job ends (by `finish`, cancelled, past its deadline), what its
    `Following` names is accepted in the step of that end, its dead letter made, and its parent woken: a run that is parked is
    ready then, and one that a worker has is ready as soon as it would be parked, once for all that has happened meanwhile.
    """

    lease_s: float
    """A claim ends after so long without `renew`; infinite where a crash of the worker is a crash of the store."""
    promise: str
    """What is true when `accept` returns, for `/readyz`: such as "on disk"."""
    calm_s: float
    """Seconds after which what was written stays, even if the store dies: what it was made of may be removed then."""

    @property
    def dead(self) -> DeadLetters:
        """Returns the dead letters of this store."""
        ...

    @property
    def files(self) -> JobFiles:
        """Returns the files of this store."""
        ...

    @property
    def events(self) -> EventLogs:
        """Returns the logs of the responses that run here."""
        ...

    @property
    def responses(self) -> KeptResponses:
        """Returns the responses that are kept here."""
        ...

    @property
    def runs(self) -> Runs:
        """Returns the runs of this store."""
        ...

    @property
    def is_well(self) -> bool:
        """Tells whether jobs are expected to be kept: the last attempt to write did not fail."""
        ...

    async def accept(self, jobs: Sequence[NewJob]) -> Sequence[Accepted]:
        """Takes jobs, durably, all or none of them. Raises TooManyJobs above a bound of open jobs.

        A job whose id is there already is answered with the one that is there, so that an accept can be repeated. Jobs that
        have a parent count towards no bound: their run does.
        """
        ...

    async def claim(self, asks: Sequence[ClaimAsk]) -> Sequence[ClaimedWork]:
        """Gives pieces that are due to this worker: of the highest lane, in that the urgent, then by readiness.

        A job's first claim sets `started_at` and the state RUNNING. Pieces of jobs that are paused, or are to stop, are
        not given (but FINALISE always, and a run that is to stop: its worker sees to its children).
        """
        ...

    async def renew(self, works: Sequence[ClaimedWork]) -> Sequence[WriteResult]:
        """Extends claims, and says what has been asked of their jobs meanwhile."""
        ...

    async def give_back(
        self, work: ClaimedWork, *, run_at: float | None, error: JobError | None = None, is_attempt: bool
    ) -> WriteResult:
        """Ends a claim without a result: the piece is ready again, behind all others, from `run_at` (None: now) on.

        `is_attempt` counts it as an attempt of the job. `claims` goes back by one: what counts there are claims whose
        workers were not heard of again. Where the job is to stop, and no piece of it is claimed any more, a `call` ends so
        and a batch goes on to FINALISE.
        """
        ...

    async def park(self, work: ClaimedWork, children: Sequence[NewJob], marks: Mapping[str, object]) -> WriteResult:
        """Ends the claim of a run, which waits for its children from now on; these are accepted, whatever the bounds.

        Marks are added as by `note`. Children whose ids are there already stay as they are. Where one has ended since the
        claim, or the run was told to stop, it is ready at once instead; what was told to stop since takes no new children.
        Raises ValueError for a child that is not this run's, or another tenant's.
        """
        ...

    async def begin_lines(self, work: ClaimedWork, plan: ChunkPlan, marks: Mapping[str, object]) -> WriteResult:
        """Ends the claim of CHECK: the batch is in stage RUN, and its first `plan.parallel` chunks are ready."""
        ...

    async def commit(
        self, work: ClaimedWork, results: Sequence[LineResult], dead: Sequence[DeadLetter] = ()
    ) -> WriteResult:
        """Keeps the results of lines of a claimed chunk, durably; of a line that has one the first stays, and counts.

        `dead` are letters about some of these lines: each is kept if the result of its line is. FINALISE of a batch that
        stopped early may commit, too, what came late for lines without a result in `open_results`, which has it from then on.
        """
        ...

    async def results(self, work: ClaimedWork) -> Sequence[LineResult]:
        """Returns what was committed for a claimed chunk so far, by whomever, in the order of lines."""
        ...

    async def note(self, work: ClaimedWork, marks: Mapping[str, object]) -> WriteResult:
        """Adds to the marks of a claimed piece's job, durably; None takes a mark away. The claim goes on.

        So a worker says what it is about to do, such as something that a crash must not have it do twice.
        """
        ...

    async def complete_chunk(self, work: ClaimedWork, result: ChunkResult) -> WriteResult:
        """Ends the claim of a chunk whose lines all have results, which its blobs hold from now on; the rows go.

        The next chunk is ready, or FINALISE when it was the last, or the job is to stop and nothing else of it is claimed.
        """
        ...

    async def chunk_results(self, job_id: str) -> Sequence[ChunkResult]:
        """Returns the chunks of a batch that are complete, in order."""
        ...

    async def open_results(self, work: ClaimedWork) -> Sequence[LineResult]:
        """Returns the results of lines whose chunks are not complete, for FINALISE of a batch that stopped early."""
        ...

    async def finish(self, work: ClaimedWork, end: JobEnd, following: Sequence[NewJob] = ()) -> WriteResult:
        """Ends a job, and accepts those that follow from its end, in one step."""
        ...

    async def flag(self, job_id: str, tenant: str | None, flag: JobFlag) -> Job | None:
        """Asks something of a job; None: there is none, or it is another tenant's. An ended job stays as it is.

        CANCEL: a `call` that nobody runs ends at once; otherwise `ends_as` is set, its time is the mark `cancelling_at`, a
        batch of which nothing is claimed goes on to FINALISE, and a run that has begun is ready at once. A deadline does the
        same. PAUSE and RESUME withhold its pieces from claims.
        """
        ...

    async def find(self, job_id: str, tenant: str | None) -> Job | None:
        """Returns a job; None: there is none, or it is another tenant's."""
        ...

    async def answer(self, job_id: str, tenant: str | None) -> StoredAnswer | None:
        """Returns the stored answer of a `call` that has one."""
        ...

    async def list_jobs(self, query: JobQuery) -> JobPage:
        """Returns a page of jobs, newest first; an empty one behind a job that is not there, or is another tenant's."""
        ...

    async def identity(self) -> str:
        """Returns what tells this store from all others, always the same: letters and digits."""
        ...

    async def forget_ended(self, before: float, most: int) -> int:
        """Forgets jobs that ended before `before`, with their answers; returns how many. Their files live on.

        Not those whose dead letters can be replayed, nor children of a run that has not ended.
        """
        ...

    def on_ready(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, called in the loop's thread when work became ready here or elsewhere."""
        ...

    def depth(self) -> Mapping[tuple[str, Lane, str], JobDepth]:
        """Returns what waits and runs, by (segment, lane, "ready" | "later" | "claimed"), as last known.

        Pieces of jobs that are paused count as "later".
        """
        ...

    def tick(self) -> None:
        """Is called about once a second: lets deadlines pass, and does a little of what else is due."""
        ...

    async def aclose(self) -> None:
        """Writes all that was taken, and takes nothing more."""
        ...
