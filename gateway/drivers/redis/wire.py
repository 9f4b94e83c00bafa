"""One Redis server: its address, the commands for it, the wire that carries them in order, its health, and the server itself.

The first part parses addresses, asks sentinels for the master and connects. Then comes what is sent: a command with the
future of its reply, the scripts that run inside the server, and the errors of a command without a reply. Then one
connection: commands that arrive during a round trip go out together in the next. Then the health of the server
(`ServerHealth`), and last `StoreServer`, with its connections, deadlines and the meaning of errors.

Invariants: no message and no repr shows a credential; sentinels are asked anew after every failure, and a former master is
recognised because the probe writes to it. A command ends once, with a reply or an error, and never outlives its deadline,
wherever it is stuck; its future may be left unread. A script does only what its text says, and two runs differ in keys and
arguments only. Replies are matched to commands in the order of sending, cancelled ones included; a connection on which that
order could be lost is closed. It must not know what keys mean, nor where a redirect leads.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from hashlib import sha1
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import unquote, urlsplit

from hiredis import pack_command
from redis.asyncio import Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import EqualJitterBackoff, NoBackoff
from redis.exceptions import AskError, AuthenticationError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout

from gateway.core.types import SharedState

Node = tuple[str, int]
"""Host and port."""
Kind = Literal["single", "sentinel", "cluster"]

TROUBLE = (RedisError, OSError, asyncio.TimeoutError)
"""The exceptions that a server which cannot be used may raise."""
SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
PATIENCE_S = 1.0
"""Seconds that a client of `client_of` waits for a connection, or for a reply."""
PORTS: dict[Kind, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store url, parsed."""

    kind: Kind
    nodes: tuple[Node, ...]
    """The named servers: of a cluster some of them, of a sentinel url the sentinels."""
    is_tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    db: int = 0
    service: str = ""
    ca_file: str | None = None

    def __str__(self) -> str:
        """Returns the url without its login, for log lines."""
        scheme = next(name for name, means in SCHEMES.items() if means == (self.kind, self.is_tls))
        who = "***@" if self.username or self.password else ""
        path = f"/{self.service}/{self.db}" if self.service else f"/{self.db}"
        return f"{scheme}://{who}{','.join(named(node) for node in self.nodes)}{path}"


def named(node: Node) -> str:
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(shared: SharedState) -> StoreAddress:
    """Parses the url, which the config has checked; raises a ValueError that does not quote it."""
    try:
        return _address_of(shared)
    except (ValueError, KeyError):  # its message may quote a part of the password
        raise ValueError(
            f"the store's url is not {', '.join(SCHEMES)}://host:port/database (for sentinels: /service/database) or has "
            "options; odd characters of a password are written as %xx"
        ) from None


def _address_of(shared: SharedState) -> StoreAddress:
    parts = urlsplit(shared.url)
    kind, is_tls = SCHEMES[parts.scheme]
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    service, _, db = parts.path.strip("/").rpartition("/") if kind == "sentinel" else ("", "", parts.path.strip("/"))
    if kind == "sentinel" and not service:  # no database is given
        service, db = db, ""
    if parts.query or parts.fragment or (kind == "sentinel" and not service) or not (db or "0").isdecimal():
        raise ValueError
    return StoreAddress(
        kind=kind,
        nodes=tuple(_node(host, PORTS[kind]) for host in hosts.split(",")),
        is_tls=is_tls,
        username=unquote(username) or None,
        password=unquote(password) or None,
        db=int(db or 0),
        service=unquote(service),
        ca_file=shared.ca_file,
    )


def _node(text: str, port: int) -> Node:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "localhost", parts.port or port


def _options(address: StoreAddress, node: Node) -> dict[str, Any]:
    """Returns what redis-py needs for a connection. RESP2: each reply has one form, and older servers speak it, too."""
    tls = {"ssl_ca_certs": address.ca_file, "ssl_check_hostname": True} if address.is_tls else {}
    return {
        "host": node[0],
        "port": node[1],
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "protocol": 2,
        "driver_info": None,
        "client_name": "gateway",
        "retry": Retry(NoBackoff(), 0),
        **tls,
    }


def always(node: Node) -> Callable[[], Awaitable[Node]]:
    """Returns a function that finds a server which is always at this address."""

    async def find() -> Node:
        return node

    return find


async def connect(address: StoreAddress, node: Node) -> Connection:
    """Returns a connection after its handshake; has no timeout, the caller sets one."""
    kind = SSLConnection if address.is_tls else Connection
    connection = kind(**_options(address, node), socket_timeout=None, socket_connect_timeout=None)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]  # redis-py has no type for it
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


def client_of(address: StoreAddress, node: Node) -> Redis:
    """Returns redis-py's client of one server, which connects when it is used and tries nothing twice."""
    return Redis(
        **_options(address, node),
        ssl=address.is_tls,
        socket_timeout=PATIENCE_S,
        socket_connect_timeout=PATIENCE_S,
    )


async def master_of(address: StoreAddress) -> Node:
    """Asks all sentinels at once and returns the first master that one names: a sentinel that hangs delays nothing.

    Raises as a connection does when no sentinel knows it; has no timeout, the caller sets one.
    """
    tasks = [asyncio.create_task(_find_master(address, sentinel)) for sentinel in address.nodes]
    trouble: BaseException | None = None
    try:
        for first in asyncio.as_completed(tasks):
            try:
                return await first
            except TROUBLE as error:
                trouble = error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise RedisConnectionError(f"no sentinel knows the master of {address.service}: {trouble}")


async def _find_master(address: StoreAddress, sentinel: Node) -> Node:
    try:
        return await _master_of(replace(address, db=0), sentinel)
    except AuthenticationError:  # the url's login may be one of the servers only
        return await _master_of(replace(address, db=0, username=None, password=None), sentinel)


async def _master_of(address: StoreAddress, sentinel: Node) -> Node:
    async with client_of(address, sentinel) as client:
        match await client.sentinel_get_master_addr_by_name(address.service):
            case [bytes(host), int(port)]:
                return host.decode(), port
    raise RedisConnectionError("it does not know the service")


# --- one command ---

Part = bytes | str | int | float

GRACE_S = 0.002
"""Seconds after a deadline in which a reply that arrived while this process was busy is still read."""
FOLDER = Path(__file__).parent / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script with the prelude in front, which the server runs atomically."""

    name: str
    text: bytes
    sha: bytes
    """The digest by which EVALSHA names it once the server has seen the text."""


def load_script(name: str) -> Script:
    """Returns the script in `lua/<name>.lua`."""
    return script_of(name, (FOLDER / f"{name}.lua").read_text())


def script_of(name: str, body: str) -> Script:
    """Returns a script of the given text, for one that has no file of its own."""
    text = ((FOLDER / "prelude.lua").read_text() + body).encode()
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())


class StoreGone(Exception):
    """The store did not answer in time, or is known to be gone; the message says why."""


class StoreRefused(StoreGone):
    """The store rejected this one command; others work."""


class NoReply(StoreGone):
    """The command was sent, and its answer did not come: it may have been carried out, or be so yet."""


class OperationCounts:
    """The number of commands sent, of those that ended without a reply, and of connections made for them."""

    __slots__ = ("connections", "failures", "operations")

    def __init__(self) -> None:
        self.connections = 0
        self.operations = 0
        self.failures = 0


class StoreCommand:
    """One command and the future of its reply, which may be cancelled at any time: the reply is then read and discarded."""

    __slots__ = (
        "_tally",
        "_timer",
        "future",
        "hops",
        "is_over",
        "is_quiet",
        "key",
        "late",
        "packed",
        "parts",
        "script",
        "stays",
    )

    def __init__(
        self,
        parts: tuple[Part, ...],
        key: bytes = b"",
        tally: OperationCounts | None = None,
        script: Script | None = None,
    ) -> None:
        """Packs the command; raises redis's DataError when a part is none of bytes, str, int and float."""
        self.parts = parts
        self.packed = pack(parts)
        self.key = key
        """Selects server and connection, so that the commands of one key run in the order in which they were given."""
        self.script = script
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.late: Callable[[StoreCommand], None] | None = None
        """Is called when the deadline has passed; None: no server has taken the command yet."""
        self.is_over = False
        self.hops = 0
        """The number of times it was sent again: to another server, or with the script's text."""
        self.stays = False
        """It is for one connection, and sent nowhere else."""
        self.is_quiet = False
        """The sender reports its refusal."""
        self._tally = tally
        self._timer: asyncio.TimerHandle | None = None

    def expire_after(self, timeout_s: float) -> None:
        """Sets the deadline: the command ends by then, wherever it is."""
        if not self.is_over:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._allow_grace)

    def _allow_grace(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(GRACE_S, self._expire)

    def _expire(self) -> None:
        if self.late is not None:
            self.late(self)

    @property
    def name(self) -> str:
        """Returns the name for log lines, without keys and arguments."""
        first = self.parts[0]
        return self.script.name if self.script else first.decode() if isinstance(first, bytes) else str(first)

    def answer(self, reply: Any) -> None:
        self._end()
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: StoreGone) -> None:
        if not self.is_over:
            self._end()
            if self._tally is not None and self.late is not None:  # without a server it counts as no operation
                self._tally.failures += 1
            if not self.future.done():
                self.future.set_exception(error)
                self.future.exception()  # is read once, so that asyncio does not log it as never retrieved

    def _end(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def bring(self, text: bytes) -> None:
        """Turns EVALSHA into EVAL with the script's text, which the server then keeps."""
        self.packed = pack((b"EVAL", text, *self.parts[2:]))


def pack(parts: tuple[Part, ...]) -> bytes:
    """Returns the command in RESP; floats are written as by `repr`."""
    packed: bytes = pack_command(parts)  # type: ignore[arg-type]  # its hint allows one part only
    return packed


# --- one connection ---

Dial = Callable[[Node], Awaitable[Connection]]


class WireOwner(Protocol):
    """Handles the failures of a connection."""

    def refused(self, job: StoreCommand, error: ResponseError) -> None:
        """Handles the server's error reply to a command."""
        ...

    def broke(self, error: BaseException) -> str:
        """Handles a broken connection; returns the reason with which its commands fail."""
        ...


class StoreWire:
    """One connection; commands are sent in the order in which they were given."""

    __slots__ = ("_dial", "_in_flight", "_owner", "_pending", "_task", "_wake", "node")

    def __init__(self, dial: Dial, owner: WireOwner) -> None:
        self._dial = dial
        self._owner = owner
        self._pending: list[StoreCommand] = []
        self._in_flight: deque[StoreCommand] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.node: Node = ("", 0)
        """The server of the present or last connection."""

    @property
    def is_open(self) -> bool:
        return self._task is not None

    async def open(self, node: Node) -> None:
        """Connects; raises as the connection does, and has no timeout of its own."""
        connection = await self._dial(node)
        self.node = node
        self._task = asyncio.create_task(self._run(connection), name="store wire")
        await asyncio.sleep(0)  # a task that has begun closes its connection however it ends

    def send(self, *jobs: StoreCommand) -> None:
        """Sends the commands, with nothing in between, as soon as the round trip under way is complete."""
        self._pending.extend(jobs)
        self._wake.set()

    def cut(self, reason: str) -> asyncio.Task[None] | None:
        """Closes the connection and fails its commands; the returned task, if any, ends when the connection is closed."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        sent, unsent = [*self._in_flight], [*self._pending]
        self._in_flight.clear()
        self._pending.clear()
        for job in sent:
            job.fail(NoReply(reason))
        for job in unsent:
            job.fail(StoreGone(reason))
        return task

    async def _run(self, connection: Connection) -> None:
        """Is the only reader and writer of the connection; a caller that is cancelled does not cancel it."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._pending:
                    connection = await self._alive(connection)
                    await self._round_trip(connection)
        except Exception as error:  # noqa: BLE001 - the task ends: its owner handles any error
            self._task = None
            self.cut(self._owner.broke(error))
        finally:
            await connection.disconnect(nowait=True)

    async def _alive(self, connection: Connection) -> Connection:
        """Returns this connection, or a new one if the server closed it while it was idle."""
        if not await connection.can_read():
            return connection
        await connection.disconnect(nowait=True)
        return await self._dial(self.node)

    async def _round_trip(self, connection: Connection) -> None:
        self._in_flight.extend(self._pending)
        self._pending.clear()
        await connection.send_packed_command([job.packed for job in self._in_flight], check_health=False)
        while self._in_flight:
            try:
                reply = await connection.read_response()
            except ResponseError as error:
                self._owner.refused(self._in_flight.popleft(), error)
            else:
                self._in_flight.popleft().answer(reply)


# --- the health of a server ---

log = logging.getLogger("gateway.store")

FIRST_PROBE_DELAY_S, LAST_PROBE_DELAY_S = 0.1, 0.3
"""Seconds between two probes, doubling, less up to half by chance so that replicas do not probe in step."""
MOST_PATIENCE_S = 1.0
"""The cap in seconds on a probe's timeout, which doubles from the store's: a slow handshake must still succeed."""
CALM_S = 5.0
"""Doubt that returns within this many seconds counts as the same, and the server as gone."""
QUIET_S = 30.0
"""Trouble that returns within this many seconds of the last report is logged only if it outlasts them."""


class ServerHealth:
    """Health of one server. `is_open`: commands may be sent. `is_up`: it is not gone. `reached`: it was up once.

        up --no answer in time, or an error--> in doubt --the probe fails--> gone --the probe succeeds--> up
                                               in doubt --the probe succeeds--> up, without a report

    It is found by probes in the background, so that no call waits for it. In doubt and gone, the server gets no command but
    the probe. So one slow command costs the calls that wait for it and, until the probe ends, a fallback to new calls;
    doubt that returns within `CALM_S` counts as gone, with a longer delay before each probe. A probe opens missing
    connections, loads every script in use into the server, and writes a key of its own, because a replica or a full server
    answers but cannot serve.

    Invariants: a listener that gets the news that the server is gone also gets that it is back; the log has one line of
    trouble and one of its end, however often the server comes and goes.
    """

    def __init__(
        self,
        name: str,
        probe: Callable[[], Awaitable[None]],
        lost: Callable[[str], None],
        changed: Callable[[bool], None],
        timeout_s: float,
    ) -> None:
        """`probe` raises when the server cannot be used; `lost(reason)` ends the commands that still wait for it."""
        self._name = name
        self._probe = probe
        self._lost = lost
        self._changed = changed
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None
        self._tries = 0
        self._calm_at = 0.0
        self._doubted_at = time.monotonic()
        self._logged_at: float | None = None
        self._is_logged = False
        self.reached = asyncio.Event()
        self.is_open = False
        self.is_up = False
        self.since = time.time()
        self.reason = "it has not been reached yet"

    def start(self) -> None:
        """Begins to probe, and goes on until the server is up."""
        self._task = asyncio.create_task(self._recover(), name="store probe")

    async def aclose(self) -> None:
        """Ends the probes and marks the server as gone, without a report."""
        self.is_open = self.is_up = False
        self.reason = "the gateway stops"
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def doubt(self, reason: str) -> None:
        """Notes that a command failed or was late: the server is in doubt, or gone if it was in doubt a moment ago."""
        if not self.is_open:
            return
        self.is_open, self.reason = False, reason
        self._doubted_at = time.monotonic()
        if self._doubted_at < self._calm_at:
            self._mark_gone(reason)
        else:
            self._tries = 0
        self.start()

    def verify(self) -> None:
        """Notes a refusal that may concern one command, or all: the server goes on, and is in doubt if the probe fails."""
        if self.is_open and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._verify(), name="store probe")

    async def _verify(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._probe()
        except Exception as error:  # noqa: BLE001 - as in `_recover`
            self.doubt(reason_of(error))

    async def _recover(self) -> None:
        while not self.is_open:
            await asyncio.sleep(
                delay_s(FIRST_PROBE_DELAY_S, LAST_PROBE_DELAY_S, self._tries - 1) if self._tries else 0.0
            )
            self._tries += 1
            try:
                async with asyncio.timeout(self._patience_s()):
                    await self._probe()
            except Exception as error:  # noqa: BLE001 - any failure of the probe means that the server cannot be used
                self._mark_gone(reason_of(error))
            else:
                self._mark_back()

    def _patience_s(self) -> float:
        patience_s: float = min(MOST_PATIENCE_S, self._timeout_s * 2 ** min(self._tries - 1, 10))
        return max(self._timeout_s, patience_s)

    def _mark_gone(self, reason: str) -> None:
        self.reason = reason
        self._lost(reason)
        self._log_trouble()
        if self.is_up:
            self.is_up, self.since = False, time.time()
            self._changed(False)

    def _mark_back(self) -> None:
        now = time.monotonic()
        self.is_open, self.reason = True, ""
        if self.reached.is_set():
            self._calm_at = now + CALM_S
        if self._is_logged:
            self._is_logged = False
            log.warning("%s can be used again, after %.1f s.", self._name, now - self._doubted_at)
        if not self.is_up:
            self.is_up, self.since = True, time.time()
            self.reached.set()
            self._changed(True)

    def _log_trouble(self) -> None:
        now = time.monotonic()
        if not self._is_logged and (self._logged_at is None or now - self._logged_at >= QUIET_S):
            self._is_logged, self._logged_at = True, now
            reason = self.reason.rstrip(".")
            log.warning("%s cannot be used: %s. Calls go on without it; it is tried again.", self._name, reason)


def delay_s(first_s: float, last_s: float, doublings: int) -> float:
    """Returns the delay before another attempt: doubled each time up to `last_s`, less up to half by chance."""
    backoff: float = EqualJitterBackoff(cap=last_s, base=first_s).compute(min(doublings, 10))
    return backoff


def reason_of(error: BaseException) -> str:
    """Returns the error in words, without the arguments of a command, which a server may quote."""
    if isinstance(error, TimeoutError | RedisTimeout):
        return "no answer in time"
    return str(error).partition(", with args")[0] or type(error).__name__


# --- the server ---

CANNOT_SERVE = re.compile(r"\b(READONLY|OOM|MISCONF|NOREPLICAS|CLUSTERDOWN|BUSY|LOADING|MASTERDOWN)\b")
"""Codes of errors of a server that cannot serve; an error that a script passes on has words around them."""
MAY_REFUSE_ALL = re.compile(r"\b(NOPERM|NOAUTH|WRONGPASS)\b")
"""Codes of refusals for want of a permission: of this command, or of every one."""
SPOILED = (
    "a key of the gateway holds data of another type: another program writes there, or another release has done so. Give the "
    "gateway a database or a namespace of its own"
)
SPOILED_S = 5.0
"""Seconds for which the server is not used after that error."""
PROBE_TTL_MS = 1000
PROBE = b"return redis.call('SET', KEYS[1], '', 'PX', ARGV[1])"
"""Writes as the gateway does, which is by scripts: a server may allow commands and forbid these."""
MOST_HOPS = 5


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """All servers of a store have these in common."""

    dial: Dial
    timeout_s: float
    connections: int
    tally: OperationCounts = field(default_factory=OperationCounts)
    scripts: dict[bytes, Script] = field(default_factory=dict)
    """All scripts in use, by their digests: a set that grows."""


class StoreServer:
    """One server; `find` returns its address before every connection, because sentinels may name another master."""

    def __init__(
        self,
        name: str,
        find: Callable[[], Awaitable[Node]],
        options: ServerOptions,
        changed: Callable[[bool], None],
        *,
        probe_key: bytes | None = None,
        redirect: Callable[[StoreCommand, AskError], None] | None = None,
    ) -> None:
        """`probe_key`: a key that the probe writes; None: it only pings."""
        self._find = find
        self._options = options
        self._redirect = redirect
        self.probe_key = probe_key
        self._spoiled_until = 0.0
        """The monotonic time until which a key of another type keeps the server out of use; the probe cannot see such keys."""
        self._wires = [StoreWire(self._dial, self) for _ in range(options.connections)]
        self._health = ServerHealth(name, self._probe, self._cut_all, changed, options.timeout_s)
        self._logged: set[str] = set()

    @property
    def is_up(self) -> bool:
        return self._health.is_up

    @property
    def since(self) -> float:
        return self._health.since

    @property
    def reason(self) -> str:
        return self._health.reason

    async def _dial(self, node: Node) -> Connection:
        connection = await self._options.dial(node)
        self._options.tally.connections += 1
        return connection

    def start(self) -> None:
        """Connects in the background and goes on trying."""
        self._health.start()

    async def reached(self) -> None:
        await self._health.reached.wait()

    async def aclose(self) -> None:
        """Closes the connections; commands under way fail."""
        await self._health.aclose()
        tasks = [wire.cut(self.reason) for wire in self._wires]
        await asyncio.gather(*[task for task in tasks if task is not None], return_exceptions=True)

    def home(self, _key: bytes) -> object:
        """Returns this server, which has all keys."""
        return self

    def where(self) -> Awaitable[Node]:
        """Returns the address, for a connection that the caller makes itself."""
        return self._find()

    def send(self, job: StoreCommand, *, asking: bool = False) -> None:
        """Sends the command; its future ends by its deadline. `asking`: ASKING goes before it, as an ASK redirect requires."""
        if not self._health.is_open:
            job.fail(StoreGone(self.reason))
            return
        self._options.tally.operations += 1
        job.late = self.late
        self._wire_of(job).send(*((StoreCommand((b"ASKING",)), job) if asking else (job,)))

    def _wire_of(self, job: StoreCommand) -> StoreWire:
        return self._wires[hash(job.key) % len(self._wires)]

    def late(self, job: StoreCommand) -> None:
        """Fails a command whose deadline has passed, and closes its connection: no later reply on it can be read in order."""
        reason = f"no answer within {self._options.timeout_s * 1000:g} ms"
        self._health.doubt(reason)
        self._wire_of(job).cut(reason)
        job.fail(StoreGone(reason))

    # Errors of commands and connections.

    def refused(self, job: StoreCommand, error: ResponseError) -> None:
        """Handles the server's error reply to one command: sends it again another way, or lets it fail."""
        if isinstance(error, AskError) and self._redirect is not None and job.hops < MOST_HOPS:
            job.hops += 1
            self._redirect(job, error)
        elif isinstance(error, NoScriptError) and job.script is not None and job.hops < MOST_HOPS:
            job.hops += 1
            job.bring(job.script.text)
            self._wire_of(job).send(job)
        else:
            self._reject(job, f"{error.status_code or ''} {reason_of(error)}".strip())

    def _reject(self, job: StoreCommand, text: str) -> None:
        if "WRONGTYPE" in text:
            self._spoiled_until = time.monotonic() + self._options.timeout_s + SPOILED_S
            job.fail(StoreGone(SPOILED))
            # Later, because commands under way to other keys can still be answered.
            asyncio.get_running_loop().call_later(self._options.timeout_s, self._health.doubt, SPOILED)
            return
        if CANNOT_SERVE.search(text):
            self._health.doubt(text)
            job.fail(StoreGone(text))
            return
        job.fail(StoreRefused(text))
        if MAY_REFUSE_ALL.search(text):
            self._health.verify()
        if not job.is_quiet and job.name not in self._logged:
            self._logged.add(job.name)
            log.error("the store cannot do %s, which is not said again: %s", job.name, text)

    def broke(self, error: BaseException) -> str:
        """Notes that a connection broke; returns the reason."""
        reason = reason_of(error)
        self._health.doubt(reason)
        return reason

    # The probe.

    def _cut_all(self, reason: str) -> None:
        for wire in self._wires:
            wire.cut(reason)

    async def _probe(self) -> None:
        if time.monotonic() < self._spoiled_until:
            raise StoreGone(SPOILED)
        node = await self._find()
        is_checked = False
        while not (is_checked and all(wire.is_open for wire in self._wires)):  # one may break while another is made
            await self._connect(node)
            await self._check()
            is_checked = True

    async def _connect(self, node: Node) -> None:
        for wire in self._wires:
            if wire.is_open and wire.node != node:
                wire.cut(f"it is {named(node)} now")
            if not wire.is_open:
                await wire.open(node)

    async def _check(self) -> None:
        # Every script in use is loaded, so that no call has to bring its text.
        load: list[tuple[Part, ...]] = [(b"SCRIPT", b"LOAD", script.text) for script in self._options.scripts.values()]
        probe: tuple[Part, ...] = (b"EVAL", PROBE, 1, self.probe_key, PROBE_TTL_MS) if self.probe_key else (b"PING",)
        jobs = [StoreCommand(parts) for parts in (*load, probe)]
        for job in jobs:
            job.hops, job.is_quiet = MOST_HOPS, True  # the health tells of it
        self._wires[0].send(*jobs)
        for job in jobs:
            await job.future
