"""Prints the table of known cases.

python -m tests.known              # all of them, about two minutes
python -m tests.known --seed 7     # with other faults
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.known.cases import CASES, Case

HEAD = "| case | client | done | answers paid | the others, by code |\n|---|---|---|---|---|"


def rows(case: Case) -> str:
    """The lines of one case."""
    lines = []
    for at, side in enumerate(case.sides):
        done = f"{side.done:,} of {side.of:,} ({side.percent:.2f} %)"
        lines.append(f"| {case.name if at == 0 else ''} | {side.name} | {done} | {side.paid:,} | {side.refusals} |")
    return "\n".join(lines)


async def main() -> int:
    """Runs all cases, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.known", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of all that goes wrong (default: 1)")
    options = parser.parse_args()
    sys.stdout.write(f"{HEAD}\n")
    for make in CASES:
        sys.stdout.write(f"{rows(await make(options.seed))}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
