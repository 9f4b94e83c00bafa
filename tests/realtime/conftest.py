"""Gateways for sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import _no_traceback, _shared_process, pytest_asyncio_loop_factories
from tests.e2e.harness import KEYS, PROVIDER_KEY, Running, start_gateway

__all__ = ["_no_traceback", "_shared_process", "pytest_asyncio_loop_factories", "start"]
PRICE = {"input_usd_per_million": 4.0, "output_usd_per_million": 16.0}
StartRealtime = Callable[..., Awaitable[Running]]


def config_at(*urls: str, **sections: Any) -> dict[str, Any]:
    """A config whose model `gpt-realtime` has a target at each of these providers, in this order."""
    names = [f"p{at}" for at in range(len(urls))]
    return {
        "providers": {
            name: {"dialect": "openai", "base_url": url, "api_key": PROVIDER_KEY}
            for name, url in zip(names, urls, strict=True)
        },
        "models": {
            "gpt-realtime": {
                "targets": [
                    {"provider": name, "model": "gpt-realtime-2", "price": PRICE, "order": at}
                    for at, name in enumerate(names, 1)
                ]
            }
        },
        "keys": KEYS,
        **sections,
    }


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartRealtime]:
    """Starts gateways, and stops them."""
    running: list[Running] = []

    async def begin(*urls: str, **sections: Any) -> Running:
        folder = tmp_path / str(len(running))
        folder.mkdir()
        gateway = await start_gateway(folder, lambda _: config_at(*urls, **sections))
        running.append(gateway)
        return gateway

    yield begin
    for one in running:
        await one.stop()
