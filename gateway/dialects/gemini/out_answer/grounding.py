"""Where an answer is grounded: Google's places in bytes as a chat completion's citations, whose places are characters.

Places count from the beginning of all words of the candidate, streamed or not, as recorded answers have it; the reference has
them counted from a part's. Source: the Gemini API's reference, GroundingMetadata.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

from gateway.dialects.base.base import Json, object_of, objects, text_of

MOST_WIDE_BYTES: Final = 1_000_000
"""Of words that are not all ASCII; of more than that no places are known."""
_STRETCH_CHARACTERS: Final = 1_024
"""The most of such words that are counted through to find one place."""


class Words:
    """How far the words of a candidate have come, in bytes; and those of them that have more bytes than characters."""

    __slots__ = ("_bytes", "_more", "_starts", "_wide", "_wide_bytes")

    def __init__(self) -> None:
        self._bytes = self._wide_bytes = 0
        self._wide: list[bytes] = []
        self._starts: list[int] = []
        """Where each of these begins, in bytes."""
        self._more = [0]
        """How many more bytes than characters there are before each of these."""

    def say(self, text: str) -> None:
        """Takes more words."""
        if text.isascii():
            self._bytes += len(text)
            return
        for at in range(0, len(text), _STRETCH_CHARACTERS):
            stretch = text[at : at + _STRETCH_CHARACTERS]
            told = stretch.encode(errors="replace")
            self._wide_bytes += len(told)
            if self._wide_bytes <= MOST_WIDE_BYTES:
                self._wide.append(told)
                self._starts.append(self._bytes)
                self._more.append(self._more[-1] + len(told) - len(stretch))
            self._bytes += len(told)

    def cited(self, grounding: Any) -> list[Json]:
        """Returns the citations of pages, one for each of those that a stretch of words is grounded in."""
        told = object_of(grounding)
        chunks = told.get("groundingChunks")
        pages = [_page_in(object_of(one)) for one in chunks] if isinstance(chunks, list) else []
        found = []
        for support in objects(told.get("groundingSupports")) if self._wide_bytes <= MOST_WIDE_BYTES else ():
            segment, places = object_of(support.get("segment")), support.get("groundingChunkIndices")
            start, end = _offset(segment.get("startIndex", 0)), _offset(segment.get("endIndex"))
            if start is None or end is None or not start <= end <= self._bytes:
                continue
            where = {"start_index": self._characters(start), "end_index": self._characters(end)}
            for place in places if isinstance(places, list) else ():
                page = pages[place] if type(place) is int and 0 <= place < len(pages) else None
                if page is not None:
                    found.append({"type": "url_citation", "url_citation": where | page})
        return found

    def _characters(self, offset: int) -> int:
        """Returns how many characters stand before an offset in bytes."""
        last = bisect_left(self._starts, offset) - 1
        if last < 0:
            return offset
        before = self._wide[last][: offset - self._starts[last]]
        return offset - self._more[last] - (len(before) - len(before.decode(errors="ignore")))


def _offset(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _page_in(chunk: Json) -> Json | None:
    """Returns the page of a piece of evidence; None: it has none."""
    for kind in ("web", "maps", "retrievedContext"):
        inner = object_of(chunk.get(kind))
        if url := text_of(inner.get("uri")):
            return {"url": url, "title": text_of(inner.get("title"))}
    return None
