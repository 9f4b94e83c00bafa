"""Gemini's callers name the model in the path, and by its last word whether they want a stream.

Inside the gateway both stand in front of the body (`places.front_of`), where all other languages have them.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from gateway.dialects.gemini.in_answer.marks import without_marks

_FRONT: Final = re.compile(rb'\{"model":"(?:[^"\\]|\\.)*+"(,"stream":true)?,?')


def taken_out(body: bytes) -> tuple[bool, bytes]:
    """Returns whether a stream is asked for, and the body without its front, as it came from the caller."""
    found = _FRONT.match(body)
    if found is None:  # edited by the config, and so written anew
        parsed = orjson.loads(body)
        rest = {name: value for name, value in parsed.items() if name not in ("model", "stream")}
        return parsed.get("stream") is True, without_marks(orjson.dumps(rest))
    return found.group(1) is not None, without_marks(b"{" + body[found.end() :])
