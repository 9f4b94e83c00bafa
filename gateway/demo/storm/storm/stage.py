"""The demos' servers: emulated providers, and a gateway before them, all in this process.

It must not know the measurements. Invariant: no server is left when its context ends, however it ends.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.app import Gateway
from gateway.demo.storm.clients.clients import API_KEY, MODEL
from gateway.emulator.config.config.config import EmulatorConfig
from gateway.emulator.server.server import EmulatorServer
from gateway.settings import Settings


class _Nowhere(StringIO):
    """A stream that discards its text."""

    def write(self, text: str, /) -> int:
        return len(text)


@asynccontextmanager
async def provider(config: EmulatorConfig) -> AsyncIterator[EmulatorServer]:
    """Yields a started emulator with full limits."""
    server = EmulatorServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def gateway_before(base_url: str, *, rpm: int, burst: int) -> AsyncIterator[str]:
    """Yields the base URL of a gateway whose config names the provider's limit."""
    config = {
        "providers": {"provider": _entry(base_url)},
        "models": {MODEL: {"targets": [{"provider": "provider", "model": MODEL, "rpm": rpm, "burst": burst}]}},
    }
    async with gateway_of(config) as url:
        yield url


@asynccontextmanager
async def gateway_between(primary: str, fallback: str) -> AsyncIterator[str]:
    """Yields the base URL of a gateway that calls the provider at `primary` and, where that fails, the other one."""
    config = {
        "policies": "policies",
        "providers": {"primary": _entry(primary), "fallback": _entry(fallback)},
        "models": {
            MODEL: {"targets": [f"primary/{MODEL}"], "fallbacks": ["spare"]},
            "spare": {"targets": [f"fallback/{MODEL}"]},
        },
    }
    timeouts = {"connect": "1s", "first_byte": "5s", "idle": "5s", "total": "30s"}
    async with gateway_of(config, {"timeouts.yaml": {"default": timeouts}}) as url:
        yield url


@asynccontextmanager
async def gateway_of(config: Mapping[str, Any], policies: Mapping[str, Any] | None = None) -> AsyncIterator[str]:
    """Yields the base URL of a gateway with this config and these policy files; its logs are discarded."""
    with TemporaryDirectory(prefix="gateway-demo-") as name, _unheard(logging.getLogger("gateway")):
        folder = Path(name)
        (folder / "policies").mkdir()
        (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        for file, content in (policies or {}).items():
            (folder / "policies" / file).write_text(json.dumps(content))
        settings = Settings(config=folder / "config.yaml", host="127.0.0.1", port=0)
        gateway = Gateway(settings, {}, log_stream=_Nowhere())
        await gateway.start()
        try:
            yield f"{gateway.url}/v1"
        finally:
            await gateway.stop()


@contextmanager
def _unheard(logger: logging.Logger) -> Iterator[None]:
    """Silences a logger, whose lines would break the line of progress."""
    handler = logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _entry(base_url: str) -> dict[str, str]:
    return {"dialect": "openai", "kind": "openai", "base_url": base_url, "api_key": API_KEY}
