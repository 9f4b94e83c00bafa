"""What one call runs through: the modules it enters, its changes from one module to another, and its bytecodes.

The gateway runs in this process with a clock that stands still (`tests.bench.still`), and one thread is both its client and
its provider. The thread of the event loop records with `sys.setprofile`, then again with `sys.settrace`. So the figures are the
same on each run, and on a busy machine.

    python -m tests.rails.walk              # prints them as JSON
    python -m tests.rails.walk products     # prints what products cost a call that asks nothing of them
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from types import FrameType
from typing import Any, Protocol

import uvloop

from tests.bench.both_ends import BothEnds
from tests.bench.still import Times, gateway, gateway_without_ticks
from tests.rails.trees import ROOT

SDK = {
    "accept": "application/json",
    "user-agent": "OpenAI/Python 3.51.0",
    "authorization": "Bearer sk-xxxxxxxxxxxxxxxxxxxx",
    "x-stainless-lang": "python",
    "x-stainless-package-version": "3.51.0",
    "x-stainless-os": "Linux",
    "x-stainless-arch": "x64",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.11.2",
    "x-stainless-async": "async:asyncio",
    "x-stainless-retry-count": "0",
    "x-stainless-read-timeout": "600",
}
"""What openai-python sends with every call."""
WARM = 60
"""Calls before the first that counts: connections are open by then, and routes and estimates are remembered."""
TIMES = 5
"""Calls of which the cheapest counts: once in 25 calls an answer teaches the limits, once in 32 the log is flushed."""
SETTLE_S = 0.02
"""How long work goes on behind the last byte of an answer."""
EVENTS = 3
KEY = "web-key-0123456789abcdef"
KEYED = f"keys:\n  - {{name: web, key: {KEY}}}\n"
ALL_OF_A_MODEL = """\
    degrade: {when: {first_byte_p95_above: 10s}, set: {max_completion_tokens: 512}}
    group_embeddings: {window: 5ms, most: 64}
"""
ALL_PRODUCTS = f"""\
jobs: {{store: "sqlite:///jobs.db"}}
webhooks:
  crm: {{url: "https://crm.internal/hooks", secrets: [whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw]}}
keys:
  - {{name: web, key: {KEY}, accepts_202: true, keeps_responses: true}}
"""
"""Products that are there for all calls, and of which a plain call asks nothing."""

Figures = dict[str, dict[str, int]]
"""By kind of call: `modules`, `changes`, and of whole answers `bytecodes`."""


class Recorder(Protocol):
    """What the event loop's thread calls while it records."""

    def start(self) -> None:
        """Begin; runs in that thread."""

    def stop(self) -> dict[str, int]:
        """End, and return the figures; runs in that thread."""


class ModuleRecorder:
    """Records which modules of the gateway run, in order."""

    def __init__(self) -> None:
        self._files: list[str] = []

    def start(self) -> None:
        sys.setprofile(self._event)

    def stop(self) -> dict[str, int]:
        sys.setprofile(None)
        changes = sum(before != after for before, after in zip(self._files, self._files[1:], strict=False))
        return {"modules": len(set(self._files)), "changes": changes}

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_GATEWAY):
            self._files.append(frame.f_code.co_filename)


class BytecodeRecorder:
    """Counts bytecodes, those of libraries included."""

    def __init__(self) -> None:
        self._count = 0

    def start(self) -> None:
        sys.settrace(self._enter)

    def stop(self) -> dict[str, int]:
        sys.settrace(None)
        return {"bytecodes": self._count}

    def _enter(self, frame: FrameType, _event: str, _: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, _frame: FrameType, event: str, _: object) -> Any:
        self._count += event == "opcode"
        return self._step


_GATEWAY = str(ROOT / "gateway") + "/"


async def measure() -> Figures:
    """Return the figures of a plain call, one of an SDK, a streamed one of an SDK, and one that a 429 makes wait."""
    with closing(BothEnds()) as ends:
        async with gateway_without_ticks(ends.provider_port) as port:
            ends.connect(port)
            figures = await asyncio.to_thread(_measure_wait, asyncio.get_running_loop(), ends)
    with closing(BothEnds()) as ends:
        async with gateway(ends.provider_port) as system:
            ends.connect(system.port)
            figures |= await asyncio.to_thread(_measure_usual, asyncio.get_running_loop(), ends, system.times)
    return figures


async def measure_products() -> dict[str, int]:
    """Return the bytecodes of a plain call with a key: `bare`, and `all` where all products are configured."""
    found = {}
    for name, more, of_model in (("bare", KEYED, ""), ("all", ALL_PRODUCTS, ALL_OF_A_MODEL)):
        with closing(BothEnds()) as ends:
            async with gateway(ends.provider_port, more, of_model) as system:
                ends.connect(system.port)
                ends.headers = {"authorization": f"Bearer {KEY}"}
                found[name] = await asyncio.to_thread(_measure_plain, asyncio.get_running_loop(), ends, system.times)
    return found


def _measure_plain(loop: asyncio.AbstractEventLoop, ends: BothEnds, times: Times) -> int:
    ends.plain(WARM)
    times.minute_later()
    ends.plain(WARM)
    return _least(loop, lambda: ends.plain(1), BytecodeRecorder)["bytecodes"]


def _measure_wait(loop: asyncio.AbstractEventLoop, ends: BothEnds) -> Figures:
    ends.plain(WARM)
    ends.headers = SDK
    return {"429": _least(loop, ends.refused_once, ModuleRecorder)}


def _measure_usual(loop: asyncio.AbstractEventLoop, ends: BothEnds, times: Times) -> Figures:
    ends.plain(WARM)
    times.minute_later()  # what the gateway does once after its start is done by then
    ends.plain(WARM)
    figures = {}
    for kind, headers in (("plain", {}), ("sdk", SDK)):
        ends.headers = headers
        figures[kind] = _least(loop, lambda: ends.plain(1), ModuleRecorder, BytecodeRecorder)
    figures["stream"] = _least(loop, lambda: ends.stream(EVENTS), ModuleRecorder)
    return figures


def _least(
    loop: asyncio.AbstractEventLoop, call: Callable[[], None], *recorders: Callable[[], Recorder]
) -> dict[str, int]:
    """Return the figures of the cheapest of some calls."""
    call()
    least: dict[str, int] = {}
    for recorder in recorders:
        found = [_record(loop, recorder(), call) for _ in range(TIMES)]
        least |= {name: min(one[name] for one in found) for name in found[0]}
    return least


def _record(loop: asyncio.AbstractEventLoop, recorder: Recorder, call: Callable[[], None]) -> dict[str, int]:
    """Record one call from outside of the loop's thread."""
    found: dict[str, int] = {}
    _in_loop(loop, recorder.start)
    call()
    time.sleep(SETTLE_S)
    _in_loop(loop, lambda: found.update(recorder.stop()))
    return found


def _in_loop(loop: asyncio.AbstractEventLoop, do: Callable[[], None]) -> None:
    done = threading.Event()

    def run() -> None:
        do()
        done.set()

    loop.call_soon_threadsafe(run)
    assert done.wait(60.0), "the event loop does not answer"


if __name__ == "__main__":
    figures: Any = uvloop.run(measure_products() if sys.argv[1:] == ["products"] else measure())
    sys.stdout.write(json.dumps(figures) + "\n")
