"""From rounds to numbers people read: the best of the rounds, ratios, a table on standard output and bench.json.

Noise on a machine only ever adds time, so the best round is the closest to the truth; all rounds are kept in the file, and
a spread that makes a number doubtful is told in words.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gateway import process
from tests.bench import load
from tests.bench.measure import HIGH, STEADY_PER_S, Direct, Effort, Latency, Round, Steady
from tests.bench.systems import ROOT, SHARING

SPREAD_LIMIT = 0.15
FOREIGN_LIMIT = 0.10
BUSY_LIMIT = 0.90
_BEST_IS_MOST = frozenset(("requests_per_s", "busy"))
GATEWAY, FLOOR, NGINX = "gateway", "floor", "nginx"
TITLES = {
    SHARING: "gateway, redis state",
    "cache hit": "gateway, cache hit",
    "floor": "floor (uvicorn + bare httptools client)",
    "nginx": "nginx proxy_pass",
}


@dataclass(slots=True)
class Results:
    """Everything one run of the benchmark found out."""

    effort: Effort
    cores: tuple[int, int]
    versions: dict[str, str] = field(default_factory=dict)
    direct: list[Direct] = field(default_factory=list)
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def say(text: str) -> None:
    """Tell the user."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def best(rounds: Sequence[Round]) -> Round:
    """Each number from the round where it was best."""
    rows = [asdict(one) for one in rounds]
    chosen = {name: _best_of(name, [row[name] for row in rows]) for name in rows[0]}
    steady = Steady(**chosen["steady"]) if chosen["steady"] else None
    return Round(**{**chosen, "low": Latency(**chosen["low"]), "high": Latency(**chosen["high"]), "steady": steady})


def best_direct(direct: Sequence[Direct]) -> Direct:
    """The provider alone, in the same way."""
    low, high = (
        Latency(min(getattr(one, at).p50_ms for one in direct), min(getattr(one, at).p99_ms for one in direct))
        for at in ("low", "high")
    )
    return Direct(max(one.requests_per_s for one in direct), low, high)


def _best_of(name: str, values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {part: min(value[part] for value in values) for part in values[0]}
    if values[0] is None:
        return None
    return max(values) if name in _BEST_IS_MOST else min(values)


def summary(results: Results) -> dict[str, Any]:
    """What goes into bench.json."""
    found = {name: best(rounds) for name, rounds in results.rounds.items()}
    direct = best_direct(results.direct)
    return {
        "machine": _machine(results),
        "effort": asdict(results.effort),
        "direct": {"best": asdict(direct), "rounds": [asdict(one) for one in results.direct]},
        "systems": {
            name: {
                "version": results.versions[name],
                "best": asdict(one),
                "added_ms": {
                    at: {part: getattr(getattr(one, at), part) - getattr(getattr(direct, at), part) for part in _PARTS}
                    for at in ("low", "high")
                },
                "ratio_to": {
                    other: {
                        number: getattr(one, number) / getattr(found[other], number)
                        for number in ("cpu_us_per_call", "cpu_us_per_event")
                        if getattr(one, number) is not None and getattr(found[other], number)
                    }
                    for other in (FLOOR, NGINX, *((GATEWAY,) if name == SHARING else ()))
                    if other in found
                },
                "rounds": [asdict(each) for each in results.rounds[name]],
            }
            for name, one in found.items()
        },
        "skipped": results.skipped,
        "doubts": doubts(results),
    }


_PARTS = ("p50_ms", "p99_ms")


def doubts(results: Results) -> list[str]:
    """What makes this run less than trustworthy; empty for a quiet machine."""
    found = [doubt] if (doubt := process.doubt()) else []
    if results.cores[0] == results.cores[1]:
        found.append("one core only: the load shares it with the system, so rates and latencies mean little")
    for name, rounds in results.rounds.items():
        foreign = max(one.foreign for one in rounds)
        if foreign > FOREIGN_LIMIT and results.cores[0] != results.cores[1]:
            found.append(f"{name}: other processes took up to {foreign:.0%} of its core")
        for number in ("cpu_us_per_call", "cpu_us_per_event"):
            values = [value for one in rounds if (value := getattr(one, number)) is not None]
            if values and max(values) > min(values) * (1 + SPREAD_LIMIT):
                found.append(f"{name}: {number} varied from {min(values):.1f} to {max(values):.1f} between rounds")
        merged = max((one.events_per_read or 1.0) for one in rounds)
        if merged > 1.1:
            found.append(f"{name}: {merged:.2f} events per read, so its CPU per event is flattered")
    return found


def _machine(results: Results) -> dict[str, Any]:
    names = ("uvicorn", "httptools", "uvloop", "httpx", "orjson", "starlette")
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system_core": results.cores[0],
        "load_core": results.cores[1],
        "load_average": os.getloadavg(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "interpreter": {"path": os.path.realpath(sys.executable), "doubt": process.doubt()},
        "load_generator": load.generator(),
        "packages": {name: version(name) for name in names},
    }


def _commit() -> str | None:
    """The commit measured, with `+` when the tree differs from it."""
    told = [
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain"])
    ]
    if told[0].returncode:
        return None
    return told[0].stdout.strip() + ("+" if told[1].stdout.strip() else "")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def table(facts: dict[str, Any]) -> str:
    """The summary as a Markdown table, one system per row."""
    systems = facts["systems"]
    columns: list[tuple[str, Callable[[str], str]]] = [
        ("system", lambda name: TITLES.get(name, f"{name} {systems[name]['version']}")),
        ("CPU per call", lambda name: _us(systems[name]["best"]["cpu_us_per_call"])),
        ("x floor", lambda name: _ratio(systems[name], FLOOR, "cpu_us_per_call")),
        ("x nginx", lambda name: _ratio(systems[name], NGINX, "cpu_us_per_call")),
        (f"calls/s at {HIGH}", lambda name: _rate(systems[name]["best"])),
        ("added p50 / p99 at 1", lambda name: _added(systems[name], "low")),
        (f"added p50 / p99 at {HIGH}", lambda name: _added(systems[name], "high")),
        ("CPU per event", lambda name: _us(systems[name]["best"]["cpu_us_per_event"])),
        ("x floor", lambda name: _ratio(systems[name], FLOOR, "cpu_us_per_event")),
        ("x nginx", lambda name: _ratio(systems[name], NGINX, "cpu_us_per_event")),
        ("RSS idle", lambda name: _mb(systems[name]["best"]["idle_rss_mb"])),
        (f"RSS, {facts['effort']['held_streams']} streams", lambda name: _mb(systems[name]["best"]["streams_rss_mb"])),
        ("start", lambda name: f"{systems[name]['best']['start_s']:.2f} s"),
    ]
    rows = [[title for title, _ in columns], *([show(name) for _, show in columns] for name in systems)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def footnotes(facts: dict[str, Any]) -> str:
    """What the reader has to know beside the table."""
    machine, direct = facts["machine"], facts["direct"]["best"]
    low, high = direct["low"], direct["high"]
    notes = [
        f"{machine['cpu']}, Python {machine['python']} ({machine['interpreter']['path']}), commit {machine['commit']}, "
        f"load by {machine['load_generator']}.",
        f"Without anything in between: {direct['requests_per_s']:,.0f} calls/s, "
        f"p50 / p99 {low['p50_ms']:.2f} / {low['p99_ms']:.2f} ms at 1 connection, "
        f"{high['p50_ms']:.2f} / {high['p99_ms']:.2f} ms at {HIGH}.",
        "A rate with > is a lower bound: the system still had CPU time to spare.",
    ]
    notes += _sharing(facts["systems"])
    notes += [f"skipped {name}: {why}" for name, why in facts["skipped"].items()]
    notes += [f"doubt: {doubt}" for doubt in facts["doubts"]]
    return "\n".join(notes)


def _sharing(systems: dict[str, Any]) -> list[str]:
    """What it costs to share limits through a Redis."""
    if not {GATEWAY, SHARING} <= systems.keys():
        return []
    alone, shared = systems[GATEWAY]["best"], systems[SHARING]["best"]
    one, other = alone["steady"], shared["steady"]
    return [
        "With limits shared through a Redis: CPU per call "
        f"{shared['cpu_us_per_call'] / alone['cpu_us_per_call']:.2f}x of the gateway's own, "
        f"p99 {shared['low']['p99_ms'] - alone['low']['p99_ms']:+.2f} ms at 1 connection; at {STEADY_PER_S:,} calls/s "
        f"CPU {other['cpu_us_per_call'] / one['cpu_us_per_call']:.2f}x ({other['cpu_us_per_call']:.0f} µs per call), "
        f"p99 {other['p99_ms'] - one['p99_ms']:+.2f} ms, {other['store_operations_per_call']:.3f} operations of Redis per call."
    ]


def write(facts: dict[str, Any], path: Path) -> None:
    """Write bench.json."""
    path.write_text(json.dumps(facts, indent=2) + "\n")


def _us(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} µs" if value >= 100 else f"{value:.1f} µs"


def _mb(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} MB"


def _ratio(system: dict[str, Any], other: str, number: str) -> str:
    value = system["ratio_to"].get(other, {}).get(number)
    return "" if value is None else f"{value:.2f}"


def _rate(one: dict[str, Any]) -> str:
    bound = "> " if one["busy"] < BUSY_LIMIT else ""
    return f"{bound}{one['requests_per_s']:,.0f}"


def _added(system: dict[str, Any], at: str) -> str:
    added = system["added_ms"][at]
    return f"{added['p50_ms']:.2f} / {added['p99_ms']:.2f} ms"
