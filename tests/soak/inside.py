"""`gateway serve` in a process that says what its memory is made of, and how long the turns of its loop are.

    python -m tests.soak.inside serve --config …

Each line of standard input is a command and a file, to which one line of JSON is added: `look FILE` says what is there;
`rest FILE` collects garbage, then looks; `trim FILE` also gives back to the system what is free; `turns FILE` says what the
turns of the loop took since it was last asked, in CPU time, which a busy machine does not stretch as it does the clock's.

What the program holds is told apart from what the two allocators below it hold: Python's own keeps arenas of 1 MiB as long as
one small object lives in them, glibc's what was freed and may be used again.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import uvloop

from gateway.cli.main import main
from gateway.process import find_trim
from tests.soak.support import rss_kib

_SUMMARY = re.compile(r"# bytes in allocated blocks += +([\d,]+)")
_ARENAS = re.compile(r"# arenas allocated current += +([\d,]+)")


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process has, in KiB."""

    rss: int
    """Resident, as the system counts it."""
    objects: float
    """Small objects of Python, in its own arenas."""
    arenas: float
    """These arenas."""
    malloc_used: float
    """What is in use of glibc's: larger objects, the extensions'."""
    malloc_free: float
    """What glibc keeps of what was freed."""
    blocks: int
    """The number of small objects."""
    tasks: int = 0
    """Of event loops, counted only without garbage: to find them all objects are looked at."""

    @property
    def held(self) -> float:
        """What the program itself holds on to, whatever its allocators keep beside it."""
        return self.objects + self.malloc_used

    @property
    def kept_free(self) -> float:
        """What the allocators keep of what was freed, where all of it is resident."""
        return self.arenas - self.objects + self.malloc_free


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    ]


def look() -> Memory:
    """What there is now."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo
    of_glibc = mallinfo2()
    of_python = _python_statistics()
    return Memory(
        rss=rss_kib(),
        objects=_number(_SUMMARY, of_python) / 1024,
        arenas=_number(_ARENAS, of_python) * 1024,
        malloc_used=(of_glibc.uordblks + of_glibc.hblkhd) / 1024,
        malloc_free=of_glibc.fordblks / 1024,
        blocks=sys.getallocatedblocks(),
    )


def rest() -> Memory:
    """What there is without garbage."""
    gc.collect()
    return replace(look(), tasks=sum(isinstance(one, asyncio.Task) for one in gc.get_objects()))


def trim() -> Memory:
    """What there is without garbage, and when what is free is the system's again."""
    gc.collect()
    give_back = find_trim()
    if give_back is not None:
        give_back()
    return look()


def _python_statistics() -> str:
    """What Python prints of its small-object allocator; it knows no other way to tell than to standard error."""
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        return file.read().decode()


def _number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    assert found is not None, text
    return int(found[1].replace(",", ""))


BEAT_S = 0.002
"""A turn that takes longer is seen by itself; shorter ones are added up to this."""


@dataclass(slots=True)
class Turns:
    """What the loop's turns took, in seconds of CPU time."""

    longest: float = 0.0
    over_10_ms: int = 0
    over_50_ms: int = 0
    count: int = 0
    all: float = 0.0


class Beats:
    """Looks at the CPU clock of the loop's thread once in each of its turns."""

    def __init__(self) -> None:
        self.turns = Turns()
        self._loop: Any = None
        self._at = 0.0

    def new_loop(self) -> Any:
        """An event loop that is looked at."""
        self._loop = uvloop.Loop()
        self._loop.call_soon(self._beat)
        return self._loop

    def take(self) -> Turns:
        """Those since the last time."""
        turns, self.turns = self.turns, Turns()
        return turns

    def _beat(self) -> None:
        at, turns = time.thread_time(), self.turns
        took, self._at = at - self._at if self._at else 0.0, at
        turns.longest = max(turns.longest, took)
        turns.over_10_ms += took > 0.010
        turns.over_50_ms += took > 0.050
        turns.count += 1
        turns.all += took
        self._loop.call_later(BEAT_S, self._beat)


def _answer(beats: Beats) -> None:
    commands: dict[str, Callable[[], Memory | Turns]] = {"look": look, "rest": rest, "trim": trim, "turns": beats.take}
    for line in sys.stdin:
        name, _, file = line.strip().partition(" ")
        with Path(file).open("a") as answers:
            answers.write(f"{json.dumps(asdict(commands[name]()))}\n")


if __name__ == "__main__":
    seen = Beats()
    uvloop.new_event_loop = seen.new_loop
    threading.Thread(target=_answer, args=(seen,), daemon=True).start()
    sys.exit(main())
