"""A finished chunk on its way to where it stays: its results as two blobs, in the order of the input."""

from __future__ import annotations

from gateway.core.clock import Clock
from gateway.products.batches.output.marks import chunk_blob
from gateway.products.jobs.model.job import ClaimedWork
from gateway.products.jobs.model.lines import ChunkResult
from gateway.products.jobs.store.blobs import Blobs
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import until_done


async def write_chunk(store: JobStore, blobs: Blobs, work: ClaimedWork, clock: Clock) -> ChunkResult:
    """Writes the lines of a chunk whose results are all committed; repeats that until there is room for them."""

    async def write() -> ChunkResult:
        results = sorted(await store.results(work))
        output = await _write(blobs, work, "output", [one.text for one in results if not one.is_failed])
        errors = await _write(blobs, work, "errors", [one.text for one in results if one.is_failed])
        return ChunkResult(work.piece, *output, *errors)

    return await until_done(write, clock)


async def _write(blobs: Blobs, work: ClaimedWork, kind: str, texts: list[bytes]) -> tuple[str, int]:
    """Returns the blob's name and bytes; of no lines there is none."""
    if not texts:
        return "", 0
    name = chunk_blob(work.job.id, work.piece, work.fence, kind)
    writer = await blobs.writer(name)
    try:
        await writer.write(b"".join(texts))
        return name, await writer.commit()
    finally:
        await writer.abort()
