"""A Redis Cluster: the map of slots to servers.

Invariants: a command goes to the server of its key's slot and to no other; the failure of one server affects its keys only.
The map is fetched anew when a server says that it is wrong, and repeatedly while a server is gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError

from gateway.drivers.redis.connect import Node, always, named
from gateway.drivers.redis.job import StoreCommand, StoreGone
from gateway.drivers.redis_cluster.server import ServerOptions, StoreServer
from gateway.drivers.redis_health.health import delay_s, reason_of

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
        self._is_told = False
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
        if not self._servers and not self._is_told:
            self._is_told = True
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


def _range(row: Any, asked: Node) -> Range:
    """Reads one row of CLUSTER SLOTS; a server that does not know its own name leaves the host out."""
    first, last, (host, port, *_), *_ = row
    return int(first), int(last), (host.decode() if host not in (None, b"", b"?") else asked[0], int(port))


def _holds(ranges: list[Range], key: bytes) -> bool:
    slot = key_slot(key)
    return any(first <= slot <= last for first, last, _ in ranges)
