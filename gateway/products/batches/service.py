"""What routes may do with batches and files. The tenant is given by the edge.

First batches, then files. Invariants: a file that is shown is whole and durable; an upload that comes to nothing leaves
nothing; of an upload no more is held in memory than its caller hands over at a time. A file that is another tenant's is none.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.types import Lane
from gateway.drivers.durability import JobSettings, JobsUnavailable, OutcomeUnknown
from gateway.products.batches import output
from gateway.products.batches.output import BatchRequest, batch_status
from gateway.products.jobs.model import (
    BATCH,
    CHECK,
    DRAW_BYTES,
    FILE,
    REQUEST_URL,
    BatchNotCancellable,
    DedupeConflict,
    FileQuery,
    FileTooLarge,
    Job,
    JobFlag,
    JobKind,
    JobPage,
    JobQuery,
    JobState,
    NewJob,
    Stage,
    StoredFile,
    TenantStorageFull,
    new_id,
)
from gateway.products.jobs.rules import JobRules, Jobs
from gateway.products.jobs.service import segment_of
from gateway.products.jobs.store import Blobs, BlobWriter, JobStore
from gateway.products.jobs.upkeep import Watchers
from gateway.products.jobs.worker import JobEngine

# --- batches: made, shown, listed and cancelled ---

NO_SUCH_BATCH = "There is no such batch; GET /v1/batches lists yours."


@dataclass(frozen=True, slots=True)
class BatchOwner:
    """On whose account a batch runs."""

    key: str
    """The name of the key that pays."""
    tenant: str
    lane: Lane
    brought_credential: bool
    """The caller came with a credential of its own, which is not stored."""
    idempotency_key: bytes | None
    webhook: str = ""
    """A URL to which the batch's end is delivered; empty: none."""


class BatchService:
    """Takes and shows batches."""

    def __init__(
        self,
        engine: JobEngine,
        watchers: Watchers,
        clock: Clock,
        rules: Callable[[], JobRules],
        draw: Callable[[int], bytes],
    ) -> None:
        """`rules` gives those in force, `draw` so many random bytes; `watchers` are those of all jobs."""
        self._engine = engine
        self._watchers = watchers
        self._clock = clock
        self._rules = rules
        self._draw = draw

    async def create(self, owner: BatchOwner, request: BatchRequest) -> Job:
        """Makes a durable batch. Raises InvalidRequest for a file that is not there, JobsUnavailable, TooManyJobs.

        With an idempotency key the batch that was made with it before is returned; DedupeConflict: it was another.
        """
        store = await self._engine.store()
        file = await store.files.find(request.input_file_id, owner.tenant)
        if file is None or file.purpose != "batch":
            why = "There is no such file" if file is None else f"The file was made for '{file.purpose}'"
            raise InvalidRequest(
                f"{why}; upload the input with POST /v1/files and the purpose 'batch'.", param=output.INPUT_FILE
            )
        (accepted,) = await store.accept([self._new_batch(owner, request, file)])
        if accepted.is_conflict:
            raise DedupeConflict(
                "The Idempotency-Key belongs to a batch that was asked for otherwise; use another key.",
                param="Idempotency-Key",
            )
        self._watchers.changed(accepted.job.id)
        return accepted.job

    async def find(self, batch_id: str, tenant: str) -> Job:
        """Returns a batch of the tenant's, at most a second old. Raises NotFound, JobsUnavailable."""
        return _batch(await self._watchers.look(await self._engine.reader(), batch_id, tenant))

    async def changes(self, batch_id: str, tenant: str, after: int) -> AsyncIterator[Job | None]:
        """Yields a batch that is there whenever it has changed, until its end; None where it has not for some time."""
        async for job in self._watchers.changes(await self._engine.reader(), batch_id, tenant, after):
            yield job

    async def list_batches(self, tenant: str, after: str | None, limit: int) -> JobPage:
        store = await self._engine.reader()
        return await store.list_jobs(JobQuery(tenant, JobKind.BATCH, after=after, limit=limit, parent=""))

    async def cancel(self, batch_id: str, tenant: str) -> Job:
        """Asks a batch to stop. Raises NotFound, BatchNotCancellable at its end, JobsUnavailable."""
        store = await self._engine.reader()
        job = _batch(await store.find(batch_id, tenant))
        if not job.state.is_end:
            job = _batch(await store.flag(batch_id, tenant, JobFlag.CANCEL))
            self._watchers.changed(batch_id)
        if job.state.is_end:
            raise BatchNotCancellable(f"The batch has ended as '{batch_status(job)}' and cannot be cancelled any more.")
        return job

    def _new_batch(self, owner: BatchOwner, request: BatchRequest, file: StoredFile) -> NewJob:
        rules, now = self._rules(), self._clock.wall()
        webhook = {REQUEST_URL: owner.webhook} if owner.webhook else {}
        job = Job(
            id=new_id(BATCH, self._draw(DRAW_BYTES)),
            kind=JobKind.BATCH,
            tenant=owner.tenant,
            key=owner.key,
            lane=owner.lane,
            segment=segment_of(rules.segments, None),
            is_urgent=False,
            model="",
            state=JobState.QUEUED,
            created_at=now,
            run_at=now,
            deadline=now + request.window_s,
            max_attempts=rules.attempts,
            about={
                output.ENDPOINT: request.endpoint,
                output.INPUT_FILE: request.input_file_id,
                output.INPUT: file.blob,
                output.WINDOW: request.window,
                output.METADATA: dict(request.metadata),
                output.OUTPUT_LASTS_S: request.output_lasts_s,
                output.BROUGHT_CREDENTIAL: owner.brought_credential,
                **webhook,
            },
            stage=Stage.CHECK,
        )
        key = owner.idempotency_key
        return NewJob(
            job,
            first_piece=CHECK,
            reads=file.blob,
            fingerprint=sha256(
                orjson.dumps(
                    [request.endpoint, request.input_file_id, request.window, dict(request.metadata), *webhook.values()]
                )
            ).digest(),
            dedupe_key=sha256(orjson.dumps([owner.tenant, "batch"]) + key).digest() if key else b"",
            dedupe_until=now + rules.dedupe_for_s,
        )


def _batch(job: Job | None) -> Job:
    if job is None or job.kind is not JobKind.BATCH:
        raise NotFound(NO_SUCH_BATCH, code="object_not_found")
    return job


# --- files: as the Files API shows them, listed, uploaded and removed ---


def file_object(file: StoredFile) -> dict[str, Any]:
    """Returns a file as the Files API shows it.

    Source: https://platform.openai.com/docs/api-reference/files/object.
    """
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",  # deprecated, but the schema and the SDKs want it
        "status_details": None,
    }


log = logging.getLogger("gateway.jobs")

BYTES_LOST = "The file is known, but its bytes have been lost. Delete it, and make it again."
NO_SUCH_FILE = "There is no such file; GET /v1/files lists yours."


class FileService:
    """Keeps and shows files."""

    def __init__(
        self,
        engine: JobEngine,
        blobs: Blobs,
        clock: Clock,
        jobs: Callable[[], Jobs],
        draw: Callable[[int], bytes],
    ) -> None:
        """`jobs` gives the rules in force, `draw` so many random bytes."""
        self._engine = engine
        self._blobs = blobs
        self._clock = clock
        self._jobs = jobs
        self._draw = draw
        self._coming: Counter[str] = Counter()
        """Bytes of uploads that are under way, by tenant."""

    async def begin(self, tenant: str) -> FileUpload:
        """Begins an upload; `discard` has to follow in any case. Raises JobsUnavailable, TenantStorageFull."""
        store = await self._engine.store()
        if await self._room(store, tenant) <= 0:
            raise _full(self._jobs().settings.max_bytes_per_tenant)
        file_id = new_id(FILE, self._draw(DRAW_BYTES))
        kept = await store.files.bytes_of(tenant), await store.files.bytes_of(None)
        writer = await self._blobs.writer(blob_of(file_id))
        return FileUpload(file_id, tenant, writer, self._coming, kept, self._jobs().settings)

    async def keep(
        self, upload: FileUpload, filename: str, purpose: str, expires_after_s: float | None = None
    ) -> StoredFile:
        """Makes a durable file of what was uploaded. Raises JobsUnavailable, TenantStorageFull, InvalidRequest."""
        if not upload.bytes:
            raise InvalidRequest("The file is empty; send one that has something in it.", param="file")
        store, now = await self._engine.store(), self._clock.wall()
        if await self._room(store, upload.tenant) < 0:  # others were faster; what is coming counts itself
            raise _full(self._jobs().settings.max_bytes_per_tenant)
        lasts_s = self._jobs().default.keep_files_s if expires_after_s is None else expires_after_s
        blob = blob_of(upload.id)
        size = await upload.writer.commit()
        file = StoredFile(upload.id, upload.tenant, purpose, filename, size, now, now + lasts_s, blob)
        try:
            await store.files.add(file)
        except OutcomeUnknown:
            with suppress(
                JobsUnavailable
            ):  # where it is there after all its blob stays with it; else the sweep takes that
                await store.files.remove(file.id, file.tenant)
            raise
        except BaseException:
            await self._blobs.remove([blob])
            raise
        return file

    async def find(self, file_id: str, tenant: str) -> StoredFile:
        """Returns a file of the tenant's. Raises NotFound, JobsUnavailable."""
        file = await (await self._engine.reader()).files.find(file_id, tenant)
        if file is None:
            raise NotFound(NO_SUCH_FILE, code="object_not_found")
        return file

    async def list_files(self, query: FileQuery) -> tuple[Sequence[StoredFile], bool]:
        return await (await self._engine.reader()).files.page(query)

    async def read(self, file: StoredFile, start: int, length: int) -> AsyncIterator[bytes]:
        """Returns the bytes of a file, as they are read. Raises NotFound where they are gone, JobsUnavailable."""
        pieces = self._blobs.read(file.blob, start, length)
        try:
            first = await anext(pieces, b"")
        except FileNotFoundError:
            await self.find(file.id, file.tenant)  # it may have been removed at this moment
            log.warning("file %s: its bytes are gone from where files are kept; put them back from a backup", file.id)
            raise NotFound(BYTES_LOST, code="object_not_found") from None
        return _with_first(first, pieces)

    async def remove(self, file_id: str, tenant: str) -> None:
        """Takes a file away from its tenant. Raises NotFound, JobsUnavailable."""
        if not await (await self._engine.reader()).files.remove(file_id, tenant):
            raise NotFound(NO_SUCH_FILE, code="object_not_found")

    async def _room(self, store: JobStore, tenant: str) -> int:
        """Returns how many bytes more the tenant may have. Raises JobsUnavailable where nobody may have any."""
        settings = self._jobs().settings
        if await store.files.bytes_of(None) + self._coming.total() > settings.max_bytes:
            raise _no_room()
        return settings.max_bytes_per_tenant - await store.files.bytes_of(tenant) - self._coming[tenant]


class FileUpload:
    """A file that is coming in."""

    def __init__(
        self,
        file_id: str,
        tenant: str,
        writer: BlobWriter,
        coming: Counter[str],
        kept: tuple[int, int],
        settings: JobSettings,
    ) -> None:
        """`kept` are the bytes of the tenant's files, and of all, that were there when it began."""
        self.id = file_id
        self.tenant = tenant
        self.writer = writer
        self.bytes = 0
        self._coming = coming
        self._kept_of_tenant, self._kept = kept
        self._settings = settings

    async def write(self, data: bytes) -> None:
        """Adds bytes, if there is room for them beside all that comes at the same time.

        Raises FileTooLarge, TenantStorageFull, JobsUnavailable.
        """
        settings, more = self._settings, len(data)
        if self.bytes + more > settings.max_file_bytes:
            raise too_large(settings.max_file_bytes)
        if self._kept_of_tenant + self._coming[self.tenant] + more > settings.max_bytes_per_tenant:
            raise _full(settings.max_bytes_per_tenant)
        if self._kept + self._coming.total() + more > settings.max_bytes:
            raise _no_room()
        self.bytes += len(data)
        self._coming[self.tenant] += len(data)
        await self.writer.write(data)

    async def discard(self) -> None:
        """Ends the upload; what was not kept is gone."""
        self._coming[self.tenant] -= self.bytes
        if self._coming[self.tenant] <= 0:
            del self._coming[self.tenant]
        self.bytes = 0
        await self.writer.abort()


def blob_of(file_id: str) -> str:
    return f"files/{file_id[-2:]}/{file_id}"


def too_large(most: int) -> FileTooLarge:
    return FileTooLarge(f"The file is larger than {most} bytes, which is the limit; split it.", param="file")


def _full(most: int) -> TenantStorageFull:
    return TenantStorageFull(
        f"Your files take all the room they may ({most} bytes); delete some (DELETE /v1/files/{{id}}).", param="file"
    )


def _no_room() -> JobsUnavailable:
    return JobsUnavailable("Files cannot be stored now: there is no room left for them.")


async def _with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
