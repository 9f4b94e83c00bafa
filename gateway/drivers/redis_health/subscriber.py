"""A subscription to one channel, which is renewed whenever its connection breaks.

Invariants: a silently dead connection is noticed within seconds; a listener that raises does not end the subscription; where
the store is up and the subscription keeps failing (it may be forbidden), the log tells once of that and once of its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from gateway.drivers.redis_health.health import delay_s, reason_of

log = logging.getLogger("gateway.store")

ASK_AFTER_S = 2.0
"""Seconds of silence before the server is pinged."""
PATIENCE_S = 1.0
"""Seconds that the server has for the reply to the ping, and for a connection."""
FIRST_DELAY_S, LAST_DELAY_S = 0.05, 1.0
DEAF_AFTER = 5
"""Failed attempts in a row, while the store is up, before the log tells of it."""


class Subscriber:
    """The subscription to one channel."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Redis]],
        channel: bytes,
        heard: Callable[[bytes], None],
        joined: Callable[[], None],
        is_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_up` tells whether the store is up: while it is not, failures are expected and its health logs them."""
        self._connect = connect
        self._channel = channel
        self._heard = heard
        self._joined = joined
        self._is_up = is_up
        self._tries = 0
        self._failed_attempts = 0
        self._has_told = False
        self.is_deaf = False
        """The store is up, but the subscription keeps failing."""

    async def run(self) -> None:
        """Receives messages until it is cancelled."""
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - any error: the subscription is renewed
                self._tries += 1
                self._failed(error)
            await asyncio.sleep(delay_s(FIRST_DELAY_S, LAST_DELAY_S, self._tries))

    def _failed(self, error: Exception) -> None:
        self._failed_attempts = self._failed_attempts + 1 if self._is_up() else 0
        if self._failed_attempts == DEAF_AFTER and not self.is_deaf:
            self.is_deaf = True
            log.warning("what other replicas tell cannot be heard: %s; it is tried again", reason_of(error))

    def _hears(self) -> None:
        self._tries = self._failed_attempts = 0
        if self.is_deaf:
            self.is_deaf = False
            log.warning("what other replicas tell is heard again")

    async def _listen(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            client = await self._connect()
        pubsub = client.pubsub()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await pubsub.subscribe(self._channel)
            while True:
                _end_if_cancelled()
                self._take(await _next(pubsub))
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis-py has no type for it
            await client.aclose()

    def _take(self, told: dict[str, Any]) -> None:
        if told["type"] == "message":
            self._tell(self._heard, told["data"])
        elif told["type"] == "subscribe":
            self._hears()
            self._tell(self._joined)

    def _tell(self, listener: Callable[..., None], *told: bytes) -> None:
        try:
            listener(*told)
        except Exception:
            if not self._has_told:
                self._has_told = True
                log.exception("what was heard from other replicas could not be taken, which is not said again")


def _end_if_cancelled() -> None:
    """Raises CancelledError if the task was cancelled and what it awaited has swallowed that.

    redis-py writes within `asyncio.wait_for`, which does so up to Python 3.11 when the write ends in the same turn of the
    loop (python/cpython#86296): nobody would cancel the task again, and whoever closes the store would wait for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _next(pubsub: PubSub) -> dict[str, Any]:
    """Returns the next message; raises TimeoutError when the server does not answer a ping either."""
    heard: dict[str, Any] | None = await pubsub.get_message(timeout=ASK_AFTER_S)
    if heard is None:
        await pubsub.ping()
        heard = await pubsub.get_message(timeout=PATIENCE_S)
    if heard is None:
        raise TimeoutError("the server says nothing")
    return heard
