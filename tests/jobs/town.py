"""Processes that die, and jobs that outlive them, in virtual time: on every store of jobs, in the same words.

A process is a worker with its own view of the store. Killed, it writes nothing more and its calls come to nothing; frozen, it
is taken for dead, and finds later that others have its work. Whatever is asked of a file or a server is waited for while
virtual time stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Protocol, cast

import orjson

from gateway.call import Call, Reply
from gateway.job_ports import JobStore
from gateway.jobs.batches.finalise import BatchEnds
from gateway.jobs.running import RunningWork
from gateway.policy.jobs.ids import derived_file_id
from gateway.policy.jobs.job import FINALISE, ClaimedWork, Job
from gateway.store.blobs.memory import MemoryBlobs
from gateway.store.jobs.memory.store import MemoryJobStore
from gateway.store.jobs.sqlite.store import SqliteJobStore
from tests.flow.virtual import LoopClock, VirtualLoop
from tests.jobs.stage import Stage, few_lines
from tests.store.sqlite_support import connect_hastily


class Kept(Protocol):
    """What outlives processes: a store of jobs that can be opened anew."""

    store: JobStore

    async def lose_workers(self) -> None:
        """All who had claims are known to be dead when this returns."""
        ...

    async def aclose(self) -> None: ...


class KeptInMemory:
    """The reference, as if it were not lost with its process: what a file does when it is opened, it does here."""

    def __init__(self, clock: LoopClock, _folder: Path) -> None:
        self._clock = clock
        self.store: Any = MemoryJobStore(clock.wall)

    async def lose_workers(self) -> None:
        for kept in list(self.store._jobs.values()):
            for piece in kept.pieces.values():
                if piece.state == "claimed":
                    piece.state = "ready"
            self.store._pieces._withhold(kept, self._clock.wall())
            self.store._pieces.stop_if_asked(kept, self._clock.wall())
        self.store._wake()

    async def aclose(self) -> None:
        await self.store.aclose()


class KeptInFile:
    """A file; who opens it knows that everybody who had it before is dead."""

    def __init__(self, clock: LoopClock, folder: Path) -> None:
        self._open: Callable[[], JobStore] = lambda: SqliteJobStore(
            str(folder / "jobs.db"), clock.wall, connect=connect_hastily
        )
        self.store: JobStore = self._open()

    async def lose_workers(self) -> None:
        with outside():
            await self.store.aclose()
        self.store = self._open()

    async def aclose(self) -> None:
        with outside():
            await self.store.aclose()


KINDS: dict[str, Callable[[LoopClock, Path], Kept]] = {"memory": KeptInMemory, "sqlite": KeptInFile}
"""The stores that the scenarios are told of."""


def outside() -> Any:
    """Time stands still inside of it."""
    return cast("VirtualLoop", asyncio.get_running_loop()).outside()


class View:
    """A process's view of what is kept: it goes on with whatever is open, until the process is killed."""

    def __init__(self, kept: Kept, over: asyncio.Event) -> None:
        """Whoever is dead waits for `over`, and is cancelled then."""
        self._kept = kept
        self._over = over
        self.is_dead = False
        self.dies_before = self.dies_after = ""
        """The method of the store at which the process dies."""
        self.claims: list[ClaimedWork] = []
        """All that was given to it."""

    def on_ready(self, wake: Callable[[], None]) -> None:
        """Wakes of a store that is opened later are not heard: a worker looks once a second by itself."""
        self._kept.store.on_ready(wake)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kept.store, name)
        if not iscoroutinefunction(found):
            return found

        async def asked(*given: Any, **named: Any) -> Any:
            self.is_dead = self.is_dead or name == self.dies_before
            await self._live()
            with outside():
                result = await getattr(self._kept.store, name)(*given, **named)
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
        self.ends = BatchEnds(self.store, self.blobs, self.clock, self._rules_of)

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
        file = await self.store.find_file(derived_file_id(batch_id, role), "t")
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
async def town(kind: str, clock: LoopClock, folder: Path) -> AsyncIterator[Town]:
    """An empty store of a kind, and nobody at work."""
    one = Town(clock, KINDS[kind](clock, folder))
    try:
        yield one
    finally:
        one.over.set()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        while left:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1)
            left = asyncio.all_tasks() - {asyncio.current_task()}
        await one.kept.aclose()
