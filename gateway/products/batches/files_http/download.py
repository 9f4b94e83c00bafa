"""A file as an answer: all of it, or the one range that is asked for (RFC 9110, 14).

It is never shown by a browser: it is an attachment, of no type that could be guessed.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.core.errors import CallerFault
from gateway.core.render import error_body, new_request_id
from gateway.products.batches.finish.partial import PartialFile, PartialFiles
from gateway.products.batches.service.file_service import FileService
from gateway.products.jobs.model.stored_file import StoredFile
from gateway.products.routes.own_routes import head_alone

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE)
INCOMPLETE = (b"x-incomplete", b"true")
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")


class RangeNotSatisfiable(CallerFault):
    """The range begins behind the end of the file."""

    status = 416
    code = "invalid_request"


async def download(request: Request, files: FileService, file: StoredFile) -> Response:
    """Returns the bytes of a file. Several ranges, or one that is none, are all of it. Raises NotFound, JobsUnavailable."""
    size = file.bytes
    span = read_range(request.headers.get("range"), size)
    headers = {"accept-ranges": "bytes", **_headers(file.filename)}
    if span is None:
        error = RangeNotSatisfiable(f"The file has {size} bytes; ask for a range that begins in it.", param="range")
        headers["content-range"] = f"bytes */{size}"
        return Response(error_body(error), error.status, headers, media_type="application/json")
    start, end = span
    headers["content-length"] = str(end - start)
    if (start, end) != (0, size):
        headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    status = 200 if (start, end) == (0, size) else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type="application/octet-stream")
    pieces = await files.read(file, start, end - start)
    return StreamingResponse(pieces, status, headers, media_type="application/octet-stream")


async def download_partial(request: Request, files: PartialFiles, file: PartialFile) -> Response:
    """Returns what there is of a file that is not complete: no ranges, for the next time there may be lines in between."""
    headers = {"accept-ranges": "none", "cache-control": "no-store", **_headers(file.filename)}
    kind = "application/octet-stream"
    if request.method == "HEAD":
        response = head_alone(headers, kind)
    else:
        response = StreamingResponse(files.read(file), headers=headers, media_type=kind)
    response.raw_headers.append(INCOMPLETE)
    return response


def _headers(filename: str) -> dict[str, str]:
    return {
        "x-request-id": new_request_id(),
        "content-disposition": disposition(filename),
        "x-content-type-options": "nosniff",
    }


def read_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Returns the first byte and the one behind the last that are asked for; None: the file has none of them."""
    asked = _RANGE.fullmatch((header or "").strip())
    if asked is None or asked[0].endswith("=-"):
        return 0, size
    if not asked[1]:
        last = int(asked[2])
        return (max(0, size - last), size) if last and size else None
    start = int(asked[1])
    end = int(asked[2]) + 1 if asked[2] else size
    if asked[2] and end <= start:
        return 0, size
    return (start, min(end, size)) if start < size else None


def disposition(filename: str) -> str:
    """Returns the header that makes it an attachment (RFC 6266), whatever the file is called."""
    if _PLAIN.fullmatch(filename):
        return f'attachment; filename="{filename}"'
    return f"attachment; filename=\"file\"; filename*=UTF-8''{quote(filename, safe='')}"
