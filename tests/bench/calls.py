"""How many functions a call runs through: Python and C calls per plain call and per event of a stream, gateway and floor.

The system runs in this process, behind its own server on loopback; a thread is its client and its provider. The event
loop's thread counts with `sys.setprofile` from a request's first byte to its answer's last one, and what is done behind
that. The flush of log and counters is left out: it is shared by many calls. The figures are differences of two runs.

    python -m tests.bench.calls           # count
    python -m tests.bench.calls --write   # and renew this Python's entry in results/calls.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvloop

from gateway.core.telemetry import Telemetry
from tests.bench.both_ends import BothEnds
from tests.bench.still import SYSTEMS, Start

RESULTS = Path(__file__).with_name("results") / "calls.json"
WARM, FEW, MANY = 50, 50, 250
"""Calls of a run, and events of a stream."""

Counts = dict[str, float]
"""By `python` and `c`: what one plain call or one event takes."""


class Counter:
    """Counts the calls of the thread that it is installed in with `sys.setprofile`."""

    def __init__(self) -> None:
        self.python = 0
        self.c = 0
        self._outside: FrameType | None = None
        """The frame of the flush, while it runs."""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """What happens in a frame; a coroutine that goes on is called again."""
        if self._outside is not None:
            if frame is self._outside and event == "return":
                self._outside = None
        elif event == "c_call":
            self.c += 1
        elif event == "call":
            if frame.f_code is Telemetry.flush.__code__:
                self._outside = frame
            else:
                self.python += 1


async def count(start: Start) -> dict[str, Counts]:
    """What a plain call and an event take in this system."""
    ends = BothEnds()
    try:
        async with start(ends.provider_port) as system:
            ends.connect(system.port)
            await asyncio.to_thread(ends.plain, WARM)
            system.times.minute_later()
            await asyncio.to_thread(ends.plain, WARM)
            await asyncio.to_thread(ends.stream, WARM)
            await asyncio.to_thread(ends.messages, WARM)
            kinds = {"plain": ends.plain, "event": ends.stream, "message": ends.messages}
            return {kind: await _difference(run) for kind, run in kinds.items()}
    finally:
        ends.close()


async def _difference(run: Callable[[int], None]) -> Counts:
    few, many = await _counted(run, FEW), await _counted(run, MANY)
    return {
        "python": round((many.python - few.python) / (MANY - FEW), 1),
        "c": round((many.c - few.c) / (MANY - FEW), 1),
    }


async def _counted(run: Callable[[int], None], times: int) -> Counter:
    counter = Counter()
    sys.setprofile(counter)
    try:
        await asyncio.to_thread(run, times)
        await asyncio.sleep(0.02)  # what is done behind the last answer
    finally:
        sys.setprofile(None)
    return counter


def this_python() -> str:
    """Whose counts these are: they differ from one minor version to the next."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def main() -> int:
    """Count, and tell as JSON; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.calls", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help=f"renew the entry of Python {this_python()} in {RESULTS.name}"
    )
    options = parser.parse_args()
    found = {name: uvloop.run(count(start)) for name, start in SYSTEMS.items()}
    if options.write:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**known, this_python(): found}, indent=2, sort_keys=True) + "\n")
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
