"""Batches and files, assembled: what routes may ask of them, who runs the pieces of batches, and these routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.snapshot import Policies
from gateway.features.run_port import RunPort
from gateway.products.batches.chunk import ChunkRunner
from gateway.products.batches.files_http import FileRoutes
from gateway.products.batches.finish import BatchChecks, BatchFinalizer, PartialFiles
from gateway.products.batches.http import BatchRoutes, MergedLists
from gateway.products.batches.native.formats import NativeAccounts, ProviderBatches
from gateway.products.batches.native.service import NativeParts, PartCharges
from gateway.products.batches.output import MODELS
from gateway.products.batches.service import BatchService, FileService
from gateway.products.jobs.answers_http import EventReaders
from gateway.products.jobs.calls import CallServer, MakeCall, ServeCall
from gateway.products.jobs.model import CHECK, FINALISE, Job
from gateway.products.jobs.rules import JOBS, DeadLines, JobRules
from gateway.products.jobs.store import Blobs, JobStore
from gateway.products.jobs.upkeep import Watchers
from gateway.products.jobs.worker import CrashSuspects, JobEngine, RunningWork

Native = tuple[ProviderBatches, NativeAccounts, Callable[[Call], float]]
"""Providers' own Batch APIs, who books what is paid there, and what a call is reckoned with in a budget."""


def models_of(batch: Job) -> Sequence[str]:
    """Returns the models of a batch's lines; none before they have been checked."""
    models: Sequence[str] = batch.marks.get(MODELS, ())
    return models


class BatchPieces:
    """Runs the pieces of the batches of one store: their checks, their chunks, and their ends."""

    def __init__(
        self, checks: BatchChecks, chunks: ChunkRunner, ends: BatchFinalizer, parts: NativeParts | None
    ) -> None:
        """`parts` are those at providers' own Batch APIs; None: all lines run here."""
        self._checks = checks
        self._chunks = chunks
        self._ends = ends
        self._parts = parts
        self.forget = chunks.forget
        """Forgets a batch that has ended."""

    async def run(self, running: RunningWork) -> None:
        """Runs a piece, and ends its claim."""
        work = running.work
        if work.piece == CHECK:
            await self._checks.run(running)
        elif work.piece == FINALISE:
            if self._parts is None or await self._parts.wind_up(running):
                await self._ends.run(running)
                self.forget(work.job.id)
        else:
            await (self._chunks if self._parts is None else self._parts).run(running)

    def remembered(self) -> Sequence[str]:
        """Returns the ids of the batches of which this process remembers something."""
        return self._chunks.brakes.job_ids


class BatchWork:
    """All of batches and files in one process."""

    def __init__(
        self,
        policies: Policies,
        engine: JobEngine,
        blobs: Blobs,
        clock: Clock,
        watchers: Watchers,
        rules: Callable[[], JobRules],
        draw_bytes: Callable[[int], bytes],
    ) -> None:
        self._policies = policies
        self._blobs = blobs
        self._clock = clock
        self._files = FileService(engine, blobs, clock, lambda: JOBS.of(policies.current), draw_bytes)
        self._partial = PartialFiles(engine.reader, blobs)
        self._batches = BatchService(engine, watchers, clock, rules, draw_bytes)
        self._parts: NativeParts | None = None

    def phases(self) -> Mapping[str, int]:
        """Returns how many parts of batches are at providers' own Batch APIs, by how far they have come."""
        return {} if self._parts is None else self._parts.phases()

    def pieces(
        self,
        store: JobStore,
        server: CallServer,
        rules_of: Callable[[Job], JobRules],
        draw: Callable[[], float],
        suspects: CrashSuspects,
        may_begin: Callable[[], bool],
        dead_lines: Callable[[], DeadLines],
        native: Native | None,
        make_call: MakeCall,
        runs: RunPort,
    ) -> BatchPieces:
        """Returns who runs the batches of a store, by the rules in force for each; None for `native`: all lines run here."""
        blobs, clock, policies = self._blobs, self._clock, self._policies
        chunks = ChunkRunner(store, blobs, server, clock, rules_of, draw, may_begin, dead_lines)
        checks = BatchChecks(store, blobs, policies, clock, rules_of, suspects)
        if native is not None:
            batches, accounts, price_of = native
            charges = PartCharges(blobs, accounts, make_call, price_of, rules_of, clock)
            self._parts = NativeParts(
                *(store, blobs, batches, accounts, charges, policies, clock, rules_of, chunks.run, runs)
            )
        return BatchPieces(checks, chunks, BatchFinalizer(store, blobs, clock, rules_of), self._parts)

    def routes(self, serve: ServeCall, readers: EventReaders, relay: ASGIApp) -> list[BaseRoute]:
        """Returns the routes of files and batches; `relay` serves requests for the provider of `passthrough`."""
        lists = MergedLists(self._policies, self._clock, serve)
        files = FileRoutes(self._policies, self._files, self._partial, lists, relay).routes()
        return files + BatchRoutes(self._policies, self._batches, readers, lists, relay).routes()
