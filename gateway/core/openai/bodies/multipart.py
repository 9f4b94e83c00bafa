"""Finds text fields in a multipart/form-data body, by its offsets, so that the rest can be relayed as it came.

Source: RFC 7578; RFC 2046, 5.1.1. Works on the delimiter lines only: file parts are skipped, never copied.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from hashlib import sha256

_BOUNDARY = re.compile(rb"""[;\s]boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))(?![^\s;])""", re.IGNORECASE)
# Whole parameters are skipped on the way to `name`: a file may be called `; name=model`.
_NAME = re.compile(
    rb"""^content-disposition:[ \t]*form-data[ \t]*"""
    rb"""(?:;[ \t]*(?!name=)[^\s;="]++=(?:"(?:[^"\\\r\n]|\\.)*+"|[^\s;"]*+)[ \t]*)*+"""
    rb""";[ \t]*name=(?:"([^"\r\n]*)"|([^\s;"]+))""",
    re.I | re.M,
)
MAX_PARTS = 1000
_PARTS_A_STEP = 16
_SEARCHED_BYTES = 262_144
Spans = dict[str, list[tuple[int, int]]]
Part = tuple[str, int, int]
_MAX_PART_HEAD = 8192


class MultipartError(ValueError):
    """The body is not the multipart/form-data that its content type promises."""


def boundary_of(content_type: bytes) -> bytes:
    """Returns the boundary that the content type names. Raises MultipartError when there is none."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise MultipartError("the content type names no boundary")
    return found.group(1) or found.group(2)


def find_fields(body: bytes, boundary: bytes, names: Collection[str]) -> Spans:
    """Returns the offsets of the values of all fields with these names. Raises MultipartError on a malformed body."""
    steps = find_in_steps(body, boundary, names)
    while True:
        try:
            next(steps)
        except StopIteration as found:
            spans: Spans = found.value
            return spans


def find_in_steps(body: bytes, boundary: bytes, names: Collection[str]) -> Generator[None, None, Spans]:
    """Does the same as `find_fields`, in steps of a millisecond or two between which the caller can let others run."""
    spans: Spans = {name: [] for name in names}
    for part in parts_in_steps(body, boundary):
        if part is None:
            yield
        elif part[0] in spans:
            spans[part[0]].append(part[1:])
    return spans


def parts_in_steps(body: bytes, boundary: bytes) -> Generator[Part | None, None, None]:
    """Yields every part: its name (empty: none), and the offsets of its value; None behind each step of a millisecond or two.

    Raises MultipartError on a malformed body.
    """
    delimiter = b"--" + boundary
    line = b"\r\n" + delimiter
    at = 0
    if not body.startswith(delimiter):
        at = (yield from _find(body, line, 0)) + 2
        if at < 2:
            raise MultipartError("the boundary does not occur in the body")
    for number in range(MAX_PARTS):
        if number % _PARTS_A_STEP == 0:
            yield None
        line_end = at + len(delimiter)
        if body[line_end : line_end + 2] == b"--":
            return
        if body[line_end : line_end + 2] != b"\r\n":
            raise MultipartError("a boundary does not end its line")
        part_end = yield from _find(body, line, line_end)
        if part_end < 0:
            raise MultipartError("a part does not end")
        head_end = body.find(b"\r\n\r\n", line_end, min(part_end + 2, line_end + _MAX_PART_HEAD))
        if head_end < 0:
            raise MultipartError("the head of a part does not end")
        field = _NAME.search(body, line_end, head_end)
        name = (field.group(1) or field.group(2) or b"").decode("latin-1") if field is not None else ""
        yield name, head_end + 4, max(head_end + 4, part_end)
        at = part_end + 2
    raise MultipartError(f"more than {MAX_PARTS} parts")


def digest_in_steps(body: bytes, boundary: bytes) -> Generator[None, None, bytes]:
    """Returns the SHA-256 of the parts, each behind its length, without the boundaries, which clients draw anew each time."""
    whole, line = sha256(), b"\r\n--" + boundary
    start = 0 if body.startswith(line[2:]) else -1  # the first boundary may lack its line end
    if start == 0:
        whole.update(b"0:")
        start = len(line) - 2
    else:
        start = 0
    lead = b"\r\n" if start == 0 else b""
    while True:
        end = yield from _find(body, line, start)
        stop = len(body) if end < 0 else end
        whole.update(b"%d:%b" % (stop - start + len(lead), lead))
        lead = b""
        for at in range(start, stop, _SEARCHED_BYTES):
            whole.update(memoryview(body)[at : min(stop, at + _SEARCHED_BYTES)])
            yield
        if end < 0:
            return whole.digest()
        start = end + len(line)


def _find(body: bytes, what: bytes, start: int) -> Generator[None, None, int]:
    """Does the same as `bytes.find`, a piece of the body at a time."""
    while start < len(body):
        found = body.find(what, start, start + _SEARCHED_BYTES + len(what) - 1)
        if found >= 0:
            return found
        start += _SEARCHED_BYTES
        if start < len(body):
            yield
    return -1
