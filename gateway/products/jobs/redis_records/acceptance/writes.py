"""What a worker writes at the end of a claim, or about its job: each a step that is taken if the claim holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.products.jobs.dead_letters.redis.letters import LetterChange
from gateway.products.jobs.model.job import CHECK, ClaimedWork, JobEnd, JobError, JobKind, NewJob, Stage, WriteResult
from gateway.products.jobs.model.lines import ChunkPlan, ChunkResult
from gateway.products.jobs.redis_claims.steps import LetterMoved, RedisSteps, StepEffects
from gateway.products.jobs.redis_partitions.partitions import JobPartitions
from gateway.products.jobs.redis_records import records
from gateway.products.jobs.redis_records.acceptance.places import JobPlaces
from gateway.products.jobs.transitions import transitions
from gateway.products.jobs.transitions.pieces import MemoryJob, MemoryPieces
from gateway.products.jobs.transitions.transitions import NOT_OURS


class RedisWrites:
    """Implements these methods of `gateway.products.jobs.store.jobs.JobStore`."""

    def __init__(self, partitions: JobPartitions, steps: RedisSteps, places: JobPlaces) -> None:
        self._partitions = partitions
        self._steps = steps
        self._places = places

    async def give_back(
        self, work: ClaimedWork, run_at: float | None, error: JobError | None, *, is_attempt: bool
    ) -> WriteResult:
        """Ends a claim without a result: the piece is ready again, behind all others, from `run_at` on."""

        def change(pieces: MemoryPieces, kept: MemoryJob, now: float, _effects: StepEffects) -> None:
            kept.job = transitions.tried(kept.job, error, is_attempt=is_attempt)
            claims = kept.pieces[work.piece].claims - 1
            ready_at = now if run_at is None else max(now, self._partitions.by_server(run_at))
            pieces.put(kept, work.piece, ready_at, now, claims=max(0, claims))
            pieces.stop_if_asked(kept, now)

        def was_done(job: records.RedisJob) -> bool:
            piece = job.kept.pieces.get(work.piece)
            is_back = piece is not None and piece.fence == self._partitions.fence_of(work) and piece.state != "claimed"
            return is_back or job.ended_by == str(work.fence)

        return await self._steps.write("give_back", work, change, was_done)

    async def park(self, work: ClaimedWork, children: Sequence[NewJob], marks: Mapping[str, object]) -> WriteResult:
        """Ends the claim of a run, which waits for its children from now on; these are accepted, whatever the bounds."""
        news = transitions.fitting(work.job, children)
        if work.job.kind is not JobKind.RUN:
            return NOT_OURS

        def change(pieces: MemoryPieces, kept: MemoryJob, now: float, effects: StepEffects) -> None:
            kept.job = transitions.noted(kept.job, marks)
            pieces.park(kept, now)
            effects.ended_by = str(work.fence)
            if kept.job.ends_as is work.job.ends_as:
                effects.following += news

        return await self._steps.write("park", work, change, lambda job: job.ended_by == str(work.fence))

    async def begin_lines(self, work: ClaimedWork, plan: ChunkPlan, marks: Mapping[str, object]) -> WriteResult:
        """Ends the claim of CHECK: the first `plan.parallel` chunks are ready."""
        if work.piece != CHECK:
            return NOT_OURS

        def change(pieces: MemoryPieces, kept: MemoryJob, now: float, effects: StepEffects) -> None:
            pieces.begin(kept, plan, marks, now)
            effects.ended_by = str(work.fence)

        return await self._steps.write(
            "begin", work, change, lambda job: job.ended_by == str(work.fence) and job.kept.job.stage is not Stage.CHECK
        )

    async def note(self, work: ClaimedWork, marks: Mapping[str, object]) -> WriteResult:
        """Adds to the marks of a claimed piece's job, durably; None takes a mark away."""

        def change(_pieces: MemoryPieces, kept: MemoryJob, _now: float, _effects: StepEffects) -> None:
            kept.job = transitions.noted(kept.job, marks)

        return await self._steps.write("note", work, change, lambda _: False, is_durable=True)

    async def complete_chunk(self, work: ClaimedWork, result: ChunkResult) -> WriteResult:
        """Ends the claim of a chunk whose lines all have results, which its blobs hold from now on; the rows go."""
        if not transitions.is_chunk(work.job, work.piece):
            return NOT_OURS
        partition = self._partitions.of_work(work)

        def change(pieces: MemoryPieces, kept: MemoryJob, now: float, effects: StepEffects) -> None:
            pieces.complete(kept, result, now)
            effects.chunk = result

        is_unheard = self._steps.is_unheard("complete", work)
        told = await self._steps.write("complete", work, change, lambda _: False)
        if is_unheard and not told.is_ours and result in await self._places.chunks(partition, work.job.id):
            return await self._steps.state_of(work)  # it was done: the names of its blobs are those of this claim
        return told

    async def finish(self, work: ClaimedWork, end: JobEnd, following: Sequence[NewJob] = ()) -> WriteResult:
        """Ends a job, and accepts those that follow from its end, whatever the bounds, in one step.

        They are kept beside it: a job that follows is of the same tenant, or of none.
        """

        def change(pieces: MemoryPieces, kept: MemoryJob, now: float, effects: StepEffects) -> None:
            pieces.end(kept, end, now)
            effects.answer = end.answer
            effects.following += following

        return await self._steps.write("finish", work, change, lambda job: job.ended_by == str(work.fence))

    async def look(self, works: Sequence[ClaimedWork]) -> list[WriteResult]:
        """Tells whether claims hold, and what was asked of their jobs."""
        results = []
        for work in works:
            results.append(await self._steps.write("look", work, _as_it_was, lambda _: False))
        return results

    async def count_replay(
        self, work: ClaimedWork, change: LetterChange | None, new: NewJob | None
    ) -> WriteResult | None:
        """Counts a job that a replay begins, with its letter; None: the letter has changed meanwhile."""

        def counted(_pieces: MemoryPieces, kept: MemoryJob, _now: float, effects: StepEffects) -> None:
            kept.job = transitions.one_more(kept.job)
            if change is not None and new is not None:
                effects.replays_letter = True
                effects.letters.append(change)
                effects.following.append(new)

        try:
            return await self._steps.write("replay", work, counted, lambda _: False)
        except LetterMoved:
            return None


def _as_it_was(_pieces: MemoryPieces, _kept: MemoryJob, _now: float, _effects: StepEffects) -> None:
    """Changes nothing."""
