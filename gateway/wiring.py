"""Parts of a gateway that `app` puts together: what few gateways have, each in one function."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

from gateway.admin.operations import KeptFile, backup_routes, forget_copies
from gateway.core import request_head
from gateway.core.admission.admission import Admission
from gateway.core.clock import Clock, SharedClock
from gateway.core.config.fields import SQLITE
from gateway.core.edge import Edge
from gateway.core.http.client.pools import Pools
from gateway.core.http.client.wire import Wire
from gateway.core.pipeline import Pipeline
from gateway.core.ports import Meter, SharedStore, Store
from gateway.core.serving import InFlight
from gateway.core.snapshot import Policies, PolicySnapshot, Provider
from gateway.core.types import Upstream
from gateway.core.waiting import Shedding
from gateway.credentials.clouds import Clouds
from gateway.dialects.memory import SharedTurns
from gateway.features.ownership.http import ObjectAdmin, object_routes
from gateway.features.reuse.layers.layers import ReuseLayers
from gateway.features.runs.http.routes import RunRoutes, workflow_routes
from gateway.features.runs.steps.kept_steps import DurableRuns
from gateway.features.runs.table.live import RunMeter
from gateway.features.runs.table.table import RunTable
from gateway.products.batches.native.providers import HttpProviderBatches
from gateway.products.jobs.admin.admin_jobs import job_admin_routes
from gateway.products.jobs.calls.ports import JobMeter, MakeCall, ServeCall
from gateway.products.jobs.dead_letters.http import dead_letter_routes
from gateway.products.jobs.http.events import EventReaders
from gateway.products.jobs.model import Job, NewJob
from gateway.products.jobs.rules import IN_REDIS, JobSettings
from gateway.products.jobs.store import (
    Blobs,
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
from gateway.products.jobs.webhooks.http import webhook_routes
from gateway.products.jobs.webhooks.outward import AddressGuard, open_outwards
from gateway.products.jobs.webhooks.rules import deliveries_of
from gateway.products.realtime.http import RealtimeEndpoint, SocketTargets
from gateway.products.realtime.upstream import SocketWire
from gateway.products.responses.http import ResponseEndpoint
from gateway.products.responses.socket import ResponseSocketDoor
from gateway.products.responses.store import KeptBounds
from gateway.products.work import JobWork, durable_routes
from gateway.routes import ENDPOINTS, Served, SocketDoors
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.drivers.sqlite_store import SqliteStore


def connecting(pools: Pools, clouds: Clouds) -> Callable[[Provider, str | None], Upstream]:
    """Returns what makes the upstream of a provider and a model: its wire, and what signs for it where a cloud wants that."""
    return lambda provider, model: clouds.upstream(Wire(provider, model, pools.transport(provider)), provider)


def semantic_news(
    layers: ReuseLayers, wall: Callable[[], float]
) -> tuple[Callable[[bytes], None], Callable[[bytes], None]]:
    """Returns what to do with the news that another replica has kept a question, and that it was told to forget some."""
    from gateway.features.reuse.redis.answers import decode_selection  # only a process with replicas has it
    from gateway.features.semantic.redis import decode_news  # as above

    def on_vector(detail: bytes) -> None:
        if layers.semantic is not None:
            layers.semantic.add_shared(decode_news(detail, wall()))

    def on_purge(detail: bytes) -> None:
        if layers.semantic is not None:
            layers.semantic.forget_here(**decode_selection(detail)._asdict())

    return on_vector, on_purge


def socket_doors(
    pipeline: Pipeline, edge: Edge, policies: Policies, pools: Pools, meter: Meter, clock: Clock, inflight: InFlight
) -> SocketDoors:
    """Returns the doors for WebSockets."""
    pipeline.realtime.present = lambda: policies.current
    targets = SocketTargets(lambda provider, model: SocketWire(provider, model, pools))
    responses = next(endpoint for endpoint in ENDPOINTS if endpoint.name == "responses")
    return SocketDoors(
        RealtimeEndpoint(pipeline.realtime, edge.intake, targets, meter, clock, inflight),
        ResponseSocketDoor(edge, responses, policies, meter, clock, inflight),
    )


def sqlite_path(state: str) -> str | None:
    """Returns the file that `state` keeps answers in; None: it is none."""
    return state.removeprefix(SQLITE) if state.startswith(SQLITE) else None


def shared_turns(store: Store, clock: Clock) -> SharedTurns | None:
    """Returns where processes find each other's signed turns; None: the store is this process's own."""
    return None if store.is_local else SharedTurns(store.answers, clock.wall)


def build_runs(policies: Policies, clock: Clock, meter: RunMeter, shared: SharedStore | None) -> RunTable:
    """Returns the runs of this process; where replicas share a store, those of all of them."""
    return RunTable(clock, lambda: policies.current.workflows, meter, None if shared is None else shared.runs)


def build_jobs(
    policies: Policies,
    clock: Clock,
    pipeline: Pipeline,
    admission: Admission,
    make_call: MakeCall,
    meter: JobMeter,
    shedding: Shedding,
    pools: Pools,
    runs: RunTable,
    *,
    only_works: bool,
) -> JobWork | None:
    """Returns durable work over the pipeline; None: the config has none.

    `only_works`: this process is for work alone, whatever the config says of gateways.
    """
    settings = policies.current.jobs.settings
    if not settings.is_on:
        return None
    works = only_works or settings.works
    if settings.redis is not None:
        clock = SharedClock()
        # loaded before any call is served: later it would keep the loop from the limits' Redis, which has 50 ms
        import gateway.products.jobs.redis  # noqa: F401  # a gateway without it does not load it
    leaving = policies.current.webhook_settings

    def following(ended: Job) -> Sequence[NewJob]:
        return deliveries_of(ended, policies.current.webhooks)

    tell_run = partial(runs.add, is_durable=True)

    async def last_users(grace_s: float) -> None:
        await pipeline.steps.drain(grace_s)
        await runs.tick()  # what steps have cost is told to their runs

    work = JobWork(
        policies,
        clock,
        pipeline.handle,
        make_call,
        price_of=lambda call: admission.costs.usd(call, call.model.plan[0]),
        open_store=partial(_open_store, settings, clock, CountedEnds(following, meter, tell_run)),
        # in a Redis others may have left some, and its time is to be known before one is taken here
        has_jobs=lambda: settings.redis is not None or has_jobs(settings.store),
        nothing=None if settings.redis is not None else lambda: no_jobs(clock.wall),
        blobs=_open_blobs(settings),
        outwards=open_outwards(AddressGuard(), leaving.egress_proxy, leaving.ca_file),
        meter=meter,
        may_begin=lambda: not shedding.level,
        is_holding=lambda: admission.queue.occupancy.calls > 0,
        works=works,
        waits=settings.redis is None,
        native=(
            HttpProviderBatches(pools.transport),
            admission.budgets,
            admission.costs.usual_usd,
        ),
        tell_run=tell_run,
        write_behind=runs.write_behind,
        last_users=last_users,
    )
    # Steps and their runs are kept in the store of jobs, whose work the pipeline has to be there for: so they hear of it here.
    pipeline.steps.kept.open, pipeline.steps.kept.write_behind = work.engine.store, runs.write_behind
    runs.durable = DurableRuns(work.engine.store, work.engine.reader)
    return work


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


def _open_blobs(settings: JobSettings) -> Blobs:
    if settings.redis is not None and settings.files == IN_REDIS:
        return open_redis_blobs(settings.redis, settings.accept)
    return open_blobs(settings.files, settings.min_free_bytes)


def jobs_file_of(jobs: JobWork | None) -> Callable[[], Awaitable[KeptFile | None]]:
    """Returns what finds the file of jobs that operators may copy; None: there is none. It raises JobsUnavailable."""

    async def find() -> KeptFile | None:
        found = None if jobs is None else copier_of(await jobs.engine.reader())
        return None if found is None else KeptFile(*found)

    return find


def response_door(jobs: JobWork | None, serve: ServeCall) -> ResponseEndpoint | None:
    """Returns what serves calls of Responses that the gateway has a part in; None: it keeps nothing."""
    return None if jobs is None else ResponseEndpoint(serve, jobs.responses, jobs.foreground, EventReaders())


def caller_routes(
    edge: Edge,
    policies: Policies,
    jobs: JobWork | None,
    make_call: MakeCall,
    clock: Clock,
    pipeline: Pipeline,
    runs: RunTable,
) -> list[BaseRoute]:
    """Returns the routes of what callers keep here: jobs, files, batches, responses, runs; `edge` serves their calls."""
    readers = EventReaders() if edge.responses is None else edge.responses.readers
    relay, read_body = Served(edge, request_head.OTHER), edge.intake.read_counted
    durable = durable_routes(policies, jobs, make_call, pipeline.handle, readers, relay, read_body)
    return [*durable, *RunRoutes(policies, runs, clock).routes()]


def store_routes(
    policies: Policies,
    state_file: KeptFile | None,
    jobs: JobWork | None,
    objects: ObjectAdmin,
    clock: Clock,
    runs: RunTable,
) -> list[BaseRoute]:
    """Returns the admin routes of what is kept: copies of files, owners of objects, jobs, webhooks, dead letters, runs."""
    return [
        *backup_routes(policies, state_file, jobs_file_of(jobs)),
        *object_routes(policies, objects),
        *job_admin_routes(policies, jobs),
        *webhook_routes(policies, None if jobs is None else jobs.webhooks, clock if jobs is None else jobs.clock),
        *dead_letter_routes(policies, jobs, clock if jobs is None else jobs.clock),
        *workflow_routes(policies, runs),
    ]


async def drain_jobs(jobs: JobWork | None, grace_s: float) -> None:
    """Lets the pieces of work that run end, at most for `grace_s`, and gives the rest back."""
    if jobs is not None:
        await jobs.engine.drain(grace_s)


def state_file_of(sqlite: SqliteStore | None) -> KeptFile | None:
    """Returns the file that operators may back up, where there is one; copies that a crash left beside it go."""
    if sqlite is None:
        return None
    forget_copies(sqlite.path)
    return KeptFile(sqlite.path, sqlite.backup)


def work_address(settings: Settings, policy: PolicySnapshot) -> tuple[str, int]:
    """Returns where a process that takes no calls is asked for its health: the options first, then the port of operators."""
    host, port = policy.server.admin_listen or (policy.server.host, policy.server.port)
    return settings.host or host, port if settings.port is None else settings.port
