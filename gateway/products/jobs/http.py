"""`/v1/jobs`: durable calls, by their own resource: to create, list, show, follow, stop, and fetch the result of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core import request_fields
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.http.writing import WholeResponse
from gateway.core.openai.headers import request_headers
from gateway.core.request_fields import LargeBodies
from gateway.core.snapshot import Key, Policies
from gateway.core.types import Lane, Server
from gateway.features.identity import SENT_KEY, read_idempotency_key
from gateway.features.run_port import RunPort
from gateway.products.jobs.answers_http import (
    POLL_AFTER_S,
    EventReaders,
    Parts,
    accepted_headers,
    show_job,
    show_page,
    split_job,
    split_large_job,
    statuses_of,
    stored_headers,
)
from gateway.products.jobs.calls import STRICT, MakeCall, StoredRequest
from gateway.products.jobs.model import Job, JobQuery, NoResult
from gateway.products.jobs.request import read_options
from gateway.products.jobs.service import JobService
from gateway.products.routes import ObjectRoute, caller_of, limit_of, tenant_of
from gateway.routes import json_response

USUALLY_LISTED, MOST_LISTED = 20, 100
_PROBE_ID = "job"
_LOOK_AGAIN = b"openai-poll-after-ms", b"%d" % (POLL_AFTER_S * 1000)

ReadBody = Callable[[Request, str, Lane], Awaitable[bytes]]
"""Returns the body of a request of this tenant and lane, within the bounds of all bodies. Raises GatewayError."""


class JobRoutes:
    """What each route of jobs does."""

    def __init__(
        self,
        policies: Policies,
        jobs: JobService,
        make_call: MakeCall,
        clock: Clock,
        readers: EventReaders,
        read_body: ReadBody,
        runs: RunPort,
    ) -> None:
        self._runs = runs
        self._policies = policies
        self._jobs = jobs
        self._make_call = make_call
        self._clock = clock
        self._forwarded = request_headers()
        self._readers = readers
        self._read_body = read_body
        self._large_bodies = LargeBodies()

    def routes(self) -> list[BaseRoute]:
        """Returns the routes, with and without `/v1`."""
        table = (
            ("/jobs", self.create, "POST"),
            ("/jobs", self.list_jobs, "GET"),
            ("/jobs/{id}", self.show, "GET"),
            ("/jobs/{id}/cancel", self.cancel, "POST"),
            ("/jobs/{id}/result", self.result, "GET"),
            ("/jobs/{id}/events", self.events, "GET"),
        )
        return [
            ObjectRoute(prefix + path, act, methods=[method]) for prefix in ("/v1", "") for path, act, method in table
        ]

    async def create(self, request: Request) -> Response:
        """Takes a job: 202, or 200 for one that is there already."""
        index = request_fields.index_headers(request.scope["headers"])
        request_fields.refuse_encoded(index)
        key, tenant, credential = caller_of(self._policies, request)
        server = self._policies.current.server
        wanted, body = await self._split(server, await self._read_body(request, tenant, key.lane))
        options = read_options(wanted, self._clock.wall(), self._clock.ahead_s)
        headers = request_fields.as_json(self._forwarded.keep(request.scope["headers"]))
        headers += [(name, index[name]) for name in STRICT[:1] if name in index]
        stored = StoredRequest(
            id=_PROBE_ID,
            endpoint=wanted["endpoint"],
            body=body,
            headers=headers,
            key=key.name,
            tenant=tenant,
            lane=_lane(key, index, wanted.get("lane")),
            deadline_s=request_fields.MAX_DEADLINE_S,
            part=self._runs.read_words(index),
        )
        call = await self._make_call(stored)
        call.replace_request(replace(call.request, credential=credential), call.parsed)
        sent_key = read_idempotency_key(index, call.request.endpoint)
        if sent_key is not None:
            SENT_KEY.put(call, sent_key)
        accepted = await self._jobs.accept(call, options)
        response = _to_be_polled(accepted.job, 202 if accepted.is_new else 200)
        if accepted.debounced:
            response.headers["x-gateway-debounced"] = str(accepted.debounced)
        return response

    async def list_jobs(self, request: Request) -> Response:
        """Lists the tenant's jobs, newest first."""
        tenant, query = self._tenant(request), request.query_params
        limit = limit_of(request, USUALLY_LISTED, MOST_LISTED)
        metadata = {
            name[9:-1]: value for name, value in query.items() if name.startswith("metadata[") and name[-1] == "]"
        }
        if query.get("order", "desc") != "desc":
            raise InvalidRequest("The parameter 'order' can only be desc: jobs are listed newest first.", param="order")
        after = query.get("after")
        if after is not None:
            try:
                await self._jobs.find(after, tenant)
            except NotFound:
                raise InvalidRequest(
                    "The parameter 'after' names no job: it is the last id of the page before.", param="after"
                ) from None
        wanted = JobQuery(tenant, None, statuses_of(request), after, limit, metadata, parent="")
        return json_response(show_page(await self._jobs.list_jobs(wanted)))

    async def show(self, request: Request) -> Response:
        """Shows a job, at most a second old."""
        job = await self._jobs.find(request.path_params["id"], self._tenant(request))
        response = json_response(show_job(job))
        if not job.state.is_end:
            response.raw_headers.append(_LOOK_AGAIN)
        return response

    async def cancel(self, request: Request) -> Response:
        """Asks a job to stop; one that has ended is shown as it is."""
        return json_response(show_job(await self._jobs.cancel(request.path_params["id"], self._tenant(request))))

    async def result(self, request: Request) -> Response:
        """Gives the stored answer as the provider gave it; 202 with the job while there is none."""
        job, answer = await self._jobs.answer(request.path_params["id"], self._tenant(request))
        if answer is not None:
            response = Response(answer.body, answer.status)
            response.raw_headers[:] = [*stored_headers(job, answer), (b"content-length", b"%d" % len(answer.body))]
            return response
        if job.state.is_end:
            why = job.last_error.message if job.last_error is not None else "nothing came of it"
            raise NoResult(f"The job has ended as '{job.state}' without an answer: {why}.")
        return _to_be_polled(job, 202)

    async def events(self, request: Request) -> Response:
        """Streams the job whenever it changes, as server-sent events with its revision as their id, until its end."""
        tenant, job_id = self._tenant(request), request.path_params["id"]
        await self._jobs.find(job_id, tenant)  # what is not there is said before the stream begins
        changes = partial(self._jobs.changes, job_id, tenant)
        return self._readers.follow(request, tenant, "job", changes, show_job)

    async def _split(self, server: Server, raw: bytes) -> Parts:
        if len(raw) <= server.small_body_bytes:
            return split_job(raw)
        return await split_large_job(raw, self._large_bodies, server.max_json_values)

    def _tenant(self, request: Request) -> str:
        return tenant_of(self._policies, request)


def _to_be_polled(job: Job, status: int) -> Response:
    """The job, with where it is and when to look again."""
    return WholeResponse(orjson.dumps(show_job(job)), status, accepted_headers(job))


def _lane(key: Key, index: dict[bytes, bytes], value: Any) -> Lane:
    """The lane that the body names, or the header, or the key's own. Raises InvalidRequest, Forbidden."""
    if value is None:
        return request_fields.choose_lane(key, index)
    return request_fields.allowed_lane(key, value, "field 'lane'", param="lane")
