"""Parts of a content that a user says, as parts of a chat completion's message. Nothing is decoded or fetched."""

from __future__ import annotations

from typing import Final

from gateway.core.errors import InvalidRequest
from gateway.dialects.base.base import Json, text_of
from gateway.dialects.gemini.in_answer.names import inner
from gateway.dialects.schema_tools.media import type_of_name

FORMATS: Final = {
    "audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3", "audio/flac": "flac",
    "audio/ogg": "ogg", "audio/aac": "aac", "audio/mp4": "m4a", "audio/aiff": "aiff", "audio/webm": "webm",
}  # fmt: skip
"""What chat completions call a sound's format, by its type."""
_ENDINGS: Final = {
    "application/pdf": "pdf",
    "text/plain": "txt",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
}
OWN_FILES: Final = ("gs://", "https://generativelanguage.googleapis.com/", "files/")
"""Begins the places of what was put at Google before, which nobody else can read."""


def chat_part(part: Json, place: str) -> Json:
    """Returns a part of a message. Raises InvalidRequest, naming the place, where there is none for it."""
    if isinstance(text := part.get("text"), str):
        return {"type": "text", "text": text}
    if data := inner(part, "inlineData"):
        return _inline(text_of(data.get("mimeType")), text_of(data.get("data")), f"{place}.inlineData")
    file = inner(part, "fileData")
    url, kind = text_of(file.get("fileUri")), text_of(file.get("mimeType"))
    if not url or url.startswith(OWN_FILES):
        raise InvalidRequest(f"'{place}' is no part that this model's provider takes.", param=place)
    return at_place(url, kind or type_of_name(url))


def _inline(kind: str, data: str, place: str) -> Json:
    if not kind or not data:
        raise InvalidRequest(f"'{place}' needs a 'mimeType' and 'data'.", param=place)
    # Google's clients write Base64 for URLs; what others take is the usual alphabet.
    data = data.translate(_USUAL) if "-" in data or "_" in data else data
    if kind.startswith("audio/"):
        form = FORMATS.get(kind) or kind.removeprefix("audio/")
        return {"type": "input_audio", "input_audio": {"data": data, "format": form}}
    return at_place(f"data:{kind};base64,{data}", kind)


_USUAL: Final = str.maketrans("-_", "+/")


def at_place(url: str, kind: str) -> Json:
    """Returns the part for what is at a URL, or in one."""
    if kind.startswith("video/"):
        return {"type": "video_url", "video_url": {"url": url}}
    if kind.startswith("image/") or not kind:
        return {"type": "image_url", "image_url": {"url": url}}
    ending = _ENDINGS.get(kind) or kind.rpartition("/")[2]
    return {"type": "file", "file": {"filename": f"file.{ending}", "file_data": url}}
