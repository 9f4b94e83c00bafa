"""Opens the store that the config names: the default one, in memory, stands here; the client of another is loaded with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gateway.core.clock import Clock
from gateway.core.metrics import Counts, Levels, MetricTable
from gateway.core.ports import PeerBus, StoreHealth
from gateway.core.snapshot import PolicySnapshot
from gateway.core.types import StoreBounds
from gateway.features.ownership.memory import MemoryObjects
from gateway.features.ownership.store import Objects
from gateway.features.reuse.memory import MemoryAnswers, MemoryRecords
from gateway.features.reuse.store import Answers, Records, ReuseStore
from gateway.features.runs.store import RunStore
from gateway.features.semantic.store import VectorRow, Vectors
from gateway.fleet.leases import Leases

if TYPE_CHECKING:
    from gateway.drivers.sqlite_store import SqliteStore

# --- what a store is ---


class Store(ReuseStore, Protocol):
    """All state that outlives a call. `memory` is the default; `sqlite` survives a restart."""

    vectors: Vectors
    objects: Objects

    def configure(self, bounds: StoreBounds) -> None:
        """Applies the bounds from now on."""
        ...

    def tick(self) -> None:
        """Forgets some of what has expired, in a short time; called about once a second."""
        ...

    async def aclose(self) -> None:
        """Writes all that the store has taken, and takes nothing more."""
        ...


# --- the default store, in this process's memory: it answers at once, and ends with the process ---


class MemoryVectors:
    """Implements `gateway.features.semantic.store.Vectors` without keeping anything: the index itself has the rows."""

    __slots__ = ()

    def add(self, row: VectorRow) -> None:
        """Does nothing: the index has the row."""

    def load(self, partition: bytes, most: int) -> Sequence[VectorRow]:
        """Returns no rows: a new process begins with an empty index."""
        return ()

    def remove(self, partition: bytes, ids: Sequence[bytes]) -> None:
        """Does nothing."""

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Returns 0: no rows are kept here."""
        return 0


class MemoryStore:
    """Implements `Store`; `wall` returns seconds since the epoch.

    Each of its parts has a bound of its own.
    """

    __slots__ = ("_answers", "_objects", "_records", "answers", "is_local", "objects", "records", "vectors")

    def __init__(self, bounds: StoreBounds, wall: Callable[[], float]) -> None:
        self._records = MemoryRecords(bounds.records, wall)
        self._answers = MemoryAnswers(wall)
        self._answers.configure(bounds.answers)
        self.records: Records = self._records
        self.answers: Answers = self._answers
        self.vectors: Vectors = MemoryVectors()
        self._objects = MemoryObjects(bounds.objects)
        self.objects: Objects = self._objects
        self.is_local = True

    def configure(self, bounds: StoreBounds) -> None:
        """Sets new bounds; entries above a lowered bound are evicted step by step, with every `tick` and every new entry."""
        self._answers.configure(bounds.answers)
        self._records.configure(bounds.records)
        self._objects.configure(bounds.objects)

    def tick(self) -> None:
        """Is called about once a second: drops some expired entries, in bounded time."""
        self._answers.tick()
        self._records.tick()

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Returns, for each part, its entries and the bytes of memory that they take."""
        return {
            "answers": self._answers.stats(),
            "records": self._records.stats(),
            "vectors": {"entries": 0, "bytes": 0},
        }

    async def aclose(self) -> None:
        """Does nothing: the store ends with the process."""


# --- the store that the config names ---


class SharedStore(Store, Protocol):
    """A store that replicas share."""

    leases: Leases
    news: PeerBus
    runs: RunStore

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


SWITCH_S = 0.0005
"""A busy event loop lets the store's thread in after so long; with Python's own 5 ms each of its steps would take that."""


class OpenedStore(NamedTuple):
    """The store of a process."""

    store: Store
    shared: SharedStore | None = None
    """The same store where replicas share it."""
    sqlite: SqliteStore | None = None
    """The same store where it is a file."""


def open_store(policy: PolicySnapshot, path: str | None, clock: Clock) -> OpenedStore:
    """Returns the store of the policy; `path` is that of a SQLite file. Raises StoreUnusable."""
    wall = clock.wall
    if policy.shared is not None:
        from gateway.drivers.redis_store import RedisStore  # a process without replicas does not load the client

        shared = RedisStore(policy.shared, wall, policy.store)
        return OpenedStore(shared, shared)
    if path is None:
        return OpenedStore(MemoryStore(policy.store, wall))
    from gateway.drivers.sqlite_store import SqliteStore  # a process without a file does not load it

    sys.setswitchinterval(SWITCH_S)
    sqlite = SqliteStore(path, wall, policy.store, ahead=lambda: clock.ahead_s)
    return OpenedStore(sqlite, sqlite=sqlite)
