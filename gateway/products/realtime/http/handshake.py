"""What the doors of WebSockets have in common: a client's handshake is checked, refused or answered (RFC 6455, 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.core.clock import Clock
from gateway.core.edge.served.served import ServedRequest
from gateway.core.errors import CallerFault, GatewayError, InvalidRequest, NotSupported
from gateway.core.http.writing.cycle import AnyCycle
from gateway.core.http.writing.writing import answer_error
from gateway.core.ledger.answer_headers import answer_headers
from gateway.core.ports import Meter
from gateway.core.types.exchange import RawHeaders
from gateway.core.websocket.extra import NEEDS_EXTRA, is_installed
from gateway.products.realtime.http.credentials import HEADER, Offered, read_subprotocols

if TYPE_CHECKING:
    from gateway.core.websocket_connection import SocketEnd


class UpgradeRequired(CallerFault):
    """The path is for WebSocket sessions, and the request is no handshake (RFC 9110, 15.5.22)."""

    status = 426
    code = "upgrade_required"


def accept_of(cycle: AnyCycle) -> bytes:
    """Returns what a handshake is answered with. Raises GatewayError for what is none, or cannot be served here."""
    if b"upgrade" not in cycle.index or cycle.method != "GET" or cycle.http_version != "1.1":
        raise UpgradeRequired("Realtime sessions are WebSockets; connect with a WebSocket client.")
    if not is_installed():
        raise NotSupported(NEEDS_EXTRA, param="Upgrade", code="websocket_not_supported")
    from gateway.core.websocket.handshake import accept_key  # a gateway without sessions does not load it

    try:
        return accept_key("/", cycle.headers)
    except ValueError as fault:
        raise InvalidRequest(f"The WebSocket handshake is not valid: {fault}.", code="invalid_handshake") from fault


def offered_by(cycle: AnyCycle) -> Offered:
    """Returns the subprotocols on offer; a key among them is from now on the caller's, if no header names another."""
    offered = read_subprotocols(cycle.headers)
    if offered.key is not None and b"authorization" not in cycle.index:
        cycle.index[b"authorization"] = b"Bearer " + offered.key
    return offered


def switch(
    cycle: AnyCycle, accept: bytes, offered: Sequence[bytes], headers: RawHeaders, chosen: bytes | None = None
) -> SocketEnd | None:
    """Answers a handshake, and returns the client's end, which is to be listened to at once; None: the client has left.

    `chosen` is the subprotocol of the other side.
    """
    if cycle.disconnected or cycle.transport.is_closing():
        return None
    from gateway.core.websocket.handshake import client_end  # as above

    if chosen not in offered:  # a browser that offers some, and gets none, leaves (WHATWG WebSockets, 4)
        chosen = offered[0] if offered else None
    lines = [
        *cycle.default_headers,
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", accept),
        *headers,
    ]
    if chosen is not None:
        lines.append((HEADER, chosen))
    cycle.transport.write(b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n\r\n" % b"\r\n".join(map(b": ".join, lines)))
    cycle.response_started = cycle.response_complete = True
    end = client_end()
    cycle.connection.hand_over(end)
    return end


async def refuse(served: ServedRequest, error: GatewayError, meter: Meter, clock: Clock) -> None:
    """Answers a handshake with an error."""
    call, cycle = served.call, served.cycle
    if call is None or not call.settled:
        meter.refused(served.request_id, cycle.scope["path"], error.status, error.code)
    trail = [(b"x-request-id", served.request_id.encode())]
    if call is not None:
        trail = answer_headers(call, clock.monotonic())
    if isinstance(error, UpgradeRequired):
        trail.append((b"upgrade", b"websocket"))
    if b"upgrade" in cycle.index:  # what follows on the connection may be no HTTP
        cycle.keep_alive = False
    await answer_error(cycle, error, trail)
