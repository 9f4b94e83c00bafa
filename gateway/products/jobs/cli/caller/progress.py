"""One line that tells how far something is, on standard error."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

EVERY_S = 5.0
"""Where no terminal shows it, the line is written again after so long, if it has changed."""


class ProgressLine:
    """A line that takes the place of the one before on a terminal; elsewhere a line now and then."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._last = ""
        self._next_at = 0.0

    def tell(self, text: str) -> None:
        """Says how far it is; `text` is for a terminal's eyes."""
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r{text[:width]}\x1b[K")
            self._out.flush()
            self._last = text
        elif text != self._last and time.monotonic() >= self._next_at:
            print(text, file=self._out, flush=True)
            self._last, self._next_at = text, time.monotonic() + EVERY_S

    def clear(self) -> None:
        """Leaves the terminal's line to what comes next."""
        if self._is_terminal and self._last:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._last = ""
