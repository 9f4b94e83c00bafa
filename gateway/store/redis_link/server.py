"""One server: the wires to it, how long an answer may take, and what its refusals mean.

A probe connects what is not connected, teaches the server every script in use, and writes a key of its own: a replica, or a
server that is full, answers but cannot serve. Invariant: nothing waits longer than until its deadline, wherever it is stuck.
It must not know which keys are whose, nor where a redirect leads.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping

from redis.exceptions import AskError, NoScriptError, ResponseError

from gateway.store.redis_link.connect import Node, named
from gateway.store.redis_link.health import ServerHealth, reason_of
from gateway.store.redis_link.job import OperationCounts, Part, StoreCommand, StoreGone, StoreRefused, fail
from gateway.store.redis_link.script import Script
from gateway.store.redis_link.wire import Dial, StoreWire

log = logging.getLogger("gateway.store")

GRACE_S = 0.002
"""What has come while this process was busy is read before it is called late."""
CANNOT_SERVE = re.compile(r"\b(READONLY|OOM|MISCONF|NOREPLICAS|CLUSTERDOWN|BUSY|LOADING|MASTERDOWN)\b")
"""Errors of a server that answers and is of no use; those of a script have words around."""
SPOILED = (
    "a key of the gateway holds data of another type: another program writes there, or another release has done so. Give the "
    "gateway a database or a namespace of its own"
)
SPOILED_S = 5.0
"""So long it is out of use then, before somebody tries again."""
PROBE_TTL_MS = 1000
MOST_HOPS = 5


class StoreServer:
    """The address may change (`find`): sentinels say where the master is."""

    def __init__(
        self,
        name: str,
        find: Callable[[], Awaitable[Node]],
        dial: Dial,
        changed: Callable[[bool], None],
        tally: OperationCounts,
        scripts: Mapping[bytes, Script],
        *,
        timeout_s: float,
        connections: int,
        probe_key: bytes | None = None,
        redirect: Callable[[StoreCommand, AskError], None] | None = None,
    ) -> None:
        """`probe_key`: one that it may write; None: there is none. `scripts`: those in use, more and more of them."""
        self._find = find
        self._tally = tally
        self._scripts = scripts
        self._timeout_s = timeout_s
        self._redirect = redirect
        self.probe_key = probe_key
        self._spoiled_until = 0.0
        """A key of ours was found to be of another type a moment ago; the probe cannot see that by itself."""
        self._wires = [StoreWire(dial, self) for _ in range(connections)]
        self._health = ServerHealth(name, self._probe, self._cut_all, changed, timeout_s)
        self._asked: deque[StoreCommand] = deque()
        """In the order of their deadlines; those that are over among them."""
        self._timer: asyncio.TimerHandle | None = None
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
        """Connect, and go on trying."""
        self._health.start()

    async def reached(self) -> None:
        """Returns when it has been there, once."""
        await self._health.reached.wait()

    async def aclose(self) -> None:
        """Nothing more is sent, and what is under way is not answered."""
        await self._health.aclose()
        if self._timer is not None:
            self._timer.cancel()
        tasks = [wire.cut(self.reason) for wire in self._wires]
        await asyncio.gather(*[task for task in tasks if task is not None], return_exceptions=True)

    def where(self) -> Awaitable[Node]:
        """For a connection of somebody's own."""
        return self._find()

    def ask(self, job: StoreCommand, *, asking: bool = False) -> None:
        """Its future has an answer, or StoreGone, no later than its deadline. `asking`: as a redirect wants it."""
        if not self._health.is_open:
            fail(job.future, StoreGone(self.reason))
            return
        self._tally.operations += 1
        job.home = self
        self._await(job)
        jobs = (StoreCommand((b"ASKING",), b"", job.deadline, OperationCounts()), job) if asking else (job,)
        self._wire_of(job).ask(*jobs)

    def _wire_of(self, job: StoreCommand) -> StoreWire:
        return self._wires[hash(job.key) % len(self._wires)]

    # How long it may take.

    def _await(self, job: StoreCommand) -> None:
        if not self._asked or self._asked[-1].deadline <= job.deadline:
            self._asked.append(job)
        else:  # it has come from another server
            self._asked = deque(sorted([*self._asked, job], key=lambda each: each.deadline))
            self._look_later()
        if self._timer is None:
            self._look_later()

    def _look_later(self) -> None:
        """When the first of them is due."""
        if self._timer is not None:
            self._timer.cancel()
        loop, due_s = asyncio.get_running_loop(), max(0.0, self._asked[0].deadline - time.monotonic())
        self._timer = loop.call_later(due_s, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(GRACE_S, self._expire, now)

    def _expire(self, until: float) -> None:
        late = []
        self._timer = None
        while self._asked and (self._asked[0].is_over or self._asked[0].deadline <= until):
            job = self._asked.popleft()
            if not job.is_over and job.home is self:
                late.append(job)
        if self._asked:
            self._look_later()
        if late:
            self._are_late(late)

    def _are_late(self, late: Iterable[StoreCommand]) -> None:
        """Nothing that is on the same wire can be answered any more."""
        reason = f"no answer within {self._timeout_s * 1000:g} ms"
        self._health.doubt(reason)
        for wire in {self._wire_of(job) for job in late}:
            wire.cut(reason)
        for job in late:
            job.fail(StoreGone(reason))

    # What wires say.

    def refused(self, job: StoreCommand, error: ResponseError) -> None:
        """The server has said no to one job: it is sent again another way, or fails."""
        if isinstance(error, AskError) and self._redirect is not None and job.hops < MOST_HOPS:
            job.hops += 1
            self._redirect(job, error)
        elif isinstance(error, NoScriptError) and job.script is not None and job.hops < MOST_HOPS:
            job.hops += 1
            job.bring(job.script.text)
            self._wire_of(job).ask(job)
        else:
            self._says_no(job, f"{error.status_code or ''} {reason_of(error)}".strip())

    def _says_no(self, job: StoreCommand, text: str) -> None:
        if "WRONGTYPE" in text:
            self._spoiled_until = time.monotonic() + self._timeout_s + SPOILED_S
            job.fail(StoreGone(SPOILED))
            # Not at once: what is on its way to other keys is answered first.
            asyncio.get_running_loop().call_later(self._timeout_s, self._health.doubt, SPOILED)
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
        """A connection is gone."""
        reason = reason_of(error)
        self._health.doubt(reason)
        return reason

    # Whether it is there.

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
        jobs = [StoreCommand(parts, b"", 0.0, OperationCounts()) for parts in self._checks()]
        for job in jobs:
            job.hops = MOST_HOPS
        self._wires[0].ask(*jobs)
        for job in jobs:
            await job.future

    def _checks(self) -> list[tuple[Part, ...]]:
        load: list[tuple[Part, ...]] = [(b"SCRIPT", b"LOAD", script.text) for script in self._scripts.values()]
        return [*load, (b"SET", self.probe_key, b"", b"PX", PROBE_TTL_MS) if self.probe_key else (b"PING",)]
