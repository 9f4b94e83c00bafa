"""`/v1/files`: uploads that go straight into a blob, lists, single files, their content.

It must not know how files are kept; `FileService` does. Of an upload a piece at a time is in memory: the connection reads no
more until it has been written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core.errors import BodyTimeout, InvalidRequest, NotFound
from gateway.core.intake import parse
from gateway.core.snapshot.snapshot.snapshot import Policies
from gateway.products.batches.files_http.download import download, download_partial
from gateway.products.batches.files_http.upload_form import MOST_FIELD_BYTES, UploadForm
from gateway.products.batches.finish.partial import PartialFiles
from gateway.products.batches.http.merged_lists import MergedLists, OwnPage
from gateway.products.batches.service.file_object import file_object
from gateway.products.batches.service.file_service import FileService, FileUpload, too_large
from gateway.products.jobs.model.ids import FILE
from gateway.products.jobs.model.stored_file import FileQuery, StoredFile
from gateway.products.routes.own_routes import limit_of, own_routes, tenant_of
from gateway.routes import json_response

MOST_LISTED = 10_000
LEAST_BYTES_PER_S = 65_536
"""An upload may take the time of other bodies, and a second more for each of these."""
LEAST_LIFE_S, LONGEST_LIFE_S = 3600, 2_592_000
"""That `expires_after` may ask for."""


class ClientLeft(Exception):
    """The client left before its upload was complete."""


class FileRoutes:
    """The routes of files."""

    def __init__(self, policies: Policies, files: FileService, partial: PartialFiles, lists: MergedLists) -> None:
        """`partial` finds the files of batches that still run."""
        self._lists = lists
        self._policies = policies
        self._files = files
        self._partial = partial

    def routes(self) -> list[BaseRoute]:
        """Returns the routes, with and without `/v1`."""
        table = (
            ("POST", "/files", self.create),
            ("GET", "/files", self.list_files),
            ("GET", "/files/{id}", self.show),
            ("GET", "/files/{id}/content", self.content),
            ("DELETE", "/files/{id}", self.remove),
        )
        return own_routes(self._policies, FILE, table)

    async def create(self, request: Request) -> Response:
        """Takes an upload."""
        policy = self._policies.current
        index = parse.index_headers(request.scope["headers"])
        parse.refuse_encoded(index)
        tenant = tenant_of(self._policies, request)
        form = UploadForm(index.get(b"content-type", b""))
        most, announced = policy.jobs.settings.max_file_bytes, index.get(b"content-length", b"")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > most + MOST_FIELD_BYTES + 1024):
            raise too_large(most)
        upload = await self._files.begin(tenant)
        try:
            file = await self._receive(request, form, upload, policy.server.body_timeout_s)
        except ClientLeft:
            return Response(status_code=499)  # which nobody reads
        finally:
            await upload.discard()
        return json_response(file_object(file))

    async def _receive(self, request: Request, form: UploadForm, upload: FileUpload, timeout_s: float) -> StoredFile:
        """Reads the form to its end, the file into the upload. Raises GatewayError, ClientLeft."""
        async for piece in body_pieces(request, timeout_s):
            for data in form.feed(piece):
                if data:
                    await upload.write(data)
                if "purpose" in form.fields and form.filename is not None:
                    _check(form)
                await asyncio.sleep(0)
        form.close()
        _check(form)
        lasts_s = _life(form.fields)
        return await self._files.keep(upload, form.filename or "", form.fields["purpose"], lasts_s)

    async def list_files(self, request: Request) -> Response:
        """Lists the tenant's files, and behind them those it has at the provider of `passthrough`."""
        tenant = tenant_of(self._policies, request)
        asked = request.query_params
        order = asked.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("The parameter 'order' must be asc or desc.", param="order")
        limit = limit_of(request, MOST_LISTED, MOST_LISTED)
        query = FileQuery(tenant, asked.get("purpose"), asked.get("after"), limit, is_newest_first=order == "desc")

        async def own() -> OwnPage:
            found, has_more = await self._files.list_files(query)
            return OwnPage([file_object(file) for file in found], has_more)

        return await self._lists.page(request, limit, own)

    async def show(self, request: Request) -> Response:
        """Shows a file."""
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
        """Takes a file away."""
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
    if purpose != "batch":
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
