"""How a gateway leaves when somebody deals out connections to it: first it says so, then it goes."""

from __future__ import annotations

import asyncio

import orjson

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Running, chat, config_of, connect, get, post

CALL = post("/v1/chat/completions", orjson.dumps(chat()))


async def leaving(start: StartGateway) -> tuple[Running, asyncio.Event, asyncio.Task[None]]:
    """A gateway that has been told to stop, and has not given up its notice."""
    gateway = await start(lambda url: config_of(url, server={"notice": "1h", "grace": "1s"}))
    hurry = asyncio.Event()
    draining = asyncio.create_task(gateway.gateway.drain(hurry))
    await asyncio.sleep(0)
    return gateway, hurry, draining


async def test_calls_are_taken_while_the_notice_lasts(start: StartGateway) -> None:
    """Not ready from the first moment on, so that a balancer learns of it before anybody is turned away."""
    gateway, hurry, draining = await leaving(start)

    async with connect(gateway.url) as peer:
        ready = await peer.exchange(get("/readyz"))
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(CALL)
    hurry.set()
    await draining

    assert (ready.status, orjson.loads(ready.body)["status"]) == (503, "leaving")
    assert (answer.status, answer.header("connection")) == (200, "close")
    await gateway.stop()


async def test_every_answer_is_the_last_of_its_connection(start: StartGateway) -> None:
    """Also on connections from before: their clients come back by way of the balancer."""
    gateway = await start(lambda url: config_of(url, server={"notice": "1h"}))
    async with connect(gateway.url) as peer:
        before = await peer.exchange(CALL)
        hurry = asyncio.Event()
        draining = asyncio.create_task(gateway.gateway.drain(hurry))
        await asyncio.sleep(0)
        after = await peer.exchange(CALL)
        rest = await peer.rest()
    hurry.set()
    await draining

    assert (before.header("connection"), after.header("connection")) == (None, "close")
    assert (before.status, after.status, rest) == (200, 200, b"")
    await gateway.stop()


async def test_after_the_notice_nothing_is_taken(start: StartGateway) -> None:
    """A second signal ends it early."""
    gateway, hurry, draining = await leaving(start)
    hurry.set()
    await draining

    async with connect(gateway.url) as peer:
        ready = await peer.exchange(get("/readyz"))
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(CALL)

    assert orjson.loads(ready.body)["status"] == "draining"
    assert (answer.status, answer.error["code"]) == (503, "shutting_down")
    await gateway.stop()
