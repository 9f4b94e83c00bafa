"""An answer as bytes and back, within one process: as `marshal` has it, which is no format for a file or a wire.

Invariant: what is unpacked equals what was packed, field by field, whatever fields there are.
"""

from __future__ import annotations

import marshal
from dataclasses import fields
from operator import attrgetter

from gateway.call import Kept, Usage

_NAMES = [one.name for one in fields(Kept)]
_VALUES = attrgetter(*_NAMES)
_USAGE = _NAMES.index("usage")
_COUNTS = attrgetter(*(one.name for one in fields(Usage)))


def pack(kept: Kept) -> bytes:
    """All of it."""
    values = [*_VALUES(kept)]
    if kept.usage is not None:
        values[_USAGE] = _COUNTS(kept.usage)
    return marshal.dumps(values)


def unpack(blob: bytes) -> Kept:
    """What was packed."""
    values = marshal.loads(blob)  # noqa: S302 - this process wrote it, into its own memory
    if values[_USAGE] is not None:
        values[_USAGE] = Usage(*values[_USAGE])
    return Kept(*values)
