"""Durable work of one gateway, over its pipeline: built from the config, around calls, in routes and in metrics.

It is the only part of durable work that a gateway's own assembly knows. Where jobs are not installed, it is not, either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from gateway.admin.http import KeptFile, forget_copies
from gateway.core.call import CallProduct, CallRoute
from gateway.core.clock import Clock, SharedClock
from gateway.core.pipeline import Pipeline
from gateway.core.snapshot import Policies, PolicySnapshot, Provider
from gateway.drivers.durability import IN_REDIS, JOB_SETTINGS, JobSettings
from gateway.drivers.outward import AddressGuard, open_outwards
from gateway.features.run_port import RunPort
from gateway.installed import is_installed
from gateway.products.jobs.admin import job_admin_routes
from gateway.products.jobs.answers_http import EventReaders
from gateway.products.jobs.call_maker import CallMaker
from gateway.products.jobs.dead_letters.http import dead_letter_routes
from gateway.products.jobs.http import ReadBody
from gateway.products.jobs.metrics import JobMeter
from gateway.products.jobs.model import Job, NewJob
from gateway.products.jobs.respond_async import AsyncAnswers, may_become_job
from gateway.products.jobs.response_store import KeptBounds
from gateway.products.jobs.store import (
    JobStore,
    copier_of,
    has_jobs,
    no_jobs,
    open_blobs,
    open_jobs,
    open_redis_blobs,
    open_redis_jobs,
)
from gateway.products.jobs.upkeep import CountedEnds
from gateway.products.work import JobWork, durable_routes

# One that is not here is left out.
if is_installed("gateway.features.runs"):
    from gateway.features.runs.steps import StepCalls
    from gateway.features.runs.table import DurableRuns, RunTable
if is_installed("gateway.products.batches"):
    from gateway.products.batches.native.providers import HttpProviderBatches
if is_installed("gateway.products.pipelines"):
    from gateway.products.pipelines.compile import PIPELINE
    from gateway.products.pipelines.http import PipelineAnswers
if is_installed("gateway.products.responses"):
    from gateway.products.responses.http import ResponseEndpoint
    from gateway.products.responses.keeping import keeping_of
if is_installed("gateway.products.jobs.webhooks"):
    from gateway.products.jobs.webhooks.http import webhook_routes
    from gateway.products.jobs.webhooks.rules import WEBHOOK_SETTINGS, WEBHOOKS, deliveries_of

if TYPE_CHECKING:
    import httpx

TakesPart = Callable[[CallRoute, frozenset[bytes]], bool]


class DurableWork:
    """Durable work, where the config has any, and what there is of its products where it has none."""

    def __init__(
        self,
        policies: Policies,
        pipeline: Pipeline,
        runs: RunTable | None,
        steps: StepCalls | None,
        meter: JobMeter,
        *,
        runs_of_work: RunPort,
        kept_clock: Clock,
        transport_of: Callable[[Provider], httpx.AsyncBaseTransport],
        may_begin: Callable[[], bool],
        only_works: bool,
    ) -> None:
        """`kept_clock` is the clock of what waits; `transport_of` gives the transport that a provider's calls go over.

        `may_begin` is the worker's. `only_works`: the process is for work alone, whatever the config says of gateways.
        """
        self._policies = policies
        self._pipeline = pipeline
        self._runs = runs
        self._runs_of_work = runs_of_work
        self._steps = steps
        self._meter = meter
        self._kept_clock = kept_clock
        self._may_begin = may_begin
        self._only_works = only_works
        self._make_call = CallMaker(policies, pipeline.clock, runs_of_work)
        self._readers = EventReaders()
        settings = JOB_SETTINGS.of(policies.current)
        self.work = self._build(settings, transport_of) if settings.is_on else None
        """None: the config has none."""

    def _build(self, settings: JobSettings, transport_of: Callable[[Provider], httpx.AsyncBaseTransport]) -> JobWork:
        policies, runs, steps, admission = self._policies, self._runs, self._steps, self._pipeline.admission
        clock = self._kept_clock
        if settings.redis is not None:
            clock = SharedClock()
            # loaded before any call is served: later it would keep the loop from the limits' Redis, which has 50 ms
            import gateway.products.jobs.redis  # noqa: F401  # a gateway without it does not load it
        has_webhooks = is_installed("gateway.products.jobs.webhooks")
        leaving = WEBHOOK_SETTINGS.of(policies.current) if has_webhooks else None

        def following(ended: Job) -> Sequence[NewJob]:
            return deliveries_of(ended, WEBHOOKS.of(policies.current)) if has_webhooks else ()

        async def last_users(grace_s: float) -> None:
            if steps is not None:
                await steps.drain(grace_s)
            if runs is not None:
                await runs.tick()  # what steps have cost is told to their runs

        if settings.redis is not None and settings.files == IN_REDIS:
            blobs = open_redis_blobs(settings.redis, settings.accept)
        else:
            blobs = open_blobs(settings.files, settings.min_free_bytes)
        work = JobWork(
            policies,
            clock,
            self._pipeline.handle,
            self._make_call,
            price_of=lambda call: admission.costs.usd(call, call.route.model.plan[0]),
            open_store=partial(_open_store, settings, clock, CountedEnds(following, self._meter, self._runs_of_work)),
            # in a Redis others may have left some, and its time is to be known before one is taken here
            has_jobs=lambda: settings.redis is not None or has_jobs(settings.store),
            nothing=None if settings.redis is not None else lambda: no_jobs(clock.wall),
            blobs=blobs,
            outwards=open_outwards(
                AddressGuard(), *((leaving.egress_proxy, leaving.ca_file) if leaving else (None, None))
            ),
            meter=self._meter,
            may_begin=self._may_begin,
            is_holding=lambda: admission.queue.occupancy.calls > 0,
            works=self._only_works or settings.works,
            waits=settings.redis is None,
            native=(HttpProviderBatches(transport_of), admission.budgets, admission.costs.usual_usd)
            if is_installed("gateway.products.batches")
            else None,
            runs=self._runs_of_work,
            last_users=last_users,
        )
        # Steps and their runs are kept in the store of jobs, whose work needs the pipeline: so they get the store only here.
        if steps is not None and runs is not None:
            steps.kept.open, steps.kept.write_behind = work.engine.store, runs.write_behind
            runs.durable = DurableRuns(work.engine.store, work.engine.reader)
        return work

    @property
    def clock(self) -> Clock:
        """Returns the clock by which operators' requests about durable work are read."""
        return self._kept_clock if self.work is None else self.work.clock

    def around(self) -> list[CallProduct]:
        """Returns the products that it has around calls, the outermost first."""
        work, accounts, products = self.work, self._pipeline.accounts, list[CallProduct]()
        if is_installed("gateway.products.pipelines"):  # its models are there, too, where there are no jobs
            jobs, clock = (None, self._pipeline.clock) if work is None else (work.service, work.clock)
            products.append(PipelineAnswers(jobs, accounts, clock))
        if work is not None:
            products.append(AsyncAnswers(work.service, accounts, work.clock, self._meter))
            if (responses := work.responses) is not None:
                products.append(ResponseEndpoint(accounts, responses.service, responses.foreground, self._readers))
        return products

    def routes(self, relay: ASGIApp, read_body: ReadBody) -> list[BaseRoute]:
        """Returns the routes of callers; `relay` serves requests for the provider of `passthrough`."""
        make_call, serve = self._make_call, self._pipeline.handle
        return durable_routes(self._policies, self.work, make_call, serve, self._readers, relay, read_body)

    def admin_routes(self) -> list[BaseRoute]:
        """Returns the routes of operators."""
        work, routes = self.work, job_admin_routes(self._policies, self.work)
        if is_installed("gateway.products.jobs.webhooks"):
            webhooks = None if work is None else work.webhooks
            routes += webhook_routes(self._policies, None if webhooks is None else webhooks.admin, self.clock)
        return routes + dead_letter_routes(self._policies, work, self.clock)

    async def find_file(self) -> KeptFile | None:
        """Returns the file of jobs that operators may copy; None: there is none. Raises JobsUnavailable."""
        found = None if self.work is None else copier_of(await self.work.engine.reader())
        return None if found is None else KeptFile(*found)

    def fill_gauges(self) -> None:
        """Sets the gauges, when somebody asks for metrics."""
        work, meter = self.work, self._meter
        if work is not None and work.engine.opened is not None:
            meter.set_depth(work.engine.opened.depth(), work.clock.wall())
            meter.set_native_parts(work.native_parts())
            if self._runs is not None:
                meter.set_early_runs(work.engine.opened.runs.early)
            meter.set_early_responses(work.engine.opened.responses.early)


async def _open_store(settings: JobSettings, clock: Clock, following: CountedEnds) -> JobStore:
    following.start()
    in_all, per_tenant = settings.max_open_jobs, settings.max_open_jobs_per_tenant
    of_kept = KeptBounds(
        log_bytes=settings.max_response_log_bytes,
        tenant_bytes=settings.max_response_bytes_per_tenant,
        run_bytes=settings.max_run_bytes_per_tenant,
    )
    if settings.redis is None:
        store = await asyncio.to_thread(
            open_jobs, settings.store, clock.wall, in_all, per_tenant, following, of_kept, lambda: clock.ahead_s
        )
        forget_copies(settings.store)
        return store
    return await open_redis_jobs(
        settings.redis,
        replica=token_hex(8),
        clock=clock if isinstance(clock, SharedClock) else None,
        in_all=in_all,
        per_tenant=per_tenant,
        accept=settings.accept,
        following=following,
        kept_bounds=of_kept,
    )


# --- the same products of a config, without a gateway ---


def around_calls_of(policy: PolicySnapshot) -> list[tuple[type[CallProduct], TakesPart]]:
    """Returns the products that durable work has around the calls of a config, each with which calls it is for."""
    found: list[tuple[type[CallProduct], TakesPart]] = []
    if is_installed("gateway.products.pipelines"):
        found.append((PipelineAnswers, lambda route, _requested: PIPELINE in route.model.settings))
    if JOB_SETTINGS.of(policy).is_on:
        found.append((AsyncAnswers, may_become_job))
        if is_installed("gateway.products.responses"):
            found.append((ResponseEndpoint, _is_for_kept))
    return found


def _is_for_kept(route: CallRoute, _requested: frozenset[bytes]) -> bool:
    return keeping_of(route.policy, route.key, route.model, route.endpoint) is not None
