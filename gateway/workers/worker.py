"""A gateway in this process: alone until a signal ends it, beside a command that blocks, or as one worker of several.

In this order: the metrics of all workers merged into one set, a gateway alone (`serve`), one beside a command (`running`),
a worker (`Worker`). A worker runs on the listeners of its supervisor, which commands it through the channel. Signals are
the supervisor's business: a worker ignores SIGINT and SIGHUP, which a terminal sends to the whole group, and SIGTERM, which
some service managers send to all, drains it but never hurries it. When the channel ends, the supervisor has died: the
worker then stops listening, so that another gateway can have the port, and drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

import uvloop
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway import __version__, process
from gateway.app import Gateway, WorkerContext
from gateway.core.errors import ConfigError, StoreUnusable
from gateway.core.snapshot import PolicySnapshot
from gateway.core.types import Server
from gateway.drivers.durability import JOB_SETTINGS
from gateway.settings import Settings
from gateway.workers.channel import MOST_UNREAD_BYTES, STACK_SIGNAL, LockedLog, Message, pack

# --- The metrics of all workers, merged into one set; pure ---


Family = tuple[str, str, str, list[tuple[str, dict[str, str], float]]]
"""A metric family as a channel carries it: name, documentation, type, and samples of name, labels and value."""

SUMMED = frozenset({"counter", "histogram"})
"""The types whose samples are running totals."""

ADDED = frozenset(
    {
        "gateway_calls_in_flight",
        "gateway_queue_depth",
        "gateway_queue_bytes",
        "gateway_native_parts",
        "gateway_realtime_sessions",
        "gateway_remembered_thinking_bytes",
        "gateway_upstream_connections",
        "gateway_responses_websockets",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
    }
)
"""Gauges that are summed, because every worker has a part."""
LEAST = frozenset(
    {
        "gateway_budget_left_usd",
        "gateway_limit_level",
        "gateway_retry_budget_level",
        "gateway_state_up",
        "process_start_time_seconds",
        "process_max_fds",
    }
)
"""Gauges of which the least counts, because it is the worst or the first."""
MOST = frozenset(
    {
        "gateway_budget_usd",
        "gateway_queue_oldest_seconds",
        "gateway_jobs_depth",
        "gateway_jobs_oldest_seconds",
        "gateway_dlq_depth",
        "gateway_dlq_oldest_seconds",
        "gateway_limit_capacity",
        "gateway_estimate_error_ratio",
        "gateway_breaker_state",
        "gateway_quota_spent",
        "gateway_suspect",
        "gateway_shed_level",
        "gateway_config_version",
        "gateway_state_deaf",
        "gateway_event_loop_lag_seconds",
        "gateway_cache_entries",
        "gateway_cache_bytes",
        "gateway_objects",
        "gateway_replicas",
        "gateway_workflow_unknown_names",
    }
)
"""Gauges of which the most counts: the worst, the last, or the same in all workers; the rule of any other gauge, too."""

_Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Fleet:
    """The metrics that all workers have reported.

    Counters and histograms are summed; gauges are merged by `ADDED`, `LEAST` and `MOST`. Invariant: no counter of the fleet
    ever goes back, whichever worker dies or is late: the last report of a late or dead worker still counts. A dead worker's
    counts since its last report are lost with it; its gauges are dropped at once.
    """

    def __init__(self) -> None:
        self._reports: dict[int, list[Family]] = {}
        self._departed: list[Family] = []

    def report(self, number: int, families: list[Family]) -> None:
        """Takes the present metrics of a worker."""
        self._reports[number] = families

    def depart(self, number: int) -> None:
        """Keeps the totals of a worker that has died, whose successor begins at 0."""
        totals = [family for family in self._reports.pop(number, []) if family[2] in SUMMED]
        self._departed = merge([self._departed, totals])

    def total(self, answered: Collection[int]) -> list[Family]:
        """Returns the merged metrics, without the gauges of workers that did not answer."""
        counted = (
            families if number in answered else [family for family in families if family[2] in SUMMED]
            for number, families in self._reports.items()
        )
        return merge([*counted, self._departed])


class Gathered(Collector):
    """A collector of given families, from which prometheus_client renders an exposition format."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Yields the families."""
        for name, text, kind, samples in self._families:
            metric = Metric(name, text, kind)
            for sample, labels, value in samples:
                metric.add_sample(sample, labels, value)
            yield metric


def dump(registry: Collector) -> list[Family]:
    """Returns the metrics of one worker."""
    return [
        (one.name, one.documentation, one.type, [(sample.name, sample.labels, sample.value) for sample in one.samples])
        for one in registry.collect()
    ]


def gauge(name: str, text: str, value: float) -> Family:
    """Returns a gauge without labels."""
    return name, text, "gauge", [(name, {}, value)]


def counter(name: str, text: str, value: float) -> Family:
    """Returns a counter without labels; its sample is called `<name>_total`."""
    return name, text, "counter", [(f"{name}_total", {}, value)]


def merge(parts: Iterable[list[Family]]) -> list[Family]:
    """Merges families of the same name; families and samples keep the order of their first occurrence."""
    known: dict[str, tuple[str, str, _Samples]] = {}
    for name, text, kind, samples in (family for part in parts for family in part):
        _, _, values = known.setdefault(name, (text, kind, {}))
        combine = _rule(name, kind)
        for sample, labels, value in samples:
            at = sample, tuple(labels.items())
            values[at] = combine(values[at], value) if at in values else value
    return [
        (name, text, kind, [(sample, dict(labels), value) for (sample, labels), value in values.items()])
        for name, (text, kind, values) in known.items()
    ]


def _rule(name: str, kind: str) -> Callable[[float, float], float]:
    if kind in SUMMED or name in ADDED:
        return add
    return min if name in LEAST else max


def families_of(message: Mapping[str, Any]) -> list[Family]:
    """Returns the families of a worker's message."""
    return [(name, text, kind, samples) for name, text, kind, samples in message["families"]]


# --- A gateway alone ---


async def serve(settings: Settings, environ: Mapping[str, str], *, only_works: bool = False) -> int:
    """Runs a gateway until SIGTERM or SIGINT; returns the exit code. A second signal skips the waiting.

    `only_works`: it runs jobs, and takes no calls. Raises ConfigError or OSError when it cannot start.
    """
    gateway = Gateway(settings, environ, only_works=only_works)
    stopping, hurry = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (hurry if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, gateway.reload)
    await gateway.start()
    greet(gateway.policy, gateway.url, does="runs jobs, takes no calls, and listens on" if only_works else "listens on")
    await stopping.wait()
    announce_stop(gateway.policy.server)
    with contextlib.suppress(asyncio.CancelledError):
        await gateway.drain(hurry)
    await gateway.stop()
    return 1 if hurry.is_set() else 0


def greet(policy: PolicySnapshot, url: str, crew: str = "", does: str = "listens on") -> None:
    """Logs where the gateway listens, with how many workers (`crew`), and every notice of the policy and the interpreter."""
    models = ", ".join([*policy.models, *(model.name for _, model in policy.patterns)])
    log.info("gateway %s %s %s%s, models: %s", __version__, does, url, crew, models)
    for notice in policy.notices:
        log.warning("%s", notice)
    slow = process.doubt()
    if slow is not None:
        log.warning("%s", slow)


def announce_stop(server: Server) -> None:
    """Logs that the gateway stops, and how to make it faster."""
    notice = f" in {server.notice_s:g} s" if server.notice_s else ""
    log.info("stopping: no new calls%s; running ones have %g s (signal again to exit now)", notice, server.grace_s)


# --- A gateway beside a command ---


@contextmanager
def running(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Runs a gateway on a free port of loopback until the end of the block; yields its URL. Its calls are not logged.

    It has a loop in a thread of its own: for commands that block, and want one for a while. Raises ConfigError,
    StoreUnusable or OSError when it cannot start.
    """
    own = settings.model_copy(update={"host": "127.0.0.1", "port": 0, "workers": 1})
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway", daemon=True)
    thread.start()
    try:
        with Path(os.devnull).open("w") as nowhere:
            gateway = asyncio.run_coroutine_threadsafe(_start(own, environ, nowhere), loop).result()
            try:
                yield gateway.url
            finally:
                asyncio.run_coroutine_threadsafe(gateway.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(settings: Settings, environ: Mapping[str, str], call_log: TextIO) -> Gateway:
    gateway = Gateway(settings, environ, log_stream=call_log)
    await gateway.start()
    return gateway


SUM_S = 1.0
"""Seconds that a scrape waits for the sum of all workers; after that it gets this worker's own metrics."""
FAILED, UNUSABLE = 1, 2
"""Exit codes, as those of the commands: the worker could not run; the config cannot be used."""

log = logging.getLogger("gateway.workers")


# --- A worker ---


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A worker's start-up data: its number, all listeners by number and port, its end of the channel.

    `log_lock` is the descriptor of the shared log's lock. `policy` is the one that the supervisor started with.
    """

    number: int
    listeners: Mapping[int, Sequence[socket.socket]]
    channel: socket.socket
    log_lock: int
    policy: PolicySnapshot


class Worker:
    """Runs one gateway in its slot."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], slot: WorkerSlot) -> None:
        """Raises ConfigError, StoreUnusable or OSError."""
        self._slot = slot
        self._ports = iter(slot.listeners[slot.number])
        self._awaited: set[asyncio.Future[Collector]] = set()
        self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        log_stream = cast("TextIO", LockedLog(sys.stdout, slot.log_lock))
        context = WorkerContext(slot.number, self._listen, self._gather)
        self._gateway = Gateway(settings, environ, log_stream=log_stream, worker=context)
        if _fixed(self._gateway.policy) != _fixed(slot.policy):
            raise _changed()

    async def run(self) -> int:
        """Serves until it has to stop; returns the exit code."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._slot.channel, limit=MOST_UNREAD_BYTES)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopping.set)
        await self._gateway.start()
        self._send({"say": "ready"})
        listening = asyncio.create_task(self._obey_all(reader))
        await self._stopping.wait()
        with contextlib.suppress(asyncio.CancelledError):
            await self._gateway.drain(self._hurry)
        self._send({"say": "numbers", "families": dump(self._gateway.registry)})  # the last it will ever tell
        await self._gateway.stop()
        listening.cancel()  # only now: until then it answers the supervisor's pings
        return FAILED if self._hurry.is_set() else 0

    def _listen(self, host: str, port: int) -> socket.socket:
        listener = next(self._ports, None)
        if listener is None:
            raise _changed()
        return listener.dup()

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(pack(message))

    async def _obey_all(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                self._obey(json.loads(line))
        log.error("the supervisor is gone: no new calls; running ones have their grace")
        self._writer = None
        # Closes the listeners while running calls go on, because the supervisor that kept them has died.
        self._gateway.stop_accepting()
        for ports in self._slot.listeners.values():
            for listener in ports:
                listener.close()
        self._stopping.set()

    def _obey(self, message: Message) -> None:
        match message["do"]:
            case "drain":
                self._stopping.set()
                server = self._gateway.policy.server
                self._send({"say": "draining", "grace_s": server.grace_s, "notice_s": server.notice_s})
            case "hurry":
                self._stopping.set()
                self._hurry.set()
            case "reload":
                self._gateway.reload()
            case "tell":
                self._send({"say": "numbers", "families": dump(self._gateway.registry)})
            case "show":
                sum_of_all = Gathered(families_of(message))
                for coming in self._awaited:
                    if not coming.done():
                        coming.set_result(sum_of_all)
            case "answer":
                self._send({"say": "here"})
            case "accept_for":
                self._gateway.accept_for({number: self._slot.listeners[number] for number in message["numbers"]})

    async def _gather(self) -> Collector:
        """Returns the metrics of all workers; this worker's own when the supervisor does not answer."""
        if self._writer is None:
            return self._gateway.registry
        coming: asyncio.Future[Collector] = asyncio.get_running_loop().create_future()
        self._awaited.add(coming)
        self._send({"say": "scraped"})
        try:
            return await asyncio.wait_for(coming, SUM_S)
        except TimeoutError:
            return self._gateway.registry
        finally:
            self._awaited.discard(coming)


def run_worker(
    settings: Settings, environ: Mapping[str, str], slot: WorkerSlot, let_go: Callable[[], None]
) -> NoReturn:
    """Runs a worker in a process just forked with its signals blocked, and ends the process.

    `let_go` closes the supervisor's descriptors.
    """
    code = FAILED
    try:
        let_go()
        code = _run(settings, environ, slot)
    except BaseException:  # noqa: BLE001 - the process ends here, and nobody above is this worker's
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)  # nothing of the supervisor's, whose stack this is, must run


def _run(settings: Settings, environ: Mapping[str, str], slot: WorkerSlot) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.register(STACK_SIGNAL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s worker {slot.number}: %(message)s"))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, environ, slot))
    except ConfigError as error:
        return _fail(slot, "\n".join(error.problems), UNUSABLE)
    except StoreUnusable as error:
        return _fail(slot, str(error), FAILED)
    except OSError as error:
        reason = error.strerror or str(error)
        return _fail(slot, f"{error.filename}: {reason}" if error.filename else reason, FAILED)


async def _serve(settings: Settings, environ: Mapping[str, str], slot: WorkerSlot) -> int:
    return await Worker(settings, environ, slot).run()


def _fail(slot: WorkerSlot, text: str, code: int) -> int:
    """Reports a failure to the supervisor, which prints it once."""
    with contextlib.suppress(OSError):
        slot.channel.sendall(pack({"say": "failed", "text": text, "code": code}))
    return code


def _fixed(policy: PolicySnapshot) -> tuple[object, ...]:
    """Returns the settings that are fixed until all workers restart."""
    return policy.state, policy.shared, policy.server.admin_listen, JOB_SETTINGS.of(policy)


def _changed() -> ConfigError:
    return ConfigError(["state, jobs or admin.listen has changed: that takes effect when all workers are started anew"])
