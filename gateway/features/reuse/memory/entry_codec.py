"""Encodes an answer as bytes and back: for a file or a wire (`about`, `restored`), or within one process (`pack`, `unpack`).

Invariants: an answer is read as it was written, byte by byte; in a file or on a wire, a field that another release added or
removed does no harm.
"""

from __future__ import annotations

import marshal
from dataclasses import fields
from operator import attrgetter
from typing import Any

import orjson

from gateway.core.types.words import Kept, Usage

_APART = frozenset(("body", "headers", "usage", "usage_event"))
_NAMES = tuple(one.name for one in fields(Kept) if one.name not in _APART)
_KNOWN = frozenset((*_NAMES, *_APART)) - {"body"}
_VALUES = attrgetter(*_NAMES)
_ALL_NAMES = [one.name for one in fields(Kept)]
_ALL_VALUES = attrgetter(*_ALL_NAMES)
_USAGE = _ALL_NAMES.index("usage")
_COUNTS = attrgetter(*(one.name for one in fields(Usage)))


def about(kept: Kept) -> bytes:
    """Returns all of the answer but its body, as JSON."""
    known: dict[str, Any] = dict(zip(_NAMES, _VALUES(kept), strict=True))
    known["headers"] = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in kept.headers]
    if (usage := kept.usage) is not None:
        known["usage"] = _COUNTS(usage)
    if kept.usage_event:
        known["usage_event"] = kept.usage_event.decode("latin-1")
    return orjson.dumps(known)


def restored(about: bytes, body: bytes) -> Kept:
    """Returns the answer of `about` and body."""
    known: dict[str, Any] = orjson.loads(about)
    if not known.keys() <= _KNOWN:
        known = {name: value for name, value in known.items() if name in _KNOWN}
    known["headers"] = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in known["headers"]]
    if "usage" in known:
        known["usage"] = Usage(*known["usage"])
    if "usage_event" in known:
        known["usage_event"] = known["usage_event"].encode("latin-1")
    return Kept(body=body, **known)


def pack(kept: Kept) -> bytes:
    """Returns the whole answer in the format of `marshal`, which is fast but must not outlive the process."""
    values = [*_ALL_VALUES(kept)]
    if kept.usage is not None:
        values[_USAGE] = _COUNTS(kept.usage)
    return marshal.dumps(values)


def unpack(blob: bytes) -> Kept:
    """Returns the answer that `pack` encoded."""
    values = marshal.loads(blob)  # noqa: S302 - this process wrote it, into its own memory
    if values[_USAGE] is not None:
        values[_USAGE] = Usage(*values[_USAGE])
    return Kept(*values)
