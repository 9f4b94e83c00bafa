"""An LLM provider for tests and demos, with real limits and faults on demand; it does not import the gateway.

Read `app` for the life of a call, `routes` for who answers what, `call` for how an answer is sent or broken. Here are the
emulators that run inside a gateway, as providers of its config. Invariants: the same seed and the same request give the same
answer text; what a provider would refuse is refused.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.emulator.app import EmulatorServer


class Emulators:
    """The emulators that run inside this process, by name; each starts with its first use."""

    def __init__(self) -> None:
        self._servers: dict[str, EmulatorServer] = {}
        self._starting = asyncio.Lock()

    async def start(self, name: str) -> str:
        """Returns the base URL of the emulator of this name."""
        async with self._starting:
            server = self._servers.get(name)
            if server is None:
                server = self._servers[name] = await _start_demo()
        return server.base_url

    async def stop(self) -> None:
        """Stops them all."""
        for server in self._servers.values():
            await server.stop()


async def _start_demo() -> EmulatorServer:
    """Starts an emulator with the pace of a hosted model.

    It is imported with its first use, because most configs name no emulator, and each start would take 2 MB more for it.
    """
    from gateway.emulator.app import EmulatorServer  # 2 MB that most configs do not need
    from gateway.emulator.config import EmulatorConfig  # most configs do not need it

    server = EmulatorServer(EmulatorConfig.demo())
    await server.start()
    return server
