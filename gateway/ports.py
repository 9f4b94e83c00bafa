"""What the core asks of the outside: small protocols, implemented at the edges and wired together in `app.py`.

Nothing here knows httpx, prometheus or a store; whoever implements a port translates its own errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from gateway.errors import UpstreamFailed
from gateway.splice import Spliced

if TYPE_CHECKING:
    from gateway.call import Call, Kept, Settled

T = TypeVar("T")
Later: TypeAlias = T | asyncio.Future[T]
"""A store's answer: there at once where the store is this process's own memory, else a future of the running loop."""

RawHeaders = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Clocks:
    """The time limits of one attempt, in seconds: connecting, writing, first byte, between bytes, all of it.

    And the guard against streams that drip: one that has begun has to bring `least_events_per_s` over every window.
    """

    connect_s: float
    write_s: float
    first_byte_s: float
    idle_s: float
    total_s: float
    least_events_per_s: float = 0.0
    """0: no guard."""
    drip_window_s: float = 60.0
    first_event_s: float | None = None
    """Until the first event of a stream; None: by what is usual at the target."""
    suspect_factor: float = 4.0
    """Several calls without a sign of life for so many times what is usual make their target suspect ..."""
    suspect_in_flight: int = 5
    """... where there are so many; 0: it never is."""


class Signs(Protocol):
    """Where signs of life are noted."""

    sign_at: float
    """Monotonic seconds."""


@dataclass(slots=True)
class Outgoing:
    """One request for a target, before the target's own address, credential and dialect are put on it.

    `path` is the OpenAI path below the base URL (`/chat/completions`), `query` what the client sent after `?`;
    `credential` is the caller's own `Authorization` value, used only where the provider has none configured.
    """

    method: str
    path: str
    query: bytes
    model: str
    headers: RawHeaders
    body: bytes | Spliced
    credential: bytes | None
    clocks: Clocks
    first_byte_s: float
    """The clock's, or less when the caller's deadline is nearer."""
    signs: Signs | None = None
    """Who wants to know when something comes before the head is complete."""


class Answer(Protocol):
    """A provider's answer: the head is here, the body is still to be read."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> RawHeaders:
        """Names in lower case."""
        ...

    @property
    def whole(self) -> bytes | None:
        """The body, when all of it came with the head: then there is nothing to read, and nothing to close."""
        ...

    @property
    def chunks(self) -> AsyncIterator[bytes]:
        """The body, to be read once."""
        ...

    def unpack(self, codings: bytes) -> None:
        """Take the `content-encoding` off: the body is then to be read from `chunks`. Raises one of the upstream's errors."""
        ...

    async def aclose(self) -> None:
        """Give the connection back, or close it when the body was not read to its end."""
        ...


class Upstream(Protocol):
    """One target's wire. Reading an answer may raise any of `errors`; `failure` says what such a one means."""

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...
    async def send(self, outgoing: Outgoing) -> Answer:
        """Raises UpstreamFailed when no response head arrives."""
        ...

    def failure(self, error: Exception) -> UpstreamFailed: ...


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


class EmbeddingFailed(Exception):
    """There are no embeddings to be had at present; the message says why, for the log."""


class EmbeddingDenied(EmbeddingFailed):
    """This caller gets none: its own limit, budget or credential is in the way, and says nothing of the model."""


class Embedder(Protocol):
    """Makes a vector of a text, so that texts that mean the same get vectors of nearly the same direction."""

    async def embed(self, text: str, call: Call) -> Sequence[float] | None:
        """The text's vector, of any length but zero, made on behalf of a call; None: this text has none.

        Raises EmbeddingFailed.
        """
        ...


class Near(NamedTuple):
    """A row that a search has found. Its own vector is left out; `similarity` is the cosine, at most 1."""

    row: VectorRow
    similarity: float


class Neighbourhood(Protocol):
    """The rows of one partition, ready to be searched. All of one model and one tenant."""

    def __len__(self) -> int: ...
    def search(self, vector: bytes, threshold: float, most: int, now_wall: float) -> list[Near]:
        """Who is at least so near and not past its time, the nearest first. In any thread, while rows come and go."""
        ...


class Index(Protocol):
    """The partitions that are in memory, bounded by bytes: those not used for longest go first.

    All but `pack` and `build` belong to the event loop's thread, and take microseconds.
    """

    def pack(self, vector: Sequence[float]) -> bytes:
        """The direction of a vector, compact. Raises ValueError when it has none."""
        ...

    def build(self, rows: Sequence[VectorRow], most: int) -> Neighbourhood:
        """A partition of the last `most` of these, in any thread: many take long."""
        ...

    def put(self, partition: bytes, built: Neighbourhood) -> None: ...
    def get(self, partition: bytes) -> Neighbourhood | None:
        """None: it is not in memory."""
        ...

    def add(self, row: VectorRow, most: int) -> None:
        """To its partition, if that is in memory, instead of one with its id; where there are `most`, the oldest goes."""
        ...

    def remove(self, partition: bytes, id: bytes) -> None: ...
    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """As that of the store."""
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


@dataclass(frozen=True, slots=True)
class StoreBounds:
    """How much a store may keep, in bytes of what it takes in memory or on disk."""

    answers: Mapping[str, int]
    """By group; a group that is not named keeps nothing."""
    records: int
    vectors: int = 50_000
    """Rows per partition."""
    objects: int = 1_000_000
    """Of which it is remembered whose they are."""


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
LimitKind = Literal["bucket", "window", "slots"]
"""What refills all the time, what starts anew, what is held and given back."""


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """What a replica tells of its part of one shared limit, and what it asks for. Amounts are in the limit's own unit.

    The counts go on for as long as the replica lives, so that an ask that is told twice, or whose answer is lost, changes
    nothing: what the replica holds is always `granted - used - given`; below 0 it has used more than it had.
    """

    name: str
    """Of the limit, the same on every replica: its owner's name and its own."""
    kind: LimitKind
    rate_per_s: float
    """Of a bucket."""
    capacity: float
    window_s: float
    """Of a window; else 0."""
    granted: float
    """All that this replica was ever granted, as far as it knows."""
    used: float
    """All that its calls ever took, settled, less what flowed into parts of its own; of slots always 0, they are held."""
    given: float
    """All that it ever gave back unused."""
    want: float
    """What it could use soon, over and above what it holds; 0: nothing."""
    first: float
    """The least of that which is of any use: what the call whose turn it is still lacks."""
    keep: float = 0.0
    """So much has to be left over in the whole limit by what is granted: calls of lower lanes leave room."""
    ceiling: float = float("inf")
    """No more than this can be free in all, by the provider's own word."""
    window: int = 0
    """The number of the window that the counts are of."""
    known: float = -1.0
    """The common level as this replica reckons it, for a store that has lost its own; below 0: it never knew one."""
    away_s: float = 0.0
    """So long this replica has lived on a part of its own because the store was out of reach; 0.0: it has not."""
    away_rate_per_s: float = 0.0
    """What flowed into that part meanwhile."""
    charged: float = 0.0
    """All that it ever took of the rest when the store was out of reach: of what nobody held, or of a window that began
    meanwhile."""
    charged_before: float = 0.0
    """The same, when the store last answered."""
    incarnation: int = 0
    """Counts that begin anew are those of another replica, as far as the store is concerned."""
    lag_s: float = 0.0
    """A full bucket begins to refill so much after it was used: whoever else counts hears of the first call late."""


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """What the store says to one ask."""

    granted: float
    """All that this replica was ever granted, by the store's count."""
    level: float
    """What nobody holds."""
    wanting: int
    """How many replicas want more than they were given, this one among them if it does."""
    retry_s: float
    """When to ask again at the earliest, if something was wanted and not given."""
    window: int = 0
    ends_in_s: float = 0.0
    """Of a window: until it starts anew."""
    most: float = float("inf")
    """Of slots, while somebody waits for one: who holds more than this gives back those that come free."""


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
