"""A large body in which a few places read differently, without a copy of all the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Edit = tuple[int, int, bytes]
"""The text between two offsets, and what replaces it."""


class Spliced:
    """A body that is written as a few buffers, any number of times; the body that they are parts of is only borrowed.

    `len()` gives its length as that of bytes; `bytes()` makes the copy that this class avoids.
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
        """Yields the body in pieces of at most `size` bytes, none empty."""
        for part in self._parts:
            for start in range(0, len(part), size):
                yield bytes(part[start : start + size])


def pieces_of(body: bytes | Spliced, size: int) -> Iterator[bytes]:
    """Yields a body in pieces of at most `size` bytes."""
    if isinstance(body, Spliced):
        yield from body.pieces(size)
    else:
        for start in range(0, len(body), size):
            yield body[start : start + size]
