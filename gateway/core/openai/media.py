"""What calls for speech, transcriptions and pictures use: as their provider reports it, and as request and answer show; and
what other calls bring and ask for beside their text.

First the usage of those calls, then the length of a sound file (`find_seconds`), then what stands beside the text
(`Extras`). Their prices have several units: tokens, characters, seconds, pictures. Of each unit that a provider does not
report there is a number here, certain or estimated; which of them costs money is for the price list to say. Invariants:
total on any body; a form is not searched beyond its first kilobytes.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Any, Final, Literal, NamedTuple

from gateway.core.openai.bodies import count_answers
from gateway.core.openai.sse import json_object
from gateway.core.openai.usage import MOST_SECONDS, read_seconds, read_usage
from gateway.core.types import Usage, UsageParts

_CHARACTERS_PER_TOKEN = 4
_AUDIO_INPUT_TOKENS_PER_S = 10
"""Tokens of sound that is transcribed. With the text that comes of it, $6 and $10 a million are then about the $0.006 a minute
that OpenAI's price list gives for gpt-4o-transcribe."""
_WRITTEN_TOKENS_PER_S = 3.5
"""Tokens of the text that comes of a transcription, at 150 words a minute."""
_AUDIO_OUTPUT_TOKENS_PER_CHARACTER = 1.5
"""Tokens of sound that is made. $12 a million are then about the $0.015 a minute of OpenAI's list for gpt-4o-mini-tts."""
_SOUND_BYTES_PER_S = 4000
"""Bytes of a file whose length is not known: speech at 32 kbit/s, which few files fall below."""
_PICTURE_TOKENS = {"low": 272, "medium": 1056}
"""Tokens of a picture of 1024 x 1024, by quality; others go by their area (OpenAI's guide to image generation)."""
_DEAREST_PICTURE_TOKENS = 4160
_UNKNOWN_AREA = 1.5
"""The area of a picture that chooses its own size, in pictures of 1024 x 1024."""


def read_media_answer(answer: dict[str, Any]) -> Usage | None:
    """Returns the usage that a whole answer reports, or of `verbose_json` the `duration`; None: it reports nothing."""
    reported = answer.get("usage")
    usage = read_usage(reported) if isinstance(reported, dict) else None
    seconds = read_seconds(answer.get("duration"))
    if not seconds or (usage is not None and usage.parts.audio_s):
        return usage
    usage = Usage(0, 0) if usage is None else usage
    return replace(usage, parts=replace(usage.parts, audio_s=seconds))


class _Speech:
    """Speech that is made of a text. Implements `MediaUsage`, as the next two."""

    def certain(self, reported: Usage | None, body: bytes, request: dict[str, Any]) -> Usage:
        usage = Usage(0, 0) if reported is None else reported
        text = request.get("input")
        characters = len(text) if isinstance(text, str) else len(body)
        return replace(usage, parts=replace(usage.parts, characters=characters, audio_output=usage.output))

    def estimated(self, certain: Usage, body: bytes, request: dict[str, Any], written: int | None = None) -> Usage:
        parts = certain.parts
        if certain.input and certain.output:
            return replace(certain, estimated=True)
        made = ceil(parts.characters * _AUDIO_OUTPUT_TOKENS_PER_CHARACTER)
        parts = replace(parts, audio_output=parts.audio_output or made)
        return _filled(certain, parts, ceil(parts.characters / _CHARACTERS_PER_TOKEN), made)


class _Pictured:
    """Pictures that are made as a text says."""

    def certain(self, reported: Usage | None, body: bytes, request: dict[str, Any]) -> Usage:
        usage = Usage(0, 0) if reported is None else reported
        parts = usage.parts
        images = parts.images or count_answers(request)
        return replace(usage, parts=replace(parts, images=images, image_output=parts.image_output or usage.output))

    def estimated(self, certain: Usage, body: bytes, request: dict[str, Any], written: int | None = None) -> Usage:
        parts = certain.parts
        if certain.input and certain.output:
            return replace(certain, estimated=True)
        made = ceil(parts.images * _area_of(request.get("size")) * _tokens_of(request.get("quality")))
        parts = replace(parts, image_output=parts.image_output or made)
        return _filled(certain, parts, ceil(len(str(request.get("prompt") or "")) / _CHARACTERS_PER_TOKEN), made)


class _Transcribed:
    """Text that is made of sound."""

    def certain(self, reported: Usage | None, body: bytes, request: dict[str, Any]) -> Usage:
        usage = Usage(0, 0) if reported is None else reported
        parts = usage.parts
        seconds = parts.audio_s or find_seconds(body) or 0.0
        return replace(usage, parts=replace(parts, audio_s=seconds, audio_input=parts.audio_input or usage.input))

    def estimated(self, certain: Usage, body: bytes, request: dict[str, Any], written: int | None = None) -> Usage:
        parts = certain.parts
        if not parts.audio_s:
            parts = replace(parts, audio_s=len(body) / _SOUND_BYTES_PER_S)
        if certain.input and certain.output:
            return replace(certain, parts=parts, estimated=True)
        read = ceil(parts.audio_s * _AUDIO_INPUT_TOKENS_PER_S)
        made = ceil(parts.audio_s * _WRITTEN_TOKENS_PER_S) if written is None else written
        return _filled(certain, replace(parts, audio_input=parts.audio_input or read), read, made)


SPEECH: Final = _Speech()
PICTURES: Final = _Pictured()
TRANSCRIPTION: Final = _Transcribed()


def _filled(certain: Usage, parts: UsageParts, read: int, made: int) -> Usage:
    """Returns the usage with these tokens where none are certain."""
    return replace(certain, input=certain.input or read, output=certain.output or made, parts=parts, estimated=True)


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


# --- the length of the sound file of a form, by its head: WAV, FLAC, MP3, Ogg, MP4 ---
#
# Sources: RFC 7578 (forms); the WAVE format (Microsoft, IBM); RFC 9639, 8.2 (FLAC); ISO 11172-3, 2.4.2.3, and the Xing tag
# (MP3); RFC 3533 and 7845 (Ogg, Opus); ISO 14496-12, 8.2.2 (MP4).


_HEAD_BYTES = 65_536
"""The part of a form in which its file has to begin."""
_PART_HEAD_BYTES = 4096
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
"""The kbit/s by the number in a frame's head: of MPEG-1, and of the versions with lower sampling rates."""


def find_seconds(form: bytes) -> float | None:
    """Returns how long the sound in a form is, in seconds; None: there is no file, or it does not say."""
    named = form.find(b"filename", 0, _HEAD_BYTES)
    start = form.find(b"\r\n\r\n", named, named + _PART_HEAD_BYTES) + 4 if named >= 0 else 0
    return None if start < 4 else _seconds_of(form, start)


def _seconds_of(form: bytes, start: int) -> float | None:
    """Returns how long the sound, or film, is that begins there and goes on to the end; None: it does not say."""
    head = form[start : start + 12]
    if head.startswith(b"RIFF") and head.endswith(b"WAVE"):
        units, per_s = _wav(form, start + 12)
    elif head.startswith(b"fLaC"):
        # 20 bits are the rate, 8 the channels and the size of a sample, 36 the number of samples.
        length = _big(form, start + 18, 8)
        units, per_s = length & (1 << 36) - 1, length >> 44
    elif head.startswith(b"OggS"):
        # The position of the last page is in samples.
        page = form.rfind(b"OggS", max(start, len(form) - 2 * _OGG_PAGE_BYTES))
        vorbis = form.find(b"\x01vorbis", start, start + 256)
        hertz = _little(form, vorbis + 12, 4) if vorbis >= 0 else 0
        if form.find(b"OpusHead", start, start + 256) >= 0:
            hertz = _OPUS_HZ
        position = _little(form, page + 6, 8)
        units, per_s = position if position < 1 << 63 else 0, hertz  # all ones: no packet ends on the page
    elif head[4:8] == b"ftyp":
        units, per_s = _mp4(form, start)
    else:
        units, per_s = _mp3(form, start)
    seconds = units / per_s if per_s else 0.0
    return seconds if 0 < seconds < MOST_SECONDS else None


def _wav(form: bytes, at: int) -> tuple[int, int]:
    """Returns the bytes of sound, and how many a second has."""
    per_s = 0
    for _ in range(_MOST_BOXES):
        name, size = form[at : at + 4], _little(form, at + 4, 4)
        if name == b"fmt " and _little(form, at + 8, 2) in _PCM:
            per_s = _little(form, at + 12, 4) * _little(form, at + 20, 2)
        if name == b"data":  # a recorder that did not know the size has written the largest
            return min(size, len(form) - at - 8), per_s
        # A chunk begins at an even offset.
        at += 8 + size + size % 2
    return 0, 0


def _mp4(form: bytes, at: int) -> tuple[int, int]:
    """Returns the duration, and its units in a second."""
    for _ in range(_MOST_BOXES):
        size, name = _big(form, at, 4), form[at + 4 : at + 8]
        # The size stands behind the name then, in eight bytes (ISO 14496-12, 4.2).
        if size == 1:
            size = _big(form, at + 8, 8)
        if name == b"moov":
            box = form.find(b"mvhd", at, at + 256)
            if box < 0:
                return 0, 0
            # The second version of this box has times of eight bytes.
            if form[box + 4 : box + 5] == b"\x01":
                return _big(form, box + 28, 8), _big(form, box + 24, 4)
            return _big(form, box + 20, 4), _big(form, box + 16, 4)
        # No way forward: a size of 0 means the last box, and any other of these is shorter than its own head.
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
    # No frame of layer III: a sync word is missing, or a reserved number stands there.
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


# --- what a request brings beside its text: pictures, sound, films, documents, searches, writes to a cache ---
#
# Providers count files by rules of their own; here the dearest of them holds, because budgets reserve by it. Sources: OpenAI's
# guides to images (32 x 32 pixels a patch, 2.46 tokens a patch for nano models; gpt-4o-mini 2,833 and 5,667 where others have
# 85 and 170) and to realtime costs (10 tokens a second of sound); Anthropic's guide to vision (4,784 tokens at most) and about
# 2,400 tokens for a page of a PDF file; Gemini's guide to tokens (32 tokens a second of sound, 263 of a film without it).


_Kind = Literal["audio", "image", "video", "document"]
_TYPES: Final[tuple[_Kind, ...]] = ("audio", "image", "video")
_KINDS: Final[dict[str, _Kind]] = {
    "input_audio": "audio",
    "audio_url": "audio",
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "computer_screenshot": "image",
    "video_url": "video",
    "file": "document",
    "input_file": "document",
    "document": "document",
}
"""The kinds of files by the type of a part of chat completions, Responses and Messages."""
_BLOBS: Final = ("inlineData", "inline_data", "fileData", "file_data")
_HAS_EXTRAS: Final = re.compile(
    rb'"(?:input_audio|audio_url|image_url|input_image|image|computer_screenshot|video_url|file|input_file|document|inlineData'
    rb'|inline_data|fileData|file_data|web_search[a-z_0-9]*|google_?[Ss]earch[A-Za-z_]*)"'
)
"""Any of the names below."""
_TEXT_SOURCES: Final = ("text", "content")
_ESTIMATED, _ESTIMATED_LOW = 765, 85
"""The tokens that the estimate of a request takes a file for, and a picture of low detail."""
_TOKENS_PER_S = {"audio": 32, "video": 263 + 32}
_BYTES_PER_S = {"audio": _SOUND_BYTES_PER_S, "video": 30_000}
"""Bytes a second of files that do not say how long they are: sound at 32 kbit/s, films at 240 kbit/s, which few fall below."""
_PIXELS_PER_TOKEN = 32 * 32 / 2.46
_LOW_DETAIL_PIXELS = 512 * 512
_LEAST_OF_PICTURE, _MOST_OF_PICTURE, _MOST_OF_ORIGINAL = 425, 5_000, 24_600
_PAGE_TOKENS, _PAGE_BYTES = 2_500, 30_000
_UNSEEN_TOKENS = 5_000
"""Tokens of a file behind a URL or an id."""
_DEAR_PICTURES: Final = (("4o-mini", 20),)
"""Models whose pictures count more tokens, by a part of their names, and so many times more: of one tile 8,500."""
_OPENAI_PART = 10 / 32
"""The share of the tokens of sound that counts at models of OpenAI's."""
_ALWAYS_SEARCHING: Final = "sonar-deep-research"
_ITS_SEARCHES = 30
"""Perplexity's model searches unasked: 19 times in its API reference, 30 times in the example of OpenRouter's price list."""
UNBOUNDED_SEARCHES = 10
"""Searches that are reckoned with where a request sets no bound on them."""
SEARCH_TOKENS = 8_000
"""Tokens of what one search finds, which the model reads: OpenAI's price list has such a block for some of its models."""
SEARCHING: Final = frozenset(("tools", "web_search_options", "max_tool_calls"))
"""The fields of a request that say whether, and how often, the web is searched."""
_SEARCH_TOOLS: Final = ("googleSearch", "google_search", "googleSearchRetrieval", "google_search_retrieval")


class Extras(NamedTuple):
    """What a request brings and asks for beside its text. The files are in tokens."""

    audio: int = 0
    image: int = 0
    video: int = 0
    document: int = 0
    estimated: int = 0
    """The tokens for which the estimate of the request takes these files."""
    searches: int = 0
    """Searches of the web that it allows."""
    writes_cache: bool = False
    """It asks its provider to keep some of its input in a cache."""
    writes_cache_1h: bool = False
    """The cache keeps it for an hour, which costs more."""

    @property
    def files(self) -> int:
        """Returns the tokens of all files."""
        return self.audio + self.image + self.video + self.document

    def at(self, model: str) -> Extras:
        """Returns the same as this model of a provider counts it."""
        if _ALWAYS_SEARCHING in model:
            return self._replace(searches=_ITS_SEARCHES)
        if not self.audio and not self.image:
            return self
        sound = _OPENAI_PART if "gpt-" in model else 1
        seen = next((more for name, more in _DEAR_PICTURES if name in model), 1)
        return self._replace(audio=ceil(self.audio * sound), image=self.image * seen)


NO_EXTRAS: Final = Extras()


def find_extras(body: bytes, parsed: dict[str, Any] | None, *, heeds_detail: bool = True) -> Extras:
    """Returns what a request of any language brings and asks for beside its text.

    `parsed` is `body`, parsed; None: it is parsed here, if a plain search finds anything. Without `heeds_detail` a picture of
    low detail may be looked at as any other.
    """
    if parsed is None and _HAS_EXTRAS.search(body) is not None:
        parsed = json_object(body)
    if parsed is None:
        return NO_EXTRAS._replace(**_cache_writes(body))
    tokens = dict.fromkeys(("audio", "image", "video", "document", "estimated"), 0)
    for kind, part in _files_in([value for name, value in parsed.items() if name != "tools"]):
        is_low = kind == "image" and _detail_of(part) == "low"
        tokens[kind] += _file_tokens(kind, part, is_low=is_low and heeds_detail)
        tokens["estimated"] += _ESTIMATED_LOW if is_low else _ESTIMATED
    return Extras._make([*tokens.values(), count_searches(parsed), *_cache_writes(body).values()])


def estimate_extras(files: int, data_bytes: int, *, shows_images: bool, hears: bool) -> Extras:
    """Returns the extras of a body that is too large to be parsed, which has so many files in Base64 of so many bytes.

    `shows_images`: it names pictures, and its files are taken for such; else for sound where the model `hears`, and for
    documents elsewhere.
    """
    known = Extras(estimated=files * _ESTIMATED, writes_cache=True)
    size = data_bytes * 3 // 4
    if shows_images:
        return known._replace(image=files * _MOST_OF_PICTURE)
    if hears:
        return known._replace(audio=ceil(size / _SOUND_BYTES_PER_S * _TOKENS_PER_S["audio"]))
    return known._replace(document=ceil(size / _PAGE_BYTES * _PAGE_TOKENS))


def _cache_writes(body: bytes) -> dict[str, bool]:
    """Returns whether a request marks input for the provider's cache, and for an hour, as fields of `Extras`.

    OpenAI's mark is put into Anthropic's language as one for an hour.
    """
    is_openais = b'"prompt_cache_breakpoint"' in body
    is_marked = is_openais or b'"cache_control"' in body
    return {"writes_cache": is_marked, "writes_cache_1h": is_openais or (is_marked and b'"1h"' in body)}


def _files_in(values: list[Any]) -> Iterator[tuple[_Kind, dict[str, Any]]]:
    """Yields the files in parts at any depth, with their kinds."""
    while values:
        value = values.pop()
        if type(value) is list:
            values += value
        elif type(value) is dict:
            named = value.get("type")
            kind = _KINDS.get(named) if type(named) is str else None
            blob = next((one for name in _BLOBS if type(one := value.get(name)) is dict), None)
            source = value.get("source")
            if blob is not None:
                mime = str(blob.get("mimeType") or blob.get("mime_type")).partition("/")[0]
                yield next((one for one in _TYPES if one == mime), "document"), blob
            elif kind is not None and not (type(source) is dict and source.get("type") in _TEXT_SOURCES):
                yield kind, value
            else:
                values += value.values()


def _file_tokens(kind: _Kind, part: dict[str, Any], *, is_low: bool) -> int:
    data = _data_in(part)
    if is_low and not data:
        return ceil(_LOW_DETAIL_PIXELS / _PIXELS_PER_TOKEN)
    if not data:
        return _UNSEEN_TOKENS
    if kind == "image":
        most = _MOST_OF_ORIGINAL if _detail_of(part) == "original" else _MOST_OF_PICTURE
        pixels = _pixels_of(_decoded(data[:_HEAD_BYTES])) or most * _PIXELS_PER_TOKEN
        pixels = min(pixels, _LOW_DETAIL_PIXELS) if is_low else pixels
        return min(max(ceil(pixels / _PIXELS_PER_TOKEN), _LEAST_OF_PICTURE), most)
    size = len(data) * 3 // 4
    if kind == "document":
        return max(_PAGE_TOKENS, ceil(size / _PAGE_BYTES * _PAGE_TOKENS))
    head = _decoded(data[:_HEAD_BYTES]).ljust(size, b"\0")  # the rest of a file says little about its length
    seconds = _seconds_of(head, 0) or size / _BYTES_PER_S[kind]
    return ceil(seconds * _TOKENS_PER_S[kind])


def _data_in(part: dict[str, Any]) -> str:
    """Returns the Base64 of a file; empty: it is somewhere else."""
    for name, value in part.items():
        if type(value) is dict and (data := _data_in(value)):
            return data
        if type(value) is str:
            if value.startswith("data:"):
                return value.partition("base64,")[2]
            if name in ("data", "file_data"):
                return value
    return ""


def _detail_of(part: dict[str, Any]) -> str:
    image = part.get("image_url")
    return str((image if type(image) is dict else part).get("detail"))


def _decoded(text: str) -> bytes:
    """Returns the bytes of a Base64 text; empty: it is none."""
    try:
        return b64decode(text[: len(text) // 4 * 4])
    except ValueError:
        return b""


def _pixels_of(head: bytes) -> int:
    """Returns the pixels of a picture by its first bytes: PNG, GIF, WebP, JPEG; 0: it does not say.

    Sources: W3C PNG, 11.2.1; GIF89a, 18; RFC 9649, 2.5 to 2.7 (WebP); ITU-T T.81, B.2.2 (JPEG).
    """
    if head.startswith(b"\x89PNG"):
        return _big(head, 16, 4) * _big(head, 20, 4)
    if head.startswith(b"GIF8"):
        return _little(head, 6, 2) * _little(head, 8, 2)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        if head[12:16] == b"VP8X":
            return (_little(head, 24, 3) + 1) * (_little(head, 27, 3) + 1)
        if head[12:16] == b"VP8L":
            bits = _little(head, 21, 4)
            return ((bits & 0x3FFF) + 1) * ((bits >> 14 & 0x3FFF) + 1)
        return (_little(head, 26, 2) & 0x3FFF) * (_little(head, 28, 2) & 0x3FFF)
    at = 2 if head.startswith(b"\xff\xd8") else len(head)
    while at + 9 <= len(head) and head[at] == 0xFF:
        # The heads of frames; the three numbers left out of the range mean tables and an extension.
        if 0xC0 <= head[at + 1] <= 0xCF and head[at + 1] not in (0xC4, 0xC8, 0xCC):
            return _big(head, at + 5, 2) * _big(head, at + 7, 2)
        at += 2 + max(2, _big(head, at + 2, 2))
    return 0


def count_searches(parsed: dict[str, Any]) -> int:
    """Returns how often the web may be searched: as often as each tool for it allows, or the request all of its tools."""
    tools, searches = parsed.get("tools"), 0
    total = _bound_of(parsed.get("max_tool_calls"))
    for tool in tools if type(tools) is list else ():
        if type(tool) is not dict:
            continue
        if str(tool.get("type")).startswith("web_search"):
            searches += _bound_of(tool.get("max_uses")) or total or UNBOUNDED_SEARCHES
        elif any(name in tool for name in _SEARCH_TOOLS):
            searches += UNBOUNDED_SEARCHES
    return searches or (UNBOUNDED_SEARCHES if parsed.get("web_search_options") is not None else 0)


def _bound_of(value: object) -> int:
    return value if type(value) is int and 0 < value < 10_000 else 0
