"""The one piece of a run: it comes whenever one of its children has ended, and is parked until the next does.

    look at the children -> decide -> park with new children, or finish

All that it knows is in the store: a process that dies between any two steps leaves a run that the next one decides upon alike.
Between its pieces a run is a row, without a task, a lease or a timer. In this order: the children that are made; the children
that are read; and the life of runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from gateway.core.clock import Clock
from gateway.drivers.durability import JobsUnavailable
from gateway.drivers.turns import FairTurns, NotATurn
from gateway.features.run_port import NO_RUNS, RunEnd, RunPort
from gateway.products.batches import output
from gateway.products.batches.finish import INTERNAL
from gateway.products.jobs.calls import RUN_BUDGET_EXCEEDED, RUN_MODEL, RUN_USD, STEP, STEP_OUTPUT
from gateway.products.jobs.model import (
    BATCH,
    CHECK,
    CURRENT,
    JOB,
    SETTLED,
    ClaimedWork,
    Job,
    JobEnd,
    JobError,
    JobFlag,
    JobKind,
    JobQuery,
    JobState,
    NewJob,
    Stage,
    StoredAnswer,
    Tally,
    derived_child_id,
)
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.service import segment_of
from gateway.products.jobs.store import Blobs, JobStore
from gateway.products.jobs.worker import LAST_RETRY_S, RunningWork, committed
from gateway.products.pipelines.advance import (
    MOST_MESSAGE_CHARS,
    PipelineFailed,
    advance,
    answer_body,
    errors_in,
    failure_body,
    run_headers,
    state_of_items,
    values_of,
    wanted_values,
)
from gateway.products.pipelines.compile import MOST_STEPS, PATHS, PipelinePlan, Step
from gateway.products.pipelines.rules import (
    AT_ONCE,
    ITEMS,
    PART,
    RETRIES,
    STEPS,
    TOO_MANY_FAILED,
    UNASKED,
    Decision,
    RunFailed,
    RunFinished,
    RunPayload,
    RunStates,
    Start,
    StepError,
    StepPart,
    StepPhase,
    StepStart,
    StepState,
    plan_of,
    read_payload,
)
from gateway.products.pipelines.templates import Count, Hurry, TooLong

# --- the children of a run: a job for each part of a step that begins, made of the requests of the plan ---

JSON_HEADERS = (("content-type", "application/json"),)
FILES_LAST_S = 86_400.0
"""Seconds for which the answers to items are kept behind the run's deadline."""
PIECE_BYTES = 262_144
"""The bytes of a blob that are gathered before they are written."""


class RunChildren:
    """Makes the children of runs.

    A child's id follows from the run's, the step's and the part's, so that to begin it twice begins it once. The requests of a
    step with items are a blob, one a line, that a batch reads.
    """

    def __init__(
        self,
        blobs: Blobs,
        rules_of: Callable[[Job], JobRules],
        usd_of: Callable[[NewJob], Awaitable[float | None]],
    ) -> None:
        """`rules_of` gives the rules in force for a job; `usd_of` estimates what an attempt of one costs."""
        self._blobs = blobs
        self._rules_of = rules_of
        self._usd_of = usd_of

    async def make(self, work: ClaimedWork, plan: PipelinePlan, start: StepStart, now: float) -> NewJob:
        """Returns the child that is to begin; its blob, if it has one, is kept. Raises JobsUnavailable."""
        if start.step.for_each is not None:
            return await self._batch(work, plan, start, now)
        return await self._call(work.job, plan, start, now)

    async def _call(self, run: Job, plan: PipelinePlan, start: StepStart, now: float) -> NewJob:
        (body,) = start.requests
        about = {"endpoint": PATHS[start.endpoint], "headers": JSON_HEADERS, **_about(plan, start)}
        job = replace(_child(run, start, now, JobKind.CALL), about=about, model=start.models[0])
        rules = self._rules_of(job)
        attempts = rules.attempts if start.step.retries is None else start.step.retries + 1
        new = NewJob(replace(job, max_attempts=attempts), orjson.dumps(body))
        usd = await self._usd_of(new)
        return replace(new, job=replace(new.job, segment=segment_of(rules.segments, usd)))

    async def _batch(self, work: ClaimedWork, plan: PipelinePlan, start: StepStart, now: float) -> NewJob:
        job = _child(work.job, start, now, JobKind.BATCH)
        blob = f"{output.batch_folder(job.id)}/input.{work.fence}"
        await self._write(blob, start)
        about = {
            output.ENDPOINT: PATHS[start.endpoint],
            output.INPUT_FILE: "",
            output.INPUT: blob,
            output.WINDOW: f"{job.deadline - now:.0f}s",
            output.METADATA: {},
            output.OUTPUT_LASTS_S: work.job.deadline - now + FILES_LAST_S,
            output.BROUGHT_CREDENTIAL: False,
            ITEMS: len(start.requests),
            UNASKED: start.failed,
            AT_ONCE: start.step.max_concurrency,
            **({} if start.most_failed is None else {output.MOST_FAILED: start.most_failed}),
            **_about(plan, start),
        }
        rules = self._rules_of(job)
        job = replace(job, about=about, stage=Stage.CHECK, segment=segment_of(rules.segments, None))
        return NewJob(replace(job, max_attempts=rules.attempts), first_piece=CHECK, reads=blob)

    async def _write(self, blob: str, start: StepStart) -> None:
        """Writes the requests of a step, one a line, each with the number of its item. Raises JobsUnavailable."""
        writer = await self._blobs.writer(blob)
        gathered = bytearray()
        try:
            for number, body in enumerate(start.requests):
                if body is None:
                    continue
                line = {"custom_id": str(number), "method": "POST", "url": PATHS[start.endpoint], "body": body}
                gathered += orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
                if len(gathered) >= PIECE_BYTES:
                    await writer.write(bytes(gathered))
                    gathered.clear()
            await writer.write(bytes(gathered))
            await committed(writer)
        finally:
            await writer.abort()


def child_id(run_id: str, step: Step, part: StepPart) -> str:
    return derived_child_id(JOB if step.for_each is None else BATCH, run_id, step.name, part)


def _child(run: Job, start: StepStart, now: float, kind: JobKind) -> Job:
    step = start.step
    return Job(
        id=child_id(run.id, step, start.part),
        kind=kind,
        tenant=run.tenant,
        key=run.key,
        lane=step.lane or run.lane,
        segment="",
        is_urgent=run.about.get("is_urgent", False),
        model="",
        state=JobState.QUEUED,
        created_at=now,
        run_at=now,
        deadline=run.deadline if step.timeout_s is None else min(run.deadline, now + step.timeout_s),
        max_attempts=1,
        about={},
        parent=run.id,
    )


def _about(plan: PipelinePlan, start: StepStart) -> Mapping[str, Any]:
    step = start.step
    about: dict[str, Any] = {STEP: step.name, PART: int(start.part), RUN_MODEL: plan.model_name}
    if plan.usd_per_run is not None:
        about[RUN_USD] = plan.usd_per_run
    if step.retries is not None:
        about[RETRIES] = step.retries
    if step.output is not None and start.part is not StepPart.REPAIR:
        about[STEP_OUTPUT] = step.output
    return about


# --- the state of the steps, read from the children and what their answers say ---

MOST_INLINE_BYTES = 1_000_000
"""The most bytes of answers that are read in the event loop; more go to a thread."""
Children = Mapping[tuple[str, StepPart], Job | None]
MOST_CHILDREN = MOST_STEPS * len(StepPart)


class RunSnapshot(NamedTuple):
    """A run as its children have it."""

    steps: Mapping[str, StepState]
    tally: Tally
    """What its children have used and cost, those that still run as far as it is known; the counts are of its steps."""
    running: Sequence[str]
    """The ids of the children that have not ended."""


class RunReader:
    """Reads children."""

    def __init__(self, store: JobStore, blobs: Blobs) -> None:
        self._store = store
        self._blobs = blobs

    async def read(self, plan: PipelinePlan, run: Job) -> RunSnapshot:
        """Returns how a run stands, with the values that its next decision may ask for. Raises JobsUnavailable."""
        begun: Mapping[str, int] = run.marks.get(STEPS, {})
        wanted = [
            (step, StepPart(part))
            for name, latest in begun.items()
            if (step := plan.steps.get(name)) is not None
            for part in StepPart
            if part <= latest and (part is not StepPart.REPAIR or step.on_failure.model)
        ]
        jobs = await asyncio.gather(
            *(self._store.find(child_id(run.id, step, part), run.tenant) for step, part in wanted)
        )
        children = {(step.name, part): job for (step, part), job in zip(wanted, jobs, strict=True)}
        states = {
            name: self._state(plan.steps[name], StepPart(latest), children)
            for name, latest in begun.items()
            if name in plan.steps
        }
        wanted_now = wanted_values(plan, states)
        for name, state in states.items():
            if state.phase is StepPhase.DONE and name in wanted_now:
                states[name] = await self._with_values(plan.steps[name], state, children)
        found = [job for job in jobs if job is not None]
        return RunSnapshot(
            states, added(_counted(plan, states), found), [job.id for job in found if not job.state.is_end]
        )

    def _state(self, step: Step, part: StepPart, children: Children) -> StepState:
        child = children[step.name, part]
        first = children[step.name, StepPart.FIRST]
        error = _error_of(step, child if part is not StepPart.REPAIR else first)
        if child is None or first is None:
            gone = StepError("internal_error", "the step's job is no longer there", step.name)
            return StepState(part, StepPhase.FAILED, error=gone)
        if not child.state.is_end:
            return StepState(part, StepPhase.RUNNING, error=error)
        if step.for_each is None:
            is_ok = child.state is JobState.SUCCEEDED
            failed = int(part is StepPart.REPAIR)
            return StepState(part, StepPhase.DONE if is_ok else StepPhase.FAILED, failed=failed, error=error)
        return _state_of_batch(step, part, child, first)

    async def _with_values(self, step: Step, state: StepState, children: Children) -> StepState:
        """Returns a step that is done with what its answers say. Raises JobsUnavailable."""
        child = children[step.name, state.part]
        if child is None:
            return state
        if step.for_each is not None:
            parts = [children[step.name, part] for part in StepPart if part <= state.part]
            most = None if step.on_failure.model else MOST_INLINE_BYTES  # of no use but as an example
            answered = [await self._read(child, output.OUTPUT_FILE) for child in parts]
            failed = [await self._read(child, output.ERROR_FILE, most) if state.failed else b"" for child in parts]
            if sum(map(len, (*answered, *failed))) > MOST_INLINE_BYTES:
                return await asyncio.to_thread(state_of_items, step, state, answered, failed)
            return state_of_items(step, state, answered, failed)
        answer = await self._store.answer(child.id, child.tenant)
        body = b"" if answer is None else answer.body
        if state.part is StepPart.REPAIR:
            return StepState(state.part, state.phase, failed=state.failed, error=state.error, answer=body)
        return StepState(state.part, state.phase, values_of(step.endpoint, body), error=state.error)

    async def _read(self, child: Job | None, mark: str, most: int | None = None) -> bytes:
        """Returns the bytes of a file of a batch, at most so many; none where it has no such file. Raises JobsUnavailable."""
        file_id = None if child is None else child.marks.get(mark)
        file = None if file_id is None else await self._store.files.find(file_id, INTERNAL)
        if file is None:
            return b""
        return b"".join([part async for part in self._blobs.read(file.blob, 0, most)])


def _state_of_batch(step: Step, part: StepPart, child: Job, first: Job) -> StepState:
    """Returns a step with items whose latest part has ended, without its values."""
    total = child.about[ITEMS]
    if output.BROKEN in child.marks and child.state is JobState.CANCELLED:
        such = next(iter(errors_in(step, child.marks[output.BROKEN].encode()).values()), None)
        problem = "more items have failed than the plan accepts, and the others were stopped"
        why = StepError(TOO_MANY_FAILED, problem + (f"; such as: {such.message}" if such else ""), step.name)
        if such is not None and such.error_class == RUN_BUDGET_EXCEEDED:
            why = such
        return StepState(part, StepPhase.FAILED, failed=total, total=total, error=why)
    error = _error_of(step, child)
    if part is StepPart.FIRST and not _has_lines(child):
        return StepState(part, StepPhase.FAILED, failed=total, total=total, error=error)
    # a repair that has come to nothing leaves what was there before
    counts = first if part is StepPart.REPAIR or not _has_lines(child) else child
    failed = counts.tally.failed + counts.about[UNASKED]
    return StepState(part, StepPhase.DONE, failed=failed, total=total, error=error)


def _has_lines(child: Job) -> bool:
    return output.INDEX in child.marks and child.state in (JobState.SUCCEEDED, JobState.EXPIRED)


def _error_of(step: Step, child: Job | None) -> StepError | None:
    """Returns why a child has failed; None: it has not, or not yet."""
    if child is None or child.state is JobState.SUCCEEDED or not child.state.is_end:
        return None
    if child.state is JobState.CANCELLED:
        return StepError("cancelled", "the step was cancelled", step.name)
    if child.state is JobState.EXPIRED:
        return StepError("expired", "the step's time was over", step.name)
    error = child.last_error
    if error is None:
        return StepError("internal_error", "the step has failed", step.name)
    return StepError(error.error_class, error.message[:MOST_MESSAGE_CHARS], step.name)


def _counted(plan: PipelinePlan, states: Mapping[str, StepState]) -> Tally:
    over = [state for state in states.values() if state.phase is not StepPhase.RUNNING]
    failed = sum(state.is_lost for state in over)
    return Tally(len(plan.steps), len(over) - failed, failed)


def added(counts: Tally, children: Sequence[Job]) -> Tally:
    """Returns these counts of steps, with what the children have used and cost."""
    tallies = [job.tally for job in children]
    return counts._replace(
        input_tokens=sum(one.input_tokens for one in tallies),
        cached_tokens=sum(one.cached_tokens for one in tallies),
        output_tokens=sum(one.output_tokens for one in tallies),
        cost_usd=sum(one.cost_usd for one in tallies),
        reasoning_tokens=sum(one.reasoning_tokens for one in tallies),
    )


# --- the life of runs ---

MOST_DEATHS = 10
"""A run whose worker has died so often with it is not advanced again: it would take the gateway with it each time. A busy run
is advanced much of the time, so a few deaths in a row may be of other things, and have met it by chance."""
MOST_FAILURES = 3
"""A run that could not be advanced so often, though the worker lives, is not advanced again."""
MOST_PLANS = 64
"""The compiled plans that are remembered."""
LARGE_BYTES = 262_144
"""Runs that carry more are decided upon in a thread, as are those whose next step is much work: to divide a long text, or to
judge a condition for each of many items, takes its time. One at a time, and tenants in turn: Python's lock goes round among
threads that compute, and the event loop would wait for all of them whenever it goes on."""
ITEM_BYTES = 200
"""The bytes that an item of a list is reckoned with."""
log = logging.getLogger("gateway.jobs")


class PipelineRuns:
    """Advances runs."""

    def __init__(
        self,
        store: JobStore,
        reader: RunReader,
        children: RunChildren,
        clock: Clock,
        count: Callable[[str], Count],
        changed: Callable[[str], None] = lambda _id: None,
        runs: RunPort = NO_RUNS,
    ) -> None:
        """`count` gives what counts the tokens of a model; `changed` gets the ids of children of which there is news.

        `runs` gets the outcome of those that end here; that of those which are stopped comes by `CountedEnds`.
        """
        self._runs = runs
        self._store = store
        self._reader = reader
        self._children = children
        self._clock = clock
        self._count = count
        self._changed = changed
        self._plans: dict[str, PipelinePlan] = {}
        self._turns = FairTurns()

    async def run(self, running: RunningWork) -> None:
        """Advances a run, and ends the claim: it is parked, has ended, or is given back.

        So it is where the store cannot be read, or too many of its tenant's wait to be decided upon already.
        """
        try:
            await self._run(running)
        except (JobsUnavailable, NotATurn):  # of the first the log says why
            await running.give_back(self._store, self._clock.wall() + LAST_RETRY_S)
        except FileNotFoundError:
            log.exception("run %s: answers of its steps are gone from the folder of files", running.work.job.id)
            await self._fail(running, StepError("internal_error", "answers of its steps have been lost"))
        except asyncio.CancelledError:
            if running.is_ours and not running.is_over:
                await asyncio.shield(self._give_back(running))
            raise

    async def _run(self, running: RunningWork) -> None:
        work = running.work
        if work.claims > MOST_DEATHS:
            await self._fail(running, StepError("poison", f"its worker died {MOST_DEATHS} times with it"))
            return
        if work.job.attempts >= MOST_FAILURES:  # the worker counts what has failed here, and the log says why
            await self._fail(running, StepError("internal_error", "the gateway failed on it"))
            return
        try:
            payload = read_payload(work.payload)
            plan = self._plan(payload, work.job.about.get("digest", ""))
        except ValueError as error:
            await self._fail(running, StepError("internal_error", f"its plan cannot be read here: {error}"))
            return
        snapshot = await self._reader.read(plan, work.job)
        if running.ends_as is not None:
            await self._stop_children(snapshot.running, work.job.tenant)
            await running.finish(self._store, JobEnd(running.ends_as, tally=snapshot.tally))
            return
        decision = await self._decide(plan, payload, snapshot, work)
        if isinstance(decision, RunFinished):
            await self._finish(running, plan, payload, snapshot, decision)
        elif isinstance(decision, RunFailed):
            await self._stop_children(snapshot.running, work.job.tenant)
            await self._fail(running, decision.why, snapshot)
        else:
            await self._go_on(running, plan, decision, snapshot)

    async def _decide(
        self, plan: PipelinePlan, payload: RunPayload, snapshot: RunSnapshot, work: ClaimedWork
    ) -> Decision:
        states = RunStates(payload.input, snapshot.steps, snapshot.tally.cost_usd, self._count)
        if len(work.payload) + sum(map(_size_of, snapshot.steps.values())) <= LARGE_BYTES:
            with suppress(TooLong):
                return advance(plan, replace(states, hurry=Hurry()))
        async with self._turns.turn(work.job.tenant, 0):
            return await asyncio.to_thread(advance, plan, states)

    async def _go_on(self, running: RunningWork, plan: PipelinePlan, decision: Decision, snapshot: RunSnapshot) -> None:
        work, now = running.work, self._clock.wall()
        starts = decision.steps if isinstance(decision, Start) else ()
        children = [await self._children.make(work, plan, start, now) for start in starts]
        begun: Mapping[str, int] = work.job.marks.get(STEPS, {})
        under_way = [name for name, state in snapshot.steps.items() if state.phase is StepPhase.RUNNING]
        marks = {
            CURRENT: sorted({*under_way, *(start.step.name for start in starts)}),
            STEPS: {**begun, **{start.step.name: int(start.part) for start in starts}},
            SETTLED: snapshot.tally.completed + snapshot.tally.failed,
        }
        await running.write(lambda: self._store.park(work, children, marks))
        for child in children:
            self._changed(child.job.id)

    async def _finish(
        self, running: RunningWork, plan: PipelinePlan, payload: RunPayload, snapshot: RunSnapshot, end: RunFinished
    ) -> None:
        job = running.work.job
        tally = snapshot.tally._replace(completed=len(plan.steps) - snapshot.tally.failed)
        body = answer_body(payload.endpoint, job.id, plan.model_name, end.output, tally, self._clock.wall())
        answer = StoredAnswer(200, [*JSON_HEADERS, *run_headers(job.id, snapshot.steps)], body)
        marks = {SETTLED: len(plan.steps)}
        if await running.finish(self._store, JobEnd(JobState.SUCCEEDED, None, answer, tally, marks, is_attempt=True)):
            self._report_end(job, is_ok=True)

    async def _fail(self, running: RunningWork, why: StepError, snapshot: RunSnapshot | None = None) -> None:
        job = running.work.job
        children: Sequence[Job] = ()
        if snapshot is None:  # all that it has, whatever its plan says
            query = JobQuery(job.tenant, limit=MOST_CHILDREN, parent=job.id)
            children = (await self._store.list_jobs(query)).jobs
        await self._stop_children([child.id for child in children if not child.state.is_end], job.tenant)
        is_spent = why.error_class == RUN_BUDGET_EXCEEDED
        message = f"{why.step}: {why.error_class}: {why.message}" if why.step else f"{why.error_class}: {why.message}"
        error = JobError(RUN_BUDGET_EXCEEDED if is_spent else PipelineFailed.code, message, self._clock.wall())
        headers = [
            *JSON_HEADERS,
            *run_headers(job.id, {} if snapshot is None else snapshot.steps),
            ("x-should-retry", "false"),
        ]
        answer = StoredAnswer(429 if is_spent else PipelineFailed.status, headers, failure_body(job.id, why))
        tally = added(job.tally, children) if snapshot is None else snapshot.tally
        if await running.finish(
            self._store, JobEnd(JobState.FAILED, error, answer, tally, is_attempt=True, is_dead=True)
        ):
            self._report_end(job, is_ok=False)

    def _report_end(self, job: Job, *, is_ok: bool) -> None:
        """Reports what has become of a run, for whoever counts runs."""
        state = JobState.SUCCEEDED if is_ok else JobState.FAILED
        self._runs.run_ended(job.tenant, job.id, RunEnd(self._clock.wall(), job.model, str(state)))

    async def _stop_children(self, ids: Sequence[str], tenant: str) -> None:
        """Has children stop whose run has ended, or is about to. Raises JobsUnavailable."""
        for id in ids:
            await self._store.flag(id, tenant, JobFlag.CANCEL)
            self._changed(id)

    async def _give_back(self, running: RunningWork) -> None:
        try:
            await self._store.give_back(running.work, run_at=None, is_attempt=False)
        except JobsUnavailable:
            log.info("run %s: its claim ends by its lease, or with the process", running.work.job.id)

    def _plan(self, payload: RunPayload, digest: str) -> PipelinePlan:
        """Returns the plan that a run carries. Raises ValueError."""
        plan = self._plans.get(digest)
        if plan is None:
            plan = plan_of(payload)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[plan.digest] = plan
        return plan


def _size_of(state: StepState) -> int:
    """Returns about how many bytes there are to a step's values."""
    texts = [value for value in state.values.values() if isinstance(value, str)]
    items = [value for value in state.values.values() if isinstance(value, list)]
    return len(state.answer) + sum(map(len, texts)) + ITEM_BYTES * sum(map(len, items))
