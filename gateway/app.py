"""The composition root: the only file that constructs concrete things, and the order in which they start and stop.

`Gateway.__init__` is the order of building: the config first, then stores, admission, the pipeline, durable work, the products
around calls, and last the ports. The parts that take more than a line follow below `stop`, in the same order.

Stop order: not ready -> (the notice passes) -> no new calls -> running calls finish within the grace -> the rest ends with a
clear error -> listeners, connections, emulators and the log close. A second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TextIO

from starlette.routing import BaseRoute

from gateway.admin.describe import describe
from gateway.admin.http import (
    Gather,
    KeptFile,
    admin_routes,
    backup_routes,
    forget_copies,
    health_routes,
    metrics_route,
    state_routes,
)
from gateway.core.admission.admission import Admission
from gateway.core.admission.queue import DelayQueue
from gateway.core.answers import AttemptDeadlines
from gateway.core.call import CallMetrics, CallProduct
from gateway.core.clock import SteadyClock, SystemClock
from gateway.core.config.fields import is_loopback
from gateway.core.config.load import load_snapshot
from gateway.core.edge import Edge
from gateway.core.http.client.transport import Pools
from gateway.core.http.client.wire import Wire
from gateway.core.http.server import HttpServer, listen_on
from gateway.core.intake import InFlight
from gateway.core.pipeline import Pipeline
from gateway.core.request_fields import OTHER
from gateway.core.snapshot import Policies, PolicySnapshot, Provider
from gateway.core.telemetry import CallLog, Telemetry
from gateway.core.types import Upstream
from gateway.core.waiting import KeepAlive, Shedding
from gateway.credentials.clouds import Clouds
from gateway.dialects.config import DialectLanguages
from gateway.dialects.endpoints import RESPONSES
from gateway.dialects.memory import SharedTurns, ThinkingMetrics
from gateway.dialects.model_lists import ModelLists
from gateway.dialects.upstream import Languages
from gateway.drivers.config import SQLITE
from gateway.drivers.store import SharedStore, SharedStoreMetrics
from gateway.emulator import Emulators
from gateway.features.product import Product
from gateway.features.run_port import NO_RUNS
from gateway.fleet.leases import Sharing
from gateway.fleet.news import FleetNews
from gateway.housekeeping import Housekeeping, Reloading
from gateway.installed import is_installed
from gateway.process import container_bytes
from gateway.product_list import Core, find_product, install_products
from gateway.products.routes import absent_routes
from gateway.routes import Served, SocketDoors, build_app, build_front
from gateway.sections import SECTIONS
from gateway.settings import Settings
from gateway.stores import open_store

# One that is not here is left out.
if is_installed("gateway.features.ownership"):
    from gateway.features.ownership.http import object_routes
    from gateway.features.ownership.service import Ownership
if is_installed("gateway.features.reuse"):
    from gateway.features.reuse.http import cache_routes
    from gateway.features.reuse.inspect import CacheInspector
    from gateway.features.reuse.service import Replays
if is_installed("gateway.features.runs"):
    from gateway.features.runs.http import RunRoutes, workflow_routes
    from gateway.features.runs.rules import WORKFLOWS
    from gateway.features.runs.steps import StepCalls
    from gateway.features.runs.table import RunBudget, RunsOfWork, RunTable
if is_installed("gateway.features.semantic"):
    from gateway.features.semantic.embedders import Embedders, open_local, open_semantic
if is_installed("gateway.products.jobs"):
    from gateway.products.durable import DurableWork
    from gateway.products.jobs.metrics import JobMeter
if is_installed("gateway.products.realtime"):
    from gateway.products.realtime.http import RealtimeEndpoint, SocketTargets
    from gateway.products.realtime.service import RealtimeMetrics, RealtimeSessions
    from gateway.products.realtime.upstream import SocketWire
if is_installed("gateway.products.responses.socket"):
    from gateway.products.responses.socket import ResponseSocketDoor, ResponseSocketMetrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from gateway.features.semantic.lookup import Semantic


log = logging.getLogger("gateway")


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The context of one worker among several that serve the same ports."""

    number: int
    """The worker's number, from 1."""
    listen: Callable[[str, int], socket.socket]
    gather: Gather


class ProductMeters:
    """What is counted beside calls; what products around calls count is their own."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.realtime = RealtimeMetrics() if is_installed("gateway.products.realtime") else None
        self.response_sockets = ResponseSocketMetrics() if is_installed("gateway.products.responses.socket") else None
        self.thinking = ThinkingMetrics()
        self.jobs = JobMeter(telemetry.metrics) if is_installed("gateway.products.jobs") else None
        self.state = SharedStoreMetrics()
        if self.realtime is not None:
            telemetry.register(self.realtime)
        if self.response_sockets is not None:
            telemetry.register(self.response_sockets)
        telemetry.register(self.thinking)
        if self.jobs is not None:
            telemetry.register(self.jobs)
            telemetry.register(self.jobs.work)
        telemetry.register(self.state)


def register_metrics(telemetry: Telemetry, products: Iterable[CallProduct]) -> None:
    """Registers what products around calls count."""
    for product in products:
        table = product.metrics
        if table is not None:
            telemetry.register(table, table.count if isinstance(table, CallMetrics) else None)


class Gateway:
    """One gateway in one event loop: `start` it, let it run, `stop` it."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        *,
        log_stream: TextIO | None = None,
        worker: WorkerContext | None = None,
        only_works: bool = False,
    ) -> None:
        """Loads the config and binds the ports; the call log goes to `log_stream`, by default standard output.

        Where there are several workers, `worker` is the context of this one. `only_works`: it runs jobs and takes no calls.
        Raises ConfigError or OSError; nothing runs yet.
        """
        self._settings, self._environ = settings, environ
        self._clock = SystemClock()
        self._kept_clock = SteadyClock()
        self._host = settings.host
        self._emulators = Emulators()
        self._pools = Pools(self._emulators.start)
        self._languages = Languages(self._clock, lambda: token_hex(12))
        self._inflight, self._watch = InFlight(), AttemptDeadlines()
        self._worker, self._only_works = worker, only_works
        self._call_log = CallLog(log_stream or sys.stdout, settings.log_format, worker.number if worker else None)
        self._telemetry = Telemetry(self._call_log, self._clock.wall)
        self._meters = ProductMeters(self._telemetry)
        self._draw = random.Random().random  # noqa: S311  # backoffs and choices: nothing to gain from guessing them
        self._clouds = Clouds(environ, self._clock, self._draw)
        self._models = ModelLists(self._connect, self._clock)
        first = self._load(1)
        self._host = self._host or first.server.host  # stays: what a reload says of it changes nothing
        self._policies = Policies(first)
        sqlite_path = first.state.removeprefix(SQLITE) if first.state.startswith(SQLITE) else None
        self._opened = open_store(first, sqlite_path, self._kept_clock)
        self._store, self._shared = self._opened.store, self._opened.shared
        if not self._store.is_local:  # processes that share a store find each other's signed turns in it
            self._languages.memory.shared = SharedTurns(self._store.answers, self._kept_clock.wall)
        queue = DelayQueue(self._clock, first.queue)
        self._sharing = None
        if self._shared is not None:
            self._sharing = Sharing(self._clock, self._shared.leases, queue, self._draw)
        self._admission = Admission(self._clock, self._telemetry, first, self._draw, queue, self._sharing)
        self._runs, self._work_runs = None, NO_RUNS
        if is_installed("gateway.features.runs"):
            self._runs = RunTable(
                self._kept_clock, lambda: WORKFLOWS.of(self._policies.current), kept=self._opened.runs
            )
            self._work_runs = RunsOfWork(self._runs)
        self._pipeline = Pipeline(
            self._clock,
            self._telemetry,
            self._watch,
            self._admission,
            self._draw,
        )
        self._overload = Shedding(container_bytes())
        self._durable = None if self._meters.jobs is None else self._build_durable(self._meters.jobs)
        self._jobs = None if self._durable is None else self._durable.work
        self._products = install_products(
            Core(
                *(self._pipeline, self._opened),
                kept_clock=self._kept_clock,
                runs=self._runs,
                durable=self._durable,
            )
        )
        register_metrics(self._telemetry, self._products)
        self._replays, self._ownership = None, None
        if is_installed("gateway.features.reuse"):
            self._replays = find_product(self._products, Replays)
        if is_installed("gateway.features.ownership"):
            self._ownership = find_product(self._products, Ownership)
        budget = None
        if is_installed("gateway.features.runs"):
            budget, steps = find_product(self._products, RunBudget), find_product(self._products, StepCalls)
            if self._durable is not None and steps is not None:
                self._durable.keep(steps)
        self._realtime = None
        if is_installed("gateway.products.realtime"):
            self._realtime = RealtimeSessions(self._pipeline, None if budget is None else budget.let_in)
        self._semantic: Semantic | None = None
        self._embedders = None
        if is_installed("gateway.features.semantic"):
            self._embedders = Embedders(self._pipeline.handle, self._clock, open_local)
        self._prepare_semantic(first)
        if self._shared is not None:
            self._follow_news(self._shared)
        self._keepalive = KeepAlive(self._admission.waiting.describe)
        self._telemetry.set_policy(first.version)
        self._reloading = Reloading(
            settings.config,
            environ,
            self._policies,
            self._telemetry,
            load=self._load,
            prepare=self._prepare_semantic,
            put_in_force=self._put_in_force,
            wall=self._clock.wall,
        )
        self._servers = self._build_servers(first, self._host)
        self._housekeeping = Housekeeping(
            clock=self._clock,
            kept_clock=self._kept_clock,
            policies=self._policies,
            reloading=self._reloading,
            telemetry=self._telemetry,
            deadlines=self._watch,
            keepalive=self._keepalive,
            admission=self._admission,
            shedding=self._overload,
            inflight=self._inflight,
            tick_store=self._store.tick,
            pools=self._pools,
            servers=self._servers,
            tick_jobs=None if self._jobs is None else self._jobs.engine.tick,
            is_working=lambda: self._jobs is not None and bool(self._jobs.engine.running),
            runs=self._runs,
            models=self._models,
            memory=self._languages.memory,
            realtime=self._realtime,
        )
        self._telemetry.before_scrape += [self._housekeeping.fill_gauges, self._fill_gauges]

    @property
    def url(self) -> str:
        """Returns the URL at which the data plane listens."""
        return self._servers[0].url

    @property
    def policy(self) -> PolicySnapshot:
        """Returns the policy in force."""
        return self._policies.current

    @property
    def registry(self) -> CollectorRegistry:
        """Returns the registry of the metrics."""
        return self._telemetry.registry

    def accept_for(self, listeners: Mapping[int, Sequence[socket.socket]]) -> None:
        """Accepts for these workers, too, by number, a listener for each port; and no longer for those left out."""
        for at, server in enumerate(self._servers):
            server.accept_for({number: ports[at] for number, ports in listeners.items()})

    def stop_accepting(self) -> None:
        """Accepts no connection any more."""
        for server in self._servers:
            server.stop_accepting()

    async def start(self) -> None:
        """Takes calls from now on."""
        # Start-up made many objects that live for ever: keep the collector away from them, and let it run less often. What
        # is old by now was looked through before; to do so again would be a twentieth of the whole start.
        gc.collect(1)
        gc.freeze()
        gc.set_threshold(25_000, 20, 50)
        self._call_log.start()
        if self._shared is not None:
            self._shared.on_change(self._state_changed)
            await self._shared.start()
        for server in self._servers:
            await server.start()
        if self._jobs is not None:
            await self._jobs.start()
        self._housekeeping.start()

    def reload(self) -> None:
        """Loads the config again, changed or not (SIGHUP); when that is asked for during a reload, once more behind it."""
        self._reloading.reload()

    async def drain(self, hurry: asyncio.Event) -> None:
        """Gives notice, then takes no new calls and waits for the running ones, for the grace or until `hurry` is set.

        Until the notice is over calls are taken: load balancers look at `/readyz` now and then.
        """
        self._inflight.leaving = True
        for server in self._servers:
            server.give_notice()
        waiting = asyncio.create_task(hurry.wait())
        if self.policy.server.notice_s:
            await asyncio.wait([waiting], timeout=self.policy.server.notice_s)
        self._inflight.draining = True
        ends_at = self._clock.monotonic() + self.policy.server.grace_s
        jobs = asyncio.create_task(self._drain_jobs(self.policy.server.grace_s))
        while (len(self._inflight) or not jobs.done()) and not hurry.is_set() and self._clock.monotonic() < ends_at:
            await asyncio.wait([waiting], timeout=0.05)
        waiting.cancel()

    async def _drain_jobs(self, grace_s: float) -> None:
        """Lets the pieces of work that run end, at most for `grace_s`, and gives the rest back."""
        if self._jobs is not None:
            await self._jobs.engine.drain(grace_s)

    async def stop(self) -> None:
        """Stops everything; calls still running end with a clear error."""
        self._inflight.draining = True
        self._inflight.abort()
        self._housekeeping.stop()
        if self._jobs is not None:
            await self._jobs.aclose()
        for server in self._servers:
            await server.stop()
        if self._semantic is not None:
            await self._semantic.aclose()  # embeddings under way are awaited, too
        if self._replays is not None:
            await self._replays.aclose()
        if self._sharing is not None:
            await self._sharing.aclose()
        if self._runs is not None:
            await self._runs.aclose()
        for part in (self._store, self._models, self._clouds, self._pools):
            await part.aclose()
        await self._emulators.stop()
        self._telemetry.flush()
        self._call_log.stop()

    # --- parts, in the order in which they are built ---

    def _load(self, version: int) -> PolicySnapshot:
        """Compiles the config; may run in any thread."""
        return load_snapshot(
            *(self._settings.config, self._environ),
            sections=SECTIONS,
            languages=DialectLanguages(self._languages.converting, self._models.listed),
            connect=self._connect,
            converse=self._languages.conversing,
            version=version,
            now_wall=self._clock.wall(),
            wall=self._clock.wall,
            host=self._host,
        )

    def _connect(self, provider: Provider, model: str | None) -> Upstream:
        """Returns the upstream of a provider and a model: its wire, and what signs for it where a cloud wants that."""
        return self._clouds.upstream(Wire(provider, model, self._pools.transport(provider)), provider)

    def _prepare_semantic(self, policy: PolicySnapshot) -> None:
        """Opens what the semantic cache needs, where a model has one; may take long, and may run in any thread."""
        vectors, replays = self._opened.vectors, self._replays
        if self._embedders is not None and vectors is not None and replays is not None:
            self._semantic = open_semantic(policy, self._semantic, self._embedders, self._kept_clock, vectors)
            replays.layers.semantic = self._semantic

    def _follow_news(self, shared: SharedStore) -> None:
        """Listens to the other replicas: for limits and health, and for questions that they keep or are to forget."""
        listeners: dict[str, Callable[[bytes], None]] = {}
        if is_installed("gateway.features.semantic"):
            # Loaded where stores are shared.
            from gateway.drivers.redis_answers import decode_selection
            from gateway.features.semantic.redis import decode_news  # loaded where stores are shared, too

            def on_vector(detail: bytes) -> None:
                if self._semantic is not None:
                    self._semantic.add_shared(decode_news(detail, self._kept_clock.wall()))

            def on_purge(detail: bytes) -> None:
                if self._semantic is not None:
                    self._semantic.forget_here(**decode_selection(detail)._asdict())

            listeners = {"vector": on_vector, "purge": on_purge}
        FleetNews(self._clock, shared.news, self._admission, self._draw, listeners)

    def _build_durable(self, meter: JobMeter) -> DurableWork:
        """Returns durable work over the pipeline."""
        return DurableWork(
            *(self._policies, self._pipeline, self._runs, meter),
            runs_of_work=self._work_runs,
            kept_clock=self._kept_clock,
            transport_of=self._pools.transport,
            may_begin=lambda: not self._overload.level,
            only_works=self._only_works,
        )

    def _build_servers(self, policy: PolicySnapshot, host: str) -> list[HttpServer]:
        """Binds the ports: that of calls, but for a process that takes none, and that of operators, where it is apart."""
        meter, durable = self._telemetry, self._durable
        edge = Edge(self._pipeline, self._policies, meter, self._clock, self._inflight, self._overload, self._keepalive)
        health = health_routes(
            self._inflight,
            self._shared.health if self._shared else lambda: None,
            self._kept_clock.wall,
            lambda: self._policies.current.emulated,
            None if self._jobs is None else self._jobs.engine.health,
        )
        # Of callers: what they keep here (jobs, files, batches, responses, runs), and their WebSockets.
        routes = [
            *(
                absent_routes(self._policies)
                if durable is None
                else durable.routes(Served(edge, OTHER), edge.intake.read_counted)
            ),
            *([] if self._runs is None else RunRoutes(self._policies, self._runs, self._kept_clock).routes()),
        ]
        sockets = None
        if self._realtime is not None:
            self._realtime.present = lambda: self._policies.current
            of_sockets = (self._policies, meter, self._clock, self._inflight)
            targets = SocketTargets(lambda provider, model: SocketWire(provider, model, self._pools))
            sockets = SocketDoors(
                RealtimeEndpoint(self._realtime, edge.intake, targets, meter, self._clock, self._inflight),
                ResponseSocketDoor(edge, RESPONSES, *of_sockets)
                if is_installed("gateway.products.responses.socket")
                else None,
            )
        admin = policy.server.admin_listen
        if self._only_works:  # it is asked for its health there: the options first, then the port of operators
            own_host, own_port = admin or (policy.server.host, policy.server.port)
            chosen = self._settings
            admin = chosen.host or own_host, own_port if chosen.port is None else chosen.port
        operations = self._operations(edge, is_local=is_loopback(host if admin is None else admin[0]))
        port = policy.server.port if self._settings.port is None else self._settings.port
        listen = self._worker.listen if self._worker else listen_on
        beside = health if admin is not None else health + operations
        calls = build_front(edge, self._policies, routes + beside, meter, sockets)
        front = [] if self._only_works else [HttpServer(calls, listen(host, port), meter.refused)]
        if admin is None:
            return front
        return [*front, HttpServer(build_app(health + operations, meter), listen(*admin), meter.refused)]

    def _operations(self, edge: Edge, *, is_local: bool) -> list[BaseRoute]:
        """Returns the routes of operators; `is_local`: nobody of another machine can reach them."""
        policies, durable, sqlite = self._policies, self._durable, self._opened.sqlite
        ownership = self._ownership
        state_file = None
        if sqlite is not None:
            forget_copies(sqlite.path)  # a crash may have left some
            state_file = KeptFile(sqlite.path, sqlite.backup)

        async def find_no_file() -> None:
            """There are no jobs, so they have no file."""

        return [
            metrics_route(
                self.registry,
                self._worker.gather if self._worker else None,
                lambda: is_local and not policies.current.keys,
            ),
            *state_routes(
                policies,
                self._admission,
                self._clock,
                lambda: show_config(self),
                edge.intake.patience,
                self._telemetry.costs,
            ),
            *admin_routes(policies, self._views()),
            *self._cache_routes(),
            *backup_routes(policies, state_file, find_no_file if durable is None else durable.find_file),
            *([] if ownership is None else object_routes(policies, ownership)),
            *([] if durable is None else durable.admin_routes()),
            *([] if self._runs is None else workflow_routes(policies, self._runs)),
        ]

    def _views(self) -> dict[str, Callable[[], Any]]:
        own = [product for product in self._products if isinstance(product, Product)]
        return {name: view for product in own for name, view in product.views().items()}

    def _cache_routes(self) -> list[BaseRoute]:
        replays = self._replays
        if replays is None:
            return []
        inspector = CacheInspector(self._kept_clock, lambda: self._policies.current, self._store, replays)
        return cache_routes(self._policies, inspector, replays.savings)

    # --- what changes while it runs ---

    def _put_in_force(self, snapshot: PolicySnapshot) -> None:
        self._policies.current = snapshot
        self._admission.install(snapshot)
        self._opened.configure(snapshot.store)
        self._telemetry.set_policy(snapshot.version)
        self._pools.keep_only(set(snapshot.providers.values()), self._inflight.present())
        self._clouds.keep_only(snapshot.providers.values())

    def _fill_gauges(self) -> None:
        """Sets the gauges of products, which are only looked at when somebody asks for metrics."""
        meters, replays, ownership = self._meters, self._replays, self._ownership
        if replays is not None:
            replays.metrics.set_store(self._store.stats())
        if meters.realtime is not None and self._realtime is not None:
            meters.realtime.set_traffic(self._realtime.traffic())
        if meters.response_sockets is not None:
            meters.response_sockets.set_open(sum(one.is_connection for one in self._inflight.present()))
        objects = self._opened.objects
        if ownership is not None and objects is not None:
            ownership.metrics.set_objects(objects.entries, objects.lost)
        if self._durable is not None:
            self._durable.fill_gauges()
        if self._shared is not None:
            meters.state.set_state(self._shared.health())
        meters.thinking.set_memory(self._languages.memory)

    def _state_changed(self, is_up: bool) -> None:
        self._meters.state.changed(is_up)
        if self._sharing is not None:
            self._sharing.changed(is_up)
        if is_up and self._semantic is not None:
            self._semantic.reload()


def show_config(gateway: Gateway) -> dict[str, Any]:
    """Returns what `/admin/config` shows."""
    last, worker = gateway._reloading.last, gateway._worker
    return {
        **({"worker": worker.number, "pid": os.getpid()} if worker else {}),
        "in_force": describe(gateway.policy),
        "listening": [server.url for server in gateway._servers],
        "last_reload": asdict(last) if last else None,
        **gateway._models.listed.shown(),
    }
