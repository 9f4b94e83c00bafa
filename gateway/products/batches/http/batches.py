"""`/v1/batches`: made, shown, listed and cancelled as at OpenAI, whoever serves their lines.

It must not know how batches run; `BatchService` takes them.
"""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core.intake import parse
from gateway.core.intake.intake.bodies import read_object
from gateway.core.snapshot.snapshot.snapshot import Policies
from gateway.core.types.words import LANES, Lane
from gateway.products.batches.http.merged_lists import MergedLists, OwnPage
from gateway.products.batches.http.shown_batches import ShownBatches
from gateway.products.batches.output.batch_object import batch_object
from gateway.products.batches.output.request import read_batch_request
from gateway.products.batches.service.batch_service import BatchOwner, BatchService
from gateway.products.jobs.http.events.events import EventReaders
from gateway.products.jobs.model.ids import BATCH
from gateway.products.jobs.service.job_request import read_webhook_header
from gateway.products.jobs.webhooks.service.requested import refuse_request_url
from gateway.products.routes.own_routes import caller_of, limit_of, own_routes, tenant_of
from gateway.routes import ENDPOINTS, WORK

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
    ) -> None:
        self._policies = policies
        self._batches = batches
        self._readers = readers
        self._lists = lists
        self._shown = ShownBatches()
        self._endpoints = [one.path for one in WORK if one.request == "json" and one.answer == "json"]

    def routes(self) -> list[BaseRoute]:
        """Returns the routes, with and without `/v1`."""
        table = (
            ("POST", "/batches", self.create),
            ("GET", "/batches", self.list_batches),
            ("GET", "/batches/{id}", self.show),
            ("POST", "/batches/{id}/cancel", self.cancel),
            ("GET", "/batches/{id}/events", self.events),
        )
        return own_routes(self._policies, BATCH, table)

    async def create(self, request: Request) -> Response:
        """Makes a batch."""
        index = parse.index_headers(request.scope["headers"])
        parse.refuse_encoded(index)
        key, tenant, credential = caller_of(self._policies, request)
        webhook = read_webhook_header(index)
        refuse_request_url(webhook, self._policies.current.jobs.default, key)
        lane = parse.choose_lane(key, index)
        owner = BatchOwner(
            key.name,
            tenant,
            max(lane, _HIGHEST, key=LANES.index),
            brought_credential=credential is not None,
            idempotency_key=parse.idempotency_key(index, ENDPOINTS[0]),
            webhook=webhook,
        )
        body = await read_object(request, self._policies.current.server, MOST_BODY_BYTES, EXAMPLE)
        return self._shown.response(await self._batches.create(owner, read_batch_request(body, self._endpoints)))

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
        """Asks a batch to stop."""
        tenant = tenant_of(self._policies, request)
        return self._shown.response(await self._batches.cancel(request.path_params["id"], tenant))

    async def events(self, request: Request) -> Response:
        """Streams the batch whenever it changes, as server-sent events with its revision as their id, until its end."""
        tenant = tenant_of(self._policies, request)
        batch_id = request.path_params["id"]
        await self._batches.find(batch_id, tenant)  # what is not there is said before the stream begins
        changes = partial(self._batches.changes, batch_id, tenant)
        return self._readers.follow(request, tenant, "batch", changes, batch_object)
