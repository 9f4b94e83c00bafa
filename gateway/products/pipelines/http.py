"""`model: pipelines/NAME`: a run whose caller waits for it, as long as it asked to; and the calls for its steps.

Done in time, the answer is that of the run; else 202 for callers who take a job for an answer (RFC 7240, 4.1), and 504 with the
run's id for all others. The run goes on in any case. A call for a step comes last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from gateway.core.call import Call, CallFeature, CallRoute, Reply, Serve, Slot
from gateway.core.clock import Clock
from gateway.core.ledger import Accounts
from gateway.core.render import error_object
from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs.answers_http import accepted_headers, show_job, stored_headers
from gateway.products.jobs.model import Job, StoredAnswer
from gateway.products.jobs.request import read_option_headers, responds_async
from gateway.products.jobs.rules import JOBS
from gateway.products.jobs.service import JobService
from gateway.products.pipelines.advance import RUN, PipelineUnfinished
from gateway.products.pipelines.compile import PIPELINE

NO_PREFERENCE = -1.0
"""The value in place of the seconds that a caller waits before it takes a 202: it takes none."""
MARGIN_S = 0.05
"""The seconds before its deadline at which a caller gets the answer that there is none yet."""


class RunRequest(NamedTuple):
    """What a call to a pipeline says of the run."""

    wait_s: float
    """The seconds that its client waits before it takes a 202, or NO_PREFERENCE."""
    headers: Mapping[bytes, bytes]


RUN_REQUEST: Final[Slot[RunRequest]] = Slot("run_request")


class PipelineAnswers(CallFeature):
    """Answers calls to pipelines: each is a run, and no provider is called for it."""

    name = "pipelines"
    options: frozenset[bytes] = frozenset((b"prefer",))

    def __init__(self, jobs: JobService | None, accounts: Accounts, clock: Clock) -> None:
        """`jobs` keeps the runs; None: this gateway keeps none."""
        self._jobs = jobs
        self._accounts = accounts
        self._clock = clock

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for models that are pipelines. Raises JobsUnavailable where there are no jobs."""
        if PIPELINE not in route.model.settings:
            return None
        if self._jobs is None or not JOBS.of(route.policy).is_on:
            raise JobsUnavailable(
                f"{route.model.name} is a pipeline, whose runs are jobs, and this gateway keeps none (jobs.store: off)."
            )
        return self

    def read(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        """Reads how long the client waits."""
        wait_s = None
        if b"prefer" in headers and not call.request.endpoint.is_no_job:
            wait_s = responds_async([(b"prefer", headers[b"prefer"])])
        RUN_REQUEST.put(call, RunRequest(NO_PREFERENCE if wait_s is None else wait_s, headers))

    async def serve(self, call: Call, next: Serve) -> Reply:
        """Returns the answer of the run, or where it will be."""
        job_request = RUN_REQUEST.find(call)
        if job_request is None or self._jobs is None:
            return await next(call)
        self._accounts.withdraw(call)  # its steps are the calls
        return await self._respond(self._jobs, call, job_request.headers, job_request.wait_s)

    async def _respond(self, jobs: JobService, call: Call, index: Mapping[bytes, bytes], wait_s: float) -> Reply:
        """Begins a run and answers within `wait_s`, or until the call's deadline with NO_PREFERENCE.

        Raises GatewayError as `JobService.accept` does.
        """
        options = read_option_headers(index, self._clock.wall(), self._clock.ahead_s)
        accepted = await jobs.accept(call, options)
        left_s = max(0.0, call.request.deadline - self._clock.monotonic() - MARGIN_S)
        job, answer = await self._wait(jobs, accepted.job, left_s if wait_s < 0 else min(wait_s, left_s))
        if answer is not None:
            return Reply(answer.status, stored_headers(job, answer), answer.body)
        if wait_s >= 0:
            headers = [*accepted_headers(job), (b"preference-applied", b"respond-async")]
            return Reply(202, headers, orjson.dumps(show_job(job)))
        # its time is over, or its run was stopped
        if job.state.is_end:
            message = f"The run has ended as '{job.state}', without an answer."
        else:
            message = f"The run is not at its end yet and goes on; GET /v1/jobs/{job.id}/result has its answer then."
        late = PipelineUnfinished(message)
        error = {**error_object(late), "run_id": job.id}
        headers = [
            (b"content-type", b"application/json"),
            (RUN, job.id.encode()),
            (b"x-gateway-job", job.id.encode()),
            (b"x-request-id", job.id.encode()),
            (b"x-should-retry", b"false"),
        ]
        return Reply(late.status, headers, orjson.dumps({"error": error}))

    async def _wait(self, jobs: JobService, job: Job, wait_s: float) -> tuple[Job, StoredAnswer | None]:
        """Returns the run after `wait_s` or at its end, with its answer, if there is one."""
        try:
            job = await jobs.wait(job, wait_s)
            return await jobs.answer(job.id, job.tenant) if job.state.is_end else (job, None)
        except JobsUnavailable:  # it is taken, and goes on
            return job, None


# --- a call for a step of a pipeline: a part of its run ---
