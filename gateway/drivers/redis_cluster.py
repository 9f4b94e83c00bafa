"""A Redis Cluster: the map of slots to servers.

Invariants: a command goes to the server of its key's slot and to no other; the failure of one server affects its keys only.
The map is fetched anew when a server says that it is wrong, and repeatedly while a server is gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.asyncio import Connection
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError, NoScriptError, ResponseError

from gateway.drivers.redis.connect import Node, always, named
from gateway.drivers.redis.job import NoReply, OperationCounts, Part, Script, StoreCommand, StoreGone, StoreRefused
from gateway.drivers.redis_health import ServerHealth, delay_s, reason_of

# One connection with pipelining: the commands that arrive during a round trip go out together in the next.
#
# Invariants: replies are matched to commands in the order of sending, cancelled ones included; a connection on which that order
# could be lost is closed. It must not know what a command means, nor what its failure means for others.

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

    def ask(self, *jobs: StoreCommand) -> None:
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


# One server: its connections, the deadlines of its commands, and the meaning of its errors.
#
# A probe opens missing connections, loads every script in use into the server, and writes a key of its own, because a replica
# or a full server answers but cannot serve. Invariant: no command outlives its deadline, wherever it is stuck. It must not know
# what keys mean, nor where a redirect leads.


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
        """Returns when the server has been up once."""
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

    def ask(self, job: StoreCommand, *, asking: bool = False) -> None:
        """Sends the command; its future ends by its deadline. `asking`: ASKING goes before it, as an ASK redirect requires."""
        if not self._health.is_open:
            job.fail(StoreGone(self.reason))
            return
        self._options.tally.operations += 1
        job.late = self.late
        self._wire_of(job).ask(*((StoreCommand((b"ASKING",)), job) if asking else (job,)))

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
            self._wire_of(job).ask(job)
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
        jobs = [StoreCommand(parts) for parts in self._checks()]
        for job in jobs:
            job.hops, job.is_quiet = MOST_HOPS, True  # the health tells of it
        self._wires[0].ask(*jobs)
        for job in jobs:
            await job.future

    def _checks(self) -> list[tuple[Part, ...]]:
        load: list[tuple[Part, ...]] = [(b"SCRIPT", b"LOAD", script.text) for script in self._options.scripts.values()]
        return [*load, (b"EVAL", PROBE, 1, self.probe_key, PROBE_TTL_MS) if self.probe_key else (b"PING",)]


log = logging.getLogger("gateway.store")

Range = tuple[int, int, Node]
"""The first and the last slot of a range, and the server that has them."""
PATIENCE_S = 1.0
"""Seconds that one server has to return the map of slots."""
FIRST_REST_S, LAST_REST_S = 0.1, 3.0
"""Seconds between two fetches of the map: the first delay, doubled up to the second while a server is missing."""
GATHER_S = 0.3
"""Seconds between the first server that is up and the report that the cluster is: other servers usually follow at once."""
MOST_TAGS = 2000
"""Keys that are tried, at most, to find one in a server's slots for its probe."""


class Cluster:
    """Has the interface of `StoreServer`; calls `changed(is_up)` when the first server is up, and when the last is gone."""

    def __init__(
        self,
        name: str,
        seeds: Iterable[Node],
        options: ServerOptions,
        changed: Callable[[bool], None],
        probe_key: Callable[[str], bytes],
    ) -> None:
        self._name = name
        self._seeds = tuple(seeds)
        self._options = options
        self._changed = changed
        self._probe_key = probe_key
        self._servers: dict[Node, StoreServer] = {}
        self._slots: list[StoreServer | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._stale = asyncio.Event()
        self._mapped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._trouble = "it has not been reached yet"
        self._is_logged = False
        self.is_up = False
        self._gathering: asyncio.TimerHandle | None = None
        self.since = time.time()

    @property
    def reason(self) -> str:
        """Returns the reason of the first server that is not up, else that of a missing map."""
        reasons = [server.reason for server in self._servers.values() if not server.is_up]
        return reasons[0] if reasons else self._trouble

    def start(self) -> None:
        """Fetches the map and connects to its servers, in the background."""
        self._stale.set()
        self._task = asyncio.create_task(self._keep_map(), name="store map")

    async def reached(self) -> None:
        """Returns when every server of the map has been up once."""
        await self._mapped.wait()
        await asyncio.gather(*[server.reached() for server in self._servers.values()])

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._gathering is not None:
            self._gathering.cancel()
        self.is_up = False
        closing = [server.aclose() for server in self._servers.values()]
        await asyncio.gather(*closing, *self._closing, return_exceptions=True)

    def ask(self, job: StoreCommand) -> None:
        """Sends the command to the server of its key's slot; it fails at once where there is none."""
        server = self._slots[key_slot(job.key)]
        if server is None:
            job.fail(StoreGone(self._trouble or "no server has the key's slot"))
            self._stale.set()
        else:
            server.ask(job)

    def home(self, key: bytes) -> object:
        """Returns the server of the key's slot, as far as is known."""
        return self._slots[key_slot(key)]

    async def where(self) -> Node:
        """Returns any server that is up, or one of the configured addresses."""
        return random.choice([*(node for node, server in self._servers.items() if server.is_up), *self._seeds])  # noqa: S311  # which server is asked is no secret

    # The map of slots.

    async def _keep_map(self) -> None:
        tries = 0
        while True:
            await self._stale.wait()
            self._stale.clear()
            await self._renew()
            is_whole = bool(self._servers) and all(server.is_up for server in self._servers.values())
            tries = 0 if is_whole else tries + 1
            if not is_whole:
                self._stale.set()
            await asyncio.sleep(delay_s(FIRST_REST_S, LAST_REST_S, tries))

    async def _renew(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                self._learn(await self._fetch(await self.where()))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            self._trouble = reason_of(error)
            self._tell()
        else:
            self._trouble = ""

    def _tell(self) -> None:
        """Logs a cluster that was never found; a known server's own health logs its trouble."""
        if not self._servers and not self._is_logged:
            self._is_logged = True
            log.warning(
                "%s has not been found: %s. Calls go on without it; it is tried again.", self._name, self._trouble
            )

    async def _fetch(self, node: Node) -> list[Range]:
        connection = await self._options.dial(node)
        try:
            await connection.send_command("CLUSTER", "SLOTS")
            return [_range(row, node) for row in await connection.read_response()]
        finally:
            await connection.disconnect(nowait=True)

    def _learn(self, ranges: list[Range]) -> None:
        slots: list[StoreServer | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        owned: dict[Node, list[Range]] = {}
        for each in ranges:
            owned.setdefault(each[2], []).append(each)
        for node, its_ranges in owned.items():
            server = self._server_at(node, its_ranges)
            for first, last, _ in its_ranges:
                slots[first : last + 1] = [server] * (last + 1 - first)
        self._slots = slots
        self._mapped.set()
        for node in self._servers.keys() - owned.keys():
            self._drop(self._servers.pop(node))

    def _server_at(self, node: Node, ranges: list[Range]) -> StoreServer:
        server = self._servers.get(node)
        if server is None:
            server = self._servers[node] = StoreServer(
                f"the store's server {named(node)}",
                always(node),
                self._options,
                self._on_change,
                redirect=self._redirect,
            )
            server.probe_key = self._key_in(ranges)
            server.start()
        elif server.probe_key is None or not _holds(ranges, server.probe_key):
            server.probe_key = self._key_in(ranges)
        return server

    def _key_in(self, ranges: list[Range]) -> bytes | None:
        keys = (self._probe_key(str(number)) for number in range(MOST_TAGS))
        return next((key for key in keys if _holds(ranges, key)), None)

    def _drop(self, server: StoreServer) -> None:
        """Closes a server that has no slots any more."""
        task = asyncio.create_task(server.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # Redirects and changes of health.

    def _redirect(self, job: StoreCommand, error: AskError) -> None:
        """Follows a redirect: MOVED for good, ASK for this command only.

        The command fails where the other server is not known yet, or if it is for one connection.
        """
        server = self._servers.get((error.host, error.port))
        is_moved = isinstance(error, MovedError)
        if server is None or is_moved:
            self._stale.set()
        if server is not None and is_moved:
            self._slots[error.slot_id] = server
        if server is None or job.stays:
            job.fail(StoreGone("the key's slot is on its way to another server"))
            return
        server.ask(job, asking=not is_moved)

    def _on_change(self, is_up: bool) -> None:
        if not is_up:
            self._stale.set()
        are_up = [server.is_up for server in self._servers.values()]
        if not self.is_up and any(are_up) and not all(are_up):  # the other servers may follow in a moment
            if self._gathering is None:
                self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self._settle)
            return
        self._settle()

    def _settle(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        is_any_up = any(server.is_up for server in self._servers.values())
        if is_any_up != self.is_up:
            self.is_up, self.since = is_any_up, time.time()
            self._changed(is_any_up)


def _range(row: Any, node: Node) -> Range:
    """Reads one row of CLUSTER SLOTS; a server that does not know its own name leaves the host out."""
    first, last, (host, port, *_), *_ = row
    return int(first), int(last), (host.decode() if host not in (None, b"", b"?") else node[0], int(port))


def _holds(ranges: list[Range], key: bytes) -> bool:
    slot = key_slot(key)
    return any(first <= slot <= last for first, last, _ in ranges)
