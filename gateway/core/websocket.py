"""WebSockets: one end of a relay, and the two opening handshakes (RFC 6455, 4) that make one.

`SocketEnd` moves frames in and out over one transport, with the library's parser in between, and closes it; below it a client's
handshake is checked and answered, and our own to a provider is made. Nothing here knows what a frame says, nor who is at the
other end. Invariants: `on_close` is called exactly once, whichever way the peer leaves; after that nothing is handed on any
more. What has come before somebody listens is kept, and no more is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN, SERVER, Protocol
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from gateway.core.types import OnFrame

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_UNSENT_BYTES = 1024 * 1024
"""The bytes that may wait for a peer to take them; above, nothing more is read of the other one."""
MOST_UNSENT_BYTES = MAX_MESSAGE_BYTES + 2 * MAX_UNSENT_BYTES
"""More than a last message on top of that are answers to pings, of a peer who sends them and reads nothing: it is cut off."""
COUNTED_BYTES = 64 * 1024
"""The bytes of a message that has not ended below which it is not worth counting."""
CLOSE_S = 5.0
"""Seconds that a peer has for its own close frame once we have sent ours."""
GONE = 1006
"""The code of a peer that has left without one (RFC 6455, 7.4.1); it is never sent."""
NO_CODE = 1005
"""The code of a peer that has closed without one; it is never sent."""
QUIET = logging.getLogger("gateway.websocket")
"""The library's words go here: at the level DEBUG it would write down handshakes, credentials included."""
QUIET.setLevel(logging.ERROR)


class SocketEnd(asyncio.Protocol):
    """One peer of a session. Implements `Socket`."""

    __slots__ = (
        "_closed_with",
        "_early",
        "_frames",
        "_is_notified",
        "_noted_bytes",
        "_on_close",
        "_on_congestion",
        "_on_frame",
        "_on_unfinished",
        "_timer",
        "congested",
        "is_alive",
        "is_lost",
        "opening",
        "reading_paused",
        "received",
        "transport",
    )

    def __init__(self, frames: Protocol) -> None:
        """`frames` is open, or about to open: then `opening` has the answer to its handshake when it is there."""
        self._frames = frames
        self.transport: asyncio.Transport | None = None
        self.opening: asyncio.Future[Response] | None = None
        self.is_alive = True
        """Something has come since somebody last set this to False."""
        self.congested = False
        """More waits for the peer than may."""
        self.reading_paused = False
        self.is_lost = False
        self.received = 0
        """The number of frames that have come."""
        self._on_frame: OnFrame | None = None
        self._on_close: Callable[[int, str], None] | None = None
        self._on_congestion: Callable[[bool], None] | None = None
        self._on_unfinished: Callable[[int], None] | None = None
        self._noted_bytes = 0
        self._early: list[Frame] = []
        self._closed_with: tuple[int, str] | None = None
        self._is_notified = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unsent(self) -> int:
        """Returns how many bytes wait for the peer."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    # What the session does.

    def attach(
        self, on_frame: OnFrame, on_close: Callable[[int, str], None], on_congestion: Callable[[bool], None]
    ) -> None:
        """Hands on everything from now on, and first what has come meanwhile."""
        self._on_frame, self._on_close, self._on_congestion = on_frame, on_close, on_congestion
        self.resume()  # before what follows may pause it again
        early, self._early = self._early, []
        for frame in early:
            self.received += 1
            on_frame(frame.opcode, cast(bytes, frame.data), frame.fin)
        if self._closed_with is not None:
            self._notify_closed(*self._closed_with)

    def watch_unfinished(self, came: Callable[[int], None]) -> None:
        """Notes how many bytes have come of a message whose end has not, from now on; 0: of none, or of a small one."""
        self._on_unfinished = came

    def send(self, opcode: int, data: bytes | bytearray, fin: bool) -> None:  # as frames have it
        """Sends a frame; nothing where the peer is leaving, or in the middle of another message of several frames."""
        frames = self._frames
        if frames.state is not OPEN:
            return
        if opcode == Opcode.CONT:
            if not frames.expect_continuation_frame:
                return
            frames.send_continuation(data, fin)
        elif frames.expect_continuation_frame:
            return
        elif opcode == Opcode.TEXT:
            frames.send_text(data, fin)
        else:
            frames.send_binary(data, fin)
        self._flush()

    def ping(self) -> None:
        """Asks the peer for a sign of life."""
        if self._frames.state is OPEN:
            self._frames.send_ping(b"")
            self._flush()

    def close(self, code: int, reason: str, *, at_once: bool = False) -> None:
        """Closes the session with the peer, who has `CLOSE_S` for its own word, none if `at_once`."""
        self._is_notified = True  # whatever it says now is no news
        self.resume()
        if self._frames.state is OPEN:
            if code in (NO_CODE, GONE):
                self._frames.send_close()
            else:
                self._frames.send_close(code, reason)
            self._flush()
        transport = self.transport
        if transport is None or self.is_lost:
            return
        if at_once:
            transport.close()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    def cut_off(self, code: int, reason: str) -> None:
        """Closes the session with a peer that has done wrong, at once; the session gets GONE."""
        if self._frames.state is OPEN:
            self._frames.send_close(code, reason)
            self._flush()
        self._notify_closed(GONE, reason)
        self.close(code, reason, at_once=True)

    def abort(self) -> None:
        """Leaves the peer without a word."""
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        """Reads nothing more of the peer for now."""
        if not self.reading_paused and self.transport is not None and not self.transport.is_closing():
            self.reading_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Reads again."""
        if self.reading_paused and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        self.reading_paused = False

    # What the transport does.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(MAX_UNSENT_BYTES, MAX_UNSENT_BYTES // 4)

    def data_received(self, data: bytes) -> None:
        self.is_alive = True
        frames = self._frames
        frames.receive_data(data)
        self._take_events()
        self._flush()
        if self._on_unfinished is not None:
            size = len(frames.reader.buffer) + (frames.current_size or 0)
            size = 0 if size < COUNTED_BYTES else size
            if size != self._noted_bytes:
                self._noted_bytes = size
                self._on_unfinished(size)
        if frames.parser_exc is not None:
            sent = frames.close_sent
            self._notify_closed(GONE, "" if sent is None else f"{sent.code} {sent.reason}".strip())
            self._leave_soon()
        elif frames.handshake_exc is not None and self.opening is not None and not self.opening.done():
            self.opening.set_exception(frames.handshake_exc)

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._end()
        if self.opening is not None and not self.opening.done():
            self.opening.set_exception(exc or ConnectionResetError("the connection was closed"))
        if self._timer is not None:
            self._timer.cancel()
        if self._noted_bytes and self._on_unfinished is not None:
            self._on_unfinished(0)
        self._on_frame = self._on_close = self._on_congestion = self._timer = self.transport = None
        self._on_unfinished = None

    def pause_writing(self) -> None:
        self.congested = True
        if self._on_congestion is not None:
            self._on_congestion(True)

    def resume_writing(self) -> None:
        self.congested = False
        if self._on_congestion is not None:
            self._on_congestion(False)

    # Between the two.

    def _take_events(self) -> None:
        for event in self._frames.events_received():
            if isinstance(event, Frame):
                self._take(event)
            elif self.opening is not None and not self.opening.done():
                self.opening.set_result(cast(Response, event))
                self.pause()  # until somebody listens

    def _take(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode is Opcode.CLOSE:
            close_frame = self._frames.close_rcvd
            self._notify_closed(*((NO_CODE, "") if close_frame is None else (close_frame.code, close_frame.reason)))
            self._leave_soon()
        elif opcode is Opcode.PING or opcode is Opcode.PONG or self._is_notified:
            return
        elif self._on_frame is None:
            self._early.append(frame)
        else:
            self.received += 1
            self._on_frame(opcode, cast(bytes, frame.data), frame.fin)

    def _end(self) -> None:
        """The peer sends nothing any more."""
        frames = self._frames
        frames.receive_eof()
        self._take_events()  # the body of an error may end with the connection
        if not self.is_lost:
            self._flush()
        if self.opening is None or self.opening.done():
            self._notify_closed(GONE, "")

    def _notify_closed(self, code: int, reason: str) -> None:
        """Notifies the session, once, that the peer leaves."""
        if self._is_notified:
            return
        if self._on_close is None:
            self._closed_with = self._closed_with or (code, reason)
            return
        self._is_notified = True
        self._on_close(code, reason)

    def _flush(self) -> None:
        transport = self.transport
        for part in self._frames.data_to_send():
            if transport is None or self.is_lost:
                return
            if part:
                transport.write(part)
            else:
                transport.close()
        if self.congested and transport is not None and transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            transport.abort()

    def _leave_soon(self) -> None:
        if self._timer is None and not self.is_lost:
            self._timer = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)


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
