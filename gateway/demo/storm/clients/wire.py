"""A caller of `/v1` and of the emulator's controls: plain JSON over the gateway's own transport."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from gateway.core.http.client.transport import Http1Transport

_TIMEOUTS = {"connect": 5.0, "read": 60.0, "write": 60.0, "pool": 60.0}
_BOUNDARY = "a-line-that-no-line-of-the-file-is"


class AskFailedError(Exception):
    """There was no answer, or one that says no."""


class Caller:
    """Asks one server; its methods raise AskFailedError."""

    def __init__(self, sender: Http1Transport, url: str) -> None:
        self._sender = sender
        self._url = url

    async def get(self, path: str) -> Any:
        """Returns the JSON at a path."""
        return json.loads(await self.fetch(path))

    async def fetch(self, path: str) -> bytes:
        """Returns the bytes at a path."""
        return await self._ask(httpx.Request("GET", self._url + path, extensions={"timeout": _TIMEOUTS}))

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Returns the JSON that answers a body."""
        request = httpx.Request("POST", self._url + path, json=body, extensions={"timeout": _TIMEOUTS})
        return json.loads(await self._ask(request))

    async def upload(self, name: str, content: bytes) -> str:
        """Uploads the input of a batch, and returns its id."""
        purpose = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        opening = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        body = (purpose + opening).encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
        headers = {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}
        extensions = {"timeout": _TIMEOUTS}
        request = httpx.Request("POST", f"{self._url}/v1/files", content=body, headers=headers, extensions=extensions)
        return str(json.loads(await self._ask(request))["id"])

    async def _ask(self, request: httpx.Request) -> bytes:
        try:
            response = await self._sender.handle_async_request(request)
            content = await response.aread()
        except httpx.TransportError as error:
            raise AskFailedError(f"{request.url}: {error}") from error
        if not response.is_success:
            raise AskFailedError(f"{request.url}: {response.status_code} {content[:500].decode(errors='replace')}")
        return content


@asynccontextmanager
async def connections() -> AsyncIterator[Http1Transport]:
    """Yields what callers send with."""
    async with Http1Transport(max_connections=100) as sender:
        yield sender
