"""`/v1/files`: uploads that go straight into a blob, lists, single files, their content.

In this order: downloads; the form of an upload; and the routes. How files are kept is `FileService`'s. Of an upload a piece at
a time is in memory: the connection reads no more until it has been written.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from gateway.core import request_fields
from gateway.core.errors import BodyTimeout, CallerFault, InvalidRequest, NotFound
from gateway.core.openai.bodies import MultipartError, boundary_of
from gateway.core.render import error_body, new_request_id
from gateway.core.request_fields import malformed_form
from gateway.core.snapshot import Policies, PolicySnapshot
from gateway.products.batches.finish import PartialFile, PartialFiles
from gateway.products.batches.http import MergedLists, OwnPage
from gateway.products.batches.service import FileService, FileUpload, file_object, too_large
from gateway.products.jobs.answers_http import own_routes
from gateway.products.jobs.model import FILE, FileQuery, StoredFile
from gateway.products.jobs.rules import JOBS
from gateway.products.routes import RelayedResponse, head_alone, limit_of, tenant_of
from gateway.routes import json_response

# --- downloads: all of a file, or the one range that is asked for (RFC 9110, 14) ---

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE)
INCOMPLETE = (b"x-incomplete", b"true")
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")


class RangeNotSatisfiable(CallerFault):
    """The range begins behind the end of the file."""

    status = 416
    code = "invalid_request"


async def download(request: Request, files: FileService, file: StoredFile) -> Response:
    """Returns the bytes of a file. Several ranges, or one that is none, are all of it. Raises NotFound, JobsUnavailable.

    A file is never shown by a browser: it is an attachment, of no type that could be guessed.
    """
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
    found = _RANGE.fullmatch((header or "").strip())
    if found is None or found[0].endswith("=-"):
        return 0, size
    if not found[1]:
        last = int(found[2])
        return (max(0, size - last), size) if last and size else None
    start = int(found[1])
    end = int(found[2]) + 1 if found[2] else size
    if found[2] and end <= start:
        return 0, size
    return (start, min(end, size)) if start < size else None


def disposition(filename: str) -> str:
    """Returns the header that makes it an attachment (RFC 6266), whatever the file is called."""
    if _PLAIN.fullmatch(filename):
        return f'attachment; filename="{filename}"'
    return f"attachment; filename=\"file\"; filename*=UTF-8''{quote(filename, safe='')}"


# --- the form of an upload, read as it comes in: its file goes on piece by piece, its few other fields are kept ---

MOST_FIELD_BYTES = 65_536
"""The most bytes of all fields but the file, names and heads included."""
MOST_NAME_CHARS = 255
STEP_BYTES = 32_768
"""The bytes that are parsed at a time: those that look like the beginning of a boundary are looked at one by one."""
FILE_FIELD = "file"
PURPOSE = "batch"
"""The purpose of the files that are kept here."""


class UploadForm:
    """A form with one file.

    Source: RFC 7578; parsed by python-multipart. Invariant: beside the piece that is being read no more is held than
    `MOST_FIELD_BYTES`.
    """

    def __init__(self, content_type: bytes) -> None:
        """Raises InvalidRequest for another content type, or one without a boundary."""
        if not content_type.lower().startswith(b"multipart/form-data"):
            raise InvalidRequest(
                "A file is sent as multipart/form-data with the fields 'purpose' and 'file'; set the content type.",
                code="invalid_content_type",
            )
        try:
            boundary = boundary_of(content_type)
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._head_end,
                    "on_part_data": self._data,
                    "on_part_end": self._part_end,
                    "on_end": self._end,
                },
            )
        except (MultipartError, FormParserError) as problem:
            raise malformed_form(str(problem)) from None
        self._parser.logger = logging.Logger(
            "unheard", logging.CRITICAL + 1
        )  # what clients get wrong goes into their answer
        self.fields: dict[str, str] = {}
        """Those that are complete, by name."""
        self.filename: str | None = None
        """The client's name of the file, without folders; None: it has not begun."""
        self.is_complete = False
        self._file: list[bytes] = []
        self._field_bytes = 0
        self._name = ""
        self._value = bytearray()
        self._header: tuple[bytearray, bytearray] = bytearray(), bytearray()
        self._disposition = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yields what of the piece belongs to the file, in steps of about a millisecond. Raises InvalidRequest."""
        for at in range(0, len(piece), STEP_BYTES):
            try:
                self._parser.write(piece[at : at + STEP_BYTES])
            except FormParserError as problem:
                raise malformed_form(str(problem)) from None
            part, self._file = b"".join(self._file), []
            yield part

    def close(self) -> None:
        if not self.is_complete:
            raise malformed_form("it ends before its last boundary")

    # The parser's callbacks.

    def _begin(self) -> None:
        self._disposition = b""
        self._value.clear()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._header[0].extend(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._header[1].extend(data[start:end])

    def _header_end(self) -> None:
        name, value = self._header
        if bytes(name).lower() == b"content-disposition":
            self._disposition = bytes(value)
        name.clear()
        value.clear()

    def _head_end(self) -> None:
        kind, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise malformed_form("a part has no name")
        self._name = name.decode(errors="replace")
        if self._name == FILE_FIELD:
            if self.filename is not None:
                raise InvalidRequest("The field 'file' occurs more than once; send one file.", param=FILE_FIELD)
            self.filename = plain_name(options.get(b"filename", b""))
        elif self._name in self.fields:
            raise InvalidRequest(f"The field '{self._name[:64]}' occurs more than once.", param=self._name[:64])

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE_FIELD:
            self._file.append(data[start:end])
            return
        self._count(end - start)
        self._value += data[start:end]

    def _part_end(self) -> None:
        if self._name != FILE_FIELD:
            self.fields[self._name] = self._value.decode(errors="replace")

    def _end(self) -> None:
        self.is_complete = True

    def _count(self, more: int) -> None:
        self._field_bytes += more
        if self._field_bytes > MOST_FIELD_BYTES:
            raise malformed_form(f"its fields have more than {MOST_FIELD_BYTES} bytes beside the file")


def plain_name(sent: bytes) -> str:
    """Returns the name of a file without folders, control characters and what is no text."""
    text = sent.decode(errors="replace").replace("\\", "/").rpartition("/")[2]
    return "".join(character for character in text if character.isprintable())[:MOST_NAME_CHARS]


# --- the routes ---

MOST_LISTED = 10_000
LEAST_BYTES_PER_S = 65_536
"""An upload may take the time of other bodies, and a second more for each of these."""
LEAST_LIFE_S, LONGEST_LIFE_S = 3600, 2_592_000
"""The lives that `expires_after` may ask for."""


class ClientLeft(Exception):
    """The client left before its upload was complete."""


class FileRoutes:
    """The routes of files."""

    def __init__(
        self, policies: Policies, files: FileService, partial: PartialFiles, lists: MergedLists, relay: ASGIApp
    ) -> None:
        """`partial` finds the files of batches that still run, `relay` serves requests for the provider of `passthrough`."""
        self._relay = relay
        self._lists = lists
        self._policies = policies
        self._files = files
        self._partial = partial

    def routes(self) -> list[BaseRoute]:
        table = (
            ("POST", "/files", self.create),
            ("GET", "/files", self.list_files),
            ("GET", "/files/{id}", self.show),
            ("GET", "/files/{id}/content", self.content),
            ("DELETE", "/files/{id}", self.remove),
        )
        return own_routes(self._policies, FILE, table)

    async def create(self, request: Request) -> Response:
        policy = self._policies.current
        index = request_fields.index_headers(request.scope["headers"])
        request_fields.refuse_encoded(index)
        tenant = tenant_of(self._policies, request)
        form = UploadForm(index.get(b"content-type", b""))
        most, announced = JOBS.of(policy).settings.max_file_bytes, index.get(b"content-length", b"")
        if (
            policy.passthrough is None
            and announced.isdigit()
            and (len(announced) > 18 or int(announced) > most + MOST_FIELD_BYTES + 1024)
        ):
            raise too_large(most)
        upload = await self._files.begin(tenant)
        try:
            file = await self._receive(request, form, upload, policy)
        except ClientLeft:
            return Response(status_code=499)  # which nobody reads
        finally:
            await upload.discard()
        if isinstance(file, RelayedResponse):
            return file
        return json_response(file_object(file))

    async def _receive(
        self, request: Request, form: UploadForm, upload: FileUpload, policy: PolicySnapshot
    ) -> StoredFile | RelayedResponse:
        """Reads the form to its end, the file into the upload. Raises GatewayError, ClientLeft.

        With a `passthrough` a file of another purpose is the provider's. Until the purpose has come all that was read is held,
        up to the `max_body` of what is relayed.
        """
        held = None if policy.passthrough is None else bytearray()
        async for piece in body_pieces(request, policy.server.body_timeout_s):
            if held is not None:
                held += piece
            for data in form.feed(piece):
                if data:
                    await upload.write(data)
                if held is not None and (purpose := form.fields.get("purpose")) is not None:
                    if purpose != PURPOSE:
                        return RelayedResponse(self._relay, bytes(held))
                    held = None
                if "purpose" in form.fields and form.filename is not None:
                    _check(form)
                await asyncio.sleep(0)
            if held is not None and len(held) > policy.server.most_bytes(request_fields.OTHER):
                held = None
        form.close()
        _check(form)
        lasts_s = _life(form.fields)
        return await self._files.keep(upload, form.filename or "", form.fields["purpose"], lasts_s)

    async def list_files(self, request: Request) -> Response:
        """Lists the tenant's files, and behind them those it has at the provider of `passthrough`."""
        tenant = tenant_of(self._policies, request)
        params = request.query_params
        order = params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("The parameter 'order' must be asc or desc.", param="order")
        limit = limit_of(request, MOST_LISTED, MOST_LISTED)
        query = FileQuery(tenant, params.get("purpose"), params.get("after"), limit, is_newest_first=order == "desc")

        async def own() -> OwnPage:
            found, has_more = await self._files.list_files(query)
            return OwnPage([file_object(file) for file in found], has_more)

        return await self._lists.page(request, limit, own)

    async def show(self, request: Request) -> Response:
        return json_response(file_object(await self._find(request)))

    async def content(self, request: Request) -> Response:
        """Gives the bytes of a file; those that there are of one that a batch is writing, and says so."""
        tenant = tenant_of(self._policies, request)
        file_id = request.path_params["id"]
        try:
            file = await self._files.find(file_id, tenant)
        except NotFound:
            partial = await self._partial.find(file_id, tenant)
            if partial is not None:
                return await download_partial(request, self._partial, partial)
            file = await self._files.find(file_id, tenant)  # its batch may have ended in between
        return await download(request, self._files, file)

    async def remove(self, request: Request) -> Response:
        tenant = tenant_of(self._policies, request)
        file_id = request.path_params["id"]
        await self._files.remove(file_id, tenant)
        return json_response({"id": file_id, "object": "file", "deleted": True})

    async def _find(self, request: Request) -> StoredFile:
        return await self._files.find(request.path_params["id"], tenant_of(self._policies, request))


async def body_pieces(request: Request, timeout_s: float) -> AsyncIterator[bytes]:
    """Yields a body as it comes. Raises ClientLeft, and BodyTimeout for one that is slower than it may be.

    Only waiting for the client counts: `timeout_s` at most at a time, and in all as much plus a second for each
    `LEAST_BYTES_PER_S`.
    """
    loop = asyncio.get_running_loop()
    left_s = timeout_s
    while True:
        began = loop.time()
        try:
            async with asyncio.timeout(left_s):
                message = await request.receive()
        except TimeoutError:
            raise BodyTimeout(
                "The file did not arrive in time; send it faster, or raise server.body_timeout."
            ) from None
        if message["type"] != "http.request":
            raise ClientLeft
        piece: bytes = message.get("body", b"")
        left_s = min(timeout_s, left_s - (loop.time() - began) + len(piece) / LEAST_BYTES_PER_S)
        yield piece
        if not message.get("more_body"):
            return


def _check(form: UploadForm) -> None:
    """Raises InvalidRequest for what is known to be wrong with the form's fields."""
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise InvalidRequest("Missing required parameter: 'purpose'.", param="purpose")
    if purpose != PURPOSE:
        raise InvalidRequest(
            f"Files for '{purpose[:64]}' are not kept by this gateway; it takes the purpose 'batch', the input of batches. "
            "Upload others at the provider that uses them.",
            param="purpose",
        )
    if form.filename is None:
        raise InvalidRequest("Missing required parameter: 'file'.", param="file")
    if not form.filename.lower().endswith(".jsonl"):
        raise InvalidRequest("Invalid file format for Batch API. Must be .jsonl", param="file")


def _life(fields: dict[str, str]) -> float | None:
    """Returns for how many seconds the file is kept, where the form says so. Raises InvalidRequest."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest("The field 'expires_after[anchor]' must be created_at.", param="expires_after[anchor]")
    if seconds is None or not _is_whole(seconds) or not LEAST_LIFE_S <= int(seconds) <= LONGEST_LIFE_S:
        raise InvalidRequest(
            f"The field 'expires_after[seconds]' must be a whole number from {LEAST_LIFE_S} to {LONGEST_LIFE_S}.",
            param="expires_after[seconds]",
        )
    return float(seconds)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 9
