"""The link to the Redis that replicas share: who wants something of it asks here, and nowhere else.

It decides which key is called what and which server is asked. Invariants: no answer is waited for longer than the timeout,
and when the store is known to be gone nothing is waited for at all; who loses interest in an answer disturbs nobody. It must
not know what is kept in the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any

from redis.asyncio import Connection
from redis.exceptions import AskError

from gateway.policy.snapshot import SharedState
from gateway.store.redis_link.cluster import Cluster
from gateway.store.redis_link.connect import Node, address_of, connect, named
from gateway.store.redis_link.job import OperationCounts, Part, StoreCommand, StoreGone, StoreRefused
from gateway.store.redis_link.script import Script, load_script, script_of
from gateway.store.redis_link.sentinel import master_of
from gateway.store.redis_link.server import StoreServer
from gateway.store.redis_link.subscriber import Subscriber

__all__ = ["Link", "Script", "StoreGone", "StoreRefused", "load_script", "script_of"]

log = logging.getLogger("gateway.store")

START_S = 0.5
"""No call waits yet, and who begins without the store takes a part of limits that others use up."""
SCHEMA = "1"
"""Gateways that keep things differently do not read each other's."""


class Link:
    """One per process, to be made and used in one event loop."""

    def __init__(self, shared: SharedState) -> None:
        """Raises ValueError when the url is none."""
        self._shared = shared
        self._address = address_of(shared)
        self._prefix = f"{_braceless(shared.namespace)}:{SCHEMA}:"
        self._timeout_s = shared.timeout_s
        self._changed: list[Callable[[bool], None]] = []
        self._hearings: list[Subscriber] = []
        self._scripts: dict[bytes, Script] = {}
        self._tally = OperationCounts()
        self._store = self._cluster() if self._address.kind == "cluster" else self._single()

    def _single(self) -> StoreServer:
        find = self._find_master if self._address.kind == "sentinel" else _always(self._address.nodes[0])
        return self._server(f"the store {self._address}", find, self._on_change, probe_key=self.key("probe"))

    def _cluster(self) -> Cluster:
        def make(
            node: Node, changed: Callable[[bool], None], redirect: Callable[[StoreCommand, AskError], None]
        ) -> StoreServer:
            return self._server(f"the store's server {named(node)}", _always(node), changed, redirect=redirect)

        name, seeds = f"the store {self._address}", self._address.nodes
        return Cluster(name, seeds, self._dial, make, self._on_change, partial(self.key, "probe"))

    def _server(
        self,
        name: str,
        find: Callable[[], Awaitable[Node]],
        changed: Callable[[bool], None],
        *,
        probe_key: bytes | None = None,
        redirect: Callable[[StoreCommand, AskError], None] | None = None,
    ) -> StoreServer:
        return StoreServer(
            *(name, find, self._dial, changed, self._tally, self._scripts),
            timeout_s=self._timeout_s,
            connections=self._shared.connections,
            probe_key=probe_key,
            redirect=redirect,
        )

    @property
    def is_up(self) -> bool:
        """Whether it is not known to be gone; of a cluster: at least one server."""
        return self._store.is_up

    @property
    def operations(self) -> int:
        """Commands sent, or about to be, since the start."""
        return self._tally.operations

    @property
    def failures(self) -> int:
        """Those of them that have remained without an answer."""
        return self._tally.failures

    @property
    def since(self) -> float:
        """Wall clock seconds: when it came up, or went."""
        return self._store.since

    @property
    def reason(self) -> str:
        """Why it is not up, else what it is."""
        return self._store.reason or str(self._address)

    def on_change(self, changed: Callable[[bool], None]) -> None:
        """`changed(is_up)` is called, in the loop's thread, when the store goes out of reach and when it is back."""
        self._changed.append(changed)

    def key(self, use: str, *parts: bytes | str) -> bytes:
        """The name of what is kept for `use` under these parts, all of which decide its slot; others may be appended."""
        each = [part.encode() if isinstance(part, str) else part for part in parts]
        told = b"".join([b"%d:%b" % (len(part), part) for part in each])
        return f"{self._prefix}{use}:{{{blake2b(told, digest_size=16).hexdigest()}}}".encode()

    @property
    def timeout_s(self) -> float:
        """So long an operation may take; and all of them that a call waits for together."""
        return self._timeout_s

    def run(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes | str | int | float]
    ) -> asyncio.Future[Any]:
        """What the script returns, or StoreGone, within the timeout; of StoreRefused the server is not to blame.

        All keys have one slot. Scripts with the same first key are carried out in the order in which they were asked for.
        """
        if script.sha not in self._scripts:
            self._scripts[script.sha] = script
        return self._ask((b"EVALSHA", script.sha, len(keys), *keys, *args), keys[0] if keys else b"", script)

    def command(self, *parts: bytes | str | int) -> asyncio.Future[Any]:
        """The reply to one command that has its key, if any, after its name; the same promises."""
        key = parts[1] if len(parts) > 1 else b""
        return self._ask(parts, key if isinstance(key, bytes) else str(key).encode(), None)

    def _ask(self, parts: tuple[Part, ...], key: bytes, script: Script | None) -> asyncio.Future[Any]:
        job = StoreCommand(parts, key, time.monotonic() + self._timeout_s, self._tally, script)
        self._store.ask(job)
        return job.future

    async def start(self) -> None:
        """Connect; returns after `START_S` whether or not there is anybody, and goes on trying."""
        self._store.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(self._timeout_s, START_S)):
                await self._store.reached()

    async def aclose(self) -> None:
        """What is under way is not answered. Nobody is told that it is gone."""
        await self._store.aclose()

    async def subscribe(self, channel: bytes, heard: Callable[[bytes], None], joined: Callable[[], None]) -> None:
        """Hear what is published to the channel, for ever, over a connection of its own; to end it, cancel it.

        `joined` is called when it has subscribed, and again whenever it had to do so anew: something may have been missed.
        """
        hearing = Subscriber(self._connect, channel, heard, joined, lambda: self.is_up)
        self._hearings.append(hearing)
        try:
            await hearing.run()
        finally:
            self._hearings.remove(hearing)

    @property
    def is_deaf(self) -> bool:
        """The store is there, but what is published cannot be heard."""
        return any(hearing.is_deaf for hearing in self._hearings)

    async def _connect(self) -> Connection:
        return await self._dial(await self._store.where())

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


def _always(node: Node) -> Callable[[], Awaitable[Node]]:
    async def find() -> Node:
        return node

    return find


def _braceless(namespace: str) -> str:
    """Braces would decide the slot."""
    return namespace.replace("{", "(").replace("}", ")")
