"""The Redis that replicas share, as the config names it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SharedState:
    """The Redis that replicas share; fixed at start."""

    url: str = field(repr=False)
    """`redis://`, `rediss://`, `redis+sentinel://host:port,host:port/service/db` or `redis+cluster://host:port,host:port`."""
    namespace: str = "gateway"
    """Before every key: gateways of the same namespace are replicas of each other."""
    timeout_s: float = 0.05
    """Of one operation; no call waits longer, nor twice."""
    connections: int = 4
    """To each server, besides the one that hears news."""
    replicas: int = 1
    """So many there are at least, as long as the store has not said how many."""
    ca_file: str | None = None
