"""Vectors of embeddings in base64, as OpenAI packs them: 32 bits a number, the lowest byte first.

OpenAI's SDKs ask for base64 by themselves and decode what comes; several servers ignore that and answer with numbers. Only
the vectors of such an answer are written anew, all other bytes stay.
"""

from __future__ import annotations

import re
from array import array
from asyncio import to_thread
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from sys import byteorder
from typing import Final

import orjson

LARGE_BYTES = 1_000_000
"""A longer piece is written anew in a thread, so that others do not wait."""
_ASKS: Final = re.compile(rb'(?<!\\)"encoding_format"\s*:\s*"base64"')
_KEY: Final = b'"embedding"'
_UNFINISHED: Final = re.compile(rb'"embedding"\s*(?::\s*(?:\[[-+.0-9eE,\s]*)?)?')
_VECTOR: Final = re.compile(rb'("embedding"\s*:\s*)(\[[-+.0-9eE,\s]*\])')


def asks_base64(request: bytes) -> bool:
    """Returns whether the body of a request for embeddings asks for base64."""
    return _ASKS.search(request) is not None


def packed(vector: Sequence[float]) -> bytes:
    """Returns a vector in base64. Raises TypeError or OverflowError where it is no list of numbers."""
    numbers = array("f", vector)
    if byteorder != "little":
        numbers.byteswap()
    return b64encode(numbers.tobytes())


def with_base64(answer: bytes) -> bytes:
    """Returns an answer with each vector that is a list of numbers in base64."""
    return _VECTOR.sub(_packed_match, answer)


async def chunks_with_base64(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the same of an answer that comes in pieces; holds no more than one vector of numbers and one piece."""
    held = b""
    async for chunk in chunks:
        held += chunk
        # Where a vector of numbers begins, or may begin, that goes on behind the end; the end where none does.
        at = held.rfind(_KEY)
        if at < 0 or _UNFINISHED.fullmatch(held, at) is None:
            at = held.rfind(b'"', max(0, len(held) - len(_KEY) + 1))
            at = at if at >= 0 and _KEY.startswith(held[at:]) else len(held)
        end = at if len(held) - at < LARGE_BYTES else len(held)  # no vector is that long
        if end:
            yield with_base64(held[:end]) if end < LARGE_BYTES else await to_thread(with_base64, held[:end])
            held = held[end:]
    if held:
        yield held


def _packed_match(found: re.Match[bytes]) -> bytes:
    try:
        return b'%b"%b"' % (found[1], packed(orjson.loads(found[2])))
    except (orjson.JSONDecodeError, OverflowError):
        return found[0]
