"""A dead letter on its way to be run again: what was to be done is fetched from where it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable

from gateway.core.clock import Clock
from gateway.products.jobs.dead_letters.replay.replay.replay import LetterFilter, ReplaySpec, job_again, line_again
from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import DeadGroup, DeadLetter, LetterPage
from gateway.products.jobs.model.job import NewJob
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store.blobs import Blobs
from gateway.products.jobs.store.jobs import JobStore

AT_ONCE = 100
"""Letters of a page."""


class Again:
    """Makes the jobs that run dead letters again."""

    def __init__(self, store: JobStore, blobs: Blobs, clock: Clock, rules: Callable[[], JobRules]) -> None:
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._rules = rules

    async def job_of(self, letter: DeadLetter, spec: ReplaySpec) -> NewJob | None:
        """Returns the job for the next replay of a letter; None: it cannot be run. Raises JobsUnavailable."""
        rules, now = self._rules(), self._clock.wall()
        if letter.line is not None:
            text = await self._line(letter)
            return None if text is None else line_again(letter, text, spec, now, rules.deadline_s, rules.attempts)
        original = await self._store.find(letter.job_id, None)
        payload = await self._store.dead.payload(letter.id)
        if original is None or payload is None:
            return None
        return job_again(letter, original, payload, spec, now, rules.deadline_s)

    async def payload(self, letter: DeadLetter) -> bytes | None:
        """Returns what was to be done; None: it is gone. Raises JobsUnavailable."""
        return await self._store.dead.payload(letter.id) if letter.line is None else await self._line(letter)

    async def _line(self, letter: DeadLetter) -> bytes | None:
        source = letter.source
        try:
            parts = self._blobs.read(source["blob"], source["offset"], source["length"])
            text = b"".join([part async for part in parts])
        except FileNotFoundError:
            return None
        return text if len(text) == source["length"] else None


async def letters_of(store: JobStore, chosen: LetterFilter) -> AsyncGenerator[DeadLetter]:
    """Yields the open letters that are meant, group by group, the largest groups and the oldest letters first.

    Raises JobsUnavailable.
    """
    if chosen.id is not None:
        letter = await store.dead.find(chosen.id)
        if letter is not None and letter.is_open and _fits(letter, chosen):
            yield letter
        return
    largest = await store.dead.groups(0)
    for group in largest:
        async for letter in _letters_in(store, group, chosen):
            yield letter
    done, last = {group.id for group in largest}, ""
    while some := await store.dead.groups(0, last):  # there may be as many groups as letters
        for group in some:
            if group.id not in done:
                async for letter in _letters_in(store, group, chosen):
                    yield letter
        last = some[-1].id


async def _letters_in(store: JobStore, group: DeadGroup, chosen: LetterFilter) -> AsyncIterator[DeadLetter]:
    after = (-1.0, "")
    while chosen.may_have(group) and (page := await store.dead.page(LetterPage(group.id, after, AT_ONCE))):
        for letter in page:
            if chosen.has(letter):
                yield letter
        after = (page[-1].at, page[-1].id)


def _fits(letter: DeadLetter, chosen: LetterFilter) -> bool:
    return (
        chosen.has(letter)
        and chosen.group in (None, letter.group)
        and chosen.kind in (None, str(letter.kind))
        and chosen.error_class in (None, letter.error_class)
        and chosen.model in (None, letter.model)
    )
