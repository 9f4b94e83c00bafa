"""A kept answer in the form that a call wants it, made once: long streams take milliseconds to be put together.

It must not know where answers are kept. Invariants: what it holds is bounded by bytes, the least recently used go first; two
bodies share a made form only if they are equal byte for byte.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256

from gateway.call import Call
from gateway.flow.reuse.entries import in_form, wants_usage
from gateway.words import Kept

MOST_BYTES = 16 * 1024 * 1024
OVERHEAD_BYTES = 300
SMALL_BYTES = 2048
"""Of a body that is made anew sooner than it is looked for."""

Form = tuple[bytes, str, bool, bool]


class Forms:
    """The forms that were made lately."""

    __slots__ = ("_bytes", "_made", "_most")

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._made: OrderedDict[Form, bytes | None] = OrderedDict()
        self._bytes = 0

    def body(self, call: Call, kept: Kept) -> bytes | None:
        """The kept body as this call wants it; None: it cannot be made of this one."""
        if len(kept.body) < SMALL_BYTES or (kept.is_stream == call.stream and kept.tells_usage == wants_usage(call)):
            return in_form(call, kept)
        form = sha256(kept.body + kept.usage_event).digest(), kept.endpoint, call.stream, wants_usage(call)
        if form in self._made:
            self._made.move_to_end(form)
            return self._made[form]
        made = in_form(call, kept)
        if made is not kept.body:
            self._hold(form, made)
        return made

    def _hold(self, form: Form, made: bytes | None) -> None:
        """None, too: that it cannot be made is found out as slowly."""
        self._made[form] = made
        self._bytes += _size(made)
        while self._bytes > self._most:
            _, gone = self._made.popitem(last=False)
            self._bytes -= _size(gone)


def _size(made: bytes | None) -> int:
    return OVERHEAD_BYTES + len(made or b"")
