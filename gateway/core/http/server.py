"""The HTTP/1.1 server: binds a port, accepts connections, starts and stops.

First the listening socket (`Acceptor`), then who holds an address that cannot be had (`owner_of`), then the server.
Uvicorn's `Server` closes its listener first and re-raises signals; a sidecar has to answer 503 on its readiness path while
its last streams finish, and to exit with 0. Invariant: after `stop` nothing of the server is left in the loop.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.utils import formatdate
from math import inf
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from gateway.core.http.client.pool import EXHAUSTED
from gateway.core.http.connection import GatewayProtocol, HotEndpoints, Notice, Refused, give_way, sweep_connections

# --- a listening socket: new connections are taken off it, some in each turn of the loop ---


PER_TURN = 16
RETRY_S = 0.1
"""Seconds until the next look when there was no descriptor."""
GONE_S = 0.001
"""Seconds until a connection is gone that has been closed."""
SILENCE_S = 60.0
"""Seconds between two lines of the log about the same trouble."""
_OF_ONE = frozenset((errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENETDOWN, errno.ENETUNREACH,
                     errno.EHOSTDOWN, errno.EHOSTUNREACH))  # fmt: skip
"""The errors of one connection while it waited, or a firewall's word on it: the next may be good (accept(2))."""
log = logging.getLogger("gateway.edge")


class Acceptor:
    """One listening socket, which it owns; `make_protocol` serves each connection.

    `wait_s` says after how many seconds another connection may be accepted, beside so many that are being let in.

    Left to itself the loop takes one connection a turn (libuv since 1.45): behind a few hundred that come at once, a health
    check would wait for as many turns. And where no descriptor is left it logs so, and takes what waits once there are some
    again. Invariants: nobody who waits in the kernel's queue is lost for a want of descriptors; `accept` is never waited
    in.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        wait_s: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._wait_s = wait_s
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
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
        return self._arriving

    def _accept(self) -> None:
        for _ in range(PER_TURN):
            wait_s = self._wait_s(len(self._arriving))
            if wait_s:
                self._pause(OSError(errno.EMFILE, "as many are served as its descriptors allow"), wait_s)
                return
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return  # nobody waits any more
            except ConnectionError:
                continue  # it left while it waited
            except OSError as exc:
                if exc.errno in _OF_ONE:
                    continue
                self._pause(exc)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            connection.close()  # it has left already

    def _pause(self, exc: OSError, wait_s: float | None = None) -> None:
        """For a moment: the socket would be ready in each turn of the loop."""
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(RETRY_S if wait_s is None else wait_s, self._resume)
        now = self._loop.time()
        if now < self._quiet_until:
            return
        self._quiet_until = now + SILENCE_S
        remedy = ""
        if exc.errno in EXHAUSTED:
            remedy = (
                f" (this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} descriptors: raise the limit, with "
                "ulimit -n or LimitNOFILE, or lower the number of connections)"
            )
        log.error("new connections wait: %s%s", exc.strerror, remedy)

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept)


BACKLOG = 4096
KEEP_ALIVE_S = 75.0
HEAD_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 60.0
"""How long a client may take nothing of what waits for it."""


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A listening socket, one of several where `reuse_port`. Raises OSError when the address cannot be had.

    `::` is every address of both families, where the system has IPv6, and else of IPv4.

    It does not block, and so does no copy of it. Whether a call blocks is a property of the listening socket that all
    processes share that have it, and `socket.dup` sets it to what its Python object has: one process that makes its copy
    blocking would stop the loops of the others, in `accept`, once nobody waits any more.
    """
    is_all = host == "::"
    if is_all and not socket.has_dualstack_ipv6():
        host, is_all = "0.0.0.0", False  # the operator has asked for every address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server(
        (host, port), family=family, backlog=BACKLOG, reuse_port=reuse_port, dualstack_ipv6=is_all
    )
    listener.setblocking(False)
    return listener


_OTHER_PORT = "; choose another port: --port, GATEWAY_PORT or server.port (of admin.listen: there)"


def listen_on(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Binds as `bind` does. Raises OSError, whose `strerror` is the whole sentence."""
    try:
        return bind(host, port, reuse_port=reuse_port)
    except OSError as exc:
        number = exc.errno or 0
        reason = os.strerror(number).lower() if number > 0 else exc.strerror  # below 0: the host has no address
        remedy = _OTHER_PORT if number in (errno.EADDRINUSE, errno.EACCES) else ""
        owner = owner_of(host, port) if number == errno.EADDRINUSE else ""
        reason = f"{reason} by {owner}" if owner else reason
        raise OSError(number, f"cannot listen on {host}:{port}: {reason}{remedy}") from exc


# --- who holds an address that cannot be had ---


PROC = Path("/proc")
LISTENING = "0A"
"""The state of a listening socket in `/proc/net/tcp`."""


def owner_of(host: str, port: int, proc: Path = PROC) -> str:
    """Returns words such as `gateway (pid 4242, in /srv/app)`; empty where it cannot be known.

    On Linux it knows processes of the same user (proc(5)). The words name the program and its folder, and none of its
    arguments, which may hold secrets.
    """
    wanted = set(_listeners(host, port, proc))
    if not wanted:
        return ""
    numbers = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
    for number in numbers:
        if wanted.intersection(_open_files(proc / str(number))):
            return "this gateway itself" if number == os.getpid() else _named(proc / str(number))
    return ""


def _open_files(process: Path) -> Iterator[str]:
    with suppress(OSError):  # it has ended, or is another user's
        for one in (process / "fd").iterdir():
            with suppress(OSError):  # closed since
                yield os.readlink(one)


def _listeners(host: str, port: int, proc: Path) -> Iterator[str]:
    """Yields the links of sockets that keep this address taken: those of the same address, or of every address."""
    own = _as_hex(host)
    for table in ("tcp", "tcp6"):
        try:
            _, *lines = (proc / "net" / table).read_text().splitlines()
        except (OSError, ValueError):
            continue
        for line in lines:
            _, local, _, state, *_, inode = line.split()[:10]
            address, _, at = local.partition(":")
            if state == LISTENING and int(at, 16) == port and (own in (None, address) or not address.strip("0")):
                yield f"socket:[{inode}]"


def _as_hex(host: str) -> str | None:
    """Returns an address as the tables write it; None: every address, or a name that has not been looked up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if address.is_unspecified:
        return None
    words = [address.packed[at : at + 4] for at in range(0, len(address.packed), 4)]
    return "".join(int.from_bytes(word, "little").to_bytes(4, "big").hex() for word in words).upper()


def _named(process: Path) -> str:
    try:
        program, folder = (process / "comm").read_text().strip(), os.readlink(process / "cwd")
    except OSError:
        return f"pid {process.name}"
    return f"{program} (pid {process.name}, in {folder})"


# --- the server ---

KEPT_DESCRIPTORS = 32
"""The descriptors kept for stores, logs, listeners and the resolver of names."""


def most_clients(limit: int) -> float:
    """Returns how many connections of clients a limit of descriptors (below 0: none) has room for.

    Each may need one to a provider.
    """
    return inf if limit < 0 else max(1, (limit - KEPT_DESCRIPTORS) // 2)


class HttpServer:
    """One port and the application behind it; `refused` is called for requests that do not get as far as the application.

    An application may have `hot`, endpoints that it serves without ASGI.
    """

    def __init__(self, app: Any, listener: socket.socket, refused: Refused) -> None:
        # The access log is ours, and uvicorn's error log repeats what the edge has answered already.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        logging.getLogger("uvicorn.access").handlers.clear()
        logging.getLogger("uvicorn.access").propagate = False
        self._socket = listener
        self._refused = refused
        self._hot: HotEndpoints | None = getattr(app, "hot", None)
        self._state = ServerState()
        self._acceptor: Acceptor | None = None
        self._tended: dict[int, Acceptor] = {}
        self._arriving: set[asyncio.Task[None]] = set()
        """Who was being let in when it stopped accepting."""
        self._notice = Notice()
        self._most_clients = most_clients(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._config = uvicorn.Config(
            app,
            http=GatewayProtocol,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        self._config.load()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Accept connections from now on."""
        # First, so that no answer goes out without its date.
        self.tick()
        self._acceptor = Acceptor(self._socket, self._protocol, self._wait_s)

    def accept_for(self, listeners: Mapping[int, socket.socket]) -> None:
        """Accept on these, too, each of a worker that cannot do it itself now; and no longer on those left out."""
        for number in self._tended.keys() - listeners.keys():
            self._tended.pop(number).close()  # its connections are the loop's
        for number in listeners.keys() - self._tended.keys():
            own = listeners[number].dup()  # which the acceptor closes
            self._tended[number] = Acceptor(own, self._protocol, self._wait_s)

    def give_notice(self) -> None:
        """Every answer from now on is the last of its connection."""
        self._notice.is_given = True

    def stop_accepting(self) -> None:
        """Accept nothing any more; the connections stay."""
        for acceptor in (self._acceptor, *self._tended.values()):
            if acceptor is not None:
                self._arriving |= acceptor.close()
        self._acceptor = None
        self._tended.clear()

    def tick(self) -> None:
        """Renew the date header and close connections whose client keeps them waiting; called about once a second."""
        # The header names whole seconds, so it need not be made for each answer.
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        sweep_connections(self._state.connections, HEAD_TIMEOUT_S, KEEP_ALIVE_S, WRITE_TIMEOUT_S)

    async def stop(self, patience_s: float = 1.0) -> None:
        """Close the listener and every connection; requests still running get `patience_s` to notice."""
        self.stop_accepting()
        # Whoever is being let in becomes a connection first, and is closed below.
        if self._arriving:
            await asyncio.wait(self._arriving)
        for connection in list(self._state.connections):
            connection.shutdown()  # idle ones close now, the others behind their answer
        if self._state.tasks:
            _, late = await asyncio.wait(self._state.tasks, timeout=patience_s)
            for task in late:
                task.cancel()
        for connection in list(self._state.connections):
            if connection.transport is not None:
                connection.transport.abort()

    def _wait_s(self, arriving: int) -> float:
        """After how many seconds a connection may be accepted: there is to be a descriptor for its call's way out, too."""
        connections = self._state.connections
        if len(connections) + arriving < self._most_clients:
            return 0.0
        return GONE_S if give_way(connections, PER_TURN) else RETRY_S

    def _protocol(self) -> GatewayProtocol:
        return GatewayProtocol(
            self._refused, self._notice, self._hot, config=self._config, server_state=self._state, app_state={}
        )
