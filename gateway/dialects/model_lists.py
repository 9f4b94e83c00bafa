"""Asks providers for the list of their models, where the config wants to learn from it: at the start, and once an hour.

Never on the way of a call. A list that does not come, or makes no sense, is a line in the log and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

import orjson

from gateway.core.clock import Clock
from gateway.core.snapshot import Provider
from gateway.core.types import Clocks, Outgoing, RawHeaders, Upstream, UpstreamFailed
from gateway.dialects.known import MOST_MODELS, ListedModels, first_page, read_page

EVERY_S: Final = 3600.0
AGAIN_S: Final = 60.0
"""Seconds after which a list that did not come is asked for again, then after twice as long, up to the hour."""
WITHIN_S: Final = 30.0
MOST_BYTES: Final = 8 * 1024 * 1024
MOST_PAGES: Final = 10
_CLOCKS: Final = Clocks(5.0, 5.0, 20.0, 10.0, WITHIN_S)
_HEADERS: Final[dict[str, RawHeaders]] = {"anthropic": [(b"anthropic-version", b"2023-06-01")]}
log = logging.getLogger("gateway.models")


class NoList(Exception):
    """A provider's answer is no list of models."""


class ModelLists:
    """Learns what providers report of their models, one request at a time for each."""

    def __init__(self, connect: Callable[[Provider, str | None], Upstream], clock: Clock) -> None:
        """`connect` gives the way on which a provider's calls go, without a model."""
        self.listed = ListedModels()
        self._connect = connect
        self._clock = clock
        self._due_at: dict[Provider, float] = {}
        self._failures: dict[Provider, int] = {}
        self._tasks: dict[Provider, asyncio.Task[None]] = {}

    def tick(self, providers: Collection[Provider]) -> None:
        """Asks those whose list is due, and forgets those that are gone."""
        learning = [one for one in providers if one.learns_models and one.name == one.group]
        if not learning and not self._due_at:
            return
        self._due_at = {one: self._due_at.get(one, 0.0) for one in learning}
        self._failures = {one: count for one, count in self._failures.items() if one in self._due_at}
        now = self._clock.monotonic()
        for provider in learning:
            if now >= self._due_at[provider] and provider not in self._tasks:
                self._due_at[provider] = now + AGAIN_S  # whatever comes of it
                self._tasks[provider] = task = asyncio.create_task(self._learn(provider))
                task.add_done_callback(partial(self._ended, provider))

    def _ended(self, provider: Provider, _task: asyncio.Task[None]) -> None:
        del self._tasks[provider]

    async def aclose(self) -> None:
        """Ends what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _learn(self, provider: Provider) -> None:
        upstream = self._connect(provider, None)
        faults: tuple[type[Exception], ...] = (UpstreamFailed, NoList, TimeoutError, *upstream.errors)
        try:
            async with asyncio.timeout(WITHIN_S):
                facts = await _facts_of(upstream, provider.dialect)
        except faults as error:
            count = self._failures[provider] = self._failures.get(provider, 0) + 1
            self._due_at[provider] = self._clock.monotonic() + min(AGAIN_S * 2.0 ** (count - 1), EVERY_S)
            # One line for a row of failures: a provider without a list fails each time.
            if count == 1:
                why = getattr(error, "detail", "") or str(error) or type(error).__name__
                log.warning(
                    "provider %s did not tell of its models: %s; what is known of them stays", provider.name, why
                )
            return
        self._failures.pop(provider, None)
        self._due_at[provider] = self._clock.monotonic() + EVERY_S
        if changed := self.listed.tell(provider.group, facts):
            log.info("provider %s has told of %d models, %d of them new or changed", provider.name, len(facts), changed)


async def _facts_of(upstream: Upstream, dialect: str) -> dict[str, Any]:
    """Returns what all pages of a list tell. Raises NoList, and what the upstream raises."""
    facts: dict[str, Any] = {}
    query: bytes | None = first_page(dialect)
    for _ in range(MOST_PAGES):
        page = read_page(dialect, await _ask(upstream, dialect, query or b""))
        facts |= page.facts
        query = page.next
        if query is None or len(facts) >= MOST_MODELS:
            break
    return dict(list(facts.items())[:MOST_MODELS])


async def _ask(upstream: Upstream, dialect: str, query: bytes) -> dict[str, Any]:
    headers = _HEADERS.get(dialect, [])
    outgoing = Outgoing("GET", "/models", query, "", headers, b"", None, _CLOCKS, _CLOCKS.first_byte_s)
    answer = await upstream.send(outgoing)
    try:
        body = bytearray(answer.whole or b"")
        if answer.whole is None:
            async for chunk in answer.chunks:
                body += chunk
                if len(body) > MOST_BYTES:
                    raise NoList(f"its list has more than {MOST_BYTES} bytes")
    finally:
        await answer.aclose()
    if answer.status != 200:
        raise NoList(f"it answered {answer.status}")
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise NoList("its answer is no list of models")
    return found
