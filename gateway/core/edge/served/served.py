"""One request that the edge serves: what has been learnt of it, whether its answer has begun, and its signs of life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.edge.served.inflight import Serving
from gateway.core.http.writing.cycle import AnyCycle
from gateway.core.http.writing.writing import begin_stream, write_chunk
from gateway.core.render import named_request, new_request_id

if TYPE_CHECKING:
    from gateway.core.snapshot.route_plan import RoutePlan
    from gateway.core.snapshot.snapshot.snapshot import Key, PolicySnapshot
    from gateway.core.types.words import Lane

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
        comment = b": %b\n\n" % text
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
