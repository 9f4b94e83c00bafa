"""Takes new connections off a listening socket, some in each turn of the loop.

Left to itself the loop takes one a turn (libuv since 1.45): behind a few hundred that come at once, a health check would wait
for as many turns. And where no descriptor is left it says so, and takes what waits once there are some again.
Whether a call blocks is a property of the listening socket that all processes share that have it, and `socket.dup` sets it
to what its Python object has been told: one process that makes its copy blocking would stop the loops of the others, in
`accept`, once nobody waits any more. `server.bind` therefore makes none that blocks.
Invariants: nobody who waits in the kernel's queue is lost for a want of descriptors; `accept` is never waited in.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable

PER_TURN = 16
RETRY_S = 0.1
"""How soon it looks again when there was no descriptor."""
SILENCE_S = 60.0
"""Between two words about the same trouble."""
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_OF_ONE = frozenset((errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENETDOWN, errno.ENETUNREACH,
                     errno.EHOSTDOWN, errno.EHOSTUNREACH))  # fmt: skip
"""What befell one connection while it waited, or a firewall's word on it: the next may be good (accept(2))."""
log = logging.getLogger("gateway.edge")


class Acceptor:
    """One listening socket, which it owns; `make_protocol` serves each connection."""

    def __init__(self, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._taking: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> set[asyncio.Task[None]]:
        """Take no more, and give back who is just being let in: once these are done, all are connections, which stay.

        Whoever still waits in the kernel's queue is refused, if no other process has this socket.
        """
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        return self._taking

    def _accept(self) -> None:
        for _ in range(PER_TURN):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # it left while it waited
            except OSError as exc:
                if exc.errno in _OF_ONE:
                    continue
                self._look_away(exc)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            connection.close()  # it has left already

    def _look_away(self, exc: OSError) -> None:
        """For a moment: the socket would be ready in each turn of the loop."""
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(RETRY_S, self._look_again)
        now = self._loop.time()
        if now < self._quiet_until:
            return
        self._quiet_until = now + SILENCE_S
        remedy = ""
        if exc.errno in _EXHAUSTED:
            remedy = (
                f" (this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} descriptors: raise the limit, with "
                "ulimit -n or LimitNOFILE, or lower the number of connections)"
            )
        log.error("new connections wait: %s%s", exc.strerror, remedy)

    def _look_again(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept)
