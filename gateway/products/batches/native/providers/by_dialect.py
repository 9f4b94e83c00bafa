"""Batch APIs by what their providers speak. Implements `jobs.ports.ProviderBatches`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx

from gateway.core.snapshot.snapshot.provider import Provider
from gateway.products.batches.native.formats.remote import RemoteBatch
from gateway.products.batches.native.providers.messages import MessageBatches
from gateway.products.batches.native.providers.openai import FileBatches
from gateway.products.batches.native.providers.requests import BatchRequests


class HttpProviderBatches:
    """Speaks to providers' Batch APIs."""

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
        """Makes a batch of a file; see `FileBatches`."""
        return await self._files.create(provider, file_id, endpoint, part, may_send)

    async def submit(
        self, provider: Provider, size: int, content: AsyncIterator[bytes], may_send: Callable[[], bool]
    ) -> RemoteBatch:
        """Makes a batch of lines that go along; see `MessageBatches`."""
        return await self._messages.submit(provider, size, content, may_send)

    async def look(self, provider: Provider, batch_id: str) -> RemoteBatch:
        """Returns a batch as it is now."""
        return await self._of(provider).look(provider, batch_id)

    async def cancel(self, provider: Provider, batch_id: str) -> None:
        """Asks a batch to stop."""
        await self._of(provider).cancel(provider, batch_id)

    def content(self, provider: Provider, file_id: str) -> AsyncIterator[bytes]:
        """Yields the bytes of a file, or the results of a batch that has none."""
        return self._of(provider).content(provider, file_id)

    async def remove(self, provider: Provider, file_id: str) -> None:
        """Removes a file, or a batch that has none; one that is not there is removed."""
        await self._of(provider).remove(provider, file_id)

    def _of(self, provider: Provider) -> FileBatches | MessageBatches:
        return self._messages if provider.dialect == "anthropic" else self._files
