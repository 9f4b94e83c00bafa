"""Runs bulk programs three ways, and prints what became of their items as a table.

python -m tests.bulk                                       # every tool, every way: about half an hour
python -m tests.bulk --tools openai,litellm --ways alone --minute 20
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.bulk.tool import TOOLS, install
from tests.bulk.trial import WAYS, Outcome, end_children, run

HEAD = (
    "| tool | way | done | lost | took | last call begun | the limit's own | calls up | 429 up | paid | paid twice "
    "| not 2xx at the tool | gateway CPU |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(outcome: Outcome) -> str:
    """Returns a line of the table."""
    seen = ", ".join(f"{count} x {status}" for status, count in sorted(outcome.refusals.items())) or "none"
    ideal = f"{outcome.ideal_s:.1f} s" if outcome.ideal_s is not None else ""
    cpu = f"{outcome.gateway_cpu_s:.2f} s" if outcome.gateway_cpu_s else ""
    cells = (
        outcome.tool,
        outcome.way,
        f"{outcome.done} of {outcome.items}",
        str(outcome.items - outcome.done),
        f"{outcome.took_s:.1f} s",
        f"{outcome.last_begun_s:.1f} s",
        ideal,
        " + ".join(str(calls) for calls in outcome.calls),
        str(outcome.limited),
        str(outcome.paid),
        str(outcome.paid_twice),
        seen + (f"; {outcome.trouble}" if outcome.trouble else ""),
        cpu,
    )
    return f"| {' | '.join(cells)} |"


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Returns who lost items through the gateway, in one sentence."""
    losers = [
        f"{outcome.items - outcome.done} by {outcome.tool} {outcome.way}"
        for outcome in outcomes
        if outcome.way != "straight" and outcome.done < outcome.items
    ]
    return f"Lost through the gateway: {', '.join(losers)}." if losers else "Nothing is lost through the gateway."


def main() -> int:
    """Installs the tools one by one, then runs so many of them at a time; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bulk", description=__doc__)
    parser.add_argument("--tools", default=",".join(TOOLS), help="some of them, with commas between (default: all)")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of {', '.join(WAYS)} (default: all)")
    parser.add_argument("--items", type=int, help="instead of each tool's own number")
    parser.add_argument("--minute", type=float, default=60.0, help="the provider's minute in seconds (default: 60)")
    parser.add_argument("--jobs", type=int, default=6, help="runs at the same time (default: 6)")
    parser.add_argument("--seed", type=int, default=1, help="of what goes wrong at the providers (default: 1)")
    parser.add_argument("--fresh", action="store_true", help="install the tools anew")
    parser.add_argument("--output", type=Path, default=Path("bulk-results"), help="folder of the JSON and of all logs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no process is left behind
    options.output.mkdir(parents=True, exist_ok=True)
    chosen, ways = options.tools.split(","), options.ways.split(",")
    if unknown := [name for name in (*chosen, *ways) if name not in (*TOOLS, *WAYS)]:
        parser.error(f"unknown: {', '.join(unknown)}; tools: {', '.join(TOOLS)}; ways: {', '.join(WAYS)}")
    runnable = []
    for name in chosen:
        problem = install(TOOLS[name], is_fresh=options.fresh)
        if problem:
            sys.stdout.write(f"{name} cannot run here: {problem}\n")
        else:
            runnable.append(TOOLS[name])
    sys.stdout.write(f"{HEAD}\n")
    outcomes = []
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = {
            pool.submit(
                run,
                tool,
                way,
                options.items or tool.items,
                options.minute,
                options.seed,
                options.output / f"{tool.name}-{way}",
            ): f"{tool.name} {way}"
            for tool in runnable
            for way in ways
        }
        try:
            for finished in as_completed(runs):
                if error := finished.exception():
                    sys.stdout.write(f"{runs[finished]} failed: {error}\n")
                else:
                    outcomes.append(finished.result())
                    sys.stdout.write(f"{row(outcomes[-1])}\n")
                sys.stdout.flush()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_children()  # so that the runs under way end at once
            raise
    sys.stdout.write(f"\n{verdict(outcomes)}\n")
    settings = {"minute_s": options.minute, "jobs": options.jobs, "seed": options.seed, "at": int(time.time())}
    results = {**settings, "runs": [asdict(outcome) for outcome in outcomes]}
    (options.output / "bulk.json").write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
