"""Anthropic's own batches and their results, as they tell of themselves. Believed no further than it can be checked.

Source: https://platform.claude.com/docs/en/api/messages/batches
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.core.limits.headers.reset_times import rfc3339
from gateway.core.openai.json_edit.json_edit import find_fields
from gateway.core.openai.usage.usage import read_usage
from gateway.products.batches.native.formats.remote import RemoteBatch
from gateway.products.batches.native.lines.lines import ProviderAnswer, number_of

_STATUSES: Final = {"in_progress": "in_progress", "canceling": "cancelling"}
_OWN_FAULTS: Final = {"invalid_request_error": 400, "request_too_large": 413}
"""Types of errors that say that the line itself is wrong, and their statuses; whatever else went wrong may go well here."""


def read_message_batch(value: object) -> RemoteBatch | None:
    """Returns a batch in the words of all Batch APIs; None: the text says nothing of one.

    Its results, which are asked for by its own id, stand for an output file.
    """
    if not isinstance(value, dict) or not isinstance(value.get("id"), str) or not value["id"]:
        return None
    said, counts = value.get("processing_status"), _counts(value)
    if said == "ended":
        status = "cancelled" if counts.get("canceled") else "expired" if counts.get("expired") else "completed"
    elif isinstance(said, str) and said:
        status = _STATUSES.get(said, said)
    else:
        return None
    output = value["id"] if said == "ended" and isinstance(value.get("results_url"), str) else ""
    done = counts.get("succeeded", 0) + counts.get("errored", 0)
    return RemoteBatch(value["id"], status, output=output, created_at=_time(value.get("created_at")), completed=done)


def count_of(value: Mapping[str, Any]) -> int:
    """Returns how many lines a batch has."""
    return sum(_counts(value).values())


def read_result(text: bytes, prefix: str) -> ProviderAnswer | None:
    """Returns what a line of a batch's results answers, as the provider wrote it; None: nothing that can be kept.

    `prefix` is what the ids of all lines of the batch begin with.
    """
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    result = line.get("result") if isinstance(line, dict) else None
    number = number_of(line.get("custom_id"), prefix) if isinstance(line, dict) else None
    if number is None or not isinstance(result, dict):
        return None
    message, error = result.get("message"), result.get("error")
    if result.get("type") == "succeeded" and isinstance(message, dict):
        usage = message.get("usage")
        told = read_usage(usage) if isinstance(usage, dict) else None
        return ProviderAnswer(number, 200, _inner(text, "message"), told)
    if result.get("type") == "errored" and isinstance(error, dict):
        inner = error.get("error")
        status = _OWN_FAULTS.get(str(inner.get("type"))) if isinstance(inner, dict) else None
        return None if status is None else ProviderAnswer(number, status, _inner(text, "error"), None)
    return None


def _inner(text: bytes, name: str) -> bytes:
    for step in ("result", name):
        place = find_fields(text, step)[-1]
        text = text[place.start : place.end]
    return text


def _counts(value: Mapping[str, Any]) -> dict[str, int]:
    counts = value.get("request_counts")
    told = counts.items() if isinstance(counts, dict) else ()
    return {name: number for name, number in told if type(number) is int and number > 0}


def _time(value: object) -> float:
    """Returns a time as seconds since 1970; 0.0: it is none."""
    return (rfc3339(value.encode(errors="replace")) if isinstance(value, str) else None) or 0.0
