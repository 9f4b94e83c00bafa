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
from gateway.core.call import CallFeature, CallProduct, CallRoute
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
        self._steps: StepCalls | None = None
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
        policies, runs, admission = self._policies, self._runs, self._pipeline.admission
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
            if self._steps is not None:
                await self._steps.drain(grace_s)
            if runs is not None:
                await runs.tick()  # what steps have cost is told to their runs

        if settings.redis is not None and settings.files == IN_REDIS:
            blobs = open_redis_blobs(settings.redis, settings.accept)
        else:
            blobs = open_blobs(settings.files, settings.min_free_bytes)
        return JobWork(
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

    def keep(self, steps: StepCalls) -> None:
        """Keeps steps, and their runs, in the store of jobs, where there is one."""
        self._steps = steps
        if self.work is not None and self._runs is not None:
            engine = self.work.engine
            steps.kept.open, steps.kept.write_behind = engine.store, self._runs.write_behind
            self._runs.durable = DurableRuns(engine.store, engine.reader)

    @property
    def clock(self) -> Clock:
        """Returns the clock by which operators' requests about durable work are read."""
        return self._kept_clock if self.work is None else self.work.clock

    def pipeline_answers(self) -> CallProduct:
        """Returns what answers calls of pipelines; it is there where there are no jobs, too, for so are its models."""
        work = self.work
        jobs, clock = (None, self._pipeline.clock) if work is None else (work.service, work.clock)
        return PipelineAnswers(jobs, self._pipeline.accounts, clock)

    def async_answers(self) -> CallProduct | None:
        """Returns what makes jobs of calls; None: the config has no jobs."""
        work = self.work
        return None if work is None else AsyncAnswers(work.service, self._pipeline.accounts, work.clock, self._meter)

    def response_endpoint(self) -> CallProduct | None:
        """Returns what keeps the responses of calls; None: the config has no jobs."""
        if self.work is None or (responses := self.work.responses) is None:
            return None
        return ResponseEndpoint(self._pipeline.accounts, responses.service, responses.foreground, self._readers)

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


class _Unserved(CallFeature):
    """Stands for a product whose calls need durable work."""

    def __init__(self, product: type[CallProduct], takes_part: TakesPart) -> None:
        self.name, self.options = product.name, product.options
        self._takes_part = takes_part

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself where the product has a feature."""
        return self if self._takes_part(route, requested) else None


class UnservedWork:
    """The products around calls that `DurableWork` has, of a config: they know which calls they are for, and serve none."""

    def __init__(self, policy: PolicySnapshot) -> None:
        self._is_on = JOB_SETTINGS.of(policy).is_on

    def pipeline_answers(self) -> CallProduct:
        """Returns that of pipelines."""
        return _Unserved(PipelineAnswers, lambda route, _requested: PIPELINE in route.model.settings)

    def async_answers(self) -> CallProduct | None:
        """Returns that of jobs; None: the config has none."""
        return _Unserved(AsyncAnswers, may_become_job) if self._is_on else None

    def response_endpoint(self) -> CallProduct | None:
        """Returns that of responses that are kept; None: the config has no jobs."""
        return _Unserved(ResponseEndpoint, _is_for_kept) if self._is_on else None


def _is_for_kept(route: CallRoute, _requested: frozenset[bytes]) -> bool:
    return keeping_of(route.policy, route.key, route.model, route.endpoint) is not None
