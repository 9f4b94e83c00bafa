"""A WebSocket of Responses: events in, turns served one after the other in each lane, frames out.

    a frame -> the event, read in outline -> its lane's queue -> a turn -> the frames of its events

It must not know how a turn is served. Invariants: a lane has one turn at a time, in the order of its events; when the client is
gone nothing of it goes on, and nothing is said any more; whoever has to end it does so behind the turns that are under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from gateway.core.edge.served.inflight import Serving, StopReason
from gateway.core.errors import CallerFault, GatewayError, InternalError, Unauthorised
from gateway.core.openai.json_edit.outline import Outline
from gateway.core.types.exchange import Socket
from gateway.products.realtime.service.pulse import Pulse
from gateway.products.realtime.service.session import (
    GOING_AWAY,
    MAX_SESSION_S,
    POLICY,
    RESTART,
    TEXT,
    short_reason,
)
from gateway.products.responses.socket.turn import lane_fields, refusal_frame
from gateway.products.responses.socket_turns.frames import steer_failed, with_fields
from gateway.products.responses.socket_turns.turns import STEER, TurnAsked, lane_of, read_turn

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
    asked: TurnAsked


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
        "_is_told",
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
        self._is_over = self._is_told = False

    @property
    def is_over(self) -> bool:
        """Whether nobody listens any more."""
        return self._is_over

    def begin(self) -> None:
        """Listens from now on."""
        self.client.attach(self._on_frame, self._on_close, self._on_congestion)

    def say(self, data: bytes) -> None:
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
            asked = read_turn(data, outline)
            if asked.kind == STEER:
                self.say(with_fields(steer_failed(data), lane_fields(lane)))
            else:
                self._queue(lane, WaitingTurn(data, outline, asked))
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
            self.say(with_fields(refusal_frame(error), lane_fields(lane)))
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
                    self.say(with_fields(refusal_frame(error), lane_fields(lane)))
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
        self._is_told = True
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
        if ending.refusal is not None and not self._is_told:
            self.say(refusal_frame(ending.refusal))
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
