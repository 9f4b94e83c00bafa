"""What the process as a whole takes: its edge, its delay queue, its store. Part of the compiled policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.core.types.words import Lane


@dataclass(frozen=True, slots=True)
class Server:
    """Facts of the edge that a reload may change; host and port are fixed at start."""

    host: str = "127.0.0.1"
    port: int = 8080
    max_body_bytes: int = 20_000_000
    max_json_values: int = 1_000_000
    """Of one body: objects, lists, strings, numbers and the like, at any depth."""
    small_body_bytes: int = 262_144
    """Bodies up to here have fewer values in any case, and are parsed at once."""
    body_timeout_s: float = 60.0
    grace_s: float = 30.0
    notice_s: float = 0.0
    """Before the grace: not ready any more, but calls are still taken."""
    admin_listen: tuple[str, int] | None = None
    admin_digest: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """What the delay queue as a whole may hold, and when the gateway sheds load, from `queue.yaml`'s `default`."""

    max_calls: int = 20_000
    max_bytes: int = 512 * 1024 * 1024
    max_percent_per_tenant: float = 75.0
    """Of both, where several tenants hold something."""
    age_after_s: Mapping[Lane, float] = field(default_factory=lambda: {"batch": 60.0, "background": 600.0})
    """A call that has waited so long in a lower lane gets a share of `aged_percent` of the grants, whoever is above it."""
    aged_percent: float = 5.0
    shed_memory_bytes: int | None = None
    """Resident memory above which the lowest lanes are shed; None: four fifths of the container's, if that is limited."""
    shed_loop_lag_s: float = 0.5


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
