"""What chat completions bring besides words, as the conversions to other languages read it.

In this order: files, what of a conversation may be lost (`outline`), options. Files stand there as `data:` URLs, or as
base64 with a name. Data goes on as it came, as base64 text; only a text that a provider takes as text is decoded. Nothing
is fetched.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Container
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from gateway.core.errors import InvalidRequest
from gateway.core.types import Gap, How
from gateway.dialects.base import FieldGaps, Json, is_blank, object_of
from gateway.dialects.memory import IN_ID

# --- Files ---


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
    """The media type in lower case, without parameters: `image/png`; empty where nothing says it."""
    data: str
    """The data, as base64."""


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


# --- A chat completion at a glance: which fields and messages have more than every language can say ---


NO_OPTION: Final = "the target has no such option"
OPENAIS_ALONE: Final[FieldGaps] = {
    "audio": (How.REFUSED, "the target cannot answer so", ()),
    "logit_bias": (How.DROPPED, NO_OPTION, ({},)),
    "moderation": (How.DROPPED, NO_OPTION, ()),
    "prediction": (How.DROPPED, NO_OPTION, ()),
    "prompt_cache_key": (How.DROPPED, NO_OPTION, ()),
    "store": (How.DROPPED, "the target keeps no answers", (False,)),
    "verbosity": (How.DROPPED, NO_OPTION, ("medium",)),
}
"""Top-level fields that no other maker's language has: what becomes of each there, and the values that mean nothing."""
_SYSTEM: Final = ("system", "developer")
_FIELDS_OF_A_CALL: Final = 3
"""A call's id, type and function."""


def gaps_of_chat(body: Json, settled: Container[str], table: FieldGaps) -> list[Gap]:
    """Returns the gaps among the top-level fields of a chat completion that no model of the target's knows.

    Those in `settled` are said there, or judged elsewhere; those that are unknown to us have no name of their own.
    """
    found = []
    for name, value in body.items():
        if value is None or name in settled:
            continue
        if name not in table:
            found.append(Gap("other", How.DROPPED, NO_OPTION))
        elif value not in table[name][2]:
            found.append(Gap(name, table[name][0], table[name][1]))
    if object_of(body.get("stream_options")).get("include_obfuscation"):
        found.append(Gap("stream_options.include_obfuscation", How.DROPPED, NO_OPTION))
    return found


class ChatOutline(NamedTuple):
    """What there is to look at in a conversation."""

    notable: list[tuple[int, Json]]
    """The messages, each with its number, that have more than words, calls of functions with or without words, and
    results of tools in words."""
    begins_at: int | None
    """The number of the first message that is no instruction; None: all are."""
    has_later_system: bool
    """Instructions stand behind that one."""


def outline(messages: Any) -> ChatOutline:
    """Returns what there is to look at among messages; what is no message is passed over.

    Most messages have nothing that a language lacks, so that what a target would lose of a conversation is found without
    reading each of them.
    """
    notable: list[tuple[int, Json]] = []
    begins_at, has_later_system = None, False
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if type(message) is not dict:
            continue
        content, size = message.get("content"), len(message)
        if message.get("role") in _SYSTEM:
            has_later_system = begins_at is not None
        elif begins_at is None:
            begins_at = number
        has_words = type(content) is str
        if size == 2 and has_words:
            continue
        if size == 3 and has_words and "tool_call_id" in message and content and not content.isspace():
            continue
        is_turn = size == 3 and "tool_calls" in message and "content" in message and (has_words or content is None)
        if is_turn and _are_plain(message["tool_calls"]):
            continue
        notable.append((number, message))
    return ChatOutline(notable, begins_at, has_later_system)


def _are_plain(calls: Any) -> bool:
    """Returns whether these are calls of functions, and no provider has added anything to them."""
    if type(calls) is not list:
        return False
    for call in calls:
        if type(call) is not dict or len(call) != _FIELDS_OF_A_CALL or call.get("type") != "function":
            return False
        if "function" not in call or type(id := call.get("id")) is not str or IN_ID in id:
            return False
    return True


# --- Options that several languages have otherwise ---


EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
"""How much a model thinks, the least first; `none` is less."""


def nearest_effort(effort: str, known: tuple[str, ...]) -> str:
    """Returns the effort, or the next higher one that the model knows, or else its highest."""
    higher = EFFORTS[EFFORTS.index(effort) :] if effort in EFFORTS else ("none", *EFFORTS)
    return next((one for one in higher if one in known), known[-1])


def without_blank_stops(stop: Any) -> tuple[Any, Any]:
    """Returns the sequences to stop at as a list, and those that are not white space; what is no list stays as it is."""
    given = [stop] if isinstance(stop, str) else stop
    is_list = isinstance(given, list)
    return given, [one for one in given if not isinstance(one, str) or not is_blank(one)] if is_list else given
