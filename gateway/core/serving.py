"""Who is being served right now, and how to stop them: the client left, its body is too slow, the process is going down.

First one request as those see it who may stop it (`Serving`), the bytes of unfinished bodies, and all requests in flight; then
a request on its HTTP connection, with what the edge has learnt of it. A request is stopped by cancelling its task with a
reason; the edge turns the reason into an answer, or into silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from gateway.core.http.writing import AnyCycle, begin_stream, write_chunk
from gateway.core.openai.sse import comment_end
from gateway.core.render import named_request, new_request_id

if TYPE_CHECKING:
    from gateway.core.call import Call
    from gateway.core.route_plan import RoutePlan
    from gateway.core.snapshot import Key, PolicySnapshot
    from gateway.core.types import Lane

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
        """What came of the request, once it is one."""
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
        if self.call is not None and self.call.followers:
            self.call.left = True
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
"""What may wait for a client to read it before it gets another comment: a few of them."""


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
        "wait_s",
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
        """What answers the request is on its way."""
        self.wait_s: float | None = None
        """The client takes a job for an answer, after it has waited so long; None: it wants the answer itself."""

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
            own_id = self.request_id.encode()
            headers = [*EVENT_STREAM, (b"x-gateway-request-id", own_id), (b"x-request-id", own_id)]
            if cycle.endpoint.sse == "messages":
                named_request(headers)
            begin_stream(cycle, headers, comment)
        elif cycle.transport.get_write_buffer_size() <= UNREAD_COMMENTS_BYTES:
            write_chunk(cycle, comment)
        return True

    def interim(self, _text: bytes) -> bool:
        """Send an interim response; False when there is nobody to send it to any more."""
        cycle, call = self.cycle, self.call
        if self.started or call is None or cycle.disconnected or cycle.transport.is_closing():
            return False
        if cycle.transport.get_write_buffer_size() <= UNREAD_COMMENTS_BYTES:
            cycle.transport.write(INTERIM[call.model.holding.interim or 103])
        return True

    def abort(self) -> None:
        """Break the connection off, so that a body cut short cannot look complete."""
        self.cycle.transport.abort()
