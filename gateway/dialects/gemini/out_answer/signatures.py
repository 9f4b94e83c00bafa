"""Signatures of what Gemini thought, as a chat completion carries them to its caller and back.

A call's stands where Google's own chat completions have it, in `extra_content` of the call; all others are
`reasoning_details`. The Gemini API and Vertex AI refuse each other's, so those of Vertex say whose they are. A model that
thinks before it calls a tool wants the first call of a turn signed; for calls that another model made, Google documents a
word that stands for a signature. Source: ai.google.dev, Thought signatures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.dialects.base.base import Json, object_of, objects, text_of
from gateway.dialects.memory.remembered import IN_ID

FORMATS: Final[Mapping[str, str]] = {"gemini": "google-gemini-v1", "vertex": "google-vertex-v1"}
"""The `format` of `reasoning_details`, by the issuer of their signatures."""
STAND_IN: Final = "skip_thought_signature_validator"
"""Says that a call has no signature for a reason."""
_GEMINI: Final = "gemini"
_ENCRYPTED: Final = "reasoning.encrypted"
_TEXT: Final = "reasoning.text"


def format_of(issuer: str) -> str:
    """Returns the `format` of an issuer's details."""
    return FORMATS.get(issuer, FORMATS[_GEMINI])


def told_thought(text: str, issuer: str, index: int, *, is_first: bool) -> Json:
    """Returns a thought in words as a detail; of the pieces of one only the first tells the format.

    Clients put the strings of pieces together.
    """
    made = {"type": _TEXT, "text": text, "index": index}
    return made | ({"format": format_of(issuer)} if is_first else {})


def told_signature(signature: str, issuer: str, index: int) -> Json:
    """Returns the signature of words, or of a picture, as a detail."""
    return {"type": _ENCRYPTED, "data": signature, "format": format_of(issuer), "index": index}


def told_of_call(signature: str, issuer: str) -> Json:
    """Returns what a call has as its `extra_content`."""
    google = {"thought_signature": signature}
    return {"google": google if issuer != "vertex" else google | {"issuer": issuer}}


def signature_of_call(call: Json, issuer: str) -> str | None:
    """Returns a call's signature, if it is of this issuer; None: it has none, or another's."""
    if "extra_content" in call:
        google = object_of(object_of(call["extra_content"]).get("google"))
        signature = google.get("thought_signature")
        if isinstance(signature, str) and signature:
            return signature if google.get("issuer", _GEMINI) == (issuer or _GEMINI) else None
    id = call.get("id")
    if type(id) is not str or IN_ID not in id:
        return None
    signature = id.partition(IN_ID)[2]
    return signature if signature and issuer in ("", _GEMINI) else None


def signatures_in(message: Json, issuer: str) -> list[tuple[Any, str]]:
    """Returns the signatures of a message's details: each with the id of its call, or None where it is of words."""
    own = format_of(issuer)
    return [
        (detail.get("id"), data)
        for detail in objects(message.get("reasoning_details"))
        if detail.get("type") == _ENCRYPTED and is_own(detail, own) and (data := text_of(detail.get("data")))
    ]


def has_foreign(message: Json, issuer: str) -> bool:
    """Returns whether a message has details that another provider signed."""
    own = format_of(issuer)
    return not all(is_own(detail, own) for detail in objects(message.get("reasoning_details")))


def is_own(detail: Json, own: str) -> bool:
    """Returns whether a detail is of this format; clients may have put the same word together."""
    return text_of(detail.get("format")).startswith(own)
