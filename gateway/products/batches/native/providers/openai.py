"""Providers' own Files and Batch APIs, where they are of OpenAI's shape.

Sources: https://platform.openai.com/docs/api-reference/{files,batch};
https://learn.microsoft.com/azure/ai-foundry/openai/how-to/batch (paths without `/v1`, files that have to expire).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import orjson

from gateway.core.http.client.wire.redaction.redaction import secrets_of
from gateway.core.snapshot.snapshot.provider import Provider
from gateway.products.batches.native.formats.remote import PART, NeverSent, ProviderRefused, RemoteBatch, read_batch
from gateway.products.batches.native.providers.requests import ANSWER_S, BatchRequests, TimelyBody, once, segment
from gateway.products.jobs.webhooks.outward.job_ports_outward import Unreachable

KEPT_S: Final = 14 * 86_400
"""The files of a batch are removed once its answers are here; what is forgotten goes after so long. Azure takes no less."""
PAGES: Final = 20
"""Of a list that are looked at, at most."""
BOUNDARY: Final = "gateway-part-7f3b1d5a9c"


class FileBatches:
    """Speaks to providers' Batch APIs. Holds nothing of any batch."""

    def __init__(self, requests: BatchRequests) -> None:
        self._requests = requests

    async def upload(self, provider: Provider, filename: str, size: int, content: AsyncIterator[bytes]) -> str:
        """Uploads the input file of a batch, of so many bytes; returns its id."""
        fields = {"purpose": "batch"}
        if _lets_expire(provider):
            fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(KEPT_S)}
        before, after = _form(fields, filename)
        body = _Upload(before, content, after)
        headers = {
            "content-type": f"multipart/form-data; boundary={BOUNDARY}",
            "content-length": str(len(before) + size + len(after)),
        }
        file_id = (await self._requests.ask(provider, "POST", "/files", headers=headers, body=body, within_s=None)).get(
            "id"
        )
        if not isinstance(file_id, str) or not file_id:
            raise Unreachable("the answer to an upload names no file")
        return file_id

    async def find_file(self, provider: Provider, filename: str, not_before: float) -> str | None:
        """Returns the id of the input file of that name; older ones than `not_before` are not looked at."""
        async for file in self._list(provider, "/files", {"purpose": "batch", "limit": "1000"}, not_before):
            if file.get("filename") == filename and isinstance(file.get("id"), str):
                return str(file["id"])
        return None

    async def create(
        self, provider: Provider, file_id: str, endpoint: str, part: str, may_send: Callable[[], bool]
    ) -> RemoteBatch:
        """Makes a batch that can be told by `part`, unless `may_send`, asked as the last thing before, says no.

        Raises NeverSent where nothing was asked of the provider.
        """
        asked: dict[str, Any] = {
            "input_file_id": file_id,
            "endpoint": endpoint,
            "completion_window": "24h",
            "metadata": {PART: part},
        }
        if _lets_expire(provider):
            asked["output_expires_after"] = {"anchor": "created_at", "seconds": KEPT_S}
        text = orjson.dumps(asked)
        body = TimelyBody(once(text), len(text), may_send)
        headers = {"content-type": "application/json", "content-length": str(len(text))}
        try:
            batch = read_batch(
                await self._requests.ask(provider, "POST", "/batches", headers=headers, body=body, within_s=ANSWER_S)
            )
        except Unreachable as why:
            if body.is_sent:
                raise
            raise NeverSent(str(why)) from why
        if batch is None:
            raise Unreachable("the answer tells of no batch")
        return batch

    async def find_batch(self, provider: Provider, part: str, file_id: str, not_before: float) -> RemoteBatch | None:
        """Returns the batch that was made for `part`, or of that file where the provider keeps no metadata."""
        async for entry in self._list(provider, "/batches", {"limit": "100"}, not_before):
            batch = _batch(provider, entry)
            if batch is not None and (batch.part == part or (not batch.part and batch.input_file == file_id)):
                return batch
        return None

    async def look(self, provider: Provider, batch_id: str) -> RemoteBatch:
        """Returns a batch as it is now."""
        said = await self._requests.ask(provider, "GET", f"/batches/{segment(batch_id)}")
        batch = _batch(provider, said)
        if batch is None:
            raise ProviderRefused(404, "", "the answer tells of no batch")
        return batch

    async def cancel(self, provider: Provider, batch_id: str) -> None:
        """Asks a batch to stop."""
        await self._requests.ask(
            provider, "POST", f"/batches/{segment(batch_id)}/cancel", headers={"content-length": "0"}
        )

    def content(self, provider: Provider, file_id: str) -> AsyncIterator[bytes]:
        """Yields the bytes of a file; what comes before an error is good."""
        return self._requests.content(provider, f"/files/{segment(file_id)}/content")

    async def remove(self, provider: Provider, file_id: str) -> None:
        """Removes a file; one that is not there is removed."""
        try:
            await self._requests.ask(provider, "DELETE", f"/files/{segment(file_id)}")
        except ProviderRefused as refused:
            if refused.status != 404:
                raise

    async def _list(
        self, provider: Provider, path: str, query: Mapping[str, str], not_before: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yields the entries of a list, newest first as providers give them, up to those that are too old."""
        after = ""
        for _ in range(PAGES):
            page = await self._requests.ask(
                provider, "GET", path, query={**query, **({"after": after} if after else {})}
            )
            data = page.get("data")
            entries = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
            for entry in entries:
                yield entry
            last = entries[-1] if entries else {}
            created_at = last.get("created_at")
            is_old = isinstance(created_at, int | float) and created_at < not_before
            if not page.get("has_more") or is_old or not isinstance(last.get("id"), str) or last["id"] == after:
                return
            after = last["id"]


class _Upload(httpx.AsyncByteStream):
    """A form around a file that comes as a stream."""

    def __init__(self, before: bytes, content: AsyncIterator[bytes], after: bytes) -> None:
        self._before, self._content, self._after = before, content, after

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._before
        async for part in self._content:
            yield part
        yield self._after


def _form(fields: Mapping[str, str], filename: str) -> tuple[bytes, bytes]:
    """Returns what stands before and behind the file in a form with these fields."""
    parts = [
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head = f'content-disposition: form-data; name="file"; filename="{filename}"\r\ncontent-type: application/jsonl'
    return f"{''.join(parts)}--{BOUNDARY}\r\n{head}\r\n\r\n".encode(), f"\r\n--{BOUNDARY}--\r\n".encode()


def _batch(provider: Provider, said: object) -> RemoteBatch | None:
    """Returns the batch of an answer; its reasons are noted and logged."""
    batch, secrets = read_batch(said), secrets_of(provider)
    if batch is None or secrets is None:
        return batch
    return batch._replace(code=secrets.text(batch.code), message=secrets.text(batch.message))


def _lets_expire(provider: Provider) -> bool:
    """Tells whether the provider knows lives of files; others refuse fields that they do not know."""
    host = urlsplit(provider.base_url).hostname or ""
    return provider.dialect == "azure" or host == "openai.com" or host.endswith(".openai.com")
