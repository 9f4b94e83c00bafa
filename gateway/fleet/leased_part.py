"""A replica's part of a limit that others use, too: what it holds it may give away without asking anybody.

    ask -> (the store counts, and hands out) -> take_reply        out of reach: go_local -> rejoin

Amounts wait for the store only when nothing is held: then `wait_s` is None, `want` leases more, and the calls that wait are
let through when it has come. While the store is out of reach the share lives on its own part of the limit: `LocalShare`, which
comes first. Then come the share of a limit, with its account at the store, and `FleetSum`, which only counts. It must not know
stores, queues or who waits. Invariants: questions change nothing; what all replicas give away is never more than what the store
handed out (or, alone, than the parts add up to).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import ceil, floor, inf, isfinite

from gateway.core.limits.bucket import Bucket, Limit, Slots, Window
from gateway.core.limits.limit_table import LimitKind
from gateway.fleet.lease import Demand, LeaseAsk, LeaseReply, StoreView

# --- a local share: one of N equal parts of a limit, for a replica that cannot hear what the others use ---


class LocalShare:
    """Holds the share as a limit of its own, and since when the replica lives on it.

    It begins with what the replica held, and its part of the unleased amount that the store reported last: that is
    borrowed, and owed when the store is back. Invariant: all parts together let no more through than the limit would have.
    """

    __slots__ = ("_kind", "_knows_level", "borrowed", "limit", "rate_per_s", "since")

    def __init__(self, kind: LimitKind, limit: Limit, free: float, borrowed: float | None, now: float) -> None:
        """`free` is its level now, `borrowed` the part of it that was unleased; None: the store has never answered."""
        self.limit = limit
        self.rate_per_s = limit.rate_per_s if isinstance(limit, Bucket) else 0.0
        self.since = now
        self._kind = kind
        self._knows_level = borrowed is not None
        self.borrowed = borrowed or 0.0
        if kind != "slots":
            limit.correct(free, now)

    def wait_s(self, cost: float, now: float, keep: float, most: float) -> float | None:
        """Returns what `Limit.wait_s` does; a call larger than the share, but not than the limit (`most`), has to save up."""
        if self.limit.capacity < cost <= most:
            return (cost - self.limit.level_at(now)) / self.rate_per_s if self.rate_per_s else None
        return self.limit.wait_s(cost, now, min(keep, self.limit.capacity))

    def want(self, cost: float, now: float, most: float) -> None:
        """Saves up from now on for a call larger than the share, but not than the limit (`most`)."""
        if self.limit.capacity < cost <= most:
            self.limit.resize(self.rate_per_s, cost, now)

    def resize(self, change_rate: float, change_capacity: float, now: float) -> None:
        """Scales the share with its limit, which is now so many times as fast and as large."""
        self.rate_per_s *= change_rate
        self.limit.resize(self.rate_per_s, self.limit.capacity * change_capacity, now)

    def correct(self, level: float, now: float) -> None:
        """Sets the level; a loss was not used by anybody here, so that much of what was borrowed is not owed."""
        before = self.limit.level_at(now)
        self.limit.correct(level, now)
        self._forgive(before, now)

    def reconcile(
        self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float, doubt: float | None = None
    ) -> None:
        """Does what `Limit.reconcile` does; a loss is not owed."""
        before = self.limit.level_at(now)
        self.limit.reconcile(remaining, now, sent_at, taken_since, grain, doubt)
        self._forgive(before, now)

    def _forgive(self, before: float, now: float) -> None:
        lost = before - self.limit.level_at(now)
        if lost > 0 and self._kind != "slots":
            self.borrowed = max(0.0, self.borrowed - lost)

    def left(self, now: float) -> float:
        """Returns what the replica brings back to the store, below 0 what it owes; slots in use are counted apart."""
        return self.limit.level_at(now) if self._kind != "slots" and self._knows_level else 0.0

    def used(self, now: float) -> float:
        """Returns what the present window has let through, if one has begun since."""
        return self.limit.capacity - self.limit.level_at(now)


def own_bucket(
    rate_per_s: float, capacity: float, held: float, common: float | None, replicas: int, now: float
) -> LocalShare:
    """Returns the local share of a bucket; `common` is the unleased amount; if None, unknown, the share begins full."""
    part = capacity / replicas
    free, borrowed = _free(part, held, common, replicas)
    return LocalShare("bucket", Bucket(rate_per_s / replicas, part, now), free, borrowed, now)


def own_window(
    window_s: float, ends_in_s: float, capacity: float, held: float, common: float | None, replicas: int, now: float
) -> LocalShare:
    """Returns the local share of a window, which begins in the one that ends in `ends_in_s`; at least one call fits."""
    part = max(1.0, capacity / replicas)
    if ends_in_s <= 0:  # none is open
        return LocalShare("window", Window(part, window_s, now), part, 0.0, now)
    free, borrowed = _free(part, held, common, replicas)
    window = Window(part, window_s, now)
    window.force(0.0, now)  # it has begun
    window.align(ends_in_s, now, now)
    return LocalShare("window", window, free, borrowed, now)


def own_slots(capacity: float, in_use: float, replicas: int, now: float) -> LocalShare:
    """Returns the local share of slots, at least one; those in use are its own."""
    slots = Slots(max(1.0, floor(capacity / replicas)))
    slots.force(in_use, now)
    return LocalShare("slots", slots, 0.0, None, now)


def _free(part: float, held: float, common: float | None, replicas: int) -> tuple[float, float | None]:
    if common is None:
        return part, None
    free = min(part, held + max(0.0, common) / replicas)
    return free, max(0.0, free - held)


# --- a share, and its account at the store: what was granted, used, given back, and is asked for next ---

LOW = 0.5
"""The share of what is held ahead below which more is asked for."""
SPREAD = 8
"""The divisor of the limit that bounds what is asked at a time for waiting calls: another limit may hold them up."""
REPORT_S = 0.2
"""Seconds after which the store gets what was used, or is not wanted any more; until then a full limit does not refill."""
REFRESH_S = 1.0
"""Seconds between two reports of what is held; the store forgets a replica that is silent for five times that."""
FORGOTTEN_S = 6.0
"""Seconds, a little more than those after which the store forgets a replica (`SILENT_S` of `drivers/redis/lua/lease.lua`)."""
IN_FLIGHT_S = 0.5
"""Seconds by which the store's knowledge of the others may be old when a provider's level is compared with its own."""
DOUBT = 0.05
"""The share of the capacity by which a provider may count otherwise, as in `core/limits/bucket.py`."""
_ROUNDING = 1e-9
_EARLY_S = 1e-6


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


class Share:
    """Lets the calls of one replica through by its part of one shared limit; implements `SharedLimit`, in its own unit.

    The store has the one true level; a replica leases what its calls are likely to need in the next moments, reports at the
    same time what they have used, and gives back what lies idle. Invariants: what is reported to the store twice counts
    once; it is asked for once per round.
    """

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
        wake: Callable[[Share], None],
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
        self._replicas = 1  # as known when it began to be on its own
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
    def is_pending(self) -> bool:
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
    def is_answered(self) -> bool:
        """Returns whether the store has answered, and is within reach."""
        return self._store.is_known and not self.is_alone

    # --- the account with the store ---

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

    def take_reply(self, reply: LeaseReply, now: float) -> None:
        """Takes the reply of the store in, which ends the ask."""
        if self.is_alone:
            return
        self.state = LeaseState.QUIET
        self._held += reply.granted - self._granted
        self._granted = reply.granted
        self._store.take_reply(reply, self.kind, now)
        self._away_s, self._charged_before = 0.0, self._charged_sent
        self.retry_at = now + reply.retry_s
        self._is_unmet = reply.retry_s > 0
        most = max(reply.most, self._lack_sent)
        if self.kind != "slots" and self._held > most:  # somebody's call needs all of the limit
            self._given += self._held - most
            self._held = most
            self._refill()
        if self._ceiling < inf:  # lowered by the provider while the reply was on its way
            self._refill()

    def is_due(self, now: float) -> bool:
        """Returns whether the store has to hear of it again: something was used since, or is held for long."""
        if self.is_pending:
            return False
        after_s = REPORT_S if self._demand.calls or self._is_unmet else REFRESH_S if self._held or self._in_use else inf
        return now - self._sent_at >= after_s

    def is_idle(self, now: float) -> bool:
        """Returns whether the store has nothing more to hear of it, and has forgotten it by now."""
        is_quiet = not self._held and not self._in_use and not self._demand.calls
        return is_quiet and not self.is_pending and not self.needs_refill and now - self._sent_at > FORGOTTEN_S

    def leave(self) -> None:
        """Gives back all that is held, because this replica ends; the next `ask` reports it to the store."""
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

    # --- as a limit of the calls of this replica ---

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
        """Lowers what is held at once, and reports it to the store; one replica's word never raises a level."""
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

        It begins with what it holds, and its part of the unleased amount that the store reported last.
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
        """Remembers a level that the provider lowered; the store gets it when it is back."""
        level = own.limit.level_at(now)
        if level < before and self.kind != "slots":
            self._lower_to(level, now)


# --- the sum of what all replicas have used of something, such as money ---

MOST = 1e7
"""The capacity sent to the store, small enough that a double still distinguishes a millionth of a cent."""


class FleetSum:
    """Keeps one replica's account of one sum: no call waits for it, each replica learns of the others.

    To the store it is a share that leases nothing and uses what it was never granted: the store's level is what is left of
    a sum larger than anybody's. Invariant: what was added here counts once, whatever is lost on the way; while the store is
    out of reach the others' part stays as last known.
    """

    __slots__ = (
        "__weakref__",
        "_counted",
        "_elsewhere",
        "_given",
        "_granted",
        "_is_known",
        "_is_read",
        "_own",
        "_sent",
        "_sent_at",
        "_wake",
        "is_alone",
        "is_pending",
        "name",
        "needs_refill",
        "owner",
        "part",
        "retry_at",
    )

    def __init__(self, owner: str, name: str, now: float, wake: Callable[[FleetSum], None]) -> None:
        """`wake` is called when there is something to tell, or to hear."""
        self.owner = owner
        self.name = name
        self.part = 0
        self.is_alone = False
        self.is_pending = False
        self.needs_refill = False
        self.retry_at = -inf
        self._wake = wake
        self._own = 0.0
        self._sent = 0.0
        self._counted = 0.0  # of that, what the store has confirmed
        self._elsewhere = 0.0
        self._granted = 0.0
        self._given = 0.0
        self._is_known = self._is_read = False
        self._sent_at = now

    @property
    def is_known(self) -> bool:
        """Returns whether the store has reported what others have added."""
        return self._is_known

    def read(self) -> float:
        """Returns what was added here, and elsewhere as far as is known; from now on the sum is kept fresh."""
        self._is_read = True
        return self._own + self._elsewhere

    @property
    def unreported(self) -> float:
        """Returns the part of what was added here that the store has not confirmed."""
        return self._own - self._counted

    def add(self, amount: float) -> None:
        """Adds an amount; one below 0 corrects what was added before."""
        self._own = max(0.0, self._own + amount)
        self.look()

    def look(self) -> None:
        """Asks for what the others have added by now, with the next round."""
        if not self.needs_refill and not self.is_pending and not self.is_alone:
            self.needs_refill = True
            self._wake(self)

    def ask(self, now: float, waiting: float) -> LeaseAsk:
        """Returns the message to the store, and begins an ask; `waiting` means nothing here."""
        self.is_pending, self.needs_refill = True, False
        self._sent_at, self._sent, self._is_read = now, self._own, False
        self._given += max(0.0, self._granted - self._own - self._given)
        return LeaseAsk(
            name=f"{self.owner}|{self.name}",
            kind="bucket",
            rate_per_s=0.0,
            capacity=MOST,
            window_s=0.0,
            granted=self._granted,
            used=self._own,
            given=self._given,
            want=0.0,
            first=0.0,
            known=MOST - self._counted - self._elsewhere if self._is_known else -1.0,
        )

    def take_reply(self, reply: LeaseReply, now: float) -> None:
        """Takes the reply of the store in, which ends the ask."""
        self.is_pending, self._is_known = False, True
        self._granted, self._counted = reply.granted, self._sent
        self._elsewhere = max(0.0, MOST - reply.level - self._sent)
        self.retry_at = now + REPORT_S

    def go_local(self, replicas: int, now: float) -> None:
        """Counts for this replica alone from now on, from the last known sum, because the store is out of reach."""
        self.is_alone, self.is_pending, self.needs_refill = True, False, False

    def rejoin(self, now: float) -> None:
        """Reports to the store, which is back, what was added meanwhile."""
        self.is_alone = False
        self.retry_at = -inf
        self.look()

    def is_due(self, now: float) -> bool:
        """Returns whether there is something to tell, or to hear."""
        if self.is_pending:
            return False
        after_s = REPORT_S if self._own != self._sent else REFRESH_S if self._is_read else inf
        return now - self._sent_at >= after_s

    def is_idle(self, now: float) -> bool:
        """Returns False: others may add to it at any time."""
        return False

    def leave(self) -> None:
        """Does nothing: this replica ends, and what it has added stays."""
