"""Calls of Responses in the foreground, where the gateway keeps what they answer, or knows what they go on from.

    earlier items are put before its own -> the call -> its id becomes the gateway's -> it is kept before its end is told

The provider keeps nothing of these. What cannot be kept is answered all the same, and says `store: false`.
"""

from __future__ import annotations

import logging
from asyncio import to_thread
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import orjson

from gateway.core.call import Call, Reply
from gateway.core.errors import GatewayError
from gateway.core.openai.sse.sse import json_object
from gateway.features.output.rules.rules import OutputResult
from gateway.features.reuse.layers.entries import is_stream
from gateway.products.jobs.calls.ports.ports import ServeCall
from gateway.products.jobs.model.ids import RESPONSE, is_ours
from gateway.products.responses.events.kept_events import KeptEvents
from gateway.products.responses.rules.keeping import keeping_of
from gateway.products.responses.rules.response_object.asked import (
    AskedResponse,
    Keeping,
    items_of,
    keeps,
    read_asked,
    sent_upstream,
)
from gateway.products.responses.rules.response_object.chain import Conversation, previous_not_found
from gateway.products.responses.rules.response_object.stored_response import StoredResponse
from gateway.products.responses.service.service import ResponseService

LARGE_BYTES = 1_000_000
"""A larger body is parsed in a thread, so that others do not wait."""
_TELLS = frozenset(("gateway", "off", "never"))
"""Here no provider is asked to keep anything."""
log = logging.getLogger("gateway.jobs")


class ForegroundResponses:
    """Serves calls of Responses; `serve` is the pipeline's `handle`."""

    def __init__(self, serve: ServeCall, service: ResponseService, wall: Callable[[], float]) -> None:
        self._serve = serve
        self._service = service
        self._wall = wall

    async def handle(self, call: Call, keeping: Keeping, asked: AskedResponse) -> Reply:
        """Serves a call. Raises GatewayError, InvalidRequest where what it goes on from is not there."""
        from_ours = is_ours(RESPONSE, asked.previous_id)
        if keeping == "provider" and is_converted(call):
            keeping = "asked"
        if asked.previous_id and not from_ours:
            refuse_unknown(call, keeping, asked.previous_id)
        is_kept = keeps(keeping, asked, goes_on_from_ours=from_ours)
        if not (is_kept or from_ours or asked.in_background or keeping in _TELLS):
            return await self._serve(call)
        before = Conversation([], asked.previous_id)
        if from_ours:
            before = await self._service.conversation(asked.previous_id, call.tenant)
            if before.previous_id:
                refuse_unknown(call, keeping, before.previous_id)
        body = await body_of(call)
        own = items_of(body.get("input")) if is_kept else []
        stores = None if keeping == "provider" else False
        sent = sent_upstream(body, before.items, before.previous_id, stores=stores)
        as_it_came = call.body, call.parsed, call.large
        call.body, call.parsed, call.large = orjson.dumps(sent), sent, None
        try:
            reply = await self._serve(call)
        except GatewayError:
            call.body, call.parsed, call.large = as_it_came  # it may become a job
            raise
        if not is_kept or reply.status != 200:
            return reply
        events = KeptEvents(call.tenant, asked.previous_id)
        if reply.chunks is None:
            return await self._kept_whole(call, events, own, reply)
        return self._kept_stream(call, events, own, reply, reply.chunks)

    async def handle_stored(self, call: Call) -> Reply:
        """Serves a call that a job has made: it is in the background already, whatever it says of that."""
        keeping = keeping_of(call.policy, call.key, call.model, call.endpoint)
        if keeping is None:
            return await self._serve(call)
        return await self.handle(call, keeping, read_asked(call.parsed or await body_of(call)))

    async def _kept_whole(self, call: Call, events: KeptEvents, own: list[dict[str, Any]], reply: Reply) -> Reply:
        if is_stream(reply.headers):  # it was made before, and is given again in one piece
            made = self._kept_events(call, events, own, _in_one_piece(reply.body))
            return replace(reply, body=b"".join([block async for block in made]))
        said = json_object(reply.body)
        response = None if said is None else events.whole(said)
        if response is None:
            return reply
        if not await self._keep(call, response, own):
            response["store"] = False
        return replace(reply, body=orjson.dumps(response))

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
        check = call.output_check
        if check is not None and check.result is OutputResult.INVALID:
            return False
        now = self._wall()
        stored = StoredResponse(
            id=response["id"],
            tenant=call.tenant,
            created_at=now,
            keep_until=now + call.policy.jobs.default.keep_responses_s,
            previous_id=response["previous_response_id"] or "",
            body=orjson.dumps(response),
            input_items=orjson.dumps(own),
        )
        try:
            return await self._service.keep(stored)
        except GatewayError as trouble:
            log.warning("the response of call %s is not kept: %s", call.id, trouble.message)
            return False


async def _in_one_piece(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def is_converted(call: Call) -> bool:
    """Tells whether all targets of the call are known to have no Responses."""
    path, name = call.endpoint.path, call.endpoint.name
    return all(name in target.gaps or path in target.detours for target in call.model.plan)


def refuse_unknown(call: Call, keeping: Keeping, previous_id: str) -> None:
    """Raises InvalidRequest where no provider can know a response that the gateway has not made."""
    if keeping in _TELLS:
        raise previous_not_found(previous_id)
    if is_converted(call):
        raise previous_not_found(
            previous_id, "It was not kept; make responses that are to be gone on from with 'store: true'."
        )


async def body_of(call: Call) -> dict[str, Any]:
    """Returns the call's body, parsed."""
    if call.parsed is not None and call.large is None:
        return call.parsed
    if len(call.body) > LARGE_BYTES:
        body: dict[str, Any] = await to_thread(orjson.loads, call.body)
        return body
    loaded: dict[str, Any] = orjson.loads(call.body)
    return loaded
