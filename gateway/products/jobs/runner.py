"""The life of a job of kind `call`: one stored request, tried until it is answered, has failed for good, or is to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from gateway.core.clock import Clock
from gateway.core.types import Usage
from gateway.features.run_port import RunWords
from gateway.products.jobs.calls import (
    CallServer,
    Outcome,
    StoredRequest,
    TryResult,
    attempts_allowed,
    backoff_s,
    step_of,
    with_version,
)
from gateway.products.jobs.dead_letters.rules import is_dead_class
from gateway.products.jobs.model import Job, JobEnd, JobError, JobState, Tally
from gateway.products.jobs.request import IDEMPOTENCY_KEY, QUERY, RUN_WORDS
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import CrashSuspects, RunningWork

log = logging.getLogger("gateway.jobs")


class CallJobs:
    """Runs jobs of kind `call`."""

    def __init__(
        self,
        store: JobStore,
        server: CallServer,
        clock: Clock,
        rules_of: Callable[[Job], JobRules],
        draw: Callable[[], float],
        suspects: CrashSuspects | None = None,
    ) -> None:
        """`rules_of` gives the rules in force for a job; `draw` uniform numbers from [0, 1).

        `suspects` are those of the process; None: no other jobs run in it.
        """
        self._store = store
        self._server = server
        self._clock = clock
        self._rules_of = rules_of
        self._draw = draw
        self._suspects = suspects or CrashSuspects(store, clock)

    async def run(self, running: RunningWork) -> None:
        """Tries the job once, and ends its claim: with an answer, for another try, or as it was asked to end."""
        await self._suspects.run(running, self._run, self._give_up)

    async def _give_up(self, running: RunningWork, error: JobError) -> None:
        await running.finish(self._store, JobEnd(JobState.FAILED, error, tally=tally_of(is_ok=False), is_dead=True))

    async def _run(self, running: RunningWork) -> None:
        work, job = running.work, running.work.job
        if job.attempts >= job.max_attempts:
            await self._give_up(
                running, job.last_error or JobError("internal_error", "the gateway failed on it", self._clock.wall())
            )
            return
        request = request_of(job, work.payload, self._clock.wall())._replace(lost_tries=work.claims - 1)
        serving = asyncio.create_task(self._server.serve(request))
        stopping = asyncio.create_task(running.stopping.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done() and running.is_draining:
                await serving  # the worker cancels it when the grace is over
            if serving.done():
                await self._ended(running, serving.result())
            else:
                await end_task(serving)
                await self._stopped(running)
        except asyncio.CancelledError:
            await asyncio.shield(self._broken_off(running, serving))
            raise
        finally:
            stopping.cancel()

    async def _ended(self, running: RunningWork, served: TryResult) -> None:
        job = running.work.job
        outcome, retry_after_s = served.verdict
        now = self._clock.wall()
        answer = None if served.answer is None else served.answer.stored()
        if outcome is Outcome.DONE or outcome is Outcome.PERMANENT:
            is_ok = outcome is Outcome.DONE
            state = JobState.SUCCEEDED if is_ok else JobState.FAILED
            tally = tally_of(is_ok=is_ok, usage=served.usage, cost_usd=served.cost_usd)
            brakes = self._rules_of(job).batches.brake_classes
            is_dead = served.error is not None and is_dead_class(job, served.error.error_class, brakes)
            await running.finish(
                self._store, JobEnd(state, served.error, answer, tally, is_attempt=True, is_dead=is_dead)
            )
        elif outcome is Outcome.INTERRUPTED:
            await running.give_back(self._store)
        elif outcome is Outcome.PUT_OFF:
            await running.give_back(self._store, now + (retry_after_s or 0.0), served.error)
        else:
            rules, attempts = self._rules_of(job), job.attempts + 1
            wait_s = max(backoff_s(rules, attempts, self._draw()), retry_after_s or 0.0)
            if attempts < min(job.max_attempts, attempts_allowed(rules, served.cost_usd)):
                await running.give_back(self._store, now + wait_s, served.error, is_attempt=True)
            else:
                tally = tally_of(is_ok=False, cost_usd=served.cost_usd)
                await running.finish(
                    self._store, JobEnd(JobState.FAILED, served.error, answer, tally, is_attempt=True, is_dead=True)
                )

    async def _stopped(self, running: RunningWork) -> None:
        """The job is to end, or is paused: its call was broken off."""
        if running.ends_as is None:
            await running.give_back(self._store)
        else:
            await running.finish(self._store, JobEnd(running.ends_as, tally=tally_of(is_ok=False)))

    async def _broken_off(self, running: RunningWork, serving: asyncio.Task[TryResult]) -> None:
        """This process stops, or another worker has the job: nothing came of it here."""
        await end_task(serving)
        await running.release(self._store)


def request_of(job: Job, body: bytes, now: float) -> StoredRequest:
    """Returns the request that a job of kind `call` stands for."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in job.about.get("headers", ())]
    key = job.about.get(IDEMPOTENCY_KEY)
    return StoredRequest(
        id=job.id,
        endpoint=job.about["endpoint"],
        body=body,
        headers=with_version(job.about["endpoint"], headers),
        key=job.key,
        tenant=job.tenant,
        lane=job.lane,
        deadline_s=max(0.0, job.deadline - now),
        idempotency_key=None if key is None else key.encode("latin-1"),
        part=RunWords(*job.about.get(RUN_WORDS, ())),
        query=job.about.get(QUERY, "").encode("latin-1"),
        step=step_of(job),
    )


def run_of(job: Job) -> str:
    """Returns the run that the calls of a job are parts of; empty: none."""
    return job.parent or RunWords(*job.about.get(RUN_WORDS, ())).run


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits until it has ended, however."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def tally_of(*, is_ok: bool, usage: Usage | None = None, cost_usd: float | None = None) -> Tally:
    """Returns what a job of one call has come to."""
    tokens = usage or Usage(0, 0)
    return Tally(1, int(is_ok), int(not is_ok), tokens.input, tokens.cached, tokens.output, cost_usd or 0.0)
