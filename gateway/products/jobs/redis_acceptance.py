"""How jobs come into the Redis, and what else is written and read of them there.

In this order: jobs that come in, one of a kind under a dedupe key, in the place of another under a debounce key, or new; writes
that share a script; where jobs are; what a worker writes; and claims whose caller may leave.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from gateway.core.clock import SteadyClock
from gateway.drivers.durability import JobsUnavailable, OutcomeUnknown
from gateway.drivers.redis.link import BackgroundTasks, Script
from gateway.drivers.redis.partitions import Argument, JobPartitions, job_script, tenant_token
from gateway.products.jobs import redis_records as records
from gateway.products.jobs import transitions
from gateway.products.jobs.dead_letters.rules import DeadLetter
from gateway.products.jobs.model import (
    CHECK,
    Accepted,
    ChunkPlan,
    ChunkResult,
    ClaimedWork,
    ClaimRequest,
    Job,
    JobEnd,
    JobError,
    JobKind,
    JobPage,
    JobQuery,
    LineResult,
    NewJob,
    Stage,
    WriteResult,
)
from gateway.products.jobs.redis_claims import (
    LetterChange,
    LetterMoved,
    RedisClaims,
    RedisSteps,
    StepEffects,
    read_result,
)
from gateway.products.jobs.transitions import NOT_OURS, OpenBounds, PieceMachine, WholeJob

ACCEPT, TAKE_BACK = job_script("accept", "take"), job_script("take_back", "take", "erase")

TAKE_BACK_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between attempts to remove what was taken, but not acknowledged."""


class Sent(NamedTuple):
    """A job that was sent, and when: what is taken back are the attempts until then, also those that arrive later."""

    new: NewJob
    at_us: int


class RedisAcceptance:
    """Adds to the jobs. `open_elsewhere` returns how many jobs are open in all partitions but one; `cancel` stops one."""

    def __init__(
        self,
        partitions: JobPartitions,
        bounds: OpenBounds,
        open_elsewhere: Callable[[int], int],
        cancel: Callable[[int, str], Awaitable[object]],
        background: BackgroundTasks,
    ) -> None:
        self._partitions = partitions
        self._background = background
        self._sending = SteadyClock()
        self._refused: dict[str, Sent] = {}
        """Jobs that were refused because nobody answered, and may have been taken; who sends one again wants it."""
        self._bounds = bounds
        self._open_elsewhere = open_elsewhere
        self._cancel = cancel

    async def accept(self, jobs: Sequence[NewJob]) -> list[Accepted]:
        """Takes jobs, durably, all or none of those of one partition. Raises TooManyJobs, JobsUnavailable.

        Where an answer is lost it is asked for again. What is refused does not happen later, as far as that can be: what was
        taken all the same is taken back as soon as the Redis answers, and stopped if it runs already.
        """
        for new in jobs:
            self._refused.pop(new.job.id, None)
        sent_us = int(self._sending.wall() * 1e6)
        try:
            return await self._accept_all(jobs, sent_us)
        except JobsUnavailable as error:
            if not self._partitions.is_closed:
                self._refused.update({new.job.id: Sent(new, sent_us) for new in jobs})
                self._background.start(self._take_back([new.job.id for new in jobs]))
            if isinstance(error, OutcomeUnknown):
                raise OutcomeUnknown(_unknown([new.job for new in jobs])) from error
            raise

    async def _accept_all(self, jobs: Sequence[NewJob], sent_us: int) -> list[Accepted]:
        places = [self._partitions.of_tenant(new.job.tenant) for new in jobs]
        accepted: dict[int, Accepted] = {}
        for partition, numbers in groupby(sorted(range(len(jobs)), key=places.__getitem__), key=places.__getitem__):
            some = list(numbers)
            ask = partial(self._accept, partition, [jobs[number] for number in some], sent_us)
            answers = await self._partitions.retry_until_known(ask)
            accepted.update(zip(some, answers, strict=True))
        return [accepted[number] for number in range(len(jobs))]

    async def take_back(self, jobs: Sequence[Sent]) -> None:
        """Removes those that were taken all the same, unless somebody has met them since. Raises JobsUnavailable."""
        for new, sent_us in jobs:
            partition = self._partitions.of_tenant(new.job.tenant)
            _, _, runs = await self._partitions.run(TAKE_BACK, partition, new.job.id, sent_us)
            if runs:
                await self._cancel(partition, new.job.id)

    async def _take_back(self, job_ids: Sequence[str]) -> None:
        """Takes back what was refused. Where the Redis is away for longer than all of these waits, what it has taken runs."""
        for delay_s in TAKE_BACK_S:
            with suppress(JobsUnavailable):
                await self.take_back([self._refused[name] for name in job_ids if name in self._refused])
                break
            await asyncio.sleep(delay_s)
        for name in job_ids:
            self._refused.pop(name, None)

    async def _accept(self, partition: int, jobs: Sequence[NewJob], sent_us: int, is_again: bool) -> list[Accepted]:
        """Takes jobs of one partition by one script, and waits until they are safe; `is_again`: it may have run before."""
        bounds, mark = self._bounds, self._partitions.mark(partition)
        rooms = (bounds.in_all - self._open_elsewhere(partition), bounds.per_tenant)
        arguments = [argument for new in jobs for argument in records.new_arguments(new)]
        reply = await self._partitions.run(ACCEPT, partition, *rooms, sent_us, int(is_again), *arguments, mark=mark)
        if len(reply) == 4:
            _, _, in_all, of_tenant = reply
            refusal = bounds.refusal(in_all + self._open_elsewhere(partition), of_tenant)
            if refusal is not None:
                raise refusal
        if not reply[2]:
            raise JobsUnavailable("Jobs cannot be kept now: these were taken back a moment ago. Send them again.")
        accepted = [_accepted(row, new, is_again=is_again) for row, new in zip(reply[2], jobs, strict=True)]
        await self._partitions.settle([mark])
        return accepted


def _accepted(row: Sequence[bytes], new: NewJob, *, is_again: bool) -> Accepted:
    job_id, how, text = row
    job = records.read_job(job_id.decode(), text)
    if how == b"replaced":
        return Accepted(job, is_new=False, debounced=records.debounced_of(text))
    is_new = how == b"new" or (is_again and job.id == new.job.id)  # by an attempt of which nobody heard
    return Accepted(job, is_new=is_new, is_conflict=how == b"conflict")


def _unknown(jobs: Sequence[Job]) -> str:
    """Returns the message for those of whose jobs nobody knows what has become."""
    names = ", ".join(job.id for job in jobs[:3]) + (", …" if len(jobs) > 3 else "")
    there = "/v1/batches" if jobs[0].kind is JobKind.BATCH else "/v1/jobs"
    return (
        f"Jobs cannot be kept now: their Redis did not answer in time, and may have taken {names} all the same. It is taken "
        "back within two minutes if it can be: send it again under the same Idempotency-Key or dedupe key, which never makes a "
        f"second one, or look after that time (GET {there}/{jobs[0].id}) whether it is there."
    )


# --- writes that come at the same moment, as one script: results of lines that chunks commit, parts of logs ---

COMMIT = job_script("commit", "letters")
MOST_ARGUMENTS = 4000
"""About the most arguments of one script, which takes some milliseconds then."""


class WaitingWrite(NamedTuple):
    """A write that waits for its script."""

    arguments: Sequence[Argument]
    weight: int
    answer: asyncio.Future[WriteResult]


class SharedScript:
    """Runs a script for all writes that wait in a partition, up to a weight.

    While one is under way in a partition, what comes waits for the next. Invariant: each write has its own answer, or
    JobsUnavailable; whoever leaves takes nobody's write along.
    """

    def __init__(
        self,
        partitions: JobPartitions,
        background: BackgroundTasks,
        script: Script,
        most_weight: int,
        front: Callable[[], Sequence[Argument]] = tuple,
    ) -> None:
        """`front` gives the arguments that come before those of the writes."""
        self._partitions = partitions
        self._background = background
        self._script = script
        self._most_weight = most_weight
        self._front = front
        self._waiting: list[deque[WaitingWrite]] = [deque() for _ in range(partitions.number)]
        self._is_running = [False] * partitions.number

    async def write(self, work: ClaimedWork, arguments: Sequence[Argument], weight: int) -> WriteResult:
        """Returns what the script says of this write. Raises JobsUnavailable."""
        partition = self._partitions.of_fence(work.fence)
        answer: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        self._waiting[partition].append(WaitingWrite(arguments, weight, answer))
        if not self._is_running[partition]:
            self._is_running[partition] = True
            self._background.start(self._run(partition))
        return await answer

    async def _run(self, partition: int) -> None:
        """Sends what waits, until nothing does; what comes in one turn of the loop goes together."""
        try:
            while some := self._next(partition):
                try:
                    sent = [argument for one in some for argument in one.arguments]
                    _, _, answer = await self._partitions.run(self._script, partition, *self._front(), *sent)
                except JobsUnavailable as error:
                    for one in some:
                        if not one.answer.done():
                            one.answer.set_exception(JobsUnavailable(error.message))
                except Exception as defect:  # noqa: BLE001  # theirs all, who would wait for ever
                    for one in some:
                        if not one.answer.done():
                            one.answer.set_exception(defect)
                else:
                    for one, result in zip(some, answer, strict=True):
                        if not one.answer.done():
                            one.answer.set_result(read_result(result))
        finally:
            self._is_running[partition] = False

    def _next(self, partition: int) -> list[WaitingWrite]:
        some: list[WaitingWrite] = []
        weight = 0
        while self._waiting[partition] and weight < self._most_weight:
            some.append(self._waiting[partition].popleft())
            weight += some[-1].weight
        return some


class RedisCommits:
    """Commits results."""

    def __init__(self, partitions: JobPartitions, background: BackgroundTasks) -> None:
        self._partitions = partitions
        self._script = SharedScript(partitions, background, COMMIT, MOST_ARGUMENTS)

    async def commit(self, work: ClaimedWork, results: Sequence[LineResult], dead: Sequence[DeadLetter]) -> WriteResult:
        """Keeps the first result of each line, and counts it, and letters about such lines. Raises JobsUnavailable."""
        letters = [part for letter in dead for part in (letter.line or 0, *LetterChange(letter).arguments())]
        lines = [part for result in results for part in records.line_arguments(result)]
        arguments = [*records.claim_of(self._partitions, work), len(dead), len(results), *letters, *lines]
        return await self._script.write(work, arguments, len(arguments))


# --- where jobs are, by their ids, and what is read of them there without a script ---

PAGE, FORGET = job_script("page"), job_script("forget", "erase")
ROWS_AT_ONCE = 200
"""The jobs that one script of a list reads."""
FORGOTTEN_AT_ONCE = 50
MOST_KNOWN = 4096


class JobPlaces:
    """Finds jobs.

    All that a tenant has is in one partition; a job that follows from another's end, and has no tenant, is beside that one.
    Whoever does not name a tenant asks all partitions, unless this process has met the job before.
    """

    def __init__(self, partitions: JobPartitions) -> None:
        self._partitions = partitions
        self._known: dict[str, int] = {}

    def learn(self, job_id: str, partition: int) -> None:
        """Remembers where a job is."""
        if self._partitions.number > 1:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[job_id] = partition

    def learn_work(self, work: ClaimedWork) -> None:
        """Remembers where a claimed job is."""
        self.learn(work.job.id, self._partitions.of_fence(work.fence))

    async def find(self, job_id: str, tenant: str | None) -> int | None:
        """Returns the partition of a job; None: there is none, or it is another tenant's. Raises JobsUnavailable."""
        found = await self._search(job_id, tenant, b"s")
        return None if found is None else found[0]

    async def row(self, job_id: str, tenant: str | None, *fields: bytes) -> Sequence[Any] | None:
        """Returns fields of a job, its text the first of them; None: there is none, or it is another tenant's."""
        found = await self._search(job_id, tenant, *fields)
        return None if found is None else found[1]

    async def chunks(self, partition: int, job_id: str) -> list[ChunkResult]:
        """Returns the complete chunks of a batch, in order."""
        found = await self._partitions.command(b"HGETALL", self._partitions.key(partition, f"k:{job_id}"))
        return sorted(records.read_chunk(*pair) for pair in zip(found[::2], found[1::2], strict=True))

    async def open_chunks(self, partition: int, job_id: str) -> list[int]:
        """Returns the chunks that have lines."""
        found = await self._partitions.command(b"HGET", self._partitions.key(partition, f"j:{job_id}"), b"o")
        return [] if found is None else [int(number) for number in found.split()]

    async def lines(self, partition: int, job_id: str, chunks: Sequence[int]) -> list[LineResult]:
        """Returns the results of the lines of chunks, in the order of lines."""
        results: list[LineResult] = []
        for chunk in chunks:
            found = await self._partitions.command(b"HGETALL", self._partitions.key(partition, f"l:{job_id}:{chunk}"))
            results += [records.read_line(*pair) for pair in zip(found[::2], found[1::2], strict=True)]
        return sorted(results)

    async def _search(self, job_id: str, tenant: str | None, *fields: bytes) -> tuple[int, Sequence[Any]] | None:
        if tenant:
            likely = [self._partitions.of_tenant(tenant)]
        else:  # all of them, that in which it was met before the others
            likely = sorted(range(self._partitions.number), key=lambda partition: partition != self._known.get(job_id))
        for partition in likely:
            row = await self._partitions.command(b"HMGET", self._partitions.key(partition, f"j:{job_id}"), *fields)
            if row[0] is not None and tenant in (None, records.tenant_of(row[0])):
                self.learn(job_id, partition)
                return partition, row
        return None


class _Listed(NamedTuple):
    seq: tuple[int, int]
    job: Job


async def page_of(partitions: JobPartitions, query: JobQuery, after: tuple[int, int] | None) -> JobPage:
    """Returns a page of jobs behind the place `after`, of all partitions that have some. Raises JobsUnavailable.

    The list is newest first; long work is done in many short scripts.
    """
    numbers = range(partitions.number) if query.tenant is None else [partitions.of_tenant(query.tenant)]
    is_sifted = query.statuses or query.metadata or query.parent == ""
    step = ROWS_AT_ONCE if is_sifted else min(ROWS_AT_ONCE, query.limit + 1)
    found: list[Job] = []
    before = "+" if after is None else f"{after[0]}-{after[1]}"
    while True:
        rows: list[_Listed] = []
        rest: list[tuple[int, int]] = []
        for partition in numbers:
            some, last = await _rows(partitions, partition, query, before, step)
            rows += some
            rest += last
        down_to = max(rest, default=(0, 0))
        rows = sorted((row for row in rows if row.seq >= down_to), key=lambda row: row.seq, reverse=True)
        found += [row.job for row in rows if transitions.matches(row.job, query)]
        if len(found) > query.limit or not rest:
            return JobPage(found[: query.limit], len(found) > query.limit)
        before = f"{down_to[0]}-{down_to[1]}"


async def _rows(
    partitions: JobPartitions, partition: int, query: JobQuery, before: str, most: int
) -> tuple[Sequence[_Listed], Sequence[tuple[int, int]]]:
    """Returns the next jobs of a partition, and the place of the last if there may be more."""
    tenant = "" if query.tenant is None else tenant_token(query.tenant)
    _, _, last, rows = await partitions.run(PAGE, partition, tenant, query.kind or "", before, most, query.parent or "")
    found = [_Listed(records.seq_of(text), records.read_job(name.decode(), text)) for name, text in rows]
    if not last:
        return found, ()
    first, second = last.split(b"-")
    return found, [(int(first), int(second))]


async def forget_ended(partitions: JobPartitions, before: float, most: int) -> int:
    """Forgets the jobs that ended first, of each partition; returns how many. Raises JobsUnavailable."""
    count = 0
    for partition in range(partitions.number):
        needed = 0
        while count < most:
            step = min(FORGOTTEN_AT_ONCE, most - count)
            _, _, gone, passed_over = await partitions.run(FORGET, partition, before, step, needed)
            count, needed = count + gone, needed + passed_over
            if gone + passed_over < step:
                break
    return count


# --- what a worker writes at the end of a claim, or about its job ---


class RedisWrites:
    """Implements these methods of `gateway.products.jobs.store.JobStore`.

    Each is a step that is taken if the claim holds.
    """

    def __init__(self, partitions: JobPartitions, steps: RedisSteps, places: JobPlaces) -> None:
        self._partitions = partitions
        self._steps = steps
        self._places = places

    async def give_back(
        self, work: ClaimedWork, run_at: float | None, error: JobError | None, *, is_attempt: bool
    ) -> WriteResult:
        def change(pieces: PieceMachine, kept: WholeJob, now: float, _effects: StepEffects) -> None:
            kept.job = transitions.tried(kept.job, error, is_attempt=is_attempt)
            claims = kept.pieces[work.piece].claims - 1
            ready_at = now if run_at is None else max(now, run_at)
            pieces.put(kept, work.piece, ready_at, now, claims=max(0, claims))
            pieces.stop_if_requested(kept, now)

        def was_done(job: records.RedisJob) -> bool:
            piece = job.kept.pieces.get(work.piece)
            is_back = (
                piece is not None and piece.fence == self._partitions.own_fence(work.fence) and piece.state != "claimed"
            )
            return is_back or job.ended_by == str(work.fence)

        return await self._steps.write("give_back", work, change, was_done)

    async def park(self, work: ClaimedWork, children: Sequence[NewJob], marks: Mapping[str, object]) -> WriteResult:
        news = transitions.fitting(work.job, children)
        if work.job.kind is not JobKind.RUN:
            return NOT_OURS

        def change(pieces: PieceMachine, kept: WholeJob, now: float, effects: StepEffects) -> None:
            kept.job = transitions.noted(kept.job, marks)
            pieces.park(kept, now)
            effects.ended_by = str(work.fence)
            if kept.job.ends_as is work.job.ends_as:
                effects.following += news

        return await self._steps.write("park", work, change, lambda job: job.ended_by == str(work.fence))

    async def begin_lines(self, work: ClaimedWork, plan: ChunkPlan, marks: Mapping[str, object]) -> WriteResult:
        if work.piece != CHECK:
            return NOT_OURS

        def change(pieces: PieceMachine, kept: WholeJob, now: float, effects: StepEffects) -> None:
            pieces.begin(kept, plan, marks, now)
            effects.ended_by = str(work.fence)

        return await self._steps.write(
            "begin", work, change, lambda job: job.ended_by == str(work.fence) and job.kept.job.stage is not Stage.CHECK
        )

    async def note(self, work: ClaimedWork, marks: Mapping[str, object]) -> WriteResult:
        def change(_pieces: PieceMachine, kept: WholeJob, _now: float, _effects: StepEffects) -> None:
            kept.job = transitions.noted(kept.job, marks)

        return await self._steps.write("note", work, change, lambda _: False, is_durable=True)

    async def complete_chunk(self, work: ClaimedWork, result: ChunkResult) -> WriteResult:
        if not transitions.is_chunk(work.job, work.piece):
            return NOT_OURS
        partition = self._partitions.of_fence(work.fence)

        def change(pieces: PieceMachine, kept: WholeJob, now: float, effects: StepEffects) -> None:
            pieces.complete(kept, result, now)
            effects.chunk = result

        is_unacknowledged = self._steps.is_unacknowledged("complete", work)
        answer = await self._steps.write("complete", work, change, lambda _: False)
        if is_unacknowledged and not answer.is_ours and result in await self._places.chunks(partition, work.job.id):
            return await self._steps.state_of(work)  # it was done: the names of its blobs are those of this claim
        return answer

    async def finish(self, work: ClaimedWork, end: JobEnd, following: Sequence[NewJob] = ()) -> WriteResult:
        """Ends a job, and accepts those that follow from its end, whatever the bounds, in one step.

        They are kept beside it: a job that follows is of the same tenant, or of none.
        """

        def change(pieces: PieceMachine, kept: WholeJob, now: float, effects: StepEffects) -> None:
            pieces.end(kept, end, now)
            effects.answer = end.answer
            effects.following += following

        return await self._steps.write("finish", work, change, lambda job: job.ended_by == str(work.fence))

    async def look(self, works: Sequence[ClaimedWork]) -> list[WriteResult]:
        """Returns whether claims hold, and what was asked of their jobs."""
        results = []
        for work in works:
            results.append(await self._steps.write("look", work, lambda *_: None, lambda _: False))
        return results

    async def count_redrive(
        self, work: ClaimedWork, change: LetterChange | None, new: NewJob | None
    ) -> WriteResult | None:
        """Counts a job that a redrive begins, with its letter; None: the letter has changed meanwhile."""

        def counted(_pieces: PieceMachine, kept: WholeJob, _now: float, effects: StepEffects) -> None:
            kept.job = transitions.one_more(kept.job)
            if change is not None and new is not None:
                effects.redrives_letter = True
                effects.letters.append(change)
                effects.following.append(new)

        try:
            return await self._steps.write("replay", work, counted, lambda _: False)
        except LetterMoved:
            return None


# --- claims whose caller may leave ---


class CancellableClaims:
    """Claims for callers that may be cancelled: the pieces are then given back at once, uncounted. Without it, a lease would
    pass until others get the pieces.
    """

    def __init__(
        self, claims: RedisClaims, writes: RedisWrites, places: JobPlaces, background: BackgroundTasks
    ) -> None:
        self._claims = claims
        self._writes = writes
        self._places = places
        self._background = background

    async def claim(self, asks: Sequence[ClaimRequest]) -> Sequence[ClaimedWork]:
        """Claims the first of what is ready. Raises JobsUnavailable."""
        has_left = asyncio.Event()
        task = self._background.start(self._claim(asks, has_left))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            has_left.set()
            if task.done() and not task.cancelled() and task.exception() is None:
                self._background.start(self._give_back(task.result()))
            raise

    async def _claim(self, asks: Sequence[ClaimRequest], has_left: asyncio.Event) -> Sequence[ClaimedWork]:
        works = await self._claims.claim(asks)
        for work in works:
            self._places.learn_work(work)
        if has_left.is_set():
            await self._give_back(works)
        return works

    async def _give_back(self, works: Sequence[ClaimedWork]) -> None:
        for work in works:
            with suppress(JobsUnavailable):
                await self._writes.give_back(work, None, None, is_attempt=False)
