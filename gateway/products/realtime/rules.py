"""Realtime sessions as data: which providers can have them, and the few events of one that are read.

First the providers. Then the events: what a response or a transcription has used, and errors; all others go on unparsed. A byte
search decides what is parsed. Source: OpenAI's Realtime API, server events `response.done`, `error`,
`conversation.item.input_audio_transcription.completed`, `session.created` and `session.updated`.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

import orjson

from gateway.core.openai.media import TRANSCRIPTION
from gateway.core.openai.usage import ABSURD, AUDIO_CHARACTERS, BYTES_PER_TOKEN, joined, read_usage
from gateway.core.snapshot import Provider
from gateway.core.types import EMULATOR, Usage, UsageParts

# --- the providers that can have realtime sessions, as far as the config says ---

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


# --- the events that are read ---

DONE, ERROR = b'"response.done"', b'"error"'
TRANSCRIBED, SESSION = b'_transcription.completed"', b"session."
OUTPUT, SOUND, DELTA = b'.delta"', b"audio.delta", b'"delta":'
HEAD_BYTES = 256
"""Errors, transcriptions and sessions say so near their beginning; what a model says comes later."""
MAX_READ_BYTES = 4 * 1024 * 1024
"""Longer events are not read."""


class ReadEvent(NamedTuple):
    """What an event says: the end of a response and its usage, or an error's code."""

    is_done: bool
    usage: Usage | None
    error: str | None
    """The provider's code of an error, or of a response that has failed; None: it went well."""
    transcribed: Usage | None = None
    """What the transcription of what was said has used, at a model of its own."""
    transcriber: str | None = None
    """The provider's name for that model, where the event is about the session."""


def is_read(data: bytes | bytearray) -> bool:
    """Returns whether an event has to be parsed."""
    head = data[:HEAD_BYTES]
    return DONE in data or ERROR in head or TRANSCRIBED in head or SESSION in head


def output_in(data: bytes | bytearray) -> Usage | None:
    """Returns the estimated output in an event that is not read; None: it brings none of a response.

    What it brings stands behind its envelope, as the last field of the event.
    """
    head = data[:HEAD_BYTES]
    at = data.find(DELTA, 0, 2 * HEAD_BYTES) if OUTPUT in head else -1
    if at < 0:
        return None
    size = max(0, len(data) - at - len(DELTA) - len(b'""}'))
    if SOUND not in head:
        return Usage(0, ceil(size / BYTES_PER_TOKEN), estimated=True)
    tokens = ceil(size / AUDIO_CHARACTERS)
    return Usage(0, tokens, estimated=True, parts=UsageParts(audio_output=tokens))


def usage_of_response(reported: Usage | None, came: Usage | None, input_tokens: int) -> Usage | None:
    """Returns what a response has used: as its provider reports it, else what has come of it.

    `came` is the estimate of that; None: nothing has. Of an input that no response can have had, that of the response before
    stands in, `input_tokens`: a session reads again what it has read.
    """
    if reported is None or reported.doubt != ABSURD:
        return reported or came
    usage = reported if reported.output or came is None else joined(reported, came, max)
    return usage if usage.input else replace(usage, input=input_tokens)


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
    kind, response = str(event.get("type")), event.get("response")
    if kind.endswith(("session.created", "session.updated")):
        return ReadEvent(is_done=False, usage=None, error=None, transcriber=_transcriber(event.get("session")))
    if kind == "conversation.item.input_audio_transcription.completed":
        reported = event.get("usage")
        read = read_usage(reported) if isinstance(reported, dict) else None
        used = None if read is None else TRANSCRIPTION.certain(read, b"", {})
        return ReadEvent(is_done=False, usage=None, error=None, transcribed=used)
    if kind != "response.done" or not isinstance(response, dict):
        return None
    usage, details = response.get("usage"), response.get("status_details")
    error = _code_of(details.get("error")) if response.get("status") == "failed" and isinstance(details, dict) else None
    return ReadEvent(is_done=True, usage=read_usage(usage) if isinstance(usage, dict) else None, error=error)


def error_event(code: str, kind: str, message: str) -> bytes:
    """Returns an error of ours as an event of the session."""
    error = {"type": kind, "code": code, "message": message, "param": None, "event_id": None}
    return orjson.dumps({"type": "error", "event_id": f"event_gateway_{code}", "error": error})


def _transcriber(session: object) -> str:
    """Returns the model that transcribes what a session hears, in either form of the API; empty: none does."""
    for way in (("audio", "input", "transcription", "model"), ("input_audio_transcription", "model")):
        at = session
        for step in way:
            at = at.get(step) if isinstance(at, dict) else None
        if isinstance(at, str):
            return at
    return ""


def _code_of(error: object) -> str:
    if not isinstance(error, dict):
        return "unknown"
    code = error.get("code") or error.get("type")
    return code if isinstance(code, str) else "unknown"
