"""Answers as values of the store: one value each, or, where one is long, a head and chunks.

Replicas' clocks differ by seconds, and the store's by as much again; what they agree on is the time that an answer has left.
Scripts return that time, and the times of an answer that another replica wrote are moved to this replica's clock. A long value
is staged chunk by chunk, so that no operation keeps the server or other callers waiting, and comes to its place in the one
step that lists it. Invariants: where the clocks agree, an answer is read as it was written; a reader gets all chunks of one
write or nothing; chunks that no entry lists are gone within a minute.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from secrets import token_bytes
from struct import Struct
from typing import Any

from gateway.store.entry_codec import about, restored
from gateway.store.redis_link.link import Link, StoreGone, load_script
from gateway.words import Kept

STAGE = load_script("stage")

ENTRY_BYTES = 768
"""What an entry takes besides its value: its key, and its places in the lists, about (measured)."""
MOST_BYTES = 16 * 1024 * 1024 + 64 * 1024
"""A longer value is not kept: a body of 16 MiB, and what is known about it."""
CLOCKS_AGREE_S = 0.5
"""Less than this between two clocks is not told from the way to the store and back."""
_LENGTH = Struct(">I")
PART_BYTES = 128 * 1024
"""Takes some tenths of a millisecond."""
AT_ONCE = 4
"""Parts on their way."""
STAGED_MS = 60_000
_HEAD = Struct(">4s16sII")
_MARK = b"\xff\xff\xff\xff"
"""Before a head; no value begins so. Keep in sync with `lua/shelf.lua`."""


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


def is_head(value: bytes) -> bool:
    """Whether this stands for a value in parts."""
    return len(value) == _HEAD.size and value.startswith(_MARK)


class ChunkedValue:
    """Of one link."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    async def stage(self, place: bytes, value: bytes) -> tuple[bytes, bytes]:
        """What stands for the value, and the key of its parts until they are in their place. Raises StoreGone."""
        if len(value) <= PART_BYTES:
            return value, place + b":none"
        nonce = token_bytes(16)
        staged = place + b":" + nonce
        starts = range(0, len(value), PART_BYTES)

        def send(number: int) -> asyncio.Future[Any]:
            part = value[starts[number] : starts[number] + PART_BYTES]
            return self._link.run(STAGE, (staged,), (STAGED_MS, nonce, number, part))

        for first in range(0, len(starts), AT_ONCE):
            await asyncio.gather(*map(send, range(first, min(first + AT_ONCE, len(starts)))))
        return _HEAD.pack(_MARK, nonce, len(starts), len(value)), staged

    async def read(self, place: bytes, head: bytes, by: float) -> bytes | None:
        """The value that a head stands for; None: it is not there any more. Raises StoreGone, also where it takes longer.

        `by`: the loop's time; whoever asked for it has waited for the head already.
        """
        try:
            async with asyncio.timeout_at(by):
                return await self._read(place, head)
        except TimeoutError as late:
            raise StoreGone("it is too long for the time there is") from late

    async def _read(self, place: bytes, head: bytes) -> bytes | None:
        _, nonce, count, length = _HEAD.unpack(head)
        parts: list[bytes] = []
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            found = await asyncio.gather(*[self._link.command(b"HMGET", place, b"nonce", number) for number in numbers])
            if any(its_nonce != nonce or part is None for its_nonce, part in found):
                return None
            parts += [part for _, part in found]
        value = b"".join(parts)
        return value if len(value) == length else None
