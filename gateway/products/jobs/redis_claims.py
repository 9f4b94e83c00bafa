"""Changes of jobs in a Redis by compare-and-set, and claims of pieces.

In this order: dead letters; steps of jobs with their pieces; claims, and what time does to jobs. A step reads a job, changes it
by `transitions.PieceMachine`, and writes it if nobody has written it meanwhile. What ends a job has the jobs that follow from
it with it in the same script. Invariants: a step is done once or not at all; one about a claim that has ended changes nothing;
one that is repeated because its answer was lost is known to have been done.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import orjson

from gateway.core.types import LANES, Lane
from gateway.drivers.durability import JobsUnavailable, NotDurable
from gateway.drivers.redis.partitions import Argument, JobPartitions, job_script
from gateway.products.jobs import redis_records as records
from gateway.products.jobs.dead_letters.rules import REDRIVES, DeadLetter, end_redrive, letter_of_job, pack, unpack
from gateway.products.jobs.model import (
    ChunkResult,
    ClaimedWork,
    ClaimRequest,
    Following,
    Job,
    JobDepth,
    JobEnd,
    JobFlag,
    JobState,
    NewJob,
    StoredAnswer,
    WriteResult,
)
from gateway.products.jobs.redis_records import RedisJob
from gateway.products.jobs.transitions import (
    NOT_OURS,
    PieceMachine,
    PieceRecord,
    WholeJob,
    is_past_stopping,
    keeps_payload,
    written,
)

# --- dead letters: read, and changed if nobody has changed them meanwhile ---


class LetterSeen(NamedTuple):
    """A letter as it was read."""

    letter: DeadLetter
    text: bytes


class LetterChange(NamedTuple):
    """A letter that comes, or takes the place of what was seen."""

    letter: DeadLetter
    seen: bytes = b""
    is_stripped: bool = False
    """The payload of its job goes."""

    def arguments(self) -> list[Argument]:
        """Returns the letter as `lua/jobs/letters.lua` reads it."""
        letter = self.letter
        about = orjson.dumps([letter.kind, letter.error_class, letter.model, letter.template])
        text = letter.group.encode() + b" " + pack(letter)
        return [
            letter.id, letter.group, about, repr(float(letter.at)), self.seen, text, letter.job_id if self.is_stripped else "",
        ]  # fmt: skip


class RedisLetters:
    """Reads letters."""

    def __init__(self, partitions: JobPartitions) -> None:
        self._partitions = partitions

    async def seen(self, partition: int, letter_id: str) -> LetterSeen | None:
        """Returns a letter of a partition. Raises JobsUnavailable."""
        text = await self._partitions.command(b"HGET", self._partitions.key(partition, "dead"), letter_id)
        return None if text is None else LetterSeen(read_letter(text), text)

    async def find(self, letter_id: str) -> tuple[int, LetterSeen] | None:
        """Returns a letter and the partition that has it. Raises JobsUnavailable."""
        for partition in range(self._partitions.number if letter_id else 0):
            seen = await self.seen(partition, letter_id)
            if seen is not None:
                return partition, seen
        return None


def read_letter(text: bytes) -> DeadLetter:
    """Returns the letter that was written so."""
    return unpack(text.partition(b" ")[2])


# --- steps of jobs with their pieces ---

APPLY, LOAD = job_script("apply", "take", "letters", "erase"), job_script("load")
T = TypeVar("T")
MOST_KNOWN = 4096
"""Jobs of which this process remembers how it last saw them, and writes without an answer that it remembers."""
MOST_TRIES = 100
"""The tries to write about one job: of each round of tries one is written, so that nobody waits for ever."""


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
    redrives_letter: bool = False
    """The step is about a letter that was read before it: where that has changed, the step is not taken."""
    is_forced: bool = False
    """The step is written though the job is as it was."""


Change = Callable[[PieceMachine, WholeJob, float, StepEffects], None]
"""Changes a job that was read."""
Evidence = Callable[[RedisJob], bool]
"""Returns whether a write about a claim was done, by what it left behind."""


class RedisSteps:
    """Takes steps."""

    def __init__(self, partitions: JobPartitions, following: Following) -> None:
        self._partitions = partitions
        self._following = following
        self.letters = RedisLetters(partitions)
        self._known: dict[str, RedisJob] = {}
        """Jobs as they were last seen here: a step that begins with one needs no look, unless it was written since."""
        self._unacknowledged: set[tuple[str, str, int, int]] = set()
        """Writes about claims whose answers were lost."""
        self.workers = 1
        """The number of gateways that share the work, as of the last look."""

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

        def changed(pieces: PieceMachine, job: RedisJob, now: float, effects: StepEffects) -> Job:
            change(pieces, job.kept, now, effects)
            return job.kept.job

        return await self._take(partition, job_id, changed, seen)

    async def flag(self, partition: int, job_id: str, tenant: str | None, flag: JobFlag) -> Job | None:
        """Asks something of a job that has not ended, durably; None: there is none, or it is another tenant's."""

        def change(pieces: PieceMachine, job: RedisJob, now: float, _effects: StepEffects) -> Job:
            if tenant in (None, job.kept.job.tenant) and not job.kept.job.state.is_end:
                pieces.flag(job.kept, flag, now)
            return job.kept.job

        job = await self._take(partition, job_id, change, None, is_durable=True)
        return job if job is not None and tenant in (None, job.tenant) else None

    async def write(
        self, name: str, work: ClaimedWork, change: Change, was_done: Evidence, *, is_durable: bool = False
    ) -> WriteResult:
        """Takes a step about a claim, if it holds. `is_durable` waits until it is as safe as what is acknowledged."""
        fence = self._partitions.own_fence(work.fence)
        mark = (name, work.job.id, work.piece, work.fence)

        def changed(pieces: PieceMachine, job: RedisJob, now: float, effects: StepEffects) -> WriteResult:
            piece = job.kept.pieces.get(work.piece)
            if piece is None or piece.state != "claimed" or piece.fence != fence:
                return written(job.kept.job) if mark in self._unacknowledged and was_done(job) else NOT_OURS
            change(pieces, job.kept, now, effects)
            left = job.kept.pieces.get(work.piece)
            if left is not None:
                left.fence = fence  # by which a repeated write knows that it was done
            if job.kept.job.state.is_end:
                effects.ended_by = str(work.fence)
            return written(job.kept.job)

        try:
            partition, seen = self._partitions.of_fence(work.fence), self._known.get(work.job.id)
            result = await self._take(partition, work.job.id, changed, seen, is_durable=is_durable)
        except NotDurable:
            self._unacknowledged.discard(mark)
            raise
        except JobsUnavailable:
            if len(self._unacknowledged) >= MOST_KNOWN:
                self._unacknowledged.clear()
            self._unacknowledged.add(mark)
            raise
        self._unacknowledged.discard(mark)
        return NOT_OURS if result is None else result

    def is_unacknowledged(self, name: str, work: ClaimedWork) -> bool:
        """Returns whether the answer of such a write about the claim was lost, and it was not repeated since."""
        return (name, work.job.id, work.piece, work.fence) in self._unacknowledged

    async def state_of(self, work: ClaimedWork) -> WriteResult:
        """Returns what is asked of a job whose claim has ended as it should. Raises JobsUnavailable."""
        (seen,) = await self.look(self._partitions.of_fence(work.fence), [work.job.id])
        return NOT_OURS if seen is None else written(seen.kept.job)

    async def _take(
        self,
        partition: int,
        job_id: str,
        change: Callable[[PieceMachine, RedisJob, float, StepEffects], T],
        seen: RedisJob | None,
        *,
        is_durable: bool = False,
    ) -> T | None:
        """Reads the job, changes a copy, and writes what differs if the job is still as it was read; else again from there."""
        is_fresh = False
        for _ in range(MOST_TRIES):
            mark = self._partitions.mark(partition) if is_durable else None
            if seen is None:
                (seen,), is_fresh = await self.look(partition, [job_id], mark), True
                if seen is None:
                    self._known.pop(job_id, None)
                    return None
            job, writes, effects = _copy(seen), seen.writes, StepEffects()
            letter_id = job.kept.job.about.get(REDRIVES)
            # the dead letter that the job runs again: the job's end, if this is it, is written into it
            redriven = None if letter_id is None else await self.letters.seen(partition, letter_id)
            result = change(self._pieces(effects, job, redriven), job, self._partitions.now(), effects)
            arguments = _arguments(job_id, seen, job, effects)
            if arguments is None:
                if is_fresh:
                    await self._settle(mark, result)  # somebody may have done it just now
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
                await self._settle(mark, result)
                return result
            if effects.redrives_letter and seen.writes == writes:
                raise LetterMoved  # the job is as it was: so it was the letter that kept it from being written
        raise JobsUnavailable("Jobs cannot be kept now: too many write about one of them at once.")

    async def _settle(self, mark: bytes | None, result: object) -> None:
        """Returns when a step is as safe as it has to be. Raises NotDurable with its result, OutcomeUnknown."""
        try:
            await self._partitions.settle([mark])
        except NotDurable as short:
            short.result = result
            raise

    def _pieces(self, effects: StepEffects, job: RedisJob, redriven: LetterSeen | None) -> PieceMachine:
        def follow(kept: WholeJob, end: JobEnd, _now: float) -> None:
            size = job.payload_bytes if keeps_payload(kept.job, end.state) else 0
            letter = letter_of_job(kept.job, end, size)
            if letter is not None:
                effects.letters.append(LetterChange(letter))
            if redriven is not None:
                updated = end_redrive(redriven.letter, kept.job)
                if updated != redriven.letter:
                    effects.letters.append(LetterChange(updated, redriven.text))
            effects.following.extend(self._following(kept.job))

        return PieceMachine(follow, self.workers)  # the script knows what became ready, and the blobs of chunks


def thawed(job_id: str, text: bytes) -> RedisJob | None:
    """Returns the job of a text; None: there is none."""
    return records.thaw(job_id, text) if text else None


def _arguments(job_id: str, before: RedisJob, after: RedisJob, effects: StepEffects) -> list[Argument] | None:
    """Returns a step as `lua/jobs/apply.lua` reads it; None: nothing has changed."""
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


def _changes(before: dict[int, PieceRecord], after: dict[int, PieceRecord]) -> list[Argument]:
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


# --- claims of pieces, and what time does to jobs: they become due, claims and deadlines end ---

CLAIM, RENEW, TIDY = job_script("claim"), job_script("renew"), job_script("tidy")
FORGOTTEN_S = 3600.0
"""The time after which a worker that gives no sign is forgotten: each start of a replica is a new one."""
PROMOTED = 100
"""Pieces that become ready in one script, and jobs whose deadlines pass between two, at most."""
ENDED_AT_ONCE = 25
CLAIMED_AT_ONCE, RENEWED_AT_ONCE = 50, 200
"""Pieces that one script gives, or keeps, in a few milliseconds."""
MOST_LOOKS = 20
"""Scripts of one tick, at most, while there is more to do."""
LOOK_S, SILENT_S = 0.9, 1.6
"""Seconds after which a claim looks at what time has done; seconds without that, after which a tick does."""
RESTS = 6
"""The looks where nothing is to be done, of which one is left out, so that what else is asked now and then has its room."""

Depths = Mapping[tuple[str, Lane, str], JobDepth]


class RedisClaims:
    """Gives pieces to the worker of this replica, and takes its results.

    One script per partition does all of it, about once a second: a worker's claim looks at what time has done as well, and only
    where nobody claims does a tick look. A claim is an entry in a stream's list of pending ones: its worker keeps it young, and
    whoever claims takes over those that have grown older than a lease.
    """

    def __init__(
        self, partitions: JobPartitions, steps: RedisSteps, replica: str, lease_s: float, *, is_hasty: bool
    ) -> None:
        """`is_hasty` has everything looked at each time."""
        self._partitions = partitions
        self._steps = steps
        self._replica = replica
        self._lease_ms = round(lease_s * 1000)
        self._is_hasty = is_hasty
        self._looked_at = [-inf] * partitions.number
        self._depths: list[Depths] = [{}] * partitions.number
        self._is_empty = [False] * partitions.number
        self._open = [0] * partitions.number
        self._first = 0
        self._merged: Depths | None = {}

    def depth(self) -> Depths:
        """Returns what waits and runs, as of the last look."""
        if self._merged is None:
            merged: dict[tuple[str, Lane, str], JobDepth] = {}
            for depths in self._depths:
                for name, depth in depths.items():
                    _add(merged, name, depth)
            self._merged = merged
        return self._merged

    def open_elsewhere(self, partition: int) -> int:
        """Returns how many jobs are open in the other partitions, as of the last look."""
        return sum(self._open) - self._open[partition]

    async def claim(self, asks: Sequence[ClaimRequest]) -> list[ClaimedWork]:
        """Claims the first of what is ready, partition by partition. Raises JobsUnavailable where none can be asked."""
        rooms: Counter[str] = Counter()
        for ask in asks:
            rooms[ask.segment] += ask.most
        works: list[ClaimedWork] = []
        away = 0
        self._first += 1
        for place in range(self._partitions.number):
            partition = (self._first + place) % self._partitions.number
            if self._rests(partition):
                continue
            try:
                await self._claim_from(partition, rooms, works)
            except JobsUnavailable:  # those on other servers are not held up, and what was given is not lost
                away += 1
                if away == self._partitions.number and not works:
                    raise
        return works

    async def _claim_from(self, partition: int, rooms: Counter[str], works: list[ClaimedWork]) -> None:
        """Adds to the works what a partition has, as far as there is room. Raises JobsUnavailable."""
        while wanted := _some(rooms):
            before = len(works)
            try:
                await self._look(partition, wanted, works)
            finally:
                given = Counter(work.job.segment for work in works[before:])
                rooms.subtract(given)
            if all(given[ask.segment] < ask.most for ask in wanted):
                break

    def _rests(self, partition: int) -> bool:
        """Returns whether a look can be left out: there was nothing a moment ago, and nothing came from here since."""
        now_s = time.monotonic()
        rests = (
            (self._first + partition) % RESTS == 0
            and self._is_empty[partition]
            and partition not in self._partitions.readied
            and self._looked_at[partition] + SILENT_S > now_s
        )
        if rests and not self._is_hasty:
            self._looked_at[partition], self._is_empty[partition] = now_s, False  # the next is not left out
            return True
        return False

    def is_silent(self) -> bool:
        """Returns whether nobody has looked for a while."""
        return self._is_hasty or min(self._looked_at) + SILENT_S < time.monotonic()

    async def look(self) -> None:
        """Does what time has made due. Raises JobsUnavailable where some of it could not be done."""
        refusal: JobsUnavailable | None = None
        for partition in range(self._partitions.number):
            try:
                await self._look_on(partition)
            except JobsUnavailable as error:
                refusal = error
        if refusal is not None:
            raise refusal

    async def _look_on(self, partition: int) -> None:
        if self._is_hasty or self._looked_at[partition] + SILENT_S < time.monotonic():
            for _ in range(MOST_LOOKS):
                if not await self._look(partition, []):
                    break

    async def tidy(self) -> None:
        """Forgets workers that have nothing and gave no sign for long. Raises JobsUnavailable."""
        for partition in range(self._partitions.number):
            await self._partitions.run(TIDY, partition, round(FORGOTTEN_S * 1000))

    async def _look(self, partition: int, asks: Sequence[ClaimRequest], works: list[ClaimedWork] | None = None) -> bool:
        """Claims, and does a little of what time has made due; returns whether there is more to do."""
        now_s = time.monotonic()
        is_look = self._is_hasty or not asks or self._looked_at[partition] + LOOK_S < now_s
        if is_look:
            self._looked_at[partition] = now_s
        self._partitions.readied.discard(partition)
        rooms = [part for ask in asks for part in (quote(ask.segment, safe=""), ask.most)]
        arguments = (self._replica, self._lease_ms, int(is_look), PROMOTED, " ".join(LANES), len(asks), *rooms)
        reply = await self._partitions.run(CLAIM, partition, *arguments)
        _, _, due, promoted, given, depths, oldest, first, opened, workers = reply
        self._steps.workers = max(1, workers)
        if works is not None:
            works += [self._work(partition, row) for row in given]
        self._see(partition, depths, oldest if is_look else None, first)
        self._open[partition] = int(opened)
        self._is_empty[partition] = not (depths or given or due) if is_look else False
        if due:
            await self._attend(partition, [job_id.decode() for job_id in due])
        return len(due) == PROMOTED or promoted == PROMOTED

    def _work(self, partition: int, row: Sequence[Any]) -> ClaimedWork:
        job_id, piece, fence, claims, text, payload = row
        seen = records.thaw(job_id.decode(), text)
        self._steps.learn(seen.kept.job.id, seen)
        full = int(fence) * self._partitions.number + partition
        return ClaimedWork(seen.kept.job, int(piece), full, claims, payload)

    async def _attend(self, partition: int, job_ids: Sequence[str]) -> None:
        """Ends jobs whose deadlines have passed, and those that were to stop when their workers died."""
        found = await self._steps.look(partition, job_ids)
        for first in range(0, len(job_ids), ENDED_AT_ONCE):
            some = zip(job_ids[first : first + ENDED_AT_ONCE], found[first : first + ENDED_AT_ONCE], strict=True)
            await asyncio.gather(*[self._steps.take(partition, job_id, _stop, seen) for job_id, seen in some])

    def _see(self, partition: int, depths: Sequence[bytes], oldest: Sequence[bytes] | None, first: bytes) -> None:
        """Notes how much waits and runs; since when, only where that was looked at."""
        now, before = self._partitions.now(), self._depths[partition]
        since = {name: float(at) for name, at in zip((oldest or ())[::2], (oldest or ())[1::2], strict=True)}
        found: dict[tuple[str, Lane, str], JobDepth] = {}
        for name, number in zip(depths[::2], depths[1::2], strict=True):
            queue, letter = name.decode().rsplit(":", 1)
            shown = "later" if letter == "w" else records.STATES[letter]
            key = (*records.queue_parts(queue), shown)
            at = since.get(name)
            if at is None and shown == "later" and first:
                at = float(first)
            if at is None:
                at = before[key].oldest_at if oldest is None and key in before else now
            if int(number) > 0:
                _add(found, key, JobDepth(int(number), at))
        self._depths[partition], self._merged = found, None

    async def renew(self, works: Sequence[ClaimedWork]) -> list[WriteResult]:
        """Keeps claims young, and says what has been asked of the jobs."""
        results = [NOT_OURS] * len(works)
        for partition in range(self._partitions.number):
            places = [place for place, work in enumerate(works) if self._partitions.of_fence(work.fence) == partition]
            for first in range(0, len(places), RENEWED_AT_ONCE):
                some = places[first : first + RENEWED_AT_ONCE]
                claims = [part for place in some for part in records.claim_of(self._partitions, works[place])]
                _, _, renewed = await self._partitions.run(RENEW, partition, self._replica, *claims)
                for place, answer in zip(some, renewed, strict=True):
                    results[place] = read_result(answer)
        return results


def _some(rooms: Mapping[str, int]) -> list[ClaimRequest]:
    """Returns asks for about as many as one script gives."""
    left = {segment: room for segment, room in rooms.items() if room > 0}
    return [ClaimRequest(segment, min(room, max(8, CLAIMED_AT_ONCE // len(left)))) for segment, room in left.items()]


def read_result(reply: bytes) -> WriteResult:
    """Returns what a script says of a claim."""
    if not reply:
        return NOT_OURS
    ends_as, paused = reply.decode().split()
    return WriteResult(True, None if ends_as == records.NONE else JobState(ends_as), paused == "1")


def _stop(pieces: PieceMachine, kept: WholeJob, now: float, effects: StepEffects) -> None:
    effects.is_forced = True  # it is not due any more, whatever becomes of it
    if kept.job.deadline <= now and not is_past_stopping(kept.job):
        pieces.expire(kept, now)
    elif not kept.job.state.is_end:
        pieces.stop_if_requested(kept, now)


def _add(found: dict[tuple[str, Lane, str], JobDepth], name: tuple[str, Lane, str], depth: JobDepth) -> None:
    before = found.get(name, JobDepth(0, inf))
    found[name] = JobDepth(before.number + depth.number, min(before.oldest_at, depth.oldest_at))
