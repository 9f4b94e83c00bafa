"""The port of dead letters: what failed for reasons that are not its caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import DeadGroup, DeadLetter, LetterPage, ReplayResult
from gateway.products.jobs.model.job import ClaimedWork, NewJob


class DeadLetters(Protocol):
    """The dead letters of a store of jobs. Every method raises JobsUnavailable.

    They come by the ends of jobs (`letters.letter_of_job`) and by `commit`. A job whose letter `holds_job` is not forgotten.
    """

    async def groups(self, samples: int, after: str | None = None) -> Sequence[DeadGroup]:
        """Returns the largest groups, in that order, with their newest `samples` letters; or the next by id, `after` one."""
        ...

    async def page(self, page: LetterPage) -> Sequence[DeadLetter]:
        """Returns the letters of a group that are open, by (`at`, id)."""
        ...

    async def find(self, letter_id: str) -> DeadLetter | None:
        """Returns a letter, also one that was replayed with success."""
        ...

    async def payload(self, letter_id: str) -> bytes | None:
        """Returns the payload of a letter's job; None: it is not kept, or the letter is about a line."""
        ...

    async def replay(self, work: ClaimedWork, letter_id: str, number: int, new: NewJob) -> ReplayResult:
        """Marks a letter as being replayed for the `number`-th time and accepts its new job, whatever the bounds, in one step.

        `work` is the claim of the replay, whose job's `tally.total` grows by one with it. The end of the new job, which names
        the letter in its `about`, writes the outcome into the letter, in the step of that end, however it comes.
        """
        ...

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Removes letters; returns how many there were."""
        ...

    async def trim(self, before: float, max_bytes: int, most: int) -> int:
        """Removes letters with an `at` before `before`, and of the oldest others the payloads, until the rest are within
        `max_bytes`; at most `most` letters, and returns how many.
        """
        ...
