"""Parts of a chat completion's messages as parts of a content: words, and media by their data or their place.

Nothing is decoded or fetched. Source: the Gemini API's reference, Content; media at any https URL are taken by the live API.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.dialects.base.base import Json, object_of
from gateway.dialects.schema_tools.media import Media, data_url, file_of, type_of_name

STORED: Final = "gs://"
"""Begins the place of what lies in Google's storage, which Vertex AI alone reads."""
PLACES: Final = ("https://", "http://", STORED)
_ANY_PICTURE: Final = "image/jpeg"
"""The type of a picture whose place does not tell it; the provider looks at what it finds there."""
_ANY_VIDEO: Final = "video/mp4"
_AUDIO: Final = {"audio/mpeg": "audio/mp3", "audio/x-m4a": "audio/mp4"}
"""Names of types that the provider has other ones for."""


def parts_of(content: Any, place: str, *, takes_media: bool = True) -> list[Json]:
    """Returns a message's content; empty words are left out. Raises InvalidRequest, naming the part that makes no sense."""
    if type(content) is str:
        return [{"text": content}] if content else []
    if content is None:
        return []
    if not isinstance(content, list):
        raise InvalidRequest(f"'{place}.content' must be a string or a list of parts.", param=f"{place}.content")
    made = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal"):
            text = part.get(kind)
            if not isinstance(text, str):
                where = f"{place}.content[{number}].{kind}"
                raise InvalidRequest(f"'{where}' must be a string.", param=where)
            if text:
                made.append({"text": text})
        elif takes_media and kind in ("image_url", "input_audio", "video_url", "file"):
            made.append(media_part(part, kind, f"{place}.content[{number}]"))
        else:
            where = f"{place}.content[{number}]"
            raise InvalidRequest(f"'{where}' is no part that this model's provider takes there.", param=where)
    return made


def media_part(part: Json, kind: str, place: str) -> Json:
    """Returns a part with media. Raises InvalidRequest."""
    if kind == "input_audio":
        return _audio(object_of(part.get(kind)), f"{place}.{kind}")
    if kind == "file":
        return _file(object_of(part.get(kind)), f"{place}.{kind}")
    url = url_in(part, kind)
    if url is None:
        raise InvalidRequest(f"'{place}.{kind}' needs a 'url'.", param=f"{place}.{kind}")
    media = data_url(url)
    if media is not None:
        return _inline(media)
    kind_there = type_of_name(url) or (_ANY_PICTURE if kind == "image_url" else _ANY_VIDEO)
    return {"fileData": {"fileUri": url, "mimeType": kind_there}}


def url_in(part: Json, kind: str) -> str | None:
    """Returns where the picture or video of a part is, or the thing itself."""
    inner = part.get(kind)
    url = inner.get("url") if isinstance(inner, dict) else inner
    return url if isinstance(url, str) and url else None


def _audio(inner: Json, place: str) -> Json:
    data, form = inner.get("data"), inner.get("format")
    if not isinstance(data, str) or not data or not isinstance(form, str):
        raise InvalidRequest(f"'{place}' needs 'data' and a 'format'.", param=place)
    return _inline(data_url(data) or Media(type_of_name(f".{form}") or f"audio/{form}", data))


def _file(inner: Json, place: str) -> Json:
    data, name = inner.get("file_data"), inner.get("filename")
    if not isinstance(data, str) or not data:
        raise InvalidRequest(f"'{place}' needs 'file_data'.", param=place)
    if data.startswith(PLACES):
        kind = type_of_name(data) or type_of_name(name)
        return {"fileData": {"fileUri": data} | ({"mimeType": _AUDIO.get(kind, kind)} if kind else {})}
    media = file_of(data, name)
    if not media.type:
        told = f"'{place}' needs a 'filename' with an ending, or 'file_data' as a 'data:' URL, that tells its type."
        raise InvalidRequest(told, param=place)
    return _inline(media)


def _inline(media: Media) -> Json:
    return {"inlineData": {"mimeType": _AUDIO.get(media.type, media.type), "data": media.data}}
