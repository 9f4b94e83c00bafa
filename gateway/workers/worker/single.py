"""Serves one gateway in this process until a signal ends it, and says so in the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Mapping

from gateway import __version__, process
from gateway.app import Gateway
from gateway.core.snapshot.snapshot import PolicySnapshot
from gateway.core.types import Server
from gateway.settings import Settings

log = logging.getLogger("gateway")


async def serve(settings: Settings, environ: Mapping[str, str], *, only_works: bool = False) -> int:
    """Runs a gateway until SIGTERM or SIGINT; returns the exit code. A second signal skips the waiting.

    `only_works`: it runs jobs, and takes no calls. Raises ConfigError or OSError when it cannot start.
    """
    gateway = Gateway(settings, environ, only_works=only_works)
    stopping, hurry = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (hurry if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, gateway.reload)
    await gateway.start()
    greet(gateway.policy, gateway.url, does="runs jobs, takes no calls, and listens on" if only_works else "listens on")
    await stopping.wait()
    announce_stop(gateway.policy.server)
    with contextlib.suppress(asyncio.CancelledError):
        await gateway.drain(hurry)
    await gateway.stop()
    return 1 if hurry.is_set() else 0


def greet(policy: PolicySnapshot, url: str, crew: str = "", does: str = "listens on") -> None:
    """Says where the gateway listens, with how many workers (`crew`), and every notice of the policy and the interpreter."""
    models = ", ".join([*policy.models, *(model.name for _, model in policy.patterns)])
    log.info("gateway %s %s %s%s, models: %s", __version__, does, url, crew, models)
    for notice in policy.notices:
        log.warning("%s", notice)
    slow = process.doubt()
    if slow is not None:
        log.warning("%s", slow)


def announce_stop(server: Server) -> None:
    """Says that the gateway stops, and how to make it faster."""
    notice = f" in {server.notice_s:g} s" if server.notice_s else ""
    log.info("stopping: no new calls%s; running ones have %g s (signal again to exit now)", notice, server.grace_s)
