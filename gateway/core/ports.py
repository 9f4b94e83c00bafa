"""The ports of the core: small protocols, implemented at the edges and wired together in `app.py`.

Nothing here knows httpx, prometheus or a store; each implementation translates its own errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from gateway.core.call import CallRecord
from gateway.core.limits.estimate import Cost
from gateway.core.limits.limit_table import ShareOut
from gateway.core.types import Kept, StoreBounds

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


@dataclass(frozen=True, slots=True)
class Claim:
    """A store's reply to a call that wants to be the only one to run a request with its idempotency key."""

    state: Literal["claimed", "running", "done", "mismatch"]
    """`claimed`: the caller holds the record until the lease ends. `mismatch`: the key was used for another request."""
    fence: int = 0
    """The token of a `claimed` record, needed to renew or complete it; higher than that of every earlier claim of this key."""
    kept: Kept | None = None
    """The stored answer, set only in state `done`."""
    lease_left_s: float = 0.0
    """The seconds until another caller may claim the record, unless it is renewed; set only in state `running`."""


class Records(Protocol):
    """Idempotency records: the holder of each request, and its answer. Ids and fingerprints are 32-byte digests.

    The bytes of an id after the first 32 name the tenant, so a store may keep the records of each tenant apart.

    A completed record is kept until its `fresh_until`, or until its room is needed: then the oldest go first, those of a tenant
    with more than `TENANTS_SHARE` before all others. No method raises: a store that cannot write logs so once, and answers as
    if it were empty.
    """

    def claim(self, record: bytes, fingerprint: bytes, lease_s: float) -> Later[Claim]:
        """Takes the record if it is free, or its lease has ended."""
        ...

    def renew(self, record: bytes, fence: int, lease_s: float) -> Later[bool]:
        """Extends the lease; False: another caller has taken the record, or it is complete."""
        ...

    def complete(self, record: bytes, fence: int, kept: Kept) -> Later[bool]:
        """Stores the answer, which from then on survives whatever the store survives. False: as with `renew`."""
        ...

    def release(self, record: bytes, fence: int) -> Later[None]:
        """Frees the record, because no answer came that could be given again: the next caller runs."""
        ...


class Answers(Protocol):
    """Answers by exact key, bounded by bytes per group; the least recently used go first. No method raises."""

    def get(self, key: bytes, group: str) -> Later[Kept | None]:
        """Returns the answer if there is one that is not past its `stale_until`."""
        ...

    def put(self, key: bytes, kept: Kept) -> Later[None]:
        """Stores the answer in place of an older one."""
        ...

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """Forgets all answers that match every argument given, or all of them without arguments; returns their number."""
        ...


@dataclass(frozen=True, slots=True)
class VectorRow:
    """One question that can be recognised by its meaning. `stored_at` and `expires_at` are wall-clock seconds."""

    id: bytes
    """The exact key of its answer, 32 bytes."""
    partition: bytes
    """The digest of all that must match exactly, 32 bytes."""
    vector: bytes
    """The vector in the index's compact form."""
    facts: bytes
    """The facts of the question that the guards compare."""
    model: str
    tenant: str
    stored_at: float
    expires_at: float


class Vectors(Protocol):
    """The rows of a semantic index that outlive the process. No method raises."""

    def add(self, row: VectorRow) -> Later[None]:
        """Stores the row in place of one with its id in its partition."""
        ...

    def load(self, partition: bytes, most: int) -> Later[Sequence[VectorRow]]:
        """Returns the rows of a partition that have not expired: the newest `most` of them, oldest first."""
        ...

    def remove(self, partition: bytes, ids: Sequence[bytes]) -> Later[None]: ...

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """Forgets rows as `Answers.forget` does; the key is the row's id."""
        ...


class Objects(Protocol):
    """The owners of objects at providers, by digests of 16 bytes; the least recently used go when there are too many.

    No method raises. A result of None means that the owners are unknown now; the caller must not take it for "no owner".
    """

    lost: int
    """The objects dropped for want of room since the start."""

    @property
    def entries(self) -> int:
        """The number of objects, as last known."""
        ...

    def own(self, objects: Sequence[bytes], tenant: str) -> Later[Sequence[str] | None]:
        """Gives the objects that have no owner to the tenant; returns the owner of each after that.

        The result, once there, survives whatever the store survives; an unreachable store is told later.
        """
        ...

    def owners(self, objects: Sequence[bytes]) -> Later[Sequence[str | None] | None]:
        """Returns the owner of each object; None in the list: it has none."""
        ...

    def disown(self, objects: Sequence[bytes]) -> Later[bool]:
        """Takes the objects' owners away. False: that could not be done."""
        ...


class Store(Protocol):
    """All state that outlives a call. `memory` is the default; `sqlite` survives a restart."""

    records: Records
    answers: Answers
    vectors: Vectors
    objects: Objects
    is_local: bool
    """The store is this process's own: its methods answer at once, and a claim needs no renewal."""

    def configure(self, bounds: StoreBounds) -> None:
        """Applies the bounds from now on."""
        ...

    def tick(self) -> None:
        """Forgets some of what has expired, in a short time; called about once a second."""
        ...

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Returns entries and bytes: `{"answers": {"entries": …, "bytes": …}, "records": …, "vectors": …}`.

        For records also `early`: the number dropped before their time for want of room, since the start.
        """
        ...

    async def aclose(self) -> None:
        """Writes all that the store has taken, and takes nothing more."""
        ...


TENANTS_SHARE = 0.75
"""The part of the room for idempotency records that one tenant may fill while other tenants have records."""


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
