"""The ports of durable work: jobs, files and blobs, implemented in `store/` and wired together in `wiring.py`.

Unlike the store of answers, whose failures cost a cache hit, these say the truth or raise JobsUnavailable: what is accepted is
durable, and what is not durable is not accepted. Every method that writes about claimed work is fenced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from gateway.policy.jobs.dead_letters import DeadGroup, DeadLetter, LetterPage, ReplayResult
from gateway.policy.jobs.job import (
    Accepted,
    ChunkPlan,
    ChunkResult,
    ClaimAsk,
    ClaimedWork,
    FileQuery,
    Job,
    JobDepth,
    JobEnd,
    JobError,
    JobFlag,
    JobPage,
    JobQuery,
    LineResult,
    NewJob,
    StoredAnswer,
    StoredFile,
    WriteResult,
)
from gateway.policy.webhooks.public_address import PublicUrl
from gateway.words import Lane


class DeadLetters(Protocol):
    """The dead letters of a store of jobs. Every method raises JobsUnavailable.

    They come by the ends of jobs (`letters.letter_of_job`) and by `commit`. A job whose letter `holds_job` is not forgotten.
    """

    async def groups(self, samples: int, after: str | None = None) -> Sequence[DeadGroup]:
        """Returns the largest groups, in that order, with their newest `samples` letters; or the next by id, `after` one."""
        ...

    async def page(self, page: LetterPage) -> Sequence[DeadLetter]:
        """Returns the letters of a group that are open, by (`at`, id)."""
        ...

    async def find(self, letter_id: str) -> DeadLetter | None:
        """Returns a letter, also one that was replayed with success."""
        ...

    async def payload(self, letter_id: str) -> bytes | None:
        """Returns the payload of a letter's job; None: it is not kept, or the letter is about a line."""
        ...

    async def replay(self, work: ClaimedWork, letter_id: str, number: int, new: NewJob) -> ReplayResult:
        """Marks a letter as being replayed for the `number`-th time and accepts its new job, whatever the bounds, in one step.

        `work` is the claim of the replay, whose job's `tally.total` grows by one with it. The end of the new job, which names
        the letter in its `about`, writes the outcome into the letter, in the step of that end, however it comes.
        """
        ...

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Removes letters; returns how many there were."""
        ...

    async def trim(self, before: float, max_bytes: int, most: int) -> int:
        """Removes letters with an `at` before `before`, and of the oldest others the payloads, until the rest are within
        `max_bytes`; at most `most` letters, and returns how many.
        """
        ...


class JobStore(Protocol):
    """Jobs and their pieces of work. Every method but the last four raises JobsUnavailable.

    The store's own clock says what is due. A transition and all that follows from it (the next chunk, the end) is one step:
    a crash leaves either all of it or nothing. However a job ends (by `finish`, cancelled, past its deadline), what its
    `Following` names is accepted in the step of that end, and its dead letter made.
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
    def is_well(self) -> bool:
        """Tells whether jobs are expected to be kept: the last attempt to write did not fail."""
        ...

    async def accept(self, jobs: Sequence[NewJob]) -> Sequence[Accepted]:
        """Takes jobs, durably, all or none of them. Raises TooManyJobs above a bound of open jobs.

        A job whose id is there already is answered with the one that is there, so that an accept can be repeated.
        """
        ...

    async def claim(self, asks: Sequence[ClaimAsk]) -> Sequence[ClaimedWork]:
        """Gives pieces that are due to this worker: of the highest lane, in that the urgent, then by readiness.

        A job's first claim sets `started_at` and the state RUNNING. Pieces of jobs that are paused, or are to stop, are
        not given (but FINALISE always).
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

        CANCEL: a `call` that nobody runs ends at once; otherwise `ends_as` is set, its time is the mark `cancelling_at`, and
        a batch of which nothing is claimed goes on to FINALISE. PAUSE and RESUME withhold its pieces from claims.
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

    async def add_file(self, file: StoredFile) -> None:
        """Keeps a file, durably; one with the same id is replaced, but one that was removed stays so: the blob is garbage."""
        ...

    async def find_file(self, file_id: str, tenant: str) -> StoredFile | None:
        """Returns a file; None: there is none, it has expired, or it is another tenant's."""
        ...

    async def list_files(self, query: FileQuery) -> tuple[Sequence[StoredFile], bool]:
        """Returns a page of files, and whether there are more; it goes on behind a file that was removed meanwhile, too."""
        ...

    async def remove_file(self, file_id: str, tenant: str) -> bool:
        """Takes a file away from its tenant; its blob stays while a job that is not at its end reads it (`NewJob.reads`)."""
        ...

    async def file_bytes(self, tenant: str | None) -> int:
        """Returns the bytes of all files that a tenant has; None: of everybody's."""
        ...

    async def find_garbage(self, most: int) -> Sequence[str]:
        """Returns names of blobs of removed, replaced and expired files, of chunks of ended jobs, until forgotten."""
        ...

    async def forget_garbage(self, names: Sequence[str]) -> None:
        """Forgets blobs that `find_garbage` has named, once they are removed."""
        ...

    async def used_blobs(self, names: Sequence[str]) -> Collection[str]:
        """Returns those of the blobs that are a file's, are read by a job that has not ended, or are garbage as yet."""
        ...

    async def identity(self) -> str:
        """Returns what tells this store from all others, always the same: letters and digits."""
        ...

    async def forget_ended(self, before: float, most: int) -> int:
        """Forgets jobs that ended before `before`, with their answers; returns how many. Their files live on.

        Not those whose dead letters can be replayed.
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


class Unreachable(Exception):
    """There was no HTTP answer, or none in time. The message says why, and names no path."""


class FetchRefused(Unreachable):
    """The guard lets no request out to that address; nothing was sent."""


class OutwardAnswer(NamedTuple):
    """What is heard of an answer from outside."""

    status: int
    retry_after: bytes = b""
    """The header of that name."""


class Outward(Protocol):
    """Requests to addresses that are no provider's."""

    async def post(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, timeout_s: float
    ) -> OutwardAnswer:
        """Posts a body; a redirect is an answer like any other. Raises Unreachable. Cancelling ends the request."""
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


class FetchGuard(Protocol):
    """Says which addresses a URL that a caller named may lead to; whoever fetches such a URL asks it twice."""

    def read(self, url: str) -> PublicUrl:
        """Returns the URL's parts, of which the connection is made. Raises FetchRefused."""
        ...

    def check(self, addresses: Sequence[str]) -> None:
        """Looks at all addresses that the URL's name stands for, one of which is connected to. Raises FetchRefused."""
        ...


class BlobWriter(Protocol):
    """A blob in the making. It is nobody's until `commit`."""

    async def write(self, data: bytes) -> None:
        """Adds bytes; may wait for the disk. Raises JobsUnavailable, after which only `abort` may follow."""
        ...

    async def commit(self) -> int:
        """Gives the blob its name, durably, in place of an older one; returns its bytes. Raises JobsUnavailable."""
        ...

    async def abort(self) -> None:
        """Throws away what was written; may follow `commit`, and then does nothing."""
        ...


class Blobs(Protocol):
    """Named bytes that outlive the process. Names are made by us: letters, digits, `-`, `_`, `.` and `/`."""

    async def writer(self, name: str) -> BlobWriter:
        """Begins a blob. Raises JobsUnavailable, also where less than the free space to be kept is left."""
        ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` on, at most `length` of them. Raises JobsUnavailable; FileNotFoundError if gone."""
        ...

    async def remove(self, names: Sequence[str]) -> None:
        """Removes blobs, those that are there. Raises JobsUnavailable."""
        ...

    async def belong_to(self, store: str) -> bool:
        """Tells whether all blobs are those of the store of this identity: no other has ever asked.

        False also where they are not to be searched. Raises JobsUnavailable.
        """
        ...

    def old_names(self, least_age_s: float, most: int) -> AsyncIterator[Sequence[str]]:
        """Yields the names of all blobs that were written so long ago, at most so many at a time. Raises JobsUnavailable."""
        ...

    async def remove_below(self, folder: str) -> None:
        """Removes all blobs whose names begin with `folder` and a slash, also those nobody knows. Raises JobsUnavailable."""
        ...

    async def aclose(self) -> None:
        """Ends what is under way."""
        ...
