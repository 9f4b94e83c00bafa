"""A chunk of a batch: its lines go through the pipeline, as many at a time as their limits can start soon.

    open -> feed -> (a line: serve, wait, serve again) -> commit -> … -> write the chunk's blobs -> complete

The delay queue itself sets the number: lines are fed while only a few of them are held there. In this order: lines that are
left for another claim; the calls of lines; an input that is not there; the brake of a batch; how many of its lines may fail;
lines that may have killed the process, and dead letters; commits; and the chunk, which has one of each. Invariants: a line has
at most one call at a time; whatever was paid for is committed, unless the process dies or the claim is lost; a chunk ends
completed or given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Final

import orjson

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import BudgetExceeded
from gateway.drivers.durability import JobsUnavailable
from gateway.installed import is_installed
from gateway.products.batches import output
from gateway.products.batches.finish import write_chunk
from gateway.products.batches.input import ChunkInput, InputLine, lines_of
from gateway.products.batches.output import (
    BROKEN,
    ENDPOINT,
    INPUT,
    MOST_FAILED,
    LineIdentity,
    answered_line,
    plan_of,
    request_of,
    unanswered_line,
)
from gateway.products.jobs.calls import RUN_BUDGET_EXCEEDED, CallServer, Outcome, TryResult, attempts_allowed, backoff_s
from gateway.products.jobs.dead_letters.rules import POISON, DeadLetter, is_dead_class, letter_of_line
from gateway.products.jobs.lines import read_custom_id, read_line
from gateway.products.jobs.model import ClaimedWork, Job, JobError, JobFlag, JobState, LineResult, WriteResult, line_id
from gateway.products.jobs.rules import DeadLines, JobRules
from gateway.products.jobs.store import Blobs, JobStore
from gateway.products.jobs.worker import LAST_RETRY_S, RunningWork

HAS_GROUPS: Final = is_installed("gateway.features.grouping")
if HAS_GROUPS:
    from gateway.features.grouping.service import GROUP

# --- lines that one claim leaves for another: failed for now, or without room for some time ---

FAR_S = 5.0
"""A line that has to wait longer leaves the chunk; one that may ask again sooner stays, and is not read again."""
ENOUGH = 8
"""Lines in a row for one model that are put off for long: whatever keeps them out is not one line's size."""


class DeferredLines:
    """The lines that one claim leaves without a result. Times are wall-clock seconds.

    A line that is put off for longer than FAR_S does not wait in the chunk: what can start does not wait behind it. Once ENOUGH
    for one model are, none let through in between, the others for it stay where they are until the first of these may ask
    again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[int, list[float]] = {}
        """By the number of a model, when its lines may ask again that were put off since the last one was let through."""
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


# --- the calls of lines, and which of them wait in the delay queue ---


class LineCalls:
    """The calls of lines under way, by the lines' numbers."""

    def __init__(self, is_holding: Callable[[], bool]) -> None:
        """`is_holding` returns whether the delay queue has any call at all: without one there is nothing to count."""
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
    group = GROUP.find(calls[-1]) if HAS_GROUPS else None
    return calls[-1] if group is None else group.sent


# --- an input that is not there ---

MOST_MISSING = 30
"""Tries of a chunk whose input is not there, 10 s from one to the next: a volume may be mounted again."""


class MissingInputs:
    """Counts how often the input of chunks was not there, in this process."""

    def __init__(self) -> None:
        self._tries: dict[tuple[str, int], int] = {}

    def is_gone_for_good(self, work: ClaimedWork, trouble: Exception) -> bool:
        """Counts a try of a chunk whose input is not there; returns whether there have been enough of them."""
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


# --- the brake of a batch: line after line fails for what an operator has to mend, and the rest is not burnt ---

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
    """The `error_class` and the `waits_for` that the batch's marks say."""
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


# --- how many lines of a batch may fail: with more, the rest would be paid for in vain, and is stopped ---

MOST_EXAMPLE_BYTES = 4_000
"""The longest failed line that is kept as an example."""
_UNPAID = RUN_BUDGET_EXCEEDED.encode()


class FailureLimit:
    """Counts the failures of one claimed chunk.

    It judges by what its claim knows: the failures that were counted when it began, and its own since. Chunks that run beside
    it may know of more, and whoever reads the batch at its end judges by all.
    """

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


# --- lines that may have killed the process: ever fewer run together, until it is certain ---

WINDOW = 8
"""Lines that run at a time in a chunk whose last worker died."""
MOST_CRASHES = 3
"""A line that was the only suspect so often is not run again. Fewer would take lines for the cause that were only there when a
process was killed from outside, more would take more than five crashes in all.
"""


class SuspectLines:
    """The suspects of one claimed chunk.

        a chunk whose worker died -> 8 lines at a time, noted as they begin -> those of a crash alone, and last -> given up

    The first claim of a chunk costs nothing. A worker of a later one notes durably which lines it is about to begin: if it
    dies, too, these are suspects, and the others are not. Suspects run alone, one at a time in a process. Invariant: a line is
    given up only if it was the only suspect that ran in three processes that died; in more of them where other lines, too, were
    met by crashes as they ran alone: then it is the process that is killed again and again, whatever it does.
    """

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


# --- dead letters: of what killed its processes, and of what failed for now as often as it was tried ---

WHY = "The gateway died several times while it served this request; it is not tried again."


def given_up(job: Job, line: InputLine) -> LineResult:
    """Returns the result of a line that has killed the process again and again."""
    custom_id = ""
    with suppress(ValueError):
        custom_id = read_custom_id(line.text)
    return unanswered_line(LineIdentity(line.number, line_id(job.id, line.number), custom_id), POISON, WHY)


def failed_letter(job: Job, line: InputLine, error: JobError, attempts: int) -> DeadLetter:
    """Returns the dead letter of a line (`lines` of `dead_letters`); other failures are their caller's, in the error file."""
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


# --- commits: many results at a time, in step with those of other chunks ---

BEAT_S = 0.025
"""A line's result waits in memory so long at most, unless the store is busy: a crash has it paid for once more."""
LAST_COMMIT_S = 2.0
"""The longest wait of a process that ends for a commit under way."""


class LineCommits:
    """Commits the results of one claimed chunk, one commit at a time.

        add -> start -> (wait for the next beat) -> write -> kept

    What a commit costs hardly depends on how many results it has, and the store makes one transaction of what comes together:
    so all chunks of a process commit on the same beat. A chunk with nothing else to do does not wait for it.
    """

    def __init__(self, store: JobStore, running: RunningWork, clock: Clock, news: asyncio.Event) -> None:
        """`news` is set whenever a commit has ended."""
        self._store = store
        self._running = running
        self._clock = clock
        self._news = news
        self._results: list[LineResult] = []
        self._dead: list[DeadLetter] = []
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._defect: Exception | None = None
        self._limit = FailureLimit(store, running)
        self.kept = 0
        """The lines whose results the store has."""

    def __len__(self) -> int:
        return len(self._results)

    @property
    def is_idle(self) -> bool:
        """Returns whether nothing waits, no commit is under way, and none has failed."""
        return not self._results and self._task is None and self._defect is None

    def add(self, result: LineResult) -> None:
        self._results.append(result)

    def add_letter(self, letter: DeadLetter) -> None:
        """Takes a dead letter about a line whose result is added before anything else happens."""
        self._dead.append(letter)

    def start(self, *, at_once: bool) -> None:
        """Commits what has come on the next beat, with what comes until then; `at_once`: now.

        Raises what a commit has failed with, other than for want of a store: its lines have no results, and not at once
        another chance.
        """
        if self._defect is not None:
            raise self._defect
        if self._results and self._task is None:
            self._hurry.clear()
            self._task = asyncio.create_task(self._commit())
        if at_once:
            self._hurry.set()

    async def break_off(self) -> None:
        """Commits what has come, once; what cannot be is lost, and its lines run again. Raises JobsUnavailable."""
        self._hurry.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=LAST_COMMIT_S)
        if self._running.is_ours and self._results:
            await self._store.commit(self._running.work, self._results, self._dead)

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _commit(self) -> None:
        try:
            # until the next multiple of the beat, or as soon as there is hurry
            if not self._hurry.is_set():
                now = self._clock.monotonic()
                timer = self._clock.call_at(now + BEAT_S - now % BEAT_S, self._hurry.set)
                try:
                    await self._hurry.wait()
                finally:
                    timer.cancel()
            results, dead = self._results, self._dead
            self._results, self._dead = [], []
            store, work = self._store, self._running.work
            if await self._running.write(lambda: store.commit(work, results, dead)):
                self.kept += len(results)
                if self._running.meter is not None:
                    self._running.meter.lines(results)
                await self._limit.check(results)
        except Exception as defect:  # noqa: BLE001  # it belongs to the chunk, which is given back for it
            self._defect = defect
        finally:
            self._task = None
            self._news.set()


# --- the chunk ---

LOOK_S, IDLE_LOOK_S = 0.02, 1.0
"""Seconds between looks whether held lines have been let through, and where none is held; what ends sets `_news`."""
HELD_PART = 8
"""One part in so many of the window may be held by the delay queue: enough to use a limit up, and few enough for others."""
log = logging.getLogger("gateway.jobs")


class ChunkRunner:
    """Runs chunks of batches."""

    def __init__(
        self,
        store: JobStore,
        blobs: Blobs,
        server: CallServer,
        clock: Clock,
        rules_of: Callable[[Job], JobRules],
        draw: Callable[[], float],
        may_begin: Callable[[], bool] = lambda: True,
        dead_lines: Callable[[], DeadLines] = lambda: "poison",
    ) -> None:
        """`rules_of` gives the rules in force for a job, `draw` uniform numbers from [0, 1).

        `may_begin` says whether the process has room for more work, `dead_lines` which lines become dead letters.
        """
        self.dead_lines, self.rules_of = dead_lines, rules_of
        self.store, self.blobs = store, blobs
        self.server, self.clock = server, clock
        self.draw = draw
        self.brakes = Brakes()
        self.may_begin = may_begin
        self.turn = asyncio.Lock()
        """Held by the one line that runs here and may have killed processes before this one."""
        self.chunks = 0
        """The chunks that run here now: they share the window."""
        self.attempts: dict[tuple[str, int], int] = {}
        """The failed attempts of lines that will be tried again."""
        self.missing = MissingInputs()

    def forget(self, job_id: str) -> None:
        """Forgets a batch that has ended."""
        self.brakes.forget(job_id)
        self.missing.forget(job_id)
        for line in [line for line in self.attempts if line[0] == job_id]:
            del self.attempts[line]

    async def run(self, running: RunningWork) -> None:
        self.chunks += 1
        chunk = _Chunk(self, running)
        try:
            await chunk.run()
        except asyncio.CancelledError:
            await asyncio.shield(chunk.break_off())
            raise
        finally:
            self.chunks -= 1
            await chunk.aclose()


class _Chunk:
    """One chunk while it runs."""

    def __init__(self, runner: ChunkRunner, running: RunningWork) -> None:
        self._runner = runner
        self._running = running
        self._job = running.work.job
        self._rules = runner.rules_of(self._job)
        self._brake: ErrorPause = runner.brakes.of(self._job)
        self._input = ChunkInput(runner.blobs, self._job, running.work.piece)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._calls = LineCalls(runner.server.is_holding)
        self._waiting = 0
        """Lines that were refused for want of room, and wait to ask again."""
        self._left = DeferredLines(runner.clock)
        self._news = asyncio.Event()
        self._commits = LineCommits(runner.store, running, runner.clock, self._news)
        self._suspects = SuspectLines(runner.store, running, runner.turn)
        self._doubted: set[int] = set()
        """Lines that may have been in flight when a process died with the chunk: as many, at most, as go at once. Where several
        died before anything was committed, each line is counted once: the others have hardly begun."""
        self._defect: BaseException | None = None
        self._is_unreadable = False  # nothing more begins; what runs has been paid for, and ends

    async def run(self) -> None:
        """Feeds and commits until nothing is left to be done here, and ends the claim."""
        runner, running = self._runner, self._running
        committed = {result.line for result in await runner.store.results(running.work)}
        self._commits.kept = len(committed)
        try:
            await self._input.open(committed)
        except FileNotFoundError as gone:
            self._cannot_read(gone)
        self._suspects.open(committed)
        self._slice_ends_at = runner.clock.monotonic() + self._rules.batches.slice_s
        stops_at: float | None = None
        while running.is_ours:
            self._news.clear()
            if not running.stopping.is_set() and not self._is_over() and not self._is_unreadable:
                await self._feed()
            elif running.stopping.is_set():
                # lines that have not been sent anywhere have cost nothing
                for number in self._calls.held_lines():
                    self._tasks[number].cancel("shutdown")
                if running.ends_as is not None and stops_at is None:
                    stops_at = runner.clock.monotonic() + self._rules.batches.cancel_grace_s
            if stops_at is not None and runner.clock.monotonic() >= stops_at:
                await self._stop_lines()
            self._commits.start(at_once=not self._tasks)
            await runner.brakes.note(runner.store, running)
            if not self._tasks and self._commits.is_idle:
                break
            look_s = LOOK_S if self._calls.held() else IDLE_LOOK_S
            timer = runner.clock.call_at(runner.clock.monotonic() + look_s, self._news.set)
            await self._news.wait()
            timer.cancel()
            if self._defect is not None:
                raise self._defect
        if running.is_ours:
            await self._end()

    async def break_off(self) -> None:
        """Ends at once: what has come is committed, and the rest given back, where the claim is still this worker's."""
        await self._stop_lines()
        with suppress(JobsUnavailable):  # then the claim ends by its lease, or with the process
            await self._commits.break_off()
            if self._running.is_ours and self._suspects.is_on:
                await self._suspects.clear()
            if self._running.is_ours:
                await self._runner.store.give_back(self._running.work, run_at=None, is_attempt=False)

    async def aclose(self) -> None:
        """Ends what still runs; results that were not committed are lost, and their lines run again."""
        await self._stop_lines()
        await self._commits.aclose()

    # --- lines in ---

    async def _feed(self) -> None:
        """Starts lines while few of them are held, at most as many as this chunk's part of the window."""
        while (room := self._room()) > 0 and self._input.has_any(away := self._left.models()):
            try:
                lines = await self._input.next_lines(room, away)
                self._runner.missing.was_read(self._running.work)
            except (JobsUnavailable, FileNotFoundError) as trouble:
                self._cannot_read(trouble)
                return
            if self._suspects.is_on:
                lines = await self._without_suspects(lines)
            if self._running.work.claims > 1:
                share = ceil(self._rules.batches.window / max(1, self._runner.chunks))
                self._doubted.update([line.number for line in lines][: max(0, share - len(self._doubted))])
            for line in lines:
                self._tasks[line.number] = asyncio.create_task(self._run_line(line))
            await asyncio.sleep(0)  # now those without room are held, and seen to be
        if self._suspects and not self._tasks and self._running.is_ours and self._room() > 0:
            line = self._suspects.take()
            self._tasks[line.number] = asyncio.create_task(self._run_alone(line))

    def _cannot_read(self, trouble: Exception) -> None:
        """Has the chunk tried again later; what is gone for minutes is given up, with the lines that are left."""
        if self._runner.missing.is_gone_for_good(self._running.work, trouble):
            for result in self._input.give_up():
                self._commits.add(result)
            return
        log.warning("job %s: its input cannot be read now: %s", self._job.id, trouble)
        self._is_unreadable = True
        self._left.leave_all_until(LAST_RETRY_S)

    def _room(self) -> int:
        if self._brake.is_on or not self._runner.may_begin():
            return int(self._brake.is_on and not self._tasks and not self._left.number)
        window = self._suspects.window(self._rules.batches.window)
        window = max(1, min(window // max(1, self._runner.chunks), self._rules.batches.most_at_once or window))
        uncommitted = len(self._tasks) + len(self._commits)
        return min(window - uncommitted, max(1, window // HELD_PART) - self._waiting - self._calls.held())

    async def _without_suspects(self, lines: list[InputLine]) -> list[InputLine]:
        """Returns the lines that may run beside others, once it is noted that they do; gives up those that kill."""
        lines, deadly = self._suspects.sort_out(lines)
        for line in deadly:
            if self._runner.dead_lines() != "never":
                error = JobError(POISON, WHY, self._runner.clock.wall())
                crashes = self._suspects.crashes_of(line.number)
                self._commits.add_letter(failed_letter(self._job, line, error, crashes))
            self._commits.add(given_up(self._job, line))
        is_ours = not lines or await self._suspects.note([*self._tasks, *(line.number for line in lines)])
        return lines if is_ours else []

    def _is_over(self) -> bool:
        """Returns whether the chunk has had its time, and others want theirs."""
        if self._runner.clock.monotonic() < self._slice_ends_at:
            return False
        return any(of.number for (_, _, state), of in self._runner.store.depth().items() if state == "ready")

    # --- one line ---

    async def _run_alone(self, line: InputLine) -> None:
        """Runs a line that may have killed a process, when no other such line runs here."""
        try:
            async with self._suspects.turn:
                if not self._running.stopping.is_set() and await self._suspects.note([line.number]):
                    await self._run_line(line)
        finally:
            self._tasks.pop(line.number, None)
            self._news.set()

    async def _run_line(self, line: InputLine) -> None:
        try:
            result = await self._served(line)
            if result is not None:
                self._commits.add(result)
        except Exception as defect:  # noqa: BLE001  # it belongs to the chunk, which is given back for it
            self._defect = defect
        finally:
            self._tasks.pop(line.number, None)
            self._calls.end(line.number)
            self._news.set()

    async def _served(self, line: InputLine) -> LineResult | None:
        """Returns the line's result; None: it has none yet, and is left for another claim."""
        job, runner = self._job, self._runner
        try:
            custom_id, body, parsed = read_line(line.text)
        except ValueError:
            who = LineIdentity(line.number, line_id(job.id, line.number), "")
            return unanswered_line(who, "input_modified", "The input file is not what it was when it was checked.")
        who = LineIdentity(line.number, line_id(job.id, line.number), custom_id)
        while True:
            calls = self._calls.begin(line.number)
            probe_s = self._brake.probe_s if self._brake.is_on else 0.0
            request = request_of(job, self._rules, runner.clock.wall(), who.id, body, parsed)
            if line.number in self._doubted:
                request = request._replace(lost_tries=1)
            tried = await runner.server.serve(request, calls)
            outcome, retry_after_s = tried.verdict
            if outcome is Outcome.PUT_OFF:
                if tried.error is not None and tried.error.error_class == BudgetExceeded.code:
                    self._brake.waits_for = BudgetExceeded.code
                if (wait_s := retry_after_s or 0.0) > FAR_S:
                    self._left.put_off(line.model, wait_s)
                    return None
                self._waiting += 1
                try:
                    await self._running.pause(wait_s)
                finally:
                    self._waiting -= 1
                if self._running.stopping.is_set() or self._is_over():
                    return None
                continue
            self._left.let_through(line.model)
            self._brake.waits_for = ""
            if tried.error is not None and tried.error.error_class in self._rules.batches.brake_classes:
                if self._is_held(line, tried.error, probe_s):
                    return None
            elif outcome is Outcome.INTERRUPTED or (outcome is Outcome.TRANSIENT and self._may_try_again(line, tried)):
                return None
            else:
                self._brake.succeeded()
                failed_for_good = (
                    tried.error if outcome is Outcome.PERMANENT and runner.dead_lines() != "never" else None
                )
                if failed_for_good is not None and is_dead_class(job, failed_for_good.error_class, ()):
                    attempts = runner.attempts.get((job.id, line.number), 0) + 1
                    self._commits.add_letter(failed_letter(job, line, failed_for_good, attempts))
            return self._result(who, tried)

    def _may_try_again(self, line: InputLine, tried: TryResult) -> bool:
        """Counts a failed attempt; whether there is another, which another claim of the chunk will make."""
        attempts = self._runner.attempts.pop((self._job.id, line.number), 0) + 1
        if attempts >= attempts_allowed(self._rules, tried.cost_usd):
            is_wanted = self._runner.dead_lines() == "transient" and not self._job.parent
            if is_wanted and tried.error is not None:
                self._commits.add_letter(failed_letter(self._job, line, tried.error, attempts))
            return False
        self._runner.attempts[self._job.id, line.number] = attempts
        wait_s = max(backoff_s(self._rules, attempts, self._runner.draw()), tried.verdict.retry_after_s or 0.0)
        self._left.leave(wait_s)
        if tried.error is not None and self._running.meter is not None:
            self._running.meter.tried_again(tried.error.error_class)
        return True

    def _is_held(self, line: InputLine, error: JobError, probe_s: float) -> bool:
        """Counts a failure that an operator has to mend; whether the line is held for another claim, and not given up.

        It is given up, as a dead letter, when it has failed so as often as a line may while others of the batch were served.
        """
        batches, runner = self._rules.batches, self._runner
        was_on = self._brake.is_on
        self._brake.failed(error.error_class, batches.brake_after, probe_s)
        if self._brake.is_on and not was_on and self._running.meter is not None:
            self._running.meter.braked(error.error_class)
        attempts = runner.attempts.pop((self._job.id, line.number), 0) + (not self._brake.is_on)
        if attempts < attempts_allowed(self._rules, None):
            runner.attempts[self._job.id, line.number] = attempts
            self._left.leave(self._brake.probe_s)
            if was_on:
                self._left.leave_all_until(self._brake.probe_s)
            return True
        if runner.dead_lines() != "never":
            self._commits.add_letter(failed_letter(self._job, line, error, attempts))
        return False

    def _result(self, who: LineIdentity, tried: TryResult) -> LineResult:
        self._runner.attempts.pop((self._job.id, who.line), None)
        answer = tried.answer
        if answer is None:
            error_class = tried.error.error_class if tried.error is not None else ""
            return unanswered_line(who, error_class or "server_error", "The request was not answered.")
        return answered_line(who, answer.status, who.id, answer.body, tried.usage, tried.cost_usd)

    async def _stop_lines(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel("shutdown")
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the end ---

    async def _end(self) -> None:
        """Completes the chunk if all its lines have results, else gives it back for later."""
        runner, running, work = self._runner, self._running, self._running.work
        is_complete = self._commits.kept == len(lines_of(plan_of(self._job), work.piece))
        if is_complete:
            result = await write_chunk(runner.store, runner.blobs, work, runner.clock)
        if self._suspects.is_on and not await running.write(self._suspects.clear):
            return
        if is_complete:
            await running.write(lambda: runner.store.complete_chunk(work, result))
        else:
            is_later = not self._input.has_any(self._left.models()) or self._brake.is_on or self._is_unreadable
            at = self._left.at if is_later and not running.stopping.is_set() else None
            await running.give_back(runner.store, at)
