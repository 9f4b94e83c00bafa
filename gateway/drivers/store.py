"""What a store keeps for calls, as ports: records of who runs a request, and their claims; answers; and the store of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from gateway.core.clock import Clock, Timer
from gateway.core.metrics import Counts, Levels, MetricTable
from gateway.core.ports import STORE_S, Later, PeerBus, StoreHealth
from gateway.core.snapshot import Setting
from gateway.core.types import Kept, StoreBounds
from gateway.fleet.leases import Leases

TENANTS_SHARE = 0.75
"""The part of the room for idempotency records that one tenant may fill while other tenants have records."""


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


# --- the claim of a record, renewed while its holder works ---

POLL_S, LONGEST_POLL_S = 0.05, 1.0
"""A call whose record another process holds asks again after POLL_S, and then less and less often."""
LEASE_S: Final[Setting[float]] = Setting("lease of records", 30.0)
"""The seconds within which a model's call that holds a record renews its claim; after that another call may take it over."""


@dataclass(slots=True, kw_only=True)
class RecordToClaim:
    """The record that a call claims."""

    record: bytes = b""
    fingerprint: bytes = b""
    lease_s: float
    fence: int = 0
    """The token of the claimed record; 0: none is claimed."""


class RecordClaim:
    """The claim of a record, renewed until `end`."""

    __slots__ = ("_claim", "_clock", "_records", "_timer")

    def __init__(self, clock: Clock, records: Records, claim: RecordToClaim) -> None:
        self._clock = clock
        self._records = records
        self._claim = claim
        self._timer = self._set()

    def end(self) -> None:
        """Stops renewing the claim."""
        self._timer.cancel()

    def _set(self) -> Timer:
        return self._clock.call_at(self._clock.monotonic() + self._claim.lease_s / 3, self._renew)

    def _renew(self) -> None:
        claim = self._claim
        if claim.fence:
            self._records.renew(claim.record, claim.fence, claim.lease_s)
            self._timer = self._set()


async def claimed(records: Records, ask: RecordToClaim) -> Claim:
    """Returns the store's reply to a claim; if there is none in time, the call runs without a claim.

    A claim that is granted too late is given back: it would lock its key until the lease ends.
    """
    answer = records.claim(ask.record, ask.fingerprint, ask.lease_s)
    if not isinstance(answer, asyncio.Future):
        return answer
    claim: Claim | None = None
    try:
        await asyncio.wait((answer,), timeout=STORE_S)
        if answer.done():
            claim = answer.result()
    finally:
        if claim is None:
            answer.add_done_callback(lambda late: _give_back(records, ask.record, late.result()))
    return claim or Claim("claimed")


def _give_back(records: Records, record: bytes, claim: Claim) -> None:
    if claim.fence:
        records.release(record, claim.fence)


# --- answers, and the store of both ---


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


class Store(Protocol):
    """All state that outlives a call. `memory` is the default; `sqlite` survives a restart.

    What a product keeps there besides stands beside it, in the product's own folder.
    """

    records: Records
    answers: Answers
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


# --- a store that replicas share ---


class SharedStore(Store, Protocol):
    """A store that replicas share."""

    leases: Leases
    news: PeerBus

    def on_change(self, changed: Callable[[bool], None]) -> None:
        """Registers `changed(is_up)`, called in the loop's thread when the store goes out of reach and when it is back."""
        ...

    def health(self) -> StoreHealth: ...
    async def start(self) -> None:
        """Connects; returns soon even if the store is out of reach, and goes on trying."""
        ...


class SharedStoreMetrics(MetricTable):
    """The metrics of a store that replicas share; without one there are no numbers."""

    def __init__(self) -> None:
        self.state_up = Levels("state_up", "Whether the store that replicas share can be reached.")
        self.state_deaf = Levels("state_deaf", "Whether it can be reached, but what other replicas tell is not heard.")
        self.replicas = Levels("replicas", "Gateways that share it, as last known.")
        self.state_operations = Counts("state_operations_total", "Round trips to the shared store that were asked for.")
        self.state_failures = Counts("state_failures_total", "Those that brought no answer in time.")
        self.state_changes = Counts("state_changes_total", "How often the shared store went and came back.", "to")

    def changed(self, is_up: bool) -> None:
        """Counts that the store has gone out of reach, or is back."""
        self.state_changes.totals["up" if is_up else "gone",] += 1

    def set_state(self, health: StoreHealth) -> None:
        """Sets how the store is now."""
        self.state_up.values[()] = float(health.is_up)
        self.state_deaf.values[()] = float(health.is_deaf)
        self.replicas.values[()] = health.replicas
        self.state_operations.totals[()] = health.operations
        self.state_failures.totals[()] = health.failures
        for to in ("up", "gone"):
            self.state_changes.totals.setdefault((to,), 0.0)
