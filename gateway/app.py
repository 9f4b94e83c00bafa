"""The composition root: the only file that constructs concrete things, and the order in which they start and stop.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TextIO

from gateway.admin.operations import Gather, health_routes, metrics_route, state_routes
from gateway.core.admission.admission import Admission
from gateway.core.answers import AttemptDeadlines
from gateway.core.calllog import CallLog
from gateway.core.clock import SteadyClock, SystemClock
from gateway.core.config.describe import describe
from gateway.core.config.fields import is_loopback
from gateway.core.config.load import load_snapshot
from gateway.core.edge import Edge
from gateway.core.http.client.model_lists import ModelLists
from gateway.core.http.client.pools import Pools
from gateway.core.http.server import HttpServer, listen_on
from gateway.core.pipeline import Pipeline
from gateway.core.serving import InFlight
from gateway.core.snapshot import Policies, PolicySnapshot
from gateway.core.telemetry import Telemetry
from gateway.core.waiting import KeepAlive, Shedding
from gateway.credentials.clouds import Clouds
from gateway.dialects.upstream import Languages
from gateway.drivers.opening import open_store
from gateway.emulator import Emulators
from gateway.features.reuse.http import cache_routes
from gateway.features.reuse.inspect import CacheInspector, Savings
from gateway.features.semantic.embedders import Embedders
from gateway.features.semantic.opening import open_local, open_semantic
from gateway.fleet.news import FleetNews
from gateway.housekeeping import Housekeeping, Reloading
from gateway.process import container_bytes
from gateway.products.jobs.calls.call_maker import CallMaker
from gateway.products.jobs.http.respond_async import AsyncAnswers
from gateway.routes import build_app, build_front
from gateway.settings import Settings
from gateway.wiring import (
    build_jobs,
    build_runs,
    caller_routes,
    connecting,
    drain_jobs,
    response_door,
    semantic_news,
    shared_turns,
    socket_doors,
    sqlite_path,
    state_file_of,
    store_routes,
    work_address,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


log = logging.getLogger("gateway")


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The context of one worker among several that serve the same ports."""

    number: int
    """From 1."""
    listen: Callable[[str, int], socket.socket]
    gather: Gather


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
        self._draw = random.Random().random  # noqa: S311  # backoffs and choices: nothing to gain from guessing them
        self._clouds = Clouds(environ, self._clock, self._draw)
        self._models = ModelLists(connecting(self._pools, self._clouds), self._clock)
        first = self._load(1)
        self._host = self._host or first.server.host  # stays: what a reload says of it changes nothing
        self._policies = Policies(first)
        self._store, self._shared, self._sqlite = open_store(first, sqlite_path(first.state), self._kept_clock)
        self._languages.memory.shared = shared_turns(self._store, self._kept_clock)
        leases = None if self._shared is None else self._shared.leases
        self._admission = Admission(self._clock, self._telemetry, first, self._draw, leases)
        self._savings = Savings()
        self._runs = build_runs(self._policies, self._kept_clock, self._telemetry.runs, self._shared)
        self._pipeline = Pipeline(
            self._clock,
            self._telemetry,
            self._watch,
            self._admission,
            self._store,
            self._draw,
            self._savings,
            *(self._kept_clock, self._runs),
        )
        self._embedders = Embedders(self._pipeline.handle, self._clock, open_local)
        self._prepare_semantic(first)
        if self._shared is not None:
            semantic_listener = semantic_news(self._pipeline.replays.layers, self._kept_clock.wall)
            FleetNews(self._clock, self._shared.news, self._admission, self._draw, *semantic_listener)
        replays = self._pipeline.replays
        self._cache_desk = CacheInspector(self._kept_clock, lambda: self._policies.current, self._store, replays)
        self._make_call = CallMaker(self._policies, self._clock)
        self._overload = Shedding(container_bytes())
        self._jobs = build_jobs(
            *(self._policies, self._kept_clock, self._pipeline, self._admission, self._make_call),
            *(self._telemetry.jobs, self._overload, self._pools, self._runs),
            only_works=only_works,
        )
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
            store=self._store,
            shared=self._shared,
            pools=self._pools,
            servers=self._servers,
            jobs=self._jobs,
            runs=self._runs,
            models=self._models,
            memory=self._languages.memory,
            realtime=self._pipeline.realtime,
        )
        self._telemetry.before_scrape = self._housekeeping.fill_gauges

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
        jobs = asyncio.create_task(drain_jobs(self._jobs, self.policy.server.grace_s))
        while (len(self._inflight) or not jobs.done()) and not hurry.is_set() and self._clock.monotonic() < ends_at:
            await asyncio.wait([waiting], timeout=0.05)
        waiting.cancel()

    async def stop(self) -> None:
        """Stops everything; calls still running end with a clear error."""
        self._inflight.draining = True
        self._inflight.abort()
        self._housekeeping.stop()
        if self._jobs is not None:
            await self._jobs.aclose()
        for server in self._servers:
            await server.stop()
        if self._pipeline.replays.layers.semantic is not None:
            await self._pipeline.replays.layers.semantic.aclose()  # embeddings under way are awaited, too
        await self._pipeline.aclose()
        if self._admission.sharing is not None:
            await self._admission.sharing.aclose()
        for part in (self._runs, self._store, self._models, self._clouds, self._pools):
            await part.aclose()
        await self._emulators.stop()
        self._telemetry.flush()
        self._call_log.stop()

    def _build_servers(self, policy: PolicySnapshot, host: str) -> list[HttpServer]:
        meter, jobs, state_file = self._telemetry, self._jobs, state_file_of(self._sqlite)
        edge = Edge(
            *(self._pipeline, self._policies, meter, self._clock, self._inflight, self._overload, self._keepalive),
            async_answers=None if jobs is None else AsyncAnswers(jobs.service, jobs.clock, meter.jobs),
            responses=response_door(jobs, self._pipeline.handle),
        )
        sockets = socket_doors(self._pipeline, edge, self._policies, self._pools, meter, self._clock, self._inflight)
        health = health_routes(
            self._inflight,
            self._shared.health if self._shared else lambda: None,
            self._kept_clock.wall,
            lambda: self._policies.current.emulated,
            None if jobs is None else jobs.engine.health,
        )
        durable = caller_routes(
            edge, self._policies, jobs, self._make_call, self._kept_clock, self._pipeline, self._runs
        )
        admin = work_address(self._settings, policy) if self._only_works else policy.server.admin_listen
        is_local = is_loopback(host if admin is None else admin[0])
        operations = [
            metrics_route(
                self.registry,
                self._worker.gather if self._worker else None,
                lambda: is_local and not self._policies.current.keys,
            ),
            *state_routes(
                self._policies,
                self._admission,
                self._clock,
                lambda: show_config(self),
                edge.intake.patience,
                self._telemetry.costs,
            ),
            *cache_routes(self._policies, self._cache_desk, self._savings),
            *store_routes(self._policies, state_file, jobs, self._pipeline.ownership, self._kept_clock, self._runs),
        ]
        port = policy.server.port if self._settings.port is None else self._settings.port
        listen = self._worker.listen if self._worker else listen_on
        beside = health if admin is not None else health + operations
        calls = build_front(edge, self._policies, durable + beside, meter, sockets)
        front = [] if self._only_works else [HttpServer(calls, listen(host, port), meter.refused)]
        if admin is None:
            return front
        return [*front, HttpServer(build_app(health + operations, meter), listen(*admin), meter.refused)]

    def _state_changed(self, is_up: bool) -> None:
        self._telemetry.state_changed(is_up)
        if self._admission.sharing is not None:
            self._admission.sharing.changed(is_up)
        if is_up and self._pipeline.replays.layers.semantic is not None:
            self._pipeline.replays.layers.semantic.reload()

    def _prepare_semantic(self, policy: PolicySnapshot) -> None:
        """Opens what the semantic cache needs, where a model has one; may take long, and may run in any thread."""
        layers = self._pipeline.replays.layers
        layers.semantic = open_semantic(policy, layers.semantic, self._embedders, self._kept_clock, self._store.vectors)

    def _load(self, version: int) -> PolicySnapshot:
        return load_snapshot(
            *(self._settings.config, self._environ),
            connect=connecting(self._pools, self._clouds),
            convert=self._languages.converting,
            converse=self._languages.conversing,
            version=version,
            now_wall=self._clock.wall(),
            wall=self._clock.wall,
            host=self._host,
            listed=self._models.listed,
        )

    def _put_in_force(self, snapshot: PolicySnapshot) -> None:
        self._policies.current = snapshot
        self._admission.install(snapshot)
        self._store.configure(snapshot.store)
        self._telemetry.set_policy(snapshot.version)
        self._pools.keep_only(set(snapshot.providers.values()), self._inflight.present())
        self._clouds.keep_only(snapshot.providers.values())


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
