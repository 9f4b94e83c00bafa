"""One Redis server: its connections, the deadlines of its commands, the meaning of its errors, and its health.

up --no answer in time, or an error--> in doubt --the probe fails--> gone --the probe succeeds--> up
                                       in doubt --the probe succeeds--> up, without a report

The health is found by probes in the background, so that no call waits for it. In doubt and gone, the server gets no command but
the probe. So one slow command costs the calls that wait for it and, until the probe ends, a fallback to new calls; doubt that
returns within `CALM_S` counts as gone, with a longer delay before each probe. A probe opens missing connections, loads every
script in use into the server, and writes a key of its own, because a replica or a full server answers but cannot serve.

Invariants: no command outlives its deadline, wherever it is stuck; a listener that hears that the server is gone also hears
that it is back; the log tells once of trouble and once of its end, however often the server comes and goes. It must not know
what keys mean, nor where a redirect leads.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from redis.asyncio import Connection
from redis.backoff import EqualJitterBackoff
from redis.exceptions import AskError, NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from gateway.drivers.redis.wire import (
    Dial,
    Node,
    OperationCounts,
    Part,
    Script,
    StoreCommand,
    StoreGone,
    StoreRefused,
    StoreWire,
    named,
)

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
    """Health of one server. `is_open`: commands may be sent. `is_up`: it is not gone. `reached`: it was up once."""

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


# The server.

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
        # Every script in use is loaded, so that no call has to bring its text.
        load: list[tuple[Part, ...]] = [(b"SCRIPT", b"LOAD", script.text) for script in self._options.scripts.values()]
        probe: tuple[Part, ...] = (b"EVAL", PROBE, 1, self.probe_key, PROBE_TTL_MS) if self.probe_key else (b"PING",)
        jobs = [StoreCommand(parts) for parts in (*load, probe)]
        for job in jobs:
            job.hops, job.is_quiet = MOST_HOPS, True  # the health tells of it
        self._wires[0].ask(*jobs)
        for job in jobs:
            await job.future
