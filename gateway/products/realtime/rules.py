"""The few events of a realtime session that are read: what a response has used, and errors. All others go on unparsed.

A byte search decides what is parsed. Source: OpenAI's Realtime API, server events `response.done` and `error`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from gateway.core.openai.usage import read_usage
from gateway.core.retry_budgets import token_cost_usd
from gateway.core.snapshot.snapshot import Provider, Rates
from gateway.core.types import EMULATOR, AudioUsage, Usage

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
    usage: AudioUsage | None
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


def added(total: AudioUsage | None, more: AudioUsage) -> AudioUsage:
    """Returns both together."""
    if total is None:
        return more
    return AudioUsage(
        total.input + more.input,
        total.output + more.output,
        total.cached + more.cached,
        audio_input=total.audio_input + more.audio_input,
        audio_output=total.audio_output + more.audio_output,
        audio_cached=total.audio_cached + more.audio_cached,
    )


def error_event(code: str, kind: str, message: str) -> bytes:
    """Returns an error of ours as an event of the session."""
    error = {"type": kind, "code": code, "message": message, "param": None, "event_id": None}
    return orjson.dumps({"type": "error", "event_id": f"event_gateway_{code}", "error": error})


def _usage(said: dict[str, Any]) -> AudioUsage | None:
    """Realtime says `input_token_details` where Responses say `input_tokens_details`."""
    details = said.get("input_token_details")
    read = read_usage(said if details is None else {**said, "input_tokens_details": details})
    if read is None:
        return None
    cached = details.get("cached_tokens_details") if isinstance(details, dict) else None
    audio_cached = min(_audio(cached), read.cached)
    return AudioUsage(
        read.input,
        read.output,
        read.cached,
        audio_input=max(audio_cached, min(_audio(details), read.input)),
        audio_output=min(_audio(said.get("output_token_details")), read.output),
        audio_cached=audio_cached,
    )


def _audio(details: object) -> int:
    """The tokens that are sound; 0 where nobody says so."""
    count = details.get("audio_tokens") if isinstance(details, dict) else None
    return count if type(count) is int and count > 0 else 0


def _code_of(error: object) -> str:
    if not isinstance(error, dict):
        return "unknown"
    code = error.get("code") or error.get("type")
    return code if isinstance(code, str) else "unknown"


# What a realtime session costs: its sound at prices of its own, where the model has any.


def session_usd(rates: Rates | None, usage: Usage) -> float | None:
    """Returns the price of the tokens in US dollars; None: the model has no price."""
    usd = token_cost_usd(rates, usage.input, usage.output, usage.cached, usage.cache_written)
    if usd is None or rates is None or not isinstance(usage, AudioUsage):
        return usd
    fresh = usage.audio_input - usage.audio_cached
    usd += fresh * _more(rates.audio_input_usd, rates.input_usd)
    usd += usage.audio_cached * _more(rates.cached_audio_input_usd, rates.cached_input_usd)
    return usd + usage.audio_output * _more(rates.audio_output_usd, rates.output_usd)


def _more(own: float | None, usual: float) -> float:
    """What a token of sound costs beyond one of text."""
    return 0.0 if own is None else own - usual
