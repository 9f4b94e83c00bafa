"""Jobs as routes have them: taken, shown, waited for and stopped. The tenant is given by the edge.

Calls that became jobs because there was no room come last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from hashlib import sha256

import orjson

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import AdmissionDenied, NotFound
from gateway.features.identity import LARGE_BYTES, SENT_KEY, KeyReused, fingerprint, record_key
from gateway.features.run_port import NO_RUNS, RunPort
from gateway.products.jobs.calls import headers_to_keep
from gateway.products.jobs.model import (
    DRAW_BYTES,
    JOB,
    REQUEST_URL,
    RUN,
    Accepted,
    DedupeConflict,
    Job,
    JobFlag,
    JobKind,
    JobNeedsProviderKey,
    JobPage,
    JobQuery,
    JobState,
    NewJob,
    StoredAnswer,
    derived_call_id,
    new_id,
)
from gateway.products.jobs.request import (
    FINGERPRINT,
    IDEMPOTENCY_KEY,
    QUERY,
    RUN_WORDS,
    URGENT_FROM,
    JobOptions,
    bare_provider,
    canonical,
    refuse_request_url,
)
from gateway.products.jobs.rules import JobRules, SegmentRules
from gateway.products.jobs.upkeep import Watchers
from gateway.products.jobs.worker import JobEngine

NOT_THERE = "There is no such job; GET /v1/jobs lists yours."


class JobService:
    """Takes and shows jobs of kind `call`."""

    def __init__(
        self,
        engine: JobEngine,
        clock: Clock,
        rules: Callable[[], JobRules],
        price_of: Callable[[Call], float | None],
        draw: Callable[[int], bytes],
        runs: RunPort = NO_RUNS,
        as_run: Callable[[NewJob, Call], NewJob] | None = None,
    ) -> None:
        """`price_of` estimates what an attempt of a call costs in US dollars; `rules` gives those in force, `draw` so many
        random bytes; `runs` those that calls are parts of. `as_run` makes a run of the job of a call that no target answers;
        None: there are no such calls.
        """
        self._runs = runs
        self._engine = engine
        self._clock = clock
        self._rules = rules
        self._price_of = price_of
        self._draw = draw
        self._as_run = as_run
        self.watchers = Watchers(clock, lambda: engine.is_closing)

    async def accept(self, call: Call, options: JobOptions, job_id: str = "", *, dedupes: bool = True) -> Accepted:
        """Makes a durable job of a call that the edge has checked, with this id where one is given.

        `dedupes` says whether the call's `Idempotency-Key` is the job's dedupe key where `options` have none.

        Raises JobsUnavailable, TooManyJobs, DedupeConflict, and JobNeedsProviderKey where only the caller's own credential
        would open its providers, because no credential is ever stored; WebhookNotAllowed.
        """
        refuse_callers_credential(call)
        refuse_request_url(options.webhook, self._rules(), call.route.key)
        store = await self._engine.store()
        as_run = self._as_run if call.route.model.answered_by else None
        job_id = job_id or new_id(JOB if as_run is None else RUN, self._draw(DRAW_BYTES))
        new = self._new_job(call, options, job_id, dedupes=dedupes)
        (accepted,) = await store.accept([new if as_run is None else as_run(new, call)])
        if accepted.is_conflict:
            label, param = ("Idempotency-Key",) * 2 if options.dedupe_key is None else ("dedupe key", "dedupe_key")
            raise DedupeConflict(
                f"The {label} belongs to a job with another payload; use another key, or wait until it is forgotten.",
                param=param,
            )
        self.watchers.changed(accepted.job.id)
        return accepted

    async def find(self, job_id: str, tenant: str) -> Job:
        """Returns a job of the tenant's, at most a second old. Raises NotFound."""
        job = await self.watchers.look(await self._engine.reader(), job_id, tenant)
        if job is None:
            raise NotFound(NOT_THERE)
        return job

    async def answer(self, job_id: str, tenant: str) -> tuple[Job, StoredAnswer | None]:
        """Returns a job and its stored answer; None: there is none yet, or never will be. Raises NotFound."""
        store = await self._engine.reader()
        job = await store.find(job_id, tenant)
        if job is None:
            raise NotFound(NOT_THERE)
        if job.kind is JobKind.RESPONSE and job.state.is_end:
            kept = await store.responses.find(job_id, tenant)
            return job, None if kept is None else StoredAnswer(200, [("content-type", "application/json")], kept.body)
        return job, await store.answer(job_id, tenant) if job.state.is_end else None

    async def wait(self, job: Job, wait_s: float) -> Job:
        """Returns the job when it has ended, or as it is after `wait_s`, or once the process is on its way out."""
        store = await self._engine.store()
        ends_at = self._clock.monotonic() + wait_s
        while not job.state.is_end and (left_s := ends_at - self._clock.monotonic()) > 0:
            if self._engine.is_closing:
                break  # the next process goes on with it, and whoever is told so finds it there
            await self.watchers.wait(job.id, left_s)
            job = await self.watchers.look(store, job.id, job.tenant) or job
        return job

    async def changes(self, job_id: str, tenant: str, after: int) -> AsyncIterator[Job | None]:
        """Yields a job that is there whenever it has changed, until its end; None where it has not for some time."""
        async for job in self.watchers.changes(await self._engine.reader(), job_id, tenant, after):
            yield job

    async def cancel(self, job_id: str, tenant: str) -> Job:
        """Asks a job to stop; one that has ended stays as it is. Raises NotFound."""
        store = await self._engine.reader()
        job = await store.flag(job_id, tenant, JobFlag.CANCEL)
        if job is None:
            raise NotFound(NOT_THERE)
        self.watchers.changed(job_id)
        return job

    async def flag(self, job_id: str, flag: JobFlag) -> Job | None:
        """Asks something of anybody's job, for operators; None: there is none."""
        job = await (await self._engine.reader()).flag(job_id, None, flag)
        if job is not None:
            self.watchers.changed(job_id)
        return job

    async def list_jobs(self, query: JobQuery) -> JobPage:
        """Returns a page of a tenant's jobs, or everybody's, newest first."""
        return await (await self._engine.reader()).list_jobs(query)

    def stands(self, job: Job) -> bool:
        """Returns whether a job still stands for its key: it may come to something, or has, and is not too old."""
        is_void = job.state.is_end and job.state is not JobState.SUCCEEDED
        return not is_void and self._clock.wall() < job.created_at + self._rules().dedupe_for_s

    def _new_job(self, call: Call, options: JobOptions, job_id: str, *, dedupes: bool) -> NewJob:
        rules, now = self._rules(), self._clock.wall()
        debounce = options.debounce
        run_at = now if options.run_at is None else max(now, options.run_at)
        if debounce is not None:
            run_at = max(run_at, now + debounce.wait_s)
        sent_key = SENT_KEY.find(call)
        key = None if sent_key is None else sent_key.decode("latin-1")
        keyed = {} if key is None else {IDEMPOTENCY_KEY: key, FINGERPRINT: fingerprint_of(call)}
        dedupe_key = options.dedupe_key or (key if dedupes else None)
        words = self._runs.words_of(call)
        endpoint, query = f"/v1{call.request.endpoint.path}", call.request.query.decode("latin-1")
        job = Job(
            id=job_id,
            kind=JobKind.CALL,
            tenant=call.request.tenant,
            key=call.route.key.name,
            lane=call.request.lane,
            segment=segment_of(rules.segments, None if call.route.model.answered_by else self._price_of(call)),
            is_urgent=options.priority >= URGENT_FROM,
            model=call.request.model_name,
            state=JobState.SCHEDULED if run_at > now else JobState.QUEUED,
            created_at=now,
            run_at=run_at,
            deadline=options.deadline or run_at + rules.deadline_s,
            max_attempts=options.max_attempts or rules.attempts,
            about={
                "endpoint": endpoint,
                "priority": options.priority,
                "metadata": dict(options.metadata),
                "headers": headers_to_keep(call),
                **({REQUEST_URL: options.webhook} if options.webhook else {}),
                **({QUERY: query} if query else {}),
                **({} if words is None else {RUN_WORDS: [*words]}),
                **keyed,
            },
        )
        return NewJob(
            job=job,
            payload=call.request.body,
            fingerprint=_fingerprint(call, endpoint, _describe(options, query)) if dedupe_key else b"",
            dedupe_key=_digest(call.request.tenant, "dedupe", dedupe_key) if dedupe_key else b"",
            dedupe_until=now + rules.dedupe_for_s,
            debounce_key=_digest(call.request.tenant, "debounce", debounce.key) if debounce else b"",
            debounce_wait_s=debounce.wait_s if debounce else 0.0,
            debounce_max_s=debounce.max_s if debounce else 0.0,
        )


def _fingerprint(call: Call, endpoint: str, parts: Sequence[object]) -> bytes:
    """Returns the digest of what a job is asked for, by which another request under its dedupe key is a conflict."""
    return sha256(orjson.dumps([endpoint, call.request.lane, *parts]) + b"\0" + canonical(call.request.body)).digest()


def fingerprint_of(call: Call) -> str:
    """Returns the digest of all that a repetition of the call's key must repeat, in hexadecimal digits.

    What the edge has read of the body may have been freed while the call waited; then it is read once more.
    """
    if call.parsed is None and len(call.request.body) <= LARGE_BYTES:
        with suppress(ValueError):  # multipart
            call.replace_request(call.request, orjson.loads(call.request.body))
    return fingerprint(call).hex()


def refuse_callers_credential(call: Call) -> None:
    """Raises JobNeedsProviderKey for a call that came with a credential of the caller's own, which its providers would need."""
    if call.request.credential is None:
        return
    group = bare_provider(call.route.policy, call.route.model)
    if group is not None:
        raise JobNeedsProviderKey(
            f"The provider '{group}' is paid with the caller's own credential here, and a job keeps none; set "
            f"providers.{group}.api_key in the gateway's config, or send a plain call."
        )


def segment_of(segments: Sequence[SegmentRules], price_usd: float | None) -> str:
    """Returns the name of the first segment that takes jobs of this price; the last one takes all."""
    for segment in segments:
        if segment.below_usd is None or (price_usd is not None and price_usd < segment.below_usd):
            return segment.name
    return segments[-1].name


def _describe(options: JobOptions, query: str) -> Sequence[str]:
    """Whoever wants another URL notified, or something else behind the path, wants another job."""
    return [*([options.webhook] if options.webhook else ()), *([f"?{query}"] if query else ())]


def _digest(tenant: str, use: str, key: str) -> bytes:
    return sha256(orjson.dumps([tenant, use, key])).digest()


# --- calls with an `Idempotency-Key` that became jobs because there was no room: sent again, they find the job ---

MOST_JOBS = 10
"""The most jobs of one key, one after the other; then the call is refused as if it could be no job."""


class DegradedCalls:
    """Takes and finds the jobs of calls that were refused.

    The ids of such jobs follow from the owner and the key, so a call finds its job wherever, and after whatever, it is sent
    again. A job that came to nothing, or is older than keys are remembered, stands for its key no more: the next one takes its
    place.
    """

    def __init__(self, jobs: JobService) -> None:
        self._jobs = jobs

    async def find(self, call: Call) -> tuple[Job, StoredAnswer | None] | None:
        """Returns the job that stands for the call's key, with its answer if it has ended; None: there is none.

        One that has not is sent once more: its first sender may have been told that nobody knows whether it was taken, and
        then it is undone, unless somebody else wants it. Raises KeyReused where it was another request, and as `accept`.
        """
        key = SENT_KEY.find(call)
        if key is None:
            return None
        record = record_key(call, key)
        for number in range(MOST_JOBS):
            try:
                job, answer = await self._jobs.answer(derived_call_id(record, number), call.request.tenant)
            except NotFound:
                return None
            if self._jobs.stands(job):
                if job.about.get(FINGERPRINT) != fingerprint_of(call):
                    raise KeyReused(
                        "This Idempotency-Key was used for another request, which has become a job; use a new key for "
                        "each request, and the same one to repeat it.",
                        param="Idempotency-Key",
                    )
                if answer is None:
                    job = (await self._jobs.accept(call, JobOptions(), job.id, dedupes=False)).job
                return job, answer
        return None

    async def accept(self, call: Call, refusal: AdmissionDenied) -> Job:
        """Returns the job that the call becomes, or has become under its key. Raises as `JobService.accept` does.

        Raises the refusal where jobs under this key have come to nothing too often.
        """
        key = SENT_KEY.find(call)
        if key is None:
            return (await self._jobs.accept(call, JobOptions())).job
        record = record_key(call, key)
        for number in range(MOST_JOBS):
            # Only the first also meets what the caller has made a job of by itself.
            job_id = derived_call_id(record, number)
            job = (await self._jobs.accept(call, JobOptions(), job_id, dedupes=number == 0)).job
            if self._jobs.stands(job):
                return job
        raise refusal
