"""`GET /v1/responses` as a WebSocket: each `response.create` on it is served as a POST of its body would be.

    handshake -> the caller's key -> 101; then
    a frame -> the event, read in outline -> its lane's queue -> a turn: the call, at any target -> the frames of its events

So no provider needs WebSockets for it. In this order: the endpoint; a connection, which knows not how a turn is served; one
turn; and the conversations that connections remember. Invariants: a lane has one turn at a time, in the order of its events;
when the client is gone nothing of it goes on, and nothing is sent any more; whoever has to end it does so behind the turns that
are under way. No exception leaves this file.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from random import getrandbits
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.call import Call, Reply
from gateway.core.clock import Clock
from gateway.core.edge import Edge, events_of
from gateway.core.errors import (
    BudgetExceeded,
    CallerFault,
    GatewayError,
    InternalError,
    InvalidRequest,
    ShuttingDown,
    Unauthorised,
    drop_frames,
)
from gateway.core.http.writing import AnyCycle, Cycle
from gateway.core.intake import InFlight, ServedRequest, Serving, StopReason
from gateway.core.ledger import answer_headers
from gateway.core.metrics import Levels, MetricTable
from gateway.core.openai.json_edit import Outline
from gateway.core.openai.sse import error_in, json_object, response_failed
from gateway.core.ports import Meter
from gateway.core.relay import StreamBroken
from gateway.core.render import error_headers, error_object, unreadable
from gateway.core.snapshot import Policies
from gateway.core.types import Endpoint, RawHeaders, Socket
from gateway.features.outcome import is_stream
from gateway.products.jobs.model import RESPONSE, is_ours
from gateway.products.realtime.http import Offered, accept_of, offered_by, refuse, switch
from gateway.products.realtime.service import GOING_AWAY, MAX_SESSION_S, POLICY, RESTART, TEXT, Pulse, short_reason
from gateway.products.responses.keeping import is_stateless, keeping_of
from gateway.products.responses.service import is_converted
from gateway.products.responses.socket_turns import (
    ERROR,
    FINAL,
    KEPT,
    STEER,
    EventFrames,
    OverlongEvent,
    TurnRequest,
    error_frame,
    lane_of,
    read_turn,
    steer_failed,
    turn_body,
    warm_response,
    with_fields,
    with_output,
)

log = logging.getLogger("gateway.edge")
PATHS = ("/v1/responses", "/responses")
_OF_HANDSHAKE = tuple(b"upgrade connection content- transfer-encoding expect x-request-id".split())
"""The beginnings of headers that no turn has, besides those of WebSockets."""
_OF_ONE_CALL = (b"idempotency-key", b"x-gateway-step", b"x-gateway-step-on-change", b"prefer")
_JSON_TYPE = (b"content-type", b"application/json")


class ResponseSocketMetrics(MetricTable):
    """The metric of connections."""

    after = "estimated_usage_total"

    def __init__(self) -> None:
        self.response_sockets = Levels("responses_websockets", "WebSockets of Responses that are open.")

    def set_open(self, number: int) -> None:
        """Sets how many are open."""
        self.response_sockets.values[()] = number


class ResponseSocketDoor:
    """Opens connections of Responses. One per process."""

    def __init__(
        self, edge: Edge, endpoint: Endpoint, policies: Policies, meter: Meter, clock: Clock, inflight: InFlight
    ) -> None:
        """`endpoint` is that of Responses."""
        self._edge = edge
        self._endpoint = endpoint
        self._policies = policies
        self._meter = meter
        self._clock = clock
        self._inflight = inflight
        self.memory = ConversationMemory()

    async def __call__(self, scope: Any, _receive: Any, _send: Any) -> None:
        """As an ASGI application, for requests that came by way of one of our own connections."""
        cycle: AnyCycle = scope["state"].pop("cycle")
        cycle.endpoint, cycle.task = self._endpoint, asyncio.current_task()
        served = ServedRequest(cycle)
        try:
            offered = offered_by(cycle)
            self._edge.intake.admit(served)
            accept = accept_of(cycle)
            _refuse_headers_of_calls(cycle)
            self._open(served, accept, offered)
        except GatewayError as error:
            await refuse(served, error, self._meter, self._clock)
        except Exception:
            log.exception("defect while serving %s", served.request_id)
            await refuse(served, InternalError(), self._meter, self._clock)
        finally:
            if not cycle.response_complete and not cycle.disconnected:
                cycle.transport.close()

    def _open(self, served: ServedRequest, accept: bytes, offered: Offered) -> None:
        cycle = served.cycle
        end = switch(cycle, accept, offered.others, [(b"x-request-id", served.request_id.encode())])
        if end is None:
            return
        self._edge.intake.watch_messages(served.key.tenant, end)
        index = {name: value for name, value in cycle.index.items() if _is_for_turns(name)}
        headers = [header for header in cycle.headers if _is_for_turns(header[0])]
        named = [*_account_headers(offered), _JSON_TYPE]
        caller = _Caller([*headers, *named], {**index, **dict(named)}, served.key.digest)
        loop, tasks = asyncio.get_running_loop(), cycle.connection.tasks

        def spawn(work: Any) -> None:
            task = loop.create_task(work)
            tasks.add(task)  # whoever stops the server waits for them
            task.add_done_callback(tasks.discard)

        connection = ResponseConnection(
            end,
            self._clock.monotonic(),
            self._outline,
            lambda connection, turn: self._serve(connection, caller, turn),
            spawn,
            lambda: self._is_allowed(caller),
            self._forget,
        )
        self._inflight.serving.add(connection)
        connection.begin()

    async def _outline(self, data: bytes) -> Outline:
        server = self._policies.current.server
        return await self._edge.intake.large_bodies.outline(data, server.max_json_values)

    def _is_allowed(self, caller: _Caller) -> bool:
        keys = self._policies.current.keys
        return not keys or caller.digest in keys

    def _forget(self, connection: ResponseConnection) -> None:
        self._inflight.serving.discard(connection)
        self.memory.forget(id(connection))

    async def _serve(self, connection: ResponseConnection, caller: _Caller, waiting: WaitingTurn) -> None:
        """Serves a turn, whatever becomes of it."""
        cycle = TurnCycle(self._endpoint, caller.headers, dict(caller.index))
        cycle.task = asyncio.current_task()
        turn = SocketTurn(cycle, waiting.request.lane, connection.send)
        connection.turns.add(turn)
        self._inflight.serving.add(turn)
        try:
            await self._answer(connection, turn, waiting)
        except GatewayError as error:
            if isinstance(error, InternalError):
                log.exception("defect while serving %s", turn.request_id, exc_info=error.__cause__ or error)
            drop_frames(error)
            self._refuse(connection, turn, error)
        except StreamBroken:
            self._refuse(connection, turn, InternalError())
        except asyncio.CancelledError:
            if turn.stopped is None and (turn.call is None or not turn.call.left):
                raise
            if turn.task is not None and turn.stopped is not None:
                turn.task.uncancel()
            if turn.stopped == "shutdown":
                late = ShuttingDown("The gateway is shutting down and the response could not be finished.")
                self._refuse(connection, turn, late)
        except Exception:
            log.exception("defect while serving %s", turn.request_id)
            self._refuse(connection, turn, InternalError())
        finally:
            # It has failed: no turn goes on from there, as at OpenAI ("If a turn fails (4xx or 5xx), the service evicts the
            # referenced previous_response_id from the connection-local cache": developers.openai.com, WebSocket mode).
            if turn.response is None and waiting.request.generates:
                self.memory.drop(id(connection), waiting.request.previous_id)
            connection.turns.discard(turn)
            self._inflight.serving.discard(turn)

    async def _answer(self, connection: ResponseConnection, turn: SocketTurn, waiting: WaitingTurn) -> None:
        wanted, owner = waiting.request, id(connection)
        before = self.memory.find(owner, wanted.previous_id) if wanted.previous_id else None
        turn.cycle.first, items = turn_body(waiting.data, waiting.outline, before)
        if not wanted.generates:
            # its input is known to the turns behind it; no provider is asked
            intake = self._edge.intake
            call = intake.take(turn) or await intake.wait(turn)
            response_id = f"resp_warm_{getrandbits(128):032x}"
            if not connection.is_over:
                self.memory.remember(owner, response_id, items)
            for event in warm_response(response_id, self._clock.wall(), call.request.model_name, wanted.previous_id):
                turn.send(orjson.dumps(event))
            return
        reply = await self._edge.answer(turn)
        if turn.call is None:
            raise InternalError
        await turn.give(turn.call, reply, connection.drain)
        response = turn.response
        if response is not None and not connection.is_over and _is_nobodys(turn, wanted, response):
            self.memory.remember(owner, str(response.get("id")), with_output(items, response))

    def _refuse(self, connection: ResponseConnection, turn: SocketTurn, error: GatewayError) -> None:
        call = turn.call
        if call is None or not call.settled:  # nothing else counts it: it never came to the pipeline
            self._meter.refused(turn.request_id, PATHS[0], error.status, error.code)
        trail: RawHeaders = [(b"x-request-id", turn.request_id.encode())]
        if call is not None:
            trail = answer_headers(call, self._clock.monotonic())
        turn.refuse(error, trail)
        if isinstance(error, BudgetExceeded | Unauthorised):
            connection.end(POLICY, error.message)


class _Caller:
    """Who has opened a connection: what its handshake says for each turn."""

    __slots__ = ("digest", "headers", "index")

    def __init__(self, headers: RawHeaders, index: dict[bytes, bytes], digest: bytes) -> None:
        self.headers = headers
        self.index = index
        self.digest = digest


def _refuse_headers_of_calls(cycle: AnyCycle) -> None:
    """Raises InvalidRequest for a header that is about one call: a connection has many."""
    name = next((name for name in _OF_ONE_CALL if name in cycle.index), None)
    if name is not None:
        raise InvalidRequest(
            f"The header '{name.decode()}' is about one call, and a WebSocket has many; POST the call, or leave it out.",
            param=name.decode(),
            code="invalid_handshake",
        )


def _is_for_turns(name: bytes) -> bool:
    return not name.startswith(_OF_HANDSHAKE) and b"websocket" not in name


def _account_headers(offered: Offered) -> list[tuple[bytes, bytes]]:
    """What browsers can only say by subprotocols, as the headers that it stands for."""
    parts = [offer.partition(b".") for offer in offered.account]
    return [(name, value) for name, _, value in parts]


def _is_nobodys(turn: SocketTurn, wanted: TurnRequest, response: dict[str, Any]) -> bool:
    """Whether nobody keeps a response, so that no request could go on from it unless its connection remembers."""
    call = turn.call
    if call is None or is_ours(RESPONSE, str(response.get("id"))):
        return False
    keeping = keeping_of(call.route.policy, call.route.key, call.route.model, call.request.endpoint)
    is_providers = keeping in (None, "provider") and len(call.route.model.plan) == 1
    is_providers = is_providers and not is_converted(call) and not is_stateless(call.route.model)
    return wanted.stores is False or not is_providers


# --- a connection: its lanes, and the events that wait in them ---

BINARY, CONTINUATION = 2, 0
NOT_TEXT = 1003
MOST_LANES = 16
MOST_WAITING_BYTES = 1024 * 1024
MOST_WAITING = 64
"""The events that wait for their turn; above, nothing more is read of the client."""


class TooManyStreams(CallerFault):
    """The connection has as many streams at work as it may."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_streams"


class ConnectionExpired(CallerFault):
    """The connection has had its hour: in OpenAI's words."""

    code = "websocket_connection_limit_reached"


class WaitingTurn(NamedTuple):
    """An event whose turn has not come."""

    data: bytes
    outline: Outline
    request: TurnRequest


class WaitingRefusal(NamedTuple):
    """An error about an event, to be sent in its turn: before it the client would take it for another turn's."""

    data: bytes
    error: GatewayError


class Ending(NamedTuple):
    """How the connection is to end."""

    code: int
    reason: str
    refusal: GatewayError | None = None
    """The refusal of those who ask for more, and at the end; None: turns are refused by others, or have been refused."""


def too_many_streams() -> TooManyStreams:
    return TooManyStreams(
        f"The connection has {MOST_LANES} streams at work; wait for one, or open another connection.", param="stream_id"
    )


class ResponseConnection(Serving):
    """One connection, from its handshake to its end."""

    __slots__ = (
        "_ending",
        "_forget",
        "_incoming",
        "_is_allowed",
        "_is_over",
        "_is_reading",
        "_is_refused",
        "_lanes",
        "_outline",
        "_parts",
        "_pulse",
        "_room",
        "_serve",
        "_spawn",
        "_waiting",
        "_waiting_bytes",
        "client",
        "ends_at",
        "turns",
    )

    is_connection = True

    def __init__(
        self,
        client: Socket,
        now: float,
        outline: Callable[[bytes], Awaitable[Outline]],
        serve: Callable[[ResponseConnection, WaitingTurn], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        is_allowed: Callable[[], bool],
        forget: Callable[[ResponseConnection], None],
    ) -> None:
        """`serve` serves a turn and raises nothing; `is_allowed`: the key still is one; `forget` is called at the end."""
        super().__init__(None)
        self.client = client
        self.ends_at = now + MAX_SESSION_S
        self.turns: set[Serving] = set()
        """Those under way."""
        self._outline = outline
        self._serve = serve
        self._spawn = spawn
        self._forget = forget
        self._is_allowed = is_allowed
        self._pulse = Pulse(now)
        self._parts: bytearray | None = None
        self._incoming: deque[bytes] = deque()
        self._is_reading = False
        self._lanes: dict[str | None, deque[WaitingTurn | WaitingRefusal]] = {}
        self._waiting = self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._ending: Ending | None = None
        self._is_over = self._is_refused = False

    @property
    def is_over(self) -> bool:
        return self._is_over

    def begin(self) -> None:
        self.client.attach(self._on_frame, self._on_close, self._on_congestion)

    def send(self, data: bytes) -> None:
        """Sends an event, unless the client is gone."""
        if not self._is_over:
            self.client.send(TEXT, data, True)

    async def drain(self) -> None:
        """Waits until the client has taken enough of what was sent."""
        while self.client.congested and not self._is_over:
            self._room.clear()
            await self._room.wait()

    # What comes.

    def _on_frame(self, opcode: int, data: bytes | bytearray, fin: bool) -> None:  # as frames have it
        if opcode == BINARY:
            self.client.close(NOT_TEXT, "Send events as text.")
            self._gone()
            return
        if opcode == TEXT:
            if fin:
                self._came(bytes(data))
                return
            self._parts = bytearray()
        if self._parts is not None:
            self._parts += data
            if fin:
                whole, self._parts = bytes(self._parts), None
                self._came(whole)

    def _came(self, data: bytes) -> None:
        if self._is_over:
            return
        self._incoming.append(data)
        self._waiting += 1
        self._waiting_bytes += len(data)
        if self._waiting > MOST_WAITING or self._waiting_bytes > MOST_WAITING_BYTES:
            self.client.pause()
        if not self._is_reading:
            self._is_reading = True
            self._spawn(self._read())

    def _taken(self, data: bytes) -> None:
        """An event waits no longer."""
        self._waiting -= 1
        self._waiting_bytes -= len(data)
        if self._waiting <= MOST_WAITING and self._waiting_bytes <= MOST_WAITING_BYTES and not self._is_over:
            self.client.resume()

    async def _read(self) -> None:
        try:
            while self._incoming and not self._is_over:
                await self._read_one(self._incoming.popleft())
        finally:
            self._is_reading = False
            self._rest()

    async def _read_one(self, data: bytes) -> None:
        lane = None
        try:
            outline = await self._outline(data)
            lane = lane_of(data, outline)
            turn = read_turn(data, outline)
            if turn.kind == STEER:
                self.send(with_fields(steer_failed(data), lane_fields(lane)))
            else:
                self._queue(lane, WaitingTurn(data, outline, turn))
                return
        except GatewayError as error:
            self._queue(lane, WaitingRefusal(data, error))
            return
        except Exception:
            log.exception("defect while reading an event")
            self._queue(lane, WaitingRefusal(data, InternalError()))
            return
        self._taken(data)

    def _queue(self, lane: str | None, turn: WaitingTurn | WaitingRefusal) -> None:
        queue = self._lanes.get(lane)
        if queue is not None:
            queue.append(turn)
        elif isinstance(turn, WaitingRefusal) or len(self._lanes) >= MOST_LANES:
            self._taken(turn.data)
            error = turn.error if isinstance(turn, WaitingRefusal) else too_many_streams()
            self.send(with_fields(refusal_frame(error), lane_fields(lane)))
        else:
            self._lanes[lane] = queue = deque((turn,))
            self._spawn(self._work(lane, queue))

    async def _work(self, lane: str | None, queue: deque[WaitingTurn | WaitingRefusal]) -> None:
        """Serves the turns of a lane until there are none."""
        try:
            while queue and not self._is_over:
                turn = queue.popleft()
                self._taken(turn.data)
                error = turn.error if isinstance(turn, WaitingRefusal) else self._refusal()
                if error is not None:
                    self.send(with_fields(refusal_frame(error), lane_fields(lane)))
                elif isinstance(turn, WaitingTurn):
                    await self._serve(self, turn)
        finally:
            del self._lanes[lane]
            self._rest()

    def _refusal(self) -> GatewayError | None:
        """Why no turn begins any more; whoever asks for one gets it, and the end does not repeat it."""
        ending = self._ending
        if ending is None or ending.refusal is None:
            return None
        self._is_refused = True
        return ending.refusal

    # Its end.

    def end(self, code: int, reason: str, refusal: GatewayError | None = None) -> None:
        """Ends the connection, as soon as no turn is under way."""
        if self._ending is None:
            self._ending = Ending(code, reason, refusal)
            self._rest()

    def stop(self, reason: StopReason) -> None:
        """The process goes. The turns hear so by themselves."""
        self.stopped = reason
        self.end(RESTART, "The gateway is restarting; connect again.")

    def look_after(self, now: float, *, is_draining: bool) -> None:
        """Asks a silent client for a sign of life, and ends the connection where there is none, or its time is over."""
        if self._is_over:
            return
        if self._pulse.is_dead(self.client, now):
            self.client.abort()
            self._gone()
        elif is_draining:
            self.end(RESTART, "The gateway is restarting; connect again.")
        elif now >= self.ends_at:
            why = f"Responses websocket connection limit reached ({MAX_SESSION_S / 60:.0f} minutes)."
            self.end(GOING_AWAY, why, ConnectionExpired(f"{why} Create a new websocket connection to continue."))
        elif self._ending is None and not self._is_allowed():
            why = "The key is not one of this gateway's any more."
            self.end(POLICY, why, Unauthorised(why))

    def _rest(self) -> None:
        """Ends the connection if it is to end, and nothing is under way."""
        ending = self._ending
        if self._is_over or ending is None or self._lanes or self._is_reading:
            return
        if ending.refusal is not None and not self._is_refused:
            self.send(refusal_frame(ending.refusal))
        self.client.close(ending.code, short_reason(ending.reason), at_once=self.stopped is not None)
        self._gone()

    def _on_close(self, _code: int, _reason: str) -> None:
        self._gone()

    def _on_congestion(self, is_congested: bool) -> None:  # a callback
        if not is_congested:
            self._room.set()

    def _gone(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._incoming.clear()
        self._parts = None
        for turn in list(self.turns):
            turn.client_gone()
        self._room.set()
        self._forget(self)


# --- one turn: an event that is served as a POST of its body would be, and answered with frames ---

MOST_WHOLE_BYTES = 16 * 1024 * 1024
"""The longest answer that is no stream of events."""
_SHOWN = (b"x-", b"retry-after", b"openai-", b"ratelimit")


class TurnCycle(Cycle):
    """What a turn is to those who serve requests: a POST whose body is here, and whose answer somebody else gives."""

    def __init__(self, endpoint: Endpoint, headers: RawHeaders, index: dict[bytes, bytes]) -> None:
        self.endpoint, self.headers, self.index = endpoint, list(headers), index
        self.url = b"/v1" + endpoint.path.encode()
        self.http_version, self.keep_alive = "1.1", True
        self.more_body = False


class SocketTurn(ServedRequest):
    """One turn, from its event to the end of its response."""

    __slots__ = ("_fields", "_head", "_reported", "_send", "response")

    def __init__(self, cycle: TurnCycle, lane: str | None, send: Callable[[bytes], None]) -> None:
        super().__init__(cycle)
        self._send = send
        self._fields = lane_fields(lane)
        self._head = b""
        self._reported: dict[str, Any] = {}
        """The error that the stream has reported, whose failed response is still to come."""
        self.response: dict[str, Any] | None = None
        """The response at its end, if it has come to a good one."""

    def comment(self, text: bytes) -> bool:
        """Nothing: pings keep a connection alive."""
        return True

    def abort(self) -> None:
        """Nothing: the connection is other turns', too."""

    def send(self, data: bytes) -> None:
        self._send(with_fields(data, self._fields + self._head))
        self._head = b""

    def refuse(self, error: GatewayError, headers: RawHeaders) -> None:
        self.send(refusal_frame(error, headers))

    async def give(self, call: Call, reply: Reply, drain: Callable[[], Awaitable[None]]) -> None:
        """Sends the events of an answer, and closes it; `drain` waits until the client has taken enough.

        Raises whatever the answer's stream raises.
        """
        try:
            if reply.chunks is not None and reply.status == 200 and is_stream(reply.headers):
                await self._relay(reply, reply.chunks, drain)
            else:
                await self._give_whole(call, reply, drain)
        finally:
            await reply.close()

    async def _relay(self, reply: Reply, chunks: AsyncIterator[bytes], drain: Callable[[], Awaitable[None]]) -> None:
        frames, is_over = EventFrames(), False
        self._put_headers(reply)
        try:
            async for chunk in chunks:
                await drain()  # before: other turns may have sent much meanwhile
                is_over = self._pass_on(frames, chunk) or is_over
            await drain()
        except OverlongEvent:
            self._fail("An event was too long.")
            return
        if not is_over:
            self._fail("The response ended without its last event.")

    def _fail(self, message: str) -> None:
        error = self._reported or {"code": "stream_interrupted", "message": message}
        (failed,) = EventFrames().feed(response_failed(error))
        self.send(failed.data)

    async def _give_whole(self, call: Call, reply: Reply, drain: Callable[[], Awaitable[None]]) -> None:
        body = reply.body
        if reply.chunks is not None:
            parts: list[bytes] = []
            async for chunk in reply.chunks:
                if sum(map(len, parts)) < MOST_WHOLE_BYTES:
                    parts.append(chunk)
            body = b"".join(parts)
        await drain()
        if reply.status != 200:
            error = error_in(body) or unreadable(reply.status, body)
            self.send(error_frame(error, status=reply.status, headers=_shown(reply.headers)))
            return
        self._put_headers(reply)
        is_events = is_stream(reply.headers)
        self._pass_on(EventFrames(), body if is_events else events_of(call, replace(reply, body=body, chunks=None)))

    def _put_headers(self, reply: Reply) -> None:
        """The first event is to tell what the headers of an answer over HTTP would."""
        self._head = b'"headers":%b,' % orjson.dumps(_shown(reply.headers))

    def _pass_on(self, frames: EventFrames, chunk: bytes) -> bool:
        """Sends the events that are complete; returns whether the last one of the response is among them.

        An error in the middle is reported by the failed response alone: a client waits on behind an error event (Codex), or
        takes what follows it for the next turn's.
        """
        is_over = False
        for kind, data in frames.feed(chunk):
            if kind == ERROR:
                self._reported = (json_object(data) or {}).get("error") or {}
                continue
            self.send(data)
            if kind in FINAL:
                is_over = True
                if kind in KEPT:
                    event = json_object(data)
                    response = None if event is None else event.get("response")
                    self.response = response if isinstance(response, dict) else None
        return is_over


def lane_fields(lane: str | None) -> bytes:
    return b"" if lane is None else b'"stream_id":%b,' % orjson.dumps(lane)


def refusal_frame(error: GatewayError, headers: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    shown = _shown([*error_headers(error, 0), *headers])
    return error_frame(error_object(error), status=error.status, headers=shown)


def _shown(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in headers if name.startswith(_SHOWN)}


# --- the conversations that connections remember where nobody else keeps them ---

MOST_BYTES: Final = 128 * 1024 * 1024
MOST_EACH_BYTES: Final = 8 * 1024 * 1024
MOST_EACH: Final = 16
"""The conversations of one connection: each of its streams has its latest ones."""
_PLACE_BYTES: Final = 256


class ConversationMemory:
    """The conversations of all connections of the process; of too many the oldest go.

    A response with `store: false`, or of a model behind chat completions, can be gone on from while its connection is open, as
    at OpenAI. It must not outlive the connection, nor be seen by another one. Invariant: never more than MOST_BYTES in all.
    """

    __slots__ = ("_all", "_of", "bytes")

    def __init__(self) -> None:
        self._all: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._of: dict[int, OrderedDict[str, int]] = {}
        self.bytes = 0

    def remember(self, connection: int, response_id: str, items: bytes) -> None:
        """Remembers the items up to and with a response; one that is too long is not remembered."""
        if len(items) > MOST_EACH_BYTES:
            return
        self.drop(connection, response_id)
        known = self._of.setdefault(connection, OrderedDict())
        known[response_id] = len(items) + _PLACE_BYTES
        self._all[connection, response_id] = items
        self.bytes += len(items) + _PLACE_BYTES
        while len(known) > MOST_EACH or (len(known) > 1 and sum(known.values()) > MOST_EACH_BYTES):
            self._drop((connection, next(iter(known))))
        while self.bytes > MOST_BYTES:
            self._drop(next(iter(self._all)))

    def find(self, connection: int, response_id: str) -> bytes | None:
        """Returns the items up to and with a response of this connection; None: they are not known here."""
        return self._all.get((connection, response_id))

    def drop(self, connection: int, response_id: str) -> None:
        self._drop((connection, response_id))

    def forget(self, connection: int) -> None:
        for response_id in list(self._of.get(connection, ())):
            self._drop((connection, response_id))

    def _drop(self, name: tuple[int, str]) -> None:
        if self._all.pop(name, None) is None:
            return
        connection, response_id = name
        known = self._of[connection]
        self.bytes -= known.pop(response_id)
        if not known:
            del self._of[connection]
