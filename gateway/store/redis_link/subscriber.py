"""Hearing what is published to one channel, whatever happens to the connection.

Invariants: one that is dead without saying so is noticed within seconds; a listener that fails does not end the hearing; where
the store is there and nothing can be heard all the same (it may not be allowed), the log is told once, and once of the end.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from redis.asyncio import Connection

from gateway.store.redis_link.health import reason_of

log = logging.getLogger("gateway.store")

ASK_AFTER_S = 2.0
"""So long nothing is heard before the server is asked whether it is there."""
PATIENCE_S = 1.0
"""For its answer, and for a connection."""
FIRST_DELAY_S, LAST_DELAY_S = 0.05, 1.0
DEAF_AFTER = 5
"""Attempts in a row that fail while the store is there: then it is told."""


class Subscriber:
    """Of one channel."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        channel: bytes,
        heard: Callable[[bytes], None],
        joined: Callable[[], None],
        is_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_up` tells whether the store is there: else it is no wonder that nothing is heard, and told by others."""
        self._connect = connect
        self._channel = channel
        self._heard = heard
        self._joined = joined
        self._is_up = is_up
        self._tries = 0
        self._failed_attempts = 0
        self._has_told = False
        self.is_deaf = False
        """The store is there, but nothing is heard."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                self._tries += 1
                self._failed(error)
            await asyncio.sleep(self._delay_s())

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

    def _delay_s(self) -> float:
        delay_s: float = min(LAST_DELAY_S, FIRST_DELAY_S * 2 ** min(self._tries, 10))
        return delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret

    async def _listen(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            connection = await self._connect()
        try:
            await connection.send_command("SUBSCRIBE", self._channel)
            while True:
                self._take(await _next(connection))
        finally:
            await connection.disconnect(nowait=True)

    def _take(self, push: object) -> None:
        match push:
            case [b"message", _, bytes(message)]:
                self._tell(self._heard, message)
            case [b"subscribe", *_]:
                self._hears()
                self._tell(self._joined)

    def _tell(self, listener: Callable[..., None], *told: bytes) -> None:
        try:
            listener(*told)
        except Exception:
            if not self._has_told:
                self._has_told = True
                log.exception("what was heard from other replicas could not be taken, which is not said again")


async def _next(connection: Connection) -> object:
    """What comes next; raises when the server says nothing even if asked."""
    heard = await connection.read_response(timeout=ASK_AFTER_S, push_request=True)
    if heard is None:
        await connection.send_command("PING", check_health=False)
        heard = await connection.read_response(timeout=PATIENCE_S, push_request=True)
    if heard is None:
        raise TimeoutError("the server says nothing")
    return heard
