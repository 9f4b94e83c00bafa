"""What a request shows a model besides text, and what of it a model is known not to take.

One look at the parts, in whichever language the request is. Only asked where something is known of the model; what has no
kind that is known here is the conversion's own business.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from gateway.core.types.words import Gap, How
from gateway.dialects.base.base import Json, object_of, text_of
from gateway.dialects.schema_tools.media import type_of_name

_KINDS: Final = {
    "image_url": "image", "input_image": "image", "image": "image", "computer_screenshot": "image",
    "input_audio": "audio", "video_url": "video",
    "file": "pdf", "input_file": "pdf", "document": "pdf",
}  # fmt: skip
"""Kinds of parts, in all languages, and what they show."""
_WORDS: Final = {"image": "pictures", "audio": "sound", "video": "video", "pdf": "PDF"}
_PDF: Final = "application/pdf"
_MOST_PARTS: Final = 4096


def gaps_of_modalities(body: Json, reads: tuple[str, ...]) -> list[Gap]:
    """Returns what of a request a model cannot take that takes text and `reads` alone, each kind of part once."""
    found: dict[str, Gap] = {}
    for field in ("messages", "input"):
        items = body.get(field)
        if type(items) is list:
            for part in islice(_parts(items), _MOST_PARTS):
                kind = part.get("type")
                shown = _KINDS.get(kind) if type(kind) is str else None
                if shown is not None and shown not in reads and (shown != "pdf" or _is_pdf(part)):
                    found[f"{field}.{kind}"] = Gap(
                        f"{field}.{kind}", How.REFUSED, f"the model takes no {_WORDS[shown]}"
                    )
    return list(found.values())


def _parts(items: list[Any]) -> Iterator[Json]:
    """Yields the parts of messages and of results of tools; most messages are plain, and have none."""
    for item in reversed(items):
        if type(item) is not dict:
            continue
        for name in ("content", "output"):
            content = item.get(name)
            if type(content) is list:
                for part in content:
                    if type(part) is dict:
                        yield part
                        inner = part.get("content")
                        if type(inner) is list:
                            yield from (one for one in inner if type(one) is dict)


def _is_pdf(part: Json) -> bool:
    """Returns whether a file is known to be a PDF, by its type, its name or its place."""
    told = part if part.get("type") == "input_file" else object_of(part.get("file"))
    source = object_of(part.get("source"))
    kinds = (source.get("media_type"), type_of_name(source.get("url")), type_of_name(told.get("filename")))
    return _PDF in kinds or text_of(told.get("file_data")).startswith(f"data:{_PDF}")
