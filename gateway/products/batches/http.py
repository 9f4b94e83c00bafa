"""Batches in HTTP, and lists of files and batches where a provider has some, too.

In this order: merged lists; batches as their pollers see them; and the routes. In a list ours come first, then the provider's,
in pages over the seam. A cursor says itself on which side it is: behind an id of ours come the rest of ours and then theirs
from their beginning; behind an id of the provider's the whole page is the provider's, and its route answers. Which of the
provider's objects a tenant sees is decided where they are asked for, as for every other call to it. A provider that fails
takes ours from nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from gateway.core import request_fields
from gateway.core.call import Call
from gateway.core.call import Request as CallRequest
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.http.writing import WholeResponse
from gateway.core.intake import object_of, read_bytes
from gateway.core.openai import headers as allow_lists
from gateway.core.render import new_request_id
from gateway.core.request_fields import plan_route
from gateway.core.snapshot import Policies
from gateway.core.types import LANES, Lane
from gateway.dialects.endpoints import CHAT, WORK
from gateway.dialects.openai.lists import Page, read_page
from gateway.features.identity import read_idempotency_key
from gateway.products.batches import output
from gateway.products.batches.output import batch_object, read_batch_request
from gateway.products.batches.service import BatchOwner, BatchService
from gateway.products.jobs.answers_http import EventReaders, own_routes
from gateway.products.jobs.calls import ServeCall, read_reply
from gateway.products.jobs.model import BATCH, FILE, Job, derived_file_id, is_ours
from gateway.products.jobs.request import read_webhook_header, refuse_request_url
from gateway.products.jobs.rules import JOBS
from gateway.products.routes import RelayedResponse, caller_of, limit_of, list_page, tenant_of
from gateway.routes import json_response

LONGEST_S = 10.0
"""Seconds for which the provider is waited for."""
FAILED = b"x-gateway-provider-list"


class OwnPage(NamedTuple):
    """A page of the gateway's own objects."""

    objects: Sequence[dict[str, Any]]
    has_more: bool


class ProviderFailed(Exception):
    """The provider has given no page; the message is a code or a status."""


class MergedLists:
    """Lists objects of the gateway's own, and those of the provider of `passthrough` behind them."""

    def __init__(self, policies: Policies, clock: Clock, serve: ServeCall) -> None:
        """`serve` is the pipeline's `handle`."""
        self._policies = policies
        self._clock = clock
        self._serve = serve
        self._forwarded = allow_lists.request_headers()
        self._account = allow_lists.account_headers()

    async def page(self, request: Request, limit: int, own: Callable[[], Awaitable[OwnPage]]) -> Response:
        """Returns a page of at most `limit` objects; `own` asks for ours. Raises GatewayError where these cannot be had."""
        objects, has_more = await own()
        if has_more or self._policies.current.passthrough is None:
            return json_response(list_page(objects, has_more=has_more))
        room = limit - len(objects)
        try:
            page = await self._ask(request, max(1, room))
        except ProviderFailed as failed:
            response = json_response(list_page(objects, has_more=False))
            response.raw_headers.append((FAILED, str(failed).encode()))
            return response
        theirs = [item for item in page.items if isinstance(item, dict) and isinstance(item.get("id"), str)]
        has_more = page.has_more or len(theirs) > room
        return json_response(list_page([*objects, *theirs[:room]], has_more=has_more))

    async def _ask(self, request: Request, limit: int) -> Page:
        """Returns the first page of the provider's, as far as it is the caller's. Raises ProviderFailed."""
        try:
            call = self._call(request, limit)
            answer = await read_reply(await self._serve(call))
        except GatewayError as error:
            raise ProviderFailed(error.code or error.type) from None
        page = read_page(answer.body) if answer.status == 200 else None
        if page is None:
            raise ProviderFailed(f"status {answer.status}" if answer.status != 200 else "no list")
        return page

    def _call(self, request: Request, limit: int) -> Call:
        """Returns the same request to the provider, from its list's beginning. Raises GatewayError where it is not allowed."""
        policy, scope = self._policies.current, request.scope
        index = request_fields.index_headers(scope["headers"])
        key, credential = request_fields.authenticate(policy, index)
        model = request_fields.relayed_by(policy, key, scope)
        plan = plan_route(policy, key, model, request_fields.OTHER, is_callers=credential is not None)
        headers = self._forwarded.keep(scope["headers"])
        if plan.passes_account:
            headers += self._account.keep(scope["headers"])
        lane, now = request_fields.choose_lane(key, index), self._clock.monotonic()
        deadline, _ = request_fields.deadline(policy, plan, lane, index, now)
        params = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        params.pop("after", None)
        task = asyncio.current_task()
        sent = CallRequest(
            id=new_request_id(),
            endpoint=request_fields.OTHER,
            model_name="",
            body=b"",
            stream=False,
            stream_options=None,
            model_span=None,
            headers=headers,
            credential=credential,
            lane=lane,
            received_at=now,
            deadline=min(deadline, now + LONGEST_S),
            deadline_is_callers=True,
            method="GET",
            path=request_fields.passthrough_path(scope),
            query=urlencode({**params, "limit": str(limit)}).encode(),
            tenant=request_fields.choose_tenant(key, index),
        )
        return Call(sent, replace(plan.route, is_internal=True), server=task)


# --- batches as their pollers see them ---

POLL_AFTER_MS = 5000
"""Milliseconds until those who poll a batch that is not at its end are to come again."""
MOST_KEPT = 500
"""The batches that are remembered: the problems of one may take 30 KB."""

Headers = list[tuple[bytes, bytes]]


class _Shown(NamedTuple):
    job: Job
    body: bytes
    headers: Headers
    files: Headers
    """The ids of its files to be, which never change."""


class ShownBatches:
    """Makes responses of batches.

    What is shown is put together once for each look at the store, however many poll.
    """

    def __init__(self) -> None:
        self._last: dict[str, _Shown] = {}

    def response(self, job: Job) -> Response:
        """Returns the batch as JSON, and in headers what OpenAI's object has no field for."""
        shown = self._last.get(job.id)
        if shown is None or shown.job is not job:
            if len(self._last) >= MOST_KEPT:
                self._last.clear()
            files = (
                shown.files
                if shown is not None
                else [
                    (b"x-gateway-output-file-id", derived_file_id(job.id, "output").encode()),
                    (b"x-gateway-error-file-id", derived_file_id(job.id, "errors").encode()),
                ]
            )
            shown = self._last[job.id] = _Shown(job, orjson.dumps(batch_object(job)), _headers_of(job, files), files)
        return WholeResponse(shown.body, 200, [*shown.headers, (b"x-request-id", new_request_id().encode())])


def _headers_of(job: Job, files: Headers) -> Headers:
    headers: Headers = [(b"content-type", b"application/json")]
    if not job.state.is_end:
        headers += [(b"openai-poll-after-ms", b"%d" % POLL_AFTER_MS), *files]
        paused = job.marks.get(output.BRAKED_BY) or job.marks.get(output.WAITS_FOR)
        paused = "operator" if job.is_paused else paused
        if paused:
            headers.append((b"x-gateway-paused", paused.encode()))
    return headers


# --- `/v1/batches`: made, shown, listed and cancelled as at OpenAI, whoever serves their lines ---

EXAMPLE = '{"input_file_id": "file-…", "endpoint": "/v1/chat/completions", "completion_window": "24h"}'
MOST_BODY_BYTES = 65_536
USUALLY_LISTED, MOST_LISTED = 20, 100
_HIGHEST: Lane = "batch"
"""The lines of a batch wait for nobody who waits for them."""


class BatchRoutes:
    """The routes of batches."""

    def __init__(
        self,
        policies: Policies,
        batches: BatchService,
        readers: EventReaders,
        lists: MergedLists,
        relay: ASGIApp,
    ) -> None:
        """`relay` serves requests for the provider of `passthrough`."""
        self._policies = policies
        self._relay = relay
        self._batches = batches
        self._readers = readers
        self._lists = lists
        self._shown = ShownBatches()
        self._endpoints = [one.path for one in WORK if one.request == "json" and one.answer == "json"]

    def routes(self) -> list[BaseRoute]:
        table = (
            ("POST", "/batches", self.create),
            ("GET", "/batches", self.list_batches),
            ("GET", "/batches/{id}", self.show),
            ("POST", "/batches/{id}/cancel", self.cancel),
            ("GET", "/batches/{id}/events", self.events),
        )
        return own_routes(self._policies, BATCH, table)

    async def create(self, request: Request) -> Response:
        """Makes a batch; of a file that is not ours the provider of `passthrough` does."""
        index = request_fields.index_headers(request.scope["headers"])
        request_fields.refuse_encoded(index)
        key, tenant, credential = caller_of(self._policies, request)
        webhook = read_webhook_header(index)
        refuse_request_url(webhook, JOBS.of(self._policies.current).default, key)
        lane = request_fields.choose_lane(key, index)
        owner = BatchOwner(
            key.name,
            tenant,
            max(lane, _HIGHEST, key=LANES.index),
            brought_credential=credential is not None,
            idempotency_key=read_idempotency_key(index, CHAT),
            webhook=webhook,
        )
        body = await read_bytes(request, self._policies.current.server, MOST_BODY_BYTES)
        fields = object_of(body, EXAMPLE)
        file_id = fields.get(output.INPUT_FILE)
        if self._policies.current.passthrough is not None and isinstance(file_id, str) and not is_ours(FILE, file_id):
            return RelayedResponse(self._relay, body)
        return self._shown.response(await self._batches.create(owner, read_batch_request(fields, self._endpoints)))

    async def list_batches(self, request: Request) -> Response:
        """Lists the tenant's batches, newest first, and behind them those it has at the provider of `passthrough`."""
        tenant = tenant_of(self._policies, request)
        limit = limit_of(request, USUALLY_LISTED, MOST_LISTED)

        async def own() -> OwnPage:
            page = await self._batches.list_batches(tenant, request.query_params.get("after"), limit)
            return OwnPage([batch_object(job) for job in page.jobs], page.has_more)

        return await self._lists.page(request, limit, own)

    async def show(self, request: Request) -> Response:
        """Shows a batch, at most a second old."""
        tenant = tenant_of(self._policies, request)
        return self._shown.response(await self._batches.find(request.path_params["id"], tenant))

    async def cancel(self, request: Request) -> Response:
        tenant = tenant_of(self._policies, request)
        return self._shown.response(await self._batches.cancel(request.path_params["id"], tenant))

    async def events(self, request: Request) -> Response:
        """Streams the batch whenever it changes, as server-sent events with its revision as their id, until its end."""
        tenant = tenant_of(self._policies, request)
        batch_id = request.path_params["id"]
        await self._batches.find(batch_id, tenant)  # 404 before the stream begins, where it is not there
        changes = partial(self._batches.changes, batch_id, tenant)
        return self._readers.follow(request, tenant, "batch", changes, batch_object)
