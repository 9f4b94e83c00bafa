"""Finds one text field in a multipart/form-data body, by its offsets, so that the rest can be relayed as it came.

Source: RFC 7578; RFC 2046, 5.1.1. Works on the delimiter lines only: file parts are skipped, never copied.
"""

from __future__ import annotations

import re

_BOUNDARY = re.compile(rb"""[;\s]boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))(?![^\s;])""", re.IGNORECASE)
# Whole parameters are skipped on the way to `name`: a file may be called `; name=model`.
_NAME = re.compile(
    rb"""^content-disposition:[ \t]*form-data[ \t]*"""
    rb"""(?:;[ \t]*(?!name=)[^\s;="]++=(?:"(?:[^"\\\r\n]|\\.)*+"|[^\s;"]*+)[ \t]*)*+"""
    rb""";[ \t]*name=(?:"([^"\r\n]*)"|([^\s;"]+))""",
    re.I | re.M,
)
MAX_PARTS = 1000
_MAX_PART_HEAD = 8192


class MultipartError(ValueError):
    """The body is not the multipart/form-data that its content type promises."""


def boundary_of(content_type: bytes) -> bytes:
    """The boundary that the content type names. Raises MultipartError when there is none."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise MultipartError("the content type names no boundary")
    return found.group(1) or found.group(2)


def find_fields(body: bytes, boundary: bytes, name: str) -> list[tuple[int, int]]:
    """Start and end offsets of the values of all fields called `name`. Raises MultipartError on a malformed body."""
    delimiter = b"--" + boundary
    wanted = name.encode()
    spans: list[tuple[int, int]] = []
    at = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    if at < 2 and not body.startswith(delimiter):
        raise MultipartError("the boundary does not occur in the body")
    for _ in range(MAX_PARTS):
        line_end = at + len(delimiter)
        if body[line_end : line_end + 2] == b"--":
            return spans
        if body[line_end : line_end + 2] != b"\r\n":
            raise MultipartError("a boundary does not end its line")
        part_end = body.find(b"\r\n" + delimiter, line_end)
        if part_end < 0:
            raise MultipartError("a part does not end")
        head_end = body.find(b"\r\n\r\n", line_end, min(part_end + 2, line_end + _MAX_PART_HEAD))
        if head_end < 0:
            raise MultipartError("the head of a part does not end")
        field = _NAME.search(body, line_end, head_end)
        if field is not None and (field.group(1) or field.group(2)) == wanted:
            spans.append((head_end + 4, max(head_end + 4, part_end)))
        at = part_end + 2
    raise MultipartError(f"more than {MAX_PARTS} parts")
