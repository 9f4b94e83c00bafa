"""The opening handshakes (RFC 6455, 4): a client's, checked and answered; and our own to a provider."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.protocol import OPEN, SERVER, Protocol
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from gateway.core.websocket_connection import MAX_MESSAGE_BYTES, QUIET, SocketEnd


def accept_key(path: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the `Sec-WebSocket-Accept` for a client's handshake. Raises ValueError, which names what is wrong with it."""
    named = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
    frames = ServerProtocol(logger=QUIET)
    answer = frames.accept(Request(path, named))
    if answer.status_code != 101:
        raise ValueError(str(frames.handshake_exc or "no handshake"))
    return answer.headers["Sec-WebSocket-Accept"].encode()


def client_end() -> SocketEnd:
    """Returns the end of a client whose handshake has been answered."""
    return SocketEnd(Protocol(SERVER, state=OPEN, max_size=MAX_MESSAGE_BYTES, logger=QUIET))


def provider_end(
    url: str, headers: Iterable[tuple[bytes, bytes]], subprotocols: Sequence[str]
) -> tuple[SocketEnd, bytes, ClientProtocol]:
    """Returns the end of a provider, the bytes that open it, and the protocol with what the answer will choose."""
    offered = [Subprotocol(each) for each in subprotocols] or None
    frames = ClientProtocol(parse_uri(url), subprotocols=offered, max_size=MAX_MESSAGE_BYTES, logger=QUIET)
    request = frames.connect()
    for name, value in headers:
        request.headers[name.decode("latin-1")] = value.decode("latin-1")
    frames.send_request(request)
    return SocketEnd(frames), b"".join(frames.data_to_send()), frames
