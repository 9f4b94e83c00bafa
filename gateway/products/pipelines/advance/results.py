"""What is known of a step by its answers: the text, its JSON, embeddings or verdicts.

Source: the answers of OpenAI's chat completions, responses, embeddings and moderations endpoints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.features.output.schema.schema import depth_of
from gateway.products.pipelines.compile.compiling.plan import MOST_DEPTH, CallEndpoint

_FENCED: Final = re.compile(r"\s*```[A-Za-z]*\n(.*?)\n?```\s*", re.DOTALL)


def values_of(endpoint: CallEndpoint, body: bytes) -> dict[str, Any]:
    """Returns what the body of one answer says; a field that it does not have is missing."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return values_in(endpoint, answer)


def values_in(endpoint: CallEndpoint, answer: object) -> dict[str, Any]:
    """Returns what one answer says; a field that it does not have is missing."""
    if not isinstance(answer, dict):
        return {}
    if endpoint == "embeddings":
        return _embeddings(answer)
    if endpoint == "moderations":
        return {"results": answer["results"]} if isinstance(answer.get("results"), list) else {}
    text = text_of(endpoint, answer)
    return {} if text is None else {"text": text, **_json_of(text)}


def text_of(endpoint: CallEndpoint, answer: Mapping[str, Any]) -> str | None:
    """Returns the text of an answer of chat completions or responses; None: it has none, such as one with tool calls."""
    if endpoint == "chat":
        choices = answer.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        message = first.get("message") if isinstance(first, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        return content if isinstance(content, str) else None
    texts = [
        part["text"]
        for item in _dicts(answer.get("output"))
        if item.get("type") == "message"
        for part in _dicts(item.get("content"))
        if part.get("type") == "output_text" and isinstance(part.get("text"), str)
    ]
    return "".join(texts) if texts else None


def values_of_many(endpoint: CallEndpoint, answers: Sequence[object], stand_in: Any = None) -> dict[str, Any]:
    """Returns what the answers to all items say, in lists with an entry for each item; `stand_in` for those without one."""
    found = [None if answer is None else values_in(endpoint, answer) for answer in answers]
    failed = sum(one is None for one in found)
    counts = {"total": len(found), "failed": failed}
    if endpoint == "embeddings":
        return {"embeddings": _column(found, "embedding", stand_in), **counts}
    if endpoint == "moderations":
        lists = _column(found, "results", stand_in)
        return {"results": [one[0] if isinstance(one, list) and one else one for one in lists], **counts}
    texts = _column(found, "text", stand_in)
    readable = all(one is None or "json" in one for one in found)
    return {"texts": texts, **({"json": _column(found, "json", stand_in)} if readable else {}), **counts}


def stand_in_values(endpoint: CallEndpoint, value: Any) -> dict[str, Any]:
    """Returns what is known of a step that has failed, and in whose place a value stands."""
    if endpoint == "embeddings":
        return {"embedding": value, "embeddings": [value]}
    if endpoint == "moderations":
        return {"results": value}
    return {"text": value if isinstance(value, str) else orjson.dumps(value).decode(), "json": value}


def _column(found: Sequence[Mapping[str, Any] | None], field: str, stand_in: Any) -> list[Any]:
    return [stand_in if one is None else one.get(field) for one in found]


def _json_of(text: str) -> dict[str, Any]:
    """Returns the text's value, also where the text is that in a fence, as models like to write it."""
    fenced = _FENCED.fullmatch(text)
    for told in (text, fenced[1] if fenced is not None else ""):
        try:
            value = orjson.loads(told)
        except orjson.JSONDecodeError:
            continue
        return {} if depth_of(told.encode()) > MOST_DEPTH else {"json": value}
    return {}


def _embeddings(answer: Mapping[str, Any]) -> dict[str, Any]:
    vectors = [item["embedding"] for item in _dicts(answer.get("data")) if "embedding" in item]
    return {"embedding": vectors[0], "embeddings": vectors} if vectors else {}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
