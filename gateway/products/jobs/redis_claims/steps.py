"""One step of one job: it is read, changed here as the reference says, and written if nobody has written it meanwhile.

What ends a job has the jobs that follow from it with it in the same script. Invariants: a step is done once or not at all; one
about a claim that has ended changes nothing; one that is repeated because its answer was lost is told that it was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gateway.products.jobs.dead_letters.redis.letters import LetterChange, LetterSeen, RedisLetters
from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import REPLAYS
from gateway.products.jobs.dead_letters.rules.letters import letter_of_job, replayed
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import (
    ClaimedWork,
    Following,
    Job,
    JobEnd,
    JobFlag,
    NewJob,
    StoredAnswer,
    WriteResult,
)
from gateway.products.jobs.model.lines import ChunkResult
from gateway.products.jobs.redis_partitions.partitions import Argument, JobPartitions, job_script
from gateway.products.jobs.redis_records import records
from gateway.products.jobs.redis_records.records import RedisJob
from gateway.products.jobs.transitions.pieces import MemoryJob, MemoryPiece, MemoryPieces
from gateway.products.jobs.transitions.transitions import NOT_OURS, keeps_payload, written

APPLY, LOAD = job_script("apply", "take", "letters", "erase"), job_script("load")
T = TypeVar("T")
MOST_KNOWN = 4096
"""Jobs of which this process remembers how it last saw them, and writes without an answer that it remembers."""
MOST_TRIES = 100
"""Of each round of tries about one job one is written, so that nobody waits for ever."""


class LetterMoved(Exception):
    """The dead letter that a step is about has changed since it was read."""


@dataclass(slots=True)
class StepEffects:
    """What a step brings with it, besides the job as it is then."""

    answer: StoredAnswer | None = None
    chunk: ChunkResult | None = None
    following: list[NewJob] = field(default_factory=list)
    letters: list[LetterChange] = field(default_factory=list)
    ended_by: str | None = None
    replays_letter: bool = False
    """The step is about a letter that was read before it: where that has changed, the step is not taken."""
    is_forced: bool = False
    """It is written though the job is as it was."""


Change = Callable[[MemoryPieces, MemoryJob, float, StepEffects], None]
"""Changes a job that was read."""
Evidence = Callable[[RedisJob], bool]
"""Tells whether a write about a claim was done, by what it left behind."""


class RedisSteps:
    """Takes steps."""

    def __init__(self, partitions: JobPartitions, following: Following) -> None:
        self._partitions = partitions
        self._following = following
        self.letters = RedisLetters(partitions)
        self._known: dict[str, RedisJob] = {}
        """Jobs as they were last seen here: a step that begins with one needs no look, unless it was written since."""
        self._unheard: set[tuple[str, str, int, int]] = set()
        """Writes about claims whose answers were lost."""

    def learn(self, job_id: str, seen: RedisJob) -> None:
        """Remembers a job as it was just seen."""
        self._known.pop(job_id, None)
        if len(self._known) >= MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[job_id] = seen

    async def look(self, partition: int, job_ids: Sequence[str], mark: bytes | None = None) -> list[RedisJob | None]:
        """Reads jobs. Raises JobsUnavailable."""
        _, _, found = await self._partitions.run(LOAD, partition, *job_ids, mark=mark)
        return [thawed(job_id, text) for job_id, text in zip(job_ids, found, strict=True)]

    async def take(self, partition: int, job_id: str, change: Change, seen: RedisJob | None = None) -> Job | None:
        """Takes a step with a job, whoever has its pieces; returns it as it is then, None if there is none."""

        def changed(pieces: MemoryPieces, job: RedisJob, now: float, effects: StepEffects) -> Job:
            change(pieces, job.kept, now, effects)
            return job.kept.job

        return await self._take(partition, job_id, changed, seen)

    async def flag(self, partition: int, job_id: str, tenant: str | None, flag: JobFlag) -> Job | None:
        """Asks something of a job that has not ended, durably; None: there is none, or it is another tenant's."""

        def change(pieces: MemoryPieces, job: RedisJob, now: float, _effects: StepEffects) -> Job:
            if tenant in (None, job.kept.job.tenant) and not job.kept.job.state.is_end:
                pieces.flag(job.kept, flag, now)
            return job.kept.job

        job = await self._take(partition, job_id, change, None, is_durable=True)
        return job if job is not None and tenant in (None, job.tenant) else None

    async def write(
        self, name: str, work: ClaimedWork, change: Change, was_done: Evidence, *, is_durable: bool = False
    ) -> WriteResult:
        """Takes a step about a claim, if it holds. `is_durable` waits until it is as safe as what is acknowledged."""
        fence = self._partitions.fence_of(work)
        mark = (name, work.job.id, work.piece, work.fence)

        def changed(pieces: MemoryPieces, job: RedisJob, now: float, effects: StepEffects) -> WriteResult:
            piece = job.kept.pieces.get(work.piece)
            if piece is None or piece.state != "claimed" or piece.fence != fence:
                return written(job.kept.job) if mark in self._unheard and was_done(job) else NOT_OURS
            change(pieces, job.kept, now, effects)
            left = job.kept.pieces.get(work.piece)
            if left is not None:
                left.fence = fence  # by which a repeated write knows that it was done
            if job.kept.job.state.is_end:
                effects.ended_by = str(work.fence)
            return written(job.kept.job)

        try:
            partition, seen = self._partitions.of_work(work), self._known.get(work.job.id)
            result = await self._take(partition, work.job.id, changed, seen, is_durable=is_durable)
        except JobsUnavailable:
            if len(self._unheard) >= MOST_KNOWN:
                self._unheard.clear()
            self._unheard.add(mark)
            raise
        self._unheard.discard(mark)
        return NOT_OURS if result is None else result

    def is_unheard(self, name: str, work: ClaimedWork) -> bool:
        """Tells whether the answer of such a write about the claim was lost, and it was not repeated since."""
        return (name, work.job.id, work.piece, work.fence) in self._unheard

    async def state_of(self, work: ClaimedWork) -> WriteResult:
        """Returns what is asked of a job whose claim has ended as it should. Raises JobsUnavailable."""
        (seen,) = await self.look(self._partitions.of_work(work), [work.job.id])
        return NOT_OURS if seen is None else written(seen.kept.job)

    async def _take(
        self,
        partition: int,
        job_id: str,
        change: Callable[[MemoryPieces, RedisJob, float, StepEffects], T],
        seen: RedisJob | None,
        *,
        is_durable: bool = False,
    ) -> T | None:
        is_fresh = False
        for _ in range(MOST_TRIES):
            mark = self._partitions.mark(partition) if is_durable else None
            if seen is None:
                (seen,), is_fresh = await self.look(partition, [job_id], mark), True
                if seen is None:
                    self._known.pop(job_id, None)
                    return None
            job, writes, effects = _copy(seen), seen.writes, StepEffects()
            replays = await self._replayed_by(partition, job)
            result = change(self._pieces(effects, job, replays), job, self._partitions.now(), effects)
            arguments = _arguments(job_id, seen, job, effects)
            if arguments is None:
                if is_fresh:
                    await self._partitions.settle([mark])  # somebody may have done it just now
                    return result
                seen = None  # it may have changed meanwhile
                continue
            mark = self._partitions.mark(partition) if is_durable else None  # that of the look may be on another server
            _, _, is_written, text = await self._partitions.run(APPLY, partition, *arguments, mark=mark)
            seen, is_fresh = thawed(job_id, text), True
            if seen is None:
                self._known.pop(job_id, None)
                return None
            if is_written:
                if seen.kept.job.state.is_end:
                    self._known.pop(job_id, None)
                else:
                    self.learn(job_id, seen)
                await self._partitions.settle([mark])
                return result
            if effects.replays_letter and seen.writes == writes:
                raise LetterMoved
        raise JobsUnavailable("Jobs cannot be kept now: too many write about one of them at once.")

    async def _replayed_by(self, partition: int, job: RedisJob) -> LetterSeen | None:
        """Returns the dead letter that a job runs again, which hears of its end."""
        letter_id = job.kept.job.about.get(REPLAYS)
        return None if letter_id is None else await self.letters.seen(partition, letter_id)

    def _pieces(self, effects: StepEffects, job: RedisJob, replays: LetterSeen | None) -> MemoryPieces:
        def follow(kept: MemoryJob, end: JobEnd, _now: float) -> None:
            size = job.payload_bytes if keeps_payload(kept.job, end.state) else 0
            letter = letter_of_job(kept.job, end, size)
            if letter is not None:
                effects.letters.append(LetterChange(letter))
            if replays is not None:
                told = replayed(replays.letter, kept.job)
                if told != replays.letter:
                    effects.letters.append(LetterChange(told, replays.text))
            effects.following.extend(self._following(kept.job))

        return MemoryPieces(_nothing, _discarded, follow)


def thawed(job_id: str, text: bytes) -> RedisJob | None:
    """Returns the job of a text; None: there is none."""
    return records.thaw(job_id, text) if text else None


def _arguments(job_id: str, before: RedisJob, after: RedisJob, effects: StepEffects) -> list[Argument] | None:
    """Returns a step as `lua/apply.lua` reads it; None: nothing has changed."""
    kept, job = after.kept, after.kept.job
    changes = _changes(before.kept.pieces, kept.pieces)
    if job == before.kept.job and not changes and not effects.is_forced and effects.chunk is None:
        return None
    is_end = job.state.is_end and not before.kept.job.state.is_end
    rest = records.rest_of(job, kept.plan, kept.next_chunk)
    ended_by = before.ended_by if effects.ended_by is None else effects.ended_by
    due = records.due_of(job)
    is_due_as_before = due == records.due_of(before.kept.job) and not effects.is_forced
    about, body = (b"", b"") if effects.answer is None else (records.answer_about(effects.answer), effects.answer.body)
    number, chunk = (
        ("", b"") if effects.chunk is None else (str(effects.chunk.chunk), records.chunk_json(effects.chunk))
    )
    has_news = any(piece.has_news for piece in kept.pieces.values())
    counted = (before.payload_bytes, kept.debounced, before.seq)
    return [
        job_id,
        before.writes,
        records.head_of(job, kept.reads, *counted, ended_by, has_news=has_news),
        b"" if rest == before.rest else rest,
        "=" if is_due_as_before else due,
        repr(job.ended_at) if is_end else "",
        int(is_end and not keeps_payload(job, job.state)),
        about,
        body,
        number,
        chunk,
        len(changes) // 6,
        *changes,
        len(effects.letters),
        *[argument for letter in effects.letters for argument in letter.arguments()],
        *[argument for new in effects.following for argument in records.new_arguments(new)],
    ]


def _changes(before: dict[int, MemoryPiece], after: dict[int, MemoryPiece]) -> list[Argument]:
    """Returns the pieces that are gone, new or elsewhere."""
    changes: list[Argument] = []
    for number in before.keys() - after.keys():
        changes += [number, "-", 0, 0, 0, ""]
    for number, piece in after.items():
        was = before.get(number)
        if piece != was:
            is_resumed = was is not None and was.state == "withheld" and was.ready_at == piece.ready_at
            way = "f" if is_resumed and piece.state == "ready" else "n"
            letter = records.LETTERS[piece.state]
            changes += [number, letter, repr(piece.ready_at), piece.claims, piece.fence, way]
    return changes


def _copy(job: RedisJob) -> RedisJob:
    """Returns a job that stays as it is while a step changes the other."""
    kept = job.kept
    pieces = {number: replace(piece) for number, piece in kept.pieces.items()}
    return replace(job, kept=replace(kept, pieces=pieces, lines={}, chunks={}))


def _nothing() -> None:
    """The script tells whether something became ready."""


def _discarded(_blobs: Sequence[str]) -> None:
    """The script knows the blobs of the chunks."""
