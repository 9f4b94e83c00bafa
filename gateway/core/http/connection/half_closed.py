"""A client that has ended its side of the connection and still reads, told from one that has left.

Both look the same until something is sent: the system of who has left answers with a reset. What is sent is an interim
response, of which any client takes any number before the answer (RFC 9110, 15.2). HTTP/1.0 knows none: there the end has to
come right behind the request, because who gives up waiting does so later (proxies that speak 1.0 among them), and the kernel
asks with its keep-alive probes, which a client that was closed all the same answers with a reset once its system has forgotten
the connection (Linux: `tcp_fin_timeout`, 60 s). It must not know what was asked.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys

PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
SOON_S = 0.02
"""The way there and back, where it is short; of who is farther away the sweep finds out."""
AGAIN_S = 10.0
"""So often it is asked while it waits for its answer."""
RIGHT_BEHIND_S = 1.0
KERNEL_ASKS = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""After how many seconds, how often, and how often in vain; by default it begins after two hours."""
_CLOSE_WAIT = 8
"""The peer has ended its side, and nothing else has come of it (tcp_states.h of Linux)."""


class Ended:
    """A connection whose client has ended its side, and is asked whether it reads. Nothing of the answer has been sent."""

    __slots__ = ("_asked_at", "_transport")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, *, takes_interim: bool = True
    ) -> None:
        self._transport = transport
        self._asked_at = math.inf
        """When it was asked last; the kernel does it where that is for ever."""
        if not takes_interim:
            let_kernel_ask(transport)
            return
        self._ask(loop.time())
        loop.call_later(SOON_S, self._look)

    def sweep(self, now: float, *, is_waiting: bool) -> None:
        """Close the connection if the client has left; ask again from time to time while it is waiting for its answer."""
        if not self._look() and is_waiting and now - self._asked_at > AGAIN_S:
            self._ask(now)

    def _ask(self, now: float) -> None:
        self._asked_at = now
        self._transport.write(PROBE)

    def _look(self) -> bool:
        """Whether it is over: the client has left, or the last of its answer is on its way."""
        if self._transport.is_closing():
            return True
        is_over = has_left(self._transport)
        if is_over:
            self._transport.abort()
        return is_over


def let_kernel_ask(transport: asyncio.Transport) -> None:
    """Find out whether the client is there without a byte of HTTP."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KERNEL_ASKS:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def has_left(transport: asyncio.Transport) -> bool:
    """Whether nobody reads any more at the other end of a connection that it has ended; True where nothing can tell."""
    if sys.platform != "linux":
        return True
    try:
        state = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except (OSError, ValueError):  # no TCP; or closed by now
        return True
    return bool(state != _CLOSE_WAIT)
