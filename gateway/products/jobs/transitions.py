"""What becomes of a job and its pieces, whichever store keeps them, without storage.

First the small steps from one job to the next, which every store takes; then the pieces with their job as a whole, which the
store in Redis reads, changes here and writes. SQLite does the same with the pieces in SQL (`sqlite.SqlitePieces`).
Invariants: an end never changes; the revision grows with every step that changes a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal, NamedTuple

from gateway.products.jobs.dead_letters.rules import with_failure
from gateway.products.jobs.model import (
    ECHO,
    FINALISE,
    REQUESTED,
    RUN_PIECE,
    STATUS,
    ChunkPlan,
    ChunkResult,
    Job,
    JobEnd,
    JobError,
    JobFlag,
    JobKind,
    JobQuery,
    JobState,
    LineResult,
    NewJob,
    Stage,
    StoredAnswer,
    Tally,
    TooManyJobs,
    WriteResult,
    job_status,
)

PieceState = Literal["ready", "later", "claimed", "withheld"]
"""A piece is claimable, waits for its time, is with a worker, or is withheld because its job is paused or to stop."""

NOT_OURS = WriteResult(is_ours=False)
MOST_GROUPS = 1000
"""The groups of dead letters that are listed."""
GROUPS_AT_ONCE = 250
"""The groups that one step of a walk through all of them has."""
PAYLOAD_KEPT = (JobState.FAILED, JobState.EXPIRED)
"""The payloads of jobs that end so are kept until the jobs are forgotten, so that they can be run again."""


def keeps_payload(job: Job, state: JobState) -> bool:
    """Whether the payload of a job that ends so is kept; nobody runs a response again, whose input is kept elsewhere."""
    return state in PAYLOAD_KEPT and job.kind is not JobKind.RESPONSE


class OpenBounds(NamedTuple):
    """How many jobs may be open, which are those that have not ended."""

    in_all: int = 1_000_000
    per_tenant: int = 100_000

    def refusal(self, open_in_all: int, open_of_tenant: int) -> TooManyJobs | None:
        """Returns the refusal of jobs with which so many would be open; None: they may be."""
        if open_of_tenant > self.per_tenant:
            return TooManyJobs(
                f"This tenant may have {self.per_tenant} open jobs. Wait until some have ended, or cancel some.",
                limit="jobs per tenant",
            )
        if open_in_all > self.in_all:
            return TooManyJobs(
                f"This gateway takes {self.in_all} open jobs. Wait until some have ended.", limit="jobs in all"
            )
        return None


def changed(job: Job, **fields: Any) -> Job:
    """Returns the job with other values, one revision further; the same job where nothing differs."""
    if all(getattr(job, name) == value for name, value in fields.items()):
        return job
    return replace(job, **fields, revision=job.revision + 1)


def unlike(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Returns those that repeat none of those before them: neither its id nor one of its keys."""
    names: set[str | bytes] = set()
    found = []
    for new in jobs:
        own: set[str | bytes] = {new.job.id, new.dedupe_key, new.debounce_key}
        own.discard(b"")
        if not own & names:
            found.append(new)
        names |= own
    return found


def taken_in(job: Job, now: float) -> Job:
    """Returns a new job as a store keeps it: by the store's clock it is due or not."""
    state = JobState.SCHEDULED if job.run_at > now else JobState.QUEUED
    return job if job.state is state else replace(job, state=state)


def debounced(old: Job, new: NewJob, now: float) -> Job:
    """Returns the job that takes the place of a scheduled one with the same debounce key, and keeps its id."""
    run_at = min(now + new.debounce_wait_s, old.created_at + new.debounce_max_s)
    job = replace(
        new.job,
        id=old.id,
        created_at=old.created_at,
        run_at=run_at,
        is_paused=old.is_paused,
        revision=old.revision + 1,
    )
    return taken_in(job, now)


def begun(job: Job, plan: ChunkPlan, marks: Mapping[str, object]) -> Job:
    """Returns a batch that has been checked."""
    tally = job.tally._replace(total=plan.total)
    return changed(job, stage=Stage.RUN, marks={**job.marks, **marks}, tally=tally)


def due(job: Job) -> Job:
    """Returns the job once its time has come."""
    return changed(job, state=JobState.QUEUED) if job.state is JobState.SCHEDULED else job


def started(job: Job, now: float) -> Job:
    """Returns the job after a claim: the first one starts it."""
    if job.state is JobState.RUNNING:
        return job
    return changed(job, state=JobState.RUNNING, started_at=now if job.started_at is None else job.started_at)


def tried(job: Job, error: JobError | None, *, is_attempt: bool) -> Job:
    """Returns the job after a claim that came to nothing."""
    marks = with_failure(job.marks, error) if error is not None and is_attempt else job.marks
    return changed(job, attempts=job.attempts + is_attempt, last_error=error or job.last_error, marks=marks)


def stopping(job: Job, ends_as: JobState, now: float) -> Job:
    """Returns the job once it is to stop; that it is to be cancelled has its time in `marks`, as a batch shows it."""
    marks = {**job.marks, "cancelling_at": now} if ends_as is JobState.CANCELLED else job.marks
    return changed(job, ends_as=ends_as, marks=marks)


def noted(job: Job, marks: Mapping[str, object]) -> Job:
    """Returns the job with these marks, without those that are None."""
    merged = {**job.marks, **marks}
    return changed(job, marks={name: mark for name, mark in merged.items() if mark is not None})


def fitting(run: Job, children: Sequence[NewJob]) -> Sequence[NewJob]:
    """Returns the children of a run. Raises ValueError where one is another's, or another tenant's."""
    for new in children:
        if new.job.parent != run.id or new.job.tenant != run.tenant:
            raise ValueError(f"{new.job.id} is no child of {run.id}")
    return children


def parked(job: Job) -> Job:
    """Returns a run that waits for its children."""
    return changed(job, state=JobState.WAITING)


def woken(job: Job) -> Job:
    """Returns a run that has waited, and is to be looked at."""
    return changed(job, state=JobState.RUNNING)


def goes_on_to_stop(job: Job) -> bool:
    """Returns whether a job that is to stop does not end by that: its worker ends it, once it has seen to its children."""
    return job.kind is JobKind.RUN and job.started_at is not None


def one_more(job: Job) -> Job:
    """Returns a redrive that has begun one more job."""
    return changed(job, tally=job.tally._replace(total=job.tally.total + 1))


def finalising(job: Job) -> Job:
    """Returns a batch whose lines are done, or shall not be."""
    return changed(due(job), stage=Stage.FINALISE)


def ended(job: Job, end: JobEnd, now: float) -> Job:
    """Returns the job at its end."""
    marks = with_failure(job.marks, end.error) if end.error is not None and job.kind is not JobKind.BATCH else job.marks
    about = job.about
    if job.kind is JobKind.RESPONSE and STATUS in end.marks:
        # a response that is kept no longer repeats what the caller wrote: that goes with it
        about = {**about, REQUESTED: {**about.get(REQUESTED, {}), ECHO: {}}}
    return changed(
        job,
        state=end.state,
        ended_at=now,
        attempts=job.attempts + end.is_attempt,
        last_error=end.error or job.last_error,
        tally=end.tally or job.tally,
        marks={**marks, **end.marks},
        about=about,
    )


def counted(tally: Tally, results: Sequence[LineResult]) -> Tally:
    """Returns the tally with these results in it, which have not been counted before."""
    failed = sum(result.is_failed for result in results)
    return tally._replace(
        completed=tally.completed + len(results) - failed,
        failed=tally.failed + failed,
        input_tokens=tally.input_tokens + sum(result.input_tokens for result in results),
        cached_tokens=tally.cached_tokens + sum(result.cached_tokens for result in results),
        output_tokens=tally.output_tokens + sum(result.output_tokens for result in results),
        cost_usd=tally.cost_usd + sum(result.cost_usd for result in results),
        reasoning_tokens=tally.reasoning_tokens + sum(result.reasoning_tokens for result in results),
    )


def is_past_stopping(job: Job) -> bool:
    """Returns whether a deadline has no say any more: the job has ended, is to stop, or is being put together."""
    return job.state.is_end or job.ends_as is not None or (job.kind is JobKind.BATCH and job.stage is Stage.FINALISE)


def is_overdue(job: Job, now: float) -> bool:
    """Returns whether the deadline has passed of a job with which it has a say."""
    return job.deadline <= now and not is_past_stopping(job)


def is_chunk(job: Job, piece: int) -> bool:
    """Returns whether a piece is a chunk of a batch."""
    return job.kind is JobKind.BATCH and piece >= 0


def waiting(job: Job, piece: int, ready_at: float, now: float) -> PieceState:
    """Returns the state of a piece that nobody has."""
    if job.kind is JobKind.RUN:  # one that is to stop is looked at all the same: it ends its children
        is_withheld = job.is_paused and job.ends_as is None
    else:
        is_withheld = piece != FINALISE and (job.is_paused or job.ends_as is not None)
    if is_withheld:
        return "withheld"
    return "later" if ready_at > now else "ready"


def written(job: Job) -> WriteResult:
    """Returns the answer to a write about a claim that holds."""
    return WriteResult(True, job.ends_as, job.is_paused)


def matches(job: Job, query: JobQuery) -> bool:
    """Returns whether a job of the right tenant is one that the query asks for."""
    metadata = job.about.get("metadata") or {}
    return (
        query.kind in (None, job.kind)
        and query.parent in (None, job.parent)
        and (not query.statuses or job_status(job) in query.statuses)
        and all(metadata.get(name) == value for name, value in query.metadata.items())
    )


# --- a job with its pieces: when they are ready, and what follows when one is done ---


@dataclass(slots=True)
class PieceRecord:
    """One piece of a job."""

    number: int
    state: PieceState
    ready_at: float
    turn: int
    """Grows with each piece that begins to wait."""
    claims: int = 0
    fence: int = 0
    has_news: bool = field(default=False, compare=False)
    """A child of a claimed run has ended since, or the run was asked to stop."""


@dataclass(slots=True)
class WholeJob:
    """A job and all that belongs to it."""

    job: Job
    payload: bytes = b""
    reads: str = ""
    debounced: int = 0
    pieces: dict[int, PieceRecord] = field(default_factory=dict)
    plan: ChunkPlan | None = None
    next_chunk: int = 0
    lines: dict[int, dict[int, LineResult]] = field(default_factory=dict)
    """The results of lines by chunk, of chunks that are not complete."""
    chunks: dict[int, ChunkResult] = field(default_factory=dict)
    answer: StoredAnswer | None = None

    @property
    def is_claimed(self) -> bool:
        """Returns whether a worker has a piece of it."""
        return any(piece.state == "claimed" for piece in self.pieces.values())


class PieceMachine:
    """Moves pieces from state to state; calls `follow` with a job at its end. It is for one step, or for one store."""

    def __init__(self, follow: Callable[[WholeJob, JobEnd, float], None], workers: int = 1) -> None:
        """`workers` is the number of gateways that share the work."""
        self._follow = follow
        self._workers = workers
        self._turns = count()

    def put(self, kept: WholeJob, number: int, ready_at: float, now: float, claims: int = 0) -> None:
        """Makes a piece wait, behind all that became ready at the same time."""
        state = waiting(kept.job, number, ready_at, now)
        kept.pieces[number] = PieceRecord(number, state, ready_at, next(self._turns), claims)

    def begin(self, kept: WholeJob, plan: ChunkPlan, marks: Mapping[str, object], now: float) -> None:
        """Puts the first chunks of a checked batch in the place of CHECK."""
        kept.pieces.clear()
        kept.plan, kept.next_chunk = plan, 0
        kept.job = begun(kept.job, plan, marks)
        self._go_on(kept, now)

    def complete(self, kept: WholeJob, result: ChunkResult, now: float) -> None:
        """Puts the next chunk in the place of a complete one, or FINALISE in the place of the last."""
        del kept.pieces[result.chunk]
        kept.lines.pop(result.chunk, None)
        kept.chunks[result.chunk] = result
        self._go_on(kept, now)

    def end(self, kept: WholeJob, end: JobEnd, now: float) -> None:
        """Ends a job: what it needed on its way goes."""
        kept.job = ended(kept.job, end, now)
        kept.answer = end.answer
        if not keeps_payload(kept.job, end.state):
            kept.payload = b""
        kept.pieces.clear()
        kept.lines.clear()
        kept.chunks.clear()
        self._follow(kept, end, now)

    def park(self, kept: WholeJob, now: float) -> None:
        """Has a claimed run wait for its children, or look at them again at once where there is news."""
        if kept.pieces.pop(RUN_PIECE).has_news:
            self.put(kept, RUN_PIECE, now, now)
        else:
            kept.job = parked(kept.job)

    def child_ended(self, kept: WholeJob, now: float) -> None:
        """Has a run look at its children: at once where it is parked, after its claim where it is claimed."""
        if kept.job.state is JobState.WAITING:
            kept.job = woken(kept.job)
            self.put(kept, RUN_PIECE, now, now)
        for piece in kept.pieces.values():
            piece.has_news = piece.has_news or piece.state == "claimed"

    def flag(self, kept: WholeJob, flag: JobFlag, now: float) -> None:
        """Does what is asked of a job that has not ended."""
        if flag is JobFlag.CANCEL:
            self._stop(kept, JobState.CANCELLED, now)
        else:
            kept.job = changed(kept.job, is_paused=flag is JobFlag.PAUSE)
            self._withhold(kept, now)

    def expire(self, kept: WholeJob, now: float) -> None:
        """Stops a job whose deadline has passed."""
        self._stop(kept, JobState.EXPIRED, now)

    def stop_if_requested(self, kept: WholeJob, now: float) -> None:
        """Ends a job that is to stop, or sends a batch on to FINALISE, if no piece of it is claimed any more."""
        job = kept.job
        if job.ends_as is None or kept.is_claimed or FINALISE in kept.pieces:
            return
        if job.kind is JobKind.BATCH:
            self._finalise(kept, now)
        elif not goes_on_to_stop(job):
            self.end(kept, JobEnd(job.ends_as), now)

    def _stop(self, kept: WholeJob, as_state: JobState, now: float) -> None:
        if kept.job.ends_as is None:
            kept.job = stopping(kept.job, as_state, now)
            if goes_on_to_stop(kept.job):
                self._hasten(kept, now)
                return
            self._withhold(kept, now)
            self.stop_if_requested(kept, now)

    def _hasten(self, kept: WholeJob, now: float) -> None:
        """Has a run that is to stop looked at as soon as can be, parked, paused or put off as it may be."""
        self.child_ended(kept, now)
        for piece in list(kept.pieces.values()):
            if piece.state in ("later", "withheld"):
                self.put(kept, piece.number, now, now, claims=piece.claims)

    def _withhold(self, kept: WholeJob, now: float) -> None:
        """Withholds the waiting pieces of a job that is paused or to stop, and gives back those of one that is not."""
        for piece in kept.pieces.values():
            if piece.state != "claimed":
                piece.state = waiting(kept.job, piece.number, piece.ready_at, now)
                if piece.state == "ready":
                    kept.job = due(kept.job)

    def _go_on(self, kept: WholeJob, now: float) -> None:
        """Puts chunks until enough of them wait or run; FINALISE when there is none left, or the job is to stop."""
        if kept.plan is None:
            return
        most = kept.plan.parallel_for(self._workers)
        while kept.job.ends_as is None and len(kept.pieces) < most and kept.next_chunk < kept.plan.chunks:
            self.put(kept, kept.next_chunk, now, now)
            kept.next_chunk += 1
        self.stop_if_requested(kept, now)
        if not kept.pieces:
            self._finalise(kept, now)

    def _finalise(self, kept: WholeJob, now: float) -> None:
        kept.pieces.clear()
        kept.job = finalising(kept.job)
        self.put(kept, FINALISE, now, now)
