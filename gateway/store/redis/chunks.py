"""Long values in parts, so that no operation takes long: neither the server's time, nor that of those who wait behind it.

A long value is put aside part by part, and comes to its place in the one step that lists it; what stands for it there is a
head that says how many parts there are. Invariants: what is read is all of what was written at once, or nothing; parts that
nobody lists are gone within a minute.
"""

from __future__ import annotations

import asyncio
from secrets import token_bytes
from struct import Struct
from typing import Any

from gateway.store.redis_link.link import Link, StoreGone, load_script

STAGE = load_script("stage")

PART_BYTES = 128 * 1024
"""Takes some tenths of a millisecond."""
AT_ONCE = 4
"""Parts on their way."""
STAGED_MS = 60_000
_HEAD = Struct(">4s16sII")
_MARK = b"\xff\xff\xff\xff"
"""Before a head; no value begins so. Keep in sync with `lua/shelf.lua`."""


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
