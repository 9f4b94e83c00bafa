"""Replicas: gateways as processes of their own on one config, one Redis, and each with its own idea of the time of day.

It must not know what is measured. Invariants: no process outlasts its block; a fleet is handed out once every replica has
reached Redis, for what they do before is another question.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import orjson
import yaml

from gateway.core.clock import SystemClock
from tests.e2e.harness import connect, get
from tests.e2e.lives import Life, life
from tests.replicas.processes import child
from tests.support.redis_servers import Proxy

PATIENCE_S = 20.0


def config_of(base_url: str, redis_url: str, target: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """The model `m` at one target with these limits; `sections` are added at the top."""
    return {
        "state": redis_url,
        "providers": {
            "main": {"dialect": "openai", "kind": "openai", "base_url": base_url, "api_key": "sk-of-the-fleet"}
        },
        "models": {"m": {"targets": [{"provider": "main", "model": "m", **target}]}},
        **sections,
    }


def write(folder: Path, config: dict[str, Any]) -> Path:
    """The file of a replica."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


def skew_clock(by_s: float) -> None:
    """From now on this process is wrong about the time of day."""
    true_wall = time.time
    setattr(SystemClock, "wall", staticmethod(lambda: true_wall() + by_s))  # noqa: B010 - nobody else's to set


@asynccontextmanager
async def fleet(
    folder: Path, config: dict[str, Any], count: int, skews_s: Sequence[float] = (0.0,)
) -> AsyncIterator[list[Life]]:
    """So many replicas that know of each other; the skews of their clocks are dealt out in turn."""
    async with AsyncExitStack() as stack:
        starting = [
            stack.enter_async_context(
                life(
                    write(folder / f"replica-{number}", config),
                    before=partial(skew_clock, skews_s[number % len(skews_s)]),
                )
            )
            for number in range(count)
        ]
        lives = list(await asyncio.gather(*starting))
        await asyncio.gather(*(shares(one.url) for one in lives))
        yield lives


async def shares(url: str) -> None:
    """Wait until this replica shares its limits."""
    await until_state(url, lambda state: bool(state["limits"] == "shared"))


async def until_state(url: str, fact: Callable[[dict[str, Any]], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait until what `/readyz` says of the store is so."""
    state: dict[str, Any] = {}
    async with asyncio.timeout(patience_s), connect(url) as peer:
        while not (state and fact(state)):
            state = orjson.loads((await peer.exchange(get("/readyz"))).body)["state"]
            await asyncio.sleep(0.02)


class Way:
    """A way to Redis that can be cut, in a process of its own: a busy test must not make Redis look slow."""

    def __init__(self, process: BaseProcess, port: int) -> None:
        self._process = process
        self.url = f"redis://127.0.0.1:{port}/0"

    def cut(self) -> None:
        """What is sent goes nowhere; connections are taken, and nobody answers."""
        self._tell(signal.SIGUSR1)

    def mend(self) -> None:
        """What was held back comes through."""
        self._tell(signal.SIGUSR2)

    def _tell(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


@asynccontextmanager
async def way_to(port: int) -> AsyncIterator[Way]:
    """To the server at this port of loopback."""
    here, there = Pipe()
    with here, there:
        async with child(_pass, port, there) as process:
            yield Way(process, await asyncio.to_thread(here.recv))


def _pass(port: int, told: Connection) -> None:
    asyncio.run(_pass_on(port, told))


async def _pass_on(port: int, told: Connection) -> None:
    proxy = await Proxy(port).start()
    mending: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, proxy.blackhole)
    loop.add_signal_handler(signal.SIGUSR2, lambda: mending.add(loop.create_task(proxy.recover())))
    told.send(proxy.port)
    await asyncio.Event().wait()
