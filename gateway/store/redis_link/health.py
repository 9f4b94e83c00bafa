"""Whether a server is there, found out without anybody waiting for it.

up --no answer in time, or trouble--> in doubt --the probe fails--> gone --the probe succeeds--> up
                                      in doubt --the probe succeeds--> up, and nobody has noticed

In doubt and gone nothing is asked of it but the probe. So one slow command costs those who wait for it and, for the moment of
one probe, a fallback to those who come; doubt that comes back within seconds is no doubt any more: it is gone, and probed
later each time. Invariants: who is told that it is gone is told when it is back; the log is told once of trouble and once of
its end, however often it comes and goes. It must not know how a probe is made.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from redis.exceptions import TimeoutError as RedisTimeout

log = logging.getLogger("gateway.store")

FIRST_DELAY_S, LAST_DELAY_S = 0.1, 0.3
"""Between two probes, doubling, up to half of it taken off by chance: replicas do not all come at once."""
MOST_PATIENCE_S = 1.0
"""For one probe, doubling from the timeout: a server that takes longer to shake hands is reached all the same."""
CALM_S = 5.0
"""Doubt that comes back within this time is the same."""
QUIET_S = 30.0
"""Trouble that comes back within this time is told only if it lasts until then."""


class ServerHealth:
    """`is_open`: it may be asked. `is_up`: it is not known to be gone. `reached`: it was up once."""

    def __init__(
        self,
        name: str,
        probe: Callable[[], Awaitable[None]],
        lost: Callable[[str], None],
        changed: Callable[[bool], None],
        timeout_s: float,
    ) -> None:
        """`probe` raises when it cannot be used; `lost(reason)`: whatever still waits for it waits in vain."""
        self._name = name
        self._probe = probe
        self._lost = lost
        self._changed = changed
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None
        self._tries = 0
        self._calm_at = 0.0
        self._doubted_at = time.monotonic()
        self._told_at: float | None = None
        self._is_told = False
        self.reached = asyncio.Event()
        self.is_open = False
        self.is_up = False
        self.since = time.time()
        self.reason = "it has not been reached yet"

    def start(self) -> None:
        """Find out, now and until it is there."""
        self._task = asyncio.create_task(self._recover(), name="store probe")

    async def aclose(self) -> None:
        """It is gone for good, and nobody is told."""
        self.is_open = self.is_up = False
        self.reason = "the gateway stops"
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def doubt(self, reason: str) -> None:
        """Something has gone wrong."""
        if not self.is_open:
            return
        self.is_open, self.reason = False, reason
        self._doubted_at = time.monotonic()
        if self._doubted_at < self._calm_at:
            self._is_gone(reason)
        else:
            self._tries = 0
        self.start()

    async def _recover(self) -> None:
        while not self.is_open:
            await asyncio.sleep(self._delay_s())
            self._tries += 1
            try:
                async with asyncio.timeout(self._patience_s()):
                    await self._probe()
            except Exception as error:  # noqa: BLE001 - whatever it is, it cannot be used; that is told
                self._is_gone(reason_of(error))
            else:
                self._is_back()

    def _delay_s(self) -> float:
        if not self._tries:
            return 0.0
        delay_s: float = min(LAST_DELAY_S, FIRST_DELAY_S * 2 ** min(self._tries - 1, 10))
        return delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret

    def _patience_s(self) -> float:
        patience_s: float = min(MOST_PATIENCE_S, self._timeout_s * 2 ** min(self._tries - 1, 10))
        return max(self._timeout_s, patience_s)

    def _is_gone(self, reason: str) -> None:
        self.reason = reason
        self._lost(reason)
        self._tell_of_trouble()
        if self.is_up:
            self.is_up, self.since = False, time.time()
            self._changed(False)

    def _is_back(self) -> None:
        now = time.monotonic()
        self.is_open, self.reason = True, ""
        if self.reached.is_set():
            self._calm_at = now + CALM_S
        if self._is_told:
            self._is_told = False
            log.warning("%s can be used again, after %.1f s.", self._name, now - self._doubted_at)
        if not self.is_up:
            self.is_up, self.since = True, time.time()
            self.reached.set()
            self._changed(True)

    def _tell_of_trouble(self) -> None:
        now = time.monotonic()
        if not self._is_told and (self._told_at is None or now - self._told_at >= QUIET_S):
            self._is_told, self._told_at = True, now
            reason = self.reason.rstrip(".")
            log.warning("%s cannot be used: %s. Calls go on without it; it is tried again.", self._name, reason)


def reason_of(error: BaseException) -> str:
    """In words, and without secrets: those who raise here name hosts and ports, but a server may repeat what it was told."""
    if isinstance(error, TimeoutError | RedisTimeout):
        return "no answer in time"
    return str(error).partition(", with args")[0] or type(error).__name__
