"""The work on dead letters: counts, redrives for operators, and the life of a redrive.

In this order: they are counted, and the old ones thrown away; operators look at them, have them run again, and throw them away;
jobs and batches are tried again by their ids; and a redrive runs letters one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.core.clock import Clock
from gateway.core.errors import NotFound
from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs.dead_letters.redrive import (
    LetterFilter,
    Redrive,
    RedriveFactory,
    is_due,
    letters_of,
    redrive_id_of,
    redrive_job,
    redrive_of,
    why_not_again,
)
from gateway.products.jobs.dead_letters.rules import (
    REDRIVES,
    DeadGroup,
    DeadLetter,
    LetterPage,
    LetterState,
    derived_letter_id,
)
from gateway.products.jobs.metrics import JobMeter
from gateway.products.jobs.model import DRAW_BYTES, JOB, Job, JobEnd, JobKind, JobState, NewJob, new_id
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store import Blobs, JobStore
from gateway.products.jobs.worker import JobEngine, RunningWork

# --- counts for the metrics, and old letters that are thrown away, beside the work ---

COUNT_S = 15.0
"""Seconds from one count to the next."""
TRIMS = 4
"""At one in so many counts the old letters are thrown away."""
AT_ONCE = 500
log = logging.getLogger("gateway.jobs")


class DeadLetterKeeping:
    """Counts and trims."""

    def __init__(self, store: JobStore, clock: Clock, rules: Callable[[], JobRules], meter: JobMeter | None) -> None:
        self._store = store
        self._clock = clock
        self._rules = rules
        self._meter = meter

    async def run_always(self) -> None:
        """Counts and trims until it is cancelled."""
        turn = 0
        while True:
            try:
                await self.count()
                if turn % TRIMS == TRIMS - 1:
                    await self.trim()
            except JobsUnavailable:  # the log says why
                pass
            except Exception:
                log.exception("dead letters could not be counted, or old ones thrown away")
            turn += 1
            await self._clock.sleep(COUNT_S)

    async def count(self) -> None:
        """Reports to the meter how many there are, and since when. Raises JobsUnavailable."""
        if self._meter is not None:
            self._meter.dead(await self._store.dead.groups(0), self._clock.wall())

    async def trim(self) -> None:
        """Throws away letters beyond their age, and payloads beyond their bound. Raises JobsUnavailable."""
        rules = self._rules()
        before = self._clock.wall() - rules.keep_dead_s
        while await self._store.dead.trim(before, rules.dead_letters.max_bytes, AT_ONCE) == AT_ONCE:
            pass


# --- what operators do with dead letters ---

NOT_THERE = "There is no such dead letter; GET /admin/dlq lists the groups, and their newest letters."
PRICED = 20
"""The letters of each model that are priced, to estimate what all of them would cost."""
PURGED_AT_ONCE = 500


@dataclass(slots=True)
class PlannedModel:
    """What a redrive would send to one model."""

    letters: int = 0
    input_tokens: int = 0
    priced: int = 0
    usd: float | None = None
    """The price of those letters that are priced."""


@dataclass(slots=True)
class RedrivePlan:
    """What a redrive would do."""

    letters: int = 0
    gone: int = 0
    """Letters that can't be run again."""
    models: dict[str, PlannedModel] = field(default_factory=dict)
    """Empty: deliveries, which go to no model."""


class DeadLetterService:
    """Answers operators."""

    def __init__(
        self,
        engine: JobEngine,
        blobs: Blobs,
        clock: Clock,
        rules: Callable[[], JobRules],
        draw: Callable[[int], bytes],
        price_of: Callable[[NewJob], Awaitable[float | None]],
    ) -> None:
        """`price_of` estimates what one attempt of a job costs in US dollars; None: it is not priced."""
        self._engine = engine
        self._blobs = blobs
        self._clock = clock
        self._rules = rules
        self._draw = draw
        self._price_of = price_of

    async def groups(self) -> Sequence[DeadGroup]:
        """Returns the groups, the largest first. Raises JobsUnavailable, as all methods do."""
        return await (await self._engine.reader()).dead.groups(self._rules().dead_letters.samples)

    async def page(self, page: LetterPage) -> Sequence[DeadLetter]:
        """Returns letters of a group, the oldest first."""
        return await (await self._engine.reader()).dead.page(page)

    async def find(self, letter_id: str) -> DeadLetter:
        """Returns a letter. Raises NotFound."""
        letter = await (await self._engine.reader()).dead.find(letter_id)
        if letter is None:
            raise NotFound(NOT_THERE)
        return letter

    async def payload(self, dead_letter: DeadLetter) -> bytes | None:
        """Returns what was to be done; None: it is gone."""
        return await self._again(await self._engine.reader()).payload(dead_letter)

    async def redrive_job(self, job_id: str) -> Job:
        """Returns a redrive. Raises NotFound."""
        job = await (await self._engine.reader()).find(job_id, None)
        if job is None or job.kind is not JobKind.REDRIVE:
            raise NotFound(NOT_THERE)
        return job

    async def redrive(self, spec: Redrive) -> Job:
        """Begins a redrive."""
        store = await self._engine.store()
        new = redrive_job(new_id(JOB, self._draw(DRAW_BYTES)), spec, self._clock.wall())
        (accepted,) = await store.accept([new])
        return accepted.job

    async def plan(self, spec: Redrive) -> RedrivePlan:
        """Returns what a redrive would do, and changes nothing; what it would cost is estimated from a few letters."""
        store = await self._engine.reader()
        again, plan = self._again(store), RedrivePlan()
        async for letter in letters_of(store, spec.filter):
            if letter.state is LetterState.REDRIVING:
                continue
            if spec.most is not None and plan.letters >= spec.most:
                break
            if not letter.is_replayable:
                plan.gone += 1
                continue
            plan.letters += 1
            name = "" if letter.kind == "delivery" else spec.to_model or letter.model
            of_model = plan.models.setdefault(name, PlannedModel())
            of_model.letters += 1
            if of_model.priced < PRICED and name:
                await self._price(of_model, await again.job_of(letter, spec))
        return plan

    async def purge(self, chosen: LetterFilter) -> int:
        """Throws letters away; returns how many."""
        store, purged = await self._engine.reader(), 0
        ids: list[str] = []
        async for letter in letters_of(store, chosen):
            ids.append(letter.id)
            if len(ids) == PURGED_AT_ONCE:
                purged, ids = purged + await store.dead.purge(ids), []
        return purged + (await store.dead.purge(ids) if ids else 0)

    async def _price(self, of_model: PlannedModel, new: NewJob | None) -> None:
        if new is None:
            return
        usd = await self._price_of(new)
        of_model.priced += 1
        of_model.input_tokens += len(new.payload) // 4
        if usd is not None:
            of_model.usd = (of_model.usd or 0.0) + usd

    def _again(self, store: JobStore) -> RedriveFactory:
        return RedriveFactory(store, self._blobs, self._clock, self._rules)


# --- jobs and batches that failed, tried again by their ids: what is dead of them is redriven ---


class Retried(NamedTuple):
    """What is tried again of one job or batch."""

    letters: int
    """Dead letters: one for a job, as many as lines for a batch."""
    replay: str
    """The id of the redrive that begins with them."""
    job: str | None
    """The id of the new job; None: of a batch, where each line is one of its own."""


class JobRetries:
    """Tries jobs again, for operators."""

    def __init__(self, dead: DeadLetterService, engine: JobEngine) -> None:
        self._dead = dead
        self._engine = engine

    async def retry(self, job_id: str) -> Retried | str | None:
        """Begins with a job, or the dead lines of a batch, again; a text says why not; None: there is no such job.

        Raises JobsUnavailable.
        """
        store = await self._engine.reader()
        job = await store.find(job_id, None)
        if job is None:
            return None
        if job.kind is JobKind.BATCH:
            chosen, count = LetterFilter(kind="line", job_id=job.id), 0
            async for line in letters_of(store, chosen):
                count += _is_due(line)
            if not count:
                return why_not_again(job, None)
            return Retried(count, (await self._dead.redrive(Redrive(chosen))).id, None)
        letter = await store.dead.find(job.about.get(REDRIVES) or derived_letter_id(job.id, None))
        why_not = why_not_again(job, letter)
        if why_not or letter is None:
            return why_not
        redrive = await self._dead.redrive(Redrive(LetterFilter(id=letter.id)))
        return Retried(1, redrive.id, redrive_id_of(letter, letter.replays + 1))


def _is_due(letter: DeadLetter) -> bool:
    return letter.is_replayable and letter.state is not LetterState.REDRIVING


# --- the life of a redrive: letters are run again one after the other, so many a second ---

SKIPPED: Final = "skipped"
"""In `marks` of a redrive at its end: letters whose work was gone."""
BEATS = 20
"""The most beats of a redrive in a second: at a higher rate letters begin together."""
LATE_S = 1.0
"""A redrive that is so far behind its rate goes on from there: it does not make up for it with a burst."""


class RedriveJobs:
    """Runs jobs of kind `replay`.

        walk -> wait for the next one's time -> mark it and make its job, in one step -> … -> end

    Invariant: whatever dies in between, each letter is run again once by each redrive: those that it has marked name it.
    """

    def __init__(self, store: JobStore, again: RedriveFactory, clock: Clock) -> None:
        self._store = store
        self._again = again
        self._clock = clock

    async def run(self, running: RunningWork) -> None:
        """Redrives until there is nothing more to do, or as far as it may go now, and ends the claim."""
        try:
            skipped = await self._redrive(running, redrive_of(running.work.job))
        except JobsUnavailable:  # the log says why
            await running.give_back(self._store)
        else:
            await self._end(running, skipped)

    async def _redrive(self, running: RunningWork, spec: Redrive) -> int:
        """Redrives letters; returns how many could not be. Raises JobsUnavailable."""
        job, size = running.work.job, max(1, int(spec.rate // BEATS))
        pace = _Pace(self._clock, spec.rate)
        done, skipped = job.tally.total, 0
        batch: list[DeadLetter] = []
        async with aclosing(letters_of(self._store, spec.filter)) as letters:
            async for letter in letters:
                if not is_due(letter, job):
                    continue
                batch.append(letter)
                left = size if spec.most is None else min(size, spec.most - done)
                if len(batch) < left:
                    continue
                begun = await self._begin_all(running, pace, batch[:left], spec)
                done, skipped, batch = done + begun, skipped + len(batch) - begun, []
                if running.stopping.is_set() or not running.is_ours or (spec.most is not None and done >= spec.most):
                    return skipped
        return skipped + len(batch) - await self._begin_all(running, pace, batch, spec)

    async def _begin_all(self, running: RunningWork, pace: _Pace, letters: Sequence[DeadLetter], spec: Redrive) -> int:
        """Waits for its time, and begins redrives together; returns how many were begun. Raises JobsUnavailable."""
        await running.pause(pace.wait_s())
        if running.stopping.is_set() or not letters:
            return 0
        begun = sum(await asyncio.gather(*(self._begin(running, letter, spec) for letter in letters)))
        pace.begun(begun)
        return begun

    async def _begin(self, running: RunningWork, letter: DeadLetter, spec: Redrive) -> bool:
        """Marks a letter and makes its job; returns whether it was done. Raises JobsUnavailable."""
        new = await self._again.job_of(letter, spec)
        if new is None or not running.is_ours:
            return False
        result = await self._store.dead.redrive(running.work, letter.id, letter.replays + 1, new)
        return running.note(result.write) and result.is_done

    async def _end(self, running: RunningWork, skipped: int) -> None:
        if not running.is_ours:
            return
        if running.stopping.is_set() and running.ends_as is None:  # paused, or the process is on its way out
            await running.give_back(self._store)
        else:
            end = JobEnd(running.ends_as or JobState.SUCCEEDED, marks={SKIPPED: skipped})
            await running.finish(self._store, end)


class _Pace:
    """When the next redrives may begin, so that so many a second do."""

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._due_at = clock.monotonic()

    def wait_s(self) -> float:
        """Returns how long to wait."""
        return max(0.0, self._due_at - self._clock.monotonic())

    def begun(self, number: int) -> None:
        """Notes so many that have begun."""
        self._due_at = max(self._due_at, self._clock.monotonic() - LATE_S) + number / self._rate
