"""Runs real clients through a gateway with keys of two tenants to a strict emulator, and prints what came of it as a table.

python -m tests.agents                                              # every client, every target
python -m tests.agents --clients openai,codex --targets chat
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.agents.client import CLIENTS, TRIALS, Client, install
from tests.agents.trial import TARGETS, TENANTS, Outcome, gateway, run


def ordered(outcome: Outcome) -> list[str]:
    """Returns the names of a run's trials, those that all clients have before others."""
    return sorted(outcome.trials, key=lambda name: (TRIALS.index(name) if name in TRIALS else len(TRIALS), name))


def head(targets: Sequence[str]) -> str:
    """Returns the first lines of the table."""
    names = ["client", "version", "speaks", *(f"at {target}" for target in targets)]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def row(client: Client, targets: Sequence[str], outcomes: Sequence[Outcome]) -> str:
    """Returns a client's line of the table: for each target the trials that went well with each key, else what failed."""
    cells = [client.name, client.version, client.speaks]
    for target in targets:
        here = [outcome for outcome in outcomes if outcome.target == target]
        good = {name: all(each.trials[name] is None for each in here) for each in here for name in ordered(each)}
        wrong = [name for name, is_good in good.items() if not is_good]
        wrong += ["refused"] if any(each.refused for each in here) else []
        well = ", ".join(name for name, is_good in good.items() if is_good)
        cells.append(f"{well}; **not**: {', '.join(wrong)}" if wrong else well)
    return f"| {' | '.join(cells)} |"


async def tried(clients: Sequence[Client], targets: Sequence[str], folder: Path) -> list[Outcome]:
    """Runs the clients one by one, prints a line of the table for each, and returns what became of them."""
    outcomes: list[Outcome] = []
    async with gateway(folder) as running:
        for client in clients:
            for target in targets:
                for tenant in TENANTS:
                    place = folder / f"{client.name}-{target}-{tenant}"
                    outcomes.append(await run(client, target, tenant, running, place))
            own = [outcome for outcome in outcomes if outcome.client == client.name]
            sys.stdout.write(f"{row(client, targets, own)}\n")
            sys.stdout.flush()
    return outcomes


def main() -> int:
    """Installs the clients, then runs them; returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.agents", description=__doc__)
    parser.add_argument("--clients", default=",".join(CLIENTS), help="some of them, with commas between (default: all)")
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"some of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--fresh", action="store_true", help="install the clients anew")
    parser.add_argument("--output", type=Path, default=Path("agent-results"), help="folder of the JSON and of all logs")
    options = parser.parse_args()
    chosen, targets = options.clients.split(","), options.targets.split(",")
    if unknown := [name for name in (*chosen, *targets) if name not in (*CLIENTS, *TARGETS)]:
        parser.error(f"unknown: {', '.join(unknown)}; clients: {', '.join(CLIENTS)}; targets: {', '.join(TARGETS)}")
    runnable = []
    for name in chosen:
        problem = install(CLIENTS[name], is_fresh=options.fresh)
        if problem:
            sys.stdout.write(f"{name} cannot run here: {problem}\n")
        else:
            runnable.append(CLIENTS[name])
    options.output.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"{head(targets)}\n")
    outcomes = asyncio.run(tried(runnable, targets, options.output.resolve()))
    (options.output / "agents.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    for outcome in bad:
        wrong = {name: problem for name, problem in outcome.trials.items() if problem}
        sys.stdout.write(f"\n{outcome.client} at {outcome.target} for {outcome.tenant}: {wrong} {outcome.refused}\n")
    sys.stdout.write(f"\n{len(outcomes) - len(bad)} of {len(outcomes)} runs went well.\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
