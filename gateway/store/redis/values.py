"""An answer as one value of the store, and an answer again by the reader's own clock.

Replicas' clocks differ by seconds, and the store's by as much again; what they agree on is how long an answer has left. So
that is asked, and the times of an answer that another clock wrote are moved. Invariant: where the clocks agree, what is read
equals what was written.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

from gateway.store.entry_codec import about, restored
from gateway.words import Kept

ENTRY_BYTES = 768
"""What an entry takes besides its value: its key, and its places in the lists, about (measured)."""
MOST_BYTES = 16 * 1024 * 1024 + 64 * 1024
"""A longer value is not kept: a body of 16 MiB, and what is known about it."""
CLOCKS_AGREE_S = 0.5
"""Less than this between two clocks is not told from the way to the store and back."""
_LENGTH = Struct(">I")


def framed(kept: Kept) -> bytes:
    """All of it."""
    known = about(kept)
    return b"".join((_LENGTH.pack(len(known)), known, kept.body))


def unframed(value: bytes) -> Kept | None:
    """The answer, with its times as they were written; None: this is none."""
    try:
        (length,) = _LENGTH.unpack_from(value)
        start = _LENGTH.size + length
        return restored(value[_LENGTH.size : start], value[start:])
    except Exception:  # noqa: BLE001  # whoever wrote it, no call fails of it
        return None


def moved(kept: Kept, shift_s: float) -> Kept:
    """The same answer by a clock that is so far ahead of the one that wrote it."""
    if abs(shift_s) >= CLOCKS_AGREE_S:
        kept.stored_at += shift_s
        kept.fresh_until += shift_s
        kept.stale_until += shift_s
    return kept


def owner(model: str, tenant: str) -> bytes:
    """Whose an entry is: 32 bytes, 16 for each name."""
    return name_digest(model) + name_digest(tenant)


def name_digest(name: str | None) -> bytes:
    """16 bytes for a name, none for none."""
    return b"" if name is None else blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
