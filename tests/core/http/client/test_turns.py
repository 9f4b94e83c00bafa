"""Streams that come faster than they are handled take turns: what is counted are pieces in each turn of the loop."""

from __future__ import annotations

import asyncio

from gateway.core.http.client import connection as http1_connection
from gateway.core.http.client import pool as http1_pool
from gateway.core.http.client.connection import LONG_TURN_S, MOST_PIECES, LoopTurns
from gateway.core.http.client.exchange import Exchange
from tests.core.http.client.test_http1_protocol import connect

READERS = 300


class Greedy:
    """Asks for another piece in the turn after each, as a stream at full speed does."""

    def __init__(self, turns: LoopTurns, read: list[Greedy]) -> None:
        self._turns = turns
        self._read = read

    def read_on(self) -> None:
        self._read.append(self)
        asyncio.get_running_loop().call_soon(self._turns.ask, self)


class Clock:
    """A turn of the loop takes as long as one says."""

    def __init__(self) -> None:
        self.turn_s = 0.0
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self.turn_s
        return self._now


async def test_300_readers_at_full_speed_take_a_few_pieces_a_turn_in_order() -> None:
    """Nobody is left out, nobody comes twice before all others have come once."""
    read: list[Greedy] = []
    turns = LoopTurns(Clock())
    everybody = [Greedy(turns, read) for _ in range(READERS)]
    for one in everybody:
        turns.ask(one)
    most = 0
    while len(read) < 3 * READERS:
        before = len(read)
        await asyncio.sleep(0)
        most = max(most, len(read) - before)

    assert most <= MOST_PIECES
    assert [read[start : start + READERS] for start in range(0, 3 * READERS, READERS)] == [everybody] * 3


async def test_fewer_pieces_fit_where_turns_are_long() -> None:
    """One a turn at the least; as many as before when turns are short again."""
    clock, read = Clock(), list[Greedy]()
    turns = LoopTurns(clock)
    for _ in range(READERS):
        turns.ask(Greedy(turns, read))

    async def pieces(count: int) -> list[int]:
        found = []
        for _ in range(count):
            before = len(read)
            await asyncio.sleep(0)
            found.append(len(read) - before)
        return found

    clock.turn_s = 2 * LONG_TURN_S
    assert (await pieces(10))[-3:] == [1, 1, 1]
    clock.turn_s = 0.0
    assert (await pieces(20))[-1] == MOST_PIECES


async def test_a_lone_reader_reads_on_at_once_and_leaves_nothing_behind() -> None:
    """What few streams bring is not put off, and an idle loop has nothing to do."""
    read: list[Greedy] = []
    turns = LoopTurns()

    class Once(Greedy):
        def read_on(self) -> None:
            self._read.append(self)

    for _ in range(MOST_PIECES):
        turns.ask(Once(turns, read))
    assert len(read) == MOST_PIECES
    turns.ask(Once(turns, read))
    assert len(read) == MOST_PIECES
    for _ in range(4):
        await asyncio.sleep(0)
    assert len(read) == MOST_PIECES + 1
    assert not turns._is_counting


async def test_a_full_piece_waits_for_its_turn_before_the_next_is_read() -> None:
    """However much the provider has sent, a connection reads one piece, hands it over, and asks."""
    held = [connect() for _ in range(READERS)]
    shared = held[0][3].turns
    read_on = 0
    for connection, _, _, _ in held:
        connection._turns = shared
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n")
        connection.data_received(b"x" * http1_pool.READ_BYTES)
    assert all(wire.is_paused() for _, _, wire, _ in held)

    async def take(exchange: Exchange) -> None:
        assert len(await anext(exchange)) == http1_pool.READ_BYTES

    for _, exchange, _, _ in held:
        await take(exchange)  # nothing to wait for: no turn of the loop passes
    for _ in range(READERS):
        now = sum(not wire.is_paused() for _, _, wire, _ in held)
        assert now - read_on <= MOST_PIECES
        read_on = now
        await asyncio.sleep(0)
    assert read_on == READERS


async def test_a_connection_that_ends_while_it_waits_for_its_turn_stays_closed() -> None:
    """Its turn comes, and is nobody's."""
    connection, exchange, wire, pool = connect()
    pool.turns._left = 0
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n")
    connection.data_received(b"x" * http1_pool.READ_BYTES)
    await anext(exchange)
    exchange.abandon()
    for _ in range(4):
        await asyncio.sleep(0)
    assert wire.is_aborted
    assert wire.is_paused()


async def test_what_waits_for_a_stopped_caller_is_one_piece_and_one_object() -> None:
    """Thousands of small chunks would each take 33 bytes more than they have."""
    connection, exchange, wire, _ = connect()
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while not wire.is_paused():
        connection.data_received(b"2\r\n: \r\n" * 2000)
    assert exchange.buffered <= http1_connection.HIGH_WATER_BYTES + http1_pool.READ_BYTES
    assert len(exchange._chunks) == 1
