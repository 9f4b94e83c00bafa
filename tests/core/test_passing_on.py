"""Events that need no reading go straight to the client, and the client cannot tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.http.client.exchange import TAP_BYTES, Carrier, Exchange, WireTimeouts
from gateway.core.relay import SseRelay
from gateway.core.types import Answer, Clocks, Upstream, Usage
from tests.core.test_relay import DELTA, DONE, FINISH, USAGE, bench
from tests.support.flow import CLOCKS, FakeClock, ScriptedUpstream

NULLED = DELTA.replace(b"]}\n", b'],"usage":null}\n')
BLOCKS = st.sampled_from(
    [DELTA, NULLED, DELTA * 2, b": still here\n\n", DELTA[:30], DELTA[30:], DELTA.replace(b"hi", b"x" * TAP_BYTES)]
)


class Line:
    """A provider's connection, and a client who takes what is written unless `is_paused`."""

    is_reading_paused = False

    def __init__(self) -> None:
        self.new_future: Callable[[], asyncio.Future[bytes]] = asyncio.get_running_loop().create_future
        self.exchange = Exchange(cast("Carrier", self), WireTimeouts(), -inf, None)
        self.exchange.status = 200
        self.got: list[bytes] = []
        self.passed = 0
        self.is_paused = False
        self.ends: list[tuple[str, Usage | None, int]] = []

    def resume_reading(self) -> None:
        """As a connection does; this one is never paused."""

    def fail(self, error: BaseException) -> None:
        """Close the connection."""
        self.exchange.finish(error)

    def write(self, block: bytes) -> bool:
        """What goes straight to the client."""
        if not self.is_paused:
            self.got.append(block)
            self.passed += 1
        return not self.is_paused

    async def relay(self, *, strips: bool = False) -> SseRelay:
        """A relay that has been opened with a first event."""
        call = bench().call(stream=True)
        relay = SseRelay(call, cast("Upstream", ScriptedUpstream()), cast("Answer", self.exchange), strip_usage=strips)
        self.exchange.bring(DELTA)
        assert await relay.open() is None
        return relay

    async def read(self, relay: SseRelay, clocks: Clocks = CLOCKS, clock: FakeClock | None = None) -> None:
        """Be the client until the stream ends."""
        async for chunk in relay.chunks(lambda *end: self.ends.append(end), clocks, (clock or FakeClock()).monotonic):
            self.got.append(chunk)


async def fed(
    blocks: list[tuple[bytes, int, bool]], *, strips: bool, passes_on: bool
) -> tuple[bytes, list[tuple[str, Usage | None]]]:
    """What the client gets of these blocks, behind each of which the loop turns so often; and how the stream ended.

    Not how many tokens it is estimated at: events that are passed on are sampled at other places.
    """
    line = Line()
    relay = await line.relay(strips=strips)
    if passes_on:
        relay.pass_on(line.write)
    reading = asyncio.create_task(line.read(relay))
    for block, turns, is_paused in blocks:
        line.is_paused = is_paused
        line.exchange.bring(block)
        for _ in range(turns):
            await asyncio.sleep(0)
    line.exchange.finish(None)
    await reading
    return b"".join(line.got), [(outcome, usage) for outcome, usage, _ in line.ends]


@given(st.lists(st.tuples(BLOCKS, st.integers(0, 3), st.booleans())), st.booleans(), st.booleans())
def test_the_client_gets_the_same_bytes_in_the_same_order(
    blocks: list[tuple[bytes, int, bool]], strips: bool, is_whole: bool
) -> None:
    """However the events are cut, whenever they come, and whether or not the client keeps up."""
    end = [(FINISH, 1, False), (USAGE, 1, False), (DONE, 1, False)] if is_whole else []

    straight = asyncio.run(fed([*blocks, *end], strips=strips, passes_on=True))

    assert straight == asyncio.run(fed([*blocks, *end], strips=strips, passes_on=False))


async def test_plain_events_wake_nobody() -> None:
    """While the client keeps up, the relay's own loop has nothing to do with them."""
    line = Line()
    relay = await line.relay()
    relay.pass_on(line.write)
    reading = asyncio.create_task(line.read(relay))
    await asyncio.sleep(0.001)
    for _ in range(5):
        line.exchange.bring(DELTA)

    assert (line.passed, line.got) == (5, [DELTA] * 6)

    line.exchange.bring(FINISH + DONE)
    line.exchange.finish(None)
    await reading
    assert line.got[6:] == [FINISH + DONE]
    assert [(outcome, events) for outcome, _, events in line.ends] == [("ok", 6)]


async def test_events_that_are_passed_on_do_not_outrun_the_total_time() -> None:
    """The stream's clock is looked at with each of them."""
    clock = FakeClock()
    line = Line()
    relay = await line.relay()
    relay.pass_on(line.write)
    reading = asyncio.create_task(line.read(relay, Clocks(1, 1, 1, 1, 5), clock))
    await asyncio.sleep(0.001)
    line.exchange.bring(DELTA)
    clock.now += 6
    line.exchange.bring(DELTA)
    await reading

    assert line.passed == 1
    assert b"longer than the total of 5 s" in line.got[-1]
    assert [outcome for outcome, *_ in line.ends] == ["timeout"]


async def test_a_relay_that_is_cancelled_lets_go_of_its_client() -> None:
    """Nothing is written to a client that has left."""
    line = Line()
    relay = await line.relay()
    relay.pass_on(line.write)
    reading = asyncio.create_task(line.read(relay))
    await asyncio.sleep(0.001)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    line.exchange.bring(DELTA)

    assert line.passed == 0
    assert line.exchange.on_block is None


async def test_events_that_are_passed_on_are_estimated_by_what_is_in_them() -> None:
    """Whether the relay's own loop sees them or not, and whatever comes between."""
    long = DELTA.replace(b"hi", b"word" * 100)
    line = Line()
    relay = await line.relay()
    relay.pass_on(line.write)
    reading = asyncio.create_task(line.read(relay))
    await asyncio.sleep(0.001)
    for number in range(300):
        line.is_paused = number % 7 == 0
        line.exchange.bring(long)
        await asyncio.sleep(0)
    line.exchange.finish(ConnectionError())
    await asyncio.gather(reading, return_exceptions=True)

    assert 0 < line.passed < 300
    assert [tokens for _, _, tokens in line.ends] == [300 * 100]
