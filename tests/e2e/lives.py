"""Gateways in processes of their own, forked from one that has everything imported: many lives in little time.

What a life says goes to a file, so that nothing is lost when it is killed. Invariant: no life outlasts its test.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

from gateway.cli.main import main
from gateway.core.http.connection import GatewayProtocol
from gateway.core.waiting import LoopLag
from gateway.workers import channel, supervisor
from tests.e2e.harness import connect, get, until
from tests.soak.support import wait_for


class Life:
    """One run of `gateway serve`."""

    def __init__(self, process: BaseProcess, said: Path) -> None:
        self._process = process
        self._said = said

    @property
    def pid(self) -> int:
        """Of a process that runs, or has run."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def said(self) -> str:
        """All of its output."""
        return self._said.read_text() if self._said.exists() else ""

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.said.partition("listens on ")[2].partition(",")[0]

    async def says(self, words: str) -> None:
        """Wait for these words."""
        await wait_for(lambda: words in self.said, lambda: self.said)

    def tell(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """As the kernel does."""
        self.tell(signal.SIGKILL)

    async def ends(self) -> int:
        """Its exit code, once it has one; minus the signal that killed it."""
        await until(lambda: self._process.exitcode is not None)
        code = self._process.exitcode
        assert code is not None
        return code

    async def serves(self, calls: int) -> None:
        """Wait until so many calls are in flight."""
        async with connect(self.url) as peer:
            while f"gateway_calls_in_flight {calls}.0".encode() not in (await peer.exchange(get("/metrics"))).body:
                pass


@asynccontextmanager
async def life(
    config: Path,
    *arguments: str,
    words: str = "listens on",
    before: Callable[[], None] | None = None,
    command: str = "serve",
    output: Path | None = None,
) -> AsyncIterator[Life]:
    """A gateway on a free port, once it has said these words; `before` is done in its process first.

    Its standard output goes to `output` if that is given, else to where its standard error goes.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gateway.app", "gateway.cli.main", "tests.e2e.lives"])
    said = config.with_name(f"life-{len(list(config.parent.glob('life-*')))}.log")
    process = context.Process(target=_serve, args=(command, config, said, output, arguments, before), daemon=True)
    process.start()
    one = Life(process, said)
    try:
        await one.says(words)
        yield one
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)  # its workers, too
        if process.exitcode is None:
            process.kill()
        process.join()


def work(config: Path, *, words: str = "listens on") -> AbstractAsyncContextManager[Life]:
    """A worker that takes no calls, once it has said these words."""
    return life(config, words=words, command="work")


def share_nothing() -> None:
    """Let several workers be, whatever their state: what a supervisor does is the same."""
    setattr(supervisor, "require_shared", lambda *_: None)  # noqa: B010 - it is no attribute for anybody else to set


def share_a_listener() -> None:
    """As where the kernel does not deal connections out."""
    share_nothing()
    setattr(channel, "deals_out", lambda: False)  # noqa: B010 - as above


HANG = b"GET /hang HTTP/1.1\r\n\r\n"
"""To a gateway that has lost patience: let your loop turn no more."""


def lose_patience() -> None:
    """Notice a worker that hangs within a moment; those that are asked to do so, hang."""
    share_nothing()
    data_received = GatewayProtocol.data_received

    def hang_if_asked(connection: GatewayProtocol, data: bytes) -> None:
        while data == HANG:
            pass
        data_received(connection, data)

    setattr(GatewayProtocol, "data_received", hang_if_asked)  # noqa: B010 - as above
    for name in ("ASK_S", "SILENT_S"):
        setattr(supervisor, name, getattr(supervisor, name) / 20)


def close_quickly() -> None:
    """Have a stop wait for nobody who is silent when the grace is over, and only a moment for its stacks."""
    share_nothing()
    for name in ("LAST_SILENT_S", "STACKS_S"):
        setattr(supervisor, name, getattr(supervisor, name) / 20)


def _serve(
    command: str,
    config: Path,
    said: Path,
    output: Path | None,
    arguments: tuple[str, ...],
    before: Callable[[], None] | None,
) -> None:
    os.setsid()
    for path, descriptor in ((output or said, 1), (said, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    patch.object(LoopLag, "take", lambda _: (0.0, 0.0)).start()  # a busy machine is not the load of a test
    if before is not None:
        before()
    sys.exit(main([command, "--config", str(config), "--port", "0", *arguments]))
