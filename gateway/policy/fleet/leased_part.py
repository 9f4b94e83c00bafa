"""A replica's part of a limit that others use, too: what it holds it may give away without asking anybody.

    ask -> (the store counts, and hands out) -> heard        out of reach: alone -> rejoin

The store has the one true level; a share leases what its calls are likely to need in the next moments, tells in the same
breath what they have used, and gives back what lies idle. Amounts wait for the store only when nothing is held: then
`wait_s` is None, and whoever waits is let through when more has come. While the store is out of reach it lives on its own
part of the limit. It must not know stores, queues or who waits. Invariants: what all replicas give away is never more than
what the store handed out (or, alone, than the parts add up to); what is told to the store twice counts once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, inf, isfinite
from typing import TypeAlias

from gateway.policy.fleet.demand import Demand
from gateway.policy.fleet.lease import LeaseAsk, LeaseReply, LimitKind
from gateway.policy.fleet.own_part import LocalShare, own_bucket, own_slots, own_window

LOW = 0.5
"""What is held ahead is asked for again when less than this share of it is left."""
SPREAD = 8
"""For those who wait no more than this part of the limit is asked at a time: another limit may hold them up."""
REPORT_S = 0.2
"""What was used is told so soon: as long as it is not, a full limit does not refill. And what is wanted no more."""
REFRESH_S = 1.0
"""What is held is told so often, whether or not more is needed; the store forgets who is silent for five times that."""
FORGOTTEN_S = 6.0
"""A little more than the silence after which the store forgets a replica (`SILENT_S` of `store/redis/lua/lease.lua`)."""
IN_FLIGHT_S = 0.5
"""So old may be what the store knows of others when a provider's level is compared with its own."""
DOUBT = 0.05
"""As in `bucket.py`: so much of the capacity a provider may count otherwise."""
_ROUNDING = 1e-9
_EARLY_S = 1e-6

Wake: TypeAlias = "Callable[[Share], None]"


class Share:
    """One replica's part of one limit. Implements `Limit`; amounts are in the limit's own unit."""

    __slots__ = (
        "__weakref__",
        "_asked_at",
        "_away_rate_per_s",
        "_away_s",
        "_ceiling",
        "_ceiling_at",
        "_charged",
        "_charged_before",
        "_charged_told",
        "_demand",
        "_ends_at",
        "_given",
        "_granted",
        "_held",
        "_in_use",
        "_is_closed",
        "_is_unmet",
        "_is_whole",
        "_keep",
        "_known_at",
        "_lack",
        "_level",
        "_low",
        "_most",
        "_own",
        "_replicas",
        "_spare",
        "_told_lack",
        "_wake",
        "_wanting",
        "_window",
        "capacity",
        "fails_closed",
        "incarnation",
        "is_asked",
        "is_hungry",
        "kind",
        "lag_s",
        "name",
        "owner",
        "part",
        "rate_per_s",
        "retry_at",
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
        wake: Wake,
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
        self.is_asked = False
        """An ask is under way."""
        self.is_hungry = False
        """It waits to be asked for."""
        self.retry_at = -inf
        """There is no use in asking before."""
        self._is_whole = is_whole
        self._wake = wake
        self.fails_closed = fails_closed
        """While the store is out of reach nothing goes; to be changed with `fail_closed`."""
        self._held = 0.0
        self._granted = 0.0
        self._given = 0.0
        self._in_use = 0.0  # of slots
        self._level = -1.0  # what nobody holds, as last heard; below 0 and never heard: unknown
        self._spare = 0.0  # the same, less what was taken for a part of its own
        self._known_at = -inf
        self._wanting = 1
        self._told_lack = 0.0
        self._lack = 0.0  # the most that a call asked for and did not get
        self._keep = 0.0
        self._ceiling = inf
        self._ceiling_at = now
        self._low = 0.0
        self._most = inf  # of slots, while others wait who have fewer
        self._demand = Demand(now)
        self._asked_at = now
        self._window = 0
        self._ends_at = inf if kind != "window" else -inf
        self._own: LocalShare | None = None
        self._is_closed = False
        self._is_unmet = False  # more was wanted than there was
        self._away_s = 0.0
        self._away_rate_per_s = 0.0
        self._charged = self._charged_told = self._charged_before = 0.0
        self._replicas = 1

    # --- as a limit ---

    def level_at(self, now: float) -> float:
        """What is held here and what nobody holds; of a share on its own, what that has."""
        if self._own is not None:
            return self._own.limit.level_at(now)
        return min(self.capacity, self._held_at(now) + self._common(now))

    def wait_s(self, cost: float, now: float, keep: float = 0.0) -> float | None:
        if self._own is not None:
            return self._own.wait_s(cost, now, keep, self.capacity)
        if self._is_closed:
            return None
        if cost > self.capacity:
            return inf
        held = self._held_at(now)
        if cost <= held + _ROUNDING and (
            not keep or min(cost + keep, self.capacity) <= held + self._common(now) + _ROUNDING
        ):
            return 0.0
        return None  # until the store has answered, or somebody has given back

    def want(self, cost: float, now: float, keep: float = 0.0) -> float | None:
        """A call wants `cost` with `keep` left over: as `wait_s`, but what is lacking is asked for, or saved up."""
        if self._own is not None:
            self._own.want(cost, now, self.capacity)
        wait_s = self.wait_s(cost, now, keep)
        if wait_s is None and self._own is None and not self._is_closed:
            self._lack = max(self._lack, cost)
            self._keep = keep
            self._ask_for_more()
        return wait_s

    def is_dry(self, need: float, now: float) -> bool:
        """Whether so much is not there, nor in the store, as far as that has said."""
        if self._own is not None:
            return self._own.limit.level_at(now) < need
        return self._is_unmet and self._held_at(now) < need

    def raise_by(self, amount: float, now: float) -> None:
        """So much more is there, as has turned out: the store shares it out, up to the capacity.

        Whoever else waits for it finds the same out, so each raises it by a part.
        """
        if self._own is not None:
            self._own.limit.give_back(amount / self._replicas, now)
        elif amount > 0:
            part = amount / self._wanting
            self._given += float(ceil(part)) if self._is_whole else part
            self._ask_for_more()

    @property
    def is_heard(self) -> bool:
        """Whether it knows what the store has, and lives on that."""
        return self._known_at > -inf and not self.is_alone

    def ready_at(self, cost: float, now: float, ahead: float = 0.0, keep: float = 0.0) -> float:
        """An estimate: those who wait elsewhere get as much as those who wait here."""
        if self._own is not None:
            return self._own.limit.ready_at(min(cost, self._own.limit.capacity), now, ahead, keep)
        if cost > self.capacity:
            return inf
        mine = self._held_at(now) + max(0.0, self._common(now)) / self._wanting
        missing = ahead + min(cost + keep, self.capacity) - mine
        if missing <= _ROUNDING or self.kind == "slots":
            return now
        if self.kind == "window":
            windows = -(-missing * self._wanting // self.capacity)
            return max(now, self._ends_at) + max(0.0, windows - 1) * self.window_s
        return now + missing * self._wanting / self.rate_per_s if self.rate_per_s else inf

    def drain_s(self, ahead: float) -> float:
        per_s = self.capacity / self.window_s if self.kind == "window" else self.rate_per_s
        return 0.0 if self.kind == "slots" or not ahead else ahead * self._wanting / per_s if per_s else inf

    def take(self, cost: float, now: float) -> None:
        if self._own is not None:
            self._own.limit.take(cost, now)
        self._demand.calls += 1
        self._use(cost)

    def force(self, cost: float, now: float) -> None:
        if self._own is not None:
            self._own.limit.force(cost, now)
        self._use(cost)

    def give_back(self, cost: float, now: float, taken_at: float | None = None) -> None:
        if self._own is not None:
            self._own.limit.give_back(cost, now, taken_at)
        if self.kind == "slots":
            self._in_use = max(0.0, self._in_use - cost)
        elif self.kind == "window" and taken_at is not None and taken_at < self._ends_at - self.window_s:
            return
        if self._own is None:
            self._held += cost
            if self._in_use + self._held > self._most:  # others wait who have fewer
                self._given += cost
                self._held -= cost
                self._ask_for_more()

    def correct(self, level: float, now: float) -> None:
        """What is held shrinks at once, and the store hears of it; a level is never raised by one replica's word."""
        if self._own is not None:
            before = self._own.limit.level_at(now)
            self._own.correct(level, now)
            self._note_lowered(self._own, before, now)
        elif isfinite(level) and self.kind != "slots" and level < self.level_at(now):
            self._held = min(self._held, level)
            self._lower_to(level, now)

    def reconcile(self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float) -> None:
        """Only ever down: what the others have used since, nobody knows here."""
        if self._own is not None:
            before = self._own.limit.level_at(now)
            self._own.reconcile(remaining, now, sent_at, taken_since, grain)
            self._note_lowered(self._own, before, now)
            return
        began_at = self._ends_at - self.window_s
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
        if self._held > capacity:
            self._given += self._held - capacity
            self._held = capacity

    # --- as a part of a whole ---

    def ask(self, now: float, waiting: float) -> LeaseAsk:
        """What to tell the store and ask of it now; `waiting` is what those who wait here would take, all together."""
        self.is_asked, self.is_hungry = True, False
        held = self._held_at(now)
        used = self._granted - self._given - held - self._in_use
        self._asked_at = now
        self._demand.observe(None if self.kind == "slots" else used, now)
        # A window must not begin without a call.
        ahead = self._demand.ahead(self.capacity, now, is_whole=self._is_whole, keeps_warm=self.kind != "window")
        if not waiting:  # whoever lacked something has gone
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
            window=self._window,
            known=self._reckoned(now),
            away_s=self._away_s,
            away_rate_per_s=self._away_rate_per_s,
            charged=self._charged,
            charged_before=self._charged_before,
            incarnation=self.incarnation,
            lag_s=self.lag_s,
        )
        self._told_lack, self._charged_told = self._lack, self._charged
        self._lack = self._keep = 0.0
        self._ceiling = inf
        return ask

    def heard(self, reply: LeaseReply, now: float) -> None:
        """The store has answered."""
        self.is_asked = False
        if self.is_alone:
            return
        self._held += reply.granted - self._granted
        self._granted = reply.granted
        self._level = self._spare = reply.level
        self._known_at, self._most = now, reply.most
        self._wanting = max(1, reply.wanting)
        self._away_s, self._charged_before = 0.0, self._charged_told
        self.retry_at = now + reply.retry_s
        self._is_unmet = reply.retry_s > 0
        most = max(reply.most, self._told_lack)
        if self.kind != "slots" and self._held > most:  # somebody's call needs all of the limit
            self._given += self._held - most
            self._held = most
            self._ask_for_more()
        if self.kind == "window":
            self._window, self._ends_at = reply.window, now + reply.ends_in_s
        if self._ceiling < inf:  # told by the provider while the answer was on its way
            self._ask_for_more()

    def alone(self, replicas: int, now: float) -> None:
        """The store is out of reach: from now on this replica has one of so many equal parts of the limit.

        It begins with what it holds, and its part of what nobody held when the store was last heard.
        """
        self.is_asked = self.is_hungry = False
        if self._own is not None or self._is_closed:
            return
        held, common = self._held_at(now), None if self._known_at == -inf else self._common(now)
        self._spare = min(0.0, self._spare)  # its part of it is taken; the rest is the others'
        self._replicas = replicas = max(1, replicas)
        if self.fails_closed:
            self._is_closed = True
        elif self.kind == "slots":
            self._own = own_slots(self.capacity, self._in_use, replicas, now)
        elif self.kind == "window":
            ends_in_s = self._ends_at - now
            self._own = own_window(self.window_s, ends_in_s, self.capacity, held, common, replicas, now)
        else:
            self._own = own_bucket(self.rate_per_s, self.capacity, held, common, replicas, now)

    def rejoin(self, now: float) -> None:
        """The store is back: what is left of the own part is what is held now; what was taken from the rest is owed."""
        if self._own is not None:
            is_unused = self._known_at == -inf and self._own.used(now) <= 0
            self._bring(self._own, now)
            if not is_unused:  # else it has only just started: nobody need wait for what others may have taken
                self._away_rate_per_s = self._own.rate_per_s
                self._away_s += max(now - self._own.since, _EARLY_S)
        elif not self._is_closed:  # where nothing went, what flowed in meanwhile is everybody's
            return
        self._own, self._is_closed = None, False
        self.retry_at = -inf
        self._ask_for_more()

    def fail_closed(self, fails_closed: bool, now: float) -> None:
        """Whether nothing goes while the store is out of reach; also if it is now."""
        if fails_closed == self.fails_closed:
            return
        self.fails_closed = fails_closed
        if self.is_alone:
            if self._own is not None:
                self._bring(self._own, now)
            self._own, self._is_closed = None, False
            self.alone(self._replicas, now)

    def retire(self) -> None:
        """Nobody uses it any more: all of it goes back, and calls that still run are counted by nobody."""
        self._own, self._is_closed = None, False
        self._given += max(0.0, self._held) + self._in_use
        self._held = min(0.0, self._held)
        self._in_use = self._lack = 0.0
        self._demand.end()
        self._ask_for_more()

    @property
    def is_alone(self) -> bool:
        """Whether it lives on its own part, or on none."""
        return self._own is not None or self._is_closed

    def is_due(self, now: float) -> bool:
        """Whether the store has to hear of it again: something was used since, or is held for long."""
        if self.is_asked:
            return False
        after_s = REPORT_S if self._demand.calls or self._is_unmet else REFRESH_S if self._held or self._in_use else inf
        return now - self._asked_at >= after_s

    def is_idle(self, now: float) -> bool:
        """Whether the store has nothing more to hear of it, and has forgotten it by now."""
        is_quiet = not self._held and not self._in_use and not self._demand.calls
        return is_quiet and not self.is_asked and not self.is_hungry and now - self._asked_at > FORGOTTEN_S

    def leave(self) -> None:
        """Give back all that is held: this replica ends. The next `ask` tells it."""
        if not self.is_alone and self._held > 0:
            self._given += self._held
            self._held = 0.0
        self._lack = 0.0
        self._demand.end()

    # --- by itself ---

    def _bring(self, own: LocalShare, now: float) -> None:
        """Hold what is left of the own part: what was used is what was granted less that, so nothing else has to change."""
        if self.kind == "slots":
            self._held, self._given = 0.0, self._granted - self._in_use
        elif now >= self._ends_at:  # a window that is over: what went in the one that began since is part of the next
            self._charged += own.used(now)
        else:
            self._held = own.left(now)
            self._charged += own.borrowed

    def _use(self, cost: float) -> None:
        if self.kind == "slots":
            self._in_use += cost
        if self._own is None:
            self._held -= cost
            if self._held < self._low:
                self._ask_for_more()

    def _ask_for_more(self) -> None:
        if not self.is_hungry and not self.is_asked and not self.is_alone:
            self.is_hungry = True
            self._wake(self)

    def _held_at(self, now: float) -> float:
        """What a window that has ended left is void."""
        if now >= self._ends_at and self._held > 0:
            self._given += self._held
            self._held = 0.0
        return self._held

    def _common(self, now: float) -> float:
        """What nobody holds, as far as is known: others take from it, and it refills."""
        return self._spare if self._known_at > -inf and now < self._ends_at else 0.0

    def _reckoned(self, now: float) -> float:
        if self._known_at == -inf or self.kind == "slots" or now >= self._ends_at:
            return -1.0
        if self.kind == "window":
            return max(0.0, self._level)
        refilled_s = max(0.0, now - self._known_at - self._away_s)
        return max(0.0, min(self.capacity, self._level + refilled_s * self.rate_per_s))

    def _note_lowered(self, own: LocalShare, before: float, now: float) -> None:
        """The store hears of it when it is back."""
        level = own.limit.level_at(now)
        if level < before and self.kind != "slots":
            self._lower_to(level, now)

    def _lower_to(self, level: float, now: float) -> None:
        self._ceiling = min(level, self._ceiling_by(now))
        self._ceiling_at = now
        self._ask_for_more()

    def _ceiling_by(self, now: float) -> float:
        rate_per_s = self.rate_per_s if self.kind == "bucket" else 0.0
        return self._ceiling + (now - self._ceiling_at) * rate_per_s
