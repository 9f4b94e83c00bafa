"""An answer for a file or a wire: what is known about it, by name, and its body as it is.

Invariants: what is read equals what was written, byte by byte; a field that another release added or took away does no harm.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any

import orjson

from gateway.call import Kept, Usage

_APART = frozenset(("body", "headers", "usage", "usage_event"))
_NAMES = tuple(one.name for one in fields(Kept) if one.name not in _APART)
_KNOWN = frozenset((*_NAMES, *_APART)) - {"body"}
_VALUES = attrgetter(*_NAMES)


def about(kept: Kept) -> bytes:
    """All of it but the body."""
    known: dict[str, Any] = dict(zip(_NAMES, _VALUES(kept), strict=True))
    known["headers"] = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in kept.headers]
    if (usage := kept.usage) is not None:
        known["usage"] = usage.input, usage.output, usage.cached, usage.estimated
    if kept.usage_event:
        known["usage_event"] = kept.usage_event.decode("latin-1")
    return orjson.dumps(known)


def restored(about: bytes, body: bytes) -> Kept:
    """The answer again."""
    known: dict[str, Any] = orjson.loads(about)
    if not known.keys() <= _KNOWN:
        known = {name: value for name, value in known.items() if name in _KNOWN}
    known["headers"] = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in known["headers"]]
    if "usage" in known:
        known["usage"] = Usage(*known["usage"])
    if "usage_event" in known:
        known["usage_event"] = known["usage_event"].encode("latin-1")
    return Kept(body=body, **known)
