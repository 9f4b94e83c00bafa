"""`python -m tests.bench`: start each system in turn, measure it, tell the numbers. README.md says how to read them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

from tests.bench import plot, report
from tests.bench.load import LoadError
from tests.bench.measure import Effort, measure, measure_direct
from tests.bench.peers import find_peers
from tests.bench.report import Results, say
from tests.bench.systems import (
    ROOT,
    SHARING,
    StartError,
    System,
    canned_provider,
    find_systems,
    run,
    shared_redis,
)

NORMAL = Effort(rounds=3, load_s=3, warm_s=1, streams=100, interval_ms=10, events=400)
QUICK = Effort(rounds=1, load_s=1, warm_s=1, streams=100, interval_ms=10, events=150)
RESULTS = ROOT / "bench-results"
NAMES = ("gateway", SHARING, "cache hit", "floor", "nginx")


def main() -> int:
    """Run the benchmark; returns the exit code."""
    options = _options()
    if not sys.platform.startswith("linux"):
        say("bench: needs Linux: CPU time is read from /proc, and cores are pinned with sched_setaffinity")
        return 1
    signal.signal(signal.SIGTERM, _terminate)
    started_at = time.monotonic()
    try:
        results = _measure_all(options)
    except KeyboardInterrupt:
        say("bench: interrupted; everything it started is stopped")
        return 130
    if not results.rounds:
        say("bench: nothing could be measured: " + "; ".join(f"{name}: {why}" for name, why in results.skipped.items()))
        return 1
    _tell(results, options.output)
    say(f"took {time.monotonic() - started_at:.0f} s; {options.output}/bench.json, bench.png")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, under 30 s: for a first look only")
    parser.add_argument("--only", type=_names, default=set(NAMES), help="some of " + ",".join(NAMES))
    parser.add_argument("--peers", action="store_true", help="also LiteLLM and Portkey, installed when missing")
    parser.add_argument("--rounds", type=int, help="instead of the usual number")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results (default: bench-results)")
    return parser.parse_args()


def _names(text: str) -> set[str]:
    names = set(text.split(","))
    if not names <= set(NAMES):
        raise argparse.ArgumentTypeError(f"names are {', '.join(NAMES)}")
    return names


def _effort(options: argparse.Namespace) -> Effort:
    usual = QUICK if options.quick else NORMAL
    return usual if options.rounds is None else replace(usual, rounds=max(1, options.rounds))


def _measure_all(options: argparse.Namespace) -> Results:
    cores = sorted(os.sched_getaffinity(0))
    system_core, load_core = cores[0], cores[1 % len(cores)]
    os.sched_setaffinity(0, {load_core})
    results = Results(_effort(options), (system_core, load_core))
    with (
        tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder,
        canned_provider(Path(folder), load_core) as upstream_port,
        shared_redis(Path(folder), load_core) as redis_port,
    ):
        systems = _find(options, upstream_port, redis_port, results)
        for number in range(results.effort.rounds):
            say(f"round {number + 1} of {results.effort.rounds}")
            results.direct.append(measure_direct(upstream_port, results.effort))
            for system in systems:
                _measure_one(system, Path(folder), upstream_port, results)
    return results


def _find(options: argparse.Namespace, upstream_port: int, redis_port: int | None, results: Results) -> list[System]:
    systems, results.skipped = find_systems(options.only, redis_port)
    if options.peers:
        say("looking for the peers; the first time they are installed, which takes minutes")
        peers, skipped = find_peers(options.output / "peers", upstream_port)
        systems += peers
        results.skipped |= skipped
    for name, why in results.skipped.items():
        say(f"  {name}: skipped: {why}")
    return systems


def _measure_one(system: System, folder: Path, upstream_port: int, results: Results) -> None:
    """Measure one system once; one that fails is told and left out of the rest, the others go on."""
    if system.name in results.skipped:
        return
    core = results.cores[0]
    try:
        with run(system, folder, upstream_port, core) as running:
            found = measure(system, running, core, results.effort)
    except (StartError, LoadError, TimeoutError) as error:
        results.skipped[system.name] = str(error) or type(error).__name__
        say(f"  {system.name}: skipped: {results.skipped[system.name]}")
        return
    results.versions[system.name] = system.version
    results.rounds.setdefault(system.name, []).append(found)
    event = "" if found.cpu_us_per_event is None else f", {found.cpu_us_per_event:.1f} µs per event"
    say(f"  {system.name}: {found.cpu_us_per_call:.1f} µs per call{event}, {found.requests_per_s:,.0f} calls/s")


def _tell(results: Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    facts = report.summary(results)
    report.write(facts, folder / "bench.json")
    try:
        plot.draw(facts, folder / "bench.png")
    except ImportError:
        say("no plot: matplotlib is not installed; `make bench` installs it")
    say("\n" + report.table(facts) + "\n\n" + report.footnotes(facts) + "\n")


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """End as Ctrl-C does: by unwinding, which stops every process that was started."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
