"""The edge of the data plane: body in under a cap, key checked, call served, answer out.

No Request or Response objects, no middleware: a hot request is one dictionary look-up away from `serve_cycle`. Everything that
is not a hot endpoint goes to the starlette application that `routes.py` builds. No exception leaves this file. A stream that
waits long may be answered with comments; from then on there is no status left, and events carry whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.core.answers import wants_usage
from gateway.core.call import Call, Reply
from gateway.core.clock import Clock
from gateway.core.errors import BodyTimeout, GatewayError, InternalError, ShuttingDown, drop_frames
from gateway.core.http.writing import (
    AnyCycle,
    ClientGone,
    answer_at_once,
    answer_error,
    chunk_writer,
    end_stream,
    send_chunk,
    start_stream,
    write_whole,
)
from gateway.core.intake import EVENT_STREAM, InFlight, Intake, ServedRequest
from gateway.core.ledger import answer_headers
from gateway.core.pipeline import Pipeline
from gateway.core.ports import Meter
from gateway.core.relay import StreamBroken
from gateway.core.render import on_one_line
from gateway.core.snapshot import Policies
from gateway.core.types import Endpoint
from gateway.core.waiting import KeepAlive, Shedding

# --- answers on their way out: whole, in parts, or as events of a stream whose head went while its call waited ---


async def give(served: ServedRequest, call: Call, reply: Reply) -> None:
    """Give an answer to its client, and close it."""
    cycle = served.cycle
    if served.kept_alive:
        await _give_events(served, call, reply)
        return
    # From here on no error can become an answer: `_refuse` breaks the connection off.
    served.started = True
    if reply.chunks is None:
        headers, body = (
            _as_events(call, reply) if call.request.stream and reply.status == 200 else (reply.headers, reply.body)
        )
        headers.append((b"content-length", b"%d" % len(body)))
        await answer_at_once(cycle, reply.status, headers, body)
        return
    try:
        await start_stream(cycle, reply.status, reply.headers)
        if reply.pass_on is not None and cycle.chunked_encoding:
            # The writer frames what it writes as chunks, which other connections must not get.
            reply.pass_on(chunk_writer(cycle))
        async for chunk in reply.chunks:
            await send_chunk(cycle, chunk)
        await end_stream(cycle)
    finally:
        # A stream's account is settled when it closes, also if its client has left.
        await reply.close()


async def _give_events(served: ServedRequest, call: Call, reply: Reply) -> None:
    """The answer to a stream that was kept alive: its head has gone, its events follow, or one event for all of it."""
    cycle = served.cycle
    served.started = True
    if reply.chunks is None:
        await end_stream(cycle, reply.body if _is_stream(reply) else events_of(call, reply))
        return
    try:
        if _is_stream(reply):
            async for chunk in reply.chunks:
                await send_chunk(cycle, chunk)
            await end_stream(cycle)
        else:
            before, after = call.request.endpoint.shape.around_json()
            await send_chunk(cycle, before)
            async for chunk in reply.chunks:
                # A line end would end the `data:` line in the middle of the JSON.
                await send_chunk(cycle, on_one_line(chunk))
            await end_stream(cycle, after)
    finally:
        await reply.close()


def _is_stream(reply: Reply) -> bool:
    return dict(reply.headers).get(b"content-type", b"").startswith(b"text/event-stream")


def _as_events(call: Call, reply: Reply) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A provider that does not stream has answered a call that wants events: without any, SDKs would see an empty answer.

    The reply itself stays as it is: others may read it, too.
    """
    content_type = dict(reply.headers).get(b"content-type", b"")
    if call.request.endpoint.tokens != "both" or not content_type.startswith(b"application/json"):
        return reply.headers, reply.body
    headers = [header for header in reply.headers if header[0] not in (b"content-type", b"cache-control")]
    return [*headers, *EVENT_STREAM], events_of(call, reply)


def events_of(call: Call, reply: Reply) -> bytes:
    """A whole answer as the events that a streaming provider would have sent; where they are not known, one event."""
    shape, events = call.request.endpoint.shape, None
    if reply.status == 200:
        events = shape.as_stream(reply.body, include_usage=wants_usage(call))
    return shape.as_event(reply.status, reply.body) if events is None else events


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("gateway.edge")


class Edge:
    """Serves calls."""

    def __init__(
        self,
        pipeline: Pipeline,
        policies: Policies,
        meter: Meter,
        clock: Clock,
        inflight: InFlight,
        overload: Shedding | None = None,
        keepalive: KeepAlive | None = None,
    ) -> None:
        """Whoever gives `overload` and `keepalive` also feeds and sweeps them; without, nothing is shed or kept alive."""
        self._pipeline = pipeline
        self._keepalive = KeepAlive() if keepalive is None else keepalive
        self._meter = meter
        self._clock = clock
        self._inflight = inflight
        self.intake = Intake(policies, clock, inflight, Shedding() if overload is None else overload, pipeline)

    async def serve(self, endpoint: Endpoint, scope: Scope, _receive: Receive, _send: Send) -> None:
        """Serve a request to a data-plane endpoint that came by way of ASGI, from one of our own connections."""
        cycle: AnyCycle = scope["state"].pop("cycle")  # it holds the scope: only the collector could free both
        cycle.endpoint, cycle.task = endpoint, asyncio.current_task()
        await self.serve_cycle(cycle)

    async def serve_cycle(self, cycle: AnyCycle) -> None:
        """Serve one request to a data-plane endpoint, from its head to the last byte of its answer."""
        served = ServedRequest(cycle)
        connection, serving = cycle.connection, self._inflight.serving
        serving.add(served)
        connection.on_gone = served.client_gone
        try:
            # Most bodies are here with their head, and small: `take` makes the call of these without a turn of the loop.
            call = self.intake.take(served) or await self.intake.wait(served)
            if not call.request.stream:
                if served.plan.takes_interim and cycle.http_version == "1.1":  # no 1xx to HTTP/1.0 (RFC 9110, 15.2)
                    reply = await self._handle_alive(call, served.interim)
                else:
                    reply = await self._pipeline.handle(call)
            elif served.plan.takes_comments:
                reply = await self._handle_alive(call, served.comment)
            else:
                reply = await self._pipeline.handle(call)
            if reply.chunks is None and not call.request.stream and not cycle.flow.write_paused:
                # The usual answer: one write, and no client to wait for.
                served.started = True
                reply.headers.append((b"content-length", b"%d" % len(reply.body)))
                write_whole(cycle, reply.status, reply.headers, reply.body)
            else:
                await give(served, call, reply)
        except (
            ClientGone,
            StreamBroken,
        ):  # nobody is there, or the head has gone: a body cut short must not look complete
            served.abort()
        except GatewayError as error:
            if isinstance(error, InternalError):
                log.exception("defect while serving %s", served.request_id, exc_info=error.__cause__ or error)
            drop_frames(error)
            await self._refuse(served, error)
        except asyncio.CancelledError:
            if served.stopped is None:
                if served.call is None or not served.call.left:
                    raise  # not by us: the loop is going down
                served.stopped = "client_gone"  # by whoever waited for the answer last
            await self._answer_stopped(served)
        except Exception:
            log.exception("defect while serving %s", served.request_id)
            await self._refuse(served, InternalError())
        finally:
            # The connection may outlive this request, whose task it must not stop later.
            connection.on_gone = None
            serving.discard(served)
            # Behind half an answer no other request can be served on this connection.
            if not cycle.response_complete and not cycle.disconnected:
                cycle.transport.close()

    async def answer(self, served: ServedRequest) -> Reply:
        """The answer to a request that did not come by HTTP, to be given by whoever asks. Raises GatewayError."""
        call = self.intake.take(served) or await self.intake.wait(served)
        served.note_begun()  # its answer is a message of a connection whose head went long ago
        return await self._pipeline.handle(call)

    async def _handle_alive(self, call: Call, comment: Callable[[bytes], bool]) -> Reply:
        """Serves the call, and sends its client signs of life while it waits."""
        call.comment = comment
        self._keepalive.begin(call, call.request.received_at)
        try:
            return await self._pipeline.handle(call)
        finally:
            self._keepalive.end(call)
            call.comment = None  # it leads back to the call: what goes round in a circle is left to the collector

    async def _refuse(self, served: ServedRequest, error: GatewayError) -> None:
        """Answer with an error; when the answer has begun it is too late, and the connection breaks off."""
        if served.started:
            served.abort()
            return
        call, cycle = served.call, served.cycle
        if error.status == 504 and b"x-gateway-deadline-ms" in cycle.index:
            error.should_retry = False  # after the deadline of the whole call, not of one try, its caller wants none
        if call is not None and served.kept_alive:
            served.started = True
            await end_stream(cycle, call.request.endpoint.shape.error_event(error, served.request_id))
            return
        if call is None or not call.settled:  # nothing else counts it: it never came to the pipeline
            self._meter.refused(served.request_id, cycle.scope["path"], error.status, error.code)
        if call is None:
            trail = [(b"x-request-id", served.request_id.encode())]
        else:
            trail = answer_headers(call, self._clock.monotonic())
        # A client that waits for `100 Continue` may send its body or not: nothing can follow on its connection.
        if isinstance(error, ShuttingDown | BodyTimeout) or cycle.waiting_for_100_continue:
            cycle.keep_alive = False
        await answer_error(cycle, error, trail)

    async def _answer_stopped(self, served: ServedRequest) -> None:
        """The request was cancelled by `Serving.stop`: say why to a client that is still there."""
        if served.task is not None:
            served.task.uncancel()
        if served.stopped == "client_gone":
            self.intake.hung_up(served)
            return
        if served.stopped == "body_timeout":
            late = BodyTimeout("The request body did not arrive in time; send it faster or smaller.")
            await self._refuse(served, late)
        elif served.stopped == "no_room":
            await self._refuse(served, self.intake.without_room(served.lane))
        elif served.started and served.call is not None and served.call.request.stream:
            # The head has gone, so only an event can still bring the error.
            broken = ShuttingDown("The gateway is shutting down and the stream could not be finished.")
            await end_stream(served.cycle, served.call.request.endpoint.shape.error_event(broken, served.request_id))
        else:
            await self._refuse(served, ShuttingDown("The gateway is shutting down; the call could not be finished."))
