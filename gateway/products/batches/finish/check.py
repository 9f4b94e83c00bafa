"""The first piece of a batch: one pass over its input file, which ends with an index of its lines, or with what is wrong.

Between slices of a few milliseconds everybody else is served. The same file checked again, after a crash, gives the same index
under the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.core.clock import Clock
from gateway.core.snapshot.snapshot.snapshot import Policies
from gateway.products.batches.input.chunks import plan_chunks
from gateway.products.batches.input.input import InputCheck, LineCutter
from gateway.products.batches.input.line_rules import key_named, line_rules
from gateway.products.batches.input.lines import LineProblem
from gateway.products.batches.native.rules.choice import plan_parts
from gateway.products.batches.output import marks
from gateway.products.batches.output.batch_object import problem_objects
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import Job, JobEnd, JobError, JobState
from gateway.products.jobs.rules import BatchRules, JobRules
from gateway.products.jobs.store.blobs import Blobs, BlobWriter
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import LAST_RETRY_S, RunningWork

SLICE_S = 0.004
"""So long the loop is kept at a time."""
INDEX_BYTES = 65_536
"""Of the index that are gathered before they are written."""

MOST_CRASHES = 3
"""A check whose worker has died so often is not tried again: it would take the gateway with it each time."""
CRASHED = f"The gateway died {MOST_CRASHES} times while it checked this file; send another one, in smaller parts."


class _CheckStopped(Exception):
    """Nothing more of it shall begin here."""


class _BadInput(Exception):
    """The batch is wrong as a whole."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = LineProblem(code, message)


class BatchChecks:
    """Checks the input of batches."""

    def __init__(
        self,
        store: JobStore,
        blobs: Blobs,
        policies: Policies,
        clock: Clock,
        rules_of: Callable[[Job], JobRules],
    ) -> None:
        """`rules_of` gives the rules in force for a job."""
        self._store = store
        self._blobs = blobs
        self._policies = policies
        self._clock = clock
        self._rules_of = rules_of

    async def run(self, running: RunningWork) -> None:
        """Checks a batch, and ends the claim: its lines begin, it has failed, or the piece is given back."""
        store, work = self._store, running.work
        if work.claims > MOST_CRASHES:
            await self._fail(running, [LineProblem("server_error", CRASHED)])
            return
        try:
            checked = await self._check(running)
        except _BadInput as found:
            await self._fail(running, [found.problem])
        except _CheckStopped:
            await running.write(lambda: store.give_back(work, run_at=None, is_attempt=False))
        except JobsUnavailable:  # the log says why
            at = self._clock.wall() + LAST_RETRY_S
            await running.write(lambda: store.give_back(work, run_at=at, is_attempt=False))
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
        check = InputCheck(lines, rules, policy.server.max_body_bytes)
        writer = await self._blobs.writer(marks.index_blob(job.id))
        try:
            await self._read(running, check, rules, writer)
            if not check.problems:
                await writer.commit()
        except FileNotFoundError:
            raise _BadInput("input_no_permissions", "The input file is no longer there.") from None
        finally:
            await writer.abort()
        return check

    async def _read(self, running: RunningWork, check: InputCheck, rules: BatchRules, writer: BlobWriter) -> None:
        cutter = LineCutter(self._policies.current.server.max_body_bytes)
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
