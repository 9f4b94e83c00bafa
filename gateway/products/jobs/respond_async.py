"""`Prefer: respond-async` on any POST: the call is a durable job first; its caller waits as long as it said (RFC 7240, 4.1).

Done in time, the answer is the usual one, and says that it outlived nothing; else 202, with the place where it will be. A call
that did not ask for that, and would be refused for want of room, becomes a job where its model's rules and its key have that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import orjson

from gateway.core.call import Call, Reply
from gateway.core.clock import Clock
from gateway.core.errors import AdmissionDenied, GatewayError
from gateway.features.reuse.layers import IDEMPOTENT
from gateway.products.jobs.answers_http import accepted_headers, show_job, stored_headers
from gateway.products.jobs.metrics import JobMeter
from gateway.products.jobs.model import DedupeConflict, Job, JobsUnavailable, StoredAnswer
from gateway.products.jobs.request import read_option_headers
from gateway.products.jobs.service import DegradedCalls, JobService
from gateway.products.pipelines.http import PipelineAnswers

log = logging.getLogger("gateway.jobs")
APPLIED = (b"preference-applied", b"respond-async")


class AsyncAnswers:
    """Answers calls whose callers need not wait."""

    def __init__(self, jobs: JobService, clock: Clock, meter: JobMeter | None = None) -> None:
        self._jobs = jobs
        self._degraded = DegradedCalls(jobs)
        self._pipelines = PipelineAnswers(jobs, clock)
        self._meter = meter
        self._clock = clock

    async def respond(self, call: Call, index: Mapping[bytes, bytes], wait_s: float) -> Reply:
        """Takes the call as a job, and answers within `wait_s`. Raises GatewayError as `JobService.accept` does."""
        if call.model.pipeline is not None:
            return await self._pipelines.respond(call, index, wait_s)
        options = read_option_headers(index, self._clock.wall(), self._clock.ahead_s)
        accepted = await self._jobs.accept(call, options)
        job, answer = await self._wait(accepted.job, min(wait_s, max(0.0, call.deadline - self._clock.monotonic())))
        if answer is not None:
            return Reply(answer.status, [*stored_headers(job, answer), APPLIED], answer.body)
        headers = [*accepted_headers(job), APPLIED]
        if accepted.debounced:
            headers.append((b"x-gateway-debounced", b"%d" % accepted.debounced))
        return Reply(202, headers, orjson.dumps(show_job(job)))

    async def in_place_of(self, call: Call, refusal: AdmissionDenied) -> Reply:
        """Takes a call that is refused as a job, and answers 202. Raises the refusal where that is not to be, or cannot."""
        rules, code = call.model.jobs.degrade, refusal.code or ""
        if not call.key.accepts_202 or call.lane not in rules.lanes or code not in rules.when:
            raise refusal
        try:
            job = await self._degraded.accept(call, refusal)
        except (AdmissionDenied, DedupeConflict):
            raise
        except GatewayError as trouble:
            log.info("call %s cannot become a job: %s", call.id, trouble.message)
            raise refusal from None
        log.info("call %s has become job %s: %s", call.id, job.id, code)
        if self._meter is not None:
            self._meter.degraded(code)
        headers = [*accepted_headers(job), (b"x-gateway-degraded", code.encode())]
        return Reply(202, headers, orjson.dumps(show_job(job)))

    async def repeated(self, call: Call) -> Reply | None:
        """Returns the place or the answer of the job that the call, sent before with its key, has become; None: none.

        Raises KeyReused where that was another request.
        """
        if not call.key.accepts_202 or call.lane not in call.model.jobs.degrade.lanes:
            return None
        try:
            job, answer = await self._degraded.find(call) or (None, None)
        except JobsUnavailable:  # its record still sees to it that it is not paid for beside an answer
            return None
        if job is None:
            return None
        if answer is not None:
            headers = [header for header in stored_headers(job, answer) if header != IDEMPOTENT]
            return Reply(answer.status, [*headers, IDEMPOTENT], answer.body)
        return Reply(202, [*accepted_headers(job), IDEMPOTENT], orjson.dumps(show_job(job)))

    async def _wait(self, job: Job, wait_s: float) -> tuple[Job, StoredAnswer | None]:
        """Returns the job after `wait_s` or at its end, with its answer, if there is one.

        It is taken: a store that cannot be read now is no reason to refuse it, or its caller would send it, and pay, again.
        """
        try:
            job = await self._jobs.wait(job, wait_s)
            return await self._jobs.answer(job.id, job.tenant) if job.state.is_end else (job, None)
        except JobsUnavailable:
            return job, None
