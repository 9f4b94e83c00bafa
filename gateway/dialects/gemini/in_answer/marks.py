"""What other providers signed, on its way through a client of Gemini's and back.

Such clients repeat a turn's parts as they got them, each with its `thoughtSignature`, which has to be Base64. What another
provider signed rides there in a mark of ours. It is for its own target only: what goes to Gemini is freed of it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

import orjson

from gateway.core.openai.sse.sse import json_object
from gateway.dialects.base.base import Json, objects
from gateway.dialects.gemini.in_answer.names import camel
from gateway.dialects.gemini.out_answer.signatures import STAND_IN

_BEGIN: Final = b"gw1"
MARK: Final = urlsafe_b64encode(_BEGIN).decode()
"""How a mark begins: three bytes are four characters of Base64, whatever follows."""
FOREIGN: Final = urlsafe_b64encode(_BEGIN + b"{}").decode()
"""Marks a turn's first call that nobody signed: Gemini refuses to go on from its own without a signature."""
IN_BODY: Final = b'"' + MARK.encode()
_BOTH: Final = str.maketrans("+/", "-_")


def marked(holds: Json) -> str | None:
    """Returns a mark with what is to come back; None where that is nested too deeply to be said again."""
    try:
        return urlsafe_b64encode(_BEGIN + orjson.dumps(holds)).decode()
    except orjson.JSONEncodeError:
        return None


def held_by(signature: str) -> Json | None:
    """Returns what a mark of ours holds; None: it is none of ours, but a signature of Gemini's."""
    if not signature.startswith(MARK):
        return None
    given = signature.translate(_BOTH).rstrip("=")
    try:
        return json_object(urlsafe_b64decode(given + "=" * (-len(given) % 4))[len(_BEGIN) :])
    except ValueError:
        return None


def without_marks(body: bytes) -> bytes:
    """Returns a request for Gemini without the signatures that only other providers' targets understand.

    Costs one search where there are none, and then the very bytes come back.
    """
    parsed = json_object(body) if IN_BODY in body else None
    contents = None if parsed is None else parsed.get("contents")
    if parsed is None or not isinstance(contents, list):
        return body
    return orjson.dumps({**parsed, "contents": [_freed(one) for one in contents]})


def _freed(content: Any) -> Any:
    parts = content.get("parts") if isinstance(content, dict) else None
    if not any(map(_is_marked, objects(parts))):
        return content
    made: list[Any] = []
    for part in parts or ():
        if not isinstance(part, dict) or not _is_marked(part):
            made.append(part)
        elif not part.get("thought"):
            named = camel(part)
            del named["thoughtSignature"]
            made.append(named | ({"thoughtSignature": STAND_IN} if "functionCall" in named else {}))
    return {**content, "parts": made}


def _is_marked(part: Json) -> bool:
    signature = camel(part).get("thoughtSignature")
    return isinstance(signature, str) and held_by(signature) is not None
