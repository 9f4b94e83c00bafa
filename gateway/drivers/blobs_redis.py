"""Blobs in the Redis that replicas share, for those who have no folder to share: small ones, and not many.

A blob is a hash of parts and a manifest, in one slot. The parts are put aside with a time to live; the step that writes the
manifest takes that off. So a reader finds a blob whole or not at all, and what a killed writer leaves goes by itself. A table
beside them, in a slot of its own, counts the bytes of all: a blob in the making, and one that is about to be removed, are
entries with a date there, which whoever writes next settles by a look at the manifest. Invariants: a counted blob may be gone
for a while, but none is uncounted; parts whose manifest is there are never taken away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final, Protocol

from gateway.core.types import SharedState
from gateway.drivers.blobs import check_name
from gateway.drivers.durability import JobsUnavailable, NotDurable, OutcomeUnknown
from gateway.drivers.redis.link import BackgroundTasks, Link, Script, StoreGone, load_script

MOST_BYTES: Final = 512 * 1024 * 1024
"""The bytes of all blobs, those in the making included: they are in the memory of the Redis."""
PART_BYTES: Final = 128 * 1024
"""The bytes of one part, which takes some tenths of a millisecond to transfer."""
AT_ONCE = 4
"""Parts under way at once."""
TIMEOUT_S, CONNECTIONS = 2.0, 2
"""Those of the link, which is not that of limits and caches: a slow script here must not mark their Redis as gone."""
STAGED_S = 600
"""A writer that adds nothing for so long has been given up."""
REMOVING_S = 60
"""A removal that takes longer is done by somebody else."""
READING_S = 60
"""Whoever reads a blob that is replaced has so long to finish."""
NAMES_AT_ONCE, AGES_AT_ONCE = 500, 100
STAGE, ROOM, SETTLE = load_script("stage"), load_script("blobs_room"), load_script("blobs_settle")
DROP, COMMIT, END = load_script("blobs_drop"), load_script("blobs_commit"), load_script("blobs_end")
AGE = load_script("blobs_age")


COMMITS_S: Final = (0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts to give a blob its name where the server that has it now did not say that it is safe."""


class BlobSafety(Protocol):
    """Waits until a blob is as safe as what will name it, which may be on another server."""

    async def mark(self, base: bytes) -> bytes | None:
        """Returns a key in the slot of `base` that the blob's last write is to make; None: it has to make none."""
        ...

    async def settle(self, mark: bytes | None) -> None:
        """Returns when that write is safe. Raises JobsUnavailable, OutcomeUnknown where it is to be repeated."""
        ...

    async def aclose(self) -> None:
        """Ends what is under way."""
        ...


class RedisBlobs:
    """Implements `Blobs`. It connects when it is first used."""

    def __init__(
        self,
        shared: SharedState,
        *,
        max_bytes: int = MOST_BYTES,
        connect: Callable[[SharedState], Link] = Link,
        staged_s: float = STAGED_S,
        safety: BlobSafety | None = None,
    ) -> None:
        """`max_bytes` bounds all blobs of the namespace together. No `safety`: what names them is behind them, and waits."""
        self._link = connect(replace(shared, timeout_s=TIMEOUT_S, connections=CONNECTIONS))
        self._max_bytes = max_bytes
        self.staged_s = staged_s
        self.safety = safety
        table = self._link.key("blobs")
        self._kept, self._open, self._due, self._total, self._owners = (
            table + use for use in (b":kept", b":open", b":due", b":total", b":owners")
        )
        self._starting: asyncio.Task[None] | None = None
        self._background = BackgroundTasks()

    async def writer(self, name: str) -> RedisWriter:
        """Begins a blob. Raises JobsUnavailable, also where there is no room."""
        check_name(name)
        writer = RedisWriter(self, name, self._manifest(name))
        await self.count(writer.entry, 0)
        return writer

    async def read(self, name: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` on, at most `length` of them. Raises JobsUnavailable, FileNotFoundError."""
        place = self._manifest(check_name(name))
        manifest = await self.request(lambda: self._link.command(b"GET", place))
        if manifest is None:
            raise FileNotFoundError(name)
        nonce, _, size, *_ = manifest.split()
        end = int(size) if length is None else min(int(size), start + length)
        for first in range(start // PART_BYTES, -(-end // PART_BYTES), AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, -(-end // PART_BYTES)))
            parts = await self._parts(place + b":" + nonce, numbers)
            for number, part in zip(numbers, parts, strict=True):
                if part is None:
                    raise FileNotFoundError(name)
                at = number * PART_BYTES
                if piece := part[max(0, start - at) : end - at]:
                    yield piece

    async def remove(self, names: Sequence[str]) -> None:
        """Removes blobs, those that are there. Raises JobsUnavailable."""
        for name in names:
            check_name(name)
        for first in range(0, len(names), NAMES_AT_ONCE):
            some = names[first : first + NAMES_AT_ONCE]
            await self.run(DROP, (self._kept, self._open, self._due), (REMOVING_S, *some))
            await asyncio.gather(*(self.settle(f"{name}:") for name in some))

    async def belong_to(self, store: str) -> bool:
        """Returns whether the blobs of the namespace are this store's alone, by a set that names all that have asked."""
        await self.request(lambda: self._link.command(b"SADD", self._owners, store))
        return {*await self.request(lambda: self._link.command(b"SMEMBERS", self._owners))} == {store.encode()}

    async def old_names(self, least_age_s: float, most: int) -> AsyncIterator[Sequence[str]]:
        """Yields the names of blobs that got theirs so long ago, by the clock of the server. Raises JobsUnavailable."""
        cursor = b"0"
        while True:
            cursor, names = await self._scan(cursor, most)
            old: list[str] = []
            for at in range(0, len(names), AGES_AT_ONCE):
                some = names[at : at + AGES_AT_ONCE]
                ages = await asyncio.gather(*(self.run(AGE, (self._manifest(name),), (least_age_s,)) for name in some))
                old += [name for name, is_old in zip(some, ages, strict=True) if is_old]
            if old:
                yield old
            if cursor == b"0":
                return

    async def remove_below(self, folder: str) -> None:
        """Removes all blobs whose names begin with `folder` and a slash. Raises JobsUnavailable."""
        pattern, cursor, found = f"{check_name(folder)}/*", b"0", set[str]()
        while True:
            cursor, names = await self._scan(cursor, 1000, pattern)
            found.update(names)
            if cursor == b"0":
                break
        await self.remove(sorted(found))

    async def aclose(self) -> None:
        """Ends what is under way."""
        await self._background.aclose(TIMEOUT_S)
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
            await self._link.aclose()
        if self.safety is not None:
            await self.safety.aclose()

    async def count(self, entry: str, more: int) -> None:
        """Counts bytes of a blob in the making. Raises JobsUnavailable where there is no room for them."""
        keys = self._kept, self._open, self._due, self._total
        has_room, *overdue = await self.run(ROOM, keys, (entry, more, self._max_bytes, self.staged_s))
        for left in overdue:
            self.start(self.settle(left.decode()))
        if not has_room:
            raise JobsUnavailable(
                f"Files cannot be stored now: the {self._max_bytes} bytes that a Redis holds of them are used up. Remove some, "
                "or have the operator name a folder that all gateways share (jobs.files)."
            )

    async def settle(self, entry: str) -> int:
        """Ends a writer, or a removal: counts what is kept. Returns its bytes; -1: nothing is. Raises JobsUnavailable."""
        name, _, nonce = entry.rpartition(":")
        size: int = await self.run(END, (self._manifest(name),), (nonce,))
        await self.run(SETTLE, (self._kept, self._open, self._due, self._total), (entry, name, size))
        return size

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes | str | int | float]) -> Any:
        """Runs a script. Raises JobsUnavailable."""
        return await self.request(lambda: self._link.run(script, keys, args))

    async def request(self, send: Callable[[], asyncio.Future[Any]]) -> Any:
        """Returns the reply to a command. Raises JobsUnavailable."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._link.start())
        if not self._starting.done():
            await asyncio.shield(self._starting)
        try:
            return await send()
        except StoreGone as gone:
            raise JobsUnavailable("Files cannot be stored or read now: their Redis does not serve.") from gone

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Does work that nobody waits for; what cannot be done now is done by whoever writes next."""
        self._background.start(_quietly(work))

    async def _scan(self, cursor: bytes, count: int, pattern: str = "*") -> tuple[bytes, list[str]]:
        """Returns the next names of the table, and where it goes on; b"0" is its end.

        It may grow and shrink meanwhile: what is there all the time is found, perhaps twice.
        """
        scan = (b"HSCAN", self._kept, cursor, b"MATCH", pattern, b"COUNT", count)
        cursor, rows = await self.request(lambda: self._link.command(*scan))
        return cursor, [name.decode() for name in rows[::2]]

    async def _parts(self, place: bytes, numbers: range) -> Sequence[bytes | None]:
        reads = [self.request(lambda number=number: self._link.command(b"HGET", place, number)) for number in numbers]  # type: ignore[misc]  # mypy cannot infer a lambda's default
        found: Sequence[bytes | None] = await asyncio.gather(*reads)
        return found

    def _manifest(self, name: str) -> bytes:
        return self._link.key("blob", name)


class RedisWriter:
    """Implements `BlobWriter`: parts go out as they are full, some at a time."""

    def __init__(self, blobs: RedisBlobs, name: str, manifest: bytes) -> None:
        self._blobs = blobs
        self._manifest = manifest
        self._nonce = token_hex(12)
        self.entry = f"{name}:{self._nonce}"
        self._place = manifest + b":" + self._nonce.encode()
        self._left = bytearray()
        self._count = self._bytes = 0
        self._is_over = False

    async def write(self, data: bytes) -> None:
        """Adds bytes. Raises JobsUnavailable, after which only `abort` may follow."""
        self._left += data
        while len(self._left) >= PART_BYTES * AT_ONCE:
            await self._send(AT_ONCE)

    async def commit(self) -> int:
        """Gives the blob its name, in place of an older one; returns its bytes. Raises as the protocol says."""
        if self._left:
            await self._send(-(-len(self._left) // PART_BYTES))
        try:
            for delay_s in COMMITS_S:
                with suppress(OutcomeUnknown):
                    await self._commit()
                    break
                await asyncio.sleep(delay_s)
            else:
                await self._commit()
        except NotDurable as short:
            self._is_over = True  # it has its name
            short.result = self._bytes
            raise
        self._is_over = True
        with suppress(JobsUnavailable):  # it has its name; the table hears of it later
            await self._blobs.settle(self.entry)
        return self._bytes

    async def abort(self) -> None:
        """Throws away what was written; may follow `commit`, and then does nothing."""
        self._left.clear()
        if not self._is_over:  # nobody knows, if the commit was broken off: the manifest does
            self._is_over = True
            self._blobs.start(self._blobs.settle(self.entry))

    async def _commit(self) -> None:
        safety = self._blobs.safety
        mark = None if safety is None else await safety.mark(self._manifest)
        keys = (self._manifest, self._place) if mark is None else (self._manifest, self._place, mark)
        if not await self._blobs.run(COMMIT, keys, (self._nonce, self._count, self._bytes, READING_S * 1000)):
            raise JobsUnavailable("The file was given up: nothing of it came for too long. Send it again.")
        if safety is not None:
            await safety.settle(mark)

    async def _send(self, many: int) -> None:
        data = bytes(self._left[: many * PART_BYTES])
        del self._left[: len(data)]
        await self._blobs.count(self.entry, len(data))
        first, self._count = self._count, self._count + many
        self._bytes += len(data)

        def stage(number: int) -> Coroutine[Any, Any, Any]:
            part = data[number * PART_BYTES : (number + 1) * PART_BYTES]
            staged_ms = int(self._blobs.staged_s * 1000)
            return self._blobs.run(STAGE, (self._place,), (staged_ms, self._nonce, first + number, part))

        await asyncio.gather(*map(stage, range(many)))


async def _quietly(work: Coroutine[Any, Any, object]) -> None:
    with suppress(JobsUnavailable):
        await work
