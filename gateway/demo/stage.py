"""What the storm meets: an emulated provider with a tight limit, and a gateway before it. Both run in this process.

It must not know what is measured. Invariant: nothing is left when the context ends, however it ends.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.app import Gateway
from gateway.demo.clients import API_KEY, MODEL
from gateway.emulator.config import EmulatorConfig
from gateway.emulator.server import EmulatorServer
from gateway.settings import Settings


class _Nowhere(StringIO):
    """Forgets what is written to it."""

    def write(self, text: str, /) -> int:
        return len(text)


@asynccontextmanager
async def provider(config: EmulatorConfig) -> AsyncIterator[EmulatorServer]:
    """A started emulator, its limits full."""
    server = EmulatorServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def gateway_before(base_url: str, *, rpm: int, burst: int) -> AsyncIterator[str]:
    """The base URL of a gateway whose config names the provider's limit; its call log goes nowhere."""
    config = {
        "providers": {"provider": {"dialect": "openai", "kind": "openai", "base_url": base_url, "api_key": API_KEY}},
        "models": {MODEL: {"targets": [{"provider": "provider", "model": MODEL, "rpm": rpm, "burst": burst}]}},
    }
    with TemporaryDirectory(prefix="gateway-demo-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        gateway = Gateway(Settings(config=path, host="127.0.0.1", port=0), {}, log_stream=_Nowhere())
        await gateway.start()
        try:
            yield f"{gateway.url}/v1"
        finally:
            await gateway.stop()
