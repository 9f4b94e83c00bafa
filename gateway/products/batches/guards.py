"""What a worker knows of a chunk beside its lines: why one waits, why no more of them begin, and which of them may kill.

In this order: lines that are left for another claim; calls that wait in the delay queue; an input that is not there; the brake
of a batch; how many of its lines may fail; lines that may have killed the process, and their dead letters.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import orjson

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.products.batches import output
from gateway.products.batches.input import InputLine, read_custom_id
from gateway.products.batches.output import ENDPOINT, INPUT, LineIdentity, unanswered_line
from gateway.products.jobs.dead_letters.rules import POISON, DeadLetter, letter_of_line
from gateway.products.jobs.model import ClaimedWork, Job, JobError, JobFlag, JobState, LineResult, WriteResult, line_id
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import RunningWork
from gateway.products.pipelines.rules import BROKEN, MOST_FAILED, RUN_BUDGET_EXCEEDED

# What a claim of a chunk leaves for another one: lines that failed for now, or for which there is no room for some time.
#
# A line that is put off for longer than FAR_S does not wait in the chunk: what can start does not wait behind it. Once several
# for one model are, none let through in between, the others for it stay where they are until the first of these may ask again.

FAR_S = 5.0
"""A line that has to wait longer leaves the chunk; one that may ask again sooner stays, and is not read again."""
ENOUGH = 8
"""Lines in a row for one model that are put off so: whatever keeps them out is not one line's size."""


class DeferredLines:
    """The lines that one claim leaves without a result. Times are wall-clock seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[int, list[float]] = {}
        """By the number of their model, when lines may ask again that were put off since the last one was let through."""
        self.number = 0
        """Lines that were tried."""
        self.at: float | None = None
        """When the first of them may be tried again."""

    def leave(self, wait_s: float) -> None:
        """Leaves a line, which may be tried again so much later."""
        at = self._clock.wall() + wait_s
        self.number += 1
        self.at = at if self.at is None else min(at, self.at)

    def put_off(self, model: int, wait_s: float) -> None:
        """Leaves a line for which there is no room."""
        self.leave(wait_s)
        self._refused.setdefault(model, []).append(self._clock.wall() + wait_s)

    def let_through(self, model: int) -> None:
        self._refused.pop(model, None)

    def leave_all_until(self, wait_s: float) -> None:
        """Leaves everything until so much later, and no longer."""
        self.at = self._clock.wall() + wait_s

    def models(self) -> Collection[int]:
        """Returns the numbers of the models for which there is no room now."""
        if not self._refused:
            return ()
        now = self._clock.wall()
        return [model for model, times in self._refused.items() if len(times) >= ENOUGH and min(times) > now]


# The calls that are made for the lines of a chunk, and which of them wait in the delay queue.


class LineCalls:
    """The calls of lines under way, by the lines' numbers."""

    def __init__(self, is_holding: Callable[[], bool]) -> None:
        """`is_holding` tells whether the delay queue has any call at all: without one there is nothing to count."""
        self._is_holding = is_holding
        self._calls: dict[int, list[Call]] = {}

    def begin(self, line: int) -> list[Call]:
        """Returns where the next call of a line goes as soon as there is one."""
        calls = self._calls[line] = []
        return calls

    def end(self, line: int) -> None:
        self._calls.pop(line, None)

    def held(self) -> int:
        """Returns how many calls wait in the delay queue; lines that go together are one."""
        if not self._is_holding():
            return 0
        return len(
            {id(sent) for calls in self._calls.values() if calls and (sent := _sent_for(calls)).held is not None}
        )

    def held_lines(self) -> Sequence[int]:
        return [line for line, calls in self._calls.items() if calls and _sent_for(calls).held is not None]


def _sent_for(calls: list[Call]) -> Call:
    """Returns the call that is sent for a line: its last one, or the one that several have become together."""
    joined = calls[-1].joined
    return calls[-1] if joined is None else joined[0]


MOST_MISSING = 30
"""Tries of a chunk whose input is not there, 10 s from one to the next: a volume may be mounted again."""


class MissingInputs:
    """Counts how often the input of chunks was not there, in this process."""

    def __init__(self) -> None:
        self._tries: dict[tuple[str, int], int] = {}

    def is_gone_for_good(self, work: ClaimedWork, trouble: Exception) -> bool:
        """Counts a try of a chunk whose input is not there; tells whether there have been enough of them."""
        if not isinstance(trouble, FileNotFoundError):
            return False
        chunk = work.job.id, work.piece
        tries = self._tries[chunk] = self._tries.get(chunk, 0) + 1
        return tries >= MOST_MISSING

    def was_read(self, work: ClaimedWork) -> None:
        """Notes that lines of a chunk have been read: what was not there has come back, and is counted anew from now on."""
        self._tries.pop((work.job.id, work.piece), None)

    def forget(self, job_id: str) -> None:
        for one in [one for one in self._tries if one[0] == job_id]:
            del self._tries[one]


# The brake of batches: where line after line fails for what an operator has to mend, the rest is not burnt.

FIRST_PROBE_S, LAST_PROBE_S = 30.0, 900.0
"""Seconds until a braked batch tries one line: the first delay, doubled with each failure up to the second."""


@dataclass(slots=True)
class ErrorPause:
    """The brake of one batch in this process."""

    in_a_row: int = 0
    error_class: str = ""
    """Why it is on; empty: it is off."""
    waits_for: str = ""
    """The code with which lines are put off for long, and none is let through; empty: none is put off so."""
    noted: tuple[str, str] = "", ""
    """What the batch's marks say of the two."""
    probe_s: float = FIRST_PROBE_S
    has_served: bool = False
    """A line of the batch did not fail so: until one does, the first failure is enough."""

    @property
    def is_on(self) -> bool:
        return bool(self.error_class)

    def succeeded(self) -> None:
        """Notes a line that did not fail so: everything goes on."""
        self.in_a_row, self.error_class, self.probe_s, self.has_served = 0, "", FIRST_PROBE_S, True

    def failed(self, error_class: str, after: int, began_at_s: float = 0.0) -> None:
        """Notes a line that failed with a class of the brake's; `after` so many in a row it is on.

        `began_at_s` is the `probe_s` under which the line began as a probe: of several only one doubles it, and lines that
        were under way when the brake went on do not.
        """
        if self.is_on and began_at_s == self.probe_s:
            self.probe_s = min(LAST_PROBE_S, 2 * self.probe_s)
        self.in_a_row += 1
        if self.in_a_row >= after or not self.has_served:
            self.error_class = error_class


class Brakes:
    """The brakes of the batches that this process works on."""

    def __init__(self) -> None:
        self._brakes: dict[str, ErrorPause] = {}

    def of(self, job: Job) -> ErrorPause:
        """Returns the brake of a batch; one that is new here is on if the batch's mark says so, of whatever process."""
        noted = job.marks.get(output.BRAKED_BY, ""), job.marks.get(output.WAITS_FOR, "")
        return self._brakes.setdefault(job.id, ErrorPause(0, *noted, noted, has_served=job.tally.completed > 0))

    @property
    def job_ids(self) -> Sequence[str]:
        return list(self._brakes)

    async def note(self, store: JobStore, running: RunningWork) -> None:
        """Has the batch's marks say why it stands still, where that has changed: they are shown by any process."""
        brake = self.of(running.work.job)
        if (error_class := (brake.error_class, brake.waits_for)) != brake.noted:
            brake.noted = error_class
            marks = {output.BRAKED_BY: error_class[0] or None, output.WAITS_FOR: error_class[1] or None}
            await running.write(lambda: store.note(running.work, marks))

    def forget(self, job_id: str) -> None:
        self._brakes.pop(job_id, None)


# How many lines of a batch may fail: once more have, the rest of it would be paid for in vain, and it is stopped.
#
# What is judged here is what this claim knows: the failures that were counted when it began, and its own since. Chunks that run
# beside it may know of more, and whoever reads the batch at its end judges by all.

MOST_EXAMPLE_BYTES = 4_000
"""Of the line that is kept as an example; a longer one is not."""
_UNPAID = RUN_BUDGET_EXCEEDED.encode()


class FailureLimit:
    """Counts the failures of one claimed chunk."""

    def __init__(self, store: JobStore, running: RunningWork) -> None:
        self._store = store
        self._running = running
        self._most: int | None = running.work.job.about.get(MOST_FAILED)
        self._failed = running.work.job.tally.failed

    async def check(self, results: Sequence[LineResult]) -> None:
        """Stops the batch where more have failed than may. Raises JobsUnavailable."""
        if self._most is None:
            return
        # what is refused for want of the run's money costs nothing, and the end tells why
        failed = [result for result in results if result.is_failed and _UNPAID not in result.text]
        self._failed += len(failed)
        if not failed or self._failed <= self._most or self._running.ends_as is not None:
            return
        store, work = self._store, self._running.work
        example = failed[-1].text if len(failed[-1].text) <= MOST_EXAMPLE_BYTES else b""
        note = {BROKEN: example.decode(errors="replace")}
        if await self._running.write(lambda: store.note(work, note)):
            await store.flag(work.job.id, work.job.tenant, JobFlag.CANCEL)
            self._running.note(WriteResult(is_ours=True, ends_as=JobState.CANCELLED))


# Lines that may have killed the process: found by running ever fewer of them, and given up once that is certain.
#
#     a chunk whose worker died -> 8 lines at a time, noted as they begin -> those of a crash alone, and last -> given up
#
# The first claim of a chunk costs nothing. A worker of a later one notes durably which lines it is about to begin: if it dies,
# too, these are suspects, and the others are not. Suspects run alone, one at a time in a process. Invariant: a line is given up
# only if it was the only suspect that ran in three processes that died; in more of them where other lines, too, were met by
# crashes as they ran alone: then it is the process that is killed again and again, whatever it does.

WINDOW = 8
"""Lines that run at a time in a chunk whose last worker died."""
MOST_CRASHES = 3
"""A line that was the only suspect so often is not run again. Fewer would take lines for the cause that were only there when a
process was killed from outside, more would take more than five crashes in all.
"""


class SuspectLines:
    """The suspects of one claimed chunk."""

    def __init__(self, store: JobStore, running: RunningWork, turn: asyncio.Lock) -> None:
        """`turn` is held by the one suspect that runs in this process."""
        self._store = store
        self._running = running
        self.turn = turn
        self._name = f"suspect:{running.work.piece}"
        self._crashes: dict[int, int] = {}
        """By line, how often it ran alone when its process died; those that have got a result since stay here, as a warning."""
        self._aside: deque[InputLine] = deque()
        self.is_on = running.work.claims > 1 or self._name in running.work.job.marks

    def __len__(self) -> int:
        """Returns how many lines wait to be run alone."""
        return len(self._aside)

    def open(self, has_result: Collection[int]) -> None:
        """Reads what the worker before was about to do."""
        mark = self._running.work.job.marks.get(self._name) or {}
        self._crashes = {int(line): crashes for line, crashes in mark.get("crashes", {}).items()}
        begun = [line for line in mark.get("running", ()) if line not in has_result]
        for line in begun:
            self._crashes[line] = self._crashes.get(line, 0) + (len(begun) == 1)

    def window(self, usual: int) -> int:
        return min(usual, WINDOW) if self.is_on else usual

    def sort_out(self, lines: Sequence[InputLine]) -> tuple[list[InputLine], list[InputLine]]:
        """Returns the lines that may run beside others, and those to be given up; suspects are set aside."""
        others = sum(crashes > 0 for crashes in self._crashes.values()) - 1
        most = MOST_CRASHES + max(0, others)
        deadly = [line for line in lines if self._crashes.get(line.number, 0) >= most]
        self._aside.extend(line for line in lines if self._crashes.get(line.number, most) < most)
        return [line for line in lines if line.number not in self._crashes], deadly

    def crashes_of(self, line: int) -> int:
        return self._crashes.get(line, 0)

    def take(self) -> InputLine:
        """Returns the next line to be run alone: those go first that are the least suspicious."""
        line = min(self._aside, key=lambda one: (self._crashes[one.number], one.number))
        self._aside.remove(line)
        return line

    async def note(self, begun: Iterable[int]) -> bool:
        """Notes durably which lines are under way from now on; returns whether the chunk is still this worker's."""
        mark = {"running": sorted(begun), "crashes": {str(line): crashes for line, crashes in self._crashes.items()}}
        return await self._running.write(lambda: self._store.note(self._running.work, {self._name: mark}))

    async def clear(self) -> WriteResult:
        """Takes the note away: the worker ends its claim in order. Raises JobsUnavailable."""
        return await self._store.note(self._running.work, {self._name: None})


# Lines of batches that become dead letters (`lines` of `dead_letters`): of what killed its processes, and of what failed for
# now as often as it was tried. All others are their caller's, in the error file.

WHY = "The gateway died several times while it served this request; it is not tried again."


def given_up(job: Job, line: InputLine) -> LineResult:
    custom_id = ""
    with suppress(ValueError):
        custom_id = read_custom_id(line.text)
    return unanswered_line(LineIdentity(line.number, line_id(job.id, line.number), custom_id), POISON, WHY)


def failed_letter(job: Job, line: InputLine, error: JobError, attempts: int) -> DeadLetter:
    model = ""
    with suppress(ValueError, KeyError, TypeError):
        model = str(orjson.loads(line.text)["body"]["model"])
    source = {
        "blob": job.about[INPUT],
        "offset": line.offset,
        "length": len(line.text),
        "endpoint": job.about[ENDPOINT],
        "key": job.key,
        "lane": job.lane,
        "segment": job.segment,
    }
    return letter_of_line(job, line.number, model, source, error, attempts)
