"""The edge of the data plane, one plain ASGI callable: body in under a cap, key checked, call served, answer out.

No Request or Response objects, no middleware: a hot request is one dictionary look-up away from `_serve`. Everything that
is not a hot endpoint goes to the starlette application that `routes.py` builds. No exception leaves this file. A stream that
waits long may be answered with comments; from then on there is no status left, and whatever happens is told by its events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from io import BytesIO
from typing import Any

from gateway.call import Call, Reply
from gateway.clock import Clock
from gateway.errors import BodyTimeout, BodyTooLarge, GatewayError, InternalError, ShuttingDown
from gateway.flow.answer_headers import answer_headers
from gateway.flow.keepalive import KeepAlive
from gateway.flow.pipeline import Pipeline
from gateway.flow.raw_relay import StreamBroken
from gateway.flow.reuse.entries import wants_usage
from gateway.flow.shedding import Shedding
from gateway.ingress import parse, passthrough
from gateway.ingress.differences import refuse_other_readings
from gateway.ingress.http.writing import answer_at_once, begin_stream, end_stream, send_chunk, write_chunk
from gateway.ingress.inflight import InFlight, Serving
from gateway.ingress.large_bodies import LargeBodies
from gateway.ingress.peek import Peeked, peek
from gateway.ingress.render import (
    around_json,
    error_event,
    error_object,
    new_request_id,
    on_one_line,
    send_error,
    send_whole,
    whole_as_events,
)
from gateway.policy.conversion.convert import as_stream
from gateway.policy.openai import headers as allow_lists
from gateway.policy.snapshot import Policies, Server
from gateway.ports import Meter
from gateway.words import Endpoint

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

EVENT_STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
INTERIM = {102: b"HTTP/1.1 102 Processing\r\n\r\n", 103: b"HTTP/1.1 103 Early Hints\r\n\r\n"}
UNREAD_COMMENTS_BYTES = 256
"""What may wait for a client to read it before it gets another comment: a few of them."""
log = logging.getLogger("gateway.edge")


class ClientGone(Exception):
    """The client left before its body was complete."""


class Edge:
    """Serves calls over ASGI."""

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
        self._overload = Shedding() if overload is None else overload
        self._keepalive = KeepAlive() if keepalive is None else keepalive
        self._policies = policies
        self._meter = meter
        self._clock = clock
        self._inflight = inflight
        self._large_bodies = LargeBodies()
        self._forwarded = allow_lists.request_headers()
        self._passed_through = allow_lists.passthrough_request_headers()
        self._account = allow_lists.account_headers()

    async def serve(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request to a data-plane endpoint, from its head to the last byte of its answer."""
        exchange = _Exchange(scope, send)
        connection = exchange.connection
        serving = self._inflight.enter(connection.loop if connection is not None else None)
        if connection is not None:
            connection.on_gone = serving.client_gone
        try:
            await self._serve(endpoint, exchange, receive, serving)
        except (ClientGone, StreamBroken):
            exchange.abort()
        except GatewayError as error:
            if isinstance(error, InternalError):
                log.exception("defect while serving %s", exchange.request_id, exc_info=error.__cause__ or error)
            await self._refuse(exchange, error)
        except asyncio.CancelledError:
            if serving.stopped is None:
                if exchange.call is None or not exchange.call.left:
                    raise
                serving.stopped = "client_gone"  # by whoever waited for the answer last
            await self._answer_stopped(exchange, serving)
        except Exception:
            log.exception("defect while serving %s", exchange.request_id)
            await self._refuse(exchange, InternalError())
        finally:
            if connection is not None:
                connection.on_gone = None
            self._inflight.leave(serving)

    async def _serve(self, endpoint: Endpoint, exchange: _Exchange, receive: Receive, serving: Serving) -> None:
        policy = self._policies.current
        headers = exchange.scope["headers"]
        index = parse.index_headers(headers)
        sent_id = parse.request_id(index)
        if sent_id is not None:
            exchange.identify(sent_id)
        if self._inflight.draining:
            raise ShuttingDown("The gateway is shutting down and takes no new calls.")
        key, credential = parse.authenticate(policy, index)
        parse.refuse_encoded(index)
        lane = parse.choose_lane(key, index)
        if self._overload.sheds(lane):
            raise self._overload.refusal(lane)
        body = await self._read_body(receive, index, policy.server, serving)
        now = self._clock.monotonic()
        if endpoint.request == "any":
            peeked, model = Peeked(""), passthrough.relayed_by(policy, key, exchange.scope)
            allowed = self._passed_through
        else:
            allowed = self._forwarded
            if len(body) <= policy.server.small_body_bytes:
                peeked = peek(endpoint, body, index)
            else:
                peeked = await self._large_bodies.peek(endpoint, body, index, policy.server.max_json_values)
            found = (
                parse.find_model(policy, key, peeked.model) if peeked.model else passthrough.unnamed_model(policy, key)
            )
            if not peeked.model:  # what nobody has named has no price
                passthrough.refuse_unpriced(key, passthrough.OTHER, exchange.scope["method"], endpoint.path)
            if found is None:
                endpoint, peeked, allowed = passthrough.OTHER, Peeked(""), self._passed_through
                found = passthrough.relayed_by(policy, key, exchange.scope)
            model = found
            if key.allows is not None:
                refuse_other_readings(key, endpoint, peeked.parsed or (), body, index)
        tenant = parse.choose_tenant(key, index)
        deadline, is_callers = parse.deadline(policy, lane, index, now)
        forwarded = parse.forwarded_headers(headers, allowed, endpoint, index)
        if credential is not None:
            model = model.for_callers or model
            account = self._account.keep(headers)
            going_to = (*model.plan, *model.context_plan)
            if account and all(policy.providers[target.provider].api_key is None for target in going_to):
                forwarded += account  # beside a provider's own key they would name another's account
        exchange.call = serving.call = call = Call(
            id=exchange.request_id,
            endpoint=endpoint,
            policy=policy,
            key=key,
            model=model,
            model_name=peeked.model,
            body=body,
            stream=peeked.stream,
            stream_options=peeked.stream_options,
            model_span=peeked.model_span,
            headers=forwarded,
            credential=credential,
            lane=lane,
            received_at=now,
            deadline=deadline,
            deadline_is_callers=is_callers,
            method=exchange.scope["method"],
            path=endpoint.path or passthrough.passthrough_path(exchange.scope),
            query=exchange.scope["query_string"],
            echo_request_id=exchange.is_echo,
            tenant=tenant,
            max_tokens=peeked.max_tokens,
            thinks=peeked.thinks,
            parsed=peeked.parsed,
            large=peeked.large,
            task=serving.task,
            server=serving.task,
            sdk_retry=parse.sdk_retry(index),
            idempotency_key=parse.idempotency_key(index, endpoint) if b"idempotency-key" in index else None,
            cache_control=parse.cache_control(headers) if b"cache-control" in index else None,
        )
        del peeked  # or what was parsed would live as long as the call
        if call.stream and exchange.cycle is not None and (endpoint.usage_option or endpoint.sse != "chat"):
            reply = await self._handle_alive(exchange, call, now, exchange.comment)
        elif model.holding.interim is not None and not call.stream and exchange.takes_interim():
            reply = await self._handle_alive(exchange, call, now, exchange.interim)
        else:
            reply = await self._pipeline.handle(call)
        await self._reply(exchange, reply)

    async def _handle_alive(
        self, exchange: _Exchange, call: Call, now: float, comment: Callable[[bytes], bool]
    ) -> Reply:
        """As the pipeline's `handle`, and signs of life for the client who waits."""
        call.comment = comment
        self._keepalive.begin(call, now)
        try:
            return await self._pipeline.handle(call)
        finally:
            self._keepalive.end(call)
            call.comment = None  # it leads back to the call: what goes round in a circle is left to the collector

    async def _read_body(self, receive: Receive, index: dict[bytes, bytes], server: Server, serving: Serving) -> bytes:
        """The whole body. Raises BodyTooLarge before more than the cap is held, ClientGone when it breaks off."""
        limit = server.max_body_bytes
        announced = index.get(b"content-length", b"0")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
            raise BodyTooLarge(f"The request body has {announced.decode()[:20]} bytes; the limit is {limit}.")
        serving.reading_until = self._clock.monotonic() + server.body_timeout_s
        first = b""
        rest: BytesIO | None = None  # takes each part as it comes: to join them all at the end would take milliseconds
        length = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            length += len(part)
            if length > limit:
                raise BodyTooLarge(f"The request body is larger than the limit of {limit} bytes.")
            if rest is not None:
                rest.write(part)
            elif not first:
                first = part
            else:
                rest = BytesIO()
                rest.write(first)
                rest.write(part)
            if not message.get("more_body", False):
                serving.reading_until = None
                return first if rest is None else rest.getvalue()

    async def _reply(self, exchange: _Exchange, reply: Reply) -> None:
        cycle = exchange.cycle
        if exchange.kept_alive and exchange.call is not None:
            await self._reply_with_events(exchange, exchange.call.endpoint, reply)
            return
        if reply.chunks is None:
            headers, body = reply.headers, reply.body
            if exchange.call is not None and exchange.call.stream and reply.status == 200:
                headers, body = _as_events(exchange.call, reply)
            headers.append((b"content-length", b"%d" % len(body)))
            exchange.started = True
            if cycle is None:
                await send_whole(exchange.send, reply.status, headers, body)
            else:
                await answer_at_once(cycle, reply.status, headers, body)
            return
        send = exchange.send
        try:
            exchange.started = True
            if cycle is not None and cycle.scope["http_version"] == "1.0" and cycle.scope["method"] != "HEAD":
                begin_stream(cycle, reply.headers, b"", reply.status)  # ASGI has it chunked, which 1.0 cannot read
                async for chunk in reply.chunks:
                    await send_chunk(cycle, chunk)
                await end_stream(cycle)
                return
            await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
            if cycle is not None and cycle.chunked_encoding and cycle.scope["method"] != "HEAD":
                async for chunk in reply.chunks:
                    await send_chunk(cycle, chunk)
            else:
                async for chunk in reply.chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await reply.close()

    async def _reply_with_events(self, exchange: _Exchange, endpoint: Endpoint, reply: Reply) -> None:
        """The answer to a stream that was kept alive: its head has gone, its events follow, or one event for all of it."""
        cycle = exchange.cycle
        exchange.started = True
        if reply.chunks is None:
            events = reply.body if _is_stream(reply) else _events_of(exchange.call, endpoint, reply)
            await end_stream(cycle, events)
            return
        try:
            if _is_stream(reply):
                async for chunk in reply.chunks:
                    await send_chunk(cycle, chunk)
                await end_stream(cycle)
            else:
                before, after = around_json(endpoint)
                await send_chunk(cycle, before)
                async for chunk in reply.chunks:
                    await send_chunk(cycle, on_one_line(chunk))
                await end_stream(cycle, after)
        finally:
            await reply.close()

    async def _refuse(self, exchange: _Exchange, error: GatewayError) -> None:
        """Answer with an error; when the answer has begun it is too late, and the connection breaks off."""
        if exchange.started:
            exchange.abort()
            return
        call = exchange.call
        if call is not None and exchange.kept_alive:
            exchange.started = True
            await end_stream(exchange.cycle, error_event(call.endpoint, error_object(error)))
            return
        if call is None:
            path = exchange.scope["path"]
            self._meter.refused(exchange.request_id, path, error.status, error.code)
            trail = [(b"x-request-id", exchange.request_id.encode())]
        else:
            trail = answer_headers(call, self._clock.monotonic())
        if isinstance(error, ShuttingDown | BodyTimeout) or exchange.awaits_body():
            trail.append((b"connection", b"close"))
        await send_error(exchange.send, error, trail)

    async def _answer_stopped(self, exchange: _Exchange, serving: Serving) -> None:
        """The request was cancelled by `Serving.stop`: say why to a client that is still there."""
        if serving.task is not None:
            serving.task.uncancel()
        if serving.stopped == "client_gone":
            return
        if serving.stopped == "body_timeout":
            await self._refuse(
                exchange, BodyTimeout("The request body did not arrive in time; send it faster or smaller.")
            )
        elif exchange.started and exchange.call is not None and exchange.call.stream:
            broken = ShuttingDown("The gateway is shutting down and the stream could not be finished.")
            event = error_event(exchange.call.endpoint, error_object(broken))
            if exchange.kept_alive:
                await end_stream(exchange.cycle, event)
            else:
                await exchange.send({"type": "http.response.body", "body": event})
        else:
            await self._refuse(exchange, ShuttingDown("The gateway is shutting down; the call could not be finished."))


def _is_stream(reply: Reply) -> bool:
    return dict(reply.headers).get(b"content-type", b"").startswith(b"text/event-stream")


def _as_events(call: Call, reply: Reply) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A provider that does not stream has answered a call that wants events: without any, SDKs would see an empty answer.

    The reply itself stays as it is: others may read it, too.
    """
    if call.endpoint.tokens != "both" or not _is_json(reply):
        return reply.headers, reply.body
    headers = [header for header in reply.headers if header[0] not in (b"content-type", b"cache-control")]
    return [*headers, *EVENT_STREAM], _events_of(call, call.endpoint, reply)


def _is_json(reply: Reply) -> bool:
    return dict(reply.headers).get(b"content-type", b"").startswith(b"application/json")


def _events_of(call: Call | None, endpoint: Endpoint, reply: Reply) -> bytes:
    """A whole answer as the events that a streaming provider would have sent; where that cannot be told, one event."""
    events = None
    if reply.status == 200 and call is not None:
        events = as_stream(endpoint.name, reply.body, include_usage=wants_usage(call))
    return whole_as_events(endpoint, reply.status, reply.body) if events is None else events


class _Exchange:
    """One request on its connection: what has been learnt of it, and whether its answer has begun."""

    __slots__ = ("call", "connection", "cycle", "is_echo", "kept_alive", "request_id", "scope", "send", "started")

    def __init__(self, scope: Scope, send: Send) -> None:
        state = scope.get("state") or {}
        self.connection: Any = state.get("connection")
        self.cycle: Any = state.pop(
            "cycle", None
        )  # the cycle holds the scope: left there, only the collector could free both
        self.scope = scope
        self.send = send
        self.request_id = new_request_id()
        self.is_echo = False
        self.call: Call | None = None
        self.kept_alive = False
        """The head has gone out, with comments behind it."""
        self.started = False
        """What answers the request is on its way."""

    def identify(self, sent: str) -> None:
        """Take the client's own request id."""
        self.is_echo = True
        self.request_id = sent

    def awaits_body(self) -> bool:
        """Whether the client waits for `100 Continue`: it may send the body or not, so nothing can follow on its connection."""
        return self.cycle is not None and bool(self.cycle.waiting_for_100_continue)

    def comment(self, text: bytes) -> bool:
        """Send an SSE comment, behind the head if it is the first; False when there is nobody to send it to any more.

        A client that does not read gets no more of them: they would only pile up.
        """
        cycle = self.cycle
        if self.started or cycle.disconnected or cycle.transport.is_closing():
            return False
        comment = b": %b\n\n" % text
        if not self.kept_alive:
            self.kept_alive = True
            own_id = self.request_id.encode()
            headers = [*EVENT_STREAM, (b"x-gateway-request-id", own_id), (b"x-request-id", own_id)]
            begin_stream(cycle, headers, comment)
        elif cycle.transport.get_write_buffer_size() <= UNREAD_COMMENTS_BYTES:
            write_chunk(cycle, comment)
        return True

    def takes_interim(self) -> bool:
        """Whether the client may be sent one: a 1xx must not reach HTTP/1.0 (RFC 9110, 15.2)."""
        return self.cycle is not None and self.scope["http_version"] == "1.1"

    def interim(self, text: bytes) -> bool:
        """Send an interim response, and nothing of `text`; False when there is nobody to send it to any more."""
        cycle, call = self.cycle, self.call
        if self.started or call is None or cycle.disconnected or cycle.transport.is_closing():
            return False
        if cycle.transport.get_write_buffer_size() <= UNREAD_COMMENTS_BYTES:
            cycle.transport.write(INTERIM[call.model.holding.interim or 103])
        return True

    def abort(self) -> None:
        """Break the connection off, so that a body cut short cannot look complete."""
        if self.connection is not None:
            self.connection.transport.abort()
