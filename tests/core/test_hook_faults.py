"""What the seams promise, whatever a feature does: an account is closed once, an answer is given, nothing hangs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import (
    Call,
    CallFeature,
    CallRecord,
    CallRoute,
    Chunks,
    Headers,
    Open,
    Opened,
    Reply,
    Serve,
    Stream,
)
from gateway.core.errors import GatewayError, InternalError, InvalidRequest
from tests.support.flow import ANSWER, Bench, Script, ScriptedUpstream, read_all, streamed, whole

EVENTS: Final = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)
PLACES: Final = (
    "serve, before",
    "serve, behind",
    "open, before",
    "open, behind",
    "relay",
    "relay, first chunk",
    "relay, second chunk",
    "headers",
    "closed",
)
"""Where a feature of `Clumsy` may raise, or wait."""


class Defect(Exception):
    """What a feature did not mean to raise."""


@dataclass
class Clumsy(CallFeature):
    """A feature that takes part in all hooks, waits in each that may wait, and raises in one of them."""

    fails_in: str = ""
    failure: type[Exception] = Defect
    name: str = "clumsy"
    options: frozenset[bytes] = frozenset()
    absent_headers: tuple[tuple[bytes, bytes], ...] = ()
    closed_count: int = 0
    ended_count: int = 0
    seen: list[str] = field(default_factory=list)

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature:
        return self

    def at(self, place: str) -> None:
        self.seen.append(place)
        if place == self.fails_in:
            raise InvalidRequest("no") if self.failure is InvalidRequest else self.failure(place)

    async def serve(self, call: Call, next: Serve) -> Reply:
        await asyncio.sleep(0)
        self.at("serve, before")
        reply = await next(call)
        try:
            await asyncio.sleep(0)
            self.at("serve, behind")
        except BaseException:
            await reply.close()  # whoever does not pass a reply on closes it
            raise
        return reply

    async def open(self, call: Call, next: Open) -> Opened:
        await asyncio.sleep(0)
        self.at("open, before")
        opened = await next(call)
        try:
            await asyncio.sleep(0)
            self.at("open, behind")
        except BaseException:
            if isinstance(opened, Stream):  # whoever does not pass a stream on closes it
                await opened.relay.aclose()
            raise
        return opened

    def relay(self, call: Call, opened: Stream, chunks: Chunks) -> Chunks:
        self.at("relay")
        opened.endings += (self.ended,)
        return self.passed(chunks)

    def ended(self, *_how: object) -> None:
        self.ended_count += 1

    async def passed(self, chunks: Chunks) -> Chunks:
        number = 0
        async for chunk in chunks:
            await asyncio.sleep(0)
            self.at("relay, first chunk" if number == 0 else "relay, second chunk" if number == 1 else "relay, later")
            number += 1
            yield chunk

    def headers(self, call: Call, headers: Headers) -> None:
        self.at("headers")
        headers.append((b"x-gateway-clumsy", b"yes"))

    def closed(self, record: CallRecord) -> Mapping[str, object] | None:
        self.closed_count += 1
        self.at("closed")
        return {self.name: True}


def bench_with(script: Script, *features: Clumsy) -> Bench:
    """Returns a bench whose calls have these features around them, besides the products."""
    bench = Bench([ScriptedUpstream(script)])
    bench.pipeline.install((*features, *bench.products))
    return bench


def script_of(*, is_stream: bool) -> Script:
    return streamed(*EVENTS) if is_stream else whole()


async def serve(bench: Bench, call: Call, most_chunks: int | None = None) -> bytes:
    """Serves a call and reads its answer, of a stream at most so many chunks; closes it in any case, as the edge does."""
    reply = await bench.pipeline.handle(call)
    try:
        if reply.chunks is None or most_chunks is None:
            return await read_all(reply)
        got = b""
        for _ in range(most_chunks):
            got += await anext(reply.chunks, b"")
        return got
    finally:
        await reply.close()


async def collected() -> None:
    """Returns when generators that nobody holds any more are closed."""
    gc.collect()
    for _ in range(3):
        await asyncio.sleep(0)


def check_closed(bench: Bench, call: Call, script: Script, *features: Clumsy) -> None:
    """One account, closed once for all; nothing that was reserved is left; no connection to the provider stays open."""
    assert bench.meter.began_count == 1
    assert len(bench.meter.accounts) == 1
    assert call.settled
    assert [feature.closed_count for feature in features] == [1] * len(features)
    assert all(attempt.reservation is None for attempt in call.attempts)
    assert all(attempt.ended_at is not None for attempt in call.attempts)
    if call.request.stream and any(attempt.status is not None for attempt in call.attempts):
        assert script.closed >= 1
    assert all(feature.ended_count in (0, 1) for feature in features)


@settings(max_examples=60, deadline=None)
@given(
    place=st.sampled_from(PLACES),
    failure=st.sampled_from([Defect, InvalidRequest]),
    is_stream=st.booleans(),
    is_outer=st.booleans(),
    most_chunks=st.none() | st.integers(0, 4),
)
async def test_an_account_is_closed_once_whatever_hook_raises(
    place: str, failure: type[Exception], is_stream: bool, is_outer: bool, most_chunks: int | None
) -> None:
    """Whether it is a defect or meant, and wherever the feature stands."""
    clumsy, other, script = Clumsy(place, failure), Clumsy(name="other"), script_of(is_stream=is_stream)
    features = (clumsy, other) if is_outer else (other, clumsy)
    bench = bench_with(script, *features)
    call = bench.call(stream=is_stream)

    with suppress(GatewayError, Defect):
        await serve(bench, call, most_chunks)
    await collected()

    check_closed(bench, call, script, *features)


@settings(max_examples=60, deadline=None)
@given(turns=st.integers(0, 40), is_stream=st.booleans())
async def test_an_account_is_closed_once_wherever_the_call_is_cancelled(turns: int, is_stream: bool) -> None:
    """At each await, of the features and of the pipeline; also before it has begun, and when it is over."""
    script = script_of(is_stream=is_stream)
    features = Clumsy(), Clumsy(name="other")
    bench = bench_with(script, *features)
    call = bench.call(stream=is_stream)
    task = asyncio.create_task(serve(bench, call))
    for _ in range(turns + 1):  # a task that has not begun has nothing to close
        await asyncio.sleep(0)

    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await collected()

    check_closed(bench, call, script, *features)


def test_cancellations_reach_every_await() -> None:
    """The turns above are more than a call takes."""

    async def turns_of(is_stream: bool) -> int:
        bench = bench_with(script_of(is_stream=is_stream), Clumsy(), Clumsy(name="other"))
        task = asyncio.create_task(serve(bench, bench.call(stream=is_stream)))
        count = 0
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert 8 < asyncio.run(turns_of(False)) < 40
    assert 12 < asyncio.run(turns_of(True)) < 40


@pytest.mark.parametrize("place", ["closed", "headers"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_defect_in_headers_or_at_the_end_loses_no_answer(
    place: str, is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The client has its answer, which is booked; other features have their turn; an operator finds the defect in the log."""
    clumsy, other, script = Clumsy(place), Clumsy(name="other"), script_of(is_stream=is_stream)
    bench = bench_with(script, clumsy, other)
    call = bench.call(stream=is_stream)

    reply = await bench.pipeline.handle(call)
    body = await read_all(reply)
    await reply.close()

    assert (reply.status, body) == (200, b"".join(EVENTS) if is_stream else ANSWER)
    assert (bench.account.status, bench.account.outcome) == (200, "ok")
    assert bench.account.fields is not None
    assert bench.account.fields["other"] is True
    assert reply.headers.count((b"x-gateway-clumsy", b"yes")) == (1 if place == "headers" else 2)
    assert dict(reply.headers)[b"x-gateway-target"] == b"p0/m"
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [Defect]
    check_closed(bench, call, script, clumsy, other)


async def test_a_defect_of_another_hook_is_an_internal_error() -> None:
    """What it was meant to do is not done: such an answer is none."""
    for place in ("serve, before", "open, before", "open, behind"):
        bench = bench_with(whole(), Clumsy(place))
        with pytest.raises(InternalError):
            await serve(bench, bench.call())
        assert bench.account.status == 500


async def test_a_stream_whose_relay_a_feature_refuses_hangs_up_on_the_provider() -> None:
    """The client gets an error, and the connection must not stay busy."""
    script = streamed(*EVENTS)
    bench = bench_with(script, Clumsy("relay"))

    with pytest.raises(InternalError):
        await serve(bench, bench.call(stream=True))

    assert script.closed == 1
    assert bench.account.status == 500
