"""What a running gateway does by the clock: the sweep of running attempts, and all that is due about once a second.

First the reloads: `Reloader` watches the files and compiles them, `Reloading` puts the result in force. Then `Housekeeping`,
which also fills the gauges, when somebody looks. It must not know how any of this is made: `app` hands it in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gateway.admin import views
from gateway.core.admission.admission import Admission
from gateway.core.answers import SWEEP_S, AttemptDeadlines
from gateway.core.clock import LEAST_STEP_S, Clock
from gateway.core.config.load import locate_policies
from gateway.core.config.policies import list_error_files, list_policy_files
from gateway.core.config.product_sections import Sections
from gateway.core.errors import ConfigError
from gateway.core.http.client.transport import Pools
from gateway.core.http.server import HttpServer
from gateway.core.intake import InFlight
from gateway.core.snapshot import Policies, PolicySnapshot
from gateway.core.telemetry import Telemetry
from gateway.core.waiting import GiveBack, KeepAlive, LoopLag, Shedding
from gateway.dialects.memory import ThoughtMemory
from gateway.dialects.model_lists import ModelLists
from gateway.drivers.durability import JOB_SETTINGS
from gateway.installed import is_installed
from gateway.process import find_trim, resident_bytes
from gateway.sections import SECTIONS

if is_installed("gateway.features.runs"):
    from gateway.features.runs.table import RunTable
if is_installed("gateway.products.realtime"):
    from gateway.products.realtime.service import RealtimeSessions

TICK_S = 1.0
log = logging.getLogger("gateway")


# --- loading again when files change; a bad config changes nothing ---

_Stamp = dict[str, tuple[int, int, int] | None]
"""The modification time in nanoseconds, size and inode of every file; None: the file does not exist."""


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The outcome of one reload; `version` and `digest` are those in force after it (0 and empty: none yet)."""

    status: Literal["loaded", "unchanged", "failed"]
    version: int
    digest: str
    problems: tuple[str, ...]
    at_wall: float


class Reloader:
    """Watches the files of one config.

    `load` compiles, `install` puts a snapshot in force; `sections` are those of the config. `current` is the snapshot that
    is in force already, if any.

    It needs no thread and no task: the app calls `changed()` once a second, and `reload()` when that is true and on SIGHUP.
    Invariant: the snapshot in force is replaced only by one that compiled whole.
    """

    def __init__(
        self,
        path: Path,
        environ: Mapping[str, str],
        *,
        sections: Sections,
        load: Callable[[], PolicySnapshot],
        install: Callable[[PolicySnapshot], None],
        current: PolicySnapshot | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._environ = environ
        self._sections = sections
        self._load = load
        self._install = install
        self._wall = wall
        self._version = current.version if current else 0
        self._digest = current.digest if current else ""
        self._files = current.files if current else ()
        self._policies = locate_policies(path, environ)
        self._loaded = self._stamp()
        self._seen_before: _Stamp | None = None
        self.last: ReloadReport | None = None

    def changed(self) -> bool:
        """Returns whether the files differ from those last loaded, and have not changed since the previous call.

        A file that is still being written differs from one call to the next, so it is loaded only when it is complete.
        """
        stamp = self._stamp()
        at_rest = stamp == self._seen_before
        self._seen_before = stamp
        return stamp != self._loaded and at_rest

    def reload(self) -> ReloadReport:
        """Compiles the files and puts the result in force, unless it is bad or the same as before."""
        # A config that cannot be read names no folder: then the one before is still watched.
        self._policies = locate_policies(self._path, self._environ) or self._policies
        self._loaded = self._stamp()  # taken first, so that a change during the read is noticed afterwards
        try:
            snapshot = self._load()
        except ConfigError as error:
            return self._tell("failed", tuple(error.problems))
        if snapshot.digest == self._digest:
            return self._tell("unchanged")
        self._install(snapshot)
        self._version, self._digest, self._files = snapshot.version, snapshot.digest, snapshot.files
        # The new config may name other files than the one before: these are as they are now.
        self._loaded = {file: self._loaded.get(file, stat) for file, stat in self._stamp().items()}
        return self._tell("loaded")

    def _tell(self, status: Literal["loaded", "unchanged", "failed"], problems: tuple[str, ...] = ()) -> ReloadReport:
        self.last = ReloadReport(status, self._version, self._digest, problems, self._wall())
        return self.last

    def _stamp(self) -> _Stamp:
        folder, listed = self._policies, list[Path]()
        if folder is not None:
            lists = (list_policy_files, list_error_files, *(section.list_files for section in self._sections))
            with suppress(OSError):  # it is gone: its files are, too
                listed = [file for files in lists for file in files(folder)]
        return {str(file): _stat(file) for file in (self._path, *listed, *map(Path, self._files))}


def _stat(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()  # follows links, so a swapped link shows as another inode
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


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
    runs: RunTable | None
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
        if self.runs is not None:
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
            {name: gate.calibration.error for name, gate in gates.items() if gate.calibration.count},
        )
        queue = admission.queue
        pauses = {name: gate.pauses.count for name, gate in gates.items()}
        telemetry.set_queue(queue.occupancy.depth, views.oldest_s(admission, now), queue.occupancy.bytes, pauses)
        telemetry.set_budgets(admission.budgets.of_keys(self.policies.current))
        telemetry.set_suspects(views.suspects(admission))
        telemetry.set_spent_quotas(views.spent_quotas(admission, now))
        telemetry.set_breakers(views.breaker_states(admission), views.retry_levels(admission, self.policies.current))
        telemetry.set_shedding(self.shedding.level, self.shedding.shed_total)
