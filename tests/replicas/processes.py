"""Processes of a run: children of one that has everything imported, so that they are there at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from typing import Any


@asynccontextmanager
async def child(target: Callable[..., None], *arguments: Any) -> AsyncIterator[BaseProcess]:
    """Runs `target` until the end of the block."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gateway.app", "gateway.cli.main", "tests.e2e.lives", "tests.replicas.fleet"])
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
