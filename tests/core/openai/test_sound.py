"""How long a sound file is, by its head."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.openai.media import find_seconds
from tests.core.openai.test_media import fmt, form, wav
from tests.rows import rows

SECOND = bytes(16_000)
"""Of WAV files here."""
XING = b"Xing" + struct.pack(">II", 1, 1000)
ID3 = b"ID3\4\0\0\0\0\1\0" + bytes(128)
SILENCE = bytes(1000)


def flac(samples: int, hertz: int) -> bytes:
    info = bytes(10) + (hertz << 44 | 1 << 41 | 15 << 36 | samples).to_bytes(8, "big") + bytes(16)
    return form(b"fLaC\x80\0\0\x22" + info + SILENCE)


def ogg(kind: bytes, position: int) -> bytes:
    pages = (b"OggS\0\2" + bytes(22) + kind, b"OggS\0\4" + struct.pack("<Q", position) + bytes(14))
    return form(pages[0] + SILENCE + pages[1] + SILENCE)


def mp4(*boxes: bytes) -> bytes:
    return form(struct.pack(">I", 16) + b"ftypM4A " + bytes(4) + b"".join(boxes))


def box(name: bytes, body: bytes, *, is_long: bool = False) -> bytes:
    if is_long:
        return struct.pack(">I", 1) + name + struct.pack(">Q", 16 + len(body)) + body
    return struct.pack(">I", 8 + len(body)) + name + body


def moov(units: int, per_s: int, version: int = 0) -> bytes:
    times = struct.pack(">QQIQ" if version else ">IIII", 0, 0, per_s, units)
    return box(b"moov", box(b"mvhd", bytes([version, 0, 0, 0]) + times + bytes(80)))


def mp3(head: int, rest: bytes = SILENCE, before: bytes = b"") -> bytes:
    return form(before + struct.pack(">I", head) + rest)


VORBIS = b"\x01vorbis\0\0\0\0\2" + struct.pack("<I", 44_100)


@rows(
    ("body", "seconds"),
    [
        pytest.param(wav(fmt(), data=2 * SECOND), 2.0, id="WAV"),
        pytest.param(wav((b"LIST", b"odd"), fmt(), (b"fact", bytes(4)), data=SECOND), 1.0, id="WAV with other chunks"),
        pytest.param(wav(fmt(), data=SECOND, size=2**32 - 1), 1.0, id="WAV of a recorder that did not know"),
        pytest.param(wav(fmt(kind=2), data=SECOND), None, id="WAV, packed"),
        pytest.param(wav(fmt(rate=0), data=SECOND), None, id="WAV without a rate"),
        pytest.param(wav(data=SECOND), None, id="WAV without a format"),
        pytest.param(form(b"RIFF\0\0\0\0WEBPVP8 " + SILENCE), None, id="another RIFF"),
        pytest.param(flac(441_000, 44_100), 10.0, id="FLAC"),
        pytest.param(flac(0, 44_100), None, id="FLAC of a length that was not known"),
        pytest.param(ogg(b"OpusHead" + bytes(11), 480_000), 10.0, id="Opus"),
        pytest.param(ogg(VORBIS, 441_000), 10.0, id="Vorbis"),
        pytest.param(ogg(b"Speex   " + bytes(11), 441_000), None, id="Ogg of another kind"),
        pytest.param(ogg(VORBIS, 2**64 - 1), None, id="Ogg that is cut off"),
        pytest.param(mp4(moov(10_000, 1000)), 10.0, id="MP4"),
        pytest.param(mp4(box(b"mdat", SILENCE), moov(10_000, 1000)), 10.0, id="MP4 with its head at the end"),
        pytest.param(mp4(box(b"mdat", SILENCE, is_long=True), moov(10_000, 1000, 1)), 10.0, id="MP4 with long numbers"),
        pytest.param(mp4(moov(0, 1000)), None, id="MP4 in fragments"),
        pytest.param(mp4(moov(2**40, 1, 1)), None, id="MP4 of years"),
        pytest.param(mp4(box(b"mdat", SILENCE)), None, id="MP4 without a head"),
        pytest.param(mp4(box(b"moov", SILENCE)), None, id="MP4 with an odd head"),
        pytest.param(mp4(bytes(100)), None, id="MP4 that goes nowhere"),
        pytest.param(mp3(0xFFFB9000, bytes(15_996)), 1.0, id="MP3 of 128 kbit/s"),
        pytest.param(mp3(0xFFFB9000, bytes(15_996), ID3), 1.0, id="MP3 behind a tag"),
        pytest.param(mp3(0xFFF34000, bytes(3_996)), 1.0, id="MP3 of 32 kbit/s at 22 kHz"),
        pytest.param(mp3(0xFFFB9400, bytes(32) + XING + SILENCE), 24.0, id="MP3 that counts its frames"),
        pytest.param(mp3(0xFFF39400, bytes(9) + XING + SILENCE), 24.0, id="MP3 at 24 kHz that counts them"),
        pytest.param(mp3(0xFFE39400, bytes(9) + XING + SILENCE), 48.0, id="MP3 at 12 kHz that counts them"),
        pytest.param(mp3(0xFFFB9000, bytes(15_996), bytes(4)), None, id="MP3 that begins late"),
        pytest.param(mp3(0xFFFB0000), None, id="MP3 of any rate"),
        pytest.param(mp3(0xFFFD9000), None, id="another layer"),
        pytest.param(form(b"\x1aE\xdf\xa3" + SILENCE), None, id="WebM"),
        pytest.param(form(b""), None, id="nothing"),
        pytest.param(SILENCE, None, id="no form"),
        pytest.param(b'--b\r\ncontent-disposition: form-data; filename="a"', None, id="cut off"),
    ],
)
def test_a_file_says_how_long_it_is(body: bytes, seconds: float | None) -> None:
    found = find_seconds(body)

    assert found == (None if seconds is None else pytest.approx(seconds))


@given(
    st.sampled_from([b"RIFF\0\0\0\0WAVE", b"fLaC", b"OggS", b"\0\0\0\x10ftyp", b"ID3", b"\xff\xfb", b""]), st.binary()
)
def test_any_file_is_looked_at(begin: bytes, rest: bytes) -> None:
    found = find_seconds(form(begin + rest))

    assert found is None or 0 < found < 100_000
