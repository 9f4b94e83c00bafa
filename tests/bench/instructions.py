"""User-space instructions per plain call and per event of a stream, of the gateway and the floor: `make instructions`.

Events are those of a chat, and those of a message that goes to Anthropic's as it is.

Counted by valgrind's cachegrind, which simulates the processor: no other process, no cache and no clock rate has a part in the
figure. What time drives is taken away from the systems (`still.py`), or a slower run would count more ticks. Each figure is
the difference of two runs that differ in the number of calls, or of events, alone; start-up is in both and falls out.
What the kernel does is not counted. Calls come one by one over one connection, so that none shares a turn of the loop.

    python -m tests.bench.instructions           # count; some two minutes
    python -m tests.bench.instructions --write   # and renew this interpreter's entry in results/instructions.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gateway import process as interpreter
from tests.bench.both_ends import BothEnds
from tests.bench.report import say
from tests.bench.still import SYSTEMS
from tests.bench.systems import ROOT

KINDS = {"plain": "plain call", "event": "event of a chat", "message": "event of a message"}
RESULTS = Path(__file__).with_name("results") / "instructions.json"
WARM, FEW, MANY = 50, 50, 300
STOP_S = 60.0


class CountError(Exception):
    """A system could not be counted."""


def main() -> int:
    """Count, and tell; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.instructions", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"renew this interpreter's entry in {RESULTS.name}")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        say("instructions: valgrind is not on PATH; install it (apt-get install valgrind)")
        return 1
    say(f"counting on {name_of_python()}")
    if doubt := interpreter.doubt():
        say(f"doubt: {doubt}")
    try:
        found = count_all()
    except CountError as error:
        say(f"instructions: {error}")
        return 1
    say(table(found))
    if options.write:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**known, name_of_python(): found}, indent=2, sort_keys=True) + "\n")
    return 0


def name_of_python() -> str:
    """The interpreter: its version, compiler, and whether it was built to be fast."""
    kind = "not optimised" if interpreter.doubt() else "optimised"
    return f"Python {platform.python_version()}, {platform.python_compiler()}, {kind}"


def count_all() -> dict[str, Any]:
    """By system and kind; and how many times the floor's the gateway's are. Raises CountError."""
    runs = {"base": (FEW, FEW, FEW)} | {kind: tuple(MANY if one == kind else FEW for one in KINDS) for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="gateway-instructions-") as folder, ThreadPoolExecutor(2) as pool:
        jobs = {
            (system, kind): pool.submit(count, system, numbers, Path(folder, f"{system}-{kind}.log"))
            for system in SYSTEMS
            for kind, numbers in runs.items()
        }
        totals = {key: job.result() for key, job in jobs.items()}
    found: dict[str, Any] = {
        system: {kind: (totals[system, kind] - totals[system, "base"]) // (MANY - FEW) for kind in KINDS}
        for system in SYSTEMS
    }
    ratios = {kind: round(found["gateway"][kind] / found["floor"][kind], 2) for kind in KINDS}
    return {**found, "x floor": ratios}


def count(system: str, numbers: tuple[int, ...], log: Path) -> int:
    """Instructions of one run from its start to its end: so many plain calls, and one stream each of so many events."""
    calls, events, message_events = numbers
    ends = BothEnds()
    command = [
        *("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", f"--log-file={log}"),
        *(sys.executable, "-m", "tests.bench.still", system, str(ends.provider_port)),
    ]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environ, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline()
            if not port:
                raise CountError(f"{system} did not start under valgrind; its words are above")
            ends.connect(int(port))
            ends.plain(WARM)
            process.stdin.write("a minute later\n")
            process.stdin.flush()
            ends.plain(calls)
            ends.stream(events)
            ends.messages(message_events)
            process.stdin.close()
            process.wait(STOP_S)
        finally:
            process.kill()
            ends.close()
    told = re.search(r"I +refs: +([\d,]+)", log.read_text())
    if told is None:
        raise CountError(f"valgrind counted nothing of {system}: {log.read_text()[-300:]}")
    return int(told[1].replace(",", ""))


def table(found: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| instructions " + "".join(f"| per {told} " for told in KINDS.values()) + "|",
        "|---" * (len(KINDS) + 1) + "|",
    ]
    lines += [f"| {name} " + "".join(f"| {found[name][kind]:,} " for kind in KINDS) + "|" for name in SYSTEMS]
    lines.append("| x floor " + "".join(f"| {found['x floor'][kind]:.2f} " for kind in KINDS) + "|")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
