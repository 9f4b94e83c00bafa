"""Tells which calls make a model think before it answers, so that minutes without output are usual.

From what a request asks for, or, where nobody says, from a model's name. It must not know targets or clocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

FIELDS = frozenset(("reasoning_effort", "reasoning", "include_reasoning", "thinking", "enable_thinking"))
"""The fields at the top of a request: of OpenAI (chat; responses), OpenRouter, Anthropic, Qwen."""
_LITTLE = frozenset((None, False, "none", "minimal", "disabled"))
_LONGEST_NAME = 256
_THINKERS = re.compile(
    r"(?:^|[/_:-])(?:o[1-9](?:$|-)|gpt-[5-9](?!.*chat)|gpt-oss|qwq|magistral|deepseek-r[1-9]|r1(?:$|[:-]))|reason|think",
    re.IGNORECASE,
)


def asks_for_reasoning(body: Mapping[str, Any]) -> bool:
    """Returns whether a request asks its model to think first, and more than a little."""
    if FIELDS.isdisjoint(body):
        return False
    return any(_is_much(body[field]) for field in FIELDS & body.keys())


def is_thinker(model: str) -> bool:
    """Returns whether a model of this name thinks without being asked; models without a telling name are missed.

    Only the beginning of the name is looked at, which may be a client's and of any length.
    """
    model = model[:_LONGEST_NAME]
    return _THINKERS.search(model) is not None and "non-" not in model


def _is_much(asked: Any) -> bool:
    if isinstance(asked, Mapping):
        said = [asked[name] for name in ("effort", "type", "enabled") if name in asked]
        return bool(asked) and all(map(_is_much, said))
    return not isinstance(asked, list) and asked not in _LITTLE
