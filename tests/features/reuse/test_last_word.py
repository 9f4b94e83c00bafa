"""The last word of a stream is held back, however it is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise

import pytest

from gateway.core.call import Call, CallFeature, Chunks, RouteFacts, Stream
from gateway.features.reuse.single_flight import LastWord
from tests.features.reuse.test_reuse import EVENTS, STREAM, turns
from tests.features.runs.test_steps import step, steps
from tests.support.flow import streamed

TEXT = b'data: {"delta":"say \\"response.completed\\" or data: [DONE]"}'
WORDS = (
    b"data: [DONE]",
    b"data:[DONE]",
    b"event: response.completed",
    b"event:response.incomplete",
    b"event: response.failed",
    b'data: {"type":"response.completed"',
)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("line", [b"\n", b"\r\n", b"\r"])
def test_at_every_cut(word: bytes, line: bytes) -> None:
    """In two pieces, and byte by byte: all is there, the word is not among what was passed on, what is before it is."""
    before, after = TEXT + 2 * line, word + line + b"data: {}" + 2 * line
    stream = before + after
    for pieces in [[stream[:at], stream[at:]] for at in range(len(stream))] + [[bytes([one]) for one in stream]]:
        ending = LastWord()
        passed = b"".join(map(ending.feed, pieces))
        assert passed + ending.held == stream
        assert ending.is_seen
        assert len(passed) < len(before) + len(word)


def test_what_is_no_last_word_is_passed_on_as_it_comes() -> None:
    """Whole events wait for nothing, nor do words in a text; what only began like one waits for the next piece."""
    ending = LastWord()
    assert ending.feed(TEXT + b"\n\n") == TEXT + b"\n\n"
    assert ending.feed(b"data: [DO") == b""
    assert ending.feed(b"G]\n\nx") == b"data: [DOG]\n\nx"
    assert ending.feed(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"  # in the middle of a line
    assert (ending.held, ending.is_seen) == (b"", False)


async def test_a_step_ends_once_it_is_kept_whatever_the_cut() -> None:
    """Cut in the middle of its last event, byte by byte, and in two."""
    begins = len(STREAM) - len(EVENTS[3])
    for cuts in [range(1, len(STREAM)), *([at] for at in range(begins, len(STREAM)))]:
        bench, jobs = steps(streamed(*EVENTS))
        jobs.gate.clear()
        bench.pipeline.install((*bench.products.in_order(), Cutting(cuts)))
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

    options: frozenset[bytes] = frozenset()

    def __init__(self, cuts: Iterable[int]) -> None:
        self.cuts = cuts

    def for_route(self, facts: RouteFacts, asked: frozenset[bytes]) -> CallFeature:
        return self

    def relay(self, call: Call, opened: Stream, chunks: Chunks) -> Chunks:
        return self.recut(chunks)

    async def recut(self, chunks: Chunks) -> Chunks:
        text = b"".join([chunk async for chunk in chunks])
        for start, end in pairwise((0, *self.cuts, len(text))):
            yield text[start:end]
