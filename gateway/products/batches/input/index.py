"""Where the lines of a batch's input are, and which model each is for: twelve bytes a line.

So a chunk is read by itself.
"""

from __future__ import annotations

from typing import NamedTuple

ENTRY_BYTES = 12
_LENGTH_BITS, _MODEL_BITS = 32, 24
MOST_BYTES = 1 << 40
"""Of an input file."""


class IndexEntry(NamedTuple):
    """One line of the input file: its bytes without the line end, and the number of its model in the batch's list."""

    offset: int
    length: int
    model: int


def pack_entry(entry: IndexEntry) -> bytes:
    """Returns an entry as it is stored."""
    number = (entry.offset << _LENGTH_BITS | entry.length) << _MODEL_BITS | entry.model
    return number.to_bytes(ENTRY_BYTES)


def read_index(data: bytes) -> list[IndexEntry]:
    """Returns the entries in a part of an index that begins and ends with whole ones."""
    numbers = [int.from_bytes(data[at : at + ENTRY_BYTES]) for at in range(0, len(data), ENTRY_BYTES)]
    return [
        IndexEntry(
            number >> _LENGTH_BITS + _MODEL_BITS,
            number >> _MODEL_BITS & (1 << _LENGTH_BITS) - 1,
            number & (1 << _MODEL_BITS) - 1,
        )
        for number in numbers
    ]
