"""The ports of the core: small protocols, implemented at the edges and wired together in `app.py`.

Nothing here knows httpx, prometheus or a store; each implementation translates its own errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from gateway.core.call import CallRecord
from gateway.core.limits.bucket import Cost
from gateway.core.limits.limit_table import ShareOut

T = TypeVar("T")
Later: TypeAlias = T | asyncio.Future[T]
"""A store's answer: the value itself where the store is this process's own memory, else a future of the running loop."""
STORE_S = 2.0
"""No call waits longer for a store, in seconds."""


async def result_or_default(answer: Later[T], otherwise: T) -> T:
    """Returns a store's answer, or `otherwise` if there is none in time."""
    if not isinstance(answer, asyncio.Future):
        return answer
    if not answer.done():
        await asyncio.wait((answer,), timeout=STORE_S)
        if not answer.done():
            return otherwise
    return answer.result()


class Meter(Protocol):
    """The sink of all metrics. Every method is cheap and synchronous, and never raises."""

    def began(self) -> None:
        """Counts a call that has come in; `settled` follows in any case."""
        ...

    def waited(self, lane: str, seconds: float) -> None:
        """Counts a call that has left the delay queue, for whatever reason."""
        ...

    def withdrew(self) -> None:
        """A call that began has become something else, and is not booked as one."""
        ...

    def settled(self, record: CallRecord) -> None:
        """Books one call that has ended: counts, tokens, money, times, and its log line."""
        ...

    def retry_denied(self, reason: str) -> None:
        """Counts an attempt that was prevented by `budget`, `tokens`, `money` or `key_budget`."""
        ...

    def breaker_changed(self, name: str, state: str) -> None:
        """Books the new state of a target's or an account's breaker."""
        ...

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        """Counts a request that was refused before it became a call: no such path, no valid key, a malformed body."""
        ...


class SharedSum(Protocol):
    """The sum of what all replicas have used of something, such as a key's money."""

    @property
    def is_known(self) -> bool:
        """Returns whether anything is known of what other replicas have added."""
        ...

    @property
    def unreported(self) -> float:
        """Returns the part of what was added here that other replicas may not know."""
        ...

    def read(self) -> float:
        """Returns what was added here, and elsewhere as far as is known."""
        ...

    def add(self, amount: float) -> None:
        """Adds an amount; one below 0 corrects what was added before."""
        ...

    async def learn(self, until: float, *, afresh: bool = False) -> None:
        """Waits for what was added elsewhere, `afresh` or if nothing is known yet, no longer than until then (monotonic)."""
        ...

    async def report(self, until: float) -> bool:
        """Reports what was added here, and gets what was elsewhere; returns False if not `until` (monotonic)."""
        ...

    def forget(self) -> None:
        """Drops the sum: it is not counted any more."""
        ...


class LimitSource(Protocol):
    """The source of limits that other replicas use, too. Without one, limits and sums are this process's own."""

    @property
    def replicas(self) -> int:
        """The number of replicas, as last known; at least 1."""
        ...

    def of_target(self, gate: str) -> ShareOut:
        """Makes this replica's parts of a target's limits."""
        ...

    def of_key(self, key: str) -> ShareOut:
        """Makes this replica's parts of a key's own limits."""
        ...

    def sum_of(self, key: str, what: str) -> SharedSum:
        """Makes the sum of what all replicas have used up of something of this key's; to be called once for each."""
        ...

    async def fetch(self, key: str, cost: Cost, until: float) -> bool:
        """Asks for what a call of this key lacks; returns False if there is no more now, or no reply until then (monotonic)."""
        ...


class PeerMessage(NamedTuple):
    """One observation of a replica that concerns all replicas."""

    kind: str
    """What it is about: whoever sends messages of a kind reads them, too."""
    name: str
    """The name of what it is about, such as a gate, an account or a limit."""
    left_s: float
    """The seconds that the news holds from its arrival: replicas' clocks need not agree. 0.0: it is over, or lasts no time."""
    detail: bytes = b""


class PeerBus(Protocol):
    """The messages between replicas. No method raises or waits; without the store no message arrives."""

    def listen(self, listener: Callable[[PeerMessage], None]) -> None:
        """Registers `listener`, called in the loop's thread: first for all news that still hold, then for each new one."""
        ...

    def tell(self, item: PeerMessage, *, lasts: bool = False) -> None:
        """Sends the item to all other replicas. `lasts`: also to those that start within its `left_s`; of items with the same
        kind and name the latest end wins.

        An item without time left ends the lasting one of its kind and name.
        """
        ...

    def take_slot(self, name: str, for_s: float) -> Later[bool]:
        """Takes the slot for this replica; returns False if another has it. It is free again after `for_s`, or when given back.

        True if the store cannot say: every replica then acts for itself.
        """
        ...

    def give_slot(self, name: str) -> None:
        """Frees the slot for other replicas."""
        ...


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The state of a shared store, for `/readyz` and the metrics."""

    is_up: bool
    since: float
    """The time of the last change, in wall-clock seconds."""
    reason: str
    """The reason for being down, or a description of the store."""
    replicas: int
    operations: int
    """The round trips asked for since the start."""
    failures: int
    is_deaf: bool = False
    """The store is up, but the news of other replicas cannot be received."""
