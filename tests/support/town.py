"""Processes that die, and jobs that outlive them, in virtual time: on every store of jobs, in the same words.

A process is a worker with its own view of the store. Killed, it writes nothing more and its calls come to nothing; frozen, it
is taken for dead, and finds later that others have its work. Whatever is asked of a file or a server is waited for while
virtual time stands still.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import orjson

from gateway.core.call import Call, Reply
from gateway.core.types import SharedState
from gateway.drivers.redis.link import Link, Script
from gateway.drivers.redis.wire import Part
from gateway.products.batches.finish import BatchFinalizer
from gateway.products.jobs.model import FINALISE, ClaimedWork, Job, derived_file_id
from gateway.products.jobs.redis import partitions_of
from gateway.products.jobs.sqlite_store import SqliteJobStore
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import RunningWork
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_store.store import MemoryJobStore
from tests.support.redis_jobs import PATIENT_S, JobLender, end_leases
from tests.support.sqlite_support import connect_hastily
from tests.support.stage import Stage, few_lines
from tests.support.virtual import LoopClock, VirtualLoop


class Where(NamedTuple):
    """What is there to keep things in: a folder, and a server."""

    folder: Path
    redis_url: str


class Kept(Protocol):
    """What outlives processes: a store of jobs that can be opened anew."""

    store: JobStore

    def replica(self) -> JobStore | None:
        """Another process's own way to what is kept; None: there is one for all."""
        ...

    def asked(self) -> AbstractContextManager[None]:
        """Is held while the store is asked: it sees to it that virtual time waits for the world."""
        ...

    async def begin(self) -> None:
        """Opens it."""
        ...

    async def lose_workers(self) -> None:
        """All who had claims are known to be dead when this returns."""
        ...

    async def aclose(self) -> None: ...


class _KeptAsOne:
    """All processes see it through the same store."""

    def replica(self) -> None:
        pass

    def asked(self) -> AbstractContextManager[None]:
        return outside()

    async def begin(self) -> None:
        pass


class KeptInMemory(_KeptAsOne):
    """The reference, as if it were not lost with its process: what a file does when it is opened, it does here."""

    def __init__(self, clock: LoopClock, _where: Where) -> None:
        self._clock = clock
        self.store: Any = MemoryJobStore(clock.wall)

    async def lose_workers(self) -> None:
        for kept in list(self.store._jobs.values()):
            for piece in kept.pieces.values():
                if piece.state == "claimed":
                    piece.state = "ready"
            self.store._pieces._withhold(kept, self._clock.wall())
            self.store._pieces.stop_if_requested(kept, self._clock.wall())
        self.store._wake()

    async def aclose(self) -> None:
        await self.store.aclose()


class KeptInFile(_KeptAsOne):
    """A file; who opens it knows that everybody who had it before is dead."""

    def __init__(self, clock: LoopClock, where: Where) -> None:
        self._open: Callable[[], JobStore] = lambda: SqliteJobStore(
            str(where.folder / "jobs.db"), clock.wall, connect=connect_hastily
        )
        self.store: JobStore = self._open()

    async def lose_workers(self) -> None:
        with outside():
            await self.store.aclose()
        self.store = self._open()

    async def aclose(self) -> None:
        with outside():
            await self.store.aclose()


class KeptInRedis:
    """A server that every process is a replica on; a claim is lost when its lease is over."""

    def __init__(self, clock: LoopClock, where: Where) -> None:
        self._clock = clock
        self._where = where
        self._link = OutsideLink(SharedState(where.redis_url, namespace="town", timeout_s=PATIENT_S))

    async def begin(self) -> None:
        with outside():
            await self._link.start()
            partitions = await partitions_of(self._link, is_cluster=False)
        self._lends = JobLender(self._link, self._where.redis_url, partitions)
        self._replicas: list[JobStore] = []
        self.store: JobStore = self._lends.make(wall=self._clock.wall)

    def replica(self) -> JobStore:
        self._replicas.append(self._lends.make(wall=self._clock.wall, is_replica=True))
        return self._replicas[-1]

    def asked(self) -> AbstractContextManager[None]:
        """Time passes for it: it waits by itself before it tries a step again that somebody else was faster with."""
        return nullcontext()

    async def lose_workers(self) -> None:
        end_leases(self._lends.url, self._lends.namespace)

    async def aclose(self) -> None:
        for store in (*self._replicas, self.store):
            await store.aclose()
        await self._link.aclose()


class OutsideLink(Link):
    """Time stands still while a command is under way, whoever waits for it or has left."""

    def _send(self, parts: tuple[Part, ...], key: bytes, script: Script | None, **how: bool) -> asyncio.Future[Any]:
        asked = super()._send(parts, key, script, **how)
        if not asked.done():
            held = ExitStack()
            held.enter_context(outside())
            asked.add_done_callback(lambda _: held.close())
        return asyncio.shield(asked)


KINDS: dict[str, Callable[[LoopClock, Where], Kept]] = {
    "memory": KeptInMemory,
    "sqlite": KeptInFile,
    "redis": KeptInRedis,
}
"""The stores that the scenarios are told of."""


def outside() -> AbstractContextManager[None]:
    """Time stands still inside of it."""
    return cast("VirtualLoop", asyncio.get_running_loop()).outside()


SUB_PORTS = ("files", "events", "responses", "runs")


class View:
    """A process's view of what is kept: it goes on with whatever is open, until the process is killed."""

    def __init__(self, kept: Kept, over: asyncio.Event) -> None:
        """Whoever is dead waits for `over`, and is cancelled then."""
        self._kept = kept
        self._own = kept.replica()
        self._over = over
        self.is_dead = False
        self.dies_before = self.dies_after = ""
        """The method of the store at which the process dies; of a sub-port `files.add`."""
        self.asks_twice = ""
        """The method whose first answer never comes: it is asked once more."""
        self.asked: Counter[str] = Counter()
        """How often each method was asked."""
        self.claims: list[ClaimedWork] = []
        """All that was given to it."""

    @property
    def _store(self) -> JobStore:
        return self._own or self._kept.store

    def on_ready(self, wake: Callable[[], None]) -> None:
        """Wakes of a store that is opened later are not heard: a worker looks once a second by itself."""
        self._store.on_ready(wake)

    def __getattr__(self, name: str) -> Any:
        if name in SUB_PORTS:
            return ViewPart(self, name)
        found = getattr(self._store, name)
        return self.asking(name, lambda: getattr(self._store, name)) if iscoroutinefunction(found) else found

    def part(self, name: str) -> Any:
        """Returns a sub-port of what is open now."""
        return getattr(self._store, name)

    def asking(self, name: str, method: Callable[[], Any]) -> Callable[..., Any]:
        """Returns a method of what is open by the time it is called, by the name at which the process may die."""

        async def asked(*given: Any, **named: Any) -> Any:
            self.asked[name] += 1
            self.is_dead = self.is_dead or name == self.dies_before
            await self._live()
            with self._kept.asked():
                if name == self.asks_twice:
                    await method()(*given, **named)
                result = await method()(*given, **named)
            self.is_dead = self.is_dead or name == self.dies_after
            await self._live()
            if name == "claim":
                self.claims += result
            return result

        return asked

    async def _live(self) -> None:
        if self.is_dead:
            await self._over.wait()
            raise asyncio.CancelledError


class ViewPart:
    """A sub-port of the store as a process sees it; its methods are called `files.add` and so on."""

    every_s = 0.1
    """Of event logs: these processes share whatever they have, a file too."""

    def __init__(self, view: View, name: str) -> None:
        self._view = view
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._view.part(self._name), name)
        if not iscoroutinefunction(found):
            return found
        return self._view.asking(f"{self._name}.{name}", lambda: getattr(self._view.part(self._name), name))


@dataclass
class Process(Stage):
    """A gateway that can be killed."""

    view: Any = None

    @property
    def is_dead(self) -> bool:
        """Nothing of it is heard any more."""
        return bool(self.view.is_dead)

    def open_store(self) -> MemoryJobStore:
        return cast("MemoryJobStore", self.view)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ends = BatchFinalizer(self.store, self.blobs, self.clock, self._rules_of)

    async def run_piece(self, running: RunningWork) -> None:
        """Runs every piece but CHECK as the gateway does."""
        if running.work.piece == FINALISE:
            await self.ends.run(running)
        else:
            await super().run_piece(running)

    async def serve(self, call: Call) -> Reply:
        await self.view._live()
        reply = await super().serve(call)
        await self.view._live()
        return reply

    def kill(self) -> None:
        """As kill -9 does."""
        self.view.is_dead = True

    async def file_of(self, batch_id: str, role: Any) -> list[dict[str, Any]]:
        """The lines of one of a batch's files."""
        file = await self.store.files.find(derived_file_id(batch_id, role), "t")
        if file is None:
            return []
        text = b"".join([part async for part in self.blobs.read(file.blob)])
        return [orjson.loads(line) for line in text.splitlines()]


@dataclass
class Town:
    """What processes share: the store, the blobs, and the provider, who notes every call."""

    clock: LoopClock
    kept: Kept
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    tries: list[str] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """The story is told."""

    def process(self, **fields: Any) -> Process:
        """Another process; it begins with `worker.start()`."""
        usual: dict[str, Any] = {"rules": few_lines(), "blobs": self.blobs, "tries": self.tries}
        return Process(self.clock, view=View(self.kept, self.over), **{**usual, **fields})

    def start(self, **fields: Any) -> Process:
        """A process at work."""
        one = self.process(**fields)
        one.worker.start()
        return one

    async def kill(self, process: Process) -> None:
        """Ends a process as kill -9 does; that it is dead is known when this returns."""
        process.kill()
        await self.kept.lose_workers()

    async def dies(self, process: Process) -> None:
        """Waits until a process has died by itself, and that is known."""
        while not process.is_dead:  # noqa: ASYNC110 - the dead set no event
            await asyncio.sleep(0.01)
        await self.kept.lose_workers()

    async def paid(self, number: int) -> None:
        """Waits until the provider has been asked so often."""
        while len(self.tries) < number:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.01)

    async def is_whole(self, process: Process, job: Job, lines: int) -> tuple[int, int]:
        """That each line is in one of the two files, once and in order, as counted; returns the lengths of the files."""
        output, errors = await process.file_of(job.id, "output"), await process.file_of(job.id, "errors")
        for part in (output, errors):
            places = [int(line["custom_id"][1:]) for line in part]
            assert places == sorted(set(places))
        assert sorted(int(line["custom_id"][1:]) for line in [*output, *errors]) == list(range(lines))
        assert (job.tally.total, job.tally.completed, job.tally.failed) == (lines, len(output), len(errors))
        return len(output), len(errors)


@asynccontextmanager
async def town(kind: str, clock: LoopClock, where: Where) -> AsyncIterator[Town]:
    """An empty store of a kind, and nobody at work."""
    one = Town(clock, KINDS[kind](clock, where))
    await one.kept.begin()
    lasting = asyncio.all_tasks()
    try:
        yield one
    finally:
        one.over.set()
        while left := asyncio.all_tasks() - lasting:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1)
        await one.kept.aclose()
