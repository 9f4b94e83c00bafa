"""Progress while a run goes on: one line that renews itself on a terminal, plain lines everywhere else.

It must not know the scenario. Invariant: whenever `close` returns, the terminal is as it was and the cursor on a new line.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TextIO

from gateway.demo.run import Run

_RENEW_S, _REPEAT_S = 0.1, 5.0
_NAME, _BAR = 24, 30
RED, GREEN, DIM, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"
_CLEAR_LINE = "\r\x1b[2K"

Line = Callable[[float, int, str, bool], str]
"""Shows something at a moment in fewer than so many columns, with these marks, and in colours or without."""


class Display:
    """Draws to `stream`; colours only on a terminal and without NO_COLOR."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str], now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._is_live = stream.isatty() and environ.get("TERM") != "dumb"
        self._has_colour = self._is_live and not environ.get("NO_COLOR")
        self._marks = "█▓░" if "utf" in (stream.encoding or "").lower() else "#x."
        self._line: Line | None = None

    def say(self, text: str) -> None:
        """Print whole lines."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def watch(self, run: Run) -> None:
        """Show this run from now on; the one before is finished."""
        self.follow(partial(line_of, run))

    def follow(self, line: Line) -> None:
        """Show this line from now on; the one before is finished."""
        self.close()
        self._line = line
        self.draw()

    async def keep_drawing(self) -> None:
        """Renew the line until cancelled."""
        with suppress(OSError):  # the reader has gone: whoever writes next is told
            while True:
                await asyncio.sleep(_RENEW_S if self._is_live else _REPEAT_S)
                self.draw()

    def draw(self) -> None:
        """Show the line as it stands."""
        if self._line is None:
            return
        columns = shutil.get_terminal_size().columns if self._is_live else 120
        line = self._line(self._now(), columns, self._marks, self._has_colour)
        self._stream.write(_CLEAR_LINE + line if self._is_live else line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Draw the last state and leave the line."""
        if self._line is None:
            return
        self.draw()
        self._line = None
        if self._is_live:
            self.say("")


def line_of(run: Run, now: float, columns: int, marks: str, has_colour: bool) -> str:
    """A run in one line shorter than `columns`; `marks` stand for an answered, a failed and an open call in the bar."""
    name = run.name.ljust(_NAME)
    if run.began_at is None:
        return f"{name} getting ready ..."[: columns - 1]
    time_s = run.duration_s if run.answered + run.failed == run.calls else run.time_s(now)
    text = f" {run.answered:>5,} answered {run.failed:>5,} failed {run.seen_429s:>5,} 429s {time_s:>6.1f} s"
    room = min(_BAR, columns - 2 - len(name) - len(text))
    if room < 1:
        return f"{name}{text}"[: columns - 1]
    return f"{name} {_bar(run, room, marks, has_colour)}{text}"


def _bar(run: Run, room: int, marks: str, has_colour: bool) -> str:
    whole = (run.answered + run.failed) * room // run.calls
    lost = min(whole, -(-run.failed * room // run.calls))  # rounded up: one failed call is to be seen
    parts = zip(marks, (whole - lost, lost, room - whole), (GREEN, RED, DIM), strict=True)
    return "".join(f"{colour}{mark * width}{PLAIN}" if has_colour else mark * width for mark, width, colour in parts)
