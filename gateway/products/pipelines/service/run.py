"""The one piece of a run: it comes whenever one of its children has ended, and is parked until the next does.

    look at the children -> decide -> park with new children, or finish

All that it knows is in the store: a process that dies between any two steps leaves a run that the next one decides upon alike.
Between its pieces a run is a row, without a task, a lease or a timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from gateway.core.clock import Clock
from gateway.features.output.judging.turns import FairTurns, NoTurn
from gateway.features.runs.rules.run import told
from gateway.features.runs.rules.workflow import RunOutcome
from gateway.products.jobs.calls.ports.ports import TellRun, tell_nobody
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import ClaimedWork, Job, JobEnd, JobError, JobFlag, JobState, StoredAnswer
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import LAST_RETRY_S, RunningWork
from gateway.products.pipelines.advance.advance import advance
from gateway.products.pipelines.answer.answer import PipelineFailed, answer_body, failure_body, run_headers
from gateway.products.pipelines.compile.compiling.plan import PipelinePlan
from gateway.products.pipelines.rules.carried import CURRENT, SETTLED, STEPS, CarriedRun, carried_by, plan_of
from gateway.products.pipelines.rules.states import (
    RUN_BUDGET_EXCEEDED,
    Decision,
    RunFailed,
    RunFinished,
    RunStates,
    Start,
    StepError,
    StepPhase,
    StepState,
)
from gateway.products.pipelines.service.children import RunChildren
from gateway.products.pipelines.service.looking import RunLook, RunLooks, added
from gateway.products.pipelines.templates.splitting import Count, Hurry, TooLong

MOST_DEATHS = 10
"""A run whose worker has died so often with it is not advanced again: it would take the gateway with it each time. A busy run
is advanced much of the time, so a few deaths in a row may be of other things, and have met it by chance."""
MOST_FAILURES = 3
"""A run that could not be advanced so often, though the worker lives, is not advanced again."""
MOST_PLANS = 64
"""That are remembered, compiled."""
LARGE_BYTES = 262_144
"""Runs that carry more are decided upon in a thread, as are those whose next step is much work: to divide a long text, or to
judge a condition for each of many items, takes its time. One at a time, and tenants in turn: Python's lock goes round among
threads that compute, and the event loop would wait for all of them whenever it goes on."""
ITEM_BYTES = 200
"""What an item of a list is taken for."""
HEADERS = (("content-type", "application/json"),)
log = logging.getLogger("gateway.jobs")


class PipelineRuns:
    """Advances runs."""

    def __init__(
        self,
        store: JobStore,
        looks: RunLooks,
        children: RunChildren,
        clock: Clock,
        count: Callable[[str], Count],
        changed: Callable[[str], None] = lambda _id: None,
        tell: TellRun = tell_nobody,
    ) -> None:
        """`count` gives what counts the tokens of a model; `changed` hears the ids of children of which there is news.

        `tell` hears what has become of runs that end here; of those that are stopped `CountedEnds` tells.
        """
        self._tell = tell
        self._store = store
        self._looks = looks
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
        except (JobsUnavailable, NoTurn):  # of the first the log says why
            at = self._clock.wall() + LAST_RETRY_S
            await running.write(lambda: self._store.give_back(running.work, run_at=at, is_attempt=False))
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
            carried = carried_by(work.payload)
            plan = self._plan(carried, work.job.about.get("digest", ""))
        except ValueError as error:
            await self._fail(running, StepError("internal_error", f"its plan cannot be read here: {error}"))
            return
        look = await self._looks.look(plan, work.job)
        if running.ends_as is not None:
            await self._stop_children(look.running, work.job.tenant)
            await running.finish(self._store, JobEnd(running.ends_as, tally=look.tally))
            return
        decision = await self._decide(plan, carried, look, work)
        if isinstance(decision, RunFinished):
            await self._finish(running, plan, carried, look, decision)
        elif isinstance(decision, RunFailed):
            await self._stop_children(look.running, work.job.tenant)
            await self._fail(running, decision.why, look)
        else:
            await self._go_on(running, plan, decision, look)

    async def _decide(self, plan: PipelinePlan, carried: CarriedRun, look: RunLook, work: ClaimedWork) -> Decision:
        states = RunStates(carried.input, look.steps, look.tally.cost_usd, self._count)
        if len(work.payload) + sum(map(_size_of, look.steps.values())) <= LARGE_BYTES:
            with suppress(TooLong):
                return advance(plan, replace(states, hurry=Hurry()))
        async with self._turns.turn(work.job.tenant, 0):
            return await asyncio.to_thread(advance, plan, states)

    async def _go_on(self, running: RunningWork, plan: PipelinePlan, decision: Decision, look: RunLook) -> None:
        """Parks the run, with what begins now."""
        work, now = running.work, self._clock.wall()
        starts = decision.steps if isinstance(decision, Start) else ()
        children = [await self._children.make(work, plan, start, now) for start in starts]
        begun: Mapping[str, int] = work.job.marks.get(STEPS, {})
        under_way = [name for name, state in look.steps.items() if state.phase is StepPhase.RUNNING]
        marks = {
            CURRENT: sorted({*under_way, *(start.step.name for start in starts)}),
            STEPS: {**begun, **{start.step.name: int(start.part) for start in starts}},
            SETTLED: look.tally.completed + look.tally.failed,
        }
        await running.write(lambda: self._store.park(work, children, marks))
        for child in children:
            self._changed(child.job.id)

    async def _finish(
        self, running: RunningWork, plan: PipelinePlan, carried: CarriedRun, look: RunLook, end: RunFinished
    ) -> None:
        job = running.work.job
        tally = look.tally._replace(completed=len(plan.steps) - look.tally.failed)
        body = answer_body(carried.endpoint, job.id, plan.model_name, end.output, tally, self._clock.wall())
        answer = StoredAnswer(200, [*HEADERS, *run_headers(job.id, look.steps)], body)
        marks = {SETTLED: len(plan.steps)}
        if await running.finish(self._store, JobEnd(JobState.SUCCEEDED, None, answer, tally, marks, is_attempt=True)):
            self._tell_of(job, is_ok=True)

    async def _fail(self, running: RunningWork, why: StepError, look: RunLook | None = None) -> None:
        job = running.work.job
        children = () if look is not None else await self._looks.children_of(job)
        await self._stop_children([child.id for child in children if not child.state.is_end], job.tenant)
        is_spent = why.error_class == RUN_BUDGET_EXCEEDED
        message = f"{why.step}: {why.error_class}: {why.message}" if why.step else f"{why.error_class}: {why.message}"
        error = JobError(RUN_BUDGET_EXCEEDED if is_spent else PipelineFailed.code, message, self._clock.wall())
        headers = [*HEADERS, *run_headers(job.id, {} if look is None else look.steps), ("x-should-retry", "false")]
        answer = StoredAnswer(429 if is_spent else PipelineFailed.status, headers, failure_body(job.id, why))
        tally = added(job.tally, children) if look is None else look.tally
        if await running.finish(self._store, JobEnd(JobState.FAILED, error, answer, tally, is_attempt=True)):
            self._tell_of(job, is_ok=False)

    def _tell_of(self, job: Job, *, is_ok: bool) -> None:
        """Says what has become of a run, for whoever counts runs."""
        outcome = RunOutcome.SUCCEEDED if is_ok else RunOutcome.FAILED
        self._tell(job.tenant, job.id, told(self._clock.wall(), workflow=job.model, outcome=str(outcome)))

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

    def _plan(self, carried: CarriedRun, digest: str) -> PipelinePlan:
        """Returns the plan that a run carries. Raises ValueError."""
        plan = self._plans.get(digest)
        if plan is None:
            plan = plan_of(carried)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[plan.digest] = plan
        return plan


def _size_of(state: StepState) -> int:
    """Returns about how many bytes there are to a step's values."""
    texts = [value for value in state.values.values() if isinstance(value, str)]
    items = [value for value in state.values.values() if isinstance(value, list)]
    return len(state.answer) + sum(map(len, texts)) + ITEM_BYTES * sum(map(len, items))
