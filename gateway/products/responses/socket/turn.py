"""One turn of a WebSocket of Responses: an event that is served as a POST of its body would be, and answered with frames."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson

from gateway.core.call import Call, Reply
from gateway.core.edge.edge.answering import events_of
from gateway.core.edge.served.served import ServedRequest
from gateway.core.errors import GatewayError
from gateway.core.http.writing.cycle import Cycle
from gateway.core.openai.sse.sse import error_in, json_object
from gateway.core.render import error_headers, error_object, unreadable
from gateway.core.types.exchange import RawHeaders
from gateway.core.types.words import Endpoint
from gateway.features.reuse.layers.entries import is_stream
from gateway.products.responses.socket_turns.frames import (
    ERROR,
    FINAL,
    KEPT,
    EventFrames,
    OverlongEvent,
    error_frame,
    with_fields,
)

MOST_WHOLE_BYTES = 16 * 1024 * 1024
"""Of an answer that is no stream of events."""
_TOLD = (b"x-", b"retry-after", b"openai-", b"ratelimit")


class TurnCycle(Cycle):
    """What a turn is to those who serve requests: a POST whose body is here, and whose answer somebody else gives."""

    def __init__(self, endpoint: Endpoint, headers: RawHeaders, index: dict[bytes, bytes]) -> None:
        self.endpoint, self.headers, self.index = endpoint, list(headers), index
        self.url = b"/v1" + endpoint.path.encode()
        self.http_version, self.keep_alive = "1.1", True
        self.more_body = False


class SocketTurn(ServedRequest):
    """One turn, from its event to the end of its response."""

    __slots__ = ("_fields", "_head", "_say", "response")

    def __init__(self, cycle: TurnCycle, lane: str | None, say: Callable[[bytes], None]) -> None:
        super().__init__(cycle)
        self._say = say
        self._fields = lane_fields(lane)
        self._head = b""
        self.response: dict[str, Any] | None = None
        """The response at its end, if it has come to a good one."""

    def comment(self, text: bytes) -> bool:
        """Nothing: pings keep a connection alive."""
        return True

    def abort(self) -> None:
        """Nothing: the connection is other turns', too."""

    def say(self, data: bytes) -> None:
        """Sends an event."""
        self._say(with_fields(data, self._fields + self._head))
        self._head = b""

    def refuse(self, error: GatewayError, headers: RawHeaders) -> None:
        """Sends an error of ours."""
        self.say(refusal_frame(error, headers))

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
            self.say(error_frame({"code": "stream_interrupted", "message": "An event was too long."}, status=502))
            return
        if not is_over:
            broken = {"code": "stream_interrupted", "message": "The response ended without its last event."}
            self.say(error_frame(broken, status=502))

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
            self.say(error_frame(error, status=reply.status, headers=_shown(reply.headers)))
            return
        self._tell_headers(reply)
        is_events = is_stream(reply.headers)
        self._pass_on(EventFrames(), body if is_events else events_of(call, replace(reply, body=body, chunks=None)))

    def _tell_headers(self, reply: Reply) -> None:
        """The first event is to tell what the headers of an answer over HTTP would."""
        self._head = b'"headers":%b,' % orjson.dumps(_shown(reply.headers))

    def _pass_on(self, frames: EventFrames, chunk: bytes) -> bool:
        """Sends the events that are complete; returns whether the last one of the response is among them."""
        is_over = False
        for kind, data in frames.feed(chunk):
            self.say(data)
            if kind in FINAL or kind == ERROR:
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
    told = _shown([*error_headers(error, 0), *headers])
    return error_frame(error_object(error), status=error.status, headers=told)


def _shown(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in headers if name.startswith(_TOLD)}
