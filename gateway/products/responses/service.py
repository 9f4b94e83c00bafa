"""Responses that the gateway keeps, as routes have them: run in the background, shown, followed, stopped and forgotten.

Calls in the foreground, whose answers are kept or go on from kept ones, come last. The tenant is given by the edge. A response
that is not the tenant's is one that never was.
"""

from __future__ import annotations

import logging
from asyncio import to_thread
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson

from gateway.core.call import INVALID_ANSWER, Call, Reply, Serve
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError, InvalidRequest
from gateway.core.openai.sse import json_object
from gateway.features.identity import SENT_KEY
from gateway.features.outcome import is_stream
from gateway.products.jobs.calls import headers_to_keep
from gateway.products.jobs.model import (
    DRAW_BYTES,
    ECHO,
    REQUEST_URL,
    REQUESTED,
    RESPONSE,
    DedupeConflict,
    Job,
    JobFlag,
    JobKind,
    JobState,
    NewJob,
    is_ours,
    new_id,
)
from gateway.products.jobs.request import (
    QUERY,
    URGENT_FROM,
    USUAL_PRIORITY,
    canonical,
    read_metadata,
    refuse_request_url,
)
from gateway.products.jobs.response_store import StoredResponse
from gateway.products.jobs.rules import JOBS, JobRules
from gateway.products.jobs.service import refuse_callers_credential, segment_of
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.upkeep import Watchers
from gateway.products.jobs.worker import JobEngine
from gateway.products.responses.keeping import is_stateless
from gateway.products.responses.log import EventBuffers, EventReading, Following
from gateway.products.responses.rules import (
    GENERATION,
    GENERATION_STEP,
    MOST_LINKS,
    PREVIOUS,
    STORES,
    STREAMS,
    Conversation,
    Keeping,
    KeptEvents,
    ResponseNotFound,
    ResponseOptions,
    conversation_of,
    echo_of,
    items_of,
    keeps,
    previous_not_found,
    sent_upstream,
    shown,
)

ENDS_WITHIN_S = 5.0
"""Whoever stops a response gets its end as the answer if it comes so soon."""
MADE_UP_S = 20 * 3600.0
"""An end that nobody has written down is made up for so long: as long as it is known what was removed."""


class ResponseService:
    """Takes responses into the background, and shows those that are kept."""

    def __init__(
        self,
        engine: JobEngine,
        clock: Clock,
        watchers: Watchers,
        buffers: EventBuffers,
        rules: Callable[[], JobRules],
        rules_of: Callable[[Job], JobRules],
        price_of: Callable[[Call], float | None],
        draw: Callable[[int], bytes],
    ) -> None:
        """`rules` gives those of all jobs, `rules_of` those of one, `price_of` estimates US dollars, `draw` is random."""
        self._engine = engine
        self._clock = clock
        self._watchers = watchers
        self._buffers = buffers
        self._rules = rules
        self._rules_of = rules_of
        self._price_of = price_of
        self._draw = draw
        self._reading = EventReading(clock, buffers, self._final, lambda: engine.is_closing)

    async def accept(
        self,
        call: Call,
        body: dict[str, Any],
        options: ResponseOptions,
        webhook: str = "",
        priority: int = USUAL_PRIORITY,
    ) -> Job:
        """Makes a durable job of a call that the edge has checked. With an idempotency key, the one that was made before.

        Raises JobsUnavailable, TooManyJobs, DedupeConflict, JobNeedsProviderKey, WebhookNotAllowed; InvalidRequest where what
        it goes on from is not there.
        """
        refuse_callers_credential(call)
        refuse_request_url(webhook, self._rules(), call.route.key)
        items_of(body.get("input"))
        store = await self._engine.store()
        if is_ours(RESPONSE, options.previous_id):
            await self.conversation(options.previous_id, call.request.tenant)
        (accepted,) = await store.accept([self._new_job(call, body, options, webhook, priority)])
        if accepted.is_conflict:
            raise DedupeConflict(
                "The Idempotency-Key belongs to a response with another request; use another key.",
                param="Idempotency-Key",
            )
        self._watchers.changed(accepted.job.id)
        return accepted.job

    async def conversation(self, response_id: str, tenant: str) -> Conversation:
        """Returns what goes before a request that goes on from this response. Raises InvalidRequest, JobsUnavailable."""
        store = await self._engine.reader()
        chain: Sequence[StoredResponse] = await store.responses.chain(response_id, tenant, MOST_LINKS + 1)
        if not chain:
            job = await store.find(response_id, tenant)
            waits = job is not None and not job.state.is_end
            raise previous_not_found(response_id, "It has not ended yet." if waits else "")
        return conversation_of(response_id, chain)

    async def keep(self, response: StoredResponse) -> bool:
        """Keeps one made in the foreground; False: it was removed before, or is too long. Raises JobsUnavailable."""
        responses = (await self._engine.store()).responses
        await responses.put(response)
        return await responses.find(response.id, response.tenant) is not None

    async def find(self, response_id: str, tenant: str) -> tuple[Job | None, bytes]:
        """Returns a response as JSON, with its job while that has not ended. Raises ResponseNotFound, JobsUnavailable."""
        store = await self._engine.reader()
        job = await self._look(store, response_id, tenant)
        buffer = None if job is None or job.state.is_end else self._buffers.find(response_id)
        if job is not None and not job.state.is_end and (buffer is None or not buffer.is_ended):
            # one that runs elsewhere, or has ended since the job was read, may have shown its end to somebody: then it is kept
            kept = None if buffer is not None else await store.responses.find(response_id, tenant)
            return (job, orjson.dumps(shown(job))) if kept is None else (None, kept.body)
        final = await self._final_from(store, response_id, tenant, job)
        if final is None:
            raise ResponseNotFound(response_id)
        return None, final

    async def input_items(self, response_id: str, tenant: str) -> Sequence[dict[str, Any]]:
        """Returns the items of a response's own input, in their order. Raises ResponseNotFound, JobsUnavailable.

        Those of one that has not ended are known at its end.
        """
        store = await self._engine.reader()
        kept = await store.responses.find(response_id, tenant) if is_ours(RESPONSE, response_id) else None
        if kept is not None:
            items: list[dict[str, Any]] = orjson.loads(kept.input_items)
            return items
        await self.find(response_id, tenant)
        return []

    async def follow(self, response_id: str, tenant: str, after: int) -> Following:
        """Returns the events of a response behind one. Raises ResponseNotFound, InvalidRequest, JobsUnavailable."""
        store = await self._engine.reader()
        job = await self._look(store, response_id, tenant)
        if job is None or job.state.is_end:
            _, _ = await self.find(response_id, tenant)
        if job is None or not job.about[REQUESTED][STREAMS]:
            raise InvalidRequest(
                "This response was not created with `stream: true` in the background, so it has no events; get it without "
                "`stream`.",
                param="stream",
            )
        if after >= _behind_all(job):  # others may know of a generation that has begun since it was read
            job = await store.find(response_id, tenant) or job
            if after >= _behind_all(job):
                raise InvalidRequest(
                    "The field 'starting_after' names an event that this response does not have: it is a `sequence_number`.",
                    param="starting_after",
                )
        return self._reading.follow(store, job, after)

    async def cancel(self, response_id: str, tenant: str) -> bytes:
        """Stops a response; one that has ended stays as it is. Raises ResponseNotFound, InvalidRequest, JobsUnavailable."""
        store = await self._engine.reader()
        job = await self._look(store, response_id, tenant)
        if job is None:
            await self.find(response_id, tenant)
            raise InvalidRequest("Cannot cancel a synchronous response.")
        if not job.state.is_end:
            await self._stop(store, job)
        return (await self.find(response_id, tenant))[1]

    async def remove(self, response_id: str, tenant: str) -> None:
        """Forgets a response; one that runs is stopped. Raises ResponseNotFound, JobsUnavailable."""
        store = await self._engine.reader()
        await self.find(response_id, tenant)
        job = await store.find(response_id, tenant)
        await store.responses.remove(response_id, tenant, is_expected=job is not None)
        if job is not None:
            if not job.state.is_end:
                await self._stop(store, job)
            await store.events.drop(response_id)

    async def _stop(self, store: JobStore, job: Job) -> None:
        flagged = await store.flag(job.id, job.tenant, JobFlag.CANCEL)
        self._buffers.cancel(job.id)
        self._watchers.changed(job.id)
        ends_at = self._clock.monotonic() + ENDS_WITHIN_S
        while flagged is not None and not flagged.state.is_end and (left_s := ends_at - self._clock.monotonic()) > 0:
            await self._watchers.wait(job.id, left_s)
            flagged = await store.find(job.id, job.tenant)
        self._watchers.changed(job.id)
        self._buffers.wake(job.id)

    async def _look(self, store: JobStore, response_id: str, tenant: str) -> Job | None:
        if not is_ours(RESPONSE, response_id):
            return None
        job = await self._watchers.look(store, response_id, tenant)
        return job if job is not None and job.kind is JobKind.RESPONSE else None

    async def _final(self, response_id: str, tenant: str) -> bytes | None:
        store = await self._engine.reader()
        return await self._final_from(store, response_id, tenant, await store.find(response_id, tenant))

    async def _final_from(self, store: JobStore, response_id: str, tenant: str, job: Job | None) -> bytes | None:
        if not is_ours(RESPONSE, response_id):
            return None
        kept = await store.responses.find(response_id, tenant)
        if kept is None and job is not None and job.state.is_end and await self._make_up(store, job):
            kept = await store.responses.find(response_id, tenant)
        return None if kept is None else kept.body

    async def _make_up(self, store: JobStore, job: Job) -> bool:
        """Keeps the end of a response that no worker has ended: it was cancelled or expired before one had it."""
        if job.state is JobState.SUCCEEDED or job.ended_at is None:
            return False
        rules = self._rules_of(job)
        keep_s = rules.keep_responses_s if job.about[REQUESTED][STORES] else rules.keep_background_s
        if self._clock.wall() >= job.ended_at + min(keep_s, MADE_UP_S):
            return False
        await store.responses.put(
            StoredResponse(
                id=job.id,
                tenant=job.tenant,
                created_at=job.created_at,
                keep_until=job.ended_at + keep_s,
                previous_id=job.about[REQUESTED][PREVIOUS],
                body=orjson.dumps(shown(job)),
                input_items=b"[]",
            )
        )
        return True

    def _new_job(
        self, call: Call, body: dict[str, Any], options: ResponseOptions, webhook: str, priority: int
    ) -> NewJob:
        rules, now = self._rules(), self._clock.wall()
        query = call.request.query.decode("latin-1")
        key = SENT_KEY.find(call)
        call_facts = [call.request.lane, query, webhook]
        job = Job(
            id=new_id(RESPONSE, self._draw(DRAW_BYTES)),
            kind=JobKind.RESPONSE,
            tenant=call.request.tenant,
            key=call.route.key.name,
            lane=call.request.lane,
            segment=segment_of(rules.segments, self._price_of(call)),
            is_urgent=priority >= URGENT_FROM,
            model=call.request.model_name,
            state=JobState.QUEUED,
            created_at=now,
            run_at=now,
            deadline=now + rules.deadline_s,
            max_attempts=rules.attempts,
            about={
                "endpoint": f"/v1{call.request.endpoint.path}",
                "priority": priority,
                "metadata": read_metadata(body.get("metadata")),
                "headers": headers_to_keep(call),
                REQUESTED: {
                    STREAMS: call.request.stream,
                    STORES: options.stores is True,
                    PREVIOUS: options.previous_id,
                    ECHO: echo_of(body),
                },
                **({REQUEST_URL: webhook} if webhook else {}),
                **({QUERY: query} if query else {}),
            },
        )
        return NewJob(
            job=job,
            payload=bytes(call.request.body),
            fingerprint=sha256(orjson.dumps(call_facts) + b"\0" + canonical(call.request.body)).digest(),
            dedupe_key=b""
            if key is None
            else sha256(orjson.dumps([call.request.tenant, "response", key.decode("latin-1")])).digest(),
            dedupe_until=now + rules.dedupe_for_s,
        )


# --- calls in the foreground, where the gateway keeps what they answer, or knows what they go on from ---

LARGE_BYTES = 1_000_000
"""A larger body is parsed in a thread, so that others do not wait."""
_OUTCOME_HEADERS = frozenset(("gateway", "off", "never"))
"""The ways of keeping in which no provider is asked to keep anything."""
log = logging.getLogger("gateway.jobs")


class ForegroundResponses:
    """Serves calls of Responses.

        earlier items are put before its own -> the call -> its id becomes the gateway's -> it is kept before its end goes out

    The provider keeps nothing of these. What cannot be kept is answered all the same, and says `store: false`.
    """

    def __init__(self, service: ResponseService, wall: Callable[[], float]) -> None:
        self._service = service
        self._wall = wall

    async def handle(self, call: Call, keeping: Keeping, options: ResponseOptions, next: Serve) -> Reply:
        """Serves a call by `next`. Raises GatewayError, InvalidRequest where what it goes on from is not there."""
        from_ours = is_ours(RESPONSE, options.previous_id)
        if keeping == "provider" and is_converted(call):
            keeping = "asked"
        if options.previous_id and not from_ours:
            refuse_unknown(call, keeping, options.previous_id)
        is_kept = keeps(keeping, options, goes_on_from_ours=from_ours)
        if not (is_kept or from_ours or options.in_background or keeping in _OUTCOME_HEADERS):
            return await next(call)
        before = Conversation([], options.previous_id)
        if from_ours:
            before = await self._service.conversation(options.previous_id, call.request.tenant)
            if before.previous_id:
                refuse_unknown(call, keeping, before.previous_id)
        body = await body_of(call)
        own = items_of(body.get("input")) if is_kept else []
        stores = None if keeping == "provider" else False
        sent = sent_upstream(body, before.items, before.previous_id, stores=stores)
        as_it_came = call.request, call.parsed
        call.replace_request(replace(call.request, body=orjson.dumps(sent), large=None), sent)
        try:
            reply = await next(call)
        except GatewayError:
            call.replace_request(*as_it_came)  # it may become a job
            raise
        if not is_kept or reply.status != 200:
            return reply
        events = KeptEvents(call.request.tenant, options.previous_id)
        if reply.chunks is None:
            if is_stream(reply.headers):  # it was made before, and is given again in one piece
                made = self._kept_events(call, events, own, _in_one_piece(reply.body))
                return replace(reply, body=b"".join([block async for block in made]))
            parsed = json_object(reply.body)
            response = None if parsed is None else events.whole(parsed)
            if response is None:
                return reply
            if not await self._keep(call, response, own):
                response["store"] = False
            return replace(reply, body=orjson.dumps(response))
        return self._kept_stream(call, events, own, reply, reply.chunks)

    def _kept_stream(
        self,
        call: Call,
        events: KeptEvents,
        own: list[dict[str, Any]],
        reply: Reply,
        chunks: AsyncGenerator[bytes, None],
    ) -> Reply:
        made = self._kept_events(call, events, own, chunks)

        async def close() -> None:
            await made.aclose()
            await reply.close()

        return replace(reply, chunks=made, close=close, pass_on=None)

    async def _kept_events(
        self, call: Call, events: KeptEvents, own: list[dict[str, Any]], chunks: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """Yields the events under the gateway's id; that of the end once the response is kept."""
        async for chunk in chunks:
            if block := events.feed(chunk):
                yield block
            if events.final is not None:
                yield events.end(is_kept=await self._keep(call, events.final, own))
        if rest := events.rest():
            yield rest

    async def _keep(self, call: Call, response: dict[str, Any], own: list[dict[str, Any]]) -> bool:
        """Keeps a response; returns whether it is kept: not one that breaks its model's rule, though the client has it."""
        if INVALID_ANSWER.find(call):
            return False
        now = self._wall()
        stored = StoredResponse(
            id=response["id"],
            tenant=call.request.tenant,
            created_at=now,
            keep_until=now + JOBS.of(call.route.policy).default.keep_responses_s,
            previous_id=response["previous_response_id"] or "",
            body=orjson.dumps(response),
            input_items=orjson.dumps(own),
        )
        try:
            return await self._service.keep(stored)
        except GatewayError as trouble:
            log.warning("the response of call %s is not kept: %s", call.request.id, trouble.message)
            return False


async def _in_one_piece(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def is_converted(call: Call) -> bool:
    """Returns whether all targets of the call are known to have no Responses."""
    path, name = call.request.endpoint.path, call.request.endpoint.name
    return all(name in target.gaps or path in target.converters_by_path for target in call.route.model.plan)


def refuse_unknown(call: Call, keeping: Keeping, previous_id: str) -> None:
    """Raises InvalidRequest where no provider can know a response that the gateway has not made."""
    if keeping in _OUTCOME_HEADERS:
        raise previous_not_found(previous_id)
    if is_converted(call) or is_stateless(call.route.model):
        raise previous_not_found(
            previous_id, "It was not kept; make responses that are to be gone on from with 'store: true'."
        )


async def body_of(call: Call) -> dict[str, Any]:
    if call.parsed is not None and call.request.large is None:
        return call.parsed
    if len(call.request.body) > LARGE_BYTES:
        body: dict[str, Any] = await to_thread(orjson.loads, call.request.body)
        return body
    loaded: dict[str, Any] = orjson.loads(call.request.body)
    return loaded


def _behind_all(job: Job) -> int:
    """Returns a number that no event of a response has, nor any behind it."""
    generation: int = job.marks.get(GENERATION, 0)
    return (max(0, generation) + 1) * GENERATION_STEP
