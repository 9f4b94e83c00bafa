"""One server: its connections, the deadlines of its commands, and the meaning of its errors.

A probe opens missing connections, loads every script in use into the server, and writes a key of its own, because a replica
or a full server answers but cannot serve. Invariant: no command outlives its deadline, wherever it is stuck. It must not know
what keys mean, nor where a redirect leads.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from redis.exceptions import AskError, NoScriptError, ResponseError

from gateway.drivers.redis.connect import Node, named
from gateway.drivers.redis.job import OperationCounts, Part, Script, StoreCommand, StoreGone, StoreRefused
from gateway.drivers.redis.wire import Dial, StoreWire
from gateway.drivers.redis_health.health import ServerHealth, reason_of

log = logging.getLogger("gateway.store")

CANNOT_SERVE = re.compile(r"\b(READONLY|OOM|MISCONF|NOREPLICAS|CLUSTERDOWN|BUSY|LOADING|MASTERDOWN)\b")
"""Codes of errors of a server that cannot serve; an error that a script passes on has words around them."""
SPOILED = (
    "a key of the gateway holds data of another type: another program writes there, or another release has done so. Give the "
    "gateway a database or a namespace of its own"
)
SPOILED_S = 5.0
"""Seconds for which the server is not used after that error."""
PROBE_TTL_MS = 1000
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
        self._wires = [StoreWire(options.dial, self) for _ in range(options.connections)]
        self._health = ServerHealth(name, self._probe, self._cut_all, changed, options.timeout_s)
        self._told_of: set[str] = set()

    @property
    def is_up(self) -> bool:
        return self._health.is_up

    @property
    def since(self) -> float:
        return self._health.since

    @property
    def reason(self) -> str:
        return self._health.reason

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
        if job.name not in self._told_of:
            self._told_of.add(job.name)
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
            job.hops = MOST_HOPS
        self._wires[0].ask(*jobs)
        for job in jobs:
            await job.future

    def _checks(self) -> list[tuple[Part, ...]]:
        load: list[tuple[Part, ...]] = [(b"SCRIPT", b"LOAD", script.text) for script in self._options.scripts.values()]
        return [*load, (b"SET", self.probe_key, b"", b"PX", PROBE_TTL_MS) if self.probe_key else (b"PING",)]
