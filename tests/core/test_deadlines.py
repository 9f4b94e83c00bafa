"""Time that runs out while an attempt is being opened, and calls that are stopped."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.answers import OpenAttempts
from gateway.core.errors import DeadlineExceeded, TargetsTimedOut
from tests.support.flow import ANSWER, Bench, Script, ScriptedUpstream, streamed, whole


async def turns() -> None:
    """Let everybody get on as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_callers_deadline_ends_an_answer_that_has_begun_and_fallen_silent(stream: bool) -> None:
    """The head was in time, the first event or the body is not: 504 at the deadline, the answer closed."""
    script = streamed(b": thinking\n\n", asyncio.Event()) if stream else Script(chunks=[b'{"half": ', asyncio.Event()])
    bench = Bench([ScriptedUpstream(script)])
    task = asyncio.ensure_future(bench.serve(stream=stream, deadline=bench.clock.now + 0.5, deadline_is_callers=True))
    await turns()

    bench.watch.sweep(bench.clock.now + 0.4)
    await turns()
    assert not task.done()
    bench.clock.now += 0.6
    bench.watch.sweep(bench.clock.now)

    with pytest.raises(DeadlineExceeded):
        await task
    assert script.closed
    assert bench.account.outcome == "deadline_exceeded"


async def test_an_attempt_that_takes_too_long_moves_on() -> None:
    """A body that drips is not waited for beyond the total clock: the next target serves."""
    bench = Bench([ScriptedUpstream(Script(chunks=[b"{", asyncio.Event()])), ScriptedUpstream(whole())])
    task = asyncio.ensure_future(bench.serve())
    await turns()

    bench.clock.now += 3601
    bench.watch.sweep(bench.clock.now)
    bench.clock.now -= 3601  # the call's own deadline is another matter

    reply, body = await task
    assert (reply.status, body) == (200, ANSWER)
    assert dict(reply.headers)[b"x-gateway-attempts"].startswith(b"p0/m:timeout")


async def test_time_that_ran_out_everywhere_is_a_504() -> None:
    """With nobody else to ask."""
    bench = Bench([ScriptedUpstream(streamed(asyncio.Event()))])
    task = asyncio.ensure_future(bench.serve(stream=True))
    await turns()

    bench.watch.sweep(bench.clock.now + 606)

    with pytest.raises(TargetsTimedOut):
        await task


async def test_an_open_stream_is_not_watched() -> None:
    """Once its first event is there the deadline has been met."""
    gate = asyncio.Event()
    bench = Bench(
        [ScriptedUpstream(streamed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', gate, b"data: [DONE]\n\n"))]
    )

    reply = await bench.pipeline.handle(bench.call(stream=True, deadline=bench.clock.now + 1, deadline_is_callers=True))
    bench.watch.sweep(bench.clock.now + 100)
    gate.set()

    assert reply.chunks is not None
    assert [chunk async for chunk in reply.chunks][-1] == b"data: [DONE]\n\n"
    await reply.close()


@pytest.mark.parametrize(
    ("reason", "outcome", "status"),
    [(None, "client_gone", 499), ("client_gone", "client_gone", 499), ("shutdown", "shutdown", 503)],
)
async def test_the_account_tells_why_a_call_was_stopped(reason: str | None, outcome: str, status: int) -> None:
    """A client that left and a process that went down are not the same."""
    bench = Bench([ScriptedUpstream(Script(chunks=[asyncio.Event()]))])
    task = asyncio.ensure_future(bench.serve())
    await turns()

    task.cancel(reason)
    await asyncio.wait([task])

    assert task.cancelled()
    assert (bench.account.outcome, bench.account.status) == (outcome, status)


async def test_a_cancellation_from_elsewhere_is_not_mistaken_for_a_timeout() -> None:
    """The client leaves in the same moment as the sweep runs: nobody is there to be given another target."""
    bench = Bench([ScriptedUpstream(Script(chunks=[asyncio.Event()])), ScriptedUpstream(whole())])
    task = asyncio.ensure_future(bench.serve())
    await turns()

    task.cancel("client_gone")
    bench.watch.sweep(bench.clock.now + 4000)
    await asyncio.wait([task])

    assert task.cancelled()
    assert not bench.upstreams[1].sent


async def test_an_answer_that_cannot_be_closed_still_has_its_account() -> None:
    """A transport that fails on the way out must not cost the books."""

    class Stuck(Script):
        async def aclose(self) -> None:
            raise RuntimeError("cannot close")

    word = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    script = Stuck(200, ((b"content-type", b"text/event-stream"),), [word, b"data: [DONE]\n\n"])
    bench = Bench([ScriptedUpstream(script)])

    with pytest.raises(RuntimeError):
        await bench.serve(stream=True)

    assert bench.account.outcome == "ok"


async def test_time_runs_out_even_where_somebody_who_looks_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Else one defect there would let every call of the process wait for ever."""
    bench = Bench([ScriptedUpstream(Script(chunks=[b"{", asyncio.Event()]))])
    task = asyncio.ensure_future(bench.serve(deadline=bench.clock.now + 9.0, deadline_is_callers=True))
    await turns()

    def fail(_opens: OpenAttempts, _now: float) -> None:
        raise RuntimeError("a defect")

    bench.watch.look = fail
    bench.watch.sweep(bench.clock.now + 1.0)
    bench.clock.now += 9.0
    bench.watch.sweep(bench.clock.now)

    with pytest.raises(DeadlineExceeded):
        await task
    assert "looking at the open attempts failed" in caplog.text
