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

from gateway.core.types.words import Kept
from gateway.drivers.redis.link import Link, StoreGone, load_script
from gateway.features.reuse.memory.entry_codec import about, restored

STAGE = load_script("stage")

ENTRY_BYTES = 768
"""About the bytes of an entry besides its value: its key, and its places in the lists (measured)."""
MOST_BYTES = 16 * 1024 * 1024 + 64 * 1024
"""The longest value that is kept: a body of 16 MiB and its description."""
CLOCKS_AGREE_S = 0.5
"""A difference in seconds below which two clocks agree: it may be the time of the round trip."""
_LENGTH = Struct(">I")
PART_BYTES = 128 * 1024
"""The length of a chunk, which takes some tenths of a millisecond to transfer."""
AT_ONCE = 4
"""Chunks in flight at once."""
STAGED_MS = 60_000
_HEAD = Struct(">4s16sII")
_MARK = b"\xff\xff\xff\xff"
"""The first bytes of a head, with which no value begins. Keep in sync with `lua/lru.lua`."""


def framed(kept: Kept) -> bytes:
    """Returns the whole answer as one value."""
    known = about(kept)
    return b"".join((_LENGTH.pack(len(known)), known, kept.body))


def unframed(value: bytes) -> Kept | None:
    """Returns the answer, with its times as they were written; None for bytes that are none."""
    try:
        (length,) = _LENGTH.unpack_from(value)
        start = _LENGTH.size + length
        return restored(value[_LENGTH.size : start], value[start:])
    except Exception:  # noqa: BLE001  # another release or program may have written it; a call must not fail of that
        return None


def moved(kept: Kept, shift_s: float) -> Kept:
    """Shifts the answer's times to a clock that is `shift_s` ahead of the writer's, and returns it."""
    if abs(shift_s) >= CLOCKS_AGREE_S:
        kept.stored_at += shift_s
        kept.fresh_until += shift_s
        kept.stale_until += shift_s
    return kept


def owner(model: str, tenant: str) -> bytes:
    """Returns the owner of an entry: 32 bytes, 16 for each name."""
    return name_digest(model) + name_digest(tenant)


def name_digest(name: str | None) -> bytes:
    """Returns 16 bytes for a name, none for None."""
    return b"" if name is None else blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def is_head(value: bytes) -> bool:
    """Tells whether the value is the head of a long value in chunks."""
    return len(value) == _HEAD.size and value.startswith(_MARK)


class ChunkedValue:
    """Writes and reads the long values of one link."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    async def stage(self, place: bytes, value: bytes) -> tuple[bytes, bytes]:
        """Returns the head of a long value (or the short value itself) and the key of its staged chunks. Raises StoreGone."""
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
        """Returns the value of a head, None where its chunks are gone. Raises StoreGone, also when it has not arrived by `by`.

        `by` is a time of the loop, because the caller has waited for the head already.
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
