"""The link to the Redis that replicas share; every command of the gateway goes through it.

It names the keys and chooses the server: the only one, the master that sentinels name, or of a `Cluster` the one that has the
key's slot. Beside it are the subscription to a channel, over a connection of its own, and the store's background tasks.

Invariants: a reply is awaited no longer than the timeout, and not at all while the store is known to be gone; a caller that
cancels its future disturbs no other. Of a cluster the failure of one server affects its keys only. It must not know what the
store keeps.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from redis.asyncio import Connection, Redis
from redis.asyncio.client import PubSub
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError

from gateway.core.types import SharedState
from gateway.drivers.redis.wire import (
    Node,
    NoReply,
    Part,
    Script,
    ServerOptions,
    StoreCommand,
    StoreGone,
    StoreRefused,
    StoreServer,
    address_of,
    always,
    client_of,
    connect,
    delay_s,
    load_script,
    master_of,
    named,
    reason_of,
    script_of,
)

__all__ = ["Link", "NoReply", "Script", "StoreGone", "StoreRefused", "load_script", "script_of"]

T = TypeVar("T")
log = logging.getLogger("gateway.store")

START_S = 0.5
"""Seconds that the start waits for the store: a replica that begins alone uses limits that other replicas use up."""
SCHEMA = "1"
"""The version of the data, a part of every key: releases with another format do not read each other's data."""


class Link:
    """The connections of one process to the store, made and used in one event loop."""

    def __init__(self, shared: SharedState) -> None:
        """Raises ValueError for a url that is no store address."""
        self._address = address_of(shared)
        self._prefix = f"{_braceless(shared.namespace)}:{SCHEMA}:"
        self._timeout_s = shared.timeout_s
        self._changed: list[Callable[[bool], None]] = []
        self._subscribers: list[Subscriber] = []
        self._options = ServerOptions(self._dial, shared.timeout_s, shared.connections)
        name, nodes = f"the store {self._address}", self._address.nodes
        self._store: StoreServer | Cluster
        if self._address.kind == "cluster":
            self._store = Cluster(name, nodes, self._options, self._on_change, partial(self.key, "probe"))
        else:
            find = self._find_master if self._address.kind == "sentinel" else always(nodes[0])
            self._store = StoreServer(name, find, self._options, self._on_change, probe_key=self.key("probe"))

    @property
    def is_up(self) -> bool:
        """Returns whether the store is not known to be gone; of a cluster: at least one server is up."""
        return self._store.is_up

    @property
    def operations(self) -> int:
        return self._options.tally.operations

    @property
    def failures(self) -> int:
        return self._options.tally.failures

    @property
    def connections(self) -> int:
        """Returns the number of connections that commands were sent over since the start: behind a new one may be another
        server.
        """
        return self._options.tally.connections

    @property
    def since(self) -> float:
        """Returns the wall time in seconds of the last change of `is_up`."""
        return self._store.since

    @property
    def reason(self) -> str:
        """Returns the reason why the store is not up, else its address."""
        return self._store.reason or str(self._address)

    def on_change(self, changed: Callable[[bool], None]) -> None:
        """Has `changed(is_up)` called, in the loop's thread, when the store goes out of reach and when it is back."""
        self._changed.append(changed)

    def key(self, use: str, *parts: bytes | str) -> bytes:
        """Returns the key of `use` and these parts, which all decide its slot; suffixes may be appended."""
        each = [part.encode() if isinstance(part, str) else part for part in parts]
        joined = b"".join([b"%d:%b" % (len(part), part) for part in each])
        return f"{self._prefix}{use}:{{{blake2b(joined, digest_size=16).hexdigest()}}}".encode()

    def slot_key(self, use: str, tag: str) -> bytes:
        """Returns a key as `key` does, but with `tag` itself in it: shorter, for many keys that begin with it."""
        return f"{self._prefix}{use}:{{{_braceless(tag)}}}".encode()

    @property
    def timeout_s(self) -> float:
        """Returns the timeout in seconds of one operation, and of all operations together that a call waits for."""
        return self._timeout_s

    def run(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes | str | int | float]
    ) -> asyncio.Future[Any]:
        """Runs a script; the future has its result within the timeout, or StoreGone, or StoreRefused for this command alone.

        All keys are in one slot. Scripts with the same first key run in the order in which they were given.
        """
        self._options.scripts[script.sha] = script
        return self._send((b"EVALSHA", script.sha, len(keys), *keys, *args), keys[0] if keys else b"", script)

    def command(self, *parts: bytes | str | int) -> asyncio.Future[Any]:
        """Sends one command, whose key, if any, follows its name; the promises are those of `run`."""
        key = parts[1] if len(parts) > 1 else b""
        return self._send(parts, key if isinstance(key, bytes) else str(key).encode(), None)

    def command_near(self, key: bytes, *parts: bytes | str | int) -> asyncio.Future[Any]:
        """Sends one command without a key to the server that has this one, as `command` does; a refusal is not logged."""
        return self._send(parts, key, None, is_quiet=True)

    def in_line(self, key: bytes, *commands: tuple[Part, ...]) -> list[asyncio.Future[Any]]:
        """Sends commands to the server that has this key: one behind the other, with nothing between, over one connection.

        None is sent again anywhere else, so that what the last says of its connection is about those before it.
        """
        return [self._send(parts, key, None, stays=True) for parts in commands]

    def home(self, key: bytes) -> object:
        """Returns the server that has the key, as far as is known: the same object for keys with the same one."""
        return self._store.home(key)

    def _send(
        self, parts: tuple[Part, ...], key: bytes, script: Script | None, *, stays: bool = False, is_quiet: bool = False
    ) -> asyncio.Future[Any]:
        job = StoreCommand(parts, key, self._options.tally, script)
        job.stays, job.is_quiet = stays, is_quiet
        self._store.send(job)
        if not job.future.done():
            job.expire_after(self._timeout_s)
        return job.future

    async def start(self) -> None:
        """Connects; returns after `START_S` at the latest, and goes on trying in the background."""
        self._store.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(self._timeout_s, START_S)):
                await self._store.reached()

    async def aclose(self) -> None:
        """Closes the connections; commands under way fail, and no listener is called."""
        await self._store.aclose()

    async def subscribe(self, channel: bytes, on_message: Callable[[bytes], None], joined: Callable[[], None]) -> None:
        """Passes the channel's messages to `on_message`, over a connection of its own, until it is cancelled.

        `joined` is called after every subscription: messages between two subscriptions are missed.
        """
        subscriber = Subscriber(self._connect, channel, on_message, joined, lambda: self.is_up)
        self._subscribers.append(subscriber)
        try:
            await subscriber.run()
        finally:
            self._subscribers.remove(subscriber)

    @property
    def is_deaf(self) -> bool:
        """Returns whether a subscription keeps failing although the store is up."""
        return any(subscriber.is_deaf for subscriber in self._subscribers)

    async def _connect(self) -> Redis:
        return client_of(self._address, await self._store.where())

    async def _dial(self, node: Node) -> Connection:
        return await connect(self._address, node)

    async def _find_master(self) -> Node:
        return await master_of(self._address)

    def _on_change(self, is_up: bool) -> None:
        for changed in self._changed:
            try:
                changed(is_up)
            except Exception:
                log.exception("somebody could not be told that the store is %s", "up" if is_up else "gone")


def _braceless(namespace: str) -> str:
    """Returns the namespace without braces, which would decide the slot."""
    return namespace.replace("{", "(").replace("}", ")")


# --- a cluster's map of slots to servers, fetched anew when a server says that it is wrong, and while one is gone ---

Range = tuple[int, int, Node]
"""The first and the last slot of a range, and the server that has them."""
PATIENCE_S = 1.0
"""Seconds that a server has for a connection, for the map of slots, or for the reply to a ping."""
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

    def send(self, job: StoreCommand) -> None:
        """Sends the command to the server of its key's slot; it fails at once where there is none."""
        server = self._slots[key_slot(job.key)]
        if server is None:
            job.fail(StoreGone(self._trouble or "no server has the key's slot"))
            self._stale.set()
        else:
            server.send(job)

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
            self._log_not_found()
        else:
            self._trouble = ""

    def _log_not_found(self) -> None:
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
        server.send(job, asking=not is_moved)

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


# --- a subscription to one channel, which is renewed whenever its connection breaks ---


ASK_AFTER_S = 2.0
"""Seconds of silence before the server is pinged."""
FIRST_RECONNECT_DELAY_S, LAST_RECONNECT_DELAY_S = 0.05, 1.0
DEAF_AFTER = 5
"""Failed attempts in a row, while the store is up, before the log has a line of it."""


class Subscriber:
    """The subscription to one channel.

    Invariants: a silently dead connection is noticed within seconds; a listener that raises does not end the subscription;
    where the store is up and the subscription keeps failing (it may be forbidden), the log has one line of that and one of
    its end.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Redis]],
        channel: bytes,
        on_message: Callable[[bytes], None],
        joined: Callable[[], None],
        is_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_up` is true while the store is up: while it is not, failures are expected and its health logs them."""
        self._connect = connect
        self._channel = channel
        self._on_message = on_message
        self._joined = joined
        self._is_up = is_up
        self._tries = 0
        self._failed_attempts = 0
        self._is_logged = False
        self.is_deaf = False
        """The store is up, but the subscription keeps failing."""

    async def run(self) -> None:
        """Receives messages until it is cancelled."""
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - any error: the subscription is renewed
                self._tries += 1
                self._failed(error)
            await asyncio.sleep(delay_s(FIRST_RECONNECT_DELAY_S, LAST_RECONNECT_DELAY_S, self._tries))

    def _failed(self, error: Exception) -> None:
        self._failed_attempts = self._failed_attempts + 1 if self._is_up() else 0
        if self._failed_attempts == DEAF_AFTER and not self.is_deaf:
            self.is_deaf = True
            log.warning("what other replicas tell cannot be heard: %s; it is tried again", reason_of(error))

    def _note_success(self) -> None:
        self._tries = self._failed_attempts = 0
        if self.is_deaf:
            self.is_deaf = False
            log.warning("what other replicas tell is heard again")

    async def _listen(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            client = await self._connect()
        pubsub = client.pubsub()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await pubsub.subscribe(self._channel)
            while True:
                _end_if_cancelled()
                self._take(await _next(pubsub))
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis-py has no type for it
            await client.aclose()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "message":
            self._notify(self._on_message, message["data"])
        elif message["type"] == "subscribe":
            self._note_success()
            self._notify(self._joined)

    def _notify(self, listener: Callable[..., None], *data: bytes) -> None:
        try:
            listener(*data)
        except Exception:
            if not self._is_logged:
                self._is_logged = True
                log.exception("what was heard from other replicas could not be taken, which is not said again")


def _end_if_cancelled() -> None:
    """Raises CancelledError if the task was cancelled and what it awaited has swallowed that.

    redis-py writes within `asyncio.wait_for`, which does so up to Python 3.11 when the write ends in the same turn of the
    loop (python/cpython#86296): nobody would cancel the task again, and whoever closes the store would wait for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _next(pubsub: PubSub) -> dict[str, Any]:
    """Returns the next message; raises TimeoutError when the server does not answer a ping either."""
    message: dict[str, Any] | None = await pubsub.get_message(timeout=ASK_AFTER_S)
    if message is None:
        await pubsub.ping()
        message = await pubsub.get_message(timeout=PATIENCE_S)
    if message is None:
        raise TimeoutError("the server says nothing")
    return message


class BackgroundTasks:
    """The background tasks of one store, which end by themselves; their coroutines raise nothing.

    Invariant: a running task is referenced, so that it is not collected, and none outlives the store.
    """

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task and returns it; awaiting it is optional."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self, within_s: float) -> None:
        """Waits up to `within_s` seconds for all tasks, then cancels the rest."""
        if self._tasks:
            await asyncio.wait([*self._tasks], timeout=within_s)
        left = [*self._tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
