"""Bodies that come compressed although `identity` was wanted: unpacked as they arrive, and never to more than is sound."""

from __future__ import annotations

import zlib
from asyncio import sleep
from collections.abc import AsyncIterator, Iterator

import httpx

PIECE_BYTES = 16 * 1024
"""The bytes that are unpacked, and read by whoever converts or checks them, in one turn of the loop."""
FREE_BYTES = 16_000_000
"""The bytes that a body may unpack to, however small it was ..."""
MAX_RATIO = 100
"""... and how many times its size beyond that. Text packs 3 to 10 times, a bomb a thousand times."""
_GZIP_OR_ZLIB, _BARE = 32 + zlib.MAX_WBITS, -zlib.MAX_WBITS
_CODINGS = frozenset((b"gzip", b"x-gzip", b"deflate"))
_GZIP_MAGIC = b"\x1f\x8b"


def unpacked(chunks: AsyncIterator[bytes], codings: bytes) -> AsyncIterator[bytes]:
    """Returns the body without its `content-encoding`; it is unpacked as it arrives, a bounded piece at a time.

    Known are gzip (RFC 1952) and deflate (RFC 1950, and the bare RFC 1951 that some servers send). Raises DecodingError at
    once for another coding, else while the body is read: another request would be answered in the same way. Invariant:
    whatever a body says, no more than a piece of it is unpacked at once.
    """
    coding = codings.strip().lower()
    if coding == b"identity" or not coding:
        return chunks
    if coding not in _CODINGS:
        shown = coding[:40].decode("latin-1")
        raise httpx.DecodingError(f"the body is packed with {shown!r}, although it was asked not to be")
    return _unpack(chunks, may_be_bare=coding == b"deflate")


async def _unpack(chunks: AsyncIterator[bytes], *, may_be_bare: bool) -> AsyncIterator[bytes]:
    unpacker = Unpacker(may_be_bare=may_be_bare)
    async for chunk in chunks:
        is_first = True
        for piece in unpacker.feed(chunk):
            if not is_first:
                await sleep(0)  # a short block can unpack to much: other calls have their turn between its pieces
            is_first = False
            yield piece
    unpacker.finish()


class Unpacker:
    """One body. Feed it to its end; then `finish` says whether that was one."""

    __slots__ = ("_head", "_inflate", "_may_be_bare", "_read", "_written")

    def __init__(self, *, may_be_bare: bool = False) -> None:
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._may_be_bare = may_be_bare
        self._head = b""
        self._read = self._written = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What can be unpacked by now, in pieces. Raises DecodingError."""
        self._read += len(data)
        if self._may_be_bare:
            data = self._head = self._head + data
            if len(data) < 2:
                return
            self._may_be_bare = False
            if not _is_zlib(data):
                self._inflate = zlib.decompressobj(_BARE)
        while data:
            if self._inflate.eof:  # gzip members may follow each other (RFC 1952, 2.2), and padding the last
                if not data.startswith(_GZIP_MAGIC[: len(data)]):
                    return
                self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            piece = self._decompress(data)
            yield from self._counted(piece)
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            while (
                len(piece) == PIECE_BYTES and not data and not self._inflate.eof
            ):  # it may hold more of what it has taken
                piece = self._decompress(b"")
                yield from self._counted(piece)

    def finish(self) -> None:
        """Raises DecodingError where the body ended before its last block."""
        if self._read and not self._inflate.eof:
            raise httpx.DecodingError("the packed body ends too early")

    def _decompress(self, data: bytes) -> bytes:
        try:
            return self._inflate.decompress(data, PIECE_BYTES)
        except zlib.error as exc:
            raise httpx.DecodingError(f"the packed body cannot be read: {exc}") from exc

    def _counted(self, piece: bytes) -> Iterator[bytes]:
        self._written += len(piece)
        if self._written > max(FREE_BYTES, MAX_RATIO * self._read):
            raise httpx.DecodingError(f"the body unpacks to more than {MAX_RATIO} times its size")
        if piece:
            yield piece


def _is_zlib(head: bytes) -> bool:
    """Whether two bytes are the header of RFC 1950 (2.2), and not the beginning of bare deflate."""
    return head[0] & 0x0F == 8 and (head[0] << 8 | head[1]) % 31 == 0
