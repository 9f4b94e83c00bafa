"""The line between a supervisor and a worker: messages whole, never blocked, its end noticed."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gateway.workers.channel import Channel, pack


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """The supervisor's, and the bare socket of a worker."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


def test_messages_come_whole_however_they_are_cut(ends: tuple[Channel, socket.socket]) -> None:
    """A part of one waits for the rest."""
    channel, worker = ends
    wire = pack({"say": "ready"}) + pack({"say": "numbers", "level": float("inf")})

    worker.sendall(wire[:5])
    first = channel.receive()
    worker.sendall(wire[5:20])
    second = channel.receive()
    worker.sendall(wire[20:])

    assert (first, second) == ([], [{"say": "ready"}])
    assert channel.receive() == [{"say": "numbers", "level": float("inf")}]
    assert not channel.has_ended


def test_a_worker_that_does_not_read_blocks_nobody(ends: tuple[Channel, socket.socket]) -> None:
    """What it has not taken waits, and is sent later."""
    channel, worker = ends
    message = {"text": "x" * 4_000_000}

    channel.send(message)
    waited = channel.has_unsent
    taken = bytearray()
    while channel.has_unsent:
        taken += worker.recv(1_000_000)
        channel.flush()
    worker.settimeout(60.0)
    while not taken.endswith(b"\n"):
        taken += worker.recv(1_000_000)

    assert waited
    assert bytes(taken) == pack(message)


def test_last_words_are_heard_with_the_end(ends: tuple[Channel, socket.socket]) -> None:
    """A worker that tells why it dies is heard, and then known to be gone; what is sent to it harms nobody."""
    channel, worker = ends
    worker.sendall(pack({"say": "failed"}))
    worker.close()

    heard = channel.receive()
    channel.send({"do": "drain"})
    channel.send({"do": "drain"})

    assert heard == [{"say": "failed"}]
    assert channel.has_ended
    assert not channel.has_unsent
