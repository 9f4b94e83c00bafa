"""What calls for speech, transcriptions and pictures use: as their provider reports it, and as request and answer show.

Their prices have several units: tokens, characters, seconds, pictures. Of each unit that a provider does not report there is
a number here, certain or estimated; which of them costs money is for the price list to say. Invariants: total on any body;
a form is not searched beyond its first kilobytes.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from gateway.core.openai.sound import find_seconds
from gateway.core.openai.usage import count_answers, read_seconds, read_usage
from gateway.core.types import Usage

MEDIA = frozenset(("images", "speech", "transcriptions"))
"""The endpoints whose calls may be billed by other units than tokens."""

_CHARACTERS_PER_TOKEN = 4
_HEARD_TOKENS_PER_S = 10
"""Of sound that is transcribed. With the text that comes of it, $6 and $10 a million are then about the $0.006 a minute that
OpenAI's price list gives for gpt-4o-transcribe."""
_WRITTEN_TOKENS_PER_S = 3.5
"""Of the text that comes of it, at 150 words a minute."""
_SPOKEN_TOKENS_PER_CHARACTER = 1.5
"""Of sound that is made. $12 a million are then about the $0.015 a minute that OpenAI's list gives for gpt-4o-mini-tts."""
_SOUND_BYTES_PER_S = 4000
"""Of a file whose length is not known: speech at 32 kbit/s, which few files fall below."""
_PICTURE_TOKENS = {"low": 272, "medium": 1056}
"""Of a picture of 1024 x 1024, by quality; others go by their area (OpenAI's guide to image generation)."""
_DEAREST_PICTURE_TOKENS = 4160
_UNKNOWN_AREA = 1.5
"""Of the picture's own choice, in pictures of 1024 x 1024."""


def read_media_answer(answer: dict[str, Any]) -> Usage | None:
    """Returns the usage that a whole answer reports, or of `verbose_json` the `duration`; None: it reports nothing."""
    told = answer.get("usage")
    usage = read_usage(told) if isinstance(told, dict) else None
    seconds = read_seconds(answer.get("duration"))
    if not seconds or (usage is not None and usage.parts.audio_s):
        return usage
    usage = Usage(0, 0) if usage is None else usage
    return replace(usage, parts=replace(usage.parts, audio_s=seconds))


def certain_usage(endpoint: str, told: Usage | None, body: bytes, asked: dict[str, Any]) -> Usage:
    """Returns what is certain of a call's usage: what its provider has told (None: nothing), and of its request the characters
    that are spoken, the seconds that a sound file says it has, the pictures.

    `asked` is the body, parsed, and empty for a form.
    """
    usage = Usage(0, 0) if told is None else told
    parts = usage.parts
    if endpoint == "speech":
        text = asked.get("input")
        characters = len(text) if isinstance(text, str) else len(body)
        parts = replace(parts, characters=characters, audio_output=usage.output)
    elif endpoint == "images":
        images = parts.images or count_answers(asked)
        parts = replace(parts, images=images, image_output=parts.image_output or usage.output)
    else:
        seconds = parts.audio_s or find_seconds(body) or 0.0
        parts = replace(parts, audio_s=seconds, audio_input=parts.audio_input or usage.input)
    return replace(usage, parts=parts)


def estimated_media_usage(
    endpoint: str, certain: Usage, body: bytes, asked: dict[str, Any], written: int | None = None
) -> Usage:
    """Returns `certain` with an estimate of everything else, and marked so.

    `written` are the tokens of a transcription as estimated by its text; None: there is none yet.
    """
    parts = certain.parts
    if endpoint == "transcriptions" and not parts.audio_s:
        parts = replace(parts, audio_s=len(body) / _SOUND_BYTES_PER_S)
    if certain.input or certain.output:
        return replace(certain, parts=parts, estimated=True)
    if endpoint == "speech":
        read = ceil(parts.characters / _CHARACTERS_PER_TOKEN)
        made = ceil(parts.characters * _SPOKEN_TOKENS_PER_CHARACTER)
        parts = replace(parts, audio_output=made)
    elif endpoint == "images":
        read = ceil(len(str(asked.get("prompt") or "")) / _CHARACTERS_PER_TOKEN)
        made = ceil(parts.images * _area_of(asked.get("size")) * _tokens_of(asked.get("quality")))
        parts = replace(parts, image_output=made)
    else:
        read = ceil(parts.audio_s * _HEARD_TOKENS_PER_S)
        made = ceil(parts.audio_s * _WRITTEN_TOKENS_PER_S) if written is None else written
        parts = replace(parts, audio_input=read)
    return replace(certain, input=read, output=made, parts=parts, estimated=True)


def _tokens_of(quality: object) -> int:
    return (
        _PICTURE_TOKENS.get(quality, _DEAREST_PICTURE_TOKENS) if isinstance(quality, str) else _DEAREST_PICTURE_TOKENS
    )


def _area_of(size: object) -> float:
    """Returns the area of a picture of that size, such as `1024x1536`, in pictures of 1024 x 1024."""
    sides = size.split("x") if isinstance(size, str) else []
    if len(sides) != 2 or not all(side.isdecimal() and len(side) < 6 for side in sides):
        return _UNKNOWN_AREA
    return int(sides[0]) * int(sides[1]) / 1024**2
