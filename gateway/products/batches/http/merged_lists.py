"""Lists of files and batches where a provider has some, too: ours first, then the provider's, in pages over the seam.

A cursor says itself on which side it is: behind an id of ours come the rest of ours and then theirs from their beginning;
behind an id of the provider's the whole page is the provider's, and its route answers. Which of the provider's objects a tenant
sees is decided where they are asked for, as for every other call to it. A provider that fails takes ours from nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.intake import parse
from gateway.core.openai import headers as allow_lists
from gateway.core.peek import passthrough
from gateway.core.render import new_request_id
from gateway.core.snapshot.route_plan import plan_route
from gateway.core.snapshot.snapshot.snapshot import Policies
from gateway.features.ownership.service.answers import Page, read_page
from gateway.products.jobs.calls.ports.one_call import read_reply
from gateway.products.jobs.calls.ports.ports import ServeCall
from gateway.products.jobs.model.list_page import list_page
from gateway.routes import json_response

LONGEST_S = 10.0
"""So long the provider is waited for."""
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
        index = parse.index_headers(scope["headers"])
        key, credential = parse.authenticate(policy, index)
        model = passthrough.relayed_by(policy, key, scope)
        plan = plan_route(policy, key, model, passthrough.OTHER, is_callers=credential is not None)
        headers = self._forwarded.keep(scope["headers"])
        if plan.passes_account:
            headers += self._account.keep(scope["headers"])
        lane, now = parse.choose_lane(key, index), self._clock.monotonic()
        deadline, _ = parse.deadline(policy, lane, index, now)
        asked = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        asked.pop("after", None)
        task = asyncio.current_task()
        return Call(
            id=new_request_id(),
            endpoint=passthrough.OTHER,
            policy=policy,
            key=key,
            model=plan.model,
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
            path=passthrough.passthrough_path(scope),
            query=urlencode({**asked, "limit": str(limit)}).encode(),
            tenant=parse.choose_tenant(key, index),
            task=task,
            server=task,
        )
