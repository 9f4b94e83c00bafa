"""`POST /v1/responses` where the gateway has a part in what is kept: in the background, or in the foreground.

A response in the background is durable before anybody is told of it. Its stream is read from the log, as every later one is:
the connection that made it is only the first reader.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import orjson

from gateway.core.call import Call, Reply
from gateway.core.openai.sse import comment_end
from gateway.core.serving import EVENT_STREAM, ServedRequest
from gateway.features.runs.step import not_a_step
from gateway.products.batches.input import bare_provider
from gateway.products.jobs.calls.ports import ServeCall
from gateway.products.jobs.http.events import POLL_AFTER_S, EventReaders
from gateway.products.jobs.model import RESPONSE, Job, is_ours
from gateway.products.jobs.service.job_request import read_option_headers
from gateway.products.responses.rules.response_object import BackgroundRefused, read_response_options, shown
from gateway.products.responses.service import ForegroundResponses, ResponseService, body_of, refuse_unknown

COMMENT = b": nothing new"
"""What is said where there is nothing; `comment_end` ends it."""
LOOK_AGAIN = b"openai-poll-after-ms", b"%d" % (POLL_AFTER_S * 1000)


class ResponseEndpoint:
    """Serves calls of Responses; `serve` is the pipeline's `handle`."""

    def __init__(
        self, serve: ServeCall, service: ResponseService, foreground: ForegroundResponses, readers: EventReaders
    ) -> None:
        self._serve = serve
        self._service = service
        self._foreground = foreground
        self.readers = readers

    async def handle(self, served: ServedRequest, call: Call) -> Reply:
        """Serves a call whose route says who keeps its responses. Raises GatewayError."""
        keeping = served.plan.keeping
        wanted = read_response_options(call.parsed or await body_of(call))
        if keeping is None:
            return await self._serve(call)
        if not wanted.in_background:
            return await self._foreground.handle(call, keeping, wanted)
        if keeping == "never":
            raise BackgroundRefused(
                "Nothing of this key's responses is kept, and one in the background has to be; send it without 'background'.",
                param="background",
            )
        if keeping == "provider" and _is_providers(call):
            return await self._serve(call)
        if call.part is not None and call.part.step is not None:
            raise not_a_step("'background'", "background")
        if wanted.previous_id and not is_ours(RESPONSE, wanted.previous_id):
            refuse_unknown(call, keeping, wanted.previous_id)
        options = read_option_headers(served.cycle.index, 0.0)
        body = await body_of(call)
        if call.stream:
            self.readers.refuse_more(call.tenant)  # before it is taken: what was refused is sent again
        job = await self._service.accept(call, body, wanted, options.webhook, options.priority)
        own = [(b"x-gateway-job", job.id.encode()), (b"x-request-id", served.request_id.encode())]
        if call.stream:
            following = await self._service.follow(job.id, call.tenant, -1)
            comment = COMMENT + comment_end(served.cycle.index)
            events = self._events(following.blocks, call.tenant, comment)
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
    """Tells whether its provider is to run it in the background.

    So it is where the config leaves what is kept to it, or only the caller's own credential would do, which no job has.
    """
    if not call.policy.jobs.settings.takes_files:
        return True
    return call.credential is not None and bare_provider(call.policy, call.model) is not None
