"""What a call asks for, lowered: shorter answers, less reasoning, never more than its caller asked for.

Sources: the chat and responses pages of https://platform.openai.com/docs/api-reference;
https://platform.claude.com/docs/en/build-with-claude/{effort,extended-thinking}.
A body that bounds its answer in other words keeps them: two words for it are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.core.openai import json_edit
from gateway.core.snapshot import Setting

SCALES: Final[Mapping[str, tuple[str, ...]]] = {
    "reasoning_effort": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "verbosity": ("low", "medium", "high"),
}
"""Fields whose values are words, the least first."""
BOUNDS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields that bound the tokens of an answer; a body has one of them."""
FIELDS_AT: Final[Mapping[str, frozenset[str]]] = {
    "chat": frozenset(("reasoning_effort", "verbosity", "max_completion_tokens", "max_tokens")),
    "completions": frozenset(("max_tokens",)),
    "responses": frozenset(("max_output_tokens", "reasoning_effort", "verbosity")),
    "messages": frozenset(("max_tokens", "reasoning_effort")),
}
"""Those that a body may have, by endpoint."""
INSIDE: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "responses": {"reasoning_effort": ("reasoning", "effort"), "verbosity": ("text", "verbosity")},
    "messages": {"reasoning_effort": ("output_config", "effort")},
}
"""Where bodies have the words that do not stand at their top, by endpoint."""
LEAST_OF_MESSAGES: Final = "low"
"""The least effort of Messages, whose scale has no less; a body that names none keeps it so: not every model knows one."""
OWN_BOUND: Final = {"chat": "max_completion_tokens", "completions": "max_tokens", "responses": "max_output_tokens"}
"""How endpoints call a bound that is set under a name that they have not, where their bodies bound nothing."""
USUAL: Final = "medium"
"""The word where the caller says none."""


@dataclass(frozen=True, slots=True)
class LatencyRules:
    """When the calls of a model ask for less, and for how much."""

    first_byte_p95_above_s: float
    set: Mapping[str, str | int]


DEGRADE: Final[Setting[LatencyRules | None]] = Setting("degrade", None)
"""When the calls of a model ask for less than their callers did; None: never."""


@dataclass(frozen=True, slots=True)
class DegradedRequest:
    """A request that asks for less than its client did."""

    body: bytes
    fields: tuple[str, ...]
    max_tokens: int | None
    """The most tokens that its answer may have now; None: nobody says."""


def degraded_request(
    endpoint: str, body: bytes, parsed: Mapping[str, Any], max_tokens: int | None, rules: LatencyRules
) -> DegradedRequest | None:
    """Returns the call with its fields lowered; None: it asks for no more than that, or its endpoint has none of them."""
    allowed = FIELDS_AT.get(endpoint, frozenset())
    inside = INSIDE.get(endpoint, {})
    changed: dict[str, str | int] = {}
    bounds = [field for field in BOUNDS if parsed.get(field) is not None]
    for field, value in rules.set.items():
        if isinstance(value, str):
            wanted = _value_in(parsed, inside.get(field), field)
            word = value
            if endpoint == "messages":
                wanted, word = wanted or "", max(value, LEAST_OF_MESSAGES, key=SCALES["reasoning_effort"].index)
            if field in allowed and _is_above(field, wanted, word):
                changed[field] = word
        elif bounds:
            above = {one: value for one in bounds if isinstance(parsed[one], int) and parsed[one] > value}
            changed.update(above if endpoint != "messages" or value > _thinks_for(parsed) else {})
        elif field in allowed and not any(one in changed for one in BOUNDS):
            changed[field] = value
    own_bound, limits = OWN_BOUND.get(endpoint), [value for value in rules.set.values() if isinstance(value, int)]
    if own_bound is not None and limits and not bounds and not any(one in changed for one in BOUNDS):
        changed[own_bound] = min(limits)
    for field, value in changed.items():
        name, new = field, orjson.dumps(value)
        if field in inside:
            name, within = inside[field]
            new = orjson.dumps({**(parsed.get(name) or {}), within: value})
        edit = json_edit.replace_field if name in parsed else json_edit.insert_field
        body = edit(body, name, new)
    if not changed:
        return None
    now = [value for value in changed.values() if isinstance(value, int)]
    fields = tuple(".".join(inside[field]) if field in inside else field for field in changed)
    return DegradedRequest(body, fields, min([*now, *([] if max_tokens is None else [max_tokens])], default=None))


def _value_in(parsed: Mapping[str, Any], path: tuple[str, str] | None, field: str) -> object:
    """Returns the word that a body has; what cannot be read as one is no word of the scale, and is left alone."""
    if path is None:
        return parsed.get(field)
    outer = parsed.get(path[0])
    return outer.get(path[1]) if isinstance(outer, dict) else outer


def _thinks_for(parsed: Mapping[str, Any]) -> int:
    """Returns the tokens that a message may think for: its bound has to stay above them."""
    thinking = parsed.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return budget if isinstance(budget, int) else 0


def _is_above(field: str, word: object, value: str) -> bool:
    """Returns whether a word is more than that; one that is not known is left alone."""
    scale, rank = SCALES[field], USUAL if word is None else word
    return rank in scale and scale.index(str(rank)) > scale.index(value)
