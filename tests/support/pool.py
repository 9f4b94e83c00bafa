"""The store of leases, as its model has it (`tests/fleet/lease_model.py`), behind a constructor that says what a limit is."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.limits.limit_table import LimitKind
from gateway.fleet.lease import LeaseAsk, LeaseReply
from tests.fleet.lease_model import LeaseModel, Replica


@dataclass
class Pool:
    """One limit, and what replicas hold of it."""

    capacity: float
    rate_per_s: float = 0.0
    window_s: float = 0.0
    at: float = 0.0
    level_at_first: float | None = None
    model: LeaseModel | None = None

    def ask(self, replica: str, ask: LeaseAsk, now: float) -> LeaseReply:
        """Counts what was used, and grants what there is."""
        if self.model is None:
            self.model = LeaseModel.new(min(self.at or now, now), ask)
            if self.level_at_first is not None:
                self.model.level = self.level_at_first
        return self.model.ask(now, replica.encode(), ask)

    @property
    def kind(self) -> LimitKind:
        """By its shape."""
        return "window" if self.window_s else "bucket" if self.rate_per_s else "slots"

    @property
    def level(self) -> float:
        """What nobody holds."""
        return self.capacity if self.model is None else self.model.level

    @level.setter
    def level(self, level: float) -> None:
        if self.model is None:
            self.level_at_first = level
        else:
            self.model.level = level

    @property
    def lent(self) -> float:
        """What replicas hold, as far as they have told."""
        return sum(one.lent for one in self.replicas.values())

    @property
    def replicas(self) -> dict[str, Replica]:
        """Those that it knows of."""
        return {} if self.model is None else {one.id.decode(): one for one in self.model.replicas}
