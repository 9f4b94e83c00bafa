"""What the core asks of the outside: small protocols, implemented at the edges and wired together in `app.py`.

Nothing here knows httpx, prometheus or a store; whoever implements a port translates its own errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from gateway.call import Settled
from gateway.policy.fleet.lease import LeaseAsk, LeaseReply
from gateway.policy.snapshot import StoreBounds
from gateway.words import Kept

T = TypeVar("T")
Later: TypeAlias = T | asyncio.Future[T]
"""A store's answer: there at once where the store is this process's own memory, else a future of the running loop."""


class Meter(Protocol):
    """Where numbers go. Every method is cheap, synchronous and never raises."""

    def began(self) -> None:
        """A call is in the gateway; `settled` follows in any case."""
        ...

    def waited(self, lane: str, seconds: float) -> None:
        """A call has left the delay queue, whichever way."""
        ...

    def settled(self, record: Settled) -> None:
        """One call has ended: counts, tokens, money, times and its log line."""
        ...

    def retry_denied(self, reason: str) -> None:
        """An attempt that would have been made was not: `budget`, `tokens`, `money` or `key_budget`."""
        ...

    def breaker_changed(self, name: str, state: str) -> None:
        """The breaker of a target or an account has moved."""
        ...

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        """A request was turned away before it became a call: no such path, no valid key, a malformed body."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """What a store says to someone who wants to be the one that runs a request with an idempotency key."""

    state: Literal["claimed", "running", "done", "mismatch"]
    """`claimed`: it is yours, until the lease ends. `mismatch`: the key was used for another request."""
    fence: int = 0
    """Of `claimed`: to be shown by whoever renews or completes it; higher than that of every earlier claim of this key."""
    kept: Kept | None = None
    """Of `done`."""
    lease_left_s: float = 0.0
    """Of `running`: when another may claim it, unless it is renewed."""


class Records(Protocol):
    """Idempotency records: who runs a request, and what came of it. Ids and fingerprints are 32-byte digests.

    What an id has behind its first 32 bytes names the tenant: a store may keep the records of each in a place of its own.

    A completed record is kept until its `fresh_until`, or until there is no room for it: then the oldest go, of a tenant who
    has more than `TENANTS_SHARE` before of others. No method raises: a store that
    cannot write says so once in the log, and answers as if it were empty.
    """

    def claim(self, record: bytes, fingerprint: bytes, lease_s: float) -> Later[Claim]:
        """Take the record if it is free, or its lease has ended."""
        ...

    def renew(self, record: bytes, fence: int, lease_s: float) -> Later[bool]:
        """False: somebody else has it by now, or it is complete."""
        ...

    def complete(self, record: bytes, fence: int, kept: Kept) -> Later[bool]:
        """Keep what came of it; when this is done, it survives whatever the store survives. False: as with `renew`."""
        ...

    def release(self, record: bytes, fence: int) -> Later[None]:
        """Nothing came of it that could be given again: the next caller runs."""
        ...


class Answers(Protocol):
    """Answers by exact key, bounded by bytes per group; the least recently used go first. No method raises."""

    def get(self, key: bytes, group: str) -> Later[Kept | None]:
        """What is kept and not past its `stale_until`."""
        ...

    def put(self, key: bytes, kept: Kept) -> Later[None]:
        """Keep it, instead of what was there."""
        ...

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """Forget whatever matches all that is given, everything when nothing is; returns how many there were."""
        ...


@dataclass(frozen=True, slots=True)
class VectorRow:
    """One question that can be recognised by its meaning. `stored_at` and `expires_at` are wall-clock seconds."""

    id: bytes
    """The exact key of its answer, 32 bytes."""
    partition: bytes
    """32 bytes: all that must match exactly."""
    vector: bytes
    """Compact, as the index made it."""
    facts: bytes
    """What the guards have to know of the question."""
    model: str
    tenant: str
    stored_at: float
    expires_at: float


class Vectors(Protocol):
    """The rows of the semantic index, where they outlive the process. No method raises."""

    def add(self, row: VectorRow) -> Later[None]:
        """Keep it, instead of one with its id in its partition."""
        ...

    def load(self, partition: bytes, most: int) -> Later[Sequence[VectorRow]]:
        """The rows of a partition that have not expired, the newest `most` of them, oldest first."""
        ...

    def remove(self, partition: bytes, ids: Sequence[bytes]) -> Later[None]: ...

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """As that of the answers; the key is the row's id."""
        ...


class Objects(Protocol):
    """Whose the objects at providers are, by digests of 16 bytes; those not used for longest go when there are too many.

    No method raises. None for an answer: it cannot be said now, and who asks must not take it for "nobody's".
    """

    lost: int
    """How many have gone for want of room, since the start."""

    @property
    def entries(self) -> int:
        """How many there are, as last known."""
        ...

    def own(self, objects: Sequence[bytes], tenant: str) -> Later[Sequence[str] | None]:
        """They are this tenant's from now on, unless they are somebody's; whose each is then.

        When this is done, it survives whatever the store survives; where the store is out of reach, it is told later.
        """
        ...

    def owners(self, objects: Sequence[bytes]) -> Later[Sequence[str | None] | None]:
        """Whose each is; None in the list: nobody's."""
        ...

    def disown(self, objects: Sequence[bytes]) -> Later[bool]:
        """They are nobody's any more. False: that could not be done."""
        ...


class Store(Protocol):
    """All that outlives a call. `memory` is the default; `sqlite` survives a restart."""

    records: Records
    answers: Answers
    vectors: Vectors
    objects: Objects
    is_local: bool
    """Its methods answer at once, and nothing of it is shared: who runs here need not renew a lease."""

    def configure(self, bounds: StoreBounds) -> None:
        """Keep to these from now on."""
        ...

    def tick(self) -> None:
        """Called about once a second: forgets some of what has expired, never for long."""
        ...

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Entries and bytes: `{"answers": {"entries": …, "bytes": …}, "records": …, "vectors": …}`.

        Of records also `early`: how many went before their time for want of room, since the start.
        """
        ...

    async def aclose(self) -> None:
        """Everything taken so far is kept; nothing more is."""
        ...


TENANTS_SHARE = 0.75
"""Of the room for idempotency records: where others have some, one tenant's keep to it."""


class Leases(Protocol):
    """Limits that replicas share: the store counts them, and each replica holds a part that it may use without asking."""

    @property
    def replicas(self) -> int:
        """How many there are, as last known; at least 1."""
        ...

    def ask(self, asks: Sequence[LeaseAsk]) -> asyncio.Future[Sequence[LeaseReply | None]]:
        """One round trip for all of them; None: there was no answer to this one. Never raises."""
        ...

    def leave(self) -> Later[None]:
        """This replica ends: it is counted no more. What it holds has to be given back before."""
        ...


class NewsItem(NamedTuple):
    """Something that one replica has learned and all should know."""

    kind: Literal["pause", "quota", "breaker", "hand", "limit", "vector", "purge", "record"]
    name: str
    """Of the gate, account or limit that it is about."""
    left_s: float
    """How long it holds from the moment it is heard; replicas' clocks need not agree. 0.0: it is over, or lasts no time."""
    detail: bytes = b""


class News(Protocol):
    """What replicas tell each other. No method raises or waits; without the store nobody hears anything."""

    def listen(self, heard: Callable[[NewsItem], None]) -> None:
        """From now on `heard` is called in the loop's thread with what others tell, and first with what still holds."""
        ...

    def tell(self, item: NewsItem, *, lasts: bool = False) -> None:
        """Tell all others. `lasts`: also those who come within its `left_s`; of the same kind and name the latest end wins.

        With nothing left, what lasted of this kind and name is over.
        """
        ...

    def take_slot(self, name: str, for_s: float) -> Later[bool]:
        """Whether this replica is now the one of all that has the slot; it is free again after `for_s`, or when given back.

        True where the store cannot say: every replica for itself, then.
        """
        ...

    def give_slot(self, name: str) -> None:
        """It is free for others."""
        ...


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """How a shared store is doing, for `/readyz` and the metrics."""

    is_up: bool
    since: float
    """Wall clock seconds."""
    reason: str
    """Why it is not, or what it is."""
    replicas: int
    operations: int
    """Round trips asked for, since the start."""
    failures: int
    is_deaf: bool = False
    """It is up, but what other replicas tell cannot be heard."""


class SharedStore(Store, Protocol):
    """A store that replicas share."""

    leases: Leases
    news: News

    def on_change(self, changed: Callable[[bool], None]) -> None:
        """`changed(is_up)` is called, in the loop's thread, when the store goes out of reach and when it is back."""
        ...

    def health(self) -> StoreHealth: ...
    async def start(self) -> None:
        """Connect; returns soon whether or not there is anybody, and goes on trying."""
        ...
