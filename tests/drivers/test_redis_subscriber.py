"""A replica that is not let hear what others tell: who is told of it, and when."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.core.types import SharedState
from gateway.drivers.redis import link as redis_link
from gateway.drivers.redis.link import Link
from tests.support.redis_servers import RedisServer


async def until(fact: Callable[[], object]) -> None:
    end = time.monotonic() + 10.0
    while not fact():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_link, "LAST_RECONNECT_DELAY_S", 0.01)


@contextlib.asynccontextmanager
async def admin(url: str) -> AsyncIterator[Link]:
    link = Link(SharedState(url, timeout_s=1.0))
    await link.start()
    try:
        yield link
    finally:
        await link.aclose()


async def test_who_may_not_subscribe_says_so_once_and_once_when_it_may(
    a_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """An ACL without channels, which is what users have by default: all else works, so nothing else would show it."""
    heard: list[bytes] = []
    namespace = "newcomer"
    async with admin(a_redis.url) as boss:
        await boss.command("ACL", "SETUSER", namespace, "on", "nopass", "~*", "+@all", "resetchannels")
        url = a_redis.url.replace("redis://", f"redis://{namespace}:any@")
        link = Link(SharedState(url, namespace=namespace, timeout_s=1.0))
        await link.start()
        task = asyncio.create_task(link.subscribe(b"told", heard.append, lambda: None))
        try:
            await until(lambda: link.is_deaf)
            assert link.is_up
            await asyncio.sleep(0.05)
            assert [line for line in caplog.messages if "heard" in line] == [
                line for line in caplog.messages if line.startswith("what other replicas tell cannot be heard: ")
            ]

            await boss.command("ACL", "SETUSER", namespace, "&told")
            await until(lambda: not link.is_deaf)
            await boss.command("PUBLISH", "told", "well")
            await until(lambda: heard == [b"well"])
            assert [line.partition(":")[0] for line in caplog.messages if "heard" in line] == [
                "what other replicas tell cannot be heard",
                "what other replicas tell is heard again",
            ]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await link.aclose()
            await boss.command("ACL", "DELUSER", namespace)


class Swallowing:
    """A client and its subscription, whose ping ends well although it is cancelled, as a write does on Python 3.11."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def pubsub(self) -> Swallowing:
        return self

    async def subscribe(self, _channel: bytes) -> None:
        """At once."""

    async def get_message(self, timeout: float) -> dict[str, object] | None:  # noqa: ASYNC109 - as redis-py names it
        await asyncio.sleep(0)
        return {"type": "pong"} if self.asked.is_set() else None

    async def ping(self) -> None:
        self.asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        """At once."""


async def test_a_subscription_ends_when_it_is_cancelled_whatever_swallows_that() -> None:
    """Whoever closes the store waits for its end, and cancels it once."""
    client = Swallowing()

    async def connect() -> Any:
        return client

    task = asyncio.create_task(redis_link.Subscriber(connect, b"news", lambda _: None, lambda: None).run())
    await client.asked.wait()
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ended = task.done()
    task.cancel()

    assert ended
    assert task.cancelled()
