"""The life of a job of kind `response`: a streamed call whose events go into a log, whoever reads that.

    claim -> call -> events (log) … -> the response is kept -> its last event -> the job's end

In this order: what time does to responses; one run of the model; the ends; and the jobs. A crash repeats nothing that was kept:
what runs again is the model, as another generation with numbers of its own. A response that is kept is only finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, Final

import orjson

from gateway.core.call import Reply
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.render import PASSING_CODES
from gateway.dialects.conversion import as_stream
from gateway.drivers.durability import JobsUnavailable
from gateway.features.outcome import is_stream
from gateway.products.jobs.calls import (
    CallServer,
    Outcome,
    ServedAnswer,
    TryResult,
    attempts_allowed,
    backoff_s,
    read_reply,
)
from gateway.products.jobs.dead_letters.rules import POISON, is_dead_class
from gateway.products.jobs.model import (
    ENDS,
    REQUESTED,
    RESPONSE,
    STATUS,
    Job,
    JobEnd,
    JobError,
    JobKind,
    JobQuery,
    JobState,
    is_ours,
)
from gateway.products.jobs.response_store import StoredResponse
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.runner import end_task, request_of, tally_of
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import CrashSuspects, RunningWork, until_done
from gateway.products.responses.log import EventBuffers, LogWriter
from gateway.products.responses.rules import (
    GENERATION,
    LATE,
    MOST_LINKS,
    PREVIOUS,
    STORES,
    STREAMS,
    Conversation,
    OwnEvents,
    begun,
    conversation_of,
    ended,
    failure,
    items_of,
    own_fields,
    sent_upstream,
)

# --- time: responses that are kept are forgotten, and the logs of those in the background go with them ---

EVERY_S: Final = 60.0
AT_ONCE: Final = 500
_PAGE: Final = 100
_MOST_LOOKED_AT: Final = 10_000
"""The most responses that are looked at of those that had ended when this process began: their logs go when theirs do, the
others' with their jobs.
"""


class ResponseMaintenance:
    """Forgets, beside the worker."""

    def __init__(self, store: JobStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._logs: list[tuple[float, str]] = []

    def ended(self, job_id: str, keep_until: float) -> None:
        """Notes until when the log of a response that has ended here is kept."""
        heappush(self._logs, (keep_until, job_id))

    async def run_always(self) -> None:
        """Forgets what is due, once a minute, until it is cancelled."""
        has_looked = False
        while True:
            try:
                if not has_looked:
                    await self._look()
                    has_looked = True
                while await self._store.responses.trim(AT_ONCE) == AT_ONCE:
                    pass
                while self._logs and self._logs[0][0] <= self._clock.wall():
                    await self._store.events.drop(self._logs[0][1])
                    heappop(self._logs)
            except JobsUnavailable:
                pass  # the store has logged why
            await self._clock.sleep(EVERY_S)

    async def _look(self) -> None:
        """Finds the responses that ended before this process began; those that are kept no more have no log, either."""
        after, seen = None, 0
        while seen < _MOST_LOOKED_AT:
            page = await self._store.list_jobs(JobQuery(None, JobKind.RESPONSE, ENDS, after, _PAGE))
            for job in page.jobs:
                kept = await self._store.responses.find(job.id, job.tenant)
                self.ended(job.id, 0.0 if kept is None else kept.keep_until)
            if not page.has_more:
                return
            seen += len(page.jobs)
            after = page.jobs[-1].id


# --- one run of the model: a generation of events, on their way to readers here and into the log ---


class ModelRun:
    """One run of the model for a claim; its number is noted in the store before anybody sees an event of it."""

    def __init__(self, store: JobStore, running: RunningWork, buffers: EventBuffers, clock: Clock) -> None:
        job = running.work.job
        self.number = job.marks.get(GENERATION, -1) + 1
        self.events = OwnEvents(own_fields(job), begun(job, "queued"), self.number)
        self.is_seen = False
        """There may be readers of it."""
        self._store = store
        self._running = running
        self._writer = LogWriter(store, running, buffers.begin(running, self.number), clock)

    async def feed(self, chunk: bytes) -> None:
        events = self.events.feed(chunk)
        if events:
            await self._begin()
            await self._writer.add(events)

    def take(self, event: bytes) -> bool:
        """Takes a usual event in passing, one that only brings more of the answer; False: it has to be fed."""
        if not self.is_seen or self._writer.is_behind:
            return False
        own = self.events.plain(event)
        if own is None:
            return False
        self._writer.pass_on(own)
        return True

    async def flush(self) -> None:
        await self._writer.flush()

    async def end(self, response: Mapping[str, Any]) -> None:
        """Sends the end, and returns when all events are in the log."""
        await self._begin()
        await self._writer.end(self.events.end(response))

    def abandon(self) -> None:
        self._writer.abandon()

    async def _begin(self) -> None:
        if not self.is_seen:
            note = self._store.note
            await self._running.write(lambda: note(self._running.work, {GENERATION: self.number}))
            self.is_seen = True


# --- the ends of responses in the background: kept, sent to readers, and only then the job's end ---


class ResponseFinalizer:
    """Ends responses: keeps one, sends its end to readers, and ends its job.

    Each of the three is durable before the next one begins; whoever repeats them after a crash finds what is there.
    """

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        rules_of: Callable[[Job], JobRules],
        on_end: Callable[[str, float], None],
    ) -> None:
        """`on_end` is called at each end with the job's id, and until when its log is kept."""
        self._store = store
        self._clock = clock
        self._rules_of = rules_of
        self._on_end = on_end

    async def end(
        self,
        running: RunningWork,
        model: ModelRun,
        response: Mapping[str, Any],
        state: JobState,
        error: JobError | None = None,
        served: TryResult | None = None,
        *,
        is_dead: bool = False,
    ) -> None:
        """Ends a response with what it has come to; `is_dead`: as a dead letter."""
        job = running.work.job
        rules, stores = self._rules_of(job), job.about[REQUESTED][STORES]
        kept = StoredResponse(
            id=job.id,
            tenant=job.tenant,
            created_at=job.created_at,
            keep_until=self._clock.wall() + (rules.keep_responses_s if stores else rules.keep_background_s),
            previous_id=job.about[REQUESTED][PREVIOUS],
            body=orjson.dumps(response),
            input_items=orjson.dumps(items_of(orjson.loads(running.work.payload).get("input"))),
        )
        await model.flush()  # of what is kept nothing is missing in the log but its end, which any reader can make
        await until_done(lambda: self._store.responses.put(kept), self._clock)
        await model.end(response)
        self._on_end(job.id, kept.keep_until)
        await self._finish(running, response, state, error, served, is_dead=is_dead)

    async def fail(
        self,
        running: RunningWork,
        model: ModelRun,
        error: JobError,
        final: Mapping[str, Any] | None = None,
        served: TryResult | None = None,
        *,
        is_dead: bool,
    ) -> None:
        """Ends a response as failed; `final` is the provider's own answer."""
        if final is None:
            answer = b"" if served is None or served.answer is None else served.answer.body
            final = ended(model.events.so_far(), "failed", _error_of(answer, error))
        await self.end(running, model, final, JobState.FAILED, error, served, is_dead=is_dead)

    async def finish_kept(self, running: RunningWork, kept: StoredResponse) -> None:
        """Ends the job of a response that a worker has kept, and then died, or lost its claim."""
        response = orjson.loads(kept.body)
        state = {"failed": JobState.FAILED, "cancelled": JobState.CANCELLED}.get(response["status"], JobState.SUCCEEDED)
        if running.ends_as is JobState.EXPIRED and state is JobState.FAILED:
            state = JobState.EXPIRED
        self._on_end(kept.id, kept.keep_until)
        parsed, error = response.get("error"), None
        if state is JobState.FAILED and isinstance(parsed, dict):
            error = JobError(str(parsed.get("code")), str(parsed.get("message")), self._clock.wall())
        # whose fault it was is known no more: a letter too many is better than one too few
        await self._finish(running, response, state, error, None, is_dead=error is not None)

    async def _finish(
        self,
        running: RunningWork,
        response: Mapping[str, Any],
        state: JobState,
        error: JobError | None,
        served: TryResult | None,
        *,
        is_dead: bool,
    ) -> None:
        usage, cost_usd = (None, None) if served is None else (served.usage, served.cost_usd)
        tally = tally_of(is_ok=state is JobState.SUCCEEDED, usage=usage, cost_usd=cost_usd)
        marks = {STATUS: response["status"]}
        end = JobEnd(state, error, tally=tally, marks=marks, is_attempt=served is not None, is_dead=is_dead)
        await running.finish(self._store, end)


def _error_of(answer: bytes, error: JobError) -> dict[str, Any]:
    """Returns the error of a response: the words of the answer that refused it, else those of the job."""
    with suppress(ValueError):
        parsed = orjson.loads(answer) if answer else None
        provider_error = parsed.get("error") if isinstance(parsed, dict) else None
        if isinstance(provider_error, dict) and isinstance(provider_error.get("message"), str):
            return failure(
                provider_error["message"],
                str(provider_error.get("code") or error.error_class),
                str(provider_error.get("type")),
            )
    return failure(error.message, error.error_class)


# --- the jobs ---

_ENCRYPTED = "reasoning.encrypted_content"


class ResponseJobs:
    """Runs jobs of kind `response`."""

    def __init__(
        self,
        store: JobStore,
        server: CallServer,
        clock: Clock,
        rules_of: Callable[[Job], JobRules],
        draw: Callable[[], float],
        buffers: EventBuffers,
        on_end: Callable[[str, float], None],
        suspects: CrashSuspects | None = None,
    ) -> None:
        """`rules_of` gives the rules in force for a job, `draw` uniform numbers from [0, 1).

        `on_end` is called at each end with the job's id, and until when its log is kept. `suspects` are those of the process;
        None: no other jobs run in it.
        """
        self._store = store
        self._server = server
        self._clock = clock
        self._rules_of = rules_of
        self._draw = draw
        self._buffers = buffers
        self._ends = ResponseFinalizer(store, clock, rules_of, on_end)
        self._suspects = suspects or CrashSuspects(store, clock)

    async def run(self, running: RunningWork) -> None:
        """Runs the model once, and ends the claim: with a response, for another run, or as it was asked to end."""
        self._buffers.run(running)
        try:
            await self._run(running)
        finally:
            self._buffers.end(running)

    async def _run(self, running: RunningWork) -> None:
        job = running.work.job
        kept = await until_done(lambda: self._store.responses.find(job.id, job.tenant), self._clock)
        if kept is not None:
            await self._ends.finish_kept(running, kept)
            return
        if running.ends_as is not None:
            await self._stopped(running, self._model_of(running))
        elif why := self._why_not_again(running):
            await self._give_up(running, JobError(POISON, why, self._clock.wall()))
        else:
            await self._suspects.run(running, self._run_model, self._give_up)

    def _model_of(self, running: RunningWork) -> ModelRun:
        return ModelRun(self._store, running, self._buffers, self._clock)

    async def _give_up(self, running: RunningWork, error: JobError) -> None:
        await self._ends.fail(running, self._model_of(running), error, is_dead=True)

    async def _run_model(self, running: RunningWork) -> None:
        model = self._model_of(running)
        serving = asyncio.create_task(self._serve(running, model))
        stopping = asyncio.create_task(running.stopping.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done() and running.is_draining and running.ends_as is None:
                await serving  # the worker cancels it when the grace is over
            if serving.done():
                await self._served(running, model, serving.result())
            else:
                await end_task(serving)
                await self._stopped(running, model)
        except asyncio.CancelledError:
            await asyncio.shield(self._broken_off(running, model, serving))
            raise
        finally:
            stopping.cancel()
            model.abandon()

    def _why_not_again(self, running: RunningWork) -> str:
        """Returns why the model is not run once more; empty: it is."""
        job = running.work.job
        if job.attempts >= job.max_attempts:
            return "its attempts are spent" if job.last_error is None else job.last_error.message
        if GENERATION in job.marks and self._rules_of(job).responses.on_crash == "fail":
            return "it was broken off while the model answered, and is not run again"
        return ""

    # --- one run ---

    async def _serve(self, running: RunningWork, model: ModelRun) -> TryResult:
        """Asks the model, and puts what it says into the log."""
        try:
            body = await self._body(running)
        except GatewayError as error:
            return self._server.refused(error)

        async def read(reply: Reply) -> ServedAnswer:
            if reply.chunks is None:
                is_made = is_stream(reply.headers)  # before, and is given again in one piece
                frames = reply.body if is_made else as_stream("responses", reply.body, include_usage=False)
                if reply.status == 200 and frames:
                    await model.feed(frames)
                return await read_reply(reply)
            try:
                if reply.pass_on is not None:
                    reply.pass_on(model.take)
                async for chunk in reply.chunks:
                    await model.feed(chunk)
            finally:
                await reply.close()
            return ServedAnswer(reply.status, reply.shared, b"")

        job = running.work.job
        request = request_of(job, body, self._clock.wall())
        return await self._server.serve(request._replace(is_held=not job.about[REQUESTED].get(STREAMS)), read=read)

    async def _body(self, running: RunningWork) -> bytes:
        """Returns the request for a provider. Raises InvalidRequest where what it goes on from is gone."""
        job = running.work.job
        body = orjson.loads(running.work.payload)
        before = Conversation([], job.about[REQUESTED][PREVIOUS])
        if is_ours(RESPONSE, before.previous_id):
            find = self._store.responses.chain
            chain = await until_done(lambda: find(before.previous_id, job.tenant, MOST_LINKS + 1), self._clock)
            before = conversation_of(before.previous_id, chain)
        sent = sent_upstream(body, before.items, before.previous_id, stores=False)
        sent["stream"] = True
        included = sent.get("include") or []
        if sent.get("reasoning") and isinstance(included, list) and _ENCRYPTED not in included:
            sent["include"] = [*included, _ENCRYPTED]  # nobody else keeps what the model thought
        return orjson.dumps(sent)

    # --- what came of it ---

    async def _served(self, running: RunningWork, model: ModelRun, served: TryResult) -> None:
        job, now = running.work.job, self._clock.wall()
        outcome, retry_after_s = served.verdict
        final, reported = model.events.final, model.events.error
        if final is not None and final.get("status") in ("completed", "incomplete"):
            await self._ends.end(running, model, final, JobState.SUCCEEDED, served=served)
            return
        error = served.error or JobError("malformed_response", "the provider's answer had no end", now)
        if final is not None and isinstance(final.get("error"), dict):
            reported = final["error"]
            outcome = Outcome.TRANSIENT if reported.get("code") in PASSING_CODES else Outcome.PERMANENT
        if reported is not None:
            error = error._replace(message=str(reported.get("message") or error.message))
        rules, attempts = self._rules_of(job), job.attempts + 1
        if outcome is Outcome.INTERRUPTED:
            model.abandon()
            await running.give_back(self._store)
        elif outcome is Outcome.PUT_OFF:
            model.abandon()
            await running.give_back(self._store, now + (retry_after_s or 0.0), error)
        elif (
            outcome is Outcome.PERMANENT
            or attempts >= min(job.max_attempts, attempts_allowed(rules, served.cost_usd))
            or (model.is_seen and rules.responses.on_crash == "fail")
        ):
            is_dead = outcome is not Outcome.PERMANENT or is_dead_class(
                job, error.error_class, rules.batches.brake_classes
            )
            await self._ends.fail(running, model, error, final, served, is_dead=is_dead)
        else:
            wait_s = max(backoff_s(rules, attempts, self._draw()), retry_after_s or 0.0)
            model.abandon()
            await running.give_back(self._store, now + wait_s, error, is_attempt=True)

    async def _stopped(self, running: RunningWork, model: ModelRun) -> None:
        """The job is to end, or is paused: its call was broken off."""
        if running.ends_as is None:
            model.abandon()
            await running.give_back(self._store)
        elif running.ends_as is JobState.CANCELLED:
            response = ended(model.events.so_far(), "cancelled", None)
            await self._ends.end(running, model, response, JobState.CANCELLED)
        else:
            late = JobError("deadline_exceeded", LATE["message"], self._clock.wall())
            response = ended(model.events.so_far(), "failed", LATE)
            await self._ends.end(running, model, response, running.ends_as, late)

    async def _broken_off(self, running: RunningWork, model: ModelRun, serving: asyncio.Task[TryResult]) -> None:
        """This process stops, or another worker has the job: nothing came of it here."""
        model.abandon()
        await end_task(serving)
        await running.release(self._store)
