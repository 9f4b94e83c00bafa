"""What a provider is given of a chunk, and what its owner calls each of the lines: read from the batch's own input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from gateway.job_ports.blobs import Blobs
from gateway.jobs.batches.chunk_input import ChunkInput, InputLine
from gateway.policy.batches.lines import read_custom_id, read_line
from gateway.policy.batches.marks import part_blob
from gateway.policy.jobs.ids import line_id
from gateway.policy.jobs.job import Job
from gateway.policy.native.lines import part_line

AT_ONCE = 64
"""Lines that are worked on before others are served."""


async def write_input(
    blobs: Blobs, job: Job, chunk: int, has_result: Collection[int], url: str, model: str
) -> tuple[str, int]:
    """Writes a chunk's lines without results as a provider gets them; returns the blob's name, and its bytes.

    Raises JobsUnavailable; FileNotFoundError and ValueError where the batch's input is not what it was.
    """
    name = part_blob(job.id, chunk)
    writer = await blobs.writer(name)
    try:
        async for lines in lines_of(blobs, job, chunk, has_result):
            texts = [part_line(line_id(job.id, line.number), url, read_line(line.text).body, model) for line in lines]
            await writer.write(b"".join(texts))
        return name, await writer.commit()
    finally:
        await writer.abort()


async def custom_ids(blobs: Blobs, job: Job, chunk: int, has_result: Collection[int]) -> dict[int, str]:
    """Returns the custom_ids of a chunk's lines without results, by their numbers. Raises as `write_input` does."""
    found = {}
    async for lines in lines_of(blobs, job, chunk, has_result):
        found.update({line.number: read_custom_id(line.text) for line in lines})
    return found


async def lines_of(blobs: Blobs, job: Job, chunk: int, has_result: Collection[int]) -> AsyncIterator[list[InputLine]]:
    """Yields a chunk's lines without results, some at a time. Raises as `write_input` does."""
    lines = ChunkInput(blobs, job, chunk)
    await lines.open(has_result)
    while some := await lines.next_lines(AT_ONCE):
        yield some
        await asyncio.sleep(0)
