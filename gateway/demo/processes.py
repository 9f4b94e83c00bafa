"""The processes of demos in which some are killed, and the provider among them whose ledger is what counts.

A process is a module of this package with its output in a file. It has a session of its own, so that Ctrl-C at the terminal is
for the demo, which ends it. The provider is an emulator that outlives all others; `Caller` asks it, and gateways, in plain JSON
over the gateway's own transport. Invariant: no process is left when its context ends, however it ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.core.http.client.transport import Http1Transport

_LOOK_S = 0.01


_PATIENCE_S = 60.0


_ROOT = Path(__file__).parents[2]


class ProcessFailedError(Exception):
    """A process of the demo ended, or did not begin, by itself."""


class DemoProcess:
    """A running command."""

    def __init__(self, module: str, arguments: tuple[str, ...], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - this program, with arguments of the demo's own
                [sys.executable, "-m", module, *arguments],
                cwd=log.parent,
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def address(self, before: str) -> str:
        """Waits until it says where it listens, which stands behind the words `before`. Raises ProcessFailedError."""
        async with asyncio.timeout(_PATIENCE_S):
            while not (found := self._behind(before)):
                if self._process.poll() is not None:
                    raise self._failed()
                await asyncio.sleep(_LOOK_S)
        return found

    @property
    def has_done_its_work(self) -> bool:
        """Returns whether it has ended well. Raises ProcessFailedError where it has not ended well."""
        status = self._process.poll()
        if status:
            raise self._failed()
        return status == 0

    def kill(self) -> None:
        """Ends it as `kill -9` does, and returns when it is gone."""
        self._process.kill()
        self._process.wait()

    def _failed(self) -> ProcessFailedError:
        return ProcessFailedError(f"a process of the demo ended by itself; it said: {self._last_words()}")

    def _behind(self, before: str) -> str:
        found = self._log.read_text(errors="replace").partition(before)[2]
        return found.partition(",")[0].strip() if "," in found else ""

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace").strip()[-500:] or "nothing"


@asynccontextmanager
async def process(folder: Path, *arguments: str, module: str = "gateway") -> AsyncIterator[DemoProcess]:
    """Runs `gateway`, or another module, with these arguments in the folder, and kills it at the end."""
    name = arguments[0] if module == "gateway" else module.rpartition(".")[2]
    one = DemoProcess(module, arguments, folder / f"{name}-{time.monotonic_ns()}.log")
    try:
        yield one
    finally:
        one.kill()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a process: no settings of a gateway of the user's, and this package before all others."""
    kept = {name: value for name, value in environ.items() if not name.startswith("GATEWAY_")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH"))))}


_LEDGER = {"recorded_requests": 1_000_000, "recorded_bytes": 256 * 1024 * 1024}


@dataclass(frozen=True, slots=True)
class RecordingProvider:
    """The started emulator. Its methods raise RequestFailedError."""

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


_TIMEOUTS = {"connect": 5.0, "read": 60.0, "write": 60.0, "pool": 60.0}


_BOUNDARY = "a-line-that-no-line-of-the-file-is"


class RequestFailedError(Exception):
    """There was no answer, or a refusal."""


class Caller:
    """Asks one server; its methods raise RequestFailedError."""

    def __init__(self, sender: Http1Transport, url: str) -> None:
        self._sender = sender
        self._url = url

    async def get(self, path: str) -> Any:
        """Returns the JSON at a path."""
        return json.loads(await self.fetch(path))

    async def fetch(self, path: str) -> bytes:
        """Returns the bytes at a path."""
        return await self._request(httpx.Request("GET", self._url + path, extensions={"timeout": _TIMEOUTS}))

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Returns the JSON that answers a body."""
        request = httpx.Request("POST", self._url + path, json=body, extensions={"timeout": _TIMEOUTS})
        return json.loads(await self._request(request))

    async def upload(self, name: str, content: bytes) -> str:
        """Uploads the input of a batch, and returns its id."""
        purpose = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        opening = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        body = (purpose + opening).encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
        headers = {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}
        extensions = {"timeout": _TIMEOUTS}
        request = httpx.Request("POST", f"{self._url}/v1/files", content=body, headers=headers, extensions=extensions)
        return str(json.loads(await self._request(request))["id"])

    async def _request(self, request: httpx.Request) -> bytes:
        try:
            response = await self._sender.handle_async_request(request)
            content = await response.aread()
        except httpx.TransportError as error:
            raise RequestFailedError(f"{request.url}: {error}") from error
        if not response.is_success:
            raise RequestFailedError(f"{request.url}: {response.status_code} {content[:500].decode(errors='replace')}")
        return content


@asynccontextmanager
async def connections() -> AsyncIterator[Http1Transport]:
    """Yields what callers send with."""
    async with Http1Transport(max_connections=100) as sender:
        yield sender
