"""`Prefer: respond-async` on any POST: the call is a durable job first; its caller waits as long as it said (RFC 7240, 4.1).

Done in time, the answer is the usual one, and says that it outlived nothing; else 202, with the place where it will be. A call
that did not ask for that, and would be refused for want of room, becomes a job where its model's rules and its key have that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from gateway.core.call import Call, CallFeature, CallRoute, Reply, Serve, Slot
from gateway.core.clock import Clock
from gateway.core.errors import AdmissionDenied, GatewayError
from gateway.core.ledger import Accounts
from gateway.drivers.durability import JobsUnavailable
from gateway.features.identity import IDEMPOTENT, SENT_KEY
from gateway.features.run_port import NO_JOB
from gateway.products.jobs.answers_http import accepted_headers, show_job, stored_headers
from gateway.products.jobs.metrics import JobMeter
from gateway.products.jobs.model import DedupeConflict, Job, StoredAnswer
from gateway.products.jobs.request import read_option_headers, responds_async
from gateway.products.jobs.rules import ACCEPTS_202, JOB_RULES, JOBS
from gateway.products.jobs.service import DegradedCalls, JobService

log = logging.getLogger("gateway.jobs")
APPLIED = (b"preference-applied", b"respond-async")


PREFER, IDEMPOTENCY_KEY = b"prefer", b"idempotency-key"


class AsyncRequest(NamedTuple):
    """What a call says of the job that it asks to become."""

    wait_s: float
    """The seconds that its client waits before it takes a 202."""
    headers: Mapping[bytes, bytes]


ASYNC_REQUEST: Final[Slot[AsyncRequest]] = Slot("async_request")


def may_become_job(route: CallRoute, requested: frozenset[bytes]) -> bool:
    """Returns whether calls ask for a job, or their callers take one for an answer; not where a call is answered at once, or
    says a part of itself in its path, nor where a job makes it: that would become a job again, without end."""
    is_possible = not route.endpoint.is_no_job and not route.is_internal
    return is_possible and (ACCEPTS_202.of(route.key) or PREFER in requested)


class AsyncAnswers(CallFeature):
    """Answers calls whose callers need not wait."""

    name = "jobs"
    options: frozenset[bytes] = frozenset((PREFER, IDEMPOTENCY_KEY))

    def __init__(self, jobs: JobService, accounts: Accounts, clock: Clock, meter: JobMeter | None = None) -> None:
        self._jobs = jobs
        self._accounts = accounts
        self._degraded = DegradedCalls(jobs)
        self._meter = meter
        self._clock = clock

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for calls that may become jobs."""
        return self if may_become_job(route, requested) else None

    def read(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        """Reads whether the client takes a job for an answer."""
        if PREFER in headers and call.request.endpoint.request != "any" and JOBS.of(call.route.policy).is_on:
            wait_s = responds_async([(PREFER, headers[PREFER])])
            if wait_s is not None:
                ASYNC_REQUEST.put(call, AsyncRequest(wait_s, headers))

    async def serve(self, call: Call, next: Serve) -> Reply:
        """Returns the reply to a call that is a job, or has become one; else that of `next`."""
        # Of most calls no feature has put anything on them.
        job_request = None if call.slots is None else ASYNC_REQUEST.find(call)
        if job_request is not None:
            self._accounts.withdraw(call)  # its job makes the calls
            call.end_comments()
            return await self._respond(call, job_request.headers, job_request.wait_s)
        if call.is_begun:  # its answer can have no status of its own: no job can take the place of the call
            return await next(call)
        if call.slots is not None and SENT_KEY.find(call) is not None:
            try:
                repeated = await self._repeated(call)
            except GatewayError:  # its key is another request's: it never was a call
                self._accounts.withdraw(call)
                raise
            if repeated is not None:
                self._accounts.withdraw(call)
                return repeated
        try:
            return await next(call)
        except AdmissionDenied as refusal:
            self._accounts.settle_failed(call, refusal)
            # A job may take the place of a call that is refused now; not of one whose head has gone.
            if call.is_begun:
                raise
            return await self._in_place_of(call, refusal)

    async def _respond(self, call: Call, index: Mapping[bytes, bytes], wait_s: float) -> Reply:
        """Takes the call as a job, and answers within `wait_s`. Raises GatewayError as `JobService.accept` does."""
        options = read_option_headers(index, self._clock.wall(), self._clock.ahead_s)
        accepted = await self._jobs.accept(call, options)
        job, answer = await self._wait(
            accepted.job, min(wait_s, max(0.0, call.request.deadline - self._clock.monotonic()))
        )
        if answer is not None:
            return Reply(answer.status, [*stored_headers(job, answer), APPLIED], answer.body)
        headers = [*accepted_headers(job), APPLIED]
        if accepted.debounced:
            headers.append((b"x-gateway-debounced", b"%d" % accepted.debounced))
        return Reply(202, headers, orjson.dumps(show_job(job)))

    async def _in_place_of(self, call: Call, refusal: AdmissionDenied) -> Reply:
        """Takes a call that is refused as a job, and answers 202. Raises the refusal where that is not to be, or cannot."""
        rules, code = JOB_RULES.of(call.route.model).degrade, refusal.code or ""
        if NO_JOB.find(call) is not None:
            raise refusal
        if not ACCEPTS_202.of(call.route.key) or call.request.lane not in rules.lanes or code not in rules.when:
            raise refusal
        try:
            job = await self._degraded.accept(call, refusal)
        except (AdmissionDenied, DedupeConflict):
            raise
        except GatewayError as trouble:
            log.info("call %s cannot become a job: %s", call.request.id, trouble.message)
            raise refusal from None
        log.info("call %s has become job %s: %s", call.request.id, job.id, code)
        if self._meter is not None:
            self._meter.degraded(code)
        headers = [*accepted_headers(job), (b"x-gateway-degraded", code.encode())]
        return Reply(202, headers, orjson.dumps(show_job(job)))

    async def _repeated(self, call: Call) -> Reply | None:
        """Returns the place or the answer of the job that the call, sent before with its key, has become; None: none.

        Raises KeyReused where that was another request.
        """
        if not ACCEPTS_202.of(call.route.key) or call.request.lane not in JOB_RULES.of(call.route.model).degrade.lanes:
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
