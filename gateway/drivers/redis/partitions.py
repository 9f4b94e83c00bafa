"""The ground of jobs in a Redis: what it really promises of what it was given, and its partitions.

First durability. A server that may evict keys is refused: it would lose jobs without a word. A write that is waited for makes a
mark in its own step; over a connection of its own, which nobody else is held up by, the mark is taken away, and that is waited
for there. So what is safe is that write, on the server that has its slot now: after a failover its mark is not there. Then the
partitions, in which all scripts about jobs run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from secrets import token_hex
from typing import Any, Final, TypeVar
from urllib.parse import quote

from gateway.core.clock import SharedClock
from gateway.core.errors import StoreUnusable
from gateway.core.types import SharedState
from gateway.drivers.durability import Accept, JobsUnavailable, NotDurable, OutcomeUnknown
from gateway.drivers.redis.link import Link, NoReply, Script, StoreGone, StoreRefused, script_of
from gateway.drivers.redis.wire import FOLDER

log = logging.getLogger("gateway.jobs")

WAIT_MS: Final = 1500
"""A server that has not made a write safe by then is taken for one that cannot."""
SHORT_WAIT_MS: Final = 100
"""The same once it was found so, until it can again: what has been accepted goes on without it."""
SLOW_S: Final = 2.0
"""Seconds after which a server that writes to its disk every second has done so."""
PROBED: Final = 512
"""Slots that are tried for servers of a cluster; one with a hundredth of all is found for certain."""
OLDEST: Final = (6, 2)
WAITAOF_SINCE: Final = (7, 2)
DURABILITY_LAG_S: Final = 5.0
"""Seconds after which what is written is safe on a server that writes to its disk every second."""


class JobDurability:
    """What a write is worth on the servers of some keys."""

    def __init__(self, link: Link, keys: Sequence[bytes], accept: Accept) -> None:
        """`keys` are in the slots that matter; `link` has one connection to each server, used by nobody else."""
        self._link = link
        self._keys = keys
        self._accept = accept
        self._waiting: dict[object, list[tuple[bytes, asyncio.Future[None]]]] = {}
        self._running: dict[object, asyncio.Task[None]] = {}
        self._waits_for_disk = self._waits_for_replica = False
        self._disk = ""
        self.is_slow = False
        """Writes are on disk a second later, and no server can be asked to wait for that."""
        self._promise = "unknown"
        self.shortage = ""
        """What the servers lack to make writes as safe as they should be; empty: nothing, as of the last wait."""
        self.durability_lag_s = DURABILITY_LAG_S
        """Seconds until what was written stays, even if the server dies without a chance to write it."""

    @property
    def durability(self) -> str:
        """Returns what a write is worth now, in words."""
        return f"{self._disk}, {self.shortage}: no new jobs" if self.shortage else self._promise

    async def check(self) -> None:
        """Asks the servers for their settings. Raises StoreUnusable for one that cannot keep jobs, JobsUnavailable."""
        worst, waits_for_disk = -1, False  # what was known holds until all of them have answered
        for key in {self._link.home(key): key for key in self._keys}.values():
            about = await self._about(key)
            version = tuple(map(int, about.get("redis_version", "0.0").split(".")[:2]))
            if version < OLDEST:
                raise StoreUnusable(f"the Redis for jobs is {version[0]}.{version[1]}; they need Redis 6.2, or Valkey")
            policy = about.get("maxmemory_policy", "noeviction")
            if policy != "noeviction":
                raise StoreUnusable(
                    f"the Redis for jobs may throw away keys when its memory is full (maxmemory-policy is {policy}), and with "
                    "them jobs: set its maxmemory-policy to noeviction, or give jobs a Redis of their own (jobs.store)"
                )
            worth = await self._worth(key, about)
            if worth > worst:
                worst = worth
                waits_for_disk = self._accept != "fast" and version >= WAITAOF_SINCE and worth in (1, 2)
        self._waits_for_disk = waits_for_disk
        self._waits_for_replica = self._accept == "replicated"
        is_last_word = worst in (0, 3) and not self._waits_for_replica  # a replica is a moment behind
        self.durability_lag_s = 0.0 if is_last_word else DURABILITY_LAG_S
        self.is_slow = self._accept != "fast" and worst == 1 and not self._waits_for_disk
        disk = ("on disk", "on disk within a second", "on disk when its system writes it", "lost with the Redis")
        promise, self._disk = disk[0 if self._waits_for_disk else worst], disk[worst]
        if self._waits_for_replica:
            promise = "on a replica" if worst == 3 else f"on a replica, and {promise}"
        if promise != self._promise != "unknown":
            log.warning("jobs are kept in another way: %s; before: %s", promise, self._promise)
        self._promise = promise

    def mark(self, base: bytes) -> bytes | None:
        """Returns a key that a write is to make in the same step, in the slot of `base`; None: nobody waits for writes."""
        if not (self._waits_for_disk or self._waits_for_replica):
            return None
        return b"%b:mark:%b" % (base, token_hex(12).encode())

    async def settle(self, marks: Sequence[bytes | None]) -> None:
        """Returns when the writes that made these marks are as safe as they have to be.

        Raises NotDurable if they are not so in time; OutcomeUnknown where that is not known, or where the server that
        has the slot now does not have the write: then it is to be repeated.
        """
        answers: list[asyncio.Future[None]] = []
        for mark in marks:
            if mark is not None:
                home = self._link.home(mark)
                answers.append(asyncio.get_running_loop().create_future())
                self._waiting.setdefault(home, []).append((mark, answers[-1]))
                if home not in self._running:
                    self._running[home] = asyncio.create_task(self._settle_all(home))
        for answer in await asyncio.gather(*answers, return_exceptions=True):
            if answer is not None:
                raise answer

    async def _settle_all(self, home: object) -> None:
        """Waits for one server, until nobody wants it to: those who come while a wait is under way share the next."""
        try:
            while some := [(mark, answer) for mark, answer in self._waiting.pop(home, ()) if not answer.done()]:
                try:
                    refusals = await self._wait([mark for mark, _ in some])
                except Exception as defect:  # noqa: BLE001  # theirs all, who would wait for ever
                    refusals = [defect] * len(some)
                for (_, answer), refusal in zip(some, refusals, strict=True):
                    if not answer.done():
                        answer.set_result(None) if refusal is None else answer.set_exception(refusal)
        finally:
            del self._running[home]

    async def _wait(self, marks: Sequence[bytes]) -> list[Exception | None]:
        """Takes marks away, and waits until that is safe: so are the writes that made them; returns what is to be raised."""
        replicas, waits_for_disk = int(self._waits_for_replica), self._waits_for_disk
        wait_ms = SHORT_WAIT_MS if self.shortage else WAIT_MS
        wait = (b"WAITAOF", 1, replicas, wait_ms) if waits_for_disk else (b"WAIT", replicas, wait_ms)
        waits = self._link.in_line(marks[0], *[(b"DEL", mark) for mark in marks], wait)
        answers: list[Any] = await asyncio.gather(*waits, return_exceptions=True)
        *were_there, reply = answers
        if isinstance(reply, StoreGone):
            return [_no_reply(reply) for _ in marks]
        on_disk, on_replicas = reply if waits_for_disk else (1, reply)
        if not on_disk or on_replicas < replicas:
            what = "copied it to a replica" if on_disk else "written it to its disk"
            self._note_shortage("on no replica" if on_disk else "not written in time")
            return [NotDurable(f"Jobs cannot be kept now: their Redis has not {what} in time.") for _ in marks]
        self._note_shortage("")
        return [None if was_there == 1 else _no_reply(was_there) for was_there in were_there]

    def _note_shortage(self, shortage: str) -> None:
        if shortage and not self.shortage:
            log.error(
                "no new jobs are taken: the Redis for jobs keeps them %s (accept: %s); what was taken goes on, %s",
                shortage, self._accept, self._disk,
            )  # fmt: skip
        elif self.shortage and not shortage:
            log.warning("jobs are taken again: the Redis keeps them %s", self._promise)
        self.shortage = shortage

    async def _about(self, key: bytes) -> dict[str, str]:
        """Returns what a server says of itself."""
        info = (await self._command(key, b"INFO")).decode()
        return {name: value for name, _, value in (line.partition(":") for line in info.splitlines())}

    async def _worth(self, key: bytes, about: dict[str, str]) -> int:
        """Returns 0 for a server that writes each command to disk before it answers, up to 3 for one that never does."""
        if about.get("aof_enabled") != "1":
            return 3
        try:
            setting = (await self._command(key, b"CONFIG", b"GET", b"appendfsync"))[1]
        except StoreUnusable:
            return 1  # it is a secret, and this is what servers do that nobody has told otherwise
        return {b"always": 0, b"everysec": 1}.get(setting, 2)

    async def _command(self, key: bytes, *parts: bytes) -> Any:
        try:
            return await self._link.command_near(key, *parts)
        except StoreRefused as error:
            name = " ".join(part.decode() for part in parts[:2])
            raise StoreUnusable(
                f"the Redis for jobs does not say what it promises: it refuses {name} ({error}); allow its user +info and "
                "+config|get (ACL SETUSER)"
            ) from error
        except StoreGone as error:
            raise JobsUnavailable("Jobs cannot be kept now: their Redis cannot be used, as the log says.") from error


class BlobDurability:
    """What blobs on the servers of a cluster are worth: as much as jobs, which are on others. Implements `BlobSafety`."""

    def __init__(self, shared: SharedState, accept: Accept) -> None:
        """It connects when it is first asked."""
        self._link = Link(replace(shared, timeout_s=max(WAIT_MS / 1000 + 0.5, shared.timeout_s), connections=1))
        keys = [self._link.slot_key("blobs", str(number)) for number in range(PROBED)]
        self._durability = JobDurability(self._link, keys, accept)
        self._starting: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None

    async def mark(self, base: bytes) -> bytes | None:
        """Returns a key that the write of a blob is to make. Raises JobsUnavailable."""
        if self._opening is None or (self._opening.done() and self._opening.exception()):
            self._opening = asyncio.create_task(self._open())
        await asyncio.shield(self._opening)
        return self._durability.mark(base)

    async def settle(self, mark: bytes | None) -> None:
        """Returns when that write is as safe as it has to be. Raises NotDurable, JobsUnavailable, OutcomeUnknown."""
        if self._durability.is_slow:
            await asyncio.sleep(SLOW_S)
        await self._durability.settle([mark])

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._starting is not None and self._opening is not None:
            self._opening.cancel()
            self._starting.cancel()
            await asyncio.gather(self._opening, self._starting, return_exceptions=True)
            await self._link.aclose()

    async def _open(self) -> None:
        if self._starting is None:
            self._starting = asyncio.create_task(self._link.start())
        await asyncio.shield(self._starting)
        try:
            await self._durability.check()
        except StoreUnusable as error:
            log.error("files cannot be kept: %s", error)  # noqa: TRY400  # the sentence says it all
            raise JobsUnavailable("Files cannot be kept now; the log of the gateway says why.") from error


def _no_reply(cause: object) -> OutcomeUnknown:
    refusal = OutcomeUnknown("Jobs cannot be kept now: their Redis cannot be used, as the log says.")
    refusal.__cause__ = cause if isinstance(cause, BaseException) else None
    return refusal


# --- the partitions of the jobs in a Redis, how scripts run in them, and how their failures are raised ---

MOST_PARTITIONS: Final = 16
PATIENCE_S: Final = 5.0
"""Seconds for which it is asked again whether something was done; then the caller learns that nobody knows."""
PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4)
"""Seconds between these questions; the last again and again."""
_LUA = FOLDER / "jobs"
T = TypeVar("T")

Argument = bytes | str | int | float


def job_script(name: str, *libraries: str) -> Script:
    """Returns the script in `lua/jobs/<name>.lua` with the libraries in front that it needs besides `job`."""
    return script_of(f"jobs_{name}", "".join((_LUA / f"{part}.lua").read_text() for part in ("job", *libraries, name)))


def tenant_token(tenant: str) -> str:
    """Returns the tenant as a token that is never empty, nor that of all tenants."""
    return "~" + quote(tenant, safe="")


class JobPartitions:
    """Runs scripts; `ready` is called when one of them made work ready.

    All keys of a partition are in one slot, so that each step is one script: a single server has one partition, a cluster 16.
    All that a tenant has is in one of them. The server's clock is the clock of the jobs. Invariant: what has no answer raises
    JobsUnavailable; whether it was done is not known then.
    """

    def __init__(
        self,
        link: Link,
        number: int,
        wall: Callable[[], float] | None,
        ready: Callable[[], None],
        durability: JobDurability,
        clock: SharedClock | None = None,
    ) -> None:
        """`clock` follows the server's, which `wall` replaces in tests."""
        self.link = link
        self.number = number
        self._wall = wall
        self._ready = ready
        self._durability = durability
        self._bases = [link.slot_key("jobs", str(partition)) for partition in range(number)]
        self._clock = clock or SharedClock()
        self.is_closed = False
        self.is_well = True
        self.patience_s = PATIENCE_S
        self.readied: set[int] = set()
        """Where this process has made work ready since it last looked there."""

    def of_tenant(self, tenant: str) -> int:
        """Returns the partition that has a tenant's jobs and files."""
        return int.from_bytes(blake2b(tenant.encode(), digest_size=4).digest()) % self.number

    def of_fence(self, fence: int) -> int:
        """Returns the partition of a claim, by its fence."""
        return fence % self.number

    def own_fence(self, fence: int) -> int:
        """Returns the fence of a claim as its partition knows it."""
        return fence // self.number

    def now(self) -> float:
        """Returns the server's time, as estimated from its last answer: behind it by no more than a round trip."""
        return self._clock.wall() if self._wall is None else self._wall()

    def key(self, partition: int, use: str) -> bytes:
        """Returns a key of the partition."""
        return self._bases[partition] + b":" + use.encode()

    async def run(self, script: Script, partition: int, *args: Argument, mark: bytes | None = None) -> Sequence[Any]:
        """Runs a script and returns its reply; raises JobsUnavailable. `mark` is for `settle`."""
        now = "" if self._wall is None else repr(self._wall())
        keys = (self._bases[partition],) if mark is None else (self._bases[partition], mark)
        reply = await self.reply_of(self.link.run(script, keys, (now, partition, *args)))
        self._clock.follow(float(reply[0]))
        if reply[1]:
            self.readied.add(partition)
            self._ready()
        return reply  # type: ignore[no-any-return]  # an array, as all scripts say

    def mark(self, partition: int) -> bytes | None:
        """Returns what `run` and `settle` need to wait for a write; None: nobody waits for writes."""
        return self._durability.mark(self._bases[partition])

    async def settle(self, marks: Sequence[bytes | None]) -> None:
        """Returns when what was written with these marks is as safe as it has to be. Raises NotDurable, OutcomeUnknown."""
        try:
            await self._durability.settle(marks)
        except NotDurable:
            raise
        except JobsUnavailable:
            self.is_well = False
            raise

    async def retry_until_known(self, ask: Callable[[bool], Awaitable[T]]) -> T:
        """Asks until an answer comes, or for some seconds: what may be done already must be told so (`ask(True)`).

        Raises JobsUnavailable where it was not done, OutcomeUnknown where nobody knows.
        """
        until, pauses_s, last_error = time.monotonic() + self.patience_s, iter(PAUSES_S), None
        while True:
            try:
                return await ask(last_error is not None)
            except JobsUnavailable as error:
                last_error = error if isinstance(error, OutcomeUnknown) else last_error
                if last_error is None:
                    raise
                if self.is_closed or time.monotonic() >= until:
                    raise last_error  # noqa: B904  # it is the error, or what came before it
            await asyncio.sleep(next(pauses_s, PAUSES_S[-1]))

    async def command(self, name: bytes, key: bytes, *args: Argument) -> Any:
        """Sends one command about a key; raises JobsUnavailable."""
        return await self.reply_of(self.link.command(name, key, *args))  # type: ignore[arg-type]  # a number is one part

    async def reply_of(self, reply: asyncio.Future[Any]) -> Any:
        """Returns a reply of the link; raises JobsUnavailable."""
        if self.is_closed:
            reply.cancel()
            raise JobsUnavailable("Jobs cannot be kept now: the gateway is stopping.")
        try:
            answer = await reply
        except StoreGone as error:
            self.is_well = False
            refusal = OutcomeUnknown if isinstance(error, NoReply) else JobsUnavailable
            raise refusal("Jobs cannot be kept now: their Redis cannot be used, as the log says.") from error
        self.is_well = True
        return answer
