"""The demos' processes: commands of this program that can be killed, each with its output in a file.

They have sessions of their own, so that Ctrl-C at the terminal is for the demo, which ends them. Invariant: no process is
left when its context ends, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

_LOOK_S = 0.01
_PATIENCE_S = 60.0
_ROOT = Path(__file__).parents[2]


class ProcessFailedError(Exception):
    """A process of the demo ended, or did not begin, by itself."""


class DemoProcess:
    """A running command."""

    def __init__(self, arguments: tuple[str, ...], said: Path) -> None:
        self._said = said
        with said.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - this program, with arguments of the demo's own
                [sys.executable, "-m", "gateway", *arguments],
                cwd=said.parent,
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def address(self, before: str) -> str:
        """Waits until it says where it listens, which stands behind the words `before`. Raises ProcessFailedError."""
        async with asyncio.timeout(_PATIENCE_S):
            while not (found := self._behind(before)):
                if self._process.poll() is not None:
                    raise ProcessFailedError(f"a process of the demo ended by itself; it said: {self._last_words()}")
                await asyncio.sleep(_LOOK_S)
        return found

    def kill(self) -> None:
        """Ends it as `kill -9` does, and returns when it is gone."""
        self._process.kill()
        self._process.wait()

    def _behind(self, before: str) -> str:
        found = self._said.read_text(errors="replace").partition(before)[2]
        return found.partition(",")[0].strip() if "," in found else ""

    def _last_words(self) -> str:
        return self._said.read_text(errors="replace").strip()[-500:] or "nothing"


@asynccontextmanager
async def process(folder: Path, *arguments: str) -> AsyncIterator[DemoProcess]:
    """Runs `gateway` with these arguments in the folder, and kills it at the end."""
    one = DemoProcess(arguments, folder / f"{arguments[0]}-{time.monotonic_ns()}.log")
    try:
        yield one
    finally:
        one.kill()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a process: no settings of a gateway of the user's, and this package before all others."""
    kept = {name: value for name, value in environ.items() if not name.startswith("GATEWAY_")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH"))))}
