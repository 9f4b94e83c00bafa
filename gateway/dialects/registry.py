"""Which languages a target speaks, and by which pair a call in another one reaches it. The only list of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from gateway.dialects.base import ServerFacts
from gateway.dialects.openai.translators import ChatOverResponses, ResponsesOverChat
from gateway.dialects.pair import Pair
from gateway.words import FindGaps

PATHS: Final[Mapping[str, str]] = {"chat": "/chat/completions", "responses": "/responses"}
"""The endpoints that can stand for each other, by their names; all others are a target's own business."""

_PAIRS: Final = (
    Pair("responses", "chat", PATHS["chat"], ResponsesOverChat()),
    Pair("chat", "responses", PATHS["responses"], ChatOverResponses()),
)

_CHAT_ALONE: Final = frozenset(("deepseek", "mistral", "gemini", "anthropic", "cohere"))
"""Kinds of servers whose API knows chat completions and no Responses."""

_FORGETFUL: Final = frozenset(("mistral", "gemini", "anthropic", "cohere", "groq"))
"""Kinds of servers that refuse a `reasoning_content` in a message, or leave it unread."""


def languages_of(kind: str, declared: Sequence[str] | None) -> frozenset[str] | None:
    """Returns what a server of this kind speaks, as declared or by the table; None: everything is tried, and learned from.

    That holds for OpenAI too, where it depends on the model.
    """
    if declared is not None:
        return frozenset(declared)
    return frozenset(("chat",)) if kind in _CHAT_ALONE else None


def facts_of(kind: str) -> ServerFacts:
    """Returns what conversions have to know of a server of this kind."""
    if kind in ("openai", "azure"):
        return ServerFacts(
            bound_field="max_completion_tokens", takes_developer=True, takes_custom_tools=True, takes_reasoning=False
        )
    return ServerFacts(takes_reasoning=kind not in _FORGETFUL)


def pair_at(path: str) -> Pair | None:
    """Returns the way by which a call to this path reaches a server that does not know it; None: there is none."""
    return next((pair for pair in _PAIRS if PATHS[pair.asked] == path), None)


def pairs_for(speaks: frozenset[str] | None) -> Mapping[str, Pair]:
    """Returns by endpoint the pairs for a server that is known to speak these languages only."""
    if speaks is None:
        return {}
    return {pair.asked: pair for pair in _PAIRS if pair.asked not in speaks and pair.spoken in speaks}


def gaps_by_endpoint(kind: str, speaks: frozenset[str] | None) -> Mapping[str, FindGaps]:
    """Returns by endpoint what tells the gaps of a request for such a server; endpoints that it speaks have none."""
    facts = facts_of(kind)
    return {asked: partial(pair.translator.gaps, facts=facts) for asked, pair in pairs_for(speaks).items()}
