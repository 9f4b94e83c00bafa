"""Ids of calls and names of tools, which Messages and chat completions bound differently: there and back by computing anew."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import Any, Final

from gateway.dialects.base import Json, ServerFacts, objects, text_of

MOST_ID: Final = 40
"""The characters of a call's id that OpenAI takes."""
MOST_NAME: Final = 64
"""The characters of a function's name that OpenAI takes; Anthropic's tools may have twice as many."""
_HASHED: Final = 12
_WRAP: Final = "gw1-"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def shortened(text: str, most: int) -> str:
    """Returns the text, if it is short enough; else its beginning and a hash of the whole, always the same."""
    if len(text) <= most:
        return text
    hashed = blake2b(text.encode(errors="surrogatepass"), digest_size=_HASHED).hexdigest()
    return f"{text[: most - len(hashed) - 1]}_{hashed}"


def name_for(name: Any, facts: ServerFacts) -> str:
    """Returns a tool's name for the target; behind another conversion, that one bounds it."""
    return text_of(name) if facts.takes_details else shortened(text_of(name), MOST_NAME)


def names_back(request: Json) -> dict[str, str]:
    """Returns the caller's names of the tools that went out by a shorter one, by that."""
    names = [text_of(tool.get("name")) for tool in objects(request.get("tools"))]
    return {shortened(name, MOST_NAME): name for name in names if len(name) > MOST_NAME}


def id_for(id: str, facts: ServerFacts) -> str:
    """Returns the id of a call for the target: the target's own, where it was wrapped for the caller."""
    if id.startswith(_WRAP):
        try:
            id = urlsafe_b64decode(id[len(_WRAP) :] + "==").decode()
        except ValueError:  # not wrapped by us
            pass
        else:
            return id
    return id if facts.takes_details else shortened(id, MOST_ID)


def id_back(id: str) -> str:
    """Returns a call's id for the caller: Anthropic, whom it may ask next, knows letters, digits and two signs in ids only."""
    if _PLAIN.fullmatch(id) and not id.startswith(_WRAP):
        return id
    return _WRAP + urlsafe_b64encode(id.encode(errors="surrogatepass")).decode().rstrip("=")
