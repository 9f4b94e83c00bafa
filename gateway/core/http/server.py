"""The HTTP/1.1 server: accepts connections, reads and checks requests, starts and stops.

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
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.server import ServerState

from gateway.core.errors import GatewayError, HeadersTooLarge, InvalidRequest
from gateway.core.http import writing
from gateway.core.http.connection import ClientConnection, HotEndpoints, Notice, Refused, give_way, sweep_connections
from gateway.core.http.descriptors import EXHAUSTED, most_clients
from gateway.core.http.writing import AnyCycle, AsgiCycle, Cycle, refusal_bytes
from gateway.core.render import new_request_id

# Takes new connections off a listening socket, some in each turn of the loop.
#
# Left to itself the loop takes one a turn (libuv since 1.45): behind a few hundred that come at once, a health check would
# wait for as many turns. And where no descriptor is left it says so, and takes what waits once there are some again. Whether
# a call blocks is a property of the listening socket that all processes share that have it, and `socket.dup` sets it to what
# its Python object has been told: one process that makes its copy blocking would stop the loops of the others, in `accept`,
# once nobody waits any more. `server.bind` therefore makes none that blocks. Invariants: nobody who waits in the kernel's
# queue is lost for a want of descriptors; `accept` is never waited in.


PER_TURN = 16
RETRY_S = 0.1
"""How soon it looks again when there was no descriptor."""
GONE_S = 0.001
"""How soon a connection is gone that has been closed."""
SILENCE_S = 60.0
"""Between two words about the same trouble."""
_OF_ONE = frozenset((errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENETDOWN, errno.ENETUNREACH,
                     errno.EHOSTDOWN, errno.EHOSTUNREACH))  # fmt: skip
"""What befell one connection while it waited, or a firewall's word on it: the next may be good (accept(2))."""
log = logging.getLogger("gateway.edge")


class Acceptor:
    """One listening socket, which it owns; `make_protocol` serves each connection.

    `wait_s` says after how many seconds another connection may be accepted, beside so many that are being let in.
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
            wait_s = self._wait_s(len(self._taking))
            if wait_s:
                self._look_away(OSError(errno.EMFILE, "as many are served as its descriptors allow"), wait_s)
                return
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

    def _look_away(self, exc: OSError, wait_s: float | None = None) -> None:
        """For a moment: the socket would be ready in each turn of the loop."""
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(RETRY_S if wait_s is None else wait_s, self._look_again)
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

    def _look_again(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept)


# The HTTP/1.1 server protocol: uvicorn's httptools one, with the gaps closed that matter at an edge.
#
# Malformed HTTP is answered in OpenAI's error shape, heads and trailers are bounded in size, a connection that does not
# finish its head in time is closed, so is one whose client takes nothing of its answer, and a lost connection tells the
# request that it serves at once (no task waits on `receive` for that). A client that ends its side of the connection before
# its answer has begun (`printf … | nc -N`) gets it, if it still reads; during the answer it has left. Invariants: an error of
# the protocol never takes the place of an answer that is due to an earlier request, nor does it follow the answer to its own;
# nothing but the bytes of its own body gets into a request once its head is complete; whose client has closed, its call does
# not go on at the provider.


MAX_REST_BYTES = 128 * 1024 * 1024
"""Of a body whose request has been answered: read and dropped up to here, so that its client sees the answer."""
MAX_DROPPED_BYTES = 16 * 1024 * 1024
"""Of what is sent behind a refused request: as above."""
UNCUT_BYTES = 2048
"""So many bytes are parsed at once, whatever number of small requests they hold."""
BLANK_LINE = b"\r\n\r\n"


class GatewayProtocol(ClientConnection):
    """What the bytes on one client connection mean."""

    def data_received(self, data: bytes, is_piece: bool = False) -> None:  # each request comes by
        """Take a read, or a piece of one that `_parse_ahead` has cut."""
        if self._reading_stopped:
            self._drop(len(data), MAX_DROPPED_BYTES)
            return
        if (len(data) > UNCUT_BYTES or self._unparsed is not None) and not is_piece:
            self._unparsed = data if self._unparsed is None else self._unparsed + data
            self._parse_ahead()
            return
        self._piece_bytes = len(data)
        self._loose_bytes += len(data)
        offered_at = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            offered_at = offer.args[0]
        except httptools.HttpParserError as stopped:
            if not self._reading_stopped:
                self._refuse(self._why_stopped(stopped))
            return
        if offered_at is not None:
            self._stay(data[offered_at:])
        if self.head_since is not None and self._lacks_version(data):
            self._refuse(writing.no_version())
        elif self._loose_bytes > writing.MAX_HEAD_BYTES:
            self._refuse(writing.trailers_too_large() if self._is_reading_body() else writing.head_too_large())

    def _parse_ahead(self) -> None:
        """Parse on until a request waits for its turn; what follows it stays bytes until then.

        Every head ends with a blank line (RFC 9112, 2.1): what is parsed at once goes to the first one behind UNCUT_BYTES. A
        body full of blank lines is cut no more often than that.
        """
        while self._unparsed is not None and not self.pipeline:
            data, start = self._unparsed, self._parsed_bytes
            found = data.find(BLANK_LINE, start + UNCUT_BYTES)
            end = found + len(BLANK_LINE)
            if found >= 0 and end < len(data):
                self._parsed_bytes = end
            else:
                end, self._unparsed, self._parsed_bytes = len(data), None, 0
            self.data_received(data[start:end], is_piece=True)

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.head_since = self.loop.time()
        self._coding = None

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        head_is_small = max(self._loose_bytes, self._piece_bytes) <= writing.MAX_HEAD_BYTES  # so seldom is it counted
        self.head_since = self.idle_since = None
        self._loose_bytes = 0
        parser, headers = self.parser, self.headers
        version, index = parser.get_http_version(), dict(headers)
        self._is_offer = parser.should_upgrade()
        is_plain = (
            version == "1.1"
            and b"host" in index
            and b"transfer-encoding" not in index
            and len(headers) <= writing.MAX_HEADERS
        )
        if not is_plain or not head_is_small or self._is_offer:
            self._check_head(version, index)
        keep_alive = version != "1.0" and parser.should_keep_alive() and not self._notice.is_given
        endpoint = self._hot.get(self.url) if parser.get_method() == b"POST" else None
        cycle: AnyCycle
        if endpoint is None:
            cycle = self._asgi_cycle(index, version, keep_alive=keep_alive)
        else:
            cycle = Cycle(self, endpoint, headers, index, version, keep_alive)
            if b"expect" in index:
                cycle.waiting_for_100_continue = _expects(headers)
        if self._coding is not None:
            self.headers = writing.Trailers()  # type: ignore[assignment]  # all that the parser's callbacks do is append
        previous, self.cycle = self.cycle, cycle
        if previous is None or previous.response_complete:
            self._start(cycle)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft(cycle)

    def _asgi_cycle(self, index: dict[bytes, bytes], version: str, *, keep_alive: bool) -> AsgiCycle:
        """A request to the application. Raises httptools' HttpParserInvalidURLError, which stops the parser."""
        url = httptools.parse_url(self.url)
        raw_path = url.path
        state: dict[str, Any] = {}
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "headers": self.headers,
            "state": state,
        }
        expects = b"expect" in index and _expects(self.headers)
        state["cycle"] = cycle = AsgiCycle(self, self.scope, index, expects=expects, keep_alive=keep_alive)
        return cycle

    def _check_head(self, version: str, index: dict[bytes, bytes]) -> None:
        """Refuse a head that is not plainly right, if it is wrong: raises ValueError, which stops the parser."""
        headers = self.headers
        if b"transfer-encoding" in index:
            self._coding = b", ".join([value for name, value in headers if name == b"transfer-encoding"])
        self._refusal = self._fault_of_head(version, has_host=b"host" in index)
        if self._refusal is None and len(headers) > writing.MAX_HEADERS:
            self._refusal = HeadersTooLarge(f"The request has more than {writing.MAX_HEADERS} headers.")
        if self._refusal is None and self._is_offer:
            self._refusal = writing.fault_of_offer(
                self.parser.get_method(), headers, has_sessions=self.url.partition(b"?")[0] in self._session_paths
            )
        if self._refusal is not None:
            raise ValueError("stops the parser")

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        cycle = self.cycle
        if cycle is None:
            return
        if cycle.response_complete:
            self._drop(len(body), MAX_REST_BYTES)
        elif cycle.waiter is None and not cycle.first and cycle.rest is None:
            cycle.first = body
            if len(body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
        elif cycle.add(body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """The peer's leaving is noticed from here on, however large the body was."""
        cycle = self.cycle
        if cycle is None or (self._is_offer and writing.body_framing(cycle.headers)):
            return  # the parser takes what follows for another protocol; `_stay` reads the body
        self._loose_bytes = 0
        cycle.more_body = False
        if not cycle.keep_alive:
            self._request_complete_at = self.loop.time()
        if cycle.response_complete:
            self._dropped_bytes = 0
        elif cycle.waiter is not None:
            cycle.wake()
        if self.flow.read_paused:
            self.flow.resume_reading()

    def _fault_of_head(self, version: str, *, has_host: bool) -> GatewayError | None:
        """What is wrong with a head that is not plainly right."""
        if writing.head_bytes(self.url, self.headers) > writing.MAX_HEAD_BYTES:
            return writing.head_too_large()
        if version == "1.1" and not has_host:
            return InvalidRequest("An HTTP/1.1 request needs a Host header.", code="invalid_http")
        fault = writing.fault_of_version(version)
        return fault if fault is not None or self._coding is None else writing.fault_of_coding(self._coding)

    def _lacks_version(self, piece: bytes) -> bool:
        """Whether the line that ends with this piece is a whole request of HTTP/0.9, whose client waits for an answer now.

        Known for the first request of a connection, and there is no second in HTTP/0.9.
        """
        began: Any = self.headers  # None before the first request, whatever its annotation says
        is_line = began is not None and bool(self.url) and piece.endswith(b"\n")
        return is_line and self.parser.get_http_version() in ("0.0", "0.9")

    def _is_reading_body(self) -> bool:
        cycle = self.cycle
        return cycle is not None and self.head_since is None and bool(cycle.more_body)

    def _stay(self, rest: bytes) -> None:
        """Decline an offer of another protocol (h2c, TLS) by serving the request (RFC 9110, 7.8).

        The parser has left the body unread: a second one reads it, and nothing behind it: that could be of the other
        protocol. The connection ends with the answer.
        """
        cycle = self.cycle
        if cycle is None:
            return
        cycle.keep_alive = False
        lines = writing.body_framing(cycle.headers)
        if not lines:
            self._reading_stopped = True
            return
        self.parser = httptools.HttpRequestParser(_BodyReader(self))
        self.data_received(b"".join((b"POST / HTTP/1.1\r\n", *lines, b"\r\n", rest)), is_piece=True)

    def end_of_last_body(self) -> None:
        """The body of a request that is the connection's last is complete."""
        self._is_offer = False
        self.on_message_complete()
        self._reading_stopped = True

    def _why_stopped(self, stopped: httptools.HttpParserError) -> GatewayError:
        """Why the parser gave up: a refusal of ours that stopped it, or malformed HTTP."""
        if self._refusal is not None:
            return self._refusal
        if isinstance(stopped.__context__, writing.TrailersTooLarge):
            return writing.trailers_too_large()
        return writing.not_http(str(stopped))

    def _drop(self, count: int, most: int) -> None:
        """Forget this many bytes that nobody will read; who sends more than `most` of them is cut off."""
        self._dropped_bytes += count
        if self._dropped_bytes > most:
            self._reading_stopped = True
            self.transport.abort()

    def _refuse(self, error: GatewayError) -> None:
        """Read no more requests, and answer what cannot be read where no answer stands in the way. The cases:

        1. A head is wrong, while answers to earlier requests are due: they are given, then the connection closes.
        2. A body is wrong whose request waits for its turn: the error is given in its turn.
        3. A body is wrong whose request is being answered, or has been: the connection closes.
        4. A head is wrong, or a body whose request has no answer: the error is the answer, and what the peer still sends
           is read and dropped until it has seen it, because closing on unread bytes would reset the connection and lose it.
        """
        self._reading_stopped = True
        self._refusal = error
        cycle = self.cycle
        if cycle is not None and self._is_reading_body():
            if self.pipeline:
                cycle.is_refused = True
                return
            if cycle.response_started:
                self.transport.close()
                return
            cycle.leave()
            if self.on_gone is not None:
                self.on_gone()
        elif cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            return
        request_id = new_request_id()
        self._tell_refused(request_id, "", error.status, error.code)
        self.transport.write(refusal_bytes(error, request_id))
        self.flow.resume_reading()
        self.idle_since = self.loop.time()
        self.transport.write_eof()


def _expects(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the client waits for `100 Continue`."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


class _BodyReader:
    """What a parser calls that is to read one body and nothing else."""

    def __init__(self, connection: GatewayProtocol) -> None:
        self.on_body = connection.on_body
        self._connection = connection
        self._trailers = writing.Trailers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Also called for the few lines that it was given as a head."""
        self._trailers.append((name, value))

    def on_message_complete(self) -> None:
        self._connection.end_of_last_body()
        raise ValueError("stops the parser")


BACKLOG = 4096
KEEP_ALIVE_S = 75.0
HEAD_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 60.0
"""How long a client may take nothing of what waits for it."""


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A listening socket, one of several where `reuse_port`. Raises OSError when the address cannot be had.

    `::` is every address of both families, where the system has IPv6, and else of IPv4.

    It does not block, and so does no copy of it: above tells what else would stand still.
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


# Which process listens at an address that cannot be had; on Linux, of processes of the same user (proc(5)).


PROC = Path("/proc")
LISTENING = "0A"
"""The state of a listening socket in `/proc/net/tcp`."""


def owner_of(host: str, port: int, proc: Path = PROC) -> str:
    """Returns words such as `gateway (pid 4242, in /srv/app)`; empty where it cannot be known.

    They name the program and its folder, and none of its arguments, which may hold secrets.
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


class HttpServer:
    """One port and the application behind it; `refused` hears of requests that do not get as far as the application.

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
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        sweep_connections(self._state.connections, HEAD_TIMEOUT_S, KEEP_ALIVE_S, WRITE_TIMEOUT_S)

    async def stop(self, patience_s: float = 1.0) -> None:
        """Close the listener and every connection; requests still running get `patience_s` to notice."""
        self.stop_accepting()
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
