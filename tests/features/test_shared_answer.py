"""One answer for any number of readers: the same bytes for each, whoever comes late, leaves or is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import Reply
from gateway.core.errors import NoTargetAvailable
from gateway.core.relay import StreamBroken
from gateway.features.single_flight import SLOW_READER, AnswerReader, SharedAnswer
from tests.support.flow import Bench, ScriptedUpstream

ROOM = 1000


async def _none() -> AsyncGenerator[bytes, None]:
    for chunk in list[bytes]():
        yield chunk


def flight(room: int = ROOM) -> SharedAnswer:
    """A flight whose answer is a stream."""
    return SharedAnswer(Bench([ScriptedUpstream()]).call(), room)


def begun(room: int = ROOM) -> SharedAnswer:
    made = flight(room)
    made.begin(Reply(200, [], chunks=_none()))
    return made


async def read(made: SharedAnswer, reader: AnswerReader) -> bytes:
    return b"".join([chunk async for chunk in made.chunks(reader)])


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_late_reader_gets_all_of_it() -> None:
    """What is there comes at once, in one piece; the rest as it comes."""
    made = begun()
    for chunk in (b"a", b"b", b"c"):
        await made.add(chunk)
    chunks = made.chunks(made.enter())

    assert await anext(chunks) == b"abc"
    await made.add(b"d")
    assert await anext(chunks) == b"d"
    made.end()
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)


async def test_the_head_is_waited_for() -> None:
    """A reader opens when the answer begins."""
    made = flight()
    opening = asyncio.ensure_future(made.opened(made.enter()))
    await turns()
    assert not opening.done()

    made.begin(Reply(200, [], chunks=_none()))
    await opening


async def test_an_error_is_each_readers_own() -> None:
    """They get equal errors, and never the same object: a traceback belongs to one task."""
    made = flight()
    cause = ValueError("why")
    error = NoTargetAvailable("nobody", param="model")
    error.__cause__ = cause
    opening = [asyncio.ensure_future(made.opened(made.enter())) for _ in range(2)]
    await turns()
    made.end(error)

    raised = await asyncio.gather(*opening, return_exceptions=True)
    assert [str(one) for one in raised] == ["nobody", "nobody"]
    assert all(isinstance(one, NoTargetAvailable) and one.__cause__ is cause and one.param == "model" for one in raised)
    assert len({id(one) for one in (*raised, error)}) == 3


async def test_a_break_is_told_to_everybody() -> None:
    """Nobody takes a broken answer for a whole one."""
    made = begun()
    await made.add(b"a")
    reader = made.enter()
    made.call.outcome = "stream_interrupted"
    made.end(StreamBroken("gone"))

    with pytest.raises(StreamBroken):
        await read(made, reader)
    assert reader.outcome == "stream_interrupted"


async def test_the_last_one_to_leave_stops_the_work() -> None:
    """Whoever leaves before disturbs nobody; the reason is passed on."""
    made = begun()
    why: list[object] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as stopped:
            why.extend(stopped.args)
            raise

    made.task = asyncio.ensure_future(work())
    first, second = made.enter(), made.enter()
    await turns()

    assert not made.leave(first, "client_gone")
    await turns()
    assert not made.task.done()
    assert made.leave(second, "shutdown")
    await turns()
    assert made.task.cancelled()
    assert why == ["shutdown"]


async def test_work_that_is_done_is_not_stopped() -> None:
    """The last reader of a finished answer leaves it alone: what is kept of it may still be on its way."""
    made = begun()
    made.task = asyncio.ensure_future(asyncio.sleep(0))
    reader = made.enter()
    made.end()
    made.leave(reader, "client_gone")
    await made.task


async def test_beyond_its_room_it_takes_nobody_and_waits_for_its_reader() -> None:
    """An answer of any length goes through bounded memory."""
    made = begun(room=10)
    reader = made.enter()
    chunks = made.chunks(reader)
    await made.add(b"x" * 8)
    adding = asyncio.ensure_future(made.add(b"y" * 8))
    await turns()
    assert not adding.done()

    assert await anext(chunks) == b"x" * 8 + b"y" * 8
    await turns()
    assert adding.done()
    await made.add(b"z" * 4)
    assert not made.takes_readers
    assert made.body() is None
    assert await anext(chunks) == b"z" * 4


async def test_who_is_far_behind_is_let_go_when_another_waits() -> None:
    """One slow client holds up nobody, nor does it make the buffer grow; its answer breaks off visibly."""
    made = begun(room=10)
    slow, quick = made.enter(), made.enter()
    got = asyncio.ensure_future(read(made, quick))
    for _ in range(5):
        await made.add(b"x" * 6)
        await turns()
    made.end()

    assert await got == b"x" * 30
    with pytest.raises(StreamBroken):
        await read(made, slow)
    assert slow.outcome == SLOW_READER


@given(st.lists(st.tuples(st.sampled_from("aaarje"), st.binary(min_size=1, max_size=4)), max_size=40))
@settings(deadline=None)
def test_every_reader_gets_every_byte(course: list[tuple[str, bytes]]) -> None:
    """Chunks come, readers come and read, in any order: each that stays gets the whole answer."""

    async def run() -> None:
        made, readers, said = begun(), list[asyncio.Task[bytes]](), b""
        for step, chunk in course:
            if step == "a":
                said += chunk
                await made.add(chunk)
            elif step == "r":
                readers.append(asyncio.ensure_future(read(made, made.enter())))
            elif step == "j":
                await turns(1)
            elif readers:
                readers.pop().cancel()
        made.end()
        assert [await one for one in readers] == [said] * len(readers)
        assert made.body() == said

    asyncio.run(run())
