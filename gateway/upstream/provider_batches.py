"""Providers' own Files and Batch APIs, where they are of OpenAI's shape. Implements `jobs.ports.ProviderBatches`.

Requests go over the provider's own transport, with the credential of the config. An answer that was whole and said no is
ProviderRefused; all else that went wrong is Unreachable: what was asked may have been done. Our secrets are taken out of all
that a provider says, as on the way of calls, before it is read: lines of its files are results, its reasons are logged.

Sources: https://platform.openai.com/docs/api-reference/{files,batch};
https://learn.microsoft.com/azure/ai-foundry/openai/how-to/batch (paths without `/v1`, files that have to expire).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import httpx
import orjson

from gateway.job_ports.outward import Unreachable
from gateway.policy.native.remote import FULL, PART, NeverSent, ProviderRefused, RemoteBatch, read_batch
from gateway.policy.snapshot import Provider
from gateway.upstream.http1.transport import ERRORS
from gateway.upstream.http1.wire import WireTimeouts
from gateway.upstream.redaction import MaskedChunks, Seam, secrets_of
from gateway.upstream.wire import auth_header

ANSWER_S: Final = 60.0
IDLE_S: Final = 60.0
MOST_REASON_BYTES: Final = 65_536
MOST_ANSWER_BYTES: Final = 8 * 1024 * 1024
KEPT_S: Final = 14 * 86_400
"""The files of a batch are removed once its answers are here; what is forgotten goes after so long. Azure takes no less."""
PAGES: Final = 20
"""Of a list that are looked at, at most."""
BOUNDARY: Final = "gateway-part-7f3b1d5a9c"
_FAULTS: tuple[type[Exception], ...] = (*ERRORS, httpx.InvalidURL)
_UNSURE: Final = frozenset((408, 425, 429))
"""Statuses below 500 that may be others a moment later."""


class HttpProviderBatches:
    """Speaks to providers' Batch APIs. Holds nothing of any batch."""

    def __init__(self, transport_of: Callable[[Provider], httpx.AsyncBaseTransport]) -> None:
        """`transport_of` gives the transport that a provider's calls go over."""
        self._transport_of = transport_of

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
        file_id = (await self._ask(provider, "POST", "/files", headers=headers, body=body, within_s=None)).get("id")
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
        body = _Timely(text, may_send)
        headers = {"content-type": "application/json", "content-length": str(len(text))}
        try:
            batch = read_batch(
                await self._ask(provider, "POST", "/batches", headers=headers, body=body, within_s=ANSWER_S)
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
        said = await self._ask(provider, "GET", f"/batches/{_segment(batch_id)}")
        batch = _batch(provider, said)
        if batch is None:
            raise ProviderRefused(404, "", "the answer tells of no batch")
        return batch

    async def cancel(self, provider: Provider, batch_id: str) -> None:
        """Asks a batch to stop."""
        await self._ask(provider, "POST", f"/batches/{_segment(batch_id)}/cancel", headers={"content-length": "0"})

    async def content(self, provider: Provider, file_id: str) -> AsyncIterator[bytes]:
        """Yields the bytes of a file; what comes before an error is good."""
        response = await self._send(provider, "GET", f"/files/{_segment(file_id)}/content")
        try:
            if not response.is_success:
                raise _refusal(provider, response.status_code, await _read(provider, response))
            secrets = secrets_of(provider)
            said = response.aiter_raw()
            async for part in said if secrets is None else MaskedChunks(said, Seam(secrets)):
                yield part
        except _FAULTS as error:
            raise Unreachable(type(error).__name__) from error
        finally:
            await response.aclose()

    async def remove(self, provider: Provider, file_id: str) -> None:
        """Removes a file; one that is not there is removed."""
        try:
            await self._ask(provider, "DELETE", f"/files/{_segment(file_id)}")
        except ProviderRefused as refused:
            if refused.status != 404:
                raise

    async def _list(
        self, provider: Provider, path: str, query: Mapping[str, str], not_before: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yields the entries of a list, newest first as providers give them, up to those that are too old."""
        after = ""
        for _ in range(PAGES):
            page = await self._ask(provider, "GET", path, query={**query, **({"after": after} if after else {})})
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

    async def _ask(
        self,
        provider: Provider,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | httpx.AsyncByteStream = b"",
        within_s: float | None = ANSWER_S,
    ) -> dict[str, Any]:
        """Returns the object that is the answer, which has to be there `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                response = await self._send(provider, method, path, query, headers, body)
                text = await _read(provider, response)
        except TimeoutError:
            raise Unreachable(f"no answer within {ANSWER_S:g} s") from None
        except _FAULTS as error:
            raise Unreachable(type(error).__name__) from error
        if not response.is_success:
            raise _refusal(provider, response.status_code, text)
        try:
            said = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise Unreachable("the answer is no JSON") from None
        if not isinstance(said, dict):
            raise Unreachable("the answer is no JSON object")
        return said

    async def _send(
        self,
        provider: Provider,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | httpx.AsyncByteStream = b"",
    ) -> httpx.Response:
        url = _url(provider, path, query or {})
        auth = auth_header(provider)
        told = [(b"host", url.netloc), (b"accept-encoding", b"identity")]
        told += [(name.lower().encode(), value.encode()) for name, value in provider.headers]
        told += [auth] if auth is not None else []
        told += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        if isinstance(body, bytes) and body:
            told.append((b"content-length", b"%d" % len(body)))
        request = httpx.Request(
            method,
            url,
            headers=told,
            stream=httpx.ByteStream(body) if isinstance(body, bytes) else body,
            extensions={"timeout": WireTimeouts(10.0, 10.0, IDLE_S, ANSWER_S, IDLE_S).as_extension()},
        )
        try:
            return await self._transport_of(provider).handle_async_request(request)
        except _FAULTS as error:
            raise Unreachable(type(error).__name__) from error


class _Upload(httpx.AsyncByteStream):
    """A form around a file that comes as a stream."""

    def __init__(self, before: bytes, content: AsyncIterator[bytes], after: bytes) -> None:
        self._before, self._content, self._after = before, content, after

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._before
        async for part in self._content:
            yield part
        yield self._after


class _Timely(httpx.AsyncByteStream):
    """A body that is sent in time or never. The head without it asks for nothing; and it is not sent again on another
    connection, as a body of bytes would be.
    """

    def __init__(self, body: bytes, may_send: Callable[[], bool]) -> None:
        self._body, self._may_send = body, may_send
        self.is_sent = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.is_sent:
            raise httpx.WriteError("it has been sent before, and is not sent again")
        if not self._may_send():
            raise NeverSent("too late to ask: this process has stood still")
        self.is_sent = True
        yield self._body


def _form(fields: Mapping[str, str], filename: str) -> tuple[bytes, bytes]:
    """Returns what stands before and behind the file in a form with these fields."""
    parts = [
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head = f'content-disposition: form-data; name="file"; filename="{filename}"\r\ncontent-type: application/jsonl'
    return f"{''.join(parts)}--{BOUNDARY}\r\n{head}\r\n\r\n".encode(), f"\r\n--{BOUNDARY}--\r\n".encode()


async def _read(provider: Provider, response: httpx.Response) -> bytes:
    """Returns the body of an answer, which is not a file's, without secrets."""
    parts, size = [], 0
    try:
        async for part in response.aiter_raw():
            size += len(part)
            if size > MOST_ANSWER_BYTES:
                raise Unreachable("the answer is too long")
            parts.append(part)
    finally:
        await response.aclose()
    secrets = secrets_of(provider)
    return b"".join(parts) if secrets is None else secrets.mask(b"".join(parts))


def _batch(provider: Provider, said: object) -> RemoteBatch | None:
    """Returns the batch of an answer; its reasons are noted and logged."""
    batch, secrets = read_batch(said), secrets_of(provider)
    if batch is None or secrets is None:
        return batch
    return batch._replace(code=secrets.text(batch.code), message=secrets.text(batch.message))


def _refusal(provider: Provider, status: int, text: bytes) -> ProviderRefused | Unreachable:
    """Returns what an answer without success means."""
    code = message = ""
    try:
        said = orjson.loads(text)
        error = said.get("error", said) if isinstance(said, dict) else {}
        if isinstance(error, dict):
            code, message = str(error.get("code") or ""), str(error.get("message") or "")
        else:
            message = str(error)
    except orjson.JSONDecodeError:
        message = text[:MOST_REASON_BYTES].decode(errors="replace")
    secrets = secrets_of(provider)
    why = f"{provider.name} answered {status} {code} {message}"
    why = (secrets.text(why) if secrets is not None else why)[:300]  # once more: it may have been written as \u0073k
    if status >= 500 or (status in _UNSURE and code not in FULL):
        return Unreachable(why)
    return ProviderRefused(status, code, why)


def _url(provider: Provider, path: str, query: Mapping[str, str]) -> httpx.URL:
    base, asked = provider.base_url, dict(query)
    if provider.dialect == "azure" and provider.api_version:
        base += "/openai"
        asked["api-version"] = provider.api_version
    elif provider.dialect == "azure":
        base += "/openai/v1"
    return httpx.URL(f"{base}{path}{'?' + urlencode(asked) if asked else ''}")


def _lets_expire(provider: Provider) -> bool:
    """Tells whether the provider knows lives of files; others refuse fields that they do not know."""
    host = urlsplit(provider.base_url).hostname or ""
    return provider.dialect == "azure" or host == "openai.com" or host.endswith(".openai.com")


def _segment(id: str) -> str:
    """Returns an id that a provider has given as one step of a path."""
    return quote(id, safe="-_.") if id not in (".", "..") else "-"
