"""Parts of a chat completion's messages as content blocks, and the marks for the cache of prompts on them.

Text that is empty or white space is left out: a block of it is refused (400 `text content blocks must be non-empty`) as long as
it stays in the conversation. Source: Anthropic's API reference, Messages.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.dialects.base.base import Json
from gateway.dialects.schema_tools.media import URLS, Media, data_url, file_of, is_text, text_in, type_of_name

PICTURES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
PDF: Final = "application/pdf"
MOST_MARKS: Final = 4
"""A request with more marks for the cache is refused."""
_LONGER: Final[Json] = {"type": "ephemeral", "ttl": "1h"}
_SHORTER: Final[Json] = {"type": "ephemeral"}


def is_blank(text: str) -> bool:
    return not text or text.isspace()


def has_mark(given: Json) -> bool:
    """Returns whether a part, message or tool may have a mark for the cache."""
    return "cache_control" in given or "prompt_cache_breakpoint" in given


def mark_of(given: Json) -> Json | None:
    """Returns the mark for the cache that a part, message or tool has; None: it has none.

    OpenAI's marks last for half an hour at least, of which an hour is the next here.
    """
    if isinstance(own := given.get("cache_control"), dict):
        return own
    return _LONGER if isinstance(given.get("prompt_cache_breakpoint"), dict) else None


def marked(block: Json, given: Json) -> Json:
    """Returns the block with the mark of what it is made from."""
    mark = mark_of(given)
    if mark is not None:
        block["cache_control"] = mark
    return block


def most_marks(body: Json) -> int:
    """Returns how many blocks of a request may have marks; one that marks itself as a whole has one less."""
    return MOST_MARKS - isinstance(body.get("cache_control"), dict)


def bound_marks(blocks: list[Json], most: int) -> None:
    """Leaves marks on the last blocks only, as many as are taken, and none that lasts longer behind one that lasts shorter.

    `blocks` are those that may have marks, in the order in which the model reads them.
    """
    having = [block for block in blocks if "cache_control" in block]
    for block in having[:-most]:
        del block["cache_control"]
    has_shorter = False
    for block in having[-most:]:
        if block["cache_control"].get("ttl") != "1h":
            has_shorter = True
        elif has_shorter:
            block["cache_control"] = _SHORTER


def text_blocks(content: Any, place: str) -> list[Json]:
    """Returns a content of words alone. Raises InvalidRequest where there is more."""
    return blocks_of(content, place, takes_media=False)


def blocks_of(content: Any, place: str, *, takes_media: bool = True) -> list[Json]:
    """Returns a message's content. Raises InvalidRequest, naming the part, where it makes no sense."""
    if content is None:
        return []
    if isinstance(content, str):
        return [] if is_blank(content) else [{"type": "text", "text": content}]
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
            if is_blank(text):
                continue
            block = {"type": "text", "text": text}
        elif takes_media and kind in ("image_url", "file"):
            where = f"{place}.content[{number}]"
            block = _picture(part, where) if kind == "image_url" else _document(part, where)
        else:
            where = f"{place}.content[{number}]"
            raise InvalidRequest(f"'{where}' is no part that this model's provider takes there.", param=where)
        if has_mark(part):
            marked(block, part)
        made.append(block)
    return made


def picture_url(part: Json) -> str | None:
    """Returns where the picture of a part is, or the picture itself."""
    inner = part.get("image_url")
    url = inner.get("url") if isinstance(inner, dict) else inner
    return url if isinstance(url, str) and url else None


def _picture(part: Json, place: str) -> Json:
    url = picture_url(part)
    if url is None:
        raise InvalidRequest(f"'{place}.image_url' needs a 'url'.", param=f"{place}.image_url")
    media = data_url(url)
    if media is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    if media.type not in PICTURES:
        told = (
            f"'{place}' is a picture of type '{media.type[:40]}'; this model's provider takes PNG, JPEG, GIF and WebP."
        )
        raise InvalidRequest(told, param=place)
    return {"type": "image", "source": {"type": "base64", "media_type": media.type, "data": media.data}}


def _document(part: Json, place: str) -> Json:
    inner = part.get("file")
    data = inner.get("file_data") if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or not isinstance(data, str):
        raise InvalidRequest(f"'{place}.file' needs 'file_data'.", param=f"{place}.file")
    name = inner.get("filename")
    source = _source_at(data) if data.startswith(URLS) else _source_in(file_of(data, name), f"{place}.file.file_data")
    if source is None:
        raise InvalidRequest(f"'{place}' is no PDF and no text, and this model's provider takes those.", param=place)
    return {"type": "document", "source": source} | ({"title": name} if isinstance(name, str) and name else {})


def _source_at(url: str) -> Json | None:
    return {"type": "url", "url": url} if type_of_name(url) == PDF else None


def _source_in(media: Media, place: str) -> Json | None:
    if media.type == PDF:
        return {"type": "base64", "media_type": PDF, "data": media.data}
    if is_text(media.type):
        return {"type": "text", "media_type": "text/plain", "data": text_in(media, place)}
    return None
