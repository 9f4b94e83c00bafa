"""The composition root: the only file that constructs concrete things, and the order in which they start and stop.

Stop order: not ready -> (the notice passes) -> no new calls -> running calls finish within the grace -> the rest ends with a
clear error -> listeners, connections, emulators and the log close. A second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TextIO

from gateway import __version__, interpreter
from gateway.calllog import CallLog
from gateway.clock import SteadyClock, SystemClock
from gateway.config.describe import describe
from gateway.config.load import load_snapshot
from gateway.config.reading.fields import SQLITE, is_loopback
from gateway.config.reload import Reloader, ReloadReport
from gateway.emulator.config import EmulatorConfig
from gateway.emulator.server import EmulatorServer
from gateway.flow.admission.admission import Admission
from gateway.flow.deadlines import SWEEP_S, AttemptDeadlines
from gateway.flow.fleet.news import FleetNews
from gateway.flow.keepalive import KeepAlive
from gateway.flow.pipeline import Pipeline
from gateway.flow.reuse.inspect import CacheInspector
from gateway.flow.reuse.stats import Savings
from gateway.flow.shedding import LoopLag, Shedding
from gateway.ingress.admin import insight, views
from gateway.ingress.admin.backup import StateFile, backup_route, forget_copies
from gateway.ingress.admin.caches import cache_routes
from gateway.ingress.admin.objects import object_routes
from gateway.ingress.admin.operations import Gather, admin_routes, health_routes, metrics_route, switch_routes
from gateway.ingress.edge import Edge
from gateway.ingress.http.server import HttpServer, bind
from gateway.ingress.inflight import InFlight
from gateway.ingress.routes import build_app, build_front
from gateway.policy.snapshot import Policies, PolicySnapshot, Provider, Server
from gateway.ports import SharedStore, Store, StoreHealth
from gateway.process_memory import GiveBack, container_bytes, find_trim, resident_bytes
from gateway.semantic.embedders import Embedders
from gateway.settings import Settings
from gateway.store.memory.store import MemoryStore
from gateway.telemetry import Telemetry
from gateway.upstream.pools import Pools
from gateway.upstream.wire import Wire

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from gateway.semantic.local_model import LocalEmbedder

TICK_S = 1.0
SWITCH_S = 0.0005
"""A busy event loop lets the store's thread in after so long; with Python's own 5 ms each of its steps would take that."""
log = logging.getLogger("gateway")


class Emulators:
    """The emulators that run inside this process, by name; each starts with its first use."""

    def __init__(self) -> None:
        self._servers: dict[str, EmulatorServer] = {}
        self._starting = asyncio.Lock()

    async def start(self, name: str) -> str:
        """The base URL of the emulator of this name."""
        async with self._starting:
            server = self._servers.get(name)
            if server is None:
                server = EmulatorServer(EmulatorConfig.demo())
                await server.start()
                self._servers[name] = server
        return server.base_url

    async def stop(self) -> None:
        """Stop them all."""
        for server in self._servers.values():
            await server.stop()


@dataclass(frozen=True, slots=True)
class Post:
    """The post of one worker among several that serve the same ports."""

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
        post: Post | None = None,
    ) -> None:
        """Loads the config and binds the ports; the call log goes to `log_stream`, by default standard output.

        Where there are several workers, `post` is that of this one. Raises ConfigError or OSError; nothing runs yet.
        """
        self._settings = settings
        self._environ = environ
        self._clock = SystemClock()
        self._kept_clock = SteadyClock()
        self._host = settings.host
        self._versions = 0
        self._emulators = Emulators()
        self._pools = Pools(self._emulators.start)
        self._inflight = InFlight()
        self._watch = AttemptDeadlines()
        self._post = post
        self._call_log = CallLog(log_stream or sys.stdout, settings.log_format, post.number if post else None)
        self._telemetry = Telemetry(self._call_log, self._clock.wall)
        first = self._load()
        self._host = (
            self._host or first.server.host
        )  # the port stays where it is: what a reload says of it changes nothing
        self._versions = first.version
        self._addresses = _addresses(first)
        self._state = first.state, first.shared
        self._policies = Policies(first)
        self._draw = random.Random().random  # noqa: S311  # backoffs and choices: nothing to gain from guessing them
        self._state_file: StateFile | None = None
        self._store, self._shared = self._open_store(first)
        leases = None if self._shared is None else self._shared.leases
        self._admission = Admission(self._clock, self._telemetry, first, self._draw, leases)
        self._savings = Savings()
        self._pipeline = Pipeline(
            self._clock,
            self._telemetry,
            self._watch,
            self._admission,
            self._store,
            self._draw,
            self._savings,
            self._kept_clock,
        )
        self._embedders = Embedders(self._pipeline.handle, self._clock, self._open_embedder)
        self._prepare_semantic(first)
        if self._shared is not None:
            FleetNews(self._clock, self._shared.news, self._admission, self._draw, self._hear_vector, self._hear_purge)
        self._cache_desk = CacheInspector(
            self._kept_clock, lambda: self._policies.current, self._store, self._pipeline.replays
        )
        self._keepalive = KeepAlive(self._admission.describe)
        self._overload = Shedding(container_bytes())
        self._give_back = GiveBack(find_trim())
        self._loop_lag = LoopLag()
        self._telemetry.before_scrape = self._fill_gauges
        self._telemetry.set_policy(first.version)
        self._reloader = Reloader(
            settings.config,
            environ,
            load=self._load,
            install=self._install,
            report=self._report,
            current=first,
            wall=self._clock.wall,
        )
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False
        self._servers = self._build_servers(first, self._host)
        self._housekeeping: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the data plane listens."""
        return self._servers[0].url

    @property
    def policy(self) -> PolicySnapshot:
        """What is in force."""
        return self._policies.current

    @property
    def registry(self) -> CollectorRegistry:
        """What it has counted."""
        return self._telemetry.registry

    def tend(self, listeners: Mapping[int, Sequence[socket.socket]]) -> None:
        """Accept, too, for these workers, by number, a listener for each port; and for those left out no longer."""
        for at, server in enumerate(self._servers):
            server.tend({number: ports[at] for number, ports in listeners.items()})

    def deafen(self) -> None:
        """Accept no connection any more."""
        for server in self._servers:
            server.deafen()

    async def start(self) -> None:
        """Take calls from now on."""
        # Start-up made many objects that live for ever: keep the collector away from them, and let it run less often.
        gc.collect()
        gc.freeze()
        gc.set_threshold(25_000, 20, 50)
        self._loop = asyncio.get_running_loop()
        self._call_log.start()
        if self._shared is not None:
            self._shared.on_change(self._state_changed)
            await self._shared.start()
        for server in self._servers:
            await server.start()
        self._housekeeping = asyncio.create_task(self._keep_house())
        self._watching = asyncio.create_task(self._keep_watch())

    def reload(self) -> None:
        """Load the config again, changed or not (SIGHUP); asked for while one is running, once more behind it."""
        self._reload_again = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._reload())

    async def drain(self, hurry: asyncio.Event) -> None:
        """Give notice, then take no new calls and wait for the running ones, no longer than the grace or until `hurry` is set.

        Until the notice is over calls are taken: who deals out connections looks at `/readyz` now and then.
        """
        self._inflight.leaving = True
        for server in self._servers:
            server.give_notice()
        waiting = asyncio.create_task(hurry.wait())
        if self.policy.server.notice_s:
            await asyncio.wait([waiting], timeout=self.policy.server.notice_s)
        self._inflight.draining = True
        ends_at = self._clock.monotonic() + self.policy.server.grace_s
        while len(self._inflight) and not hurry.is_set() and self._clock.monotonic() < ends_at:
            await asyncio.wait([waiting], timeout=0.05)
        waiting.cancel()

    async def stop(self) -> None:
        """Stop everything; calls still running end with a clear error."""
        self._inflight.draining = True
        self._inflight.abort()
        for task in (self._housekeeping, self._watching, self._reloading):
            if task is not None:
                task.cancel()
        for server in self._servers:
            await server.stop()
        if self._pipeline.replays.layers.semantic is not None:
            await self._pipeline.replays.layers.semantic.aclose()  # embeddings under way are awaited, too
        await self._pipeline.aclose()
        if self._admission.sharing is not None:
            await self._admission.sharing.aclose()
        await self._store.aclose()
        await self._pools.aclose()
        await self._emulators.stop()
        self._telemetry.flush()
        self._call_log.stop()

    def _build_servers(self, policy: PolicySnapshot, host: str) -> list[HttpServer]:
        meter = self._telemetry
        edge = Edge(self._pipeline, self._policies, meter, self._clock, self._inflight, self._overload, self._keepalive)
        health = health_routes(
            self._inflight, self._state_health, self._kept_clock.wall, lambda: self._policies.current.emulated
        )
        admin = policy.server.admin_listen
        is_local = is_loopback(host if admin is None else admin[0])
        operations = [
            metrics_route(
                self.registry,
                self._post.gather if self._post else None,
                lambda: is_local and not self._policies.current.keys,
            ),
            *admin_routes(
                self._policies,
                {
                    "config": self._show_config,
                    "limits": lambda: insight.show_limits(self._admission, self._clock.monotonic()),
                    "queue": lambda: insight.show_queue(self._admission, self._clock.monotonic()),
                    "targets": self._show_targets,
                },
            ),
            *switch_routes(self._policies, self._show_targets, self._admission.outages.force),
            *cache_routes(self._policies, self._cache_desk, self._savings),
            backup_route(self._policies, self._state_file),
            *object_routes(self._policies, self._pipeline.ownership),
        ]
        port = policy.server.port if self._settings.port is None else self._settings.port
        listen = self._post.listen if self._post else listen_on
        if admin is None:
            front = build_front(edge, self._policies, health + operations, meter)
            return [HttpServer(front, listen(host, port), meter.refused)]
        return [
            HttpServer(build_front(edge, self._policies, health, meter), listen(host, port), meter.refused),
            HttpServer(build_app(health + operations, meter), listen(*admin), meter.refused),
        ]

    def _open_store(self, policy: PolicySnapshot) -> tuple[Store, SharedStore | None]:
        """What outlives a call, and the same again where replicas share it. Raises StoreUnusable."""
        if policy.shared is not None:
            from gateway.store.redis.store import RedisStore  # in memory mode nobody pays for it

            shared = RedisStore(policy.shared, self._kept_clock.wall, policy.store)
            return shared, shared
        if policy.state == "memory":
            return MemoryStore(policy.store, self._kept_clock.wall), None
        from gateway.store.sqlite.store import SqliteStore  # as above

        sys.setswitchinterval(SWITCH_S)
        store = SqliteStore(policy.state.removeprefix(SQLITE), self._kept_clock.wall, policy.store)
        forget_copies(store.path)
        self._state_file = StateFile(store.path, store.backup)
        return store, None

    def _hear_vector(self, detail: bytes) -> None:
        """Another replica has kept a question."""
        from gateway.store.redis.vectors import decode_news  # as above

        if self._pipeline.replays.layers.semantic is not None:
            self._pipeline.replays.layers.semantic.hear(decode_news(detail, self._kept_clock.wall()))

    def _hear_purge(self, detail: bytes) -> None:
        """Another replica was told to forget."""
        from gateway.store.redis.purges import decode_selection  # as above

        if self._pipeline.replays.layers.semantic is not None:
            self._pipeline.replays.layers.semantic.forget_here(**decode_selection(detail)._asdict())

    def _state_changed(self, is_up: bool) -> None:
        self._telemetry.state_changed(is_up)
        if self._admission.sharing is not None:
            self._admission.sharing.changed(is_up)
        if is_up and self._pipeline.replays.layers.semantic is not None:
            self._pipeline.replays.layers.semantic.reload()

    def _state_health(self) -> StoreHealth | None:
        return None if self._shared is None else self._shared.health()

    def _prepare_semantic(self, policy: PolicySnapshot) -> None:
        """Open what the semantic cache needs, where a model has one; may take long, and be called in any thread."""
        models = (*policy.models.values(), *(model for _, model in policy.patterns))
        rules = [model.caching.semantic for model in models if model.caching.semantic is not None]
        for problem in self._embedders.prepare(rules):
            log.warning("%s", problem)
        replays = self._pipeline.replays
        if rules and replays.layers.semantic is None:
            from gateway.semantic.index import VectorIndex  # as above
            from gateway.semantic.lookup import Semantic  # an extra, that few pay for

            replays.layers.semantic = Semantic(self._kept_clock, VectorIndex(), self._store.vectors, self._embedders.of)

    def _open_embedder(self, folder: str) -> LocalEmbedder:
        from gateway.semantic.local_model import LocalEmbedder  # an extra, that few pay for

        return LocalEmbedder(folder)

    def _load(self) -> PolicySnapshot:
        return load_snapshot(
            self._settings.config,
            self._environ,
            connect=self._connect,
            version=self._versions + 1,
            now_wall=self._clock.wall(),
            host=self._host,
        )

    def _connect(self, provider: Provider, model: str | None) -> Wire:
        return Wire(provider, model, self._pools.transport(provider))

    def _install(self, snapshot: PolicySnapshot) -> None:
        """Put a policy in force. Called in the thread that compiled it; everything here is the loop's."""
        self._versions = snapshot.version
        self._prepare_semantic(snapshot)
        self._loop.call_soon_threadsafe(self._put_in_force, snapshot)

    def _put_in_force(self, snapshot: PolicySnapshot) -> None:
        if _addresses(snapshot) != self._addresses:
            log.warning("server.port or admin.listen has changed: that takes effect after a restart")
        if (snapshot.state, snapshot.shared) != self._state:
            log.warning("state has changed: that takes effect after a restart")
        self._policies.current = snapshot
        self._admission.install(snapshot)
        self._store.configure(snapshot.store)
        self._telemetry.set_policy(snapshot.version)
        self._pools.keep_only(set(snapshot.providers.values()), self._inflight.present())

    def _report(self, report: ReloadReport) -> None:
        if report.status == "failed":
            self._loop.call_soon_threadsafe(self._telemetry.reload_failed)
            log.error("config not reloaded, version %d stays in force:\n%s", report.version, "\n".join(report.problems))
        elif report.status == "loaded":
            log.info("config version %d is in force", report.version)
        else:
            log.info("config unchanged, version %d stays in force", report.version)

    def _show_config(self) -> dict[str, Any]:
        last = self._reloader.last
        return {
            **({"worker": self._post.number, "pid": os.getpid()} if self._post else {}),
            "in_force": describe(self.policy),
            "listening": [server.url for server in self._servers],
            "last_reload": asdict(last) if last else None,
        }

    def _show_targets(self) -> dict[str, dict[str, Any]]:
        return views.show_targets(self._admission, self.policy, self._clock.monotonic())

    def _fill_gauges(self) -> None:
        """Levels are only looked at when somebody asks."""
        admission, telemetry, now = self._admission, self._telemetry, self._clock.monotonic()
        rows = insight.limit_rows(admission, now)
        gates = {n: line.gate for n, line in admission.gates.lines.items() if not admission.gates.is_named(n)}
        telemetry.set_limits(
            {name: row.level for name, row in rows},
            {(name, row.source): row.capacity for name, row in rows},
            {name: gate.calibration.errors().mean_error for name, gate in gates.items() if gate.calibration.count},
        )
        queue = admission.queue
        pauses = {name: gate.paused for name, gate in gates.items()}
        telemetry.set_queue(queue.depth, insight.oldest_s(admission, now), queue.bytes, pauses)
        telemetry.set_suspects(views.suspects(admission))
        telemetry.set_breakers(views.breaker_states(admission), views.retry_levels(admission, self.policy))
        telemetry.set_store(self._store.stats())
        telemetry.set_objects(self._store.objects.entries, self._store.objects.lost)
        if self._shared is not None:
            telemetry.set_state(self._shared.health())
        telemetry.set_shedding(self._overload.level, self._overload.shed_total)

    async def _keep_watch(self) -> None:
        """End the attempts whose time is up, and keep alive the streams that wait."""
        while True:
            due = self._clock.monotonic() + SWEEP_S
            await asyncio.sleep(SWEEP_S)
            now = self._clock.monotonic()
            self._loop_lag.note(now - due)
            self._watch.sweep(now)
            self._keepalive.sweep(now)

    async def _keep_house(self) -> None:
        """Everything that is due about once a second; a failure here is logged and does not end it."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._tick(self._clock.monotonic())
            except Exception:
                log.exception("housekeeping failed")

    async def _tick(self, now: float) -> None:
        lag_s = self._loop_lag.take()
        self._telemetry.set_loop_lag(lag_s)
        await self._watch_load(now, lag_s)
        for server in self._servers:
            server.tick()
        self._inflight.sweep(now)
        self._store.tick()
        self._telemetry.set_connections(self._pools.stats())
        await self._pools.close_retired(self._inflight.present())
        if self._reloader.changed():
            self.reload()

    async def _watch_load(self, now: float, lag_s: float) -> None:
        """Shed load where there is too much, after what was freed is given back."""
        overload, queue, bounds = self._overload, self._admission.queue, self.policy.queue
        resident, is_at_rest = resident_bytes(), not self._inflight and not queue.calls
        if self._give_back.is_due(now, resident, overload.memory_limit(bounds), is_at_rest=is_at_rest):
            await asyncio.to_thread(self._give_back.run)
            before, resident = resident, resident_bytes()
            self._give_back.done(now, before or 0, resident or 0)
        overload.observe(now, resident, queue.bytes, lag_s, bounds, is_at_rest=is_at_rest)

    async def _reload(self) -> None:
        """Compile in a thread, because calls must not wait for it; the swap itself is one assignment."""
        while self._reload_again:
            self._reload_again = False
            await asyncio.to_thread(self._reloader.reload)


def _addresses(policy: PolicySnapshot) -> tuple[object, ...]:
    return policy.server.port, policy.server.admin_listen


def listen_on(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A listening socket, one of several where `reuse_port`. Raises OSError, whose `strerror` is the whole sentence."""
    try:
        return bind(host, port, reuse_port=reuse_port)
    except OSError as exc:
        number = exc.errno or 0
        reason = os.strerror(number).lower() if number > 0 else exc.strerror  # below 0: the host has no address
        raise OSError(number, f"cannot listen on {host}:{port}: {reason}") from exc


async def serve(settings: Settings, environ: Mapping[str, str]) -> int:
    """Run a gateway until SIGTERM or SIGINT; returns the exit code.

    Raises ConfigError or OSError when it cannot start.
    """
    gateway = Gateway(settings, environ)
    stopping, hurry = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (hurry if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, gateway.reload)
    await gateway.start()
    greet(gateway.policy, gateway.url)
    await stopping.wait()
    say_stopping(gateway.policy.server)
    with contextlib.suppress(asyncio.CancelledError):
        await gateway.drain(hurry)
    await gateway.stop()
    return 1 if hurry.is_set() else 0


def greet(policy: PolicySnapshot, url: str, crew: str = "") -> None:
    """Say where it listens, with whom (`crew`), and what is worth a word about the policy."""
    models = ", ".join([*policy.models, *(model.name for _, model in policy.patterns)])
    log.info("gateway %s listens on %s%s, models: %s", __version__, url, crew, models)
    for notice in policy.notices:
        log.warning("%s", notice)
    slow = interpreter.doubt()
    if slow is not None:
        log.warning("%s", slow)


def say_stopping(server: Server) -> None:
    """Say that it stops, and how to make it faster."""
    notice = f" in {server.notice_s:g} s" if server.notice_s else ""
    log.info("stopping: no new calls%s; running ones have %g s (signal again to exit now)", notice, server.grace_s)
