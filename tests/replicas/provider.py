"""An emulated provider in a process of its own, which writes down each call that came and what became of it.

What is written is the truth that gateways are measured by: times are of the machine's one monotonic clock, so they compare
with those of any other process. It must not know who calls. Invariant: what happened before a process died is on the file.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from gateway.emulator.app import EmulatorServer
from gateway.emulator.call import Stats
from gateway.emulator.config import EmulatorConfig
from tests.replicas.processes import child
from tests.soak.support import wait_for

_TOO_MANY = 429
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Book:
    """What a provider has seen, in monotonic seconds: valid calls, refused ones among them, and the ends of calls."""

    came: list[float]
    refused: list[float]
    ended: list[float]

    @property
    def admitted(self) -> list[float]:
        """When those came that were not refused; a refusal is written a moment after the call, before the next one's."""
        left = sorted([(at, 1) for at in self.came] + [(at, -1) for at in self.refused])
        found: list[float] = []
        for at, step in left:
            if step > 0:
                found.append(at)
            elif found:
                found.pop()
        return found

    def in_flight(self) -> list[tuple[float, int]]:
        """How many calls were there from each moment on."""
        changes = sorted([(at, 1) for at in self.came] + [(at, -1) for at in self.ended], key=lambda one: one[0])
        count, found = 0, list[tuple[float, int]]()
        for at, step in changes:
            count += step
            found.append((at, count))
        return found


@dataclass(frozen=True, slots=True)
class Provider:
    """A running one."""

    base_url: str
    _file: Path

    def book(self) -> Book:
        """All that it has seen so far."""
        lines = [line.split() for line in self._file.read_text().splitlines()]
        times = {kind: [float(at) for what, at in lines if what == kind] for kind in ("came", "refused", "ended")}
        return Book(times["came"], times["refused"], times["ended"])


@asynccontextmanager
async def provider(folder: Path, config: EmulatorConfig, name: str = "provider") -> AsyncIterator[Provider]:
    """On a free port of loopback, until the end; in a folder each has a name of its own."""
    said, seen = folder / f"{name}.url", folder / f"{name}.seen"
    seen.touch()
    async with child(_run, config.to_mapping(), said, seen):
        await wait_for(said.exists, lambda: "the provider does not start")
        yield Provider(said.read_text(), seen)


class _Written(Stats):
    """Counters that are written down as they change."""

    def __init__(self, note: Note) -> None:
        self._note = note
        super().__init__(time.time)

    def clear(self) -> None:
        super().clear()
        self.statuses = _Statuses(self._note)

    def count_call(self, model: str) -> None:
        super().count_call(model)
        self._note("came")

    def leave(self, endpoint: str) -> None:
        super().leave(endpoint)
        self._note("ended")


class _Statuses(Counter[int]):
    def __init__(self, note: Note) -> None:
        super().__init__()
        self._note = note

    def __setitem__(self, status: int, count: int) -> None:
        super().__setitem__(status, count)
        if status == _TOO_MANY:
            self._note("refused")


def _run(config: dict[str, object], said: Path, seen: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(EmulatorConfig.from_mapping(config), said, seen))


async def _serve(config: EmulatorConfig, said: Path, seen: Path) -> None:
    server = EmulatorServer(config)
    file = os.open(seen, os.O_WRONLY | os.O_APPEND)
    server.emulator.stats = _Written(partial(_note, file))
    base_url = await server.start()
    unfinished = said.with_suffix(".part")
    unfinished.write_text(base_url)
    unfinished.rename(said)
    await asyncio.Event().wait()


def _note(file: int, what: str) -> None:
    os.write(file, f"{what} {time.monotonic():.6f}\n".encode())
