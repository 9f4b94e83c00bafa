"""A store of jobs in memory: the reference that says what every store of jobs has to do.

The models of the other stores are compared with it, and tests on a virtual clock run on it: it answers within the loop, where a
file has a thread. The steps from one job to the next are those of the gateway, in `transitions`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from math import inf
from secrets import token_hex

from gateway.core.types import LANES, Lane
from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs import transitions
from gateway.products.jobs.dead_letters.rules import DeadLetter
from gateway.products.jobs.model import (
    CHECK,
    Accepted,
    ChunkPlan,
    ChunkResult,
    ClaimedWork,
    ClaimRequest,
    Following,
    Job,
    JobDepth,
    JobEnd,
    JobError,
    JobFlag,
    JobKind,
    JobPage,
    JobQuery,
    JobState,
    LineResult,
    NewJob,
    StoredAnswer,
    WriteResult,
    nothing_follows,
)
from gateway.products.jobs.response_store import KeptBounds
from gateway.products.jobs.transitions import NOT_OURS, OpenBounds, PieceMachine, PieceRecord, WholeJob, written
from tests.support.memory_store.dead_letters import MemoryDeadLetters
from tests.support.memory_store.files import MemoryJobFiles
from tests.support.memory_store.responses import MemoryEventLogs, MemoryKeptResponses
from tests.support.memory_store.runs import MemoryRuns


class MemoryPieces(PieceMachine):
    """The steps of the gateway, and what a server does by itself: it knows what is ready, and when time makes something so.

    Calls `wake` when a piece is ready, and `discard` with blobs that are no longer needed.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        discard: Callable[[Sequence[str]], None],
        follow: Callable[[WholeJob, JobEnd, float], None],
    ) -> None:
        super().__init__(follow)
        self._wake = wake
        self._discard = discard

    def put(self, kept: WholeJob, number: int, ready_at: float, now: float, claims: int = 0) -> None:
        """Makes a piece wait, behind all that became ready at the same time."""
        super().put(kept, number, ready_at, now, claims)
        if kept.pieces[number].state == "ready":
            self._wake()

    def end(self, kept: WholeJob, end: JobEnd, now: float) -> None:
        """Ends a job: what it needed on its way goes."""
        self._discard([blob for chunk in kept.chunks.values() for blob in (chunk.output, chunk.errors)])
        super().end(kept, end, now)

    def _withhold(self, kept: WholeJob, now: float) -> None:
        super()._withhold(kept, now)
        if any(piece.state == "ready" for piece in kept.pieces.values()):
            self._wake()

    def ready(self, jobs: Iterable[WholeJob], segment: str) -> list[tuple[WholeJob, PieceRecord]]:
        """Returns the ready pieces of a segment, those to be given first at the head."""
        found = [
            (kept, piece)
            for kept in jobs
            if kept.job.segment == segment
            for piece in kept.pieces.values()
            if piece.state == "ready"
        ]
        return sorted(found, key=lambda one: (rank(one[0].job), one[1].ready_at, one[1].turn))

    def promote(self, kept: WholeJob, now: float) -> None:
        """Makes ready what has waited for its time."""
        for piece in kept.pieces.values():
            if piece.state == "later" and piece.ready_at <= now:
                piece.state = "ready"
                kept.job = transitions.due(kept.job)
                self._wake()

    def depth(self, jobs: Iterable[WholeJob]) -> Mapping[tuple[str, Lane, str], JobDepth]:
        """Returns the number and the oldest of the pieces; what is withheld counts as `later`."""
        times: dict[tuple[str, Lane, str], list[float]] = {}
        for kept in jobs:
            for piece in kept.pieces.values():
                state = "later" if piece.state == "withheld" else piece.state
                times.setdefault((kept.job.segment, kept.job.lane, state), []).append(piece.ready_at)
        return {name: JobDepth(len(found), min(found)) for name, found in times.items()}


def rank(job: Job) -> tuple[int, bool]:
    return LANES.index(job.lane), not job.is_urgent


# How jobs come into memory: one of a kind under a dedupe key, in the place of another under a debounce key, or new.


class MemoryAcceptance:
    """Adds to the jobs, which belong to the store."""

    def __init__(self, jobs: dict[str, WholeJob], pieces: MemoryPieces, bounds: OpenBounds) -> None:
        self._jobs = jobs
        self._pieces = pieces
        self._bounds = bounds
        self._dedupe: dict[bytes, tuple[str, bytes, float]] = {}
        """The job that a key belongs to, the fingerprint of its payload, and until when."""
        self._debounce: dict[bytes, str] = {}

    def accept_all(self, jobs: Sequence[NewJob], now: float) -> Sequence[Accepted]:
        """Takes jobs, all or none of them. Raises TooManyJobs."""
        unlike = transitions.unlike(jobs)
        fresh = [new for new in unlike if self._known(new, now) is None and self._scheduled(new) is None]
        opened = [kept.job for kept in self._jobs.values() if not kept.job.state.is_end]
        tenants = [job.tenant for job in (*opened, *(new.job for new in fresh)) if not job.parent]
        for tenant in {new.job.tenant for new in fresh if not new.job.parent}:
            if refusal := self._bounds.refusal(len(tenants), tenants.count(tenant)):
                raise refusal
        return [self.accept(new, now) for new in jobs]

    def accept(self, new: NewJob, now: float) -> Accepted:
        """Takes a job, whatever the bounds."""
        known = self._known(new, now)
        if known is not None:
            return known
        kept = self._scheduled(new)
        if kept is None:
            kept = self._jobs[new.job.id] = WholeJob(transitions.taken_in(new.job, now))
        else:
            kept.job = transitions.debounced(kept.job, new, now)
            kept.debounced += 1
            kept.pieces.clear()
        kept.payload, kept.reads = new.payload, new.reads
        self._pieces.put(kept, new.first_piece, max(now, kept.job.run_at), now)
        if new.dedupe_key:
            self._dedupe[new.dedupe_key] = (kept.job.id, new.fingerprint, new.dedupe_until)
        if new.debounce_key:
            self._debounce[new.debounce_key] = kept.job.id
        return Accepted(kept.job, is_new=not kept.debounced, debounced=kept.debounced)

    def tick(self, now: float) -> None:
        """Forgets dedupe keys whose time is over."""
        self._dedupe = {key: known for key, known in self._dedupe.items() if known[2] > now}

    def forget_gone(self) -> None:
        """Forgets keys of jobs that are forgotten."""
        self._dedupe = {key: known for key, known in self._dedupe.items() if known[0] in self._jobs}
        self._debounce = {key: job_id for key, job_id in self._debounce.items() if job_id in self._jobs}

    def _known(self, new: NewJob, now: float) -> Accepted | None:
        """Returns the answer to a job that is there already."""
        job_id, fingerprint, until = self._dedupe.get(new.dedupe_key, ("", b"", 0.0))
        if until > now and self._jobs[job_id].job.state is not JobState.CANCELLED:
            return Accepted(self._jobs[job_id].job, is_new=False, is_conflict=fingerprint != new.fingerprint)
        there = self._jobs.get(new.job.id)
        return None if there is None else Accepted(there.job, is_new=False)

    def _scheduled(self, new: NewJob) -> WholeJob | None:
        """Returns the scheduled job whose place the new one takes."""
        kept = self._jobs.get(self._debounce.get(new.debounce_key, ""))
        return kept if kept is not None and kept.job.state is JobState.SCHEDULED else None


class MemoryJobStore:
    """Implements `gateway.products.jobs.store.JobStore`."""

    lease_s = inf
    durability_lag_s = 0.0
    durability = "kept in memory: lost with the process"
    is_well = True

    def __init__(
        self,
        wall: Callable[[], float],
        bounds: OpenBounds | None = None,
        following: Following = nothing_follows,
        *,
        kept_bounds: KeptBounds | None = None,
    ) -> None:
        self._wall = wall
        self._following = following
        self._jobs: dict[str, WholeJob] = {}
        """By id, in the order in which they came."""
        self.files = MemoryJobFiles(wall, self._read_blobs)
        kept_bounds = kept_bounds or KeptBounds()
        self.runs = MemoryRuns(wall, kept_bounds.run_bytes)
        self._wakes: list[Callable[[], None]] = []
        self._pieces = MemoryPieces(self._wake, self.files.discard, self._follow)
        self._acceptance = MemoryAcceptance(self._jobs, self._pieces, bounds or OpenBounds())
        self.dead = MemoryDeadLetters(self._jobs, self._claimed, lambda new: self._acceptance.accept(new, wall()))
        self.events = MemoryEventLogs(self._jobs, self._claimed, kept_bounds)
        self.responses = MemoryKeptResponses(wall, kept_bounds)
        self._fences = count(1)
        self._identity = token_hex(8)
        self._is_open = True

    async def accept(self, jobs: Sequence[NewJob]) -> Sequence[Accepted]:
        """Takes jobs, all or none of them. Raises TooManyJobs, and JobsUnavailable once it is closed."""
        if not self._is_open:
            raise JobsUnavailable("Jobs cannot be kept now: the gateway is stopping.")
        return self._acceptance.accept_all(jobs, self._wall())

    async def claim(self, asks: Sequence[ClaimRequest]) -> Sequence[ClaimedWork]:
        """Gives pieces that are due: of the highest lane, in that the urgent, then by readiness."""
        now = self._wall()
        for kept in self._jobs.values():
            self._pieces.promote(kept, now)
        works: list[ClaimedWork] = []
        for ask in asks:
            given = 0
            while given < ask.most and (ready := self._pieces.ready(self._jobs.values(), ask.segment)):
                kept, piece = ready[0]
                if transitions.is_overdue(kept.job, now):
                    self._pieces.expire(kept, now)
                    continue
                piece.state, piece.fence, piece.claims = "claimed", next(self._fences), piece.claims + 1
                piece.has_news = False
                kept.job = transitions.started(kept.job, now)
                works.append(ClaimedWork(kept.job, piece.number, piece.fence, piece.claims, kept.payload))
                given += 1
        return works

    async def renew(self, works: Sequence[ClaimedWork]) -> Sequence[WriteResult]:
        """Says what has been asked of the jobs meanwhile; no claim ends by itself."""
        found = [self._claimed(work) for work in works]
        return [NOT_OURS if kept is None else written(kept.job) for kept in found]

    async def give_back(
        self, work: ClaimedWork, *, run_at: float | None, error: JobError | None = None, is_attempt: bool
    ) -> WriteResult:
        """Ends a claim without a result: the piece is ready again, behind all others, from `run_at` on."""
        kept = self._claimed(work)
        if kept is None:
            return NOT_OURS
        now = self._wall()
        kept.job = transitions.tried(kept.job, error, is_attempt=is_attempt)
        claims = kept.pieces[work.piece].claims - 1
        self._pieces.put(kept, work.piece, max(now, run_at or now), now, claims=max(0, claims))
        self._pieces.stop_if_requested(kept, now)
        return written(kept.job)

    async def park(self, work: ClaimedWork, children: Sequence[NewJob], progress: Mapping[str, object]) -> WriteResult:
        """Ends the claim of a run, which waits for its children from now on; these are accepted, whatever the bounds."""
        kept, news = self._claimed(work), transitions.fitting(work.job, children)
        if kept is None or kept.job.kind is not JobKind.RUN:
            return NOT_OURS
        now = self._wall()
        kept.job = transitions.noted(kept.job, progress)
        self._pieces.park(kept, now)
        if kept.job.ends_as is work.job.ends_as:
            for new in news:
                self._acceptance.accept(new, now)
        return written(kept.job)

    async def begin_lines(self, work: ClaimedWork, plan: ChunkPlan, marks: Mapping[str, object]) -> WriteResult:
        """Ends the claim of CHECK: the first `plan.parallel` chunks are ready."""
        kept = self._claimed(work)
        if kept is None or work.piece != CHECK:
            return NOT_OURS
        self._pieces.begin(kept, plan, marks, self._wall())
        return written(kept.job)

    async def commit(
        self, work: ClaimedWork, results: Sequence[LineResult], dead: Sequence[DeadLetter] = ()
    ) -> WriteResult:
        """Keeps the results of lines of a claimed chunk; of a line that has one the first stays, and counts."""
        kept = self._claimed(work)
        if kept is None:
            return NOT_OURS
        there = kept.lines.setdefault(work.piece, {})
        fresh = {result.line: result for result in reversed(results) if result.line not in there}
        there.update(fresh)
        if fresh:
            kept.pieces[work.piece].claims = 1
            kept.job = transitions.changed(kept.job, tally=transitions.counted(kept.job.tally, list(fresh.values())))
            self.dead.add([letter for letter in dead if letter.line in fresh])
        return written(kept.job)

    async def results(self, work: ClaimedWork) -> Sequence[LineResult]:
        """Returns what was committed for a claimed chunk so far, in the order of lines."""
        kept = self._jobs.get(work.job.id)
        return [] if kept is None else sorted(kept.lines.get(work.piece, {}).values())

    async def note(self, work: ClaimedWork, marks: Mapping[str, object]) -> WriteResult:
        """Adds to the marks of a claimed piece's job; None takes a mark away."""
        kept = self._claimed(work)
        if kept is None:
            return NOT_OURS
        kept.job = transitions.noted(kept.job, marks)
        return written(kept.job)

    async def complete_chunk(self, work: ClaimedWork, result: ChunkResult) -> WriteResult:
        """Ends the claim of a chunk whose lines all have results, which its blobs hold from now on."""
        kept = self._claimed(work)
        if kept is None or not transitions.is_chunk(kept.job, work.piece):
            return NOT_OURS
        self._pieces.complete(kept, result, self._wall())
        return written(kept.job)

    async def chunk_results(self, job_id: str) -> Sequence[ChunkResult]:
        """Returns the chunks of a batch that are complete, in order."""
        kept = self._jobs.get(job_id)
        return [] if kept is None else sorted(kept.chunks.values())

    async def open_results(self, work: ClaimedWork) -> Sequence[LineResult]:
        """Returns the results of lines whose chunks are not complete."""
        kept = self._jobs.get(work.job.id)
        return [] if kept is None else sorted(line for lines in kept.lines.values() for line in lines.values())

    async def finish(self, work: ClaimedWork, end: JobEnd, following: Sequence[NewJob] = ()) -> WriteResult:
        """Ends a job, and accepts those that follow from its end, whatever the bounds."""
        kept = self._claimed(work)
        if kept is None:
            return NOT_OURS
        now = self._wall()
        self._pieces.end(kept, end, now)
        for new in following:
            self._acceptance.accept(new, now)
        return written(kept.job)

    async def flag(self, job_id: str, tenant: str | None, flag: JobFlag) -> Job | None:
        """Asks something of a job; an ended job stays as it is."""
        kept = self._visible(job_id, tenant)
        if kept is None:
            return None
        if not kept.job.state.is_end:
            self._pieces.flag(kept, flag, self._wall())
        return kept.job

    async def find(self, job_id: str, tenant: str | None) -> Job | None:
        """Returns a job; None: there is none, or it is another tenant's."""
        kept = self._visible(job_id, tenant)
        return None if kept is None else kept.job

    async def answer(self, job_id: str, tenant: str | None) -> StoredAnswer | None:
        """Returns the stored answer of a `call` that has one."""
        kept = self._visible(job_id, tenant)
        return None if kept is None else kept.answer

    async def list_jobs(self, query: JobQuery) -> JobPage:
        """Returns a page of jobs, newest first; an empty one behind an id that is not there."""
        seen = [one.job for one in reversed(self._jobs.values()) if query.tenant in (None, one.job.tenant)]
        if query.after is not None:
            ids = [job.id for job in seen]
            seen = seen[ids.index(query.after) + 1 :] if query.after in ids else []
        found = [job for job in seen if transitions.matches(job, query)]
        return JobPage(found[: query.limit], len(found) > query.limit)

    async def identity(self) -> str:
        """Returns what tells this store from all others."""
        return self._identity

    async def forget_ended(self, before: float, most: int) -> int:
        """Forgets the jobs that ended first, before `before`, with their answers."""
        jobs = [one.job for one in self._jobs.values()]
        past = [job for job in jobs if (job.ended_at or inf) < before and not self._is_needed(job)]
        gone = [job.id for job in sorted(past, key=lambda job: job.ended_at or inf)[:most]]
        for job_id in gone:
            del self._jobs[job_id]
        self.events.forget(gone)
        self._acceptance.forget_gone()
        return len(gone)

    def on_ready(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, called when work became ready."""
        self._wakes.append(wake)

    def depth(self) -> Mapping[tuple[str, Lane, str], JobDepth]:
        """Returns what waits and runs."""
        return self._pieces.depth(self._jobs.values())

    def tick(self) -> None:
        """Lets deadlines pass and scheduled jobs become due."""
        now = self._wall()
        for kept in list(self._jobs.values()):
            if transitions.is_overdue(kept.job, now):
                self._pieces.expire(kept, now)
            self._pieces.promote(kept, now)
        self._acceptance.tick(now)

    async def aclose(self) -> None:
        """Takes nothing more."""
        self._is_open = False

    def _visible(self, job_id: str, tenant: str | None) -> WholeJob | None:
        kept = self._jobs.get(job_id)
        return kept if kept is not None and tenant in (None, kept.job.tenant) else None

    def _claimed(self, work: ClaimedWork) -> WholeJob | None:
        """Returns the job of a claim that holds."""
        kept = self._jobs.get(work.job.id)
        piece = None if kept is None else kept.pieces.get(work.piece)
        return kept if piece is not None and piece.state == "claimed" and piece.fence == work.fence else None

    def _is_needed(self, ended: Job) -> bool:
        parent = self._jobs.get(ended.parent)
        return self.dead.holds(ended.id) or (parent is not None and not parent.job.state.is_end)

    def _read_blobs(self) -> Collection[str]:
        return {one.reads for one in self._jobs.values() if not one.job.state.is_end}

    def _follow(self, kept: WholeJob, end: JobEnd, now: float) -> None:
        self.dead.ended(kept.job, end, len(kept.payload))
        for new in self._following(kept.job):
            self._acceptance.accept(new, now)
        parent = self._jobs.get(kept.job.parent)
        if parent is not None:
            self._pieces.child_ended(parent, now)

    def _wake(self) -> None:
        for wake in self._wakes:
            wake()
