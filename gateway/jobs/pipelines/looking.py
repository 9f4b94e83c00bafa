"""How the steps of a run stand, read from its children, and what their answers say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from gateway.job_ports.blobs import Blobs
from gateway.job_ports.jobs import JobStore
from gateway.jobs.batches.finalise import INTERNAL
from gateway.jobs.pipelines.children import child_id
from gateway.policy.batches import marks
from gateway.policy.jobs.job import Job, JobQuery, JobState, Tally
from gateway.policy.pipelines.advance import (
    RUN_BUDGET_EXCEEDED,
    TOO_MANY_FAILED,
    StepError,
    StepPart,
    StepPhase,
    StepState,
    wanted_values,
)
from gateway.policy.pipelines.carried import BROKEN, ITEMS, STEPS, UNASKED
from gateway.policy.pipelines.plan import MOST_STEPS, PipelinePlan, Step
from gateway.policy.pipelines.results import values_of, values_of_many

MOST_INLINE_BYTES = 1_000_000
"""Of answers that are read in the event loop; more go to a thread."""
MOST_MESSAGE_CHARS = 500
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
            if part <= latest and (part is not StepPart.REPAIR or step.on_failure.action == "repair")
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
        values = wanted_values(plan, states)
        for name, state in states.items():
            child = children[name, state.part]
            if (
                state.phase is StepPhase.DONE
                and child is not None
                and (name in values or state.part is StepPart.REPAIR)
            ):
                states[name] = await self._with_values(plan.steps[name], state, child)
        found = [job for job in jobs if job is not None]
        return RunLook(states, added(_counted(plan, states), found), [job.id for job in found if not job.state.is_end])

    async def children_of(self, run: Job) -> Sequence[Job]:
        """Returns all children of a run, whatever its plan says. Raises JobsUnavailable."""
        return (await self._store.list_jobs(JobQuery(run.tenant, limit=MOST_CHILDREN, parent=run.id))).jobs

    def _state(self, step: Step, part: StepPart, children: Mapping[tuple[str, StepPart], Job | None]) -> StepState:
        child = children[step.name, part]
        first = children[step.name, StepPart.FIRST]
        error = _error_of(step, child if part is not StepPart.REPAIR else first)
        if child is None:
            gone = StepError("internal_error", "the step's job is no longer there", step.name)
            return StepState(part, StepPhase.FAILED, error=gone)
        if not child.state.is_end:
            return StepState(part, StepPhase.RUNNING, error=error)
        if step.for_each is None:
            is_ok = child.state is JobState.SUCCEEDED
            return StepState(part, StepPhase.DONE if is_ok else StepPhase.FAILED, error=error)
        total = child.about[ITEMS]
        if BROKEN in child.marks and child.state is JobState.CANCELLED:
            such = _first_error(step, child.marks[BROKEN].encode())
            told = "more items have failed than the plan accepts, and the others were stopped"
            why = StepError(TOO_MANY_FAILED, told + (f"; such as: {such.message}" if such else ""), step.name)
            if such is not None and such.error_class == RUN_BUDGET_EXCEEDED:
                why = such
            return StepState(part, StepPhase.FAILED, failed=total, total=total, error=why)
        has_lines = marks.INDEX in child.marks and child.state in (JobState.SUCCEEDED, JobState.EXPIRED)
        failed = child.tally.failed + child.about[UNASKED]
        phase = StepPhase.DONE if has_lines else StepPhase.FAILED
        return StepState(part, phase, failed=failed if has_lines else total, total=total, error=error)

    async def _with_values(self, step: Step, state: StepState, child: Job) -> StepState:
        """Returns a step that is done with what its answers say. Raises JobsUnavailable."""
        if step.for_each is None:
            answer = await self._store.answer(child.id, child.tenant)
            body = b"" if answer is None else answer.body
            if state.part is StepPart.REPAIR:
                return StepState(state.part, state.phase, error=state.error, answer=body)
            return StepState(state.part, state.phase, values_of(step.endpoint, body), error=state.error)
        lines = await self._read(child, marks.OUTPUT_FILE)
        told = await self._read(child, marks.ERROR_FILE, MOST_INLINE_BYTES) if state.failed else b""
        stand_in = step.on_failure.value if step.on_failure.action == "use" else None
        if len(lines) > MOST_INLINE_BYTES:
            values = await asyncio.to_thread(_values_of_lines, step, lines, state, stand_in)
        else:
            values = _values_of_lines(step, lines, state, stand_in)
        return StepState(
            state.part, state.phase, values, state.failed, state.total, _first_error(step, told) or state.error
        )

    async def _read(self, child: Job, mark: str, most: int | None = None) -> bytes:
        """Returns the bytes of a file of a batch, at most so many; none where it has no such file. Raises JobsUnavailable."""
        file_id = child.marks.get(mark)
        file = None if file_id is None else await self._store.files.find(file_id, INTERNAL)
        if file is None:
            return b""
        return b"".join([part async for part in self._blobs.read(file.blob, 0, most)])


def _values_of_lines(step: Step, lines: bytes, state: StepState, stand_in: Any) -> dict[str, Any]:
    answers: list[Any] = [None] * state.total
    for line in lines.splitlines():
        one = orjson.loads(line)
        answers[int(one["custom_id"])] = one["response"]["body"]
    return {**values_of_many(step.endpoint, answers, stand_in), "failed": state.failed}


def _first_error(step: Step, lines: bytes) -> StepError | None:
    """Returns the error of the first line of an error file, or of the first that its run had no money for; None: of none."""
    spent = lines.find(b'"%b"' % RUN_BUDGET_EXCEEDED.encode())
    begin = 0 if spent < 0 else lines.rfind(b"\n", 0, spent) + 1
    try:
        one = orjson.loads(lines[begin:].partition(b"\n")[0])
    except orjson.JSONDecodeError:
        return None
    error = one.get("error") or ((one.get("response") or {}).get("body") or {}).get("error") or {}
    if not isinstance(error, dict):
        return None
    return StepError(str(error.get("code")), str(error.get("message"))[:MOST_MESSAGE_CHARS], step.name)


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
    failed = sum(state.phase is StepPhase.FAILED for state in over)
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
