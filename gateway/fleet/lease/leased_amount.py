"""Keeps one replica's account of a shared limit: the amounts it was granted, has used and gives back, and asks for next.

The store has the one true level; a replica leases what its calls are likely to need in the next moments, tells in the same
breath what they have used, and gives back what lies idle. It must not know stores, queues, who waits, nor how calls count.
Invariants: what is told to the store twice counts once; it is asked for once per round.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import floor, inf
from typing import Any

from gateway.fleet.lease.lease import Demand, LeaseAsk, LeaseReply, LimitKind, StoreView
from gateway.fleet.parts.shared_sum import LocalShare

LOW = 0.5
"""The share of what is held ahead below which more is asked for."""
SPREAD = 8
"""The divisor of the limit that bounds what is asked at a time for waiting calls: another limit may hold them up."""
REPORT_S = 0.2
"""Seconds after which the store hears what was used, or is not wanted any more; until then a full limit does not refill."""
REFRESH_S = 1.0
"""Seconds between two reports of what is held; the store forgets a replica that is silent for five times that."""
FORGOTTEN_S = 6.0
"""Seconds, a little more than those after which the store forgets a replica (`SILENT_S` of `drivers/redis/lua/lease.lua`)."""


class LeaseState(Enum):
    """The state of a share towards the store."""

    QUIET = "quiet"
    """It lives on what it holds, and there is nothing to ask."""
    NEEDED = "needed"
    """More is needed: the next round asks."""
    ASKED = "asked"
    """An ask is under way."""
    LOCAL = "local"
    """The store is out of reach: it lives on a part of its own."""
    CLOSED = "closed"
    """The store is out of reach, and nothing goes until it is back."""


class LeasedAmount:
    """Keeps one replica's account with the store of one limit; amounts are in the limit's own unit."""

    __slots__ = (
        "__weakref__",
        "_away_rate_per_s",
        "_away_s",
        "_ceiling",
        "_ceiling_at",
        "_charged",
        "_charged_before",
        "_charged_sent",
        "_demand",
        "_given",
        "_granted",
        "_held",
        "_in_use",
        "_is_unmet",
        "_is_whole",
        "_keep",
        "_lack",
        "_lack_sent",
        "_low",
        "_own",
        "_replicas",
        "_sent_at",
        "_store",
        "_wake",
        "capacity",
        "fails_closed",
        "incarnation",
        "kind",
        "lag_s",
        "name",
        "owner",
        "part",
        "rate_per_s",
        "retry_at",
        "state",
        "window_s",
    )

    def __init__(
        self,
        owner: str,
        name: str,
        part: int,
        kind: LimitKind,
        rate_per_s: float,
        capacity: float,
        now: float,
        *,
        window_s: float = 0.0,
        lag_s: float = 0.0,
        is_whole: bool,
        wake: Callable[[Any], None],
        fails_closed: bool = False,
        incarnation: int = 0,
    ) -> None:
        """`wake` is called, once for each ask, when it needs more; `part` is the part of a call's cost that it counts."""
        self.owner = owner
        self.name = name
        self.part = part
        self.kind = kind
        self.rate_per_s = rate_per_s
        self.capacity = capacity
        self.window_s = window_s
        self.lag_s = lag_s
        self.incarnation = incarnation
        self.state = LeaseState.QUIET
        self.retry_at = -inf
        """The time before which there is no use in asking (monotonic seconds)."""
        self._is_whole = is_whole
        self._wake = wake
        self.fails_closed = fails_closed
        """True if nothing goes while the store is out of reach; changed by `fail_closed` only."""
        self._held = 0.0
        self._granted = 0.0
        self._given = 0.0
        self._in_use = 0.0  # of slots
        self._store = StoreView(kind)
        self._own: LocalShare | None = None  # exactly while it is `LOCAL`
        self._replicas = 1  # as told when it began to be on its own
        self._lack_sent = 0.0
        self._lack = 0.0  # the most that a call asked for and did not get
        self._keep = 0.0
        self._ceiling = inf
        self._ceiling_at = now
        self._low = 0.0
        self._demand = Demand(now)
        self._sent_at = now
        self._is_unmet = False  # more was wanted than there was
        self._away_s = 0.0
        self._away_rate_per_s = 0.0
        self._charged = self._charged_sent = self._charged_before = 0.0

    @property
    def is_asked(self) -> bool:
        """Returns whether an ask is under way."""
        return self.state is LeaseState.ASKED

    @property
    def needs_refill(self) -> bool:
        """Returns whether the next round has to ask for more."""
        return self.state is LeaseState.NEEDED

    @property
    def is_alone(self) -> bool:
        """Returns whether the store is out of reach, so that it lives on a local share, or on nothing."""
        return self.state is LeaseState.LOCAL or self.state is LeaseState.CLOSED

    @property
    def is_heard(self) -> bool:
        """Returns whether the store has answered, and is within reach."""
        return self._store.is_known and not self.is_alone

    def ask(self, now: float, waiting: float) -> LeaseAsk:
        """Returns the message to the store, and begins an ask; `waiting` is what all calls that wait here would take."""
        self._expire(now)
        if not self.is_alone:
            self.state = LeaseState.ASKED
        held = self._held
        used = self._granted - self._given - held - self._in_use
        self._sent_at = now
        self._demand.observe(None if self.kind == "slots" else used, now)
        # A window must not begin without a call.
        ahead = self._demand.ahead(self.capacity, now, is_whole=self._is_whole, keeps_warm=self.kind != "window")
        if not waiting:  # the calls that lacked something have gone
            self._lack = self._keep = 0.0
        if 0 < held < self._lack and self.kind != "slots":
            # Of no use to its next call: several replicas could hold such parts for ever.
            self._given += held
            self._held = held = 0.0
        first = max(0.0, self._lack - held)
        queued = min(waiting, max(self._lack, ahead, self.capacity / SPREAD))
        want = max(first, queued + ahead - held, 0.0)
        if want <= 0 and held > ahead and (held > 2 * ahead or now - self._demand.used_at > REFRESH_S):
            spare = held - ahead
            spare = float(floor(spare)) if self._is_whole else spare
            self._given += spare
            self._held = held - spare
        self._low = ahead * LOW
        ask = LeaseAsk(
            name=f"{self.owner}|{self.name}",
            kind=self.kind,
            rate_per_s=self.rate_per_s,
            capacity=self.capacity,
            window_s=self.window_s,
            granted=self._granted,
            used=0.0 if self.kind == "slots" else used,
            given=self._given,
            want=float(-floor(-want)) if self._is_whole else want,
            first=float(-floor(-first)) if self._is_whole else first,
            keep=self._keep,
            ceiling=self._ceiling_by(now),
            window=self._store.window,
            known=self._store.reckoned(self.kind, self.rate_per_s, self.capacity, now - self._away_s, now),
            away_s=self._away_s,
            away_rate_per_s=self._away_rate_per_s,
            charged=self._charged,
            charged_before=self._charged_before,
            incarnation=self.incarnation,
            lag_s=self.lag_s,
        )
        self._lack_sent, self._charged_sent = self._lack, self._charged
        self._lack = self._keep = 0.0
        self._ceiling = inf
        return ask

    def heard(self, reply: LeaseReply, now: float) -> None:
        """Takes the reply of the store in, which ends the ask."""
        if self.is_alone:
            return
        self.state = LeaseState.QUIET
        self._held += reply.granted - self._granted
        self._granted = reply.granted
        self._store.hear(reply, self.kind, now)
        self._away_s, self._charged_before = 0.0, self._charged_sent
        self.retry_at = now + reply.retry_s
        self._is_unmet = reply.retry_s > 0
        most = max(reply.most, self._lack_sent)
        if self.kind != "slots" and self._held > most:  # somebody's call needs all of the limit
            self._given += self._held - most
            self._held = most
            self._refill()
        if self._ceiling < inf:  # told by the provider while the answer was on its way
            self._refill()

    def is_due(self, now: float) -> bool:
        """Returns whether the store has to hear of it again: something was used since, or is held for long."""
        if self.is_asked:
            return False
        after_s = REPORT_S if self._demand.calls or self._is_unmet else REFRESH_S if self._held or self._in_use else inf
        return now - self._sent_at >= after_s

    def is_idle(self, now: float) -> bool:
        """Returns whether the store has nothing more to hear of it, and has forgotten it by now."""
        is_quiet = not self._held and not self._in_use and not self._demand.calls
        return is_quiet and not self.is_asked and not self.needs_refill and now - self._sent_at > FORGOTTEN_S

    def leave(self) -> None:
        """Gives back all that is held, because this replica ends; the next `ask` tells the store."""
        if not self.is_alone and self._held > 0:
            self._given += self._held
            self._held = 0.0
        self._lack = 0.0
        self._demand.end()

    def retire(self) -> None:
        """Gives everything back, because the limit is gone from the config; calls that still run are not counted any more."""
        if self.is_alone:
            self._own, self.state = None, LeaseState.QUIET
        self._given += max(0.0, self._held) + self._in_use
        self._held = min(0.0, self._held)
        self._in_use = self._lack = 0.0
        self._demand.end()
        self._refill()

    def _use(self, cost: float) -> None:
        if self.kind == "slots":
            self._in_use += cost
        if self.state is not LeaseState.LOCAL:
            self._held -= cost
            if self._held < self._low:
                self._refill()

    def _refill(self) -> None:
        """Asks to be asked for in the next round, once."""
        if self.state is LeaseState.QUIET:
            self.state = LeaseState.NEEDED
            self._wake(self)

    def _held_at(self, now: float) -> float:
        """Returns what is held; the rest of a window that has ended is void."""
        return 0.0 if now >= self._store.ends_at and self._held > 0 else self._held

    def _expire(self, now: float) -> None:
        """Gives back the rest of a window that has ended."""
        if now >= self._store.ends_at and self._held > 0:
            self._given += self._held
            self._held = 0.0

    def _lower_to(self, level: float, now: float) -> None:
        self._ceiling = min(level, self._ceiling_by(now))
        self._ceiling_at = now
        self._refill()

    def _ceiling_by(self, now: float) -> float:
        rate_per_s = self.rate_per_s if self.kind == "bucket" else 0.0
        return self._ceiling + (now - self._ceiling_at) * rate_per_s
