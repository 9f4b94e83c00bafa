"""A large body in which a few places read differently, without a copy of all the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Edit = tuple[int, int, bytes]
"""What stands from here to there reads so instead."""


class Spliced:
    """Bytes that are written as a few buffers, as often as somebody asks; the body that they are parts of is only borrowed.

    It has a length as bytes have, `bytes()` of it is the copy that it spares.
    """

    __slots__ = ("_length", "_parts")

    def __init__(self, body: bytes, edits: Sequence[Edit]) -> None:
        """`edits` are in any order, and do not overlap."""
        view, at = memoryview(body), 0
        self._parts: list[memoryview] = []
        for start, end, text in sorted(edits):
            self._parts += (view[at:start], memoryview(text))
            at = end
        self._parts.append(view[at:])
        self._length = sum(map(len, self._parts))

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)

    def __radd__(self, before: bytes) -> bytes:
        return b"".join([before, *self._parts])

    def pieces(self, size: int) -> Iterator[bytes]:
        """All of it in pieces of at most so many bytes, none empty."""
        for part in self._parts:
            for start in range(0, len(part), size):
                yield bytes(part[start : start + size])


def pieces_of(body: bytes | Spliced, size: int) -> Iterator[bytes]:
    """A body in pieces of at most so many bytes."""
    if isinstance(body, Spliced):
        yield from body.pieces(size)
    else:
        for start in range(0, len(body), size):
            yield body[start : start + size]
