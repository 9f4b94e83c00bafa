"""The link to the Redis that replicas share; every command of the gateway goes through it.

It names the keys and chooses the server. Invariants: a reply is awaited no longer than the timeout, and not at all while the
store is known to be gone; a caller that cancels its future disturbs no other. It must not know what the store keeps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from redis.asyncio import Connection, Redis

from gateway.drivers.redis.connect import Node, address_of, always, client_of, connect, master_of
from gateway.drivers.redis.job import (
    NoReply,
    Part,
    Script,
    StoreCommand,
    StoreGone,
    StoreRefused,
    load_script,
    script_of,
)
from gateway.drivers.redis_cluster import Cluster, ServerOptions, StoreServer
from gateway.drivers.redis_health import Subscriber
from gateway.fleet.lease.lease import SharedState

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
        self._store = self._store_of(f"the store {self._address}", self._address.nodes)

    def _store_of(self, name: str, nodes: Sequence[Node]) -> StoreServer | Cluster:
        if self._address.kind == "cluster":
            return Cluster(name, nodes, self._options, self._on_change, partial(self.key, "probe"))
        find = self._find_master if self._address.kind == "sentinel" else always(nodes[0])
        return StoreServer(name, find, self._options, self._on_change, probe_key=self.key("probe"))

    @property
    def is_up(self) -> bool:
        """Tells whether the store is not known to be gone; of a cluster: at least one server is up."""
        return self._store.is_up

    @property
    def operations(self) -> int:
        """Returns the number of commands since the start."""
        return self._options.tally.operations

    @property
    def failures(self) -> int:
        """Returns the number of commands that ended without a reply."""
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
        return self._ask((b"EVALSHA", script.sha, len(keys), *keys, *args), keys[0] if keys else b"", script)

    def command(self, *parts: bytes | str | int) -> asyncio.Future[Any]:
        """Sends one command, whose key, if any, follows its name; the promises are those of `run`."""
        key = parts[1] if len(parts) > 1 else b""
        return self._ask(parts, key if isinstance(key, bytes) else str(key).encode(), None)

    def command_near(self, key: bytes, *parts: bytes | str | int) -> asyncio.Future[Any]:
        """Sends one command without a key to the server that has this one, as `command` does; a refusal is not logged."""
        return self._ask(parts, key, None, is_quiet=True)

    def in_line(self, key: bytes, *commands: tuple[Part, ...]) -> list[asyncio.Future[Any]]:
        """Sends commands to the server that has this key: one behind the other, with nothing between, over one connection.

        None is sent again anywhere else, so that what the last says of its connection is about those before it.
        """
        return [self._ask(parts, key, None, stays=True) for parts in commands]

    def home(self, key: bytes) -> object:
        """Returns the server that has the key, as far as is known: the same object for keys with the same one."""
        return self._store.home(key)

    def _ask(
        self, parts: tuple[Part, ...], key: bytes, script: Script | None, *, stays: bool = False, is_quiet: bool = False
    ) -> asyncio.Future[Any]:
        job = StoreCommand(parts, key, self._options.tally, script)
        job.stays, job.is_quiet = stays, is_quiet
        self._store.ask(job)
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
        """Closes the connections; commands under way fail, and no listener hears of it."""
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
        """Tells whether a subscription keeps failing although the store is up."""
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
