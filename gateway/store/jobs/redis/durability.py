"""What a Redis really promises of what it was told, and how to wait until a write is as safe as the config asks for.

A server that may evict keys is refused: it would lose jobs without a word. Waiting is done over a connection of its own, by a
later write there: what is safe behind it is what was written before it anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal

from gateway.errors import StoreUnusable
from gateway.policy.jobs.errors import JobsUnavailable
from gateway.store.redis_link.link import Link, StoreGone, StoreRefused

Accept = Literal["fsync", "replicated", "fast"]
"""What must be true before work is acknowledged: it is on disk, as far as the server can say so; on a replica; nothing."""

WAIT_MS: Final = 1500
"""A server that has not made a write safe by then is taken for one that cannot."""
OLDEST: Final = (6, 2)
WAITAOF_SINCE: Final = (7, 2)
CALM_S: Final = 5.0
"""Seconds after which what is written is safe on a server that writes to its disk every second."""


class JobDurability:
    """What a write is worth on the servers of some keys."""

    def __init__(self, link: Link, keys: Sequence[bytes], accept: Accept) -> None:
        """`keys` are in the slots that matter; `link` has one connection to each server, used by nobody else."""
        self._link = link
        self._keys = keys
        self._accept = accept
        self._syncing: dict[int, asyncio.Task[None]] = {}
        self._next: dict[int, asyncio.Task[None]] = {}
        self._waits_for_disk = self._waits_for_replica = False
        self.promise = "unknown"
        self.calm_s = CALM_S
        """Seconds until what was written stays, even if the server dies without a chance to write it."""

    async def check(self) -> None:
        """Asks the servers for their settings. Raises StoreUnusable for one that cannot keep jobs, JobsUnavailable."""
        worst = -1
        for key in self._keys:
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
                self._waits_for_disk = self._accept != "fast" and version >= WAITAOF_SINCE and worth in (1, 2)
        self._waits_for_replica = self._accept == "replicated"
        is_last_word = worst in (0, 3) and not self._waits_for_replica  # a replica is a moment behind
        self.calm_s = 0.0 if is_last_word else CALM_S
        disk = ("on disk", "on disk within a second", "on disk when its system writes it", "lost with the Redis")
        self.promise = disk[0 if self._waits_for_disk else worst]
        if self._waits_for_replica:
            self.promise = "on a replica" if worst == 3 else f"on a replica, and {self.promise}"

    async def settle(self, partitions: Sequence[int]) -> None:
        """Returns when all that was written before is as safe as it has to be. Raises JobsUnavailable."""
        if self._waits_for_disk or self._waits_for_replica:
            await asyncio.gather(*[asyncio.shield(self._turn(partition)) for partition in partitions])

    def _turn(self, partition: int) -> asyncio.Task[None]:
        """Returns the wait that begins after now: one for all who ask while another is under way."""
        running = self._syncing.get(partition)
        if running is None or running.done():
            running = self._syncing[partition] = asyncio.create_task(self._sync(partition))
            return running
        if partition not in self._next:
            self._next[partition] = asyncio.create_task(self._sync_behind(partition, running))
        return self._next[partition]

    async def _sync_behind(self, partition: int, before: asyncio.Task[None]) -> None:
        await asyncio.wait([before])
        self._syncing[partition] = self._next.pop(partition)
        await self._sync(partition)

    async def _sync(self, partition: int) -> None:
        key = self._keys[partition]
        replicas = int(self._waits_for_replica)
        written = self._link.command(b"SET", key, b"", b"PX", 1000)
        if self._waits_for_disk:
            waited = self._link.command_near(key, b"WAITAOF", 1, replicas, WAIT_MS)
        else:
            waited = self._link.command_near(key, b"WAIT", replicas, WAIT_MS)
        try:
            await written
            reply = await waited
        except StoreGone as error:
            raise JobsUnavailable("Jobs cannot be kept now: their Redis cannot be used, as the log says.") from error
        on_disk, on_replicas = reply if self._waits_for_disk else (1, reply)
        if not on_disk or on_replicas < replicas:
            what = "copied it to a replica" if on_disk else "written it to its disk"
            raise JobsUnavailable(f"Jobs cannot be kept now: their Redis has not {what} in time.")

    async def _about(self, key: bytes) -> dict[str, str]:
        """Returns what a server says of itself."""
        told = (await self._ask(key, b"INFO")).decode()
        return {name: value for name, _, value in (line.partition(":") for line in told.splitlines())}

    async def _worth(self, key: bytes, about: dict[str, str]) -> int:
        """Returns 0 for a server that writes each command to disk before it answers, up to 3 for one that never does."""
        if about.get("aof_enabled") != "1":
            return 3
        try:
            setting = (await self._ask(key, b"CONFIG", b"GET", b"appendfsync"))[1]
        except JobsUnavailable:
            return 1  # it is a secret, and this is what servers do that nobody has told otherwise
        return {b"always": 0, b"everysec": 1}.get(setting, 2)

    async def _ask(self, key: bytes, *parts: bytes) -> Any:
        try:
            return await self._link.command_near(key, *parts)
        except StoreRefused as error:
            raise JobsUnavailable("Jobs cannot be kept now: their Redis does not say what it promises.") from error
        except StoreGone as error:
            raise JobsUnavailable("Jobs cannot be kept now: their Redis cannot be used, as the log says.") from error
