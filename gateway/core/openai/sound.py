"""How long the sound file of a form is, by what its head says: WAV, FLAC, MP3, Ogg, MP4.

Sources: RFC 7578 (forms); the WAVE format (Microsoft, IBM); RFC 9639, 8.2 (FLAC); ISO 11172-3, 2.4.2.3, and the Xing tag (MP3);
RFC 3533 and 7845 (Ogg, Opus); ISO 14496-12, 8.2.2 (MP4). Invariant: total on any body, of which a few kilobytes are read.
"""

from __future__ import annotations

_HEAD_BYTES = 65_536
"""The part of a form in which its file has to begin."""
_PART_HEAD_BYTES = 4096
_MOST_S = 100_000.0
"""No sound of 25 MB is as long."""
_MOST_BOXES = 64
"""Chunks of a WAV file and boxes of an MP4 file that are looked at."""
_PCM = frozenset((1, 3, 0xFFFE))
"""Formats of WAV files whose samples all have the same size."""
_OGG_PAGE_BYTES = 65_307
_OPUS_HZ = 48_000
_MP3_HZ = (44_100, 48_000, 32_000)
_MP3_KBPS = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
)
"""By the number in a frame's head; of MPEG-1, and of the versions with lower sampling rates."""


def find_seconds(form: bytes) -> float | None:
    """Returns how long the sound in a form is, in seconds; None: there is no file, or it does not say."""
    named = form.find(b"filename", 0, _HEAD_BYTES)
    start = form.find(b"\r\n\r\n", named, named + _PART_HEAD_BYTES) + 4 if named >= 0 else 0
    if start < 4:
        return None
    head = form[start : start + 12]
    if head.startswith(b"RIFF") and head.endswith(b"WAVE"):
        units, per_s = _wav(form, start + 12)
    elif head.startswith(b"fLaC"):
        told = _big(form, start + 18, 8)
        units, per_s = told & (1 << 36) - 1, told >> 44
    elif head.startswith(b"OggS"):
        units, per_s = _ogg(form, start)
    elif head[4:8] == b"ftyp":
        units, per_s = _mp4(form, start)
    else:
        units, per_s = _mp3(form, start)
    seconds = units / per_s if per_s else 0.0
    return seconds if 0 < seconds < _MOST_S else None


def _wav(form: bytes, at: int) -> tuple[int, int]:
    """Returns the bytes of sound, and how many a second has."""
    per_s = 0
    for _ in range(_MOST_BOXES):
        name, size = form[at : at + 4], _little(form, at + 4, 4)
        if name == b"fmt " and _little(form, at + 8, 2) in _PCM:
            per_s = _little(form, at + 12, 4) * _little(form, at + 20, 2)
        if name == b"data":  # a recorder that did not know the size has written the largest
            return min(size, len(form) - at - 8), per_s
        at += 8 + size + size % 2
    return 0, 0


def _ogg(form: bytes, start: int) -> tuple[int, int]:
    """Returns the position of the last page, in samples, and the sampling rate."""
    page = form.rfind(b"OggS", max(start, len(form) - 2 * _OGG_PAGE_BYTES))
    vorbis = form.find(b"\x01vorbis", start, start + 256)
    hertz = _little(form, vorbis + 12, 4) if vorbis >= 0 else 0
    if form.find(b"OpusHead", start, start + 256) >= 0:
        hertz = _OPUS_HZ
    position = _little(form, page + 6, 8)
    return position if position < 1 << 63 else 0, hertz  # all ones: no packet ends on the page


def _mp4(form: bytes, at: int) -> tuple[int, int]:
    """Returns the duration, and its units in a second."""
    for _ in range(_MOST_BOXES):
        size, name = _big(form, at, 4), form[at + 4 : at + 8]
        if size == 1:
            size = _big(form, at + 8, 8)
        if name == b"moov":
            box = form.find(b"mvhd", at, at + 256)
            if box < 0:
                return 0, 0
            if form[box + 4 : box + 5] == b"\x01":
                return _big(form, box + 28, 8), _big(form, box + 24, 4)
            return _big(form, box + 20, 4), _big(form, box + 16, 4)
        if size < 8:
            return 0, 0
        at += size
    return 0, 0


def _mp3(form: bytes, at: int) -> tuple[int, int]:
    """Returns the samples and their rate where a tag counts the frames, else the bits and the rate of the first frame."""
    if form.startswith(b"ID3", at):
        size = 0
        for byte in form[at + 6 : at + 10]:  # seven bits of each
            size = size << 7 | byte & 0x7F
        at += 10 + size
    frame = _big(form, at, 4)
    version, layer, bitrate, hertz = frame >> 19 & 3, frame >> 17 & 3, frame >> 12 & 15, frame >> 10 & 3
    if frame >> 21 != 0x7FF or version == 1 or layer != 1 or hertz == 3:
        return 0, 0
    is_mpeg1 = version == 3
    tag = max(form.find(b"Xing", at, at + 64), form.find(b"Info", at, at + 64))
    if tag >= 0 and _big(form, tag + 4, 4) & 1:
        per_s = _MP3_HZ[hertz] // (1 if is_mpeg1 else 2 if version == 2 else 4)
        return _big(form, tag + 8, 4) * (1152 if is_mpeg1 else 576), per_s
    return (len(form) - at) * 8, _MP3_KBPS[not is_mpeg1][bitrate] * 1000


def _big(form: bytes, at: int, size: int) -> int:
    return int.from_bytes(form[at : at + size], "big")


def _little(form: bytes, at: int, size: int) -> int:
    return int.from_bytes(form[at : at + size], "little")
