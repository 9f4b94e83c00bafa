"""What a provider is given of a chunk, and what its owner calls each of the lines: read from the batch's own input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import NamedTuple

from gateway.products.batches.chunk.chunk_input.chunk_input import ChunkInput, InputLine
from gateway.products.batches.input.chunks import lines_of as numbers_of
from gateway.products.batches.input.lines import read_custom_id, read_line
from gateway.products.batches.native.lines.answers.wording import LineWording
from gateway.products.batches.output.marks import part_blob, plan_of
from gateway.products.jobs.model.ids import line_id
from gateway.products.jobs.model.job import Job
from gateway.products.jobs.store.blobs import Blobs

AT_ONCE = 64
"""Lines that are worked on before others are served."""
LARGE_BYTES = 65_536
"""A line that long is work enough at once."""
THREAD_BYTES = 1_000_000
"""A longer one is put into other words by a thread."""


class WrittenInput(NamedTuple):
    """What a provider is to get."""

    blob: str
    size: int
    lines: int


async def write_input(
    blobs: Blobs, job: Job, chunk: int, has_result: Collection[int], wording: LineWording, *, is_inline: bool
) -> WrittenInput:
    """Writes a chunk's lines without results as a provider gets them, in a file or as one request.

    Raises JobsUnavailable; FileNotFoundError and ValueError where the batch's input is not what it was.
    """
    name = part_blob(job.id, chunk)
    writer = await blobs.writer(name)
    before, between, after = (b'{"requests":[', b",\n", b"]}\n") if is_inline else (b"", b"", b"")
    written = 0
    try:
        await writer.write(before)
        async for lines in lines_of(blobs, job, chunk, has_result):
            texts = [text for line in lines if (text := await _said(job, line, wording)) is not None]
            if texts:
                await writer.write((between if written else b"") + between.join(texts))
            written += len(texts)
        await writer.write(after)
        return WrittenInput(name, await writer.commit(), written)
    finally:
        await writer.abort()


async def _said(job: Job, line: InputLine, wording: LineWording) -> bytes | None:
    """Returns one line in the provider's words; a long one is not worked on at one go with others."""
    name, body = line_id(job.id, line.number), read_line(line.text).body
    if not wording.converts or len(body) < LARGE_BYTES:
        return wording.line(name, body)
    await asyncio.sleep(0)
    return wording.line(name, body) if len(body) < THREAD_BYTES else await asyncio.to_thread(wording.line, name, body)


async def custom_ids(blobs: Blobs, job: Job, chunk: int, has_result: Collection[int]) -> dict[int, str]:
    """Returns the custom_ids of a chunk's lines without results, by their numbers. Raises as `write_input` does."""
    found = {}
    async for lines in lines_of(blobs, job, chunk, has_result):
        found.update({line.number: read_custom_id(line.text) for line in lines})
    return found


async def bodies(blobs: Blobs, job: Job, chunk: int, numbers: Collection[int]) -> AsyncIterator[tuple[int, bytes]]:
    """Yields the bodies of some of a chunk's lines, with their numbers. Raises as `write_input` does."""
    others = set(numbers_of(plan_of(job), chunk)) - set(numbers)
    async for lines in lines_of(blobs, job, chunk, others):
        for line in lines:
            yield line.number, read_line(line.text).body


async def lines_of(blobs: Blobs, job: Job, chunk: int, has_result: Collection[int]) -> AsyncIterator[list[InputLine]]:
    """Yields a chunk's lines without results, some at a time. Raises as `write_input` does."""
    lines = ChunkInput(blobs, job, chunk)
    await lines.open(has_result)
    while some := await lines.next_lines(AT_ONCE):
        yield some
        await asyncio.sleep(0)
