"""Workers on one store that die in the middle of their work, in virtual time: nothing that they were about to do happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from gateway.job_ports import JobStore
from gateway.jobs.batches.chunk import ChunkRunner
from gateway.jobs.call_job import CallJobs
from gateway.jobs.one_call import CallServer
from gateway.jobs.worker import JobWorker
from gateway.policy.jobs.errors import JobsUnavailable
from tests.jobs.stage import Stage


class Mortal:
    """A store as a process knows it, until it dies; `before` may raise in the place of a write."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "dead":
            return Dying(self, found)
        return self.guarded(found) if asyncio.iscoroutinefunction(found) else found

    def guarded(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the method, which does nothing once the process is dead."""

        async def asked(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0.001)  # as a disk does
            if self.is_dead:
                raise JobsUnavailable("dead")
            return await ask(*args, **kwargs)

        return asked


class Dying:
    """The dead letters of a mortal store."""

    def __init__(self, store: Mortal, inner: Any) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return self._store.guarded(getattr(self._inner, name))


class Lives:
    """One worker at a time, and the crashes so far."""

    def __init__(self, stage: Stage, run_piece: Callable[[JobStore], Any] | None = None) -> None:
        """`run_piece` makes what runs pieces on a store; None: calls and chunks."""
        self._stage = stage
        self._run_piece = run_piece
        self.crashes = 0
        self._dies = asyncio.Event()
        self._begin()

    def die(self) -> None:
        """The process dies now, in the middle of whatever it does."""
        self._store.is_dead = True
        self._dies.set()

    async def until_end(self, job_id: str, most_crashes: int = 50) -> None:
        """Starts another worker after each crash, until the job has ended."""
        while (job := await self._stage.store.find(job_id, None)) is None or not job.state.is_end:
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
        self._store = Mortal(stage.store)
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
            kept._pieces.stop_if_asked(job, now)
