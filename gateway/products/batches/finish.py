"""The first and the last piece of a batch: its input is checked; its chunks are put together into its files.

In this order: the check; files before they are there; the last piece; and the blobs of one chunk. A batch that stopped early
has a line in the error file for each request without a result. The files have ids that follow from the batch's, and blobs that
follow from theirs: done again after a crash, the same files come out. Invariant: every line of the input is in one of the two
files, once; the counts are those of the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gateway.core.clock import Clock
from gateway.core.snapshot import Policies
from gateway.drivers.durability import JobsUnavailable
from gateway.products.batches import output as marks
from gateway.products.batches.input import (
    ChunkInput,
    InputCheck,
    LineCutter,
    LineProblem,
    key_named,
    line_rules,
    lines_of,
    plan_chunks,
)
from gateway.products.batches.native.rules import plan_parts
from gateway.products.batches.output import LineIdentity, chunk_blob, stopped_line
from gateway.products.batches.service import blob_of
from gateway.products.jobs.lines import read_custom_id
from gateway.products.jobs.model import (
    ChunkResult,
    ClaimedWork,
    Job,
    JobEnd,
    JobError,
    JobKind,
    JobState,
    LineResult,
    Role,
    StoredFile,
    Tally,
    batches_of_file,
    derived_file_id,
    line_id,
)
from gateway.products.jobs.rules import BatchRules, JobRules
from gateway.products.jobs.store import Blobs, BlobWriter, JobStore
from gateway.products.jobs.worker import LAST_RETRY_S, CrashSuspects, RunningWork, committed, until_done

# --- the first piece: one pass over the input file, which ends with an index of its lines, or with what is wrong ---

SLICE_S = 0.004
"""Seconds for which the loop is kept at a time."""
INDEX_BYTES = 65_536
"""The bytes of the index that are gathered before they are written."""

CRASHED = "The gateway died again and again while it checked this file; send another one, in smaller parts."


class _CheckStopped(Exception):
    """Nothing more of it shall begin here."""


class _BadInput(Exception):
    """The batch is wrong as a whole."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = LineProblem(code, message)


class BatchChecks:
    """Checks the input of batches.

    Between slices of a few milliseconds everybody else is served. The same file checked again, after a crash, gives the same
    index under the same name.
    """

    def __init__(
        self,
        store: JobStore,
        blobs: Blobs,
        policies: Policies,
        clock: Clock,
        rules_of: Callable[[Job], JobRules],
        suspects: CrashSuspects | None = None,
    ) -> None:
        """`rules_of` gives the rules in force for a job, `suspects` are those of the process."""
        self._store = store
        self._blobs = blobs
        self._policies = policies
        self._clock = clock
        self._rules_of = rules_of
        self._suspects = suspects or CrashSuspects(store, clock)

    async def run(self, running: RunningWork) -> None:
        """Checks a batch, and ends the claim: its lines begin, it has failed, or the piece is given back."""
        await self._suspects.run(running, self._run, self._give_up)

    async def _give_up(self, running: RunningWork, _died: JobError) -> None:
        await self._fail(running, [LineProblem("server_error", CRASHED)])

    async def _run(self, running: RunningWork) -> None:
        store = self._store
        try:
            checked = await self._check(running)
        except _BadInput as found:
            await self._fail(running, [found.problem])
        except _CheckStopped:
            await running.give_back(store)
        except JobsUnavailable:  # the log says why
            await running.give_back(store, self._clock.wall() + LAST_RETRY_S)
        else:
            if checked.problems:
                await self._fail(running, checked.problems)
            else:
                await self._begin(running, checked)

    async def _fail(self, running: RunningWork, problems: Sequence[LineProblem]) -> None:
        error = JobError(problems[0].code, problems[0].message, self._clock.wall())
        end = JobEnd(JobState.FAILED, error, marks={marks.ERRORS: problem_objects(problems)})
        await running.finish(self._store, end)

    async def _begin(self, running: RunningWork, checked: InputCheck) -> None:
        store, work, now = self._store, running.work, self._clock.wall()
        known = replace(work.job, marks={**work.job.marks, marks.MODELS: checked.models})
        rules = self._rules_of(known).batches
        parts = plan_parts(self._policies.current, work.job, checked.models, checked.total, rules)
        plan = parts or plan_chunks(checked.total, rules)
        found = {
            **({marks.NATIVE: True} if parts else {}),
            marks.INDEX: marks.index_blob(work.job.id),
            marks.LINES_PER_CHUNK: plan.lines_per_chunk,
            marks.PARALLEL: plan.parallel,
            marks.MODELS: checked.models,
            marks.IN_PROGRESS_AT: now,
        }
        await running.write(lambda: store.begin_lines(work, plan, found))

    async def _check(self, running: RunningWork) -> InputCheck:
        """Returns what the input is; its index is kept where nothing is wrong.

        Raises _CheckStopped, _BadInput, JobsUnavailable.
        """
        policy, job = self._policies.current, running.work.job
        rules, key = self._rules_of(job).batches, key_named(policy, job.key)
        if key is None:
            raise _BadInput("invalid_api_key", f"The key '{job.key}' that made this batch is no longer there.")
        endpoint = job.about[marks.ENDPOINT].removeprefix("/v1")
        lines = line_rules(policy, key, endpoint, is_callers=job.about.get(marks.BROUGHT_CREDENTIAL, False))
        check = InputCheck(lines, rules, policy.server.most_bytes())
        writer = await self._blobs.writer(marks.index_blob(job.id))
        try:
            await self._read(running, check, rules, writer)
            if not check.problems:
                await committed(writer)
        except FileNotFoundError:
            raise _BadInput("input_no_permissions", "The input file is no longer there.") from None
        finally:
            await writer.abort()
        return check

    async def _read(self, running: RunningWork, check: InputCheck, rules: BatchRules, writer: BlobWriter) -> None:
        cutter = LineCutter(self._policies.current.server.most_bytes())
        monotonic, size, indexed = self._clock.monotonic, 0, 0
        slice_ends_at = monotonic() + SLICE_S
        async for piece in self._blobs.read(running.work.job.about[marks.INPUT]):
            size += len(piece)
            if size > rules.max_bytes:
                raise _BadInput("invalid_request", f"The file has more than {rules.max_bytes} bytes; split it.")
            for offset, text in cutter.feed(piece):
                check.add(offset, text)
                if check.is_hopeless:
                    return
                if monotonic() >= slice_ends_at:
                    await asyncio.sleep(0)
                    slice_ends_at = monotonic() + SLICE_S
            if running.stopping.is_set():
                raise _CheckStopped
            if check.total - indexed >= INDEX_BYTES // 12:
                indexed = check.total
                await writer.write(check.take_index())
        for offset, text in cutter.end():
            check.add(offset, text)
        check.end()
        await writer.write(check.take_index())


# --- the files of a batch before they are there: its complete chunks, in the order of the input, while it runs ---


class PartialFile(NamedTuple):
    """What there is of a file that a batch is going to have."""

    filename: str
    blobs: Sequence[str]
    """Whole lines each, in the order of the input."""


class PartialFiles:
    """Finds the files of batches that have not ended."""

    def __init__(self, read_store: Callable[[], Awaitable[JobStore]], blobs: Blobs) -> None:
        self._read_store = read_store
        self._blobs = blobs

    async def find(self, file_id: str, tenant: str) -> PartialFile | None:
        """Returns a file to be of a batch of the tenant's; None: there is no such batch, or it has ended.

        Raises JobsUnavailable.
        """
        store = await self._read_store()
        for batch_id, role in batches_of_file(file_id):
            job = await store.find(batch_id, tenant)
            if job is not None and job.kind is JobKind.BATCH and not job.state.is_end:
                chunks = await store.chunk_results(batch_id)
                names = [chunk.output if role == "output" else chunk.errors for chunk in chunks]
                return PartialFile(filename_of(job, role), [name for name in names if name])
        return None

    async def read(self, file: PartialFile) -> AsyncIterator[bytes]:
        """Yields its bytes. Where the batch ends meanwhile they end with a whole line, sooner. Raises JobsUnavailable."""
        for name in file.blobs:
            begun: list[bytes] = []
            try:
                async for piece in self._blobs.read(name):
                    whole, end, rest = piece.rpartition(b"\n")
                    if end:
                        yield b"".join((*begun, whole, end))
                        begun.clear()
                    begun.append(rest)
            except FileNotFoundError:  # in a Redis also in the middle of a blob
                return


# --- the last piece: the chunks are put together into the files of the batch ---


def filename_of(job: Job, role: Role) -> str:
    return f"{job.id}_{'output' if role == 'output' else 'error'}.jsonl"


INTERNAL = ""
"""The tenant of files that are a run's own."""
LINES_AT_ONCE = 64
"""The lines without a result that are written before others are served."""
log = logging.getLogger("gateway.jobs")


class _Draining(Exception):
    """The process is on its way out."""


class BatchFinalizer:
    """Puts batches together."""

    def __init__(
        self,
        store: JobStore,
        blobs: Blobs,
        clock: Clock,
        rules_of: Callable[[Job], JobRules],
    ) -> None:
        """`rules_of` gives the rules in force for a job."""
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._rules_of = rules_of

    async def run(self, running: RunningWork) -> None:
        """Ends a batch, or gives the piece back where the files cannot be written now."""
        store, work = self._store, running.work
        began_at = self._clock.wall()
        try:
            end = await self._put_together(running, began_at)
        except _Draining:
            await running.give_back(store)
        except JobsUnavailable:  # the log says why
            await running.give_back(store, self._clock.wall() + LAST_RETRY_S)
        except FileNotFoundError:
            log.exception("job %s: answers that were kept are gone from the folder of files", work.job.id)
            lost = LineProblem("server_error", "Answers that were kept have been lost; run the batch again.")
            error = JobError(lost.code, lost.message, self._clock.wall())
            failed = JobEnd(JobState.FAILED, error, marks={marks.ERRORS: problem_objects([lost])})
            await running.finish(store, failed)
        else:
            if await running.finish(store, end):
                # The index and the chunks go, also those of workers that died or lost their claim; not before the end of the
                # batch is safe: a store that forgets it has the files written once more.
                await self._clock.sleep(store.durability_lag_s)
                try:
                    await self._blobs.remove_below(marks.batch_folder(work.job.id))
                except JobsUnavailable:  # what stays is bytes
                    log.warning("job %s: what it needed on its way stays behind in its folder", work.job.id)

    async def _put_together(self, running: RunningWork, began_at: float) -> JobEnd:
        job = running.work.job
        state = running.ends_as or JobState.SUCCEEDED
        found: dict[str, object] = {marks.FINALIZING_AT: began_at}
        if marks.INDEX not in job.marks:  # it stopped before its lines were known
            return JobEnd(state, tally=job.tally, marks=found)
        files = _Files(self._blobs, running.work)
        try:
            await self._write_all(running, files, state)
            output = await self._keep(job, files.output, "output", began_at)
            errors = await self._keep(job, files.errors, "errors", began_at)
        finally:
            await files.abort()
        found |= {marks.OUTPUT_FILE: output, marks.ERROR_FILE: errors}
        return JobEnd(state, tally=_tally(job, files), marks=found)

    async def _write_all(self, running: RunningWork, files: _Files, state: JobState) -> None:
        """Writes the lines of all chunks, in order. Raises _Draining, JobsUnavailable."""
        job, plan = running.work.job, marks.plan_of(running.work.job)
        complete = {result.chunk: result for result in await self._store.chunk_results(job.id)}
        rest = [] if len(complete) == plan.chunks else await self._store.open_results(running.work)
        kept = {result.line: result for result in rest}
        for chunk in range(plan.chunks):
            if running.is_draining or not running.is_ours:
                raise _Draining
            if chunk in complete:
                await files.add_chunk(complete[chunk])
            else:
                # it was not completed: lines that have results, and why the others have none
                numbers = lines_of(marks.plan_of(job), chunk)
                names = await self._custom_ids(job, chunk, {number for number in numbers if number in kept})
                for at in range(0, len(numbers), LINES_AT_ONCE):
                    lines = [
                        kept.get(number)
                        or stopped_line(LineIdentity(number, line_id(job.id, number), names.get(number, "")), state)
                        for number in numbers[at : at + LINES_AT_ONCE]
                    ]
                    await files.add_lines(lines)
                    await asyncio.sleep(0)

    async def _custom_ids(self, job: Job, chunk: int, has_result: set[int]) -> dict[int, str]:
        """Returns the custom_ids of a chunk's lines without results, by their numbers, read from the input."""
        lines, found = ChunkInput(self._blobs, job, chunk), dict[int, str]()
        try:
            await lines.open(has_result)
            while some := await lines.next_lines(LINES_AT_ONCE):
                for line in some:
                    found[line.number] = read_custom_id(line.text)
                await asyncio.sleep(0)
        except (FileNotFoundError, ValueError):
            log.exception("job %s: its input cannot be read any more; lines without a result are not named", job.id)
        return found

    async def _keep(self, job: Job, part: _Part, role: Role, created_at: float) -> str | None:
        """Makes a durable file of the lines; returns its id, None where there are none. Raises JobsUnavailable."""
        if part.writer is None:
            return None
        size = await committed(part.writer)
        lasts_s = job.about.get(marks.OUTPUT_LASTS_S) or self._rules_of(job).keep_files_s
        filename = filename_of(job, role)
        expires_at = created_at + lasts_s
        tenant = INTERNAL if job.parent else job.tenant  # of a step's answers no tenant ever meets the file
        file = StoredFile(part.id, tenant, "batch_output", filename, size, created_at, expires_at, part.blob)
        await until_done(lambda: self._store.files.add(file), self._clock)
        return part.id


class _Part:
    """One of the two files, begun with its first line."""

    def __init__(self, file_id: str, fence: int) -> None:
        """`fence` is that of the claim: no other blob ever has its name, so none that is there is taken for an old one."""
        self.id = file_id
        self.blob = f"{blob_of(file_id)}.{fence}"
        self.writer: BlobWriter | None = None
        self.lines = 0


class _Files:
    """The two files of a batch in the making."""

    def __init__(self, blobs: Blobs, work: ClaimedWork) -> None:
        self._blobs = blobs
        self.output = _Part(derived_file_id(work.job.id, "output"), work.fence)
        self.errors = _Part(derived_file_id(work.job.id, "errors"), work.fence)

    async def add_chunk(self, chunk: ChunkResult) -> None:
        for part, blob in ((self.output, chunk.output), (self.errors, chunk.errors)):
            if blob:
                async for piece in self._blobs.read(blob):
                    await self._write(part, piece)

    async def add_lines(self, results: Iterable[LineResult]) -> None:
        results = list(results)
        for part, is_failed in ((self.output, False), (self.errors, True)):
            text = b"".join(result.text for result in results if result.is_failed is is_failed)
            if text:
                await self._write(part, text)

    async def abort(self) -> None:
        for part in (self.output, self.errors):
            if part.writer is not None:
                await part.writer.abort()

    async def _write(self, part: _Part, data: bytes) -> None:
        if part.writer is None:
            part.writer = await self._blobs.writer(part.blob)
        part.lines += data.count(b"\n")
        await part.writer.write(data)


def _tally(job: Job, files: _Files) -> Tally:
    tally = job.tally._replace(completed=files.output.lines, failed=files.errors.lines)
    if tally.completed + tally.failed != tally.total:
        log.error("job %s: of %d lines %d are in its files", job.id, tally.total, tally.completed + tally.failed)
    return tally


# --- a finished chunk on its way to where it stays: its results as two blobs, in the order of the input ---


async def write_chunk(store: JobStore, blobs: Blobs, work: ClaimedWork, clock: Clock) -> ChunkResult:
    """Writes the lines of a chunk whose results are all committed; repeats that until there is room for them."""

    async def write() -> ChunkResult:
        results = sorted(await store.results(work))
        output = await _write(blobs, work, "output", [one.text for one in results if not one.is_failed])
        errors = await _write(blobs, work, "errors", [one.text for one in results if one.is_failed])
        return ChunkResult(work.piece, *output, *errors)

    return await until_done(write, clock)


async def _write(blobs: Blobs, work: ClaimedWork, kind: str, texts: list[bytes]) -> tuple[str, int]:
    """Returns the blob's name and bytes; of no lines there is none."""
    if not texts:
        return "", 0
    name = chunk_blob(work.job.id, work.piece, work.fence, kind)
    writer = await blobs.writer(name)
    try:
        await writer.write(b"".join(texts))
        return name, await committed(writer)
    finally:
        await writer.abort()


def problem_objects(problems: Sequence[LineProblem]) -> list[dict[str, Any]]:
    """Returns what is wrong with a batch's input as its mark `errors` has it."""
    return [{"code": one.code, "message": one.message, "param": one.param, "line": one.line} for one in problems]
