"""What is measured of one system in one round: CPU time from /proc, latencies and rates from the load, memory, start time.

CPU time is that of the system's whole process tree, between the first and the last call of a window; it is divided by the
calls or events that the load generator counted itself. Linux only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import uvloop

from tests.bench import load
from tests.bench.systems import Running, System, store_operations

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
HIGH, LOW = 32, 1
"""Connections of the loaded and of the unloaded run."""
STEADY_PER_S, STEADY_CONNECTIONS = 1000, 16
"""Of the run at a steady rate."""
STEADY_TIMES = 3
"""It takes so many times as long as others, because its calls are fewer."""
HELD_INTERVAL_MS = 1000
PEER_WARMTH = 5
"""Peers carry far fewer calls a second, and a just-in-time compiler needs its calls before it is fast."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often to measure."""

    rounds: int
    load_s: float
    warm_s: float
    streams: int
    """Streams in the window that gives CPU per event; together they stay below what the slowest system carries."""
    interval_ms: int
    events: int
    held_streams: int = 300


@dataclass(frozen=True, slots=True)
class Latency:
    """A closed loop's latency as the client saw it."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Steady:
    """At a steady rate: latency as the client saw it, CPU time, and operations of the shared store, if there is one."""

    p50_ms: float
    p99_ms: float
    cpu_us_per_call: float
    store_operations_per_call: float


@dataclass(frozen=True, slots=True)
class Direct:
    """The provider without anything in front of it."""

    requests_per_s: float
    low: Latency
    high: Latency


@dataclass(frozen=True, slots=True)
class Round:
    """One system, measured once. `busy` is the share of its core that it used at 32 connections: well below 1 means that
    something else set `requests_per_s`. `foreign` is the share of that core that other processes took."""

    start_s: float
    idle_rss_mb: float
    cpu_us_per_call: float
    requests_per_s: float
    busy: float
    foreign: float
    low: Latency
    high: Latency
    cpu_us_per_event: float | None = None
    events_per_read: float | None = None
    streams_rss_mb: float | None = None
    steady: Steady | None = None


class Window:
    """CPU used by a process tree, and by everything else on its core, between `__init__` and `close`."""

    def __init__(self, pid: int, core: int) -> None:
        self._pid = pid
        self._core = core
        self._at = time.perf_counter()
        self._tree_s = tree_cpu_s(pid)
        self._core_s = core_cpu_s(core)

    def close(self) -> tuple[float, float, float]:
        """(CPU seconds of the tree, its share of the core, the share of others)."""
        elapsed_s = time.perf_counter() - self._at
        tree_s = tree_cpu_s(self._pid) - self._tree_s
        others_s = core_cpu_s(self._core) - self._core_s - tree_s
        return tree_s, tree_s / elapsed_s, max(0.0, others_s / elapsed_s)


def measure_direct(port: int, effort: Effort) -> Direct:
    """Measure the provider alone: what the load generator sees when nothing is in between."""
    load.run_plain(port, {}, connections=HIGH, seconds=effort.warm_s)
    high = load.run_plain(port, {}, connections=HIGH, seconds=effort.load_s)
    low = load.run_plain(port, {}, connections=LOW, seconds=effort.load_s)
    return Direct(high.calls / high.seconds, Latency(low.p50_ms, low.p99_ms), Latency(high.p50_ms, high.p99_ms))


def measure(system: System, running: Running, core: int, effort: Effort) -> Round:
    """Measure one running system. Raises LoadError when it answers wrongly."""
    port, pid = running.port, running.pid
    idle_rss_mb = tree_rss_mb(pid)
    warm_s = effort.warm_s * (PEER_WARMTH if system.is_peer else 1)
    load.run_plain(port, system.headers, connections=HIGH, seconds=warm_s)
    window = Window(pid, core)
    high = load.run_plain(port, system.headers, connections=HIGH, seconds=effort.load_s)
    cpu_s, busy, foreign = window.close()
    low = load.run_plain(port, system.headers, connections=LOW, seconds=effort.load_s)
    per_event, per_read, streams_rss_mb = (
        (None, None, None) if system.is_peer or system.is_plain_only else _streams(system, running, core, effort)
    )
    return Round(
        start_s=running.start_s,
        idle_rss_mb=idle_rss_mb,
        cpu_us_per_call=cpu_s / high.calls * 1e6,
        requests_per_s=high.calls / high.seconds,
        busy=busy,
        foreign=foreign,
        low=Latency(low.p50_ms, low.p99_ms),
        high=Latency(high.p50_ms, high.p99_ms),
        cpu_us_per_event=per_event,
        events_per_read=per_read,
        streams_rss_mb=streams_rss_mb,
        steady=_steady(system, running, core, effort) if system.is_paced else None,
    )


def _steady(system: System, running: Running, core: int, effort: Effort) -> Steady:
    before, window = store_operations(running.port), Window(running.pid, core)
    result = load.run_paced(
        running.port,
        system.headers,
        per_s=STEADY_PER_S,
        connections=STEADY_CONNECTIONS,
        seconds=effort.load_s * STEADY_TIMES,
    )
    cpu_s, _, _ = window.close()
    operations = store_operations(running.port) - before
    return Steady(result.p50_ms, result.p99_ms, cpu_s / result.calls * 1e6, operations / result.calls)


def _streams(system: System, running: Running, core: int, effort: Effort) -> tuple[float, float, float]:
    """CPU per event in microseconds, events per read (1.0: none were merged on the way), MB while many streams are open."""
    window = Window(running.pid, core)
    result = uvloop.run(_relay(running.port, system.headers, effort))
    cpu_s, _, _ = window.close()
    rss_mb = uvloop.run(_hold(running, system.headers, effort))
    return cpu_s / result.events * 1e6, result.events / result.reads, rss_mb


async def _relay(port: int, headers: Mapping[str, str], effort: Effort) -> load.StreamResult:
    streams = load.Streams(port, headers, interval_ms=effort.interval_ms, events=effort.events)
    try:
        await streams.open(effort.streams)
        return await streams.finish()
    finally:
        streams.close()


async def _hold(running: Running, headers: Mapping[str, str], effort: Effort) -> float:
    streams = load.Streams(running.port, headers, interval_ms=HELD_INTERVAL_MS, events=600)
    try:
        await streams.open(effort.held_streams)
        return tree_rss_mb(running.pid)
    finally:
        streams.close()


def tree(root: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = _stat(path)
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def tree_cpu_s(root: int) -> float:
    """User and system time of the tree so far, its ended children included."""
    total = 0
    for pid in tree(root):
        fields = _stat(Path(f"/proc/{pid}/stat"))
        if fields is not None:
            total += sum(map(int, fields[11:15]))  # utime stime cutime cstime, proc(5)
    return total / _TICKS_PER_S


def tree_rss_mb(root: int) -> float:
    """Resident memory in MB (10^6 bytes) of the processes that do the work: those without children of their own."""
    pids = tree(root)
    parents = {int(fields[1]) for pid in pids if (fields := _stat(Path(f"/proc/{pid}/stat"))) is not None}
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids if pid not in parents)
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


def core_cpu_s(core: int) -> float:
    """User, nice and system time that all processes have used on a core."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            return sum(map(int, fields[:3])) / _TICKS_PER_S
    raise ValueError(f"no core {core}")


def _stat(path: Path) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None for a process that is gone."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
