"""How the steps of a run stand, read from its children, and what their answers say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.products.batches.finish.finalise import INTERNAL
from gateway.products.batches.output import marks
from gateway.products.jobs.model.job import Job, JobQuery, JobState, Tally
from gateway.products.jobs.store.blobs import Blobs
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.pipelines.advance.advance import wanted_values
from gateway.products.pipelines.advance.results import values_of
from gateway.products.pipelines.compile.compiling.plan import MOST_STEPS, PipelinePlan, Step
from gateway.products.pipelines.rules.carried import BROKEN, ITEMS, STEPS, UNASKED
from gateway.products.pipelines.rules.states import (
    RUN_BUDGET_EXCEEDED,
    TOO_MANY_FAILED,
    StepError,
    StepPart,
    StepPhase,
    StepState,
)
from gateway.products.pipelines.service.children import child_id
from gateway.products.pipelines.steps.lines import MOST_MESSAGE_CHARS, errors_in, state_of_items

MOST_INLINE_BYTES = 1_000_000
"""Of answers that are read in the event loop; more go to a thread."""
Children = Mapping[tuple[str, StepPart], Job | None]
MOST_CHILDREN = MOST_STEPS * len(StepPart)


class RunLook(NamedTuple):
    """A run as its children have it."""

    steps: Mapping[str, StepState]
    tally: Tally
    """What its children have used and cost, those that still run as far as it is known; the counts are of its steps."""
    running: Sequence[str]
    """The ids of the children that have not ended."""


class RunLooks:
    """Reads children."""

    def __init__(self, store: JobStore, blobs: Blobs) -> None:
        self._store = store
        self._blobs = blobs

    async def look(self, plan: PipelinePlan, run: Job) -> RunLook:
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
        return RunLook(states, added(_counted(plan, states), found), [job.id for job in found if not job.state.is_end])

    async def children_of(self, run: Job) -> Sequence[Job]:
        """Returns all children of a run, whatever its plan says. Raises JobsUnavailable."""
        return (await self._store.list_jobs(JobQuery(run.tenant, limit=MOST_CHILDREN, parent=run.id))).jobs

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
            return await self._with_items(step, state, children)
        answer = await self._store.answer(child.id, child.tenant)
        body = b"" if answer is None else answer.body
        if state.part is StepPart.REPAIR:
            return StepState(state.part, state.phase, failed=state.failed, error=state.error, answer=body)
        return StepState(state.part, state.phase, values_of(step.endpoint, body), error=state.error)

    async def _with_items(self, step: Step, state: StepState, children: Children) -> StepState:
        """Returns a step with items as the files of its parts have it. Raises JobsUnavailable."""
        parts = [children[step.name, part] for part in StepPart if part <= state.part]
        most = None if step.on_failure.model else MOST_INLINE_BYTES  # of no use but as an example
        answered = [await self._read(child, marks.OUTPUT_FILE) for child in parts]
        failed = [await self._read(child, marks.ERROR_FILE, most) if state.failed else b"" for child in parts]
        if sum(map(len, (*answered, *failed))) > MOST_INLINE_BYTES:
            return await asyncio.to_thread(state_of_items, step, state, answered, failed)
        return state_of_items(step, state, answered, failed)

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
    if BROKEN in child.marks and child.state is JobState.CANCELLED:
        such = next(iter(errors_in(step, child.marks[BROKEN].encode()).values()), None)
        told = "more items have failed than the plan accepts, and the others were stopped"
        why = StepError(TOO_MANY_FAILED, told + (f"; such as: {such.message}" if such else ""), step.name)
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
    return marks.INDEX in child.marks and child.state in (JobState.SUCCEEDED, JobState.EXPIRED)


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
