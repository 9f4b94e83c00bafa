"""A WebSocket of Responses: events in, turns served one after the other in each lane, frames out.

    a frame -> the event, read in outline -> its lane's queue -> a turn -> the frames of its events

It must not know how a turn is served. Invariants: a lane has one turn at a time, in the order of its events; when the client is
gone nothing of it goes on, and nothing is said any more; whoever has to end it does so behind the turns that are under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.call import Call, Reply
from gateway.core.edge import events_of
from gateway.core.errors import CallerFault, GatewayError, InternalError, Unauthorised
from gateway.core.http.writing import Cycle
from gateway.core.openai.json_edit import Outline
from gateway.core.openai.sse import error_in, json_object, response_failed
from gateway.core.render import error_headers, error_object, unreadable
from gateway.core.serving import ServedRequest, Serving, StopReason
from gateway.core.types import Endpoint, RawHeaders, Socket
from gateway.features.reuse.layers.entries import is_stream
from gateway.products.realtime.service import GOING_AWAY, MAX_SESSION_S, POLICY, RESTART, TEXT, Pulse, short_reason
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
    with_fields,
)

# What connections of Responses remember of their own conversations, where nobody else keeps these.
#
# A response with `store: false`, or of a model behind chat completions, can be gone on from while its connection is open, as at
# OpenAI. It must not outlive the connection, nor be seen by another one. Invariant: never more than MOST_BYTES in all.


MOST_BYTES: Final = 128 * 1024 * 1024
MOST_EACH_BYTES: Final = 8 * 1024 * 1024
MOST_EACH: Final = 16
"""Conversations of one connection: each of its streams has its latest ones."""
_PLACE_BYTES: Final = 256


class ConversationMemory:
    """The conversations of all connections of the process; of too many the oldest go."""

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
        """Forgets a response of a connection, if it is known."""
        self._drop((connection, response_id))

    def forget(self, connection: int) -> None:
        """Forgets all of a connection."""
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


# One turn of a WebSocket of Responses: an event that is served as a POST of its body would be, and answered with frames.


MOST_WHOLE_BYTES = 16 * 1024 * 1024
"""Of an answer that is no stream of events."""
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
        """The error that the stream has told, whose failed response is still to come."""
        self.response: dict[str, Any] | None = None
        """The response at its end, if it has come to a good one."""

    def comment(self, text: bytes) -> bool:
        """Nothing: pings keep a connection alive."""
        return True

    def abort(self) -> None:
        """Nothing: the connection is other turns', too."""

    def send(self, data: bytes) -> None:
        """Sends an event."""
        self._send(with_fields(data, self._fields + self._head))
        self._head = b""

    def refuse(self, error: GatewayError, headers: RawHeaders) -> None:
        """Sends an error of ours."""
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
        self._tell_headers(reply)
        try:
            async for chunk in chunks:
                await drain()  # before: other turns may have said much meanwhile
                is_over = self._pass_on(frames, chunk) or is_over
            await drain()
        except OverlongEvent:
            self._fail("An event was too long.")
            return
        if not is_over:
            self._fail("The response ended without its last event.")

    def _fail(self, message: str) -> None:
        """Ends the response as failed."""
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
        self._tell_headers(reply)
        is_events = is_stream(reply.headers)
        self._pass_on(EventFrames(), body if is_events else events_of(call, replace(reply, body=body, chunks=None)))

    def _tell_headers(self, reply: Reply) -> None:
        """The first event is to tell what the headers of an answer over HTTP would."""
        self._head = b'"headers":%b,' % orjson.dumps(_shown(reply.headers))

    def _pass_on(self, frames: EventFrames, chunk: bytes) -> bool:
        """Sends the events that are complete; returns whether the last one of the response is among them.

        An error in the middle is told by the failed response alone: a client waits on behind an error event (Codex), or takes
        what follows it for the next turn's.
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
    """The fields that name an event's lane, in front of others."""
    return b"" if lane is None else b'"stream_id":%b,' % orjson.dumps(lane)


def refusal_frame(error: GatewayError, headers: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """An error of ours as an event."""
    shown = _shown([*error_headers(error, 0), *headers])
    return error_frame(error_object(error), status=error.status, headers=shown)


def _shown(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in headers if name.startswith(_SHOWN)}


BINARY, CONTINUATION = 2, 0
NOT_TEXT = 1003
MOST_LANES = 16
MOST_WAITING_BYTES = 1024 * 1024
MOST_WAITING = 64
"""Events that wait for their turn; above, nothing more is read of the client."""

log = logging.getLogger("gateway.edge")


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
    """An error about an event, to be told in its turn: before it the client would take it for another turn's."""

    data: bytes
    error: GatewayError


class Ending(NamedTuple):
    """How the connection is to end."""

    code: int
    reason: str
    refusal: GatewayError | None = None
    """What is said to those who ask for more, and at the end; None: turns are refused by others, or have been told."""


def too_many_streams() -> TooManyStreams:
    """Refuses a turn in one stream more."""
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
        """`serve` serves a turn and raises nothing; `is_allowed`: the key still is one; `forget` hears of the end."""
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
        """Whether nobody listens any more."""
        return self._is_over

    def begin(self) -> None:
        """Listens from now on."""
        self.client.attach(self._on_frame, self._on_close, self._on_congestion)

    def send(self, data: bytes) -> None:
        """Sends an event, unless the client is gone."""
        if not self._is_over:
            self.client.send(TEXT, data, True)

    async def drain(self) -> None:
        """Waits until the client has taken enough of what was said."""
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
        """Reads the events that have come, in their order."""
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
        """Why no turn begins any more; whoever asks for one is told so, and the end needs no more words."""
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
