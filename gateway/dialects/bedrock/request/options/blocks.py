"""Parts of a chat completion's messages as Converse's content blocks, and the points at which its cache of prompts is to keep.

Text that is empty or white space is left out: a block of it is refused for as long as it stays in the conversation
(NousResearch/hermes-agent#55092). Data goes on as base64; what is only a URL cannot be said, for nothing is fetched.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.dialects.anthropic.out_request.tools.blocks import PICTURES, has_mark, is_blank, mark_of, picture_url
from gateway.dialects.base.base import Json, text_of
from gateway.dialects.schema_tools.media import URLS, Media, data_url, file_of

DOCUMENTS: Final = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
}
"""The formats of documents, by their media types."""
MOST_MARKS: Final = 4
"""A request with more points for the cache is refused."""
_NAME_CHARS: Final = 200
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9 ()\[\]-]+")
_ENDING: Final = re.compile(r"\.[A-Za-z0-9]{1,5}$")
_SPACES: Final = re.compile(r"\s+")


def cache_point(given: Json) -> Json | None:
    """Returns the point behind a part, message or tool that is marked for the cache; None: it is not."""
    mark = mark_of(given)
    if mark is None:
        return None
    return {"cachePoint": {"type": "default"} | ({"ttl": "1h"} if mark.get("ttl") == "1h" else {})}


def bound_points(lists: list[list[Json]]) -> None:
    """Leaves the last points only, as many as are taken, and none that lasts longer behind one that lasts shorter.

    `lists` have the points among their blocks, in the order in which the model reads them.
    """
    having = [(blocks, block) for blocks in lists for block in blocks if "cachePoint" in block]
    for blocks, block in having[:-MOST_MARKS]:
        blocks[:] = [one for one in blocks if one is not block]
    has_shorter = False
    for _, block in having[-MOST_MARKS:]:
        if block["cachePoint"].get("ttl") != "1h":
            has_shorter = True
        elif has_shorter:
            block["cachePoint"] = {"type": "default"}


def document_name(name: Any) -> str:
    """Returns a file's name as a document may have it, without its ending."""
    stem = _ENDING.sub("", text_of(name))
    return _SPACES.sub(" ", _NOT_IN_NAMES.sub(" ", stem)).strip()[:_NAME_CHARS].strip() or "document"


def words_beside(blocks: list[Json]) -> Json | None:
    """Returns the text that has to stand beside documents, which are refused alone: a name of one; None: there is some."""
    if any("text" in block for block in blocks):
        return None
    return next(({"text": block["document"]["name"]} for block in blocks if "document" in block), None)


class Blocks:
    """Makes blocks of parts; the names of documents are unique in one request."""

    def __init__(self) -> None:
        self.has_points = False
        """One was made."""
        self._names: set[str] = set()

    def point(self, given: Json) -> list[Json]:
        """Returns the point behind a part, message or tool, if it is marked."""
        point = cache_point(given) if has_mark(given) else None
        if point is None:
            return []
        self.has_points = True
        return [point]

    def of(self, content: Any, place: str, *, takes_media: bool, takes_points: bool) -> list[Json]:
        """Returns a message's content. Raises InvalidRequest, naming the part, where it makes no sense."""
        if content is None:
            return []
        if isinstance(content, str):
            return [] if is_blank(content) else [{"text": content}]
        if not isinstance(content, list):
            raise InvalidRequest(f"'{place}.content' must be a string or a list of parts.", param=f"{place}.content")
        made: list[Json] = []
        for number, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            where = f"{place}.content[{number}]"
            if kind in ("text", "refusal"):
                text = part.get(kind)
                if not isinstance(text, str):
                    raise InvalidRequest(f"'{where}.{kind}' must be a string.", param=f"{where}.{kind}")
                if is_blank(text):
                    continue
                made.append({"text": text})
            elif takes_media and kind == "image_url":
                made.append(_picture(part, where))
            elif takes_media and kind == "file":
                made.append(self._document(part, where))
            else:
                raise InvalidRequest(f"'{where}' is no part that this model's provider takes there.", param=where)
            if takes_points:
                made += self.point(part)
        return made

    def _document(self, part: Json, place: str) -> Json:
        inner = part.get("file")
        data = inner.get("file_data") if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or not isinstance(data, str):
            raise InvalidRequest(f"'{place}.file' needs 'file_data'.", param=f"{place}.file")
        media = file_of(data, inner.get("filename")) if not data.startswith(URLS) else Media("", "")
        form = DOCUMENTS.get(media.type)
        if form is None:
            told = f"'{place}' is no document that this model's provider takes: {', '.join(DOCUMENTS.values())}."
            raise InvalidRequest(told, param=place)
        name = first = document_name(inner.get("filename"))
        number = 1
        while name in self._names:
            number += 1
            name = f"{first[: _NAME_CHARS - 8]} ({number})"
        self._names.add(name)
        return {"document": {"format": form, "name": name, "source": {"bytes": media.data}}}


def _picture(part: Json, place: str) -> Json:
    url = picture_url(part)
    media = data_url(url) if url is not None else None
    if media is None or media.type not in PICTURES:
        told = f"'{place}' must be a PNG, JPEG, GIF or WebP in a 'data:' URL; this model's provider fetches nothing."
        raise InvalidRequest(told, param=place)
    return {"image": {"format": media.type.removeprefix("image/"), "source": {"bytes": media.data}}}
