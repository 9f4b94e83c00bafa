"""Bytes in pages: what is kept for long lies apart from what comes and goes, so that memory does not fragment.

Left to malloc, answers of mixed sizes that replace each other take half as much again as they are worth (measured). Here a
blob is cut into pages that are chained like the clusters of a FAT; a large one gets a mapping of its own. Pages are mapped in
segments, and a segment that is mostly empty can be vacated and given back. It must not know what the bytes mean, nor when
to let go of them. Invariant: `taken` is what all of it takes in memory, whatever has come and gone before.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

PAGE = 512
LARGE = 128 * 1024
"""From here on a blob has a mapping of its own."""
_OS_PAGE = 4096
_SHIFT_MOST, _SHIFT_LEAST = 7, 3
"""Pages of a segment, as powers of two: 64 KiB, or 4 KiB where all there may ever be is little."""
_PER_PAGE = 8.5
"""What the tables below take for a page: two numbers, with the room that arrays reserve."""
_PER_MAPPING = 500
"""A segment's objects, and the kernel's."""
_LOOK_AT = 32
"""So many segments at either end are looked at to find one that is mostly empty."""


class Segment:
    """A mapping, and a stack of the numbers of its free pages."""

    __slots__ = ("free", "memory")

    def __init__(self, pages: int) -> None:
        self.memory = mapped(pages * PAGE)
        self.free = bytearray(reversed(range(pages)))


def mapped(size: int) -> mmap:
    """Private memory that goes back to the system as soon as it is let go of."""
    return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)


class Pages:
    """Blobs by their slot, a number of the caller's, and by what `write` returned. Nothing here is checked twice."""

    __slots__ = (
        "_large",
        "_next",
        "_open",
        "_segments",
        "_shift",
        "_slots",
        "_unused",
        "free",
        "segment_bytes",
        "taken",
    )

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` is about what there will be at most; it decides how finely memory is taken."""
        self._shift = min(_SHIFT_MOST, max(_SHIFT_LEAST, (most_bytes // 64 // PAGE).bit_length() - 1))
        self.segment_bytes = (PAGE + _PER_PAGE) * (1 << self._shift) + _PER_MAPPING
        """What one more segment takes."""
        self._segments: list[Segment] = []
        self._open: list[int] = []
        """Segments with free pages; those of the last are taken first."""
        self._unused: list[int] = []
        """Numbers of segments that were given back; what stands in their place is closed."""
        self._next = array("I")
        """Of a page: the next one of the same blob."""
        self._slots = array("I")
        """Of a page: whose it is, while it is in use."""
        self._large: dict[int, mmap] = {}
        self.free = 0
        """Pages."""
        self.taken = 0.0
        """Bytes."""

    def cost(self, size: int) -> float:
        """What a blob of this size takes where nothing is free, in bytes."""
        if size >= LARGE:
            return float(-(-size // _OS_PAGE) * _OS_PAGE + _PER_MAPPING)
        return -(-pages_of(size) >> self._shift) * self.segment_bytes

    def lack(self, size: int) -> float:
        """What more has to be taken for a blob of this size, in bytes; 0: there are free pages enough."""
        if size >= LARGE:
            return self.cost(size)
        return max(0, -((self.free - pages_of(size)) >> self._shift)) * self.segment_bytes

    def write(self, slot: int, blob: bytes) -> int:
        """Keep a blob that is not empty; returns where it begins. Raises OSError when the system has no memory to map."""
        size = len(blob)
        if size >= LARGE:
            return self._write_large(slot, blob)
        while self.free < pages_of(size):
            self._grow()
        segments, pages_open, following, shift = self._segments, self._open, self._next, self._shift
        first = previous = -1
        for at in range(0, size, PAGE):
            number = pages_open[-1]
            segment = segments[number]
            inside = segment.free.pop()
            if not segment.free:
                pages_open.pop()
            piece = blob[at : at + PAGE]
            start = inside * PAGE
            segment.memory[start : start + len(piece)] = piece
            page = number << shift | inside
            self._slots[page] = slot
            if previous < 0:
                first = page
            else:
                following[previous] = page
            previous = page
        self.free -= pages_of(size)
        return first

    def read(self, slot: int, first: int, size: int) -> bytes:
        """The blob of this slot."""
        if size >= LARGE:
            return self._large[slot][:size]
        if size <= PAGE:
            return self._piece(first, size)
        pieces = []
        page = first
        for _ in range(size // PAGE):
            pieces.append(self._piece(page, PAGE))
            page = self._next[page]
        if rest := size % PAGE:
            pieces.append(self._piece(page, rest))
        return b"".join(pieces)

    def release(self, slot: int, first: int, size: int) -> None:
        """Let go of the blob of this slot."""
        if size >= LARGE:
            self.taken -= self.cost(size)
            self._large.pop(slot).close()
            return
        page = first
        for _ in range(pages_of(size)):
            number = page >> self._shift
            segment = self._segments[number]
            if not segment.free:
                self._open.append(number)
            segment.free.append(page & (1 << self._shift) - 1)
            page = self._next[page]
        self.free += pages_of(size)

    def can_vacate(self, size: float = 0) -> bool:
        """Whether a segment's worth of pages is free, and so many bytes."""
        return self.free >= max(1 << self._shift, size / PAGE)

    def has_spare(self, share: float) -> bool:
        """Whether more than this share of the memory is free, and some of it can be given back."""
        return self.can_vacate() and self.free * PAGE > share * self.taken

    def vacate(self, move: Callable[[int], None]) -> None:
        """Give a segment back to the system, one that is mostly empty where there is; only when `can_vacate`.

        `move` is called with each slot that has pages in it, and has to release and write that slot's blob once.
        """
        at = max(self._candidates(), key=self._free_in)
        number = self._open[at]
        self._open[at] = self._open[-1]
        self._open.pop()
        segment = self._segments[number]
        # Full of free pages as it now seems, so that those released on the way do not open it again, nor count as free.
        was_free, segment.free = segment.free, bytearray(1 << self._shift)
        self.free -= 1 << self._shift
        in_use = set(range(1 << self._shift)).difference(was_free)
        for slot in {self._slots[number << self._shift | page] for page in in_use}:
            move(slot)
        segment.memory.close()
        self._unused.append(number)
        self.taken -= self.segment_bytes

    def _candidates(self) -> list[int]:
        """Places in `_open`: of those that have been open for longest, and those where pages became free just now."""
        count = len(self._open)
        return [*range(min(_LOOK_AT, count)), *range(max(_LOOK_AT, count - _LOOK_AT), count)]

    def _free_in(self, at: int) -> int:
        return len(self._segments[self._open[at]].free)

    def _piece(self, page: int, size: int) -> bytes:
        segment = self._segments[page >> self._shift]
        start = (page & (1 << self._shift) - 1) * PAGE
        return segment.memory[start : start + size]

    def _write_large(self, slot: int, blob: bytes) -> int:
        memory = mapped(len(blob))
        memory[:] = blob
        self._large[slot] = memory
        self.taken += self.cost(len(blob))
        return 0

    def _grow(self) -> None:
        """Take one more segment."""
        segment = Segment(1 << self._shift)
        if self._unused:
            number = self._unused.pop()
            self._segments[number] = segment
        else:
            number = len(self._segments)
            self._segments.append(segment)
            empty = array("I", bytes(4 << self._shift))
            self._next.extend(empty)
            self._slots.extend(empty)
        self._open.append(number)
        self.free += 1 << self._shift
        self.taken += self.segment_bytes


def pages_of(size: int) -> int:
    """How many pages a blob of this size fills."""
    return -(-size // PAGE)
