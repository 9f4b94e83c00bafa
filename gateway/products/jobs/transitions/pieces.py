"""The pieces of jobs: when they are ready, and what follows when one is done; for the stores in memory and in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from gateway.core.types import LANES, Lane
from gateway.products.jobs.model import (
    FINALISE,
    RUN_PIECE,
    ChunkPlan,
    ChunkResult,
    Job,
    JobDepth,
    JobEnd,
    JobFlag,
    JobKind,
    JobState,
    LineResult,
    StoredAnswer,
)
from gateway.products.jobs.transitions import transitions
from gateway.products.jobs.transitions.transitions import PieceState


@dataclass(slots=True)
class MemoryPiece:
    """One piece of a job."""

    number: int
    state: PieceState
    ready_at: float
    turn: int
    """Grows with each piece that begins to wait."""
    claims: int = 0
    fence: int = 0
    has_news: bool = field(default=False, compare=False)
    """Of a run that is claimed: a child has ended since, or it was told to stop."""


@dataclass(slots=True)
class MemoryJob:
    """A job and all that belongs to it."""

    job: Job
    payload: bytes = b""
    reads: str = ""
    debounced: int = 0
    pieces: dict[int, MemoryPiece] = field(default_factory=dict)
    plan: ChunkPlan | None = None
    next_chunk: int = 0
    lines: dict[int, dict[int, LineResult]] = field(default_factory=dict)
    """The results of lines by chunk, of chunks that are not complete."""
    chunks: dict[int, ChunkResult] = field(default_factory=dict)
    answer: StoredAnswer | None = None

    @property
    def is_claimed(self) -> bool:
        """Tells whether a worker has a piece of it."""
        return any(piece.state == "claimed" for piece in self.pieces.values())


class MemoryPieces:
    """Moves pieces from state to state; calls `wake` when one is ready, `discard` with blobs that are no longer needed, and
    `follow` with a job at its end.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        discard: Callable[[Sequence[str]], None],
        follow: Callable[[MemoryJob, JobEnd, float], None],
        workers: int = 1,
    ) -> None:
        """`workers` is the number of gateways that share the work."""
        self._wake = wake
        self._discard = discard
        self._follow = follow
        self._workers = workers
        self._turns = count()

    def ready(self, jobs: Iterable[MemoryJob], segment: str) -> list[tuple[MemoryJob, MemoryPiece]]:
        """Returns the ready pieces of a segment, those to be given first at the head."""
        found = [
            (kept, piece)
            for kept in jobs
            if kept.job.segment == segment
            for piece in kept.pieces.values()
            if piece.state == "ready"
        ]
        return sorted(found, key=lambda one: (_rank(one[0].job), one[1].ready_at, one[1].turn))

    def put(self, kept: MemoryJob, number: int, ready_at: float, now: float, claims: int = 0) -> None:
        """Makes a piece wait, behind all that became ready at the same time."""
        state = transitions.waiting(kept.job, number, ready_at, now)
        kept.pieces[number] = MemoryPiece(number, state, ready_at, next(self._turns), claims)
        if state == "ready":
            self._wake()

    def promote(self, kept: MemoryJob, now: float) -> None:
        """Makes ready what has waited for its time."""
        for piece in kept.pieces.values():
            if piece.state == "later" and piece.ready_at <= now:
                piece.state = "ready"
                kept.job = transitions.due(kept.job)
                self._wake()

    def begin(self, kept: MemoryJob, plan: ChunkPlan, marks: Mapping[str, object], now: float) -> None:
        """Puts the first chunks of a checked batch in the place of CHECK."""
        kept.pieces.clear()
        kept.plan, kept.next_chunk = plan, 0
        kept.job = transitions.begun(kept.job, plan, marks)
        self._go_on(kept, now)

    def complete(self, kept: MemoryJob, result: ChunkResult, now: float) -> None:
        """Puts the next chunk in the place of a complete one, or FINALISE in the place of the last."""
        del kept.pieces[result.chunk]
        kept.lines.pop(result.chunk, None)
        kept.chunks[result.chunk] = result
        self._go_on(kept, now)

    def end(self, kept: MemoryJob, end: JobEnd, now: float) -> None:
        """Ends a job: what it needed on its way goes."""
        kept.job = transitions.ended(kept.job, end, now)
        kept.answer = end.answer
        if not transitions.keeps_payload(kept.job, end.state):
            kept.payload = b""
        self._discard([blob for chunk in kept.chunks.values() for blob in (chunk.output, chunk.errors)])
        kept.pieces.clear()
        kept.lines.clear()
        kept.chunks.clear()
        self._follow(kept, end, now)

    def park(self, kept: MemoryJob, now: float) -> None:
        """Has a claimed run wait for its children, or look at them again at once where there is news."""
        if kept.pieces.pop(RUN_PIECE).has_news:
            self.put(kept, RUN_PIECE, now, now)
        else:
            kept.job = transitions.parked(kept.job)

    def child_ended(self, kept: MemoryJob, now: float) -> None:
        """Has a run look at its children: at once where it is parked, after its claim where it is claimed."""
        if kept.job.state is JobState.WAITING:
            kept.job = transitions.woken(kept.job)
            self.put(kept, RUN_PIECE, now, now)
        for piece in kept.pieces.values():
            piece.has_news = piece.has_news or piece.state == "claimed"

    def flag(self, kept: MemoryJob, flag: JobFlag, now: float) -> None:
        """Does what is asked of a job that has not ended."""
        if flag is JobFlag.CANCEL:
            self._stop(kept, JobState.CANCELLED, now)
        else:
            kept.job = transitions.changed(kept.job, is_paused=flag is JobFlag.PAUSE)
            self._withhold(kept, now)

    def expire(self, kept: MemoryJob, now: float) -> None:
        """Stops a job whose deadline has passed."""
        self._stop(kept, JobState.EXPIRED, now)

    def stop_if_requested(self, kept: MemoryJob, now: float) -> None:
        """Ends a job that is to stop, or sends a batch on to FINALISE, if no piece of it is claimed any more."""
        job = kept.job
        if job.ends_as is None or kept.is_claimed or FINALISE in kept.pieces:
            return
        if job.kind is JobKind.BATCH:
            self._finalise(kept, now)
        elif not transitions.goes_on_to_stop(job):
            self.end(kept, JobEnd(job.ends_as), now)

    def depth(self, jobs: Iterable[MemoryJob]) -> Mapping[tuple[str, Lane, str], JobDepth]:
        """Returns the number and the oldest of the pieces; what is withheld counts as `later`."""
        times: dict[tuple[str, Lane, str], list[float]] = {}
        for kept in jobs:
            for piece in kept.pieces.values():
                state = "later" if piece.state == "withheld" else piece.state
                times.setdefault((kept.job.segment, kept.job.lane, state), []).append(piece.ready_at)
        return {name: JobDepth(len(found), min(found)) for name, found in times.items()}

    def _stop(self, kept: MemoryJob, as_state: JobState, now: float) -> None:
        if kept.job.ends_as is None:
            kept.job = transitions.stopping(kept.job, as_state, now)
            if transitions.goes_on_to_stop(kept.job):
                self._hasten(kept, now)
                return
            self._withhold(kept, now)
            self.stop_if_requested(kept, now)

    def _hasten(self, kept: MemoryJob, now: float) -> None:
        """Has a run that is to stop looked at as soon as can be, parked, paused or put off as it may be."""
        self.child_ended(kept, now)
        for piece in list(kept.pieces.values()):
            if piece.state in ("later", "withheld"):
                self.put(kept, piece.number, now, now, claims=piece.claims)

    def _withhold(self, kept: MemoryJob, now: float) -> None:
        """Withholds the waiting pieces of a job that is paused or to stop, and gives back those of one that is not."""
        for piece in kept.pieces.values():
            if piece.state != "claimed":
                piece.state = transitions.waiting(kept.job, piece.number, piece.ready_at, now)
                if piece.state == "ready":
                    kept.job = transitions.due(kept.job)
                    self._wake()

    def _go_on(self, kept: MemoryJob, now: float) -> None:
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

    def _finalise(self, kept: MemoryJob, now: float) -> None:
        kept.pieces.clear()
        kept.job = transitions.finalising(kept.job)
        self.put(kept, FINALISE, now, now)


def _rank(job: Job) -> tuple[int, bool]:
    return LANES.index(job.lane), not job.is_urgent
