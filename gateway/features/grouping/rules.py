"""Bodies of embeddings and moderations: their inputs, one body of several, and the parts of its answer.

    {"model": …, "input": "a"}  {"model": …, "input": ["b", "c"]}  ->  {"model": …, "input": ["a", "b", "c"]}
    {"data": [{"index": 0, …}, {"index": 1, …}, {"index": 2, …}], "usage": {…}}  ->  data 0  data 1, 2, counted from 0

Calls go together only where nothing but their inputs differs; the bounds of a group come last. Source of the shapes: OpenAI's
API reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.snapshot import Setting
from gateway.core.types import Usage

RESULTS: Final = {"embeddings": "data", "moderations": "results"}
"""By endpoint, the field of an answer that has one entry for each input. Others have no groups."""


class GroupInput(NamedTuple):
    """What a body asks for."""

    items: Sequence[object]
    """Texts, or lists of token numbers."""
    kind: str
    """`text` or `tokens`; in one request there are only those of one kind."""
    rest: bytes
    """All other fields, equal for equal requests."""


class AnswerPart(NamedTuple):
    """One caller's part of an answer."""

    body: bytes
    usage: Usage | None


def read_group_input(parsed: dict[str, Any]) -> GroupInput | None:
    """Returns the inputs of a body; None: it is to be sent as it is, such as one that has pictures, or is not right."""
    given = parsed.get("input")
    items: list[Any]
    if isinstance(given, str):
        items, kind = [given], "text"
    elif not isinstance(given, list) or not given:
        return None
    elif all(type(one) is str for one in given):
        items, kind = given, "text"
    elif all(type(one) is int for one in given):
        items, kind = [given], "tokens"
    elif all(type(one) is list for one in given):
        items, kind = given, "tokens"
    else:
        return None
    if parsed.get("stream"):
        return None
    rest = {name: value for name, value in parsed.items() if name != "input"}
    return GroupInput(items, kind, orjson.dumps(rest, option=orjson.OPT_SORT_KEYS))


def joined_body(inputs: Sequence[GroupInput]) -> bytes:
    """Returns one body with all inputs, in order."""
    rest = orjson.loads(inputs[0].rest)
    return orjson.dumps({**rest, "input": [item for one in inputs for item in one.items]})


def split_answer(
    endpoint: str, body: bytes, counts: Sequence[int], weights: Sequence[int], usage: Usage | None
) -> list[AnswerPart] | None:
    """Returns each caller's part: of `counts` inputs each, with tokens shared out by `weights`.

    None: the answer does not have exactly one entry for each input.
    """
    field = RESULTS[endpoint]
    try:
        answer = orjson.loads(body)
        entries = answer[field]
        if field == "data":
            entries = sorted(entries, key=lambda entry: entry["index"])
            if [entry["index"] for entry in entries] != list(range(len(entries))):
                return None
        if len(entries) != sum(counts):
            return None
    except (KeyError, TypeError, orjson.JSONDecodeError):
        return None
    parts, at = [], 0
    for count, own in zip(counts, _usages(usage, weights), strict=True):
        mine = entries[at : at + count]
        at += count
        if field == "data":
            mine = [{**entry, "index": number} for number, entry in enumerate(mine)]
        part = {**answer, field: mine}
        if own is not None and isinstance(answer.get("usage"), dict):
            part["usage"] = {**answer["usage"], "prompt_tokens": own.input, "total_tokens": own.input}
        parts.append(AnswerPart(orjson.dumps(part), own))
    return parts


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """Returns the total in whole parts by these weights; their sum is the total (largest remainders)."""
    whole = sum(weights) or len(weights)
    exact = [total * (weight if sum(weights) else 1) for weight in weights]
    parts = [one // whole for one in exact]
    by_rest = sorted(range(len(parts)), key=lambda at: (-(exact[at] % whole), at))
    for at in by_rest[: total - sum(parts)]:
        parts[at] += 1
    return parts


def _usages(usage: Usage | None, weights: Sequence[int]) -> list[Usage | None]:
    if usage is None:
        return [None] * len(weights)
    inputs, cached = shared_out(usage.input, weights), shared_out(usage.cached, weights)
    return [
        Usage(own, 0, min(hit, own), usage.estimated, doubt=usage.doubt)
        for own, hit in zip(inputs, cached, strict=True)
    ]


# --- how many inputs may go to a provider in one request, and how long the first of them waits for others ---

MOST_TOKENS: Final = 300_000
"""The most tokens of one request for embeddings, all inputs together (OpenAI's API reference, `input`)."""
TOKENS_PART: Final = 0.9
"""The part of a bound that is used: tokens are estimated."""
LINES_WINDOW_S: Final = 0.005
"""The wait of lines of a batch for others, which come by themselves at the same moment."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """When a group is sent: after `window_s`, or with `most` inputs."""

    window_s: float = 0.005
    most: int = 64


GROUPING: Final[Setting[GroupRules | None]] = Setting("grouping", None)
"""When calls of a model for embeddings or moderations go to the provider together; None: never."""
