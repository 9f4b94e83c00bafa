"""Jobs and batches that failed, tried again by their ids: what is dead of them is replayed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from gateway.products.jobs.dead_letters.replay.replay.again import letters_of
from gateway.products.jobs.dead_letters.replay.replay.replay import (
    LetterFilter,
    ReplaySpec,
    id_of_replay,
    why_not_again,
)
from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import (
    REPLAYS,
    DeadLetter,
    LetterState,
    derived_letter_id,
)
from gateway.products.jobs.dead_letters.service.service import DeadLetterService
from gateway.products.jobs.model.job import Job, JobKind
from gateway.products.jobs.store.jobs import JobStore


class Retried(NamedTuple):
    """What is tried again of one job or batch."""

    letters: int
    """Dead letters: one for a job, as many as lines for a batch."""
    replay: str
    """The id of the replay that begins with them."""
    job: str | None
    """The id of the new job; None: of a batch, where each line is one of its own."""


class JobRetries:
    """Tries jobs again, for operators."""

    def __init__(self, dead: DeadLetterService, read_store: Callable[[], Awaitable[JobStore]]) -> None:
        self._dead = dead
        self._read_store = read_store

    async def retry(self, job_id: str) -> Retried | str | None:
        """Begins with a job, or the dead lines of a batch, again; a text says why not; None: there is no such job.

        Raises JobsUnavailable.
        """
        store = await self._read_store()
        job = await store.find(job_id, None)
        if job is None:
            return None
        if job.kind is JobKind.BATCH:
            return await self._retry_lines(store, job)
        letter = await store.dead.find(job.about.get(REPLAYS) or derived_letter_id(job.id, None))
        why_not = why_not_again(job, letter)
        if why_not or letter is None:
            return why_not
        replay = await self._dead.replay(ReplaySpec(LetterFilter(id=letter.id)))
        return Retried(1, replay.id, id_of_replay(letter, letter.replays + 1))

    async def _retry_lines(self, store: JobStore, job: Job) -> Retried | str:
        chosen = LetterFilter(kind="line", job_id=job.id)
        count = 0
        async for letter in letters_of(store, chosen):
            count += _is_due(letter)
        if not count:
            return why_not_again(job, None)
        return Retried(count, (await self._dead.replay(ReplaySpec(chosen))).id, None)


def _is_due(letter: DeadLetter) -> bool:
    return letter.is_replayable and letter.state is not LetterState.REPLAYING
