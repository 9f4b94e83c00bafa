"""Pictures and files as chat completions say them: `data:` URLs, and base64 with a name.

Data goes on as it came, as base64 text; only a text that a provider takes as text is decoded. Nothing is fetched.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from gateway.core.errors import InvalidRequest

_BY_ENDING: Final = {
    "aac": "audio/aac", "csv": "text/csv", "flac": "audio/flac", "gif": "image/gif", "htm": "text/html",
    "html": "text/html", "jpeg": "image/jpeg", "jpg": "image/jpeg", "json": "application/json", "m4a": "audio/mp4",
    "md": "text/markdown", "mov": "video/quicktime", "mp3": "audio/mpeg", "mp4": "video/mp4", "ogg": "audio/ogg",
    "pdf": "application/pdf", "png": "image/png", "txt": "text/plain", "wav": "audio/wav", "webm": "video/webm",
    "webp": "image/webp", "xml": "text/xml",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}  # fmt: skip
URLS: Final = ("https://", "http://")
"""How a place begins where a file lies, which some callers give instead of the file."""
_TEXTS: Final = frozenset(("application/json", "application/xml", "application/x-yaml", "application/yaml"))
_ALIASES: Final = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav"}


class Media(NamedTuple):
    """A picture or file that is in the request itself."""

    type: str
    """In lower case, without parameters: `image/png`; empty where nothing says it."""
    data: str
    """As base64."""


def data_url(url: str) -> Media | None:
    """Returns what a `data:` URL holds; None: it is another URL. Source: RFC 2397."""
    if url[:5].lower() != "data:":
        return None
    comma = url.find(",")
    kind, *parameters = url[5:comma].split(";") if comma > 0 else [""]
    data = url[comma + 1 :] if comma > 0 else ""
    kind = kind.strip().lower() or "text/plain"
    if not parameters or parameters[-1].strip().lower() != "base64":
        data = b64encode(unquote_to_bytes(data)).decode()
    return Media(_ALIASES.get(kind, kind), data)


def file_of(data: str, name: Any) -> Media:
    """Returns a file of a chat completion: a `data:` URL, or base64 alone, whose type its name tells."""
    found = data_url(data)
    if found is not None and found.type != "application/octet-stream":
        return found
    return Media(type_of_name(name), data if found is None else found.data)


def type_of_name(name: Any) -> str:
    """Returns the media type that a file's name, or a URL's path, tells; empty where it does not."""
    ending = name.partition("?")[0].rpartition(".")[2].lower() if isinstance(name, str) else ""
    return _BY_ENDING.get(ending, "")


def is_text(kind: str) -> bool:
    """Returns whether files of a media type can be read as text."""
    return kind.startswith("text/") or kind in _TEXTS


def text_in(media: Media, place: str) -> str:
    """Returns a file's text. Raises InvalidRequest where it is none in UTF-8."""
    try:
        return b64decode(media.data).decode()
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"'{place}' must be base64 of a text in UTF-8.", param=place) from error
