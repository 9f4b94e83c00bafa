"""Frames of AWS's event streams: in any cut, with both sums, bounded."""

from __future__ import annotations

import struct
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.bedrock import answer
from gateway.dialects.bedrock.answer import Frame, FrameReader, headers_in
from tests.dialects.aws_frames import event, exception, frame

STREAM = event("messageStart", {"role": "assistant"}) + event("x", {}) + exception("throttlingException", "slow")


def read(raw: bytes, *cuts: int) -> tuple[list[Frame], str | None, bool]:
    reader = FrameReader()
    edges = [0, *sorted(cuts), len(raw)]
    found = [one for start, end in pairwise(edges) for one in reader.feed(raw[start:end])]
    return found, reader.fault, reader.is_between


def test_frames_are_read_with_their_headers() -> None:
    found, fault, is_between = read(STREAM)

    assert [one.headers.get(":event-type", one.headers.get(":exception-type")) for one in found] == [
        "messageStart",
        "x",
        "throttlingException",
    ]
    assert [one.headers[":message-type"] for one in found] == ["event", "event", "exception"]
    assert found[2].payload == b'{"message":"slow"}'
    assert (fault, is_between) == (None, True)


def test_any_cut_gives_the_same() -> None:
    whole = read(STREAM)
    for cut in range(len(STREAM)):
        assert read(STREAM, cut) == whole
    assert read(STREAM, *range(len(STREAM))) == whole


def test_what_is_cut_off_is_held_back() -> None:
    for cut in range(1, len(STREAM)):
        found, fault, is_between = read(STREAM[:cut])
        assert fault is None
        assert is_between == (cut == sum(len(raw) for raw in _frames()[: len(found)]))


def _frames() -> list[bytes]:
    return [event("messageStart", {"role": "assistant"}), event("x", {}), exception("throttlingException", "slow")]


def test_each_bit_is_under_a_sum() -> None:
    """What comes before the changed frame is read, nothing behind it; a longer length than is there is told at once, too."""
    first, second, third = _frames()
    for at in range(len(second)):
        changed = bytearray(second)
        changed[at] ^= 1
        found, fault, _ = read(first + bytes(changed) + third)
        assert (len(found), fault is None) == (1, False)


def test_a_frame_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MOST_FRAME_BYTES", 100)
    assert read(frame(b"x" * 84))[1] is None
    assert read(frame(b"x" * 85)[:12])[1] == "a frame is longer than 100 bytes"


@pytest.mark.parametrize(("total", "headers"), [(0, 0), (15, 0), (16, 1), (100, 85)])
def test_lengths_have_to_fit(total: int, headers: int) -> None:
    prelude = struct.pack(">II", total, headers)
    assert read(prelude + struct.pack(">I", crc32(prelude)))[1] == "the headers of a frame are longer than the frame"


def test_headers_of_all_types_are_passed_over() -> None:
    values = {0: b"", 1: b"", 2: b"a", 3: b"ab", 4: b"abcd", 5: b"x" * 8, 6: b"\0\1a", 8: b"x" * 8, 9: b"x" * 16}
    head = b"".join(b"\1" + bytes([97 + kind, kind]) + value for kind, value in values.items())
    assert headers_in(head + b"\1z\7\0\2ok") == {"z": "ok"}


@pytest.mark.parametrize("head", [b"\1", b"\1a", b"\1a\x0a", b"\1a\7\0\5ok", b"\2\xff\xff\7\0\0", b"\1a\4\0"])
def test_headers_that_are_none_are_told(head: bytes) -> None:
    raw = struct.pack(">II", 16 + len(head), len(head))
    raw += struct.pack(">I", crc32(raw)) + head
    assert "header" in (read(raw + struct.pack(">I", crc32(raw)))[1] or "")


@settings(max_examples=60)
@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_are_survived(raw: bytes, cut: int) -> None:
    assert read(raw)[:2] == read(raw, min(cut, len(raw)))[:2]
