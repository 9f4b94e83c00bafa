"""Anthropic's Message Batches: lines go along with the request for their batch, results are asked for by its id.

A batch has no name of ours, and tells nothing of its lines before it is over: after a lost answer it is found by its number of
lines and when it was made, and known by the `custom_id`s of its results. There is nothing, as OpenAI's input file is, without
which the request that was lost could not be carried out any more: whoever asks again has to have waited for long.

Source: https://platform.claude.com/docs/en/api/messages/batches and /docs/en/build-with-claude/batch-processing
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import aclosing
from typing import Any, Final

from gateway.core.snapshot.snapshot.provider import Provider
from gateway.products.batches.native.formats.message_batch import count_of, read_message_batch
from gateway.products.batches.native.formats.remote import NeverSent, NotToldYet, ProviderRefused, RemoteBatch
from gateway.products.batches.native.providers.requests import ANSWER_S, BatchRequests, TimelyBody, segment
from gateway.products.jobs.webhooks.outward.job_ports_outward import Unreachable

PATH: Final = "/messages/batches"
PAGES: Final = 10
"""Of the list that are looked at, at most, of 100 batches each."""
MOST_CANDIDATES: Final = 200
"""Of batches whose results are looked into in one search."""
SENDING_S: Final = 130.0
"""A request is broken off after so long, and the wait for its answer: `may_send` has said no before."""
MOST_REMEMBERED: Final = 2000
HEAD_BYTES: Final = 1024 * 1024
"""Of a batch's results, in which the first `custom_id` stands."""
_NO: Final = frozenset((429,))
"""What is refused for want of room was not taken."""
_VERSION: Final = {"anthropic-version": "2023-06-01"}
_NAME: Final = re.compile(rb'"custom_id"\s*:\s*"([^"\\]{1,64})"')


class MessageBatches:
    """Speaks to Anthropic's API. Of batches it remembers whose they were found to be."""

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
            said = await self._requests.ask(
                provider, "POST", PATH, headers=headers, body=body, within_s=SENDING_S + ANSWER_S, noes=_NO
            )
        except ProviderRefused as refused:
            raise _with_room(refused) from refused
        except Unreachable as why:
            if body.is_sent:
                raise
            raise NeverSent(str(why)) from why
        return _told(said)

    async def find_submitted(
        self,
        provider: Provider,
        is_ours: Callable[[str], bool],
        lines: int,
        others: Collection[str],
        not_before: float,
    ) -> RemoteBatch | None:
        """Returns the batch of so many lines whose `custom_id`s are ours; `others` are known to be somebody else's.

        Raises NotToldYet where a batch that may be it is not over, of whose lines nothing is told before, or cannot be told
        from others for another reason.
        """
        open_ones = looked = 0
        async for said in self._list(provider, not_before):
            batch = read_message_batch(said)
            if batch is None or batch.id in others or count_of(said) != lines:
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
            raise NotToldYet(
                f"{provider.name}: {open_ones} batches of as many lines do not tell of them yet: one may be it"
            )
        return None

    async def look(self, provider: Provider, batch_id: str) -> RemoteBatch:
        """Returns a batch as it is now."""
        said = await self._requests.ask(provider, "GET", f"{PATH}/{segment(batch_id)}", headers=_VERSION)
        return _told(said)

    async def cancel(self, provider: Provider, batch_id: str) -> None:
        """Asks a batch to stop."""
        headers = {**_VERSION, "content-length": "0"}
        await self._requests.ask(provider, "POST", f"{PATH}/{segment(batch_id)}/cancel", headers=headers)

    def content(self, provider: Provider, batch_id: str) -> AsyncIterator[bytes]:
        """Yields the results of a batch, of which each is a line; what comes before an error is good.

        They are asked for at the provider's own address, whatever `results_url` says: it gets the credential.
        """
        return self._requests.content(provider, f"{PATH}/{segment(batch_id)}/results", _VERSION)

    async def remove(self, provider: Provider, batch_id: str) -> None:
        """Removes a batch that is over, with its results; one that is not there is removed."""
        try:
            await self._requests.ask(provider, "DELETE", f"{PATH}/{segment(batch_id)}", headers=_VERSION)
        except ProviderRefused as refused:
            if refused.status != 404:
                raise

    async def _name_in(self, provider: Provider, batch_id: str) -> str | None:
        """Returns the first `custom_id` in the results of a batch; None: they do not tell it, or not yet."""
        head = b""
        try:
            async with aclosing(
                self._requests.content(provider, f"{PATH}/{segment(batch_id)}/results", _VERSION)
            ) as said:
                async for piece in said:
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

        Raises NotToldYet where there are more than are looked at.
        """
        after = ""
        for _ in range(PAGES):
            query = {"limit": "100", **({"after_id": after} if after else {})}
            page = await self._requests.ask(provider, "GET", PATH, query=query, headers=_VERSION)
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
        raise NotToldYet(f"{provider.name} lists more batches of late than are looked at")


def _told(said: dict[str, Any]) -> RemoteBatch:
    batch = read_message_batch(said)
    if batch is None:
        raise Unreachable("the answer tells of no batch")
    return batch


def _with_room(refused: ProviderRefused) -> ProviderRefused:
    """Returns a refusal for want of room as one that another time may pass."""
    return ProviderRefused(429, "rate_limit_exceeded", str(refused)) if refused.status == 429 else refused
