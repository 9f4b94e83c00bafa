"""What operators may do with dead letters: look at them, have them run again, and throw them away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gateway.core.clock import Clock
from gateway.core.errors import NotFound
from gateway.products.jobs.dead_letters.replay.replay.again import Again, letters_of
from gateway.products.jobs.dead_letters.replay.replay.replay import LetterFilter, ReplaySpec, replay_job
from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import DeadGroup, DeadLetter, LetterPage, LetterState
from gateway.products.jobs.model.ids import DRAW_BYTES, JOB, new_id
from gateway.products.jobs.model.job import Job, JobKind, NewJob
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store.blobs import Blobs
from gateway.products.jobs.store.jobs import JobStore

NOT_THERE = "There is no such dead letter; GET /admin/dlq lists the groups, and their newest letters."
PRICED = 20
"""Letters of each model that are priced, to estimate what all of them would cost."""
PURGED_AT_ONCE = 500


@dataclass(slots=True)
class PlannedModel:
    """What a replay would send to one model."""

    letters: int = 0
    input_tokens: int = 0
    priced: int = 0
    usd: float | None = None
    """Of those that are priced."""


@dataclass(slots=True)
class ReplayPlan:
    """What a replay would do."""

    letters: int = 0
    gone: int = 0
    """Letters that can't be run again."""
    models: dict[str, PlannedModel] = field(default_factory=dict)
    """Empty: deliveries, which go to no model."""


class DeadLetterService:
    """Answers operators."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[JobStore]],
        read_store: Callable[[], Awaitable[JobStore]],
        blobs: Blobs,
        clock: Clock,
        rules: Callable[[], JobRules],
        draw: Callable[[int], bytes],
        price_of: Callable[[NewJob], Awaitable[float | None]],
    ) -> None:
        """`price_of` estimates what one attempt of a job costs in US dollars; None: it is not priced."""
        self._open_store = open_store
        self._read_store = read_store
        self._blobs = blobs
        self._clock = clock
        self._rules = rules
        self._draw = draw
        self._price_of = price_of

    async def groups(self) -> Sequence[DeadGroup]:
        """Returns the groups, the largest first. Raises JobsUnavailable, as all methods do."""
        return await (await self._read_store()).dead.groups(self._rules().dead_letters.samples)

    async def page(self, page: LetterPage) -> Sequence[DeadLetter]:
        """Returns letters of a group, the oldest first."""
        return await (await self._read_store()).dead.page(page)

    async def find(self, letter_id: str) -> DeadLetter:
        """Returns a letter. Raises NotFound."""
        letter = await (await self._read_store()).dead.find(letter_id)
        if letter is None:
            raise NotFound(NOT_THERE)
        return letter

    async def payload(self, letter: DeadLetter) -> bytes | None:
        """Returns what was to be done; None: it is gone."""
        return await self._again(await self._read_store()).payload(letter)

    async def replay_of(self, job_id: str) -> Job:
        """Returns a replay. Raises NotFound."""
        job = await (await self._read_store()).find(job_id, None)
        if job is None or job.kind is not JobKind.REPLAY:
            raise NotFound(NOT_THERE)
        return job

    async def replay(self, spec: ReplaySpec) -> Job:
        """Begins a replay."""
        store = await self._open_store()
        new = replay_job(new_id(JOB, self._draw(DRAW_BYTES)), spec, self._clock.wall())
        (accepted,) = await store.accept([new])
        return accepted.job

    async def plan(self, spec: ReplaySpec) -> ReplayPlan:
        """Returns what a replay would do, and changes nothing; what it would cost is estimated from a few letters."""
        store = await self._read_store()
        again, plan = self._again(store), ReplayPlan()
        async for letter in letters_of(store, spec.filter):
            if letter.state is LetterState.REPLAYING:
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
        store, purged = await self._read_store(), 0
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

    def _again(self, store: JobStore) -> Again:
        return Again(store, self._blobs, self._clock, self._rules)
