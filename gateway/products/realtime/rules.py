"""The few events of a realtime session that are read: what a response has used, and errors. All others go on unparsed.

A byte search decides what is parsed. Source: OpenAI's Realtime API, server events `response.done` and `error`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NamedTuple

import orjson

from gateway.core.openai.usage import read_usage
from gateway.core.snapshot.snapshot import Provider
from gateway.core.types import EMULATOR, Usage, UsageParts

# Which providers can have realtime sessions, as far as the config tells.


SPEAK_REALTIME = frozenset(("openai", "azure"))
"""The dialects with a Realtime API, of OpenAI's form."""


def why_no_sessions(provider: Provider) -> str | None:
    """Returns what keeps a provider from having realtime sessions, to follow its name; None: nothing does."""
    if provider.base_url.startswith(EMULATOR):
        return "is the emulator"
    if provider.dialect not in SPEAK_REALTIME:
        return f"has the dialect {provider.dialect}, whose API has none"
    if provider.auth is not None:
        return "is called with a cloud's credential (auth), and the endpoints of clouds that take it have none"
    if provider.proxy is not None and not provider.proxy.startswith("http://"):
        return "is behind a proxy that is not http://"
    return None


DONE, ERROR = b'"response.done"', b'"error"'
HEAD_BYTES = 256
"""An error says so near its beginning; what a model says comes later."""
MAX_READ_BYTES = 4 * 1024 * 1024
"""Longer events are not read."""


class ReadEvent(NamedTuple):
    """What an event says: the end of a response and its usage, or an error's code."""

    is_done: bool
    usage: Usage | None
    error: str | None
    """The provider's code of an error, or of a response that has failed; None: it went well."""


def is_read(data: bytes | bytearray) -> bool:
    """Returns whether an event has to be parsed."""
    return DONE in data or ERROR in data[:HEAD_BYTES]


def read_event(data: bytes | bytearray) -> ReadEvent | None:
    """Returns what an event says; None: nothing that counts here."""
    if len(data) > MAX_READ_BYTES:
        return None
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(event, dict):
        return None
    if event.get("type") == "error":
        return ReadEvent(is_done=False, usage=None, error=_code_of(event.get("error")))
    response = event.get("response")
    if event.get("type") != "response.done" or not isinstance(response, dict):
        return None
    usage, details = response.get("usage"), response.get("status_details")
    error = _code_of(details.get("error")) if response.get("status") == "failed" and isinstance(details, dict) else None
    return ReadEvent(is_done=True, usage=_usage(usage) if isinstance(usage, dict) else None, error=error)


def added(total: Usage | None, more: Usage) -> Usage:
    """Returns both together."""
    if total is None:
        return more
    parts = {one.name: getattr(total.parts, one.name) + getattr(more.parts, one.name) for one in fields(UsageParts)}
    return Usage(
        total.input + more.input, total.output + more.output, total.cached + more.cached, parts=UsageParts(**parts)
    )


def error_event(code: str, kind: str, message: str) -> bytes:
    """Returns an error of ours as an event of the session."""
    error = {"type": kind, "code": code, "message": message, "param": None, "event_id": None}
    return orjson.dumps({"type": "error", "event_id": f"event_gateway_{code}", "error": error})


def _usage(said: dict[str, Any]) -> Usage | None:
    """Realtime says `input_token_details` where Responses say `input_tokens_details`."""
    details = said.get("input_token_details")
    read = read_usage(said if details is None else {**said, "input_tokens_details": details})
    if read is None:
        return None
    cached = details.get("cached_tokens_details") if isinstance(details, dict) else None
    audio_cached = min(_part(cached, "audio_tokens"), read.cached)
    image_cached = min(_part(cached, "image_tokens"), read.cached - audio_cached)
    audio_input = max(audio_cached, min(_part(details, "audio_tokens"), read.input))
    parts = replace(
        read.parts,
        audio_input=audio_input,
        audio_output=min(_part(said.get("output_token_details"), "audio_tokens"), read.output),
        audio_cached=audio_cached,
        image_input=max(image_cached, min(_part(details, "image_tokens"), read.input - audio_input)),
        image_cached=image_cached,
    )
    return replace(read, parts=parts)


def _part(details: object, name: str) -> int:
    """The tokens of one modality; 0 where nobody says so."""
    count = details.get(name) if isinstance(details, dict) else None
    return count if type(count) is int and count > 0 else 0


def _code_of(error: object) -> str:
    if not isinstance(error, dict):
        return "unknown"
    code = error.get("code") or error.get("type")
    return code if isinstance(code, str) else "unknown"
