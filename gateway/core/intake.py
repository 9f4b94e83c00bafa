"""Bytes to Call: who calls, what for, until when, and along which route; and who is being served right now.

    admit (headers: may it come in?) -> the body -> call (body: what does it ask for?)

First what may be stopped: one request in flight (`Serving`), the bytes of unfinished bodies, all requests in flight, and a
request on its HTTP connection; a request is stopped by cancelling its task with a reason, which the edge turns into an
answer or into silence. Then small bodies off the hot path, then fields that another parser may read differently, and last
the intake. Most requests bring none of the headers by which a call may ask for something of its own: of those nothing is
looked up but their route's plan. Every refusal of a request that is read to its end is raised here, in the order in which
checks are cheap.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal, cast

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from gateway.core import request_fields
from gateway.core.call import AWAITED, Call, CallRoute, Request
from gateway.core.clock import Clock
from gateway.core.errors import BodyTimeout, BodyTooLarge, Forbidden, GatewayOverloaded, InvalidRequest, ShuttingDown
from gateway.core.http.writing import AnyCycle, AsgiCycle, begin_stream, too_large, write_chunk
from gateway.core.ledger import note_left
from gateway.core.openai import headers as allow_lists
from gateway.core.openai.bodies import parts_in_steps
from gateway.core.openai.sse import comment_end, json_object
from gateway.core.openai.usage import other_model_field
from gateway.core.patience import (
    FEWEST_MOMENTS,
    FORGET_S,
    UNKNOWN_S,
    ClientName,
    ClientPatience,
    are_alike,
    client_of,
    patience_s,
)
from gateway.core.pipeline import Pipeline
from gateway.core.render import named_request, new_request_id
from gateway.core.request_fields import (
    METADATA,
    LargeBodies,
    Peeked,
    RoutePlan,
    RoutePlans,
    form_boundary,
    peek,
    plan_route,
)
from gateway.core.snapshot import Key, Policies
from gateway.core.types import Endpoint, Lane, Server, StreamedBody
from gateway.core.waiting import Shedding

if TYPE_CHECKING:
    from gateway.core.call import Call
    from gateway.core.request_fields import RoutePlan
    from gateway.core.snapshot import Key, Model, PolicySnapshot
    from gateway.core.types import Lane
    from gateway.core.websocket import SocketEnd

# --- who is being served right now, and how to stop them ---

StopReason = Literal["client_gone", "body_timeout", "no_room", "shutdown"]


class Serving:
    """One request being served."""

    __slots__ = ("call", "reading_until", "stopped", "task")

    is_connection = False
    """It is a connection that serves many requests, and wants to be looked after."""

    def __init__(self, task: asyncio.Task[None] | None) -> None:
        self.task = task
        self.stopped: StopReason | None = None
        self.call: Call | None = None
        """The call that came of the request, once it is one."""
        self.reading_until: float | None = None
        """While its body is being read: when that has to be done."""

    def stop(self, reason: StopReason) -> None:
        """Cancel the request, with the reason as the message of its CancelledError; the first reason counts."""
        if self.stopped is None and self.task is not None:
            self.stopped = reason
            self.task.cancel(reason)

    def look_after(self, now: float, *, is_draining: bool) -> None:
        """What a connection does about once a second."""

    @property
    def payer(self) -> str:
        """Whose unfinished bodies are counted together."""
        return ""

    def client_gone(self) -> None:
        """What the connection calls when it is lost: nobody waits any more, unless others do."""
        if self.call is not None and AWAITED.find(self.call):
            note_left(self.call)
        else:
            self.stop("client_gone")


class UnfinishedMessage(Serving):
    """What has come of a message on a WebSocket whose end has not, as those who stop slow and large bodies see it.

    So is a body that a route of ASGI reads.
    """

    __slots__ = ("_close", "_payer", "bytes")

    def __init__(self, payer: str, close: Callable[[StopReason], object]) -> None:
        """`close` ends the connection, or the reading."""
        super().__init__(None)
        self.bytes = 0
        self._payer = payer
        self._close = close

    @property
    def payer(self) -> str:
        return self._payer

    def stop(self, reason: StopReason) -> None:
        if self.stopped is None:
            self.stopped = reason
            self._close(reason)


class UnfinishedBodies:
    """The bytes of all bodies of which more is awaited.

    Invariant: they are within the bound that is given, but for those of a lone reader.
    """

    __slots__ = ("_readers", "bytes")

    def __init__(self) -> None:
        self._readers: dict[Serving, int] = {}  # the oldest first
        self.bytes = 0

    def count(self, reader: Serving, most: int, size: int) -> None:
        """Count what has come for a reader. Beyond `most` in all, the newest readers of whoever has the most are stopped."""
        self._readers[reader] = self._readers.get(reader, 0) + size
        self.bytes += size
        while self.bytes > most and len(self._readers) > 1:
            of_payers: dict[str, int] = {}
            for each, waiting in self._readers.items():
                of_payers[each.payer] = of_payers.get(each.payer, 0) + waiting
            largest = max(of_payers, key=of_payers.__getitem__)
            newest = next(each for each in reversed(self._readers) if each.payer == largest)
            # A stopped reader ends only later, and the loop needs its bytes out of the count now.
            self.end(newest)
            newest.stop("no_room")

    def end(self, reader: Serving) -> None:
        """No more of this body is awaited."""
        self.bytes -= self._readers.pop(reader, 0)


class InFlight:
    """All requests being served."""

    __slots__ = ("bodies", "draining", "leaving", "serving")

    def __init__(self) -> None:
        self.bodies = UnfinishedBodies()
        self.serving: set[Serving] = set()
        """Who is being served: the edge adds each request, and takes it out when it is answered or its client is gone."""
        self.leaving = False
        """The process will soon be gone, and is ready no more: who deals out connections has to hear of it first."""
        self.draining = False
        """The process is on its way out: no new calls."""

    def __len__(self) -> int:
        return len(self.serving)

    def present(self) -> frozenset[Serving]:
        """Those being served at this moment; may be asked from any thread."""
        return frozenset(self.serving)

    def message_came(self, message: UnfinishedMessage, size: int, most: int, ends_at: float) -> None:
        """So much has come of a message; 0: it has ended. It may take until `ends_at`, once it is too large to be small."""
        if not size:
            message.bytes, message.reading_until = 0, None
            self.serving.discard(message)
            self.bodies.end(message)
        elif message.stopped is None:
            self.serving.add(message)
            message.reading_until = message.reading_until or ends_at
            # `size` is of all that has come of the message, and the bodies count only what is new.
            size, message.bytes = size - message.bytes, size
            self.bodies.count(message, most, size)

    def sweep(self, now: float) -> None:
        """Stop requests whose body takes too long, and look after connections of many; called about once a second."""
        for serving in [one for one in self.serving if one.reading_until is not None and one.reading_until < now]:
            serving.stop("body_timeout")
        for connection in [one for one in self.serving if one.is_connection]:
            connection.look_after(now, is_draining=self.draining)

    def abort(self) -> None:
        """The grace is over: stop everybody; streams end with an error event."""
        for serving in list(self.serving):
            serving.stop("shutdown")


EVENT_STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
INTERIM = {102: b"HTTP/1.1 102 Processing\r\n\r\n", 103: b"HTTP/1.1 103 Early Hints\r\n\r\n"}
UNREAD_COMMENTS_BYTES = 256
"""The bytes that may wait for a client to read them before it gets another comment: a few comments."""


class ServedRequest(Serving):
    """One request on its connection."""

    __slots__ = (
        "credential",
        "cycle",
        "has_options",
        "is_echo",
        "kept_alive",
        "key",
        "lane",
        "plan",
        "policy",
        "request_id",
        "started",
    )

    # Known once the caller is, and the last of them once the body is read.
    policy: PolicySnapshot
    key: Key
    credential: bytes | None
    lane: Lane
    has_options: bool
    """Some header asks for what calls do without as a rule."""
    plan: RoutePlan

    def __init__(self, cycle: AnyCycle) -> None:
        self.task = cycle.task
        self.stopped = self.call = self.reading_until = None
        self.cycle = cycle
        self.request_id = new_request_id()
        self.is_echo = False
        self.kept_alive = False
        """The head has gone out, with comments behind it."""
        self.started = False
        """The answer to the request is on its way."""

    @property
    def payer(self) -> str:
        return self.key.tenant

    def identify(self, sent: str) -> None:
        """Take the client's own request id."""
        self.is_echo = True
        self.request_id = sent

    def comment(self, text: bytes) -> bool:
        """Send an SSE comment, behind the head if it is the first; False when there is nobody to send it to any more.

        A client that does not read gets no more of them: they would only pile up.
        """
        cycle = self.cycle
        if self.started or cycle.disconnected or cycle.transport.is_closing():
            return False
        comment = b": %b%b" % (text, comment_end(cycle.index))
        if not self.kept_alive:
            self.kept_alive = True
            self.note_begun()
            own_id = self.request_id.encode()
            headers = [*EVENT_STREAM, (b"x-gateway-request-id", own_id), (b"x-request-id", own_id)]
            named_request(cycle.endpoint.shape, headers)
            begin_stream(cycle, headers, comment)
        elif cycle.transport.get_write_buffer_size() <= UNREAD_COMMENTS_BYTES:
            write_chunk(cycle, comment)
        return True

    def note_begun(self) -> None:
        """Notes that the head of the answer has gone out, if there is a call by now."""
        if self.call is not None:
            self.call.is_begun = True

    def interim(self, _text: bytes) -> bool:
        """Send an interim response; False when there is nobody to send it to any more."""
        cycle, call = self.cycle, self.call
        if self.started or call is None or cycle.disconnected or cycle.transport.is_closing():
            return False
        if cycle.transport.get_write_buffer_size() <= UNREAD_COMMENTS_BYTES:
            cycle.transport.write(INTERIM[call.route.model.holding.interim or 103])
        return True

    def abort(self) -> None:
        """Break the connection off, so that a body cut short cannot look complete."""
        self.cycle.transport.abort()


# --- small bodies, off the hot path: read whole, as JSON objects, within the time that bodies have ---


async def read_object(request: HttpRequest, server: Server, most: int, example: str) -> dict[str, Any]:
    """Returns the JSON object in the body, of at most so many bytes. Raises InvalidRequest, BodyTooLarge, BodyTimeout."""
    return object_of(await read_bytes(request, server, most), example)


def object_of(body: bytes, example: str) -> dict[str, Any]:
    """Returns the JSON object in a body. Raises InvalidRequest."""
    parsed = json_object(body)
    if parsed is None:
        raise InvalidRequest(f"The body must be a JSON object, such as {example}.", code="invalid_json")
    return parsed


async def read_bytes(
    request: HttpRequest, server: Server, most: int, count: Callable[[int], None] | None = None
) -> bytes:
    """Returns the body, of at most so many bytes; `count` is called with the size of each part that comes.

    Raises InvalidRequest, BodyTooLarge, BodyTimeout.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(server.body_timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise BodyTooLarge(f"The body is over the {most} bytes that are read here.")
                if count is not None:
                    count(len(part))
    except ClientDisconnect:
        raise InvalidRequest("The body has ended early.") from None
    except TimeoutError:
        raise BodyTimeout("The request body did not arrive in time; send it faster or smaller.") from None
    return bytes(body)


def refuse_unknown(fields: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises InvalidRequest for a field that is not known: it may be a misspelt one, and more would be meant without it."""
    for name in fields:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(known)}."
            raise InvalidRequest(f"Unknown field '{name[:200]}'; {hint}", param=name[:200], code="unknown_field")


# --- what another parser may read differently ---


_EXTENDED_NAME = re.compile(rb";\s*name\*", re.IGNORECASE)


def refuse_other_readings(
    key: Key, endpoint: Endpoint, fields: Iterable[str], body: bytes, index: dict[bytes, bytes]
) -> None:
    """Raises Forbidden where the body names a model in a way that only some providers read.

    `fields` are the names at the top of a JSON body; those of a form are read here. Providers differ in how they read a
    request: some take field names in any case (Go), some have fields of their own that choose a model (OpenRouter's
    `models` and `provider`), some take a form's `name*=` (RFC 5987, 3.2), and Anthropic's advisor, a tool, is a model by
    itself. A key that may use some models only must not name one that we do not see; whoever may use every model gains
    nothing by it, so other keys are not checked.
    """
    if endpoint.request == "multipart":
        names: list[str] = []
        end = 0
        for part in parts_in_steps(body, form_boundary(index.get(b"content-type", b""))):
            if part is None:  # a step of the walk, and no part
                continue
            name, start, stop = part
            if _EXTENDED_NAME.search(body, end, start):
                _refuse(key, "name*")
            names.append(name)
            end = stop
        fields = names
    other = None
    if endpoint.names_model is not None and isinstance(fields, Mapping):
        other = endpoint.names_model(fields, body)
    other = other or other_model_field(fields)
    if other is not None:
        _refuse(key, other)


def _refuse(key: Key, name: str) -> None:
    raise Forbidden(
        f"The key '{key.name}' may use some models only, and by the field '{name}' a provider may choose another; leave it "
        "out, and name the model in 'model'.",
        param=name,
        code="field_not_allowed",
    )


# --- the intake ---

_USER_AGENT = b"user-agent"
MOST_VARIANTS = 64
"""The most combinations of options of which a route remembers the hooks: clients choose them, and there are very many."""
log = logging.getLogger("gateway.intake")
TRY_LATER, RESTART, POLICY = 1013, 1012, 1008
"""Why a WebSocket is closed (IANA's WebSocket Close Code Number Registry)."""
_MESSAGE_STOPPED: Mapping[StopReason, tuple[int, str]] = {
    "no_room": (TRY_LATER, "The gateway has no room for more unfinished messages; connect again later."),
    "body_timeout": (POLICY, "The message did not arrive in time; send it faster or smaller."),
}


class Intake:
    """Makes calls of requests. One per process."""

    __slots__ = (
        "_account",
        "_clock",
        "_forwarded",
        "_inflight",
        "_known_options",
        "_learned_until",
        "_options",
        "_overload",
        "_passed_through",
        "_pipeline",
        "_plans",
        "_policies",
        "large_bodies",
        "patience",
    )

    def __init__(
        self, policies: Policies, clock: Clock, inflight: InFlight, overload: Shedding, pipeline: Pipeline
    ) -> None:
        """`pipeline` compiles the hooks of routes."""
        self._pipeline = pipeline
        self._policies = policies
        self._clock = clock
        self._inflight = inflight
        self._overload = overload
        self._plans = RoutePlans(policies.current)
        self.large_bodies = LargeBodies()
        self.patience = ClientPatience()
        self._learned_until = 0.0
        """When the last client is forgotten that was seen to hang up soon; 0.0: there is none."""
        self._known_options = request_fields.OPTIONS | pipeline.options
        self._options = self._known_options
        self._forwarded = allow_lists.request_headers()
        self._passed_through = allow_lists.passthrough_request_headers()
        self._account = allow_lists.account_headers()

    def take(self, served: ServedRequest) -> Call | None:
        """The call, where its body is here already, and small; None: `wait` has to follow. Raises GatewayError."""
        self.admit(served)
        cycle = served.cycle
        body = cycle.first
        size = len(body)
        server = served.policy.server
        # More is to come, several pieces have come, or nobody is there: whoever waits for the body finds out which.
        if cycle.more_body or cycle.rest is not None or cycle.waiting_for_100_continue or cycle.disconnected:
            return None
        if size > server.small_body_bytes or cycle.waiter is not None:
            return None
        cycle.first = b""
        return self._call(served, body, peek(cycle.endpoint, body, cycle.index))

    async def wait(self, served: ServedRequest) -> Call:
        """The call of a request that `take` has let in. Raises GatewayError, ClientGone."""
        cycle, policy = served.cycle, served.policy
        streamed = self._streamed(served) if isinstance(cycle, AsgiCycle) and cycle.endpoint.request == "any" else None
        if streamed is not None:
            return self._call(served, streamed, Peeked(""))
        limit = policy.server.most_bytes(cycle.endpoint)
        announced = cycle.index.get(b"content-length", b"0")
        # A length of any number of digits is a number; one of more than 18 is too long without being read.
        if announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
            raise too_large(limit)
        served.reading_until = self._clock.monotonic() + policy.server.body_timeout_s
        bodies = self._inflight.bodies
        try:
            body = await cycle.read_body(limit, partial(bodies.count, served, self._overload.body_bytes(policy.queue)))
        finally:
            bodies.end(served)
        served.reading_until = None
        if cycle.endpoint.request == "any":
            peeked = Peeked("")
        elif len(body) <= policy.server.small_body_bytes:
            peeked = peek(cycle.endpoint, body, cycle.index)
        else:
            peeked = await self.large_bodies.peek(cycle.endpoint, body, cycle.index, policy.server.max_json_values)
        return self._call(served, body, peeked)

    def watch_messages(self, payer: str, end: SocketEnd) -> None:
        """Counts what comes of a message on a WebSocket until it ends, as of a body, within the same time."""

        def close(reason: StopReason) -> None:
            end.cut_off(*_MESSAGE_STOPPED.get(reason, (RESTART, "The gateway is restarting; connect again.")))

        def came(size: int) -> None:
            policy = self._policies.current
            ends_at = self._clock.monotonic() + policy.server.body_timeout_s
            self._inflight.message_came(message, size, self._overload.body_bytes(policy.queue), ends_at)

        message = UnfinishedMessage(payer, close)
        end.watch_unfinished(came)

    async def read_counted(self, request: HttpRequest, payer: str, lane: Lane) -> bytes:
        """Returns the body of a request that is no call of its own, bounded together with those of calls.

        Raises as `read_bytes` does, and GatewayOverloaded.
        """
        task, policy, bodies = (
            cast("asyncio.Task[Any]", asyncio.current_task()),
            self._policies.current,
            self._inflight.bodies,
        )
        reader = UnfinishedMessage(payer, task.cancel)
        count = partial(bodies.count, reader, self._overload.body_bytes(policy.queue))
        try:
            body = await read_bytes(request, policy.server, policy.server.most_bytes(), count)
            if reader.stopped is not None:
                await asyncio.sleep(0)  # its own last part was too much: the cancellation comes here
        except asyncio.CancelledError:
            if reader.stopped is None:
                # The cancellation is not for want of room, and belongs to whoever sent it.
                raise
            task.uncancel()
            raise self.without_room(lane) from None
        finally:
            bodies.end(reader)
        return body

    def without_room(self, lane: Lane) -> GatewayOverloaded:
        """Why a body was read no further."""
        error = self._overload.refusal(lane)
        error.message = "The gateway has no room for more unfinished bodies; send fewer at once, or again later."
        return error

    def _streamed(self, served: ServedRequest) -> StreamedBody | None:
        """Returns the body of a relayed request that nobody has to read; None: it is read, or too long."""
        cycle, server = served.cycle, served.policy.server
        announced = cycle.index.get(b"content-length", b"")
        length = int(announced) if announced.isdigit() and len(announced) < 18 else 0
        most = server.max_body_bytes or request_fields.MOST_STREAMED_BYTES
        if not isinstance(cycle, AsgiCycle) or not request_fields.STREAMED_FROM_BYTES < length <= most:
            return None
        path, kind = request_fields.passthrough_path(cycle.scope), cycle.index.get(b"content-type", b"")
        if not request_fields.is_streamed(served.policy, path, kind):
            return None
        return StreamedBody(length, self._timed(served, cycle.pieces(), server.body_timeout_s))

    async def _timed(
        self, served: ServedRequest, pieces: AsyncIterator[bytes], timeout_s: float
    ) -> AsyncIterator[bytes]:
        """Yields the pieces; the client may take `timeout_s` for each, and the provider what its own clocks allow."""
        while True:
            served.reading_until = self._clock.monotonic() + timeout_s
            try:
                piece = await anext(pieces, None)
            finally:
                # While the provider takes the piece, the client's time must not run.
                served.reading_until = None
            if piece is None:
                return
            yield piece

    def without_body(self, served: ServedRequest, peeked: Peeked) -> Call:
        """The call of a request that was admitted, and says all in its head. Raises GatewayError."""
        return self._call(served, b"", peeked)

    def admit(self, served: ServedRequest) -> None:
        """Find out who calls, by the headers alone, and whether the gateway takes the call now. Raises GatewayError."""
        policy = served.policy = self._policies.current
        cycle = served.cycle
        index = cycle.index
        served.has_options = has_options = not self._options.isdisjoint(index)
        # The index holds one of each name, so it is shorter where a header came twice.
        if len(index) != len(cycle.headers):
            request_fields.refuse_doubles(cycle.headers)
            request_fields.join_lists(index, cycle.headers)
        if has_options:
            # Before the checks below, whose refusals name the client's own id.
            sent_id = request_fields.request_id(index)
            if sent_id is not None:
                served.identify(sent_id)
        if self._inflight.draining:
            raise ShuttingDown("The gateway is shutting down and takes no new calls.")
        key, served.credential = request_fields.authenticate(policy, index)
        lane = key.lane
        if has_options:
            request_fields.refuse_encoded(index)
            lane = request_fields.choose_lane(key, index)
        if self._overload.level and self._overload.sheds(lane):
            raise self._overload.refusal(lane)
        served.key, served.lane = key, lane

    def _call(self, served: ServedRequest, body: bytes, peeked: Peeked) -> Call:
        """The call that a request makes. Raises GatewayError."""
        cycle, policy, key, credential = served.cycle, served.policy, served.key, served.credential
        index, headers, endpoint = cycle.index, cycle.headers, cycle.endpoint
        now = self._clock.monotonic()
        plans = self._plans
        # From a reload on, the plans of the new policy are kept; calls under way have others.
        if plans.policy is not policy:
            plans = RoutePlans(policy)
            if policy is self._policies.current:
                self._plans = plans
        plan = plans.get((key.digest, peeked.model, endpoint.name, credential is not None))
        if plan is None:
            plan = self._find_plan(served, plans, peeked.model)
        served.plan = plan
        route = plan.route
        # A call without a model that is passed through: nothing of its body counts here.
        if route.endpoint is not endpoint:
            endpoint, peeked = route.endpoint, Peeked("")
        if plan.is_restricted and endpoint.request != "any":  # a provider may read another model than we do
            refuse_other_readings(key, endpoint, peeked.parsed or (), body, index)
        tenant, deadline, is_callers = plan.tenant, now + plan.deadline_s, False
        if served.has_options:
            tenant = request_fields.choose_tenant(key, index)
            deadline, is_callers = request_fields.deadline(policy, plan, served.lane, index, now)
            if not is_callers and self._learned_until:  # some client was seen to hang up soon: perhaps this one
                deadline = min(deadline, now + self._patience_s(plan, key, index, now))
        if endpoint.request == "any":
            forwarded = self._passed_through.keep(headers)
        else:
            forwarded = self._forwarded.keep(headers)
            if endpoint.request == "json" and b"json" not in index.get(b"content-type", b""):
                forwarded = request_fields.as_json(forwarded)
        if plan.passes_account:
            forwarded += self._account.keep(headers)
        # By position, in the order of the fields: keywords would cost something on each call.
        request = Request(
            served.request_id,
            endpoint,
            peeked.model,
            body,
            peeked.stream,
            peeked.stream_options,
            peeked.model_span,
            forwarded,
            credential,
            served.lane,
            now,
            deadline,
            is_callers,
            cycle.method,
            endpoint.path or request_fields.passthrough_path(cycle.scope),
            cycle.query,
            served.is_echo,
            tenant,
            peeked.max_tokens,
            peeked.thinks,
            peeked.large,
        )
        asks_by_metadata = peeked.metadata is not None
        if served.has_options or asks_by_metadata:
            requested = self._pipeline.options.intersection(index)
            if asks_by_metadata:
                requested |= {METADATA}
            if requested:
                route = self._route_for(plan, requested)
        served.call = call = Call(request, route, peeked.parsed, None, served.task)
        if served.has_options and b"x-gateway-strict" in index:
            # From here on a refusal is one of a call.
            route = replace(route, model=request_fields.strictly(route.model, index))
            call.change_route(route)
        hooks = route.hooks
        if hooks is not None:
            for read in hooks.read:
                read(call, index)
        return call

    def hung_up(self, served: ServedRequest) -> None:
        """Learns how long a client waits that has left before its answer began, if nothing else says so."""
        call, index = served.call, served.cycle.index
        # A caller who names a deadline has made its patience known.
        if call is None or call.left or served.started or call.request.deadline_is_callers:
            return
        if not request_fields.is_unknown_client(served.plan, index):
            return
        now, client = self._clock.monotonic(), client_of(call.route.key.name, index.get(_USER_AGENT, b""))
        seen = self.patience.hung_up(client, now - call.request.received_at, now)
        if seen is None or seen.at < now or patience_s(seen, now) >= UNKNOWN_S:
            return
        if self._has_patient_call(client, seen.wait_s, now):
            # One of its calls waits for longer, so what was seen is no limit of the client's.
            self.patience.forget(client)
            return
        if seen.moments == FEWEST_MOMENTS:
            log.info("calls of %s with user agent %r wait %.1f s: it hangs up then", *client, seen.wait_s)
        self._learned_until = now + FORGET_S
        # From now on a user agent, too, takes a call off the short way through `_call`.
        self._options = self._known_options | {_USER_AGENT}

    def _has_patient_call(self, client: ClientName, wait_s: float, now: float) -> bool:
        """Returns whether a call of the client has waited for longer, and does so still."""
        return any(
            isinstance(one, ServedRequest)
            and (call := one.call) is not None
            and call.route.key.name == client.key
            and now - call.request.received_at > wait_s
            and not are_alike(now - call.request.received_at, wait_s)
            and client_of(call.route.key.name, one.cycle.index.get(_USER_AGENT, b"")) == client
            for one in self._inflight.serving
        )

    def _patience_s(self, plan: RoutePlan, key: Key, index: dict[bytes, bytes], now: float) -> float:
        """Returns for how many seconds a call waits whose client may have been seen to hang up; inf: it is not known."""
        if now >= self._learned_until:
            # No client is remembered any more: the short way is open to all again.
            self._learned_until, self._options = 0.0, self._known_options
        if not request_fields.is_unknown_client(plan, index):
            return inf
        return self.patience.of(client_of(key.name, index.get(_USER_AGENT, b"")), now)

    def _route_for(self, plan: RoutePlan, requested: frozenset[bytes]) -> CallRoute:
        """Returns the route of calls that want these options; compiled once."""
        route = plan.variants.get(requested)
        if route is None:
            if len(plan.variants) >= MOST_VARIANTS:
                plan.variants.clear()
            route = plan.variants[requested] = self._pipeline.compiled(plan.route, requested)
        return route

    def _find_plan(self, served: ServedRequest, plans: RoutePlans, name: str) -> RoutePlan:
        """The plan of a route that has none yet. Raises NotFound or Forbidden."""
        policy, key, endpoint = served.policy, served.key, served.cycle.endpoint
        is_callers = served.credential is not None
        if endpoint.request != "any" and name:
            model = request_fields.find_model(policy, key, name)
            plan = self._plan(policy, key, model, endpoint, is_callers=is_callers)
            plans.remember((key.digest, name, endpoint.name, is_callers), plan)
            return plan
        scope = served.cycle.scope
        unnamed = None
        if endpoint.request != "any":
            unnamed = request_fields.unnamed_model(policy, key)
            # what nobody has named has no price
            request_fields.refuse_unpriced(key, request_fields.OTHER, scope["method"], endpoint.path)
        if unnamed is None:
            endpoint, unnamed = request_fields.OTHER, request_fields.relayed_by(policy, key, scope)
        return self._plan(policy, key, unnamed, endpoint, is_callers=is_callers)

    def _plan(
        self, policy: PolicySnapshot, key: Key, model: Model, endpoint: Endpoint, *, is_callers: bool
    ) -> RoutePlan:
        plan = plan_route(policy, key, model, endpoint, is_callers=is_callers)
        return replace(plan, route=self._pipeline.compiled(plan.route, frozenset()))
