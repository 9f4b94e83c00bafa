"""The files of a batch before they are there: its complete chunks, in the order of the input, while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from gateway.products.jobs.model.ids import Role, batches_of_file
from gateway.products.jobs.model.job import Job, JobKind
from gateway.products.jobs.store.blobs import Blobs
from gateway.products.jobs.store.jobs import JobStore


class PartialFile(NamedTuple):
    """What there is of a file that a batch is going to have."""

    filename: str
    blobs: Sequence[str]
    """Whole lines each, in the order of the input."""


class PartialFiles:
    """Finds the files of batches that have not ended."""

    def __init__(self, read_store: Callable[[], Awaitable[JobStore]], blobs: Blobs) -> None:
        self._read_store = read_store
        self._blobs = blobs

    async def find(self, file_id: str, tenant: str) -> PartialFile | None:
        """Returns a file to be of a batch of the tenant's; None: there is no such batch, or it has ended.

        Raises JobsUnavailable.
        """
        store = await self._read_store()
        for batch_id, role in batches_of_file(file_id):
            job = await store.find(batch_id, tenant)
            if job is not None and job.kind is JobKind.BATCH and not job.state.is_end:
                chunks = await store.chunk_results(batch_id)
                names = [chunk.output if role == "output" else chunk.errors for chunk in chunks]
                return PartialFile(filename_of(job, role), [name for name in names if name])
        return None

    async def read(self, file: PartialFile) -> AsyncIterator[bytes]:
        """Yields its bytes. Where the batch ends meanwhile they end with a whole line, sooner. Raises JobsUnavailable."""
        for name in file.blobs:
            begun: list[bytes] = []
            try:
                async for piece in self._blobs.read(name):
                    whole, end, rest = piece.rpartition(b"\n")
                    if end:
                        yield b"".join((*begun, whole, end))
                        begun.clear()
                    begun.append(rest)
            except FileNotFoundError:  # in a Redis also in the middle of a blob
                return


def filename_of(job: Job, role: Role) -> str:
    """Returns what a batch's own file is called."""
    return f"{job.id}_{'output' if role == 'output' else 'error'}.jsonl"
