"""`/v1/responses/{id}`: responses that the gateway keeps, to show, follow, stop and forget.

An id that is not the gateway's goes on to the provider of `passthrough`, where there is one. What is not there, or another
tenant's, is answered in OpenAI's words, the same for both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core.errors import InvalidRequest
from gateway.core.http.writing import WholeResponse
from gateway.core.openai.sse import comment_end
from gateway.core.render import new_request_id
from gateway.core.snapshot.snapshot import Policies
from gateway.products.jobs.http.events import EventReaders, FollowedEvents
from gateway.products.jobs.model import RESPONSE, list_page
from gateway.products.responses.http.door import COMMENT, LOOK_AGAIN
from gateway.products.responses.rules.response_object import listed
from gateway.products.responses.service import ResponseService
from gateway.products.routes.own_routes import head_alone, limit_of, own_routes, tenant_of
from gateway.routes import json_response

USUALLY_LISTED, MOST_LISTED = 20, 100


class ResponseRoutes:
    """What each route of responses does."""

    def __init__(self, policies: Policies, responses: ResponseService, readers: EventReaders) -> None:
        self._policies = policies
        self._responses = responses
        self._readers = readers

    def routes(self) -> list[BaseRoute]:
        """Returns the routes, with and without `/v1`."""
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
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """Lists the items of a response's own input, the last first."""
        tenant, response_id = tenant_of(self._policies, request), request.path_params["id"]
        limit = limit_of(request, USUALLY_LISTED, MOST_LISTED)
        items = listed(response_id, await self._responses.input_items(response_id, tenant))
        return json_response(_page(items, request, limit))

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
