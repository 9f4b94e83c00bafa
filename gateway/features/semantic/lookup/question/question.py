"""Splits a request into the last user message, compared by meaning, and everything else, which must match exactly.

Chats and Responses that end in a user's plain text have such a question; those that end in a picture, a sound, a tool's result
or an assistant's message have none, nor have requests for several choices. It must not know embeddings or keys. Invariant:
two requests with equal text and equal rest are the same request, but for the fields that are left out.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.features.reuse.rules.rules import NOT_OF_THE_QUESTION, SemanticRule

MOST_CHARS = 8000
"""An embedding of a longer text tells little, and its answer rarely serves another question."""
_TEXTS = {"chat": "text", "responses": "input_text", "messages": "text"}
"""The type of a plain text part, by endpoint."""
_FIELDS = {"chat": "messages", "responses": "input", "messages": "messages"}


@dataclass(frozen=True, slots=True)
class Question:
    """`rest` is the request without the text, canonical; to be hashed."""

    text: str
    rest: bytes


@dataclass(frozen=True, slots=True)
class SemanticQuery:
    """A call's question to the semantic cache."""

    partition: bytes
    """The digest of all that must match exactly, 32 bytes, the owner first of all."""
    text: str
    """The last user message."""
    rule: SemanticRule
    model: str
    tenant: str


def last_question(endpoint: str, parsed: dict[str, Any], ignored: Set[str] = frozenset()) -> Question | None:
    """Returns the question of a request, `ignored` top-level fields left out; None: it cannot be judged by its meaning."""
    if endpoint not in _FIELDS or parsed.get("n") not in (None, 1):
        return None
    field = _FIELDS[endpoint]
    found = _of_items(parsed.get(field), _TEXTS[endpoint])
    if found is None or not found[0].strip() or len(found[0]) > MOST_CHARS:
        return None
    text, items = found
    left_out = NOT_OF_THE_QUESTION | ignored
    rest = {name: value for name, value in parsed.items() if name not in left_out}
    rest[field] = items
    try:
        return Question(text, orjson.dumps(rest, option=orjson.OPT_SORT_KEYS))
    except TypeError:  # nested too deeply to be written again
        return None


def _of_items(items: object, text_type: str) -> tuple[str, object] | None:
    """Returns the text of the last message, and all messages without it."""
    if type(items) is str and text_type == _TEXTS["responses"]:
        return items, ""
    if type(items) is not list or not items:
        return None
    last = items[-1]
    if type(last) is not dict or last.get("role") != "user" or last.get("type", "message") != "message":
        return None
    found = _of_content(last.get("content"), text_type)
    return None if found is None else (found[0], [*items[:-1], {**last, "content": found[1]}])


def _of_content(content: object, text_type: str) -> tuple[str, object] | None:
    """Returns the text of a string, or of parts that are all text; whatever else a part carries stays with the rest."""
    if type(content) is str:
        return content, ""
    if type(content) is not list or not all([_is_text(part, text_type) for part in content]):  # noqa: C419 - half the time
        return None
    return "\n".join([part["text"] for part in content]), [{**part, "text": ""} for part in content]


def _is_text(part: object, text_type: str) -> bool:
    return type(part) is dict and part.get("type") == text_type and type(part.get("text")) is str
