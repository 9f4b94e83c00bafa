"""Requests to providers' Batch APIs, over their own transports, with the credential of the config.

In this order: what all requests have in common; Anthropic's Message Batches; Files and Batch APIs of OpenAI's shape; and the
choice between them by what a provider speaks. A whole answer that refuses is ProviderRefused; all else that went wrong is
Unreachable: what was asked may have been done. Our secrets are taken out of all that a provider says, as on the way of calls,
before it is read: lines of its files are results, its reasons are logged.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import httpx
import orjson

from gateway.core.http.client.exchange import WireTimeouts
from gateway.core.http.client.redaction import MaskedChunks, SecretMasker, secrets_of
from gateway.core.http.client.transport import ERRORS
from gateway.core.http.client.wire import auth_header
from gateway.core.snapshot import Provider
from gateway.drivers.outward import Unreachable
from gateway.products.batches.native.formats import (
    FULL,
    PART,
    NeverSent,
    PendingResult,
    ProviderRefused,
    RemoteBatch,
    count_of,
    read_batch,
    read_message_batch,
)

ANSWER_S: Final = 60.0
IDLE_S: Final = 60.0
MOST_REASON_BYTES: Final = 65_536
MOST_ANSWER_BYTES: Final = 8 * 1024 * 1024
_FAULTS: tuple[type[Exception], ...] = (*ERRORS, httpx.InvalidURL)
_UNSURE: Final = frozenset((408, 425, 429))
"""Statuses below 500 that may be others a moment later."""


class BatchRequests:
    """Asks providers. Holds nothing of any batch."""

    def __init__(self, transport_of: Callable[[Provider], httpx.AsyncBaseTransport]) -> None:
        """`transport_of` gives the transport that a provider's calls go over."""
        self._transport_of = transport_of

    async def request(
        self,
        provider: Provider,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | httpx.AsyncByteStream = b"",
        within_s: float | None = ANSWER_S,
        noes: Collection[int] = (),
    ) -> dict[str, Any]:
        """Returns the object that is the answer, which has to be there `within_s`; `noes`: statuses that say no for sure."""
        try:
            async with asyncio.timeout(within_s):
                response = await self.send(provider, method, path, query, headers, body)
                text = await read_whole(provider, response)
        except TimeoutError:
            raise Unreachable(f"no answer within {within_s:g} s") from None
        except _FAULTS as error:
            raise Unreachable(type(error).__name__) from error
        if not response.is_success:
            raise refusal(provider, response.status_code, text, noes)
        try:
            parsed = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise Unreachable("the answer is no JSON") from None
        if not isinstance(parsed, dict):
            raise Unreachable("the answer is no JSON object")
        return parsed

    async def content(
        self, provider: Provider, path: str, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yields the bytes of a file; what comes before an error is good."""
        response = await self.send(provider, "GET", path, headers=headers)
        try:
            if not response.is_success:
                raise refusal(provider, response.status_code, await read_whole(provider, response))
            secrets = secrets_of(provider)
            chunks = response.aiter_raw()
            async for part in chunks if secrets is None else MaskedChunks(chunks, SecretMasker(secrets)):
                yield part
        except _FAULTS as error:
            raise Unreachable(type(error).__name__) from error
        finally:
            await response.aclose()

    async def send(
        self,
        provider: Provider,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | httpx.AsyncByteStream = b"",
    ) -> httpx.Response:
        url = url_of_api(provider, path, query or {})
        auth = auth_header(provider)
        fixed = [(b"host", url.netloc), (b"accept-encoding", b"identity")]
        fixed += [(name.lower().encode(), value.encode()) for name, value in provider.headers]
        fixed += [auth] if auth is not None else []
        own = {name for name, _ in fixed}
        given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        fixed += [header for header in given if header[0] not in own]  # the config may name another version
        if isinstance(body, bytes) and body:
            fixed.append((b"content-length", b"%d" % len(body)))
        request = httpx.Request(
            method,
            url,
            headers=fixed,
            stream=httpx.ByteStream(body) if isinstance(body, bytes) else body,
            extensions={"timeout": WireTimeouts(10.0, 10.0, IDLE_S, ANSWER_S, IDLE_S).as_extension()},
        )
        try:
            return await self._transport_of(provider).handle_async_request(request)
        except _FAULTS as error:
            raise Unreachable(type(error).__name__) from error


class TimelyBody(httpx.AsyncByteStream):
    """A body of which each piece is sent in time or never, and none twice: what is not whole asks for nothing.

    It is not sent again on another connection, as a body of bytes would be.
    """

    def __init__(self, content: AsyncIterator[bytes], size: int, may_send: Callable[[], bool]) -> None:
        self._content, self._left, self._may_send = content, size, may_send
        self._has_begun = False

    @property
    def is_sent(self) -> bool:
        """Returns whether all of it has been handed over: before, nothing was asked."""
        return self._left <= 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._has_begun:
            raise httpx.WriteError("it has been sent before, and is not sent again")
        self._has_begun = True
        async for piece in self._content:
            if not self._may_send():
                raise NeverSent("too late to ask: this process has stood still, or was too slow")
            self._left -= len(piece)
            yield piece


async def once(body: bytes) -> AsyncIterator[bytes]:
    """Yields a body that is in one piece."""
    yield body


async def read_whole(provider: Provider, response: httpx.Response) -> bytes:
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


def refusal(provider: Provider, status: int, text: bytes, noes: Collection[int] = ()) -> ProviderRefused | Unreachable:
    """Returns what an answer without success means."""
    code = message = ""
    try:
        parsed = orjson.loads(text)
        error = parsed.get("error", parsed) if isinstance(parsed, dict) else {}
        if isinstance(error, dict):
            code, message = str(error.get("code") or ""), str(error.get("message") or "")
        else:
            message = str(error)
    except orjson.JSONDecodeError:
        message = text[:MOST_REASON_BYTES].decode(errors="replace")
    secrets = secrets_of(provider)
    why = f"{provider.name} answered {status} {code} {message}"
    why = (secrets.text(why) if secrets is not None else why)[:300]  # once more: it may have been written as \u0073k
    if status not in noes and (status >= 500 or (status in _UNSURE and code not in FULL)):
        return Unreachable(why)
    return ProviderRefused(status, code, why)


def url_of_api(provider: Provider, path: str, query: Mapping[str, str]) -> httpx.URL:
    base, params = provider.base_url, dict(query)
    if provider.dialect == "azure" and provider.api_version:
        base += "/openai"
        params["api-version"] = provider.api_version
    elif provider.dialect == "azure":
        base += "/openai/v1"
    elif provider.dialect == "anthropic" and not base.endswith("/v1"):
        base += "/v1"
    return httpx.URL(f"{base}{path}{'?' + urlencode(params) if params else ''}")


def segment(id: str) -> str:
    """Returns an id that a provider has given as one step of a path."""
    return quote(id, safe="-_.") if id not in (".", "..") else "-"


# --- Anthropic's Message Batches: lines go along with the request for their batch ---

PATH: Final = "/messages/batches"
ANTHROPIC_MAX_PAGES: Final = 10
"""The most pages of the list that are looked at, of 100 batches each."""
MOST_CANDIDATES: Final = 200
"""The most batches whose results are looked into in one search."""
SENDING_S: Final = 130.0
"""A request is broken off after so long, and the wait for its answer: `may_send` has refused before."""
MOST_REMEMBERED: Final = 2000
HEAD_BYTES: Final = 1024 * 1024
"""The beginning of a batch's results, in which the first `custom_id` stands."""
_NO: Final = frozenset((429,))
"""The statuses of what was refused for want of room, and so was not taken."""
_VERSION: Final = {"anthropic-version": "2023-06-01"}
_NAME: Final = re.compile(rb'"custom_id"\s*:\s*"([^"\\]{1,64})"')


class MessageBatches:
    """Speaks to Anthropic's API. Of batches it remembers whose they were found to be.

    Lines go along with the request for their batch, results are asked for by its id. A batch has no name of ours, and tells
    nothing of its lines before it is over: after a lost answer it is found by its number of lines and when it was made, and
    known by the `custom_id`s of its results. There is nothing, as OpenAI's input file is, without which the request that was
    lost could not be carried out any more: whoever asks again has to have waited for long.

    Source: https://platform.claude.com/docs/en/api/messages/batches and /docs/en/build-with-claude/batch-processing
    """

    def __init__(self, requests: BatchRequests) -> None:
        self._requests = requests
        self._names: OrderedDict[str, str] = OrderedDict()
        """By batch, the `custom_id` of its first result."""

    async def submit(
        self, provider: Provider, size: int, content: AsyncIterator[bytes], may_send: Callable[[], bool]
    ) -> RemoteBatch:
        """Makes a batch of the requests in `content`, `size` bytes of JSON; `may_send` is asked before each piece is sent.

        Raises NeverSent where not all of it was: then there is no batch.
        """
        body = TimelyBody(content, size, may_send)
        headers = {**_VERSION, "content-type": "application/json", "content-length": str(size)}
        try:
            answer = await self._requests.request(
                provider, "POST", PATH, headers=headers, body=body, within_s=SENDING_S + ANSWER_S, noes=_NO
            )
        except ProviderRefused as refused:
            if refused.status == 429:  # for want of room: another time may pass
                raise ProviderRefused(429, "rate_limit_exceeded", str(refused)) from refused
            raise
        except Unreachable as why:
            if body.is_sent:
                raise
            raise NeverSent(str(why)) from why
        return _read_batch(answer)

    async def find_submitted(
        self,
        provider: Provider,
        is_ours: Callable[[str], bool],
        lines: int,
        others: Collection[str],
        not_before: float,
    ) -> RemoteBatch | None:
        """Returns the batch of so many lines whose `custom_id`s are ours; `others` are known to be somebody else's.

        Raises PendingResult where a batch that may be it is not over, whose lines are not known before, or cannot be told
        from others for another reason.
        """
        open_ones = looked = 0
        async for listed in self._list(provider, not_before):
            batch = read_message_batch(listed)
            if batch is None or batch.id in others or count_of(listed) != lines:
                continue
            name = self._names.get(batch.id)
            if name is None and batch.output and looked < MOST_CANDIDATES:
                looked += 1
                name = await self._name_in(provider, batch.id)
            if name is None:
                open_ones += 1
            elif is_ours(name):
                return batch
        if open_ones:
            raise PendingResult(
                f"{provider.name}: {open_ones} batches of as many lines do not tell of them yet: one may be it"
            )
        return None

    async def look(self, provider: Provider, batch_id: str) -> RemoteBatch:
        answer = await self._requests.request(provider, "GET", f"{PATH}/{segment(batch_id)}", headers=_VERSION)
        return _read_batch(answer)

    async def cancel(self, provider: Provider, batch_id: str) -> None:
        headers = {**_VERSION, "content-length": "0"}
        await self._requests.request(provider, "POST", f"{PATH}/{segment(batch_id)}/cancel", headers=headers)

    def content(self, provider: Provider, batch_id: str) -> AsyncIterator[bytes]:
        """Yields the results of a batch, of which each is a line; what comes before an error is good.

        They are asked for at the provider's own address, whatever `results_url` says: it gets the credential.
        """
        return self._requests.content(provider, f"{PATH}/{segment(batch_id)}/results", _VERSION)

    async def remove(self, provider: Provider, batch_id: str) -> None:
        """Removes a batch that is over, with its results; one that is not there is removed."""
        try:
            await self._requests.request(provider, "DELETE", f"{PATH}/{segment(batch_id)}", headers=_VERSION)
        except ProviderRefused as refused:
            if refused.status != 404:
                raise

    async def _name_in(self, provider: Provider, batch_id: str) -> str | None:
        """Returns the first `custom_id` in the results of a batch; None: they do not tell it, or not yet."""
        head = b""
        try:
            async with aclosing(
                self._requests.content(provider, f"{PATH}/{segment(batch_id)}/results", _VERSION)
            ) as chunks:
                async for piece in chunks:
                    head += piece
                    if (found := _NAME.search(head)) is not None or len(head) > HEAD_BYTES:
                        break
        except ProviderRefused as refused:
            if refused.status not in (404, 410):
                raise
        found = _NAME.search(head)
        if found is None:
            return None
        name = self._names[batch_id] = found[1].decode(errors="replace")
        if len(self._names) > MOST_REMEMBERED:
            self._names.popitem(last=False)
        return name

    async def _list(self, provider: Provider, not_before: float) -> AsyncIterator[dict[str, Any]]:
        """Yields the batches, newest first as they are listed, up to those that are too old.

        Raises PendingResult where there are more than are looked at.
        """
        after = ""
        for _ in range(ANTHROPIC_MAX_PAGES):
            query = {"limit": "100", **({"after_id": after} if after else {})}
            page = await self._requests.request(provider, "GET", PATH, query=query, headers=_VERSION)
            data = page.get("data")
            entries = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
            for entry in entries:
                batch = read_message_batch(entry)
                if batch is not None and batch.created_at and batch.created_at < not_before:
                    return
                yield entry
            last = entries[-1].get("id") if entries else None
            if not page.get("has_more") or not isinstance(last, str) or last == after:
                return
            after = last
        raise PendingResult(f"{provider.name} lists more batches of late than are looked at")


def _read_batch(fields: dict[str, Any]) -> RemoteBatch:
    batch = read_message_batch(fields)
    if batch is None:
        raise Unreachable("the answer tells of no batch")
    return batch


# --- Files and Batch APIs of OpenAI's shape ---

KEPT_S: Final = 14 * 86_400
"""The files of a batch are removed once its answers are here; what is forgotten goes after so long. Azure takes no less."""
OPENAI_MAX_PAGES: Final = 20
"""The most pages of a list that are looked at."""
BOUNDARY: Final = "gateway-part-7f3b1d5a9c"


class FileBatches:
    """Requests to providers' Files and Batch APIs of OpenAI's shape. Holds nothing of any batch.

    Sources: https://platform.openai.com/docs/api-reference/{files,batch};
    https://learn.microsoft.com/azure/ai-foundry/openai/how-to/batch (paths without `/v1`, files that have to expire).
    """

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
        file_id = (
            await self._requests.request(provider, "POST", "/files", headers=headers, body=body, within_s=None)
        ).get("id")
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
        """Makes a batch that `part` identifies, unless `may_send`, called as the last thing before, refuses.

        Raises NeverSent where nothing was asked of the provider.
        """
        request: dict[str, Any] = {
            "input_file_id": file_id,
            "endpoint": endpoint,
            "completion_window": "24h",
            "metadata": {PART: part},
        }
        if _lets_expire(provider):
            request["output_expires_after"] = {"anchor": "created_at", "seconds": KEPT_S}
        text = orjson.dumps(request)
        body = TimelyBody(once(text), len(text), may_send)
        headers = {"content-type": "application/json", "content-length": str(len(text))}
        try:
            batch = read_batch(
                await self._requests.request(
                    provider, "POST", "/batches", headers=headers, body=body, within_s=ANSWER_S
                )
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
        answer = await self._requests.request(provider, "GET", f"/batches/{segment(batch_id)}")
        batch = _batch(provider, answer)
        if batch is None:
            raise ProviderRefused(404, "", "the answer tells of no batch")
        return batch

    async def cancel(self, provider: Provider, batch_id: str) -> None:
        await self._requests.request(
            provider, "POST", f"/batches/{segment(batch_id)}/cancel", headers={"content-length": "0"}
        )

    def content(self, provider: Provider, file_id: str) -> AsyncIterator[bytes]:
        """Yields the bytes of a file; what comes before an error is good."""
        return self._requests.content(provider, f"/files/{segment(file_id)}/content")

    async def remove(self, provider: Provider, file_id: str) -> None:
        """Removes a file; one that is not there is removed."""
        try:
            await self._requests.request(provider, "DELETE", f"/files/{segment(file_id)}")
        except ProviderRefused as refused:
            if refused.status != 404:
                raise

    async def _list(
        self, provider: Provider, path: str, query: Mapping[str, str], not_before: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yields the entries of a list, newest first as providers give them, up to those that are too old."""
        after = ""
        for _ in range(OPENAI_MAX_PAGES):
            page = await self._requests.request(
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


def _batch(provider: Provider, answer: object) -> RemoteBatch | None:
    """Returns the batch of an answer; its reasons are noted and logged."""
    batch, secrets = read_batch(answer), secrets_of(provider)
    if batch is None or secrets is None:
        return batch
    return batch._replace(code=secrets.text(batch.code), message=secrets.text(batch.message))


def _lets_expire(provider: Provider) -> bool:
    """Returns whether the provider knows lives of files; others refuse fields that they do not know."""
    host = urlsplit(provider.base_url).hostname or ""
    return provider.dialect == "azure" or host == "openai.com" or host.endswith(".openai.com")


# --- Batch APIs by what their providers speak ---


class HttpProviderBatches:
    """Implements `ProviderBatches`, by what each provider speaks."""

    def __init__(self, transport_of: Callable[[Provider], httpx.AsyncBaseTransport]) -> None:
        """`transport_of` gives the transport that a provider's calls go over."""
        requests = BatchRequests(transport_of)
        self._files = FileBatches(requests)
        self._messages = MessageBatches(requests)
        self.upload = self._files.upload
        self.find_file = self._files.find_file
        self.find_batch = self._files.find_batch
        self.find_submitted = self._messages.find_submitted

    async def create(
        self, provider: Provider, file_id: str, endpoint: str, part: str, may_send: Callable[[], bool]
    ) -> RemoteBatch:
        return await self._files.create(provider, file_id, endpoint, part, may_send)

    async def submit(
        self, provider: Provider, size: int, content: AsyncIterator[bytes], may_send: Callable[[], bool]
    ) -> RemoteBatch:
        return await self._messages.submit(provider, size, content, may_send)

    async def look(self, provider: Provider, batch_id: str) -> RemoteBatch:
        return await self._of(provider).look(provider, batch_id)

    async def cancel(self, provider: Provider, batch_id: str) -> None:
        await self._of(provider).cancel(provider, batch_id)

    def content(self, provider: Provider, file_id: str) -> AsyncIterator[bytes]:
        return self._of(provider).content(provider, file_id)

    async def remove(self, provider: Provider, file_id: str) -> None:
        await self._of(provider).remove(provider, file_id)

    def _of(self, provider: Provider) -> FileBatches | MessageBatches:
        return self._messages if provider.dialect == "anthropic" else self._files
