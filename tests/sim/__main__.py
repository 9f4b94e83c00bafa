"""`python -m tests.sim`: run the sweeps, print a table, write `sim.json` and the pictures. README.md says how to read them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.sim import plot
from tests.sim.sweep import Point, as_facts, run_all, sweeps

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run the sweeps; returns the exit code."""
    options = _options()
    options.output.mkdir(parents=True, exist_ok=True)
    started_at = time.monotonic()
    with ProcessPoolExecutor(options.processes) as executor:
        points = run_all(sweeps(options.seconds), executor, _say_point)
    (options.output / "sim.json").write_text(json.dumps(as_facts(points), indent=1))
    _say("\n" + table(points))
    calls = sum(point.offered for some in points.values() for point in some)
    cpu_s = sum(point.offered * point.cpu_us_per_call for some in points.values() for point in some) / 1e6
    _say(f"\n{calls:,} calls, {calls / cpu_s:,.0f} per second of CPU, in {time.monotonic() - started_at:.0f} s")
    try:
        plot.draw(points, options.output)
    except ImportError:
        _say("matplotlib is not installed: no pictures (`make sim` installs it)")
        return 1
    return 0


def table(points: dict[str, list[Point]]) -> str:
    """The load sweep as a table in Markdown: of each lane the share that was answered, and its waits, p50 / p99."""
    head = "| load | goodput | interactive | batch | background | refused early | upstream 429s |"
    rows = [head, "|---|---|---|---|---|---|---|"]
    for point in points["load"]:
        waits = [_waits(point, lane) for lane in ("interactive", "batch", "background")]
        rows.append(
            f"| {point.setting.load:g}x | {point.goodput:.1%} | {' | '.join(waits)} "
            f"| {point.refused_early:.1%} | {point.upstream_429s:.2%} |"
        )
    return "\n".join(rows)


def _waits(point: Point, lane: str) -> str:
    if lane not in point.waits_s:
        return "0%"
    share = f"{point.answered[lane]:.0%}"
    return f"{share}, " + " / ".join(
        f"{1000 * wait_s:.0f} ms" if wait_s < 1 else f"{wait_s:.1f} s" for wait_s in point.waits_s[lane]
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of virtual time for most points (default: 20)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="side by side (default: one per core)")
    parser.add_argument("--output", type=Path, default=ROOT / "sim-results", help="folder (default: sim-results)")
    return parser.parse_args()


def _say_point(name: str, point: Point) -> None:
    setting = point.setting
    _say(
        f"{name}: {setting.load:g}x of {setting.rate_per_s:,.0f}/s, {setting.tenants} tenants: {point.offered:,} calls, "
        f"goodput {point.goodput:.1%}, 429s {point.upstream_429s:.2%}, {point.cpu_us_per_call:.0f} µs each"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
