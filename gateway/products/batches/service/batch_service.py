"""What routes may do with batches: make, show, list and cancel them. The tenant is given by the edge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256

import orjson

from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.types.words import Lane
from gateway.products.batches.output import marks
from gateway.products.batches.output.batch_object import batch_status
from gateway.products.batches.output.request import BatchRequest
from gateway.products.jobs.model.errors import BatchNotCancellable, DedupeConflict
from gateway.products.jobs.model.ids import BATCH, DRAW_BYTES, new_id
from gateway.products.jobs.model.job import (
    CHECK,
    Accepted,
    Job,
    JobFlag,
    JobKind,
    JobPage,
    JobQuery,
    JobState,
    NewJob,
    Stage,
)
from gateway.products.jobs.model.stored_file import StoredFile
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.service.job_service.job_service import segment_of
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.upkeep.watchers import Watchers
from gateway.products.jobs.webhooks.rules.events import REQUEST_URL

NOT_THERE = "There is no such batch; GET /v1/batches lists yours."


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
    """A URL that is told of the batch's end; empty: none."""


class BatchService:
    """Takes and shows batches."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[JobStore]],
        read_store: Callable[[], Awaitable[JobStore]],
        watchers: Watchers,
        clock: Clock,
        rules: Callable[[], JobRules],
        draw: Callable[[int], bytes],
    ) -> None:
        """`rules` gives those in force, `draw` so many random bytes; `watchers` are those of all jobs."""
        self._open_store = open_store
        self._read_store = read_store
        self._watchers = watchers
        self._clock = clock
        self._rules = rules
        self._draw = draw

    async def create(self, owner: BatchOwner, asked: BatchRequest) -> Job:
        """Makes a durable batch. Raises InvalidRequest for a file that is not there, JobsUnavailable, TooManyJobs.

        With an idempotency key the batch that was made with it before is returned; DedupeConflict: it was another.
        """
        store = await self._open_store()
        file = await store.files.find(asked.input_file_id, owner.tenant)
        if file is None or file.purpose != "batch":
            why = "There is no such file" if file is None else f"The file was made for '{file.purpose}'"
            raise InvalidRequest(
                f"{why}; upload the input with POST /v1/files and the purpose 'batch'.", param=marks.INPUT_FILE
            )
        (accepted,) = await store.accept([self._new_batch(owner, asked, file)])
        _refuse_conflict(accepted)
        self._watchers.changed(accepted.job.id)
        return accepted.job

    async def find(self, batch_id: str, tenant: str) -> Job:
        """Returns a batch of the tenant's, at most a second old. Raises NotFound, JobsUnavailable."""
        return _batch(await self._watchers.look(await self._read_store(), batch_id, tenant))

    async def changes(self, batch_id: str, tenant: str, after: int) -> AsyncIterator[Job | None]:
        """Yields a batch that is there whenever it has changed, until its end; None where it has not for some time."""
        async for job in self._watchers.changes(await self._read_store(), batch_id, tenant, after):
            yield job

    async def list_batches(self, tenant: str, after: str | None, limit: int) -> JobPage:
        """Returns a page of the tenant's batches, newest first. Raises JobsUnavailable."""
        store = await self._read_store()
        return await store.list_jobs(JobQuery(tenant, JobKind.BATCH, after=after, limit=limit, parent=""))

    async def cancel(self, batch_id: str, tenant: str) -> Job:
        """Asks a batch to stop. Raises NotFound, BatchNotCancellable at its end, JobsUnavailable."""
        store = await self._read_store()
        job = _batch(await store.find(batch_id, tenant))
        if not job.state.is_end:
            job = _batch(await store.flag(batch_id, tenant, JobFlag.CANCEL))
            self._watchers.changed(batch_id)
        if job.state.is_end:
            raise BatchNotCancellable(f"The batch has ended as '{batch_status(job)}' and cannot be cancelled any more.")
        return job

    def _new_batch(self, owner: BatchOwner, asked: BatchRequest, file: StoredFile) -> NewJob:
        rules, now = self._rules(), self._clock.wall()
        told = {REQUEST_URL: owner.webhook} if owner.webhook else {}
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
            deadline=now + asked.window_s,
            max_attempts=rules.attempts,
            about={
                marks.ENDPOINT: asked.endpoint,
                marks.INPUT_FILE: asked.input_file_id,
                marks.INPUT: file.blob,
                marks.WINDOW: asked.window,
                marks.METADATA: dict(asked.metadata),
                marks.OUTPUT_LASTS_S: asked.output_lasts_s,
                marks.BROUGHT_CREDENTIAL: owner.brought_credential,
                **told,
            },
            stage=Stage.CHECK,
        )
        key = owner.idempotency_key
        return NewJob(
            job,
            first_piece=CHECK,
            reads=file.blob,
            fingerprint=sha256(
                orjson.dumps([asked.endpoint, asked.input_file_id, asked.window, dict(asked.metadata), *told.values()])
            ).digest(),
            dedupe_key=sha256(orjson.dumps([owner.tenant, "batch"]) + key).digest() if key else b"",
            dedupe_until=now + rules.dedupe_for_s,
        )


def _refuse_conflict(accepted: Accepted) -> None:
    if accepted.is_conflict:
        raise DedupeConflict(
            "The Idempotency-Key belongs to a batch that was asked for otherwise; use another key.",
            param="Idempotency-Key",
        )


def _batch(job: Job | None) -> Job:
    if job is None or job.kind is not JobKind.BATCH:
        raise NotFound(NOT_THERE, code="object_not_found")
    return job
