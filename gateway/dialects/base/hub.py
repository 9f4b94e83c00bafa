"""Two conversions, one after the other: from a caller's language into chat completions, and from there into a target's.

Chat completions are the hub: five languages need a way there and a way from there, and not a way for each pair. What the hub
carries beyond OpenAI's own fields (`reasoning_details`, `cache_control`, pictures in results of tools) is public usage of
others, and never leaves the gateway but to a caller of chat completions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from gateway.core.errors import InvalidRequest
from gateway.core.types.words import Gap
from gateway.dialects.base.base import ConvertedRequest, Json, Reader, ServerFacts, Translator, lost_in, once

HUB: Final = ServerFacts(bound_field="max_completion_tokens", takes_developer=True, takes_details=True)
"""What the first conversion has to know of its target, which is the second one."""


class ThroughChat:
    """Converts by way of chat completions; implements `base.Translator`."""

    def __init__(self, first: Translator, second: Translator) -> None:
        """`first` converts from the caller's language into the hub, `second` from there into the target's."""
        self._first = first
        self._second = second

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        hub = _hub_of(facts)
        try:
            between = self._first.request(body, hub, 0.0, str)
        except InvalidRequest:  # the caller hears of it where the call is converted, by the place that is wrong
            return self._first.gaps(body, hub)
        return once([*lost_in(between, self._first, hub), *self._second.gaps(between.body, facts)])

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        hub = _hub_of(facts)
        between = self._first.request(body, hub, now, new_id)
        sent = self._second.request(between.body, facts, now, new_id)
        gaps = once([*lost_in(between, self._first, hub), *lost_in(sent, self._second, facts)])
        return replace(sent, gaps=gaps, via=between)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return self._first.answer(_between(sent), self._second.answer(sent, body))

    def reader(self, sent: ConvertedRequest) -> Reader:
        return _ReaderThroughChat(self._first.reader(_between(sent)), self._second.reader(sent))


class _ReaderThroughChat:
    def __init__(self, first: Reader, second: Reader) -> None:
        self._first = first
        self._second = second

    @property
    def is_over(self) -> bool:
        return self._first.is_over

    def feed(self, chunk: bytes) -> bytes:
        said = self._second.feed(chunk)
        return self._first.feed(said) if said else b""

    def close(self, *, is_clean: bool) -> bytes:
        said = self._second.close(is_clean=is_clean)
        return (self._first.feed(said) if said else b"") + self._first.close(is_clean=is_clean)


def _hub_of(facts: ServerFacts) -> ServerFacts:
    return replace(
        HUB,
        issuer=facts.issuer,
        model=facts.model,
        approximates=facts.approximates,
        requires_all=facts.requires_all,
    )


def _between(sent: ConvertedRequest) -> ConvertedRequest:
    if sent.via is None:
        raise AssertionError("the request was not converted by way of chat completions")
    return sent.via
