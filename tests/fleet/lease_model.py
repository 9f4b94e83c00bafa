"""What `gateway/drivers/redis/lua/lease.lua` does, in plain Python: the same rules in the same order, to be read and compared.

A limit has a level, which nobody holds; each replica of it holds `granted - used - given`, as the store reckons; and what
was shared out to a replica that has not asked since is set aside for it. Keep in step with the script.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor, inf

from gateway.core.limits.limit_table import LimitKind
from gateway.fleet.lease import LeaseAsk, LeaseReply

SILENT_S = 5.0
EARLY_S = 1e-6
ROUNDING = 1e-12
STEPS = 64
LONG_S = 1.0
SOON_S, LATE_S, SLOTS_S, AHEAD_S = 0.005, 0.25, 0.1, 0.05


@dataclass(slots=True)
class Replica:
    """One replica's part of a limit."""

    id: bytes
    granted: float
    used: float
    given: float
    seen: float
    want: float = 0.0
    """What it asked for and was not granted yet."""
    first: float = 0.0
    keep: float = 0.0
    served: float = 0.0
    """Its virtual time: who was served least is next. Of slots, how many it holds."""
    aside: float = 0.0
    is_whole: bool = False
    charged: float = 0.0

    @property
    def lent(self) -> float:
        return self.granted - self.used - self.given

    @property
    def lacks(self) -> float:
        return self.want - self.aside

    @property
    def least(self) -> float:
        """Less than that is of no use to it."""
        return max(0.0, self.first - self.aside)


@dataclass(slots=True)
class LeaseModel:
    """One limit, as the store keeps it."""

    kind: LimitKind
    level: float
    at: float
    window: int
    ends: float
    """When the window is over; 0.0: none has begun."""
    capacity: float
    turn: float = 0.0
    """The virtual time of who was served last; who begins to want starts there."""
    replicas: list[Replica] = field(default_factory=list)
    still: float = 0.0
    """Until when nothing flows in: it was full, and the first call has only just gone."""
    back: float = 0.0
    """When the first replica came back after the store was away."""
    apart: float = 0.0
    """Of what nobody held then: what those who are not back yet may have taken with them."""
    is_new: bool = True

    @classmethod
    def new(cls, now: float, ask: LeaseAsk) -> LeaseModel:
        """Full, unless the first to ask knows better. A window begins with the first grant, unless one was known of."""
        level = min(ask.known, ask.capacity) if ask.known >= 0 else ask.capacity
        if ask.kind == "window" and ask.known >= 0:
            return cls(ask.kind, level, now, max(1, ask.window), now + ask.window_s, ask.capacity, back=now)
        return cls(ask.kind, level, now, ask.window, 0.0, ask.capacity, back=now if ask.known >= 0 else 0.0)

    @property
    def out(self) -> float:
        """What replicas hold or is set aside for them."""
        total = 0.0
        for each in self.replicas:
            total = total + each.lent + each.aside
        return total

    def ask(self, now: float, id: bytes, ask: LeaseAsk) -> LeaseReply:
        now = self._set_clock(now)
        slack = ask.rate_per_s * EARLY_S + ask.capacity * ROUNDING
        if ask.kind == "window":
            self._pass_window(now, ask)
            self.back = now if self._is_first_back(now, ask) else self.back
        elif ask.kind == "bucket":
            self._refill(now, ask)
        self._forget_silent(now, ask)
        me = self._fold(now, id, ask, slack)
        if ask.kind != "slots":
            self._charge(me, now, ask)
        self._note_want(me, ask, slack)
        self._cap_level(ask)
        self._share_out(ask, slack)
        self._hand_over(me, now, ask, slack)
        self.at, self.capacity, self.is_new = now, ask.capacity, False
        waiting = sum(each.lacks > slack for each in self.replicas)
        retry_s = self._retry_s(me, now, ask, slack)
        most = self._most_slots(slack) if ask.kind == "slots" else self._most_held(ask, slack)
        return LeaseReply(me.granted, self.level, waiting, retry_s, self.window, max(0.0, self.ends - now), most)

    # --- time ---

    def _set_clock(self, now: float) -> float:
        """Never back, unless a server's clock is far behind its predecessor's: then no limit may stand still."""
        if self.at > now + SILENT_S:
            self.at, self.still, self.back = now, min(self.still, now), min(self.back, now)
            for each in self.replicas:
                each.seen = min(each.seen, now)
        return max(now, self.at)

    def _void(self) -> None:
        """A new window may begin: nothing of the old one counts."""
        self.level, self.ends, self.apart = self.capacity, 0.0, 0.0
        for each in self.replicas:
            each.granted, each.aside = each.used + each.given, 0.0

    def _pass_window(self, now: float, ask: LeaseAsk) -> None:
        if self.ends > 0:
            self.ends = min(self.ends, now + ask.window_s)
            self.level += ask.capacity - self.capacity
        self.capacity = ask.capacity
        if self.ends == 0 or now + EARLY_S >= self.ends:
            self._void()
        if ask.window > self.window:
            self._void()
            self.window, self.ends = ask.window, now + ask.window_s

    def _is_first_back(self, now: float, ask: LeaseAsk) -> bool:
        """Nobody has come since this replica was away: then each lived on its own part."""
        return ask.away_s > 0 and (self.is_new or now - self.at >= ask.away_s / 2)

    def _part_out(self, now: float, ask: LeaseAsk, borrowed: float) -> None:
        """What each took with it is its own; what others may have taken is kept for them until they are back."""
        if self._is_first_back(now, ask) and ask.away_s >= LONG_S:
            self.apart += max(0.0, self.level)
            self.level = min(0.0, self.level)
        from_apart = min(self.apart, borrowed)
        self.apart -= from_apart
        self.level -= borrowed - from_apart
        if self.apart > 0 and now - self.back > SILENT_S:
            self.level += self.apart
            self.apart = 0.0

    def _refill(self, now: float, ask: LeaseAsk) -> None:
        """Nothing flows into a bucket that is full, whoever holds what is in it; nor twice for the same time."""
        if self._is_first_back(now, ask):
            self.back = now
            return
        flows_s = max(0.0, now - max(self.at, self.still))
        self.level = min(self.level + ask.rate_per_s * flows_s, ask.capacity - self.out - self.apart)
        if now - self.back < ask.away_s:  # others were back before it: what flowed to it since has flowed here, too
            self.level -= ask.away_rate_per_s * (now - self.back)

    def _forget_silent(self, now: float, ask: LeaseAsk) -> None:
        if ask.kind == "bucket" and not ask.rate_per_s:
            return
        for each in [each for each in reversed(self.replicas) if now - each.seen > SILENT_S]:
            self.level += each.aside
            self.replicas.remove(each)

    # --- what a replica tells ---

    def _is_current(self, ask: LeaseAsk) -> bool:
        return ask.kind != "window" or (self.ends > 0 and ask.window == self.window)

    def _fold(self, now: float, id: bytes, ask: LeaseAsk, slack: float) -> Replica:
        me = next((each for each in self.replicas if each.id == id), None)
        is_full = self.level + self.out >= ask.capacity - slack
        if me is not None and ask.lag_s > 0 and ask.used > me.used + slack and is_full:
            self.still = now + ask.lag_s
        if me is None:
            granted = ask.granted if self._is_current(ask) else ask.used + ask.given
            me = Replica(id, granted, ask.used, ask.given, now, charged=ask.charged_before)
            self.replicas.append(me)
        elif not self._is_current(ask):
            me.granted = me.lent + ask.used + ask.given
        else:
            returned = ask.given - me.given
            ungranted = max(0.0, ask.granted - me.granted)
            self.level += returned - ungranted
            me.served -= returned
            me.granted = max(ask.granted, me.granted)
        me.used, me.given, me.seen = ask.used, ask.given, now
        if me.lent < 0:
            self.level += me.lent
            me.granted = ask.used + ask.given
        return me

    def _charge(self, me: Replica, now: float, ask: LeaseAsk) -> None:
        """What it took of the rest; what went in a window that began while the store was away is part of this one."""
        due = max(0.0, ask.charged - me.charged)
        me.charged = max(ask.charged, me.charged)
        if ask.kind == "window" and self.ends == 0 and due > 0:
            self.window, self.ends = self.window + 1, now + ask.window_s
        self._part_out(now, ask, due)

    def _note_want(self, me: Replica, ask: LeaseAsk, slack: float) -> None:
        was_waiting = me.lacks > slack
        holds = max(0.0, ask.granted - ask.used - ask.given) if self._is_current(ask) else 0.0
        coming = me.lent - holds
        me.is_whole = ask.want % 1 == 0 and ask.first % 1 == 0
        me.want, me.first, me.keep = max(0.0, max(ask.want, ask.first) - coming), max(0.0, ask.first - coming), ask.keep
        if me.is_whole:
            me.want, me.first = float(ceil(me.want - slack)), float(ceil(me.first - slack))
        surplus = max(0.0, me.aside - me.want)
        me.aside -= surplus
        me.served -= surplus
        self.level += surplus
        if me.lacks > slack and not was_waiting:
            me.served = max(me.served, self.turn)
            self.replicas.remove(me)
            self.replicas.append(me)  # among those who were served alike, who has waited for longest comes first

    def _cap_level(self, ask: LeaseAsk) -> None:
        if ask.kind == "slots":
            self.level = ask.capacity - self.out
        else:
            self.level = min(self.level, min(ask.capacity, ask.ceiling) - self.out - self.apart)

    # --- who gets what ---

    def _give(self, each: Replica, amount: float) -> None:
        each.aside += amount
        each.served += amount
        self.level -= amount

    def _share_out(self, ask: LeaseAsk, slack: float) -> None:
        if ask.kind == "slots":
            for each in self.replicas:
                each.served = each.lent + each.aside
        waiting = [each for each in self.replicas if each.lacks > slack]
        most_kept = max((each.keep for each in waiting), default=0.0)
        if waiting and sum(each.lacks for each in waiting) + most_kept > self.level + slack:
            self._take_turns(len(waiting), ask, slack)
            return
        self.turn = 0.0
        for each in self.replicas:
            self._give(each, max(0.0, each.lacks))
            each.served = 0.0

    def _take_turns(self, waiting: int, ask: LeaseAsk, slack: float) -> None:
        quantum = max(self.level / (8 * waiting), ask.capacity / 1024)
        barrier = inf
        hopeless: list[Replica] = []
        for _ in range(STEPS):
            able = [
                each for each in self.replicas if each.lacks > slack and each.keep < barrier and each not in hopeless
            ]
            if not able:
                return
            each = min(able, key=lambda one: one.served)
            amount, is_hopeless = self._amount_for(each, quantum, ask, slack)
            if is_hopeless:
                hopeless.append(each)
            elif amount <= slack:
                barrier = each.keep
            else:
                self.turn = max(self.turn, each.served)
                self._give(each, amount)

    def _amount_for(self, each: Replica, quantum: float, ask: LeaseAsk, slack: float) -> tuple[float, bool]:
        """What it can have now; and whether there is no use in saving up for it."""
        quantum = max(1.0, floor(quantum)) if each.is_whole else quantum
        level, least = self.level + slack, each.least
        is_large = least + each.keep > ask.capacity
        if least > 0 and level < (max(least, ask.capacity - self.out) if is_large else least + each.keep):
            return 0.0, is_large
        amount = min(each.lacks, max(least, min(max(least, quantum), level - each.keep)))
        return (floor(amount) if each.is_whole else amount), False

    # --- the answer ---

    def _hand_over(self, me: Replica, now: float, ask: LeaseAsk, slack: float) -> None:
        if ask.kind == "window" and self.ends == 0 and self.out > slack:
            self.window, self.ends = self.window + 1, now + ask.window_s
        me.granted += me.aside
        me.want, me.first, me.aside = me.lacks, me.least, 0.0

    def _fair_slots(self, slack: float) -> float:
        """The max-min fair share of each, in whole slots."""
        wishes = sorted(each.lent + max(each.aside, each.want) for each in self.replicas)
        left = self.capacity
        for place, wish in enumerate(wishes):
            part = left / (len(wishes) - place)
            if wish > part + slack:
                return floor(part + slack)
            left -= wish
        return inf

    def _most_slots(self, slack: float) -> float:
        """Slots are never used up, so whoever has them could keep them for ever: not while others wait with fewer."""
        fair = self._fair_slots(slack)
        is_unfair = any(each.lacks > slack and each.lent + each.aside < max(1, fair) for each in self.replicas)
        return fair if is_unfair else inf

    def _most_held(self, ask: LeaseAsk, slack: float) -> float:
        """Nothing, when somebody's call is so large that it cannot go as long as others hold what they do."""
        room = ask.capacity - self.out
        is_blocked = any(
            each.lacks > slack and room + 10 * slack < each.least <= ask.capacity for each in self.replicas
        )
        return 0.0 if is_blocked else inf

    def _retry_s(self, me: Replica, now: float, ask: LeaseAsk, slack: float) -> float:
        if me.lacks <= slack:
            return 0.0
        if ask.kind == "slots":
            return SLOTS_S
        wait_s = self.ends - now if ask.kind == "window" else self._refilled_in_s(me, ask, slack)
        return min(LATE_S, max(SOON_S if me.first > 0 else AHEAD_S, wait_s))

    def _refilled_in_s(self, me: Replica, ask: LeaseAsk, slack: float) -> float:
        need = me.first if me.first > 0 else min(me.want, max(1.0, ask.rate_per_s * AHEAD_S))
        for each in self.replicas:
            if each.lacks > slack and each.served < me.served and each.keep <= me.keep:
                need = need + min(each.lacks, max(each.least, me.served - each.served))
        return (need + me.keep - self.level) / ask.rate_per_s if ask.rate_per_s > 0 else LATE_S
