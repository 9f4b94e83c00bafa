"""The last piece of a batch: its chunks put together, in the order of the input, into an output and an error file.

A batch that stopped early has a line in the error file for each request without a result. The files have ids that follow from
the batch's, and blobs that follow from theirs: done again after a crash, the same files come out. Invariant: every line of the
input is in one of the two files, once; the counts are those of the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from gateway.core.clock import Clock
from gateway.products.batches.chunk.chunk_input.chunk_input import ChunkInput
from gateway.products.batches.finish.partial import filename_of
from gateway.products.batches.input.chunks import lines_of
from gateway.products.batches.input.lines import LineProblem, read_custom_id
from gateway.products.batches.output import marks
from gateway.products.batches.output.batch_object import problem_objects
from gateway.products.batches.output.output import LineIdentity, stopped_line
from gateway.products.batches.service.file_service import blob_of
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.ids import Role, derived_file_id, line_id
from gateway.products.jobs.model.job import ClaimedWork, Job, JobEnd, JobError, JobState, Tally
from gateway.products.jobs.model.lines import ChunkResult, LineResult
from gateway.products.jobs.model.stored_file import StoredFile
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store.blobs import Blobs, BlobWriter
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import LAST_RETRY_S, RunningWork

INTERNAL = ""
"""The tenant of files that are a run's own."""
LINES_AT_ONCE = 64
"""Lines without a result that are written before others are served."""
log = logging.getLogger("gateway.jobs")


class _Draining(Exception):
    """The process is on its way out."""


class BatchEnds:
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
            await running.write(lambda: store.give_back(work, run_at=None, is_attempt=False))
        except JobsUnavailable:  # the log says why
            at = self._clock.wall() + LAST_RETRY_S
            await running.write(lambda: store.give_back(work, run_at=at, is_attempt=False))
        except FileNotFoundError:
            log.exception("job %s: answers that were kept are gone from the folder of files", work.job.id)
            lost = LineProblem("server_error", "Answers that were kept have been lost; run the batch again.")
            error = JobError(lost.code, lost.message, self._clock.wall())
            failed = JobEnd(JobState.FAILED, error, marks={marks.ERRORS: problem_objects([lost])})
            await running.finish(store, failed)
        else:
            if await running.finish(store, end):
                await self._clear_away(work.job)

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
                await self._write_stopped(files, job, chunk, kept, state)

    async def _write_stopped(
        self, files: _Files, job: Job, chunk: int, kept: dict[int, LineResult], state: JobState
    ) -> None:
        """Writes the lines of a chunk that was not completed: those that have results, and why the others have none."""
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
        size = await part.writer.commit()
        lasts_s = job.about.get(marks.OUTPUT_LASTS_S) or self._rules_of(job).keep_files_s
        filename = filename_of(job, role)
        expires_at = created_at + lasts_s
        tenant = INTERNAL if job.parent else job.tenant  # of a step's answers no tenant ever meets the file
        file = StoredFile(part.id, tenant, "batch_output", filename, size, created_at, expires_at, part.blob)
        await self._store.files.add(file)
        return part.id

    async def _clear_away(self, job: Job) -> None:
        """Removes the index and the chunks, also those of workers that died or lost their claim; what stays is bytes.

        Not before the end of the batch is safe: a store that forgets it has the files written once more.
        """
        await self._clock.sleep(self._store.calm_s)
        try:
            await self._blobs.remove_below(marks.batch_folder(job.id))
        except JobsUnavailable:
            log.warning("job %s: what it needed on its way stays behind in its folder", job.id)


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
        """Adds the lines of a complete chunk."""
        for part, blob in ((self.output, chunk.output), (self.errors, chunk.errors)):
            if blob:
                async for piece in self._blobs.read(blob):
                    await self._write(part, piece)

    async def add_lines(self, results: Iterable[LineResult]) -> None:
        """Adds single lines."""
        results = list(results)
        for part, is_failed in ((self.output, False), (self.errors, True)):
            text = b"".join(result.text for result in results if result.is_failed is is_failed)
            if text:
                await self._write(part, text)

    async def abort(self) -> None:
        """Throws away what was not committed."""
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
