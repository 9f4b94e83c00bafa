"""The health of one server, found by probes in the background, so that no call waits for it.

up --no answer in time, or an error--> in doubt --the probe fails--> gone --the probe succeeds--> up
                                       in doubt --the probe succeeds--> up, without a report

In doubt and gone, the server gets no command but the probe. So one slow command costs the calls that wait for it and, until
the probe ends, a fallback to new calls; doubt that returns within `CALM_S` counts as gone, with a longer delay before each
probe. Invariants: a listener that hears that the server is gone also hears that it is back; the log tells once of trouble and
once of its end, however often the server comes and goes. It must not know how a probe is made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.backoff import EqualJitterBackoff
from redis.exceptions import TimeoutError as RedisTimeout

log = logging.getLogger("gateway.store")

FIRST_PROBE_DELAY_S, LAST_PROBE_DELAY_S = 0.1, 0.3
"""Seconds between two probes, doubling, less up to half by chance so that replicas do not probe in step."""
MOST_PATIENCE_S = 1.0
"""The cap in seconds on a probe's timeout, which doubles from the store's: a slow handshake must still succeed."""
CALM_S = 5.0
"""Doubt that returns within this many seconds counts as the same, and the server as gone."""
QUIET_S = 30.0
"""Trouble that returns within this many seconds of the last report is logged only if it outlasts them."""


class ServerHealth:
    """Health of one server. `is_open`: commands may be sent. `is_up`: it is not gone. `reached`: it was up once."""

    def __init__(
        self,
        name: str,
        probe: Callable[[], Awaitable[None]],
        lost: Callable[[str], None],
        changed: Callable[[bool], None],
        timeout_s: float,
    ) -> None:
        """`probe` raises when the server cannot be used; `lost(reason)` ends the commands that still wait for it."""
        self._name = name
        self._probe = probe
        self._lost = lost
        self._changed = changed
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None
        self._tries = 0
        self._calm_at = 0.0
        self._doubted_at = time.monotonic()
        self._logged_at: float | None = None
        self._is_logged = False
        self.reached = asyncio.Event()
        self.is_open = False
        self.is_up = False
        self.since = time.time()
        self.reason = "it has not been reached yet"

    def start(self) -> None:
        """Begins to probe, and goes on until the server is up."""
        self._task = asyncio.create_task(self._recover(), name="store probe")

    async def aclose(self) -> None:
        """Ends the probes and marks the server as gone, without a report."""
        self.is_open = self.is_up = False
        self.reason = "the gateway stops"
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def doubt(self, reason: str) -> None:
        """Notes that a command failed or was late: the server is in doubt, or gone if it was in doubt a moment ago."""
        if not self.is_open:
            return
        self.is_open, self.reason = False, reason
        self._doubted_at = time.monotonic()
        if self._doubted_at < self._calm_at:
            self._mark_gone(reason)
        else:
            self._tries = 0
        self.start()

    def verify(self) -> None:
        """Notes a refusal that may concern one command, or all: the server goes on, and is in doubt if the probe fails."""
        if self.is_open and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._verify(), name="store probe")

    async def _verify(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._probe()
        except Exception as error:  # noqa: BLE001 - as in `_recover`
            self.doubt(reason_of(error))

    async def _recover(self) -> None:
        while not self.is_open:
            await asyncio.sleep(self._delay_s())
            self._tries += 1
            try:
                async with asyncio.timeout(self._patience_s()):
                    await self._probe()
            except Exception as error:  # noqa: BLE001 - any failure of the probe means that the server cannot be used
                self._mark_gone(reason_of(error))
            else:
                self._mark_back()

    def _delay_s(self) -> float:
        return delay_s(FIRST_PROBE_DELAY_S, LAST_PROBE_DELAY_S, self._tries - 1) if self._tries else 0.0

    def _patience_s(self) -> float:
        patience_s: float = min(MOST_PATIENCE_S, self._timeout_s * 2 ** min(self._tries - 1, 10))
        return max(self._timeout_s, patience_s)

    def _mark_gone(self, reason: str) -> None:
        self.reason = reason
        self._lost(reason)
        self._tell_of_trouble()
        if self.is_up:
            self.is_up, self.since = False, time.time()
            self._changed(False)

    def _mark_back(self) -> None:
        now = time.monotonic()
        self.is_open, self.reason = True, ""
        if self.reached.is_set():
            self._calm_at = now + CALM_S
        if self._is_logged:
            self._is_logged = False
            log.warning("%s can be used again, after %.1f s.", self._name, now - self._doubted_at)
        if not self.is_up:
            self.is_up, self.since = True, time.time()
            self.reached.set()
            self._changed(True)

    def _tell_of_trouble(self) -> None:
        now = time.monotonic()
        if not self._is_logged and (self._logged_at is None or now - self._logged_at >= QUIET_S):
            self._is_logged, self._logged_at = True, now
            reason = self.reason.rstrip(".")
            log.warning("%s cannot be used: %s. Calls go on without it; it is tried again.", self._name, reason)


def delay_s(first_s: float, last_s: float, doublings: int) -> float:
    """Returns the delay before another attempt: doubled each time up to `last_s`, less up to half by chance."""
    backoff: float = EqualJitterBackoff(cap=last_s, base=first_s).compute(min(doublings, 10))
    return backoff


def reason_of(error: BaseException) -> str:
    """Returns the error in words, without the arguments of a command, which a server may quote."""
    if isinstance(error, TimeoutError | RedisTimeout):
        return "no answer in time"
    return str(error).partition(", with args")[0] or type(error).__name__


# A subscription to one channel, which is renewed whenever its connection breaks.
#
# Invariants: a silently dead connection is noticed within seconds; a listener that raises does not end the subscription; where
# the store is up and the subscription keeps failing (it may be forbidden), the log tells once of that and once of its end.


ASK_AFTER_S = 2.0
"""Seconds of silence before the server is pinged."""
PATIENCE_S = 1.0
"""Seconds that the server has for the reply to the ping, and for a connection."""
FIRST_RECONNECT_DELAY_S, LAST_RECONNECT_DELAY_S = 0.05, 1.0
DEAF_AFTER = 5
"""Failed attempts in a row, while the store is up, before the log tells of it."""


class Subscriber:
    """The subscription to one channel."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Redis]],
        channel: bytes,
        on_message: Callable[[bytes], None],
        joined: Callable[[], None],
        is_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_up` tells whether the store is up: while it is not, failures are expected and its health logs them."""
        self._connect = connect
        self._channel = channel
        self._on_message = on_message
        self._joined = joined
        self._is_up = is_up
        self._tries = 0
        self._failed_attempts = 0
        self._is_logged = False
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
            await asyncio.sleep(delay_s(FIRST_RECONNECT_DELAY_S, LAST_RECONNECT_DELAY_S, self._tries))

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

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "message":
            self._tell(self._on_message, message["data"])
        elif message["type"] == "subscribe":
            self._hears()
            self._tell(self._joined)

    def _tell(self, listener: Callable[..., None], *told: bytes) -> None:
        try:
            listener(*told)
        except Exception:
            if not self._is_logged:
                self._is_logged = True
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
    message: dict[str, Any] | None = await pubsub.get_message(timeout=ASK_AFTER_S)
    if message is None:
        await pubsub.ping()
        message = await pubsub.get_message(timeout=PATIENCE_S)
    if message is None:
        raise TimeoutError("the server says nothing")
    return message
