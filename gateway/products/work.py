"""Durable work, assembled: the engine, what routes may ask of it, and these routes. Who keeps jobs and bytes is handed in."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.snapshot import Policies
from gateway.drivers.outward import Outward
from gateway.features.run_port import NO_RUNS, RunPort
from gateway.installed import is_installed
from gateway.products.jobs.answers_http import EventReaders
from gateway.products.jobs.calls import (
    CallServer,
    MakeCall,
    ServeCall,
)
from gateway.products.jobs.dead_letters.redrive import RedriveFactory
from gateway.products.jobs.dead_letters.service import DeadLetterKeeping, DeadLetterService, JobRetries, RedriveJobs
from gateway.products.jobs.http import JobRoutes, ReadBody
from gateway.products.jobs.metrics import JobMeter
from gateway.products.jobs.model import Job, JobKind, NewJob, WriteResult
from gateway.products.jobs.rules import JOB_RULES, JOBS, DeadLines, JobRules, SegmentRules
from gateway.products.jobs.runner import CallJobs, request_of, run_of
from gateway.products.jobs.service import JobService
from gateway.products.jobs.store import Blobs, JobStore
from gateway.products.jobs.upkeep import BlobSweep, JobCleaning
from gateway.products.jobs.worker import CrashSuspects, JobEngine, JobWorker, LastUsers, RunningWork, RunPiece, Write
from gateway.products.routes import absent_routes

# What is accepted for one that is not here rests in the store.
HAS_WEBHOOKS: Final = is_installed("gateway.products.jobs.webhooks")
if HAS_WEBHOOKS:
    from gateway.products.jobs.webhooks.work import WebhookWork
HAS_BATCHES: Final = is_installed("gateway.products.batches")
if HAS_BATCHES:
    from gateway.products.batches.work import BatchWork, Native, models_of
HAS_RESPONSES: Final = is_installed("gateway.products.responses")
if HAS_RESPONSES:
    from gateway.products.responses.work import ResponseWork
HAS_PIPELINES: Final = is_installed("gateway.products.pipelines")
if HAS_PIPELINES:
    from gateway.products.pipelines.advance import as_run
    from gateway.products.pipelines.rules import AT_ONCE, count_of, rules_of_items, run_segment
    from gateway.products.pipelines.service import PipelineRuns, RunChildren, RunReader

REST_S: Final = 3600.0
"""Seconds until work whose product is not here is looked at again: it may be back by then."""


class JobWork:
    """All of durable work in one process. Nothing is opened before `start`, or the first request that needs it."""

    def __init__(
        self,
        policies: Policies,
        clock: Clock,
        serve: ServeCall,
        make_call: MakeCall,
        price_of: Callable[[Call], float | None],
        open_store: Callable[[], Awaitable[JobStore]],
        has_jobs: Callable[[], bool],
        nothing: Callable[[], JobStore] | None,
        blobs: Blobs,
        outwards: tuple[Outward, Outward],
        meter: JobMeter | None = None,
        may_begin: Callable[[], bool] = lambda: True,
        is_holding: Callable[[], bool] = lambda: True,
        *,
        works: bool = True,
        waits: bool = True,
        native: Native | None = None,
        runs: RunPort = NO_RUNS,
        last_users: LastUsers | None = None,
    ) -> None:
        """`serve` is the pipeline's `handle`, `may_begin` the worker's, `is_holding` the delay queue's; `open_store`,
        `has_jobs`, `nothing`, `waits`, `last_users` the engine's; `outwards` lead to endpoints of the config, and guarded to
        all others.

        `works` says whether jobs run here, or are only taken and shown. `native` is where lines of batches may run besides;
        None: all run here. `runs` are those that calls are parts of; they get what becomes of runs of pipelines.
        """
        self.runs = runs
        self._native = native
        self._may_begin = may_begin
        self._policies = policies
        self.clock = clock
        """The clock of jobs, which all their times are by."""
        self._blobs = blobs
        self._outwards = outwards
        self._meter = meter
        self._make_call = make_call
        self._price_of = price_of
        self._random = random.Random()  # noqa: S311  # backoffs and ids, which are no secrets: every look is by tenant
        make_worker = self._make_worker if works else None
        self.engine = engine = JobEngine(open_store, has_jobs, make_worker, clock, nothing, last_users, waits=waits)
        rules, draw = self._default_rules, self._random.randbytes
        self.webhooks: WebhookWork | None = None
        """None: it is not installed."""
        if HAS_WEBHOOKS:
            self.webhooks = WebhookWork(policies, clock, engine.reader, outwards, self._random.random)
        self.service = JobService(engine, clock, rules, price_of, draw, runs, as_run if HAS_PIPELINES else None)
        self.batches: BatchWork | None = None
        """None: they are not installed."""
        if HAS_BATCHES:
            self.batches = BatchWork(policies, engine, blobs, clock, self.service.watchers, rules, draw)
        self._server = CallServer(make_call, serve, clock, is_holding)
        self.responses: ResponseWork | None = None
        """None: they are not installed."""
        if HAS_RESPONSES:
            server = CallServer(make_call, serve, clock, is_holding)
            self.responses = ResponseWork(
                *(engine, clock, self.service.watchers, server, rules, self.rules_of, price_of, draw)
            )
        self.dead = DeadLetterService(engine, blobs, clock, rules, draw, self._usd_of)
        self.retries = JobRetries(self.dead, engine)

    async def start(self) -> None:
        await self.engine.start()

    async def aclose(self) -> None:
        """Ends at once: what runs is given back, and the stores close."""
        await self.engine.drain(0.0)
        for outward in self._outwards:
            await outward.aclose()
        await self._blobs.aclose()

    def native_parts(self) -> Mapping[str, int]:
        """Returns how many parts of batches are at providers' own Batch APIs, by how far they have come."""
        return {} if self.batches is None else self.batches.phases()

    def rules_of(self, job: Job) -> JobRules:
        """Returns the rules in force for a job: those that its model picks; of a batch, the one that all its lines name."""
        policy = self._policies.current
        models = [job.model] if job.model else models_of(job) if HAS_BATCHES else ()
        model = policy.find_model(models[0]) if len(models) == 1 else None
        rules = JOBS.of(policy).default if model is None else JOB_RULES.of(model)
        return rules_of_items(rules, job.about) if HAS_PIPELINES and AT_ONCE in job.about else rules

    def _default_rules(self) -> JobRules:
        return JOBS.of(self._policies.current).default

    def _make_worker(self, store: JobStore) -> JobWorker:
        blobs, clock, rules_of, draw = self._blobs, self.clock, self.rules_of, self._random.random
        default = self._default_rules

        def dead_lines() -> DeadLines:
            return default().dead_letters.lines

        suspects = CrashSuspects(store, clock)
        calls = CallJobs(store, self._server, clock, rules_of, draw, suspects)
        redrives = RedriveJobs(store, RedriveFactory(store, blobs, clock, default), clock)
        batches = None
        if self.batches is not None:
            batches = self.batches.pieces(
                *(store, self._server, rules_of, draw, suspects, self._may_begin, dead_lines),
                *(self._native, self._make_call, self.runs),
            )
        changed = self.service.watchers.changed

        async def rest(running: RunningWork) -> None:
            await running.give_back(store, clock.wall() + REST_S)

        run_response: RunPiece = rest
        chores: list[Callable[[], Coroutine[Any, Any, None]]] = []
        if self.responses is not None:
            run_response, forget_responses = self.responses.runner(store, draw, suspects)
            chores.append(forget_responses)

        by_kind: Mapping[JobKind, RunPiece] = {
            JobKind.CALL: calls.run,
            JobKind.BATCH: rest if batches is None else batches.run,
            JobKind.RESPONSE: run_response,
            JobKind.DELIVERY: rest if self.webhooks is None else self.webhooks.deliveries(store).run,
            JobKind.REDRIVE: redrives.run,
            JobKind.RUN: self._run_pipelines(store) if HAS_PIPELINES else rest,
        }

        async def run(running: RunningWork) -> None:
            job = running.work.job
            # Of a step no answer could be checked, nor its run bounded.
            is_step = bool(job.parent) and not HAS_PIPELINES
            await (rest if is_step else by_kind[job.kind])(running)

        def segments() -> Sequence[SegmentRules]:
            hooks = () if self.webhooks is None else self.webhooks.segments(store)
            runs = [run_segment()] if HAS_PIPELINES else []
            return [*hooks, *runs, *default().segments]

        def keep_s() -> float:
            return default().keep_jobs_s

        def keep_runs_s() -> float:
            return default().keep_runs_s

        sweep = BlobSweep(store, blobs, clock)
        if batches is None:
            cleaning = JobCleaning(store, blobs, clock, keep_s, keep_runs_s=keep_runs_s)
        else:
            cleaning = JobCleaning(store, blobs, clock, keep_s, batches.remembered, batches.forget, keep_runs_s)
        keeping = DeadLetterKeeping(store, clock, default, self._meter)
        chores = [cleaning.run_always, sweep.run_always, keeping.run_always, *chores]
        return JobWorker(store, run, clock, segments, self._meter, changed, self._may_begin, chores, self._write)

    def _write(self, job: Job, write: Write) -> Awaitable[WriteResult]:
        run = run_of(job)
        return self.runs.write_behind(job.tenant, run, write) if run else write()

    def _run_pipelines(self, store: JobStore) -> RunPiece:
        children = RunChildren(self._blobs, self.rules_of, self._usd_of)
        reader, changed = RunReader(store, self._blobs), self.service.watchers.changed
        runs = PipelineRuns(
            *(store, reader, children, self.clock),
            lambda model: count_of(self._policies.current, model),
            *(changed, self.runs),
        )
        return runs.run

    async def _usd_of(self, new: NewJob) -> float | None:
        """Returns what an attempt of a job is estimated to cost; None: its model has no price, or it would be refused."""
        try:
            return self._price_of(await self._make_call(request_of(new.job, new.payload, self.clock.wall())))
        except GatewayError:
            return None


# --- all routes: those of jobs, and of files and batches where these are the gateway's own ---


def durable_routes(
    policies: Policies,
    work: JobWork | None,
    make_call: MakeCall,
    serve: ServeCall,
    readers: EventReaders,
    relay: ASGIApp,
    read_body: ReadBody,
) -> list[BaseRoute]:
    """Returns the routes, with and without `/v1`; without work they say that there is none. `serve` is the pipeline's.

    `readers` are those of all streams of events; `relay` serves requests for the provider of `passthrough`.
    """
    if work is None:
        return absent_routes(policies)
    routes = JobRoutes(policies, work.service, make_call, work.clock, readers, read_body, work.runs).routes()
    if work.responses is not None:
        routes += work.responses.routes(policies, readers)
    if work.batches is not None and JOBS.of(policies.current).settings.takes_files:
        routes += work.batches.routes(serve, readers, relay)
    return sorted(routes, key=lambda route: not _is_polled(route))


def _is_polled(route: BaseRoute) -> bool:
    """Returns whether many ask there, again and again: routes are tried one after the other."""
    return isinstance(route, Route) and route.path.endswith("/{id}") and "GET" in (route.methods or ())
