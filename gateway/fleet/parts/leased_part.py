"""A replica's part of a limit that others use, too: what it holds it may give away without asking anybody.

    ask -> (the store counts, and hands out) -> heard        out of reach: go_local -> rejoin

Amounts wait for the store only when nothing is held: then `wait_s` is None, `want` leases more, and the calls that wait are
let through when it has come. While the store is out of reach the share lives on its own part of the limit. It must not know
stores, queues or who waits. Invariants: questions change nothing; what all replicas give away is never more than what the store
handed out (or, alone, than the parts add up to).
"""

from __future__ import annotations

from math import ceil, inf, isfinite

from gateway.fleet.lease.leased_amount import LeasedAmount, LeaseState
from gateway.fleet.parts.shared_sum import LocalShare, own_bucket, own_slots, own_window

IN_FLIGHT_S = 0.5
"""Seconds by which the store's knowledge of the others may be old when a provider's level is compared with its own."""
DOUBT = 0.05
"""The share of the capacity by which a provider may count otherwise, as in `core/limits/bucket.py`."""
_ROUNDING = 1e-9
_EARLY_S = 1e-6


class Share(LeasedAmount):
    """Lets the calls of one replica through by its part of one shared limit. Implements `Limit`."""

    __slots__ = ()

    def level_at(self, now: float) -> float:
        """Returns what is held here plus what is unleased; while the store is out of reach, the level of the local share."""
        if self._own is not None:
            return self._own.limit.level_at(now)
        return min(self.capacity, self._held_at(now) + self._store.common(now))

    def wait_s(self, cost: float, now: float, keep: float = 0.0) -> float | None:
        """Returns what `Limit.wait_s` does; None also if the store has to be asked, which `want` does."""
        if self._own is not None:
            return self._own.wait_s(cost, now, keep, self.capacity)
        if self.state is LeaseState.CLOSED:
            return None
        if cost > self.capacity:
            return inf
        held = self._held_at(now)
        if cost > held + _ROUNDING:
            return None
        is_left_over = not keep or min(cost + keep, self.capacity) <= held + self._store.common(now) + _ROUNDING
        return 0.0 if is_left_over else None

    def want(self, cost: float, now: float, keep: float = 0.0) -> float | None:
        """Returns what `wait_s` does, and leases what is lacking, or saves up for it."""
        if self._own is not None:
            self._own.want(cost, now, self.capacity)
        wait_s = self.wait_s(cost, now, keep)
        if wait_s is None and not self.is_alone:
            self._lack = max(self._lack, cost)
            self._keep = keep
            self._refill()
        return wait_s

    def is_dry(self, need: float, now: float) -> bool:
        """Returns whether `need` is neither here nor in the store, as far as the store has said."""
        if self._own is not None:
            return self._own.limit.level_at(now) < need
        return self._is_unmet and self._held_at(now) < need

    def raise_by(self, amount: float, now: float) -> None:
        """Adds an amount that turned out to be there; the store shares it out, up to the capacity.

        The other replicas that wait find out the same, so each of them adds a part.
        """
        if self._own is not None:
            self._own.limit.give_back(amount / self._replicas, now)
        elif amount > 0:
            part = amount / self._store.wanting
            self._given += float(ceil(part)) if self._is_whole else part
            self._refill()

    def ready_at(self, cost: float, now: float, ahead: float = 0.0, keep: float = 0.0) -> float:
        """Estimates when a call may go (monotonic seconds), as if the other waiting replicas got as much as this one."""
        if self._own is not None:
            return self._own.limit.ready_at(min(cost, self._own.limit.capacity), now, ahead, keep)
        if cost > self.capacity:
            return inf
        mine = self._held_at(now) + max(0.0, self._store.common(now)) / self._store.wanting
        missing = ahead + min(cost + keep, self.capacity) - mine
        if missing <= _ROUNDING or self.kind == "slots":
            return now
        if self.kind == "window":
            windows = -(-missing * self._store.wanting // self.capacity)
            return max(now, self._store.ends_at) + max(0.0, windows - 1) * self.window_s
        return now + missing * self._store.wanting / self.rate_per_s if self.rate_per_s else inf

    def drain_s(self, ahead: float) -> float:
        per_s = self.capacity / self.window_s if self.kind == "window" else self.rate_per_s
        return 0.0 if self.kind == "slots" or not ahead else ahead * self._store.wanting / per_s if per_s else inf

    def take(self, cost: float, now: float) -> None:
        if self._own is not None:
            self._own.limit.take(cost, now)
        self._expire(now)
        self._demand.calls += 1
        self._use(cost)

    def force(self, cost: float, now: float) -> None:
        if self._own is not None:
            self._own.limit.force(cost, now)
        self._expire(now)
        self._use(cost)

    def give_back(self, cost: float, now: float, taken_at: float | None = None) -> None:
        if self._own is not None:
            self._own.limit.give_back(cost, now, taken_at)
        if self.kind == "slots":
            self._in_use = max(0.0, self._in_use - cost)
        elif self.kind == "window" and taken_at is not None and taken_at < self._store.ends_at - self.window_s:
            return
        if self._own is None:
            self._held += cost
            if self._in_use + self._held > self._store.most:  # others wait who have fewer
                self._given += cost
                self._held -= cost
                self._refill()

    def correct(self, level: float, now: float) -> None:
        """Lowers what is held at once, and tells the store; one replica's word never raises a level."""
        if self._own is not None:
            before = self._own.limit.level_at(now)
            self._own.correct(level, now)
            self._note_lowered(self._own, before, now)
        elif isfinite(level) and self.kind != "slots" and level < self.level_at(now):
            self._expire(now)
            self._held = min(self._held, level)
            self._lower_to(level, now)

    def reconcile(
        self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float, doubt: float | None = None
    ) -> None:
        """Lowers the level to what the provider has left, never raises it: the others' use since is not known here."""
        if self._own is not None:
            before = self._own.limit.level_at(now)
            self._own.reconcile(remaining, now, sent_at, taken_since, grain, doubt)
            self._note_lowered(self._own, before, now)
            return
        began_at = self._store.ends_at - self.window_s
        if self.kind == "slots" or (self.kind == "window" and sent_at < began_at):
            return
        most = remaining + grain + DOUBT * self.capacity + self.rate_per_s * (IN_FLIGHT_S + now - sent_at)
        if most < self.level_at(now):
            self._lower_to(most, now)

    def resize(self, rate_per_s: float, capacity: float, now: float) -> None:
        if self._own is not None:
            faster = rate_per_s / self.rate_per_s if self.rate_per_s else 1.0
            self._own.resize(faster, capacity / self.capacity, now)
        self.rate_per_s = rate_per_s
        self.capacity = capacity
        self._expire(now)
        if self._held > capacity:
            self._given += self._held - capacity
            self._held = capacity

    def go_local(self, replicas: int, now: float) -> None:
        """Switches to a local share, one of `replicas` equal parts of the limit, because the store is out of reach.

        It begins with what it holds, and its part of the unleased amount that the store told last.
        """
        if self.is_alone:
            return
        self._expire(now)
        held, common = self._held, self._store.common(now) if self._store.is_known else None
        self._store.claim()
        self._replicas = replicas = max(1, replicas)
        self.state = LeaseState.CLOSED if self.fails_closed else LeaseState.LOCAL
        if self.fails_closed:
            return
        if self.kind == "slots":
            self._own = own_slots(self.capacity, self._in_use, replicas, now)
        elif self.kind == "window":
            ends_in_s = self._store.ends_at - now
            self._own = own_window(self.window_s, ends_in_s, self.capacity, held, common, replicas, now)
        else:
            self._own = own_bucket(self.rate_per_s, self.capacity, held, common, replicas, now)

    def rejoin(self, now: float) -> None:
        """Returns to the lease, because the store is back: the rest of the local share is held, what was borrowed is owed."""
        if self._own is not None:
            is_unused = not self._store.is_known and self._own.used(now) <= 0
            self._bring(self._own, now)
            # A replica that has only just started owes nothing: its calls need not wait for what others may have taken.
            if not is_unused:
                self._away_rate_per_s = self._own.rate_per_s
                self._away_s += max(now - self._own.since, _EARLY_S)
        elif self.state is not LeaseState.CLOSED:  # where nothing went, what flowed in meanwhile is everybody's
            return
        self._own, self.state = None, LeaseState.QUIET
        self.retry_at = -inf
        self._refill()

    def fail_closed(self, fails_closed: bool, now: float) -> None:
        """Sets whether nothing goes while the store is out of reach; that holds at once, also if it is now."""
        if fails_closed == self.fails_closed:
            return
        self.fails_closed = fails_closed
        if self.is_alone:
            if self._own is not None:
                self._bring(self._own, now)
            self._own, self.state = None, LeaseState.QUIET
            self.go_local(self._replicas, now)

    def _bring(self, own: LocalShare, now: float) -> None:
        """Holds the rest of the local share; its use follows from the grant less that, so nothing else has to change."""
        if self.kind == "slots":
            self._held, self._given = 0.0, self._granted - self._in_use
        elif now >= self._store.ends_at:
            # The window is over: what was used in the one that has begun since counts in the store's next one.
            self._charged += own.used(now)
        else:
            self._held = own.left(now)
            self._charged += own.borrowed

    def _note_lowered(self, own: LocalShare, before: float, now: float) -> None:
        """Remembers a level that the provider lowered; the store hears of it when it is back."""
        level = own.limit.level_at(now)
        if level < before and self.kind != "slots":
            self._lower_to(level, now)
