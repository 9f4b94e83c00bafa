"""What soaks share: a provider that outlives gateways and remembers every request, and where their jobs are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig


@asynccontextmanager
async def provided(config: EmulatorConfig) -> AsyncIterator[EmulatorServer]:
    """A started provider."""
    provider = EmulatorServer(config)
    await provider.start()
    try:
        yield provider
    finally:
        await provider.stop()


def remembering(**said: Any) -> EmulatorConfig:
    """A provider that remembers every request."""
    return EmulatorConfig(recorded_requests=1_000_000, recorded_bytes=1 << 28, **said)


def prompts_of(provider: EmulatorServer, whose: str) -> list[str]:
    """What was asked for one run, whose name comes first in its prompts."""
    prompts = [
        orjson.loads(one["body"])["messages"][0]["content"].partition(" ")
        for one in provider.emulator.recorder.last(1_000_000)
    ]
    return [rest for name, _, rest in prompts if name == whose]


def jobs_in(folder: Path, redis: str) -> dict[str, Any]:
    """The sections of a config with its jobs in a file, or in the Redis that it has as its state."""
    jobs = {"files": f"{folder}/blobs", "min_free": "1MiB"}
    if redis:
        return {"jobs": jobs, "state": {"redis": redis, "timeout": "1s"}}
    return {"jobs": {**jobs, "store": f"sqlite:///{folder}/jobs.db"}}
