"""The dead letters of the store of jobs in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.products.jobs import transitions
from gateway.products.jobs.dead_letters.rules import (
    REDRIVES,
    DeadGroup,
    DeadLetter,
    LetterPage,
    RedriveResult,
    begin_redrive,
    end_redrive,
    letter_of_job,
    stripped,
)
from gateway.products.jobs.model import ClaimedWork, Job, JobEnd, NewJob
from gateway.products.jobs.transitions import GROUPS_AT_ONCE, MOST_GROUPS, NOT_OURS, WholeJob, written


class MemoryDeadLetters:
    """Implements `gateway.products.jobs.dead_letters.rules.DeadLetters`."""

    def __init__(
        self,
        jobs: Mapping[str, WholeJob],
        claimed: Callable[[ClaimedWork], WholeJob | None],
        accept: Callable[[NewJob], object],
    ) -> None:
        self._jobs = jobs
        self._claimed = claimed
        self._accept = accept
        self._letters: dict[str, DeadLetter] = {}

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Keeps letters; one that is there stays as it is."""
        for letter in letters:
            self._letters.setdefault(letter.id, letter)

    def ended(self, job: Job, end: JobEnd, payload_bytes: int) -> None:
        """Makes the letter of a job at its end, and writes the outcome of a replay into that which was replayed."""
        letter = letter_of_job(job, end, payload_bytes)
        if letter is not None:
            self.add([letter])
        replays = self._letters.get(job.about.get(REDRIVES, ""))
        if replays is not None:
            self._letters[replays.id] = end_redrive(replays, job)

    def holds(self, job_id: str) -> bool:
        """Tells whether a job must not be forgotten."""
        return any(letter.job_id == job_id and letter.holds_job for letter in self._letters.values())

    async def groups(self, samples: int, after: str | None = None) -> Sequence[DeadGroup]:
        """Returns the groups with the most letters, the largest first, each with its newest letters; or the next by id."""
        found: dict[str, list[DeadLetter]] = {}
        for letter in self._in_order():
            found.setdefault(letter.group, []).append(letter)
        groups = [
            DeadGroup(
                *(name, letters[0].kind, letters[0].error_class, letters[0].model, letters[0].template),
                *(len(letters), sum(letter.bytes for letter in letters), letters[0].at, letters[-1].at),
                letters[::-1][:samples],
            )
            for name, letters in found.items()
        ]
        if after is not None:
            return sorted((group for group in groups if group.id > after), key=lambda group: group.id)[:GROUPS_AT_ONCE]
        return sorted(groups, key=lambda group: (-group.number, group.id))[:MOST_GROUPS]

    async def page(self, page: LetterPage) -> Sequence[DeadLetter]:
        """Returns the letters of a group that are open, in order."""
        found = [one for one in self._in_order() if one.group == page.group and (one.at, one.id) > page.after]
        return found[: page.limit]

    async def find(self, letter_id: str) -> DeadLetter | None:
        """Returns a letter."""
        return self._letters.get(letter_id)

    async def payload(self, letter_id: str) -> bytes | None:
        """Returns the payload of a letter's job."""
        letter = self._letters.get(letter_id)
        kept = None if letter is None or not letter.bytes else self._jobs.get(letter.job_id)
        return None if kept is None else kept.payload

    async def redrive(self, work: ClaimedWork, letter_id: str, number: int, new: NewJob) -> RedriveResult:
        """Marks a letter as being replayed, and accepts its new job."""
        kept, letter = self._claimed(work), self._letters.get(letter_id)
        if kept is None:
            return RedriveResult(NOT_OURS, is_done=False)
        begun = None if letter is None else begin_redrive(letter, work.job.id, number, new.job.id)
        if begun is not None:
            self._letters[letter_id] = begun
            self._accept(new)
            kept.job = transitions.one_more(kept.job)
        return RedriveResult(written(kept.job), is_done=begun is not None)

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Removes letters."""
        return sum(self._letters.pop(letter_id, None) is not None for letter_id in letter_ids)

    async def trim(self, before: float, max_bytes: int, most: int) -> int:
        """Removes old letters, and of the oldest others the payloads."""
        old = sorted((letter.at, letter.id) for letter in self._letters.values() if letter.at < before)[:most]
        await self.purge([letter_id for _, letter_id in old])
        done = len(old)
        for letter in sorted(self._letters.values(), key=lambda one: (one.at, one.id)):
            if done == most or sum(one.bytes for one in self._letters.values()) <= max_bytes:
                break
            if letter.bytes:
                self._letters[letter.id] = stripped(letter)
                done += 1
                kept = self._jobs.get(letter.job_id)
                if kept is not None:
                    kept.payload = b""
        return done

    def _in_order(self) -> list[DeadLetter]:
        return sorted(
            (letter for letter in self._letters.values() if letter.is_open), key=lambda letter: (letter.at, letter.id)
        )
