"""The partitions of the jobs in a Redis, how scripts run in them, and how their failures are told.

All keys of a partition are in one slot, so that each step is one script: a single server has one partition, a cluster 16. All
that a tenant has is in one of them. The server's clock is the clock of the jobs. Invariant: what has no answer raises
JobsUnavailable; whether it was done is not known then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeVar

from gateway.drivers.redis.link import Link, Script, StoreGone, StoreUnheard, script_of
from gateway.products.jobs.model.errors import JobsUnavailable, OutcomeUnknown
from gateway.products.jobs.model.job import ClaimedWork
from gateway.products.jobs.redis_partitions.durability import JobDurability

MOST_PARTITIONS: Final = 16
PATIENCE_S: Final = 5.0
"""Seconds for which is asked again whether something was done, before the caller is told that nobody knows."""
PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4)
"""Between these questions; the last again and again."""
_LUA = Path(__file__).parent / "lua"
T = TypeVar("T")

Argument = bytes | str | int | float


def job_script(name: str, *libraries: str) -> Script:
    """Returns the script in `lua/<name>.lua` with the libraries in front that it needs besides `job`."""
    return script_of(f"jobs_{name}", "".join((_LUA / f"{part}.lua").read_text() for part in ("job", *libraries, name)))


class JobPartitions:
    """Runs scripts; `ready` is called when one of them made work ready."""

    def __init__(
        self,
        link: Link,
        number: int,
        wall: Callable[[], float] | None,
        ready: Callable[[], None],
        durability: JobDurability,
    ) -> None:
        """`wall` replaces the server's clock in tests."""
        self.link = link
        self.number = number
        self._wall = wall
        self._ready = ready
        self._durability = durability
        self._bases = [link.slot_key("jobs", str(partition)) for partition in range(number)]
        self._ahead_s = 0.0
        """The server's clock, of this process's monotonic one."""
        self.is_closed = False
        self.is_well = True
        self.patience_s = PATIENCE_S
        self.readied: set[int] = set()
        """Where this process has made work ready since it last looked there."""

    def of_tenant(self, tenant: str) -> int:
        """Returns the partition that has a tenant's jobs and files."""
        return int.from_bytes(blake2b(tenant.encode(), digest_size=4).digest()) % self.number

    def of_work(self, work: ClaimedWork) -> int:
        """Returns the partition of a claim."""
        return work.fence % self.number

    def fence_of(self, work: ClaimedWork) -> int:
        """Returns the fence as the partition knows it."""
        return work.fence // self.number

    def claim_of(self, work: ClaimedWork) -> tuple[str, int, int]:
        """Returns a claim as scripts read it."""
        return work.job.id, work.piece, self.fence_of(work)

    def now(self) -> float:
        """Returns the server's time, as estimated from its last answer: behind it by no more than a round trip."""
        return time.monotonic() + self._ahead_s if self._wall is None else self._wall()

    def by_server(self, at: float) -> float:
        """Returns what the server's clock shows when this process's shows `at`: the two need not agree."""
        return at + self.now() - time.time() if self._wall is None else at

    def key(self, partition: int, use: str) -> bytes:
        """Returns a key of the partition."""
        return self._bases[partition] + b":" + use.encode()

    async def run(self, script: Script, partition: int, *args: Argument, mark: bytes | None = None) -> Sequence[Any]:
        """Runs a script and returns its reply; raises JobsUnavailable. `mark` is for `settle`."""
        now = "" if self._wall is None else repr(self._wall())
        keys = (self._bases[partition],) if mark is None else (self._bases[partition], mark)
        reply = await self.heard(self.link.run(script, keys, (now, partition, *args)))
        self._ahead_s = float(reply[0]) - time.monotonic()
        if reply[1]:
            self.readied.add(partition)
            self._ready()
        return reply  # type: ignore[no-any-return]  # an array, as all scripts say

    def mark(self, partition: int) -> bytes | None:
        """Returns what `run` and `settle` need to wait for a write; None: nobody waits for writes."""
        return self._durability.mark(self._bases[partition])

    async def settle(self, marks: Sequence[bytes | None]) -> None:
        """Returns when what was written with these marks is as safe as it has to be. Raises JobsUnavailable, OutcomeUnknown."""
        try:
            await self._durability.settle(marks)
        except JobsUnavailable:
            self.is_well = False
            raise

    async def insist(self, ask: Callable[[bool], Awaitable[T]]) -> T:
        """Asks until an answer is heard, or for some seconds: what may be done already must be told so (`ask(True)`).

        Raises JobsUnavailable where it was not done, OutcomeUnknown where nobody knows.
        """
        until, pauses_s, unheard = time.monotonic() + self.patience_s, iter(PAUSES_S), None
        while True:
            try:
                return await ask(unheard is not None)
            except JobsUnavailable as error:
                unheard = error if isinstance(error, OutcomeUnknown) else unheard
                if unheard is None:
                    raise
                if self.is_closed or time.monotonic() >= until:
                    raise unheard  # noqa: B904  # it is the error, or what came before it
            await asyncio.sleep(next(pauses_s, PAUSES_S[-1]))

    async def command(self, name: bytes, key: bytes, *args: Argument) -> Any:
        """Sends one command about a key; raises JobsUnavailable."""
        return await self.heard(self.link.command(name, key, *args))  # type: ignore[arg-type]  # a number is one part

    async def heard(self, reply: asyncio.Future[Any]) -> Any:
        """Returns a reply of the link; raises JobsUnavailable."""
        if self.is_closed:
            reply.cancel()
            raise JobsUnavailable("Jobs cannot be kept now: the gateway is stopping.")
        try:
            told = await reply
        except StoreGone as error:
            self.is_well = False
            refusal = OutcomeUnknown if isinstance(error, StoreUnheard) else JobsUnavailable
            raise refusal("Jobs cannot be kept now: their Redis cannot be used, as the log says.") from error
        self.is_well = True
        return told
