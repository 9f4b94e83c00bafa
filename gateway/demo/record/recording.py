"""The provider of demos in which others are killed: an emulator in a process of its own, whose ledger is what counts.

It outlives them all. Invariant: no process is left when its context ends, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.core.http.client.transport import Http1Transport
from gateway.demo.record.processes import process
from gateway.demo.storm.clients.wire import Caller

_LOOK_S = 0.01
_LEDGER = {"recorded_requests": 1_000_000, "recorded_bytes": 256 * 1024 * 1024}


@dataclass(frozen=True, slots=True)
class RecordingProvider:
    """The started emulator. Its methods raise AskFailedError."""

    url: str
    """Where its API is."""
    controls: Caller

    async def answers(self) -> int:
        """Returns how many calls it has answered with 200."""
        return int((await self.controls.get("/__emulator/stats"))["statuses"].get("200", 0))

    async def calls(self) -> list[dict[str, Any]]:
        """Returns the calls that it recorded, in their order."""
        recorded: list[dict[str, Any]] = (await self.controls.get("/__emulator/requests"))["requests"]
        return recorded

    async def until_left(self) -> None:
        """Waits until it has noticed that nobody is there any more."""
        while (await self.controls.get("/__emulator/stats"))["concurrency"]["now"]:  # noqa: ASYNC110 - a poll
            await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def recording_provider(
    folder: Path, sender: Http1Transport, seed: int, faults: Sequence[str], settings: Mapping[str, Any]
) -> AsyncIterator[RecordingProvider]:
    """Yields the started emulator, with these faults and other settings of its own."""
    async with process(folder, "emulate", "--port", "0", "--seed", str(seed)) as one:
        url = await one.address("base_url ")
        controls = Caller(sender, url.removesuffix("/v1"))
        await controls.post("/__emulator/config", {**settings, **_LEDGER, "fault": list(faults)})
        yield RecordingProvider(url, controls)
