"""Packed bodies: whatever they are cut into they unpack to what was packed, and never to more than they may."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.http.client.unpacking import FREE_BYTES, PIECE_BYTES, Unpacker, unpacked


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def unpack(packed: bytes, step: int, *, may_be_bare: bool = False) -> bytes:
    """Feed a body in pieces of `step` bytes."""
    unpacker = Unpacker(may_be_bare=may_be_bare)
    pieces = [piece for start in range(0, len(packed), step) for piece in unpacker.feed(packed[start : start + step])]
    unpacker.finish()
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    return b"".join(pieces)


@given(
    parts=st.lists(st.binary(max_size=50), max_size=4),
    times=st.sampled_from([1, 100, 5000]),
    step=st.sampled_from([1, 2, 7, 1000, 10**9]),
)
def test_a_body_unpacks_to_what_was_packed(parts: list[bytes], times: int, step: int) -> None:
    """gzip in several members with padding, zlib, and the bare deflate that some servers send as such."""
    bodies = [part * times for part in parts] or [b""]
    if times < 5000 or step > 100:
        members = b"".join(gzip.compress(body) for body in bodies)
        assert unpack(members + b"\0" * 7, step) == b"".join(bodies)
        assert unpack(zlib.compress(bodies[0]), step, may_be_bare=True) == bodies[0]
        assert unpack(bare(bodies[0]), step, may_be_bare=True) == bodies[0]


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_pieces_that_are_just_full_lose_nothing(size: int) -> None:
    """zlib may hold back what it has taken when its output was full."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    assert unpack(gzip.compress(body), 1000) == body


def test_each_flushed_event_comes_out_at_once() -> None:
    """A stream is flushed after each event; nobody waits for the next one to see it."""
    packer = zlib.compressobj(wbits=31)
    unpacker = Unpacker()
    for number in range(3):
        event = b"data: %d\n\n" % number
        packed = packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)
        assert b"".join(unpacker.feed(packed)) == event


def test_a_bomb_is_defused() -> None:
    """A thousandfold body ends as an error soon after its free bytes."""
    written = 0
    unpacker = Unpacker()
    pieces = unpacker.feed(gzip.compress(b"\0" * (4 * FREE_BYTES)))
    with suppress(httpx.DecodingError):
        for piece in pieces:
            written += len(piece)
    assert FREE_BYTES - PIECE_BYTES <= written <= FREE_BYTES + PIECE_BYTES


async def test_others_have_their_turn_between_the_pieces_of_a_bomb() -> None:
    """However little of it has to arrive for that: all of it is there at once."""
    body = b"\n" * (20 * PIECE_BYTES)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def chunks() -> AsyncIterator[bytes]:
        yield gzip.compress(body)

    other = asyncio.create_task(count_turns())
    sizes = [len(piece) async for piece in unpacked(chunks(), b"gzip")]
    other.cancel()

    assert sum(sizes) == len(body)
    assert max(sizes) <= PIECE_BYTES
    assert turns >= len(sizes) - 1


PACKED = gzip.compress(b"x" * 100)


@pytest.mark.parametrize(
    "packed",
    [b"\x1f\x8bnonsense", b"{}", PACKED[:-9], PACKED[:-1] + b"?"],
    ids=["nonsense", "not packed", "cut short", "check sum"],
)
def test_what_cannot_be_unpacked_is_an_error(packed: bytes) -> None:
    """Not packed at all, cut short, or with a wrong check sum."""
    with pytest.raises(httpx.DecodingError):
        unpack(packed, 10**9)


async def test_only_known_codings_are_taken_off() -> None:
    """What the gateway cannot unpack is an error that names it; `identity` is none."""

    async def body() -> object:
        yield b"x"

    for coding in (b"br", b"zstd", b"gzip, gzip"):
        with pytest.raises(httpx.DecodingError, match=coding.decode()):
            unpacked(body(), coding)  # type: ignore[arg-type]  # never read
    assert [part async for part in unpacked(body(), b"identity")] == [b"x"]  # type: ignore[arg-type]  # one chunk
