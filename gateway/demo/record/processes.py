"""The demos' processes: modules of this package that can be killed, each with its output in a file.

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
_ROOT = Path(__file__).parents[3]


class ProcessFailedError(Exception):
    """A process of the demo ended, or did not begin, by itself."""


class DemoProcess:
    """A running command."""

    def __init__(self, module: str, arguments: tuple[str, ...], said: Path) -> None:
        self._said = said
        with said.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - this program, with arguments of the demo's own
                [sys.executable, "-m", module, *arguments],
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
                    raise self._failed()
                await asyncio.sleep(_LOOK_S)
        return found

    @property
    def has_done_its_work(self) -> bool:
        """Tells whether it has ended well. Raises ProcessFailedError where it has not ended well."""
        status = self._process.poll()
        if status:
            raise self._failed()
        return status == 0

    def kill(self) -> None:
        """Ends it as `kill -9` does, and returns when it is gone."""
        self._process.kill()
        self._process.wait()

    def _failed(self) -> ProcessFailedError:
        return ProcessFailedError(f"a process of the demo ended by itself; it said: {self._last_words()}")

    def _behind(self, before: str) -> str:
        found = self._said.read_text(errors="replace").partition(before)[2]
        return found.partition(",")[0].strip() if "," in found else ""

    def _last_words(self) -> str:
        return self._said.read_text(errors="replace").strip()[-500:] or "nothing"


@asynccontextmanager
async def process(folder: Path, *arguments: str, module: str = "gateway") -> AsyncIterator[DemoProcess]:
    """Runs `gateway`, or another module, with these arguments in the folder, and kills it at the end."""
    name = arguments[0] if module == "gateway" else module.rpartition(".")[2]
    one = DemoProcess(module, arguments, folder / f"{name}-{time.monotonic_ns()}.log")
    try:
        yield one
    finally:
        one.kill()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a process: no settings of a gateway of the user's, and this package before all others."""
    kept = {name: value for name, value in environ.items() if not name.startswith("GATEWAY_")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH"))))}
