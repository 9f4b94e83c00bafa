"""What calls for speech, transcriptions and pictures use: as their provider reports it, and as request and answer show.

Their prices have several units: tokens, characters, seconds, pictures. Of each unit that a provider does not report there is
a number here, certain or estimated; which of them costs money is for the price list to say. Invariants: total on any body;
a form is not searched beyond its first kilobytes.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

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


# How long the sound file of a form is, by what its head says: WAV, FLAC, MP3, Ogg, MP4.
#
# Sources: RFC 7578 (forms); the WAVE format (Microsoft, IBM); RFC 9639, 8.2 (FLAC); ISO 11172-3, 2.4.2.3, and the Xing tag
# (MP3); RFC 3533 and 7845 (Ogg, Opus); ISO 14496-12, 8.2.2 (MP4).


_HEAD_BYTES = 65_536
"""The part of a form in which its file has to begin."""
_PART_HEAD_BYTES = 4096
_MOST_S = 100_000.0
"""No sound of 25 MB is as long."""
_MOST_BOXES = 64
"""Chunks of a WAV file and boxes of an MP4 file that are looked at."""
_PCM = frozenset((1, 3, 0xFFFE))
"""Formats of WAV files whose samples all have the same size."""
_OGG_PAGE_BYTES = 65_307
_OPUS_HZ = 48_000
_MP3_HZ = (44_100, 48_000, 32_000)
_MP3_KBPS = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
)
"""By the number in a frame's head; of MPEG-1, and of the versions with lower sampling rates."""


def find_seconds(form: bytes) -> float | None:
    """Returns how long the sound in a form is, in seconds; None: there is no file, or it does not say."""
    named = form.find(b"filename", 0, _HEAD_BYTES)
    start = form.find(b"\r\n\r\n", named, named + _PART_HEAD_BYTES) + 4 if named >= 0 else 0
    if start < 4:
        return None
    head = form[start : start + 12]
    if head.startswith(b"RIFF") and head.endswith(b"WAVE"):
        units, per_s = _wav(form, start + 12)
    elif head.startswith(b"fLaC"):
        told = _big(form, start + 18, 8)
        units, per_s = told & (1 << 36) - 1, told >> 44
    elif head.startswith(b"OggS"):
        units, per_s = _ogg(form, start)
    elif head[4:8] == b"ftyp":
        units, per_s = _mp4(form, start)
    else:
        units, per_s = _mp3(form, start)
    seconds = units / per_s if per_s else 0.0
    return seconds if 0 < seconds < _MOST_S else None


def _wav(form: bytes, at: int) -> tuple[int, int]:
    """Returns the bytes of sound, and how many a second has."""
    per_s = 0
    for _ in range(_MOST_BOXES):
        name, size = form[at : at + 4], _little(form, at + 4, 4)
        if name == b"fmt " and _little(form, at + 8, 2) in _PCM:
            per_s = _little(form, at + 12, 4) * _little(form, at + 20, 2)
        if name == b"data":  # a recorder that did not know the size has written the largest
            return min(size, len(form) - at - 8), per_s
        at += 8 + size + size % 2
    return 0, 0


def _ogg(form: bytes, start: int) -> tuple[int, int]:
    """Returns the position of the last page, in samples, and the sampling rate."""
    page = form.rfind(b"OggS", max(start, len(form) - 2 * _OGG_PAGE_BYTES))
    vorbis = form.find(b"\x01vorbis", start, start + 256)
    hertz = _little(form, vorbis + 12, 4) if vorbis >= 0 else 0
    if form.find(b"OpusHead", start, start + 256) >= 0:
        hertz = _OPUS_HZ
    position = _little(form, page + 6, 8)
    return position if position < 1 << 63 else 0, hertz  # all ones: no packet ends on the page


def _mp4(form: bytes, at: int) -> tuple[int, int]:
    """Returns the duration, and its units in a second."""
    for _ in range(_MOST_BOXES):
        size, name = _big(form, at, 4), form[at + 4 : at + 8]
        if size == 1:
            size = _big(form, at + 8, 8)
        if name == b"moov":
            box = form.find(b"mvhd", at, at + 256)
            if box < 0:
                return 0, 0
            if form[box + 4 : box + 5] == b"\x01":
                return _big(form, box + 28, 8), _big(form, box + 24, 4)
            return _big(form, box + 20, 4), _big(form, box + 16, 4)
        if size < 8:
            return 0, 0
        at += size
    return 0, 0


def _mp3(form: bytes, at: int) -> tuple[int, int]:
    """Returns the samples and their rate where a tag counts the frames, else the bits and the rate of the first frame."""
    if form.startswith(b"ID3", at):
        size = 0
        for byte in form[at + 6 : at + 10]:  # seven bits of each
            size = size << 7 | byte & 0x7F
        at += 10 + size
    frame = _big(form, at, 4)
    version, layer, bitrate, hertz = frame >> 19 & 3, frame >> 17 & 3, frame >> 12 & 15, frame >> 10 & 3
    if frame >> 21 != 0x7FF or version == 1 or layer != 1 or hertz == 3:
        return 0, 0
    is_mpeg1 = version == 3
    tag = max(form.find(b"Xing", at, at + 64), form.find(b"Info", at, at + 64))
    if tag >= 0 and _big(form, tag + 4, 4) & 1:
        per_s = _MP3_HZ[hertz] // (1 if is_mpeg1 else 2 if version == 2 else 4)
        return _big(form, tag + 8, 4) * (1152 if is_mpeg1 else 576), per_s
    return (len(form) - at) * 8, _MP3_KBPS[not is_mpeg1][bitrate] * 1000


def _big(form: bytes, at: int, size: int) -> int:
    return int.from_bytes(form[at : at + size], "big")


def _little(form: bytes, at: int, size: int) -> int:
    return int.from_bytes(form[at : at + size], "little")
