"""Bodies of which more is awaited: together they are bounded, and the newest of whoever sends the most are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from gateway.core.errors import BodyTooLarge
from gateway.core.intake import Serving, StopReason, UnfinishedBodies, read_bytes
from gateway.core.types import QueueBounds, Server
from gateway.core.waiting import Shedding
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEYS, WEB_KEY, Peer, chat, config_of, connect, post, to_yaml, until

MEGABYTE = 1_000_000
CHAT = "/v1/chat/completions"


class Reader(Serving):
    """Notes that it was stopped."""

    def __init__(self, payer: str) -> None:
        super().__init__(None)
        self._payer = payer

    @property
    def payer(self) -> str:
        return self._payer

    def stop(self, reason: StopReason) -> None:
        self.stopped = reason


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40), st.booleans()), max_size=60), st.integers(1, 100))
def test_more_than_the_bound_is_never_held_but_for_a_lone_reader(moves: list[tuple[int, int, bool]], most: int) -> None:
    """Whoever is stopped holds nothing any more, and the account is empty in the end."""
    bodies, readers = UnfinishedBodies(), [Reader("abc"[number % 3]) for number in range(10)]
    held = dict.fromkeys(readers, 0)
    for number, size, ends in moves:
        reader = readers[number]
        if reader.stopped is not None:
            continue
        if ends:
            bodies.end(reader)
            held[reader] = 0
        else:
            held[reader] += size
            bodies.count(reader, most, size)
        held = {one: 0 if one.stopped else size for one, size in held.items()}
        assert bodies.bytes == sum(held.values())
        assert bodies.bytes <= most or sum(size > 0 for size in held.values()) == 1
    for reader in readers:
        bodies.end(reader)
    assert bodies.bytes == 0


def test_the_newest_of_the_largest_payer_gives_way() -> None:
    """A tenant with one body is not stopped for what another one sends."""
    bodies, small, *large = UnfinishedBodies(), Reader("small"), Reader("large"), Reader("large")
    for reader in (*large, small):
        bodies.count(reader, 100, 30)
    bodies.count(small, 100, 20)

    assert [one.stopped for one in (small, *large)] == [None, None, "no_room"]


async def test_a_body_that_is_too_long_is_told_so_and_counts_no_further() -> None:
    """Its last part could stop its own reader, whose answer would be cut off."""
    counted: list[int] = []
    parts = [{"type": "http.request", "body": b"x" * 8, "more_body": True} for _ in range(2)]

    async def receive() -> dict[str, Any]:
        return parts.pop()

    with pytest.raises(BodyTooLarge):
        await read_bytes(Request({"type": "http"}, receive), Server(), 10, counted.append)

    assert counted == [8]


def test_what_is_held_and_memory_bound_it_too() -> None:
    """Bodies of calls that wait take the same room; of memory it is half, and a little room is always left."""
    shedding, bounds = Shedding(), QueueBounds(max_bytes=800)
    assert shedding.body_bytes(bounds) == 800
    shedding.observe(0.0, None, 500, 0.0, bounds)
    assert shedding.body_bytes(bounds) == 300
    shedding.observe(1.0, None, 800, 0.0, bounds)
    assert shedding.body_bytes(bounds) == 100
    assert Shedding(memory_bytes=100).body_bytes(bounds) == 50


@pytest.mark.parametrize("kind", ["json", "chunked", "multipart", "job"])
async def test_bodies_that_do_not_end_are_refused_beyond_the_bound(
    start: StartGateway, tmp_path: Path, kind: str
) -> None:
    """503 with a delay for the newest, while the others are read to their end and served; then there is room again."""
    (tmp_path / "queue.yaml").write_text(to_yaml({"default": {"max_bytes": "5MB"}}))

    def config(url: str) -> dict[str, Any]:
        return config_of(url, keys=KEYS, policies=str(tmp_path), jobs={"store": f"sqlite:///{tmp_path}/jobs.db"})

    gateway = await start(config)
    rest = orjson.dumps(chat(user="u" * 2 * MEGABYTE))
    path, headers, framed = CHAT, [f"authorization: Bearer {WEB_KEY}"], rest
    if kind == "multipart":
        path = "/v1/audio/transcriptions"
        headers.append("content-type: multipart/form-data; boundary=x")
        part = b'--x\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        framed = part % (b"model", b"whisper-1") + part % (b'file"; filename="a.wav', rest) + b"--x--\r\n"
    if kind == "job":
        path, framed = (
            "/v1/jobs",
            orjson.dumps({"endpoint": CHAT, "body": chat(user="u" * 2 * MEGABYTE), "delay": "1h"}),
        )
    request = post(path, framed, *headers)
    if kind == "chunked":
        at = request.index(b"content-length")
        head = request[:at] + b"transfer-encoding: chunked" + request[request.index(b"\r\n", at) :][: -len(framed)]
        request = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(framed), framed)
    bodies = gateway.inflight.bodies
    async with connect(gateway.url) as first, connect(gateway.url) as second, connect(gateway.url) as third:
        for number, peer in enumerate((first, second), 1):
            peer.send(request[:-200_000])
            await until(lambda: bodies.bytes >= 1.5 * MEGABYTE * number)  # noqa: B023  # called in this turn of the loop
        third.send(request[:-200_000])
        refused = await third.response()
        answers = [await finished(peer, request) for peer in (first, second)]
        await until(lambda: bodies.bytes == 0)
    async with connect(gateway.url) as again:
        answers.append((await again.exchange(request)).status)

    assert (refused.status, refused.error["code"]) == (503, "gateway_overloaded")
    assert refused.header("retry-after") == "1"
    assert answers == [202 if kind == "job" else 200] * 3


async def finished(peer: Peer, request: bytes) -> int:
    """The status of a request whose end is sent now."""
    peer.send(request[-200_000:])
    await asyncio.sleep(0)
    return (await peer.response()).status
