"""What a running gateway does by the clock: the sweep of running attempts, and all that is due about once a second.

It also fills the gauges, when somebody looks, and runs reloads. It must not know how any of this is made: `app` hands it in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.admin import views
from gateway.core.admission.admission import Admission
from gateway.core.answers import SWEEP_S, AttemptDeadlines
from gateway.core.clock import LEAST_STEP_S, Clock
from gateway.core.config.load import Reloader, ReloadReport
from gateway.core.http.client.transport import Pools
from gateway.core.http.server import HttpServer
from gateway.core.intake import InFlight
from gateway.core.snapshot import Policies, PolicySnapshot
from gateway.core.telemetry import Telemetry
from gateway.core.waiting import GiveBack, KeepAlive, LoopLag, Shedding
from gateway.dialects.memory import ThoughtMemory
from gateway.dialects.model_lists import ModelLists
from gateway.drivers.durability import JOB_SETTINGS
from gateway.features.runs.table import RunTable
from gateway.installed import is_installed
from gateway.process import find_trim, resident_bytes
from gateway.sections import SECTIONS

if is_installed("gateway.products.realtime"):
    from gateway.products.realtime.service import RealtimeSessions

TICK_S = 1.0
log = logging.getLogger("gateway")


class Reloading:
    """Puts a changed config in force while calls run: it is compiled in a thread, because calls must not wait for it.

    The listeners and the store stay as they were at the start; the log warns of a config that changes them.
    """

    def __init__(
        self,
        config: Path,
        environ: Mapping[str, str],
        policies: Policies,
        telemetry: Telemetry,
        *,
        load: Callable[[int], PolicySnapshot],
        prepare: Callable[[PolicySnapshot], None],
        put_in_force: Callable[[PolicySnapshot], None],
        wall: Callable[[], float],
    ) -> None:
        """`load` compiles the files as the given version; it and `prepare` run in a thread, `put_in_force` in the loop's."""
        self._policies = policies
        self._telemetry = telemetry
        self._prepare = prepare
        self._put_in_force = put_in_force
        self._first = self._compiled = policies.current
        self._task: asyncio.Task[None] | None = None
        self._is_requested = False
        self._reloader = Reloader(
            config,
            environ,
            sections=SECTIONS,
            load=lambda: load(policies.current.version + 1),
            install=self._install,
            current=policies.current,
            wall=wall,
        )

    @property
    def last(self) -> ReloadReport | None:
        """Returns the outcome of the last reload; None: there was none yet."""
        return self._reloader.last

    def tick(self) -> None:
        """Loads the config again if its files have changed."""
        if self._reloader.changed():
            self.reload()

    def reload(self) -> None:
        """Loads the config again, changed or not; when that is asked for during a reload, once more behind it."""
        self._is_requested = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._reload())

    def stop(self) -> None:
        """Ends a reload under way, which puts nothing in force any more."""
        if self._task is not None:
            self._task.cancel()

    async def _reload(self) -> None:
        while self._is_requested:
            self._is_requested = False
            report = await asyncio.to_thread(self._reloader.reload)
            if report.status == "loaded":
                self._warn_of_what_stays(self._compiled)
                self._put_in_force(self._compiled)
                log.info("config version %d is in force", report.version)
            elif report.status == "failed":
                self._telemetry.reload_failed()
                problems = "\n".join(report.problems)
                log.error("config not reloaded, version %d stays in force:\n%s", report.version, problems)
            else:
                log.info("config unchanged, version %d stays in force", report.version)

    def _install(self, snapshot: PolicySnapshot) -> None:
        """Keeps a compiled policy for the loop, in the thread that compiled it."""
        self._prepare(snapshot)
        self._compiled = snapshot

    def _warn_of_what_stays(self, new: PolicySnapshot) -> None:
        first = self._first
        if (new.server.port, new.server.admin_listen) != (first.server.port, first.server.admin_listen):
            log.warning("server.port or admin.listen has changed: that takes effect after a restart")
        if (new.state, new.shared) != (first.state, first.shared):
            log.warning("state has changed: that takes effect after a restart")
        if JOB_SETTINGS.of(new) != JOB_SETTINGS.of(first):
            log.warning("jobs has changed: that takes effect after a restart")


@dataclass(eq=False, slots=True, kw_only=True)
class Housekeeping:
    """The periodic work of one gateway, in two tasks between `start` and `stop`."""

    clock: Clock
    kept_clock: Clock
    """The clock of what waits or is kept."""
    policies: Policies
    reloading: Reloading
    telemetry: Telemetry
    deadlines: AttemptDeadlines
    keepalive: KeepAlive
    admission: Admission
    shedding: Shedding
    inflight: InFlight
    tick_store: Callable[[], None]
    """Lets the store forget some of what has expired."""
    pools: Pools
    servers: list[HttpServer]
    tick_jobs: Callable[[], None] | None
    """Lets durable work do what is due; None: this gateway takes none."""
    is_working: Callable[[], bool]
    """Whether pieces of durable work run here."""
    runs: RunTable
    models: ModelLists
    memory: ThoughtMemory
    realtime: RealtimeSessions | None
    _loop_lag: LoopLag = field(default_factory=LoopLag)
    _give_back: GiveBack = field(default_factory=lambda: GiveBack(find_trim()))
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _logged_ahead_s: float = 0.0
    """How far the machine's time was behind that of the start when that was logged."""

    def start(self) -> None:
        """Begins, in the running loop."""
        self._tasks = [asyncio.create_task(self._keep_house()), asyncio.create_task(self._keep_watch())]

    def stop(self) -> None:
        """Ends all periodic work, and a reload under way."""
        self.reloading.stop()
        for task in self._tasks:
            task.cancel()

    async def _keep_watch(self) -> None:
        """Ends the attempts whose time is up, and keeps alive the streams that wait."""
        while True:
            due, used_s = self.clock.monotonic() + SWEEP_S, time.process_time()
            await asyncio.sleep(SWEEP_S)
            now = self.clock.monotonic()
            self._loop_lag.note(now - due, time.process_time() - used_s)
            self.deadlines.sweep(now)
            self.keepalive.sweep(now)

    async def _keep_house(self) -> None:
        """Ticks about once a second; a failure of a tick is logged and does not end it."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.tick(self.clock.monotonic())
            except Exception:
                log.exception("housekeeping failed")

    async def tick(self, now: float) -> None:
        """Does everything that is due about once a second; `now` is monotonic."""
        lag_s, busy_lag_s = self._loop_lag.take()
        self.telemetry.set_loop_lag(lag_s)
        self._tell_of_steps()
        await self._watch_load(now, busy_lag_s)
        for server in self.servers:
            server.tick()
        self.inflight.sweep(now)
        if self.realtime is not None:
            self.realtime.sweep(now, is_draining=self.inflight.draining)
        self.admission.budgets.tick(self.policies.current)
        self.tick_store()
        self.memory.forget_old()
        self.models.tick(self.policies.current.providers.values())
        if self.tick_jobs is not None:
            self.tick_jobs()
        await self.runs.tick()
        self.telemetry.set_connections(self.pools.stats())
        await self.pools.close_retired(self.inflight.present())
        self.reloading.tick()

    def _tell_of_steps(self) -> None:
        """Says once that the machine's time was set."""
        ahead_s = self.kept_clock.ahead_s
        step_s = self._logged_ahead_s - ahead_s
        if abs(step_s) >= LEAST_STEP_S:
            self._logged_ahead_s = ahead_s
            log.warning(
                "the time of this machine was set %s by %.0f s: what waits here goes on waiting as long as it was told to",
                *("ahead" if step_s > 0 else "back", abs(step_s)),
            )

    async def _watch_load(self, now: float, lag_s: float) -> None:
        """Sheds load where there is too much, after freed memory is given back."""
        shedding, queue, bounds = self.shedding, self.admission.queue, self.policies.current.queue
        is_at_rest = not (self.inflight or queue.occupancy.calls or self.is_working())
        resident = resident_bytes()
        if self._give_back.look(now, resident, shedding.memory_limit(bounds), is_at_rest=is_at_rest):
            await asyncio.to_thread(self._give_back.run)
            before, resident = resident, resident_bytes()
            self._give_back.done(now, before or 0, resident or 0)
        shedding.observe(now, resident, queue.occupancy.bytes, lag_s, bounds, is_at_rest=is_at_rest)

    def fill_gauges(self) -> None:
        """Sets the core's gauges of levels, which are only looked at when somebody asks for metrics."""
        admission, telemetry, now = self.admission, self.telemetry, self.clock.monotonic()
        rows = views.limit_rows(admission, now)
        gates = {n: line.gate for n, line in admission.gates.lines.items() if not admission.gates.names.is_named(n)}
        telemetry.set_limits(
            {name: row.level for name, row in rows},
            {(name, row.source): row.capacity for name, row in rows},
            {name: gate.calibration.errors().mean_error for name, gate in gates.items() if gate.calibration.count},
        )
        queue = admission.queue
        pauses = {name: gate.pauses.count for name, gate in gates.items()}
        telemetry.set_queue(queue.occupancy.depth, views.oldest_s(admission, now), queue.occupancy.bytes, pauses)
        telemetry.set_budgets(admission.budgets.of_keys(self.policies.current))
        telemetry.set_suspects(views.suspects(admission))
        telemetry.set_spent_quotas(views.spent_quotas(admission, now))
        telemetry.set_breakers(views.breaker_states(admission), views.retry_levels(admission, self.policies.current))
        telemetry.set_shedding(self.shedding.level, self.shedding.shed_total)
