"""Workers on one store that die in the middle of their work, in virtual time: nothing that they were about to do happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from gateway.drivers.durability import JobsUnavailable
from gateway.products.batches.chunk import ChunkRunner
from gateway.products.jobs.calls import CallServer
from gateway.products.jobs.model import JobQuery
from gateway.products.jobs.runner import CallJobs
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import JobWorker
from tests.support.stage import Stage

LONGEST_S = 600.0


class Mortal:
    """A store as a process knows it, until it dies; `effect` is called before and behind whatever is asked of it."""

    def __init__(self, inner: Any, effect: Callable[[], None] = lambda: None) -> None:
        self._inner = inner
        self._effect = effect
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("dead", "files", "events", "responses", "runs"):
            return Dying(self, found)
        return self.guarded(found) if asyncio.iscoroutinefunction(found) else found

    def guarded(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the method, which does nothing once the process is dead."""

        async def asked(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0.001)  # as a disk does
            self._effect()
            if self.is_dead:
                raise JobsUnavailable("dead")
            answer = await ask(*args, **kwargs)
            self._effect()
            if self.is_dead:
                raise JobsUnavailable("dead")
            return answer

        return asked


class Dying:
    """A sub-port of a mortal store."""

    def __init__(self, store: Mortal, inner: Any) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return self._store.guarded(getattr(self._inner, name))


class Lives:
    """One worker at a time, and the crashes so far."""

    def __init__(
        self,
        stage: Stage,
        run_piece: Callable[[JobStore], Any] | None = None,
        effect: Callable[[], None] = lambda: None,
    ) -> None:
        """`run_piece` makes what runs pieces on a store; None: calls and chunks. `effect` is called around each of its uses."""
        self._stage = stage
        self._run_piece = run_piece
        self._effect = effect
        self.crashes = 0
        self._dies = asyncio.Event()
        self._begin()

    def die(self) -> None:
        """The process dies now, in the middle of whatever it does."""
        self._store.is_dead = True
        self._dies.set()

    async def until_end(self, job_id: str, most_crashes: int = 50) -> None:
        """Starts another worker after each crash, until the job has ended."""

        async def is_over() -> bool:
            job = await self._stage.store.find(job_id, None)
            return job is not None and job.state.is_end

        await self.until(is_over, most_crashes)

    async def until_all_end(self) -> None:
        """The same, until all jobs have ended."""

        async def are_over() -> bool:
            jobs = (await self._stage.store.list_jobs(JobQuery(None, limit=100_000))).jobs
            return all(job.state.is_end for job in jobs)

        await self.until(are_over)

    async def until(self, is_over: Callable[[], Awaitable[bool]], most_crashes: int = 50) -> None:
        """Starts another worker after each crash, until it is over."""
        ends_at = self._stage.clock.monotonic() + LONGEST_S
        while not await is_over():
            assert self._stage.clock.monotonic() < ends_at, "it never ends"
            self._stage.store.tick()
            if self._dies.is_set():
                self.crashes += 1
                assert self.crashes <= most_crashes, "it never ends"
                await self._bury()
                self._begin()
            await asyncio.sleep(0.01)

    async def aclose(self) -> None:
        """Ends in order."""
        await self._worker.aclose()

    def _begin(self) -> None:
        stage = self._stage
        self._dies.clear()
        self._store = Mortal(stage.store, self._effect)
        store = cast(JobStore, self._store)
        server = CallServer(stage.make_call, stage.serve, stage.clock)
        rules = stage._rules_of
        stage.calls = CallJobs(store, server, stage.clock, rules, lambda: 1.0)
        stage.chunks = ChunkRunner(store, stage.blobs, server, stage.clock, rules, lambda: 1.0)
        run = stage.run_piece if self._run_piece is None else self._run_piece(store)
        self._worker = JobWorker(store, run, stage.clock, lambda: stage.rules.segments, stage.meter)
        self._worker.start()

    async def _bury(self) -> None:
        """Ends the tasks of a dead worker; what it had is ready again, uncounted as nothing."""
        await self._worker.aclose()
        kept: Any = self._stage.store
        now = self._stage.clock.wall()
        for job in list(kept._jobs.values()):
            for piece in [piece for piece in job.pieces.values() if piece.state == "claimed"]:
                kept._pieces.put(job, piece.number, piece.ready_at, now, claims=piece.claims)
            kept._pieces.stop_if_requested(job, now)
