"""A gateway beside a command, on a loop in a thread of its own: for commands that block, and want one for a while."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import uvloop

from gateway.app import Gateway
from gateway.settings import Settings


@contextmanager
def running(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Runs a gateway on a free port of loopback until the end of the block; yields its URL. Its calls are not logged.

    Raises ConfigError, StoreUnusable or OSError when it cannot start.
    """
    own = settings.model_copy(update={"host": "127.0.0.1", "port": 0, "workers": 1})
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway", daemon=True)
    thread.start()
    try:
        with Path(os.devnull).open("w") as nowhere:
            gateway = asyncio.run_coroutine_threadsafe(_start(own, environ, nowhere), loop).result()
            try:
                yield gateway.url
            finally:
                asyncio.run_coroutine_threadsafe(gateway.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(settings: Settings, environ: Mapping[str, str], call_log: TextIO) -> Gateway:
    gateway = Gateway(settings, environ, log_stream=call_log)
    await gateway.start()
    return gateway
