"""`POST /v1/responses` where the gateway has a part in what is kept, and `/v1/responses/{id}`, where it is shown.

A response in the background is durable before it is answered. Its stream is read from the log, as every later one is: the
connection that made it is only the first reader. An id that is not the gateway's goes on to the provider of `passthrough`,
where there is one. What is not there, or another tenant's, is answered in OpenAI's words, the same for both.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core.call import Call, CallFeature, CallRoute, Reply, Serve, Slot
from gateway.core.errors import GatewayError, InvalidRequest
from gateway.core.http.writing import WholeResponse
from gateway.core.intake import EVENT_STREAM
from gateway.core.ledger import Accounts
from gateway.core.openai.sse import comment_end
from gateway.core.render import new_request_id
from gateway.core.snapshot import Policies
from gateway.features.run_port import NO_JOB
from gateway.products.jobs.answers_http import POLL_AFTER_S, EventReaders, FollowedEvents, own_routes
from gateway.products.jobs.model import RESPONSE, Job, is_ours
from gateway.products.jobs.request import bare_provider, read_option_headers
from gateway.products.jobs.rules import JOBS
from gateway.products.responses.keeping import keeping_of
from gateway.products.responses.rules import (
    BackgroundRefused,
    Keeping,
    ResponseOptions,
    listed,
    read_response_options,
    shown,
)
from gateway.products.responses.service import ForegroundResponses, ResponseService, body_of, refuse_unknown
from gateway.products.routes import head_alone, limit_of, list_page, tenant_of

COMMENT = b": nothing new"
"""The comment that is sent where there is nothing; `comment_end` ends it."""
LOOK_AGAIN = b"openai-poll-after-ms", b"%d" % (POLL_AFTER_S * 1000)


REQUEST_HEADERS: Final[Slot[Mapping[bytes, bytes]]] = Slot("request_headers")
"""The headers of a call that came by the edge; a call of a job has none."""


class ResponseEndpoint(CallFeature):
    """Serves calls of Responses for which the gateway has a part in what is kept."""

    name = "responses"
    options: frozenset[bytes] = frozenset()

    def __init__(
        self, accounts: Accounts, service: ResponseService, foreground: ForegroundResponses, readers: EventReaders
    ) -> None:
        self._accounts = accounts
        self._service = service
        self._foreground = foreground
        self.readers = readers

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself where responses are kept, or are not to be."""
        return None if keeping_of(route.policy, route.key, route.model, route.endpoint) is None else self

    def read(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        """Takes the headers, which say more of a response in the background."""
        REQUEST_HEADERS.put(call, headers)

    async def serve(self, call: Call, next: Serve) -> Reply:
        """Returns the reply to a call, kept if it is to be. Raises GatewayError."""
        keeping = keeping_of(call.route.policy, call.route.key, call.route.model, call.request.endpoint)
        if keeping is None:
            return await next(call)
        headers, has_begun = REQUEST_HEADERS.find(call), False

        def begin(call: Call) -> Awaitable[Reply]:
            nonlocal has_begun
            has_begun = True
            return next(call)

        try:
            wanted = read_response_options(call.parsed or await body_of(call))
            # A call of a job is in the background already, whatever it says of that.
            if not wanted.in_background or headers is None:
                return await self._foreground.handle(call, keeping, wanted, begin)
            if keeping == "provider" and _is_providers(call):
                return await begin(call)
            self._accounts.withdraw(call)  # its job makes the call
            return await self._in_background(call, keeping, wanted, headers)
        except GatewayError:
            if not has_begun:  # what is refused here never was a call
                self._accounts.withdraw(call)
            raise

    async def _in_background(
        self, call: Call, keeping: Keeping, wanted: ResponseOptions, headers: Mapping[bytes, bytes]
    ) -> Reply:
        if keeping == "never":
            raise BackgroundRefused(
                "Nothing of this key's responses is kept, and one in the background has to be; send it without 'background'.",
                param="background",
            )
        no_job = NO_JOB.find(call)
        if no_job is not None:
            raise no_job("'background'", "background")
        if wanted.previous_id and not is_ours(RESPONSE, wanted.previous_id):
            refuse_unknown(call, keeping, wanted.previous_id)
        options = read_option_headers(headers, 0.0)
        body = await body_of(call)
        if call.request.stream:
            self.readers.refuse_more(call.request.tenant)  # before it is taken: what was refused is sent again
        job = await self._service.accept(call, body, wanted, options.webhook, options.priority)
        own = [(b"x-gateway-job", job.id.encode()), (b"x-request-id", call.request.id.encode())]
        if call.request.stream:
            following = await self._service.follow(job.id, call.request.tenant, -1)
            comment = COMMENT + comment_end(headers)
            events = self._events(following.blocks, call.request.tenant, comment)
            return Reply(200, [*EVENT_STREAM, *own], chunks=events, close=events.aclose, pass_on=following.pass_on)
        return await self._object(job, own)

    async def _object(self, job: Job, own: list[tuple[bytes, bytes]]) -> Reply:
        headers = [(b"content-type", b"application/json"), *own]
        if job.state.is_end:  # it was asked for before, with the same key
            _, body = await self._service.find(job.id, job.tenant)
            return Reply(200, headers, body)
        return Reply(200, [*headers, LOOK_AGAIN], orjson.dumps(shown(job)))

    async def _events(
        self, blocks: AsyncIterator[bytes | None], tenant: str, comment: bytes
    ) -> AsyncGenerator[bytes, None]:
        with self.readers.counted(tenant):
            async for block in blocks:
                yield comment if block is None else block


def _is_providers(call: Call) -> bool:
    """Returns whether its provider is to run it in the background.

    So it is where the config leaves what is kept to it, or only the caller's own credential would do, which no job has.
    """
    if not JOBS.of(call.route.policy).settings.takes_files:
        return True
    return call.request.credential is not None and bare_provider(call.route.policy, call.route.model) is not None


# --- `/v1/responses/{id}`: responses that the gateway keeps, to show, follow, stop and forget ---

USUALLY_LISTED, MOST_LISTED = 20, 100


class ResponseRoutes:
    """What each route of responses does."""

    def __init__(self, policies: Policies, responses: ResponseService, readers: EventReaders) -> None:
        self._policies = policies
        self._responses = responses
        self._readers = readers

    def routes(self) -> list[BaseRoute]:
        return own_routes(
            self._policies,
            RESPONSE,
            (
                ("GET", "/responses/{id}", self.show),
                ("DELETE", "/responses/{id}", self.remove),
                ("POST", "/responses/{id}/cancel", self.cancel),
                ("GET", "/responses/{id}/input_items", self.input_items),
            ),
        )

    async def show(self, request: Request) -> Response:
        """Shows a response, at most a second old; or streams its events, behind one or from the first."""
        tenant, response_id = tenant_of(self._policies, request), request.path_params["id"]
        if request.query_params.get("stream", "").lower() in ("true", "1"):
            return await self._follow(request, tenant, response_id)
        job, body = await self._responses.find(response_id, tenant)
        response = _json(body)
        if job is not None:
            response.raw_headers.append(LOOK_AGAIN)
        return response

    async def cancel(self, request: Request) -> Response:
        """Stops a response in the background; one that has ended is shown as it is."""
        return _json(await self._responses.cancel(request.path_params["id"], tenant_of(self._policies, request)))

    async def remove(self, request: Request) -> Response:
        """Forgets a response, and stops it if it runs."""
        response_id = request.path_params["id"]
        await self._responses.remove(response_id, tenant_of(self._policies, request))
        return _json(orjson.dumps({"id": response_id, "object": "response", "deleted": True}))

    async def input_items(self, request: Request) -> Response:
        """Lists the items of a response's own input, the last first."""
        tenant, response_id = tenant_of(self._policies, request), request.path_params["id"]
        limit = limit_of(request, USUALLY_LISTED, MOST_LISTED)
        items = listed(response_id, await self._responses.input_items(response_id, tenant))
        return _json(orjson.dumps(_page(items, request, limit)))

    async def _follow(self, request: Request, tenant: str, response_id: str) -> Response:
        after = _starting_after(request)
        events = await self._responses.follow(response_id, tenant, after)
        headers = {"cache-control": "no-cache", "x-request-id": new_request_id()}
        blocks = _blocks(events.blocks, COMMENT + comment_end(dict(request.headers.raw)))
        if request.method == "HEAD":
            return head_alone(headers, "text/event-stream")
        self._readers.refuse_more(tenant)
        return FollowedEvents(self._readers, tenant, blocks, headers=headers, media_type="text/event-stream")


async def _blocks(events: AsyncIterator[bytes | None], comment: bytes) -> AsyncIterator[bytes]:
    async for block in events:
        yield comment if block is None else block


def _starting_after(request: Request) -> int:
    """Returns the number of the event that the client has seen last; -1: none. Raises InvalidRequest."""
    value = request.query_params.get("starting_after")
    if value is None:
        return -1
    if not value.isdecimal() or not value.isascii() or len(value) > 15:
        raise InvalidRequest(
            "The parameter 'starting_after' must be the 'sequence_number' of an event.", param="starting_after"
        )
    return int(value)


def _page(items: Sequence[dict[str, Any]], request: Request, limit: int) -> dict[str, Any]:
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("The parameter 'order' must be 'asc' or 'desc'.", param="order")
    ordered = list(items) if order == "asc" else [*reversed(items)]
    after = request.query_params.get("after")
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == after]
        ordered = ordered[places[0] + 1 :] if places else []
    return list_page(ordered[:limit], has_more=len(ordered) > limit)


def _json(body: bytes) -> Response:
    headers = [(b"content-type", b"application/json"), (b"x-request-id", new_request_id().encode())]
    return WholeResponse(body, 200, headers)
