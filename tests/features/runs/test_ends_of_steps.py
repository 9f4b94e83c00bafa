"""The last word of a step's stream is held back until the step is kept, however it is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise

from gateway.core.call import Call, CallFeature, CallRoute, Chunks, Stream
from tests.features.reuse.test_reuse import EVENTS, STREAM, turns
from tests.features.runs.test_steps import step, steps
from tests.support.flow import streamed


async def test_a_step_ends_once_it_is_kept_whatever_the_cut() -> None:
    """Cut in the middle of its last event, byte by byte, and in two."""
    begins = len(STREAM) - len(EVENTS[3])
    for cuts in [range(1, len(STREAM)), *([at] for at in range(begins, len(STREAM)))]:
        bench, jobs = steps(streamed(*EVENTS))
        jobs.gate.clear()
        bench.pipeline.install((*bench.products, Cutting(cuts)))
        reply = await bench.pipeline.handle(bench.call(**step(stream=True)))
        assert reply.chunks is not None
        got: list[bytes] = []
        reading = asyncio.ensure_future(into(got, reply.chunks))
        await turns(40)
        assert b"[DONE]" not in b"".join(got), cuts
        jobs.gate.set()
        await reading
        assert (b"".join(got), [one.body for one in jobs.kept]) == (STREAM, [STREAM])


async def into(got: list[bytes], chunks: AsyncIterator[bytes]) -> None:
    """What comes, as it comes."""
    async for chunk in chunks:
        got.append(chunk)


class Cutting(CallFeature):
    """Streams of the provider come in other pieces."""

    name = "cutting"
    options: frozenset[bytes] = frozenset()

    def __init__(self, cuts: Iterable[int]) -> None:
        self.cuts = cuts

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature:
        return self

    def relay(self, call: Call, opened: Stream, chunks: Chunks) -> Chunks:
        return self.recut(chunks)

    async def recut(self, chunks: Chunks) -> Chunks:
        text = b"".join([chunk async for chunk in chunks])
        for start, end in pairwise((0, *self.cuts, len(text))):
            yield text[start:end]
