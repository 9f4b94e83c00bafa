"""Claims of idempotency records, renewed while their holder works, and the longest wait for a store."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from gateway.core.clock import Clock, Timer
from gateway.core.ports import Claim, Later, Store
from gateway.features.reuse.layers.layers.eligibility import ReusePlan

T = TypeVar("T")

STORE_S = 2.0
"""No call waits longer for a store, in seconds."""


class RecordClaim:
    """The claim of a record, renewed until `end`."""

    __slots__ = ("_asked", "_clock", "_store", "_timer")

    def __init__(self, clock: Clock, store: Store, asked: ReusePlan) -> None:
        self._clock = clock
        self._store = store
        self._asked = asked
        self._timer = self._set()

    def end(self) -> None:
        """Stops renewing the claim."""
        self._timer.cancel()

    def _set(self) -> Timer:
        return self._clock.call_at(self._clock.monotonic() + self._asked.caching.lease_s / 3, self._renew)

    def _renew(self) -> None:
        asked = self._asked
        if asked.fence:
            self._store.records.renew(asked.record, asked.fence, asked.caching.lease_s)
            self._timer = self._set()


async def claimed(store: Store, asked: ReusePlan) -> Claim:
    """Returns the store's reply to a claim; if there is none in time, the call runs without a claim.

    A claim that is granted too late is given back: it would lock its key until the lease ends.
    """
    answer = store.records.claim(asked.record, asked.fingerprint, asked.caching.lease_s)
    if not isinstance(answer, asyncio.Future):
        return answer
    claim: Claim | None = None
    try:
        await asyncio.wait((answer,), timeout=STORE_S)
        if answer.done():
            claim = answer.result()
    finally:
        if claim is None:
            answer.add_done_callback(lambda late: _give_back(store, asked.record, late.result()))
    return claim or Claim("claimed")


def _give_back(store: Store, record: bytes, claim: Claim) -> None:
    if claim.fence:
        store.records.release(record, claim.fence)


async def result_or_default(answer: Later[T], otherwise: T) -> T:
    """Returns a store's answer, or `otherwise` if there is none in time."""
    if not isinstance(answer, asyncio.Future):
        return answer
    if not answer.done():
        await asyncio.wait((answer,), timeout=STORE_S)
        if not answer.done():
            return otherwise
    return answer.result()
