"""What replicas tell each other of targets and accounts, and what is done here with what others tell.

    pause, quota      a provider's word, or ours where it gave none: everybody keeps away for as long; the latest end wins
    limit             what an answer has told of the provider's limits
    breaker           it opened or closed by itself: whoever has seen much judges for himself, the others take the word
    hand              opened, drained, closed or undone by a person: that holds for all; the last act counts, and what still
                      holds is told again, lest a store that has lost it leaves newcomers without

Nothing of a caller's own credential is told: its gates have names that no other process knows. What concerns a gate that is
not there yet is remembered until it is, or is over. Invariants: what was heard is never told again; a pause is only ever
made longer by news; all that is kept here is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf
from operator import itemgetter
from secrets import token_hex
from typing import Literal, NamedTuple

from gateway.clock import Clock
from gateway.flow.admission.admission import Admission
from gateway.flow.admission.health import Hand
from gateway.flow.admission.queue import Line
from gateway.flow.fleet.codec import (
    Amount,
    BreakerMove,
    read_hand,
    read_limits,
    read_move,
    write_hand,
    write_limits,
    write_move,
)
from gateway.flow.fleet.probe_turns import ProbeTurns
from gateway.policy.health.breaker import Breaker
from gateway.policy.health.fleet_view import FleetView
from gateway.policy.health.target_health import Account
from gateway.policy.limits.gate import BURST, Gate
from gateway.policy.limits.provider_headers import Learned
from gateway.ports import News, NewsItem

LIMIT_S = 3600.0
"""So long a learned limit is kept for those who come later; told again after half of it."""
LIMIT_GRAIN_S = 1.0
"""A gate's limits are told no more often, however often they change."""
HAND_S = 7 * 86_400.0
"""So long what was done by hand is kept for those who come later; told anew after half of it, where it still holds."""
REMIND_S = 10.0
"""What holds by hand is told again so often, unless it is kept: then the store tells nobody."""
SLACK_S = 1.0
"""When something was told is known no better."""
FIRST_GO = 0.9
"""Others are told to leave a target alone for so much of the time: then it is not whoever has failed that tries first."""
GRAIN_S, GRAIN = 0.05, 0.01
"""An end that is later by less than this, or by less than this share of what is left, is no news."""
LEAST_LONGER = 0.5
"""A breaker that opens again before the time that was told is over is news if it is for longer by this share."""
_MINUTE_S = 60.0
CHANGED = 0.01
"""A limit that differs by less than this share is the same."""
MOST_KEPT = 4096
"""Ends, limits, hands and things heard of unknown gates, each."""

HELD = ("open", "drained")
"""What holds until a person says otherwise."""

About = tuple[str, str]
"""A kind of news, and the name it is about."""
Handler = Callable[[bytes], None]


@dataclass(slots=True)
class _Known:
    """What is known of a target's limits, by name, and when it was told or heard last."""

    limits: dict[str, Amount] = field(default_factory=dict)
    at: float = -inf


class _Act(NamedTuple):
    """What was done by hand last, and when."""

    to: Hand
    token: str
    at: float


class _Unmet(NamedTuple):
    """News of a gate that is not there yet."""

    ends_at: float
    order: int
    item: NewsItem


class FleetNews:
    """Between the gates and breakers of this process and the news of the fleet; in the loop's thread."""

    def __init__(
        self,
        clock: Clock,
        news: News,
        admission: Admission,
        draw: Callable[[], float],
        on_vector: Handler | None = None,
        on_purge: Handler | None = None,
    ) -> None:
        """`draw` gives uniform numbers from [0, 1); the handlers get the details of news that is about other things."""
        self._clock = clock
        self._news = news
        self._gates = admission.gates
        self._outages = admission.outages
        self._queue = admission.queue
        self._turns = ProbeTurns(clock, news, self._gates, self._outages, self._queue, draw)
        self._handlers = {"vector": on_vector, "purge": on_purge}
        self._ends: dict[About, float] = {}  # of pauses and quotas, as told or heard; of breakers, as told
        self._limits: dict[str, _Known] = {}
        self._hands: dict[str, _Act] = {}
        self._has_reminder = False
        self._began_at = clock.monotonic()
        self._unmet: dict[About, _Unmet] = {}
        self._orders = count()
        self._gates.on_open = self._meet
        self._outages.on_change = self._breaker_changed
        self._outages.on_force = self._forced
        for line in self._gates.lines.values():
            self._meet(line)
        news.listen(self.hear)

    # What is told.

    def paused(self, gate: Gate, left_s: float, now: float) -> None:
        """As of `GateNews`."""
        self._tell_end("pause", gate.name, left_s, now)

    def exhausted(self, gate: Gate, left_s: float, now: float) -> None:
        """As of `GateNews`."""
        self._tell_end("quota", gate.name, left_s, now)

    def learned(self, gate: Gate, learned: Learned, now: float) -> None:
        """As of `GateNews`."""
        known = self._known(gate.name)
        if now < known.at + LIMIT_GRAIN_S:
            return  # what still differs then is told with a later answer
        is_new = now >= known.at + LIMIT_S / 2
        for name, reading in learned.by_limit():
            if reading.limit is not None and _differs(known.limits.get(name), (reading.limit, reading.period_s)):
                known.limits[name] = reading.limit, reading.period_s
                is_new = True
        if is_new and known.limits:
            known.at = now
            self._news.tell(NewsItem("limit", gate.name, LIMIT_S, write_limits(known.limits)), lasts=True)

    def burst(self, gate: Gate, burst: float, now: float) -> None:
        """As of `GateNews`."""
        known = self._known(gate.name)
        if _differs(known.limits.get(BURST), (burst, _MINUTE_S)):
            known.limits[BURST] = burst, _MINUTE_S
            known.at = now
            self._news.tell(NewsItem("limit", gate.name, LIMIT_S, write_limits(known.limits)), lasts=True)

    def _tell_end(self, kind: Literal["pause", "quota"], name: str, left_s: float, now: float) -> None:
        told = self._ends.get((kind, name), -inf)
        if now + left_s > told + max(GRAIN_S, GRAIN * left_s):
            self._note_end((kind, name), now + left_s, now)
            self._news.tell(NewsItem(kind, name, left_s), lasts=True)

    def _note_end(self, about: About, ends_at: float, now: float) -> None:
        if len(self._ends) >= MOST_KEPT:  # half of the room is made at once: seldom, then
            lasting = sorted((one for one in self._ends.items() if one[1] > now), key=itemgetter(1))
            self._ends = dict(lasting[-MOST_KEPT // 2 :])
        self._ends[about] = max(ends_at, self._ends.get(about, -inf))

    def _breaker_changed(self, name: str, state: str, reason: str) -> None:
        breaker = self._breaker(name)
        if breaker is None:
            return
        self._turns.state_changed(breaker)
        if not breaker.is_news or self._gates.is_callers(name):
            return
        now, account, is_open = self._clock.monotonic(), self._gates.accounts.get(name), state == "open"
        left_s = (breaker.probe_at - now) * FIRST_GO if is_open else 0.0
        if not is_open:
            self._ends.pop(("breaker", name), None)
        elif now + left_s <= self._ends.get(("breaker", name), -inf) + LEAST_LONGER * left_s:
            return  # it was tried again in between, in vain, and all keep away already
        else:
            self._note_end(("breaker", name), now + left_s, now)
        is_refused = account is not None and account.is_refused
        move = BreakerMove(is_open, breaker.ejections, reason, is_refused, breaker.failure_rate(now))
        self._news.tell(NewsItem("breaker", name, left_s, write_move(move)), lasts=True)

    def _forced(self, name: str, to: Hand) -> None:
        if self._gates.is_callers(name):
            return
        act = _Act(to, token_hex(4), self._clock.monotonic())
        self._note_act(name, act)
        self._tell_act(name, act, HAND_S)
        if to == "closed":
            gates = {line.gate.name for line in self._lines_named(name) if not self._gates.is_callers(line.gate.name)}
            for one in gates | ({name} & self._gates.accounts.keys()):
                self._tell_over(one)

    def _note_act(self, name: str, act: _Act) -> None:
        self._hands.pop(name, None)
        if len(self._hands) >= MOST_KEPT:
            del self._hands[next(iter(self._hands))]
        self._hands[name] = act
        if act.to in HELD and not self._has_reminder:
            self._has_reminder = True
            self._clock.call_at(self._clock.monotonic() + REMIND_S, self._remind)

    def _tell_act(self, name: str, act: _Act, left_s: float) -> None:
        self._news.tell(NewsItem("hand", name, left_s, write_hand(act.to, act.token)), lasts=True)

    def _remind(self) -> None:
        """A store that has lost it keeps it again; one that has it tells nobody, as this ends no later."""
        now = self._clock.monotonic()
        held = [(name, act) for name, act in self._hands.items() if act.to in HELD and self._is_held(name)]
        for name, act in held:
            if now - act.at > HAND_S / 2:
                self._hands[name] = act = act._replace(at=now)
            self._tell_act(name, act, act.at + HAND_S - now - (SLACK_S if act.at < now else 0.0))
        self._has_reminder = bool(held)
        if held:
            self._clock.call_at(now + REMIND_S, self._remind)

    def _is_held(self, name: str) -> bool:
        return any(breaker.is_by_hand for breaker in self._breakers_named(name))

    def _tell_over(self, name: str) -> None:
        """Whoever comes later need not keep away any more."""
        self._forget_ends(name)
        self._news.tell(NewsItem("pause", name, 0.0), lasts=True)
        self._news.tell(NewsItem("quota", name, 0.0), lasts=True)
        self._news.tell(NewsItem("breaker", name, 0.0, write_move(BreakerMove(False, 0, "closed by hand"))), lasts=True)

    def _forget_ends(self, name: str) -> None:
        self._ends.pop(("pause", name), None)
        self._ends.pop(("quota", name), None)
        self._ends.pop(("breaker", name), None)

    # What is heard.

    def hear(self, item: NewsItem) -> None:
        """Another replica has told this."""
        if not 0.0 <= item.left_s < inf:
            return
        handler = self._handlers.get(item.kind)
        if handler is not None:
            handler(item.detail)
        elif item.kind == "breaker":
            self._hear_move(item)
        elif item.kind == "hand":
            self._hear_hand(item)
        elif item.kind in ("pause", "quota", "limit"):
            self._hear_of_gate(item)

    def _hear_of_gate(self, item: NewsItem) -> None:
        line = self._gates.lines.get(item.name)
        if line is None:
            self._remember(item)
            return
        now, gate = self._clock.monotonic(), line.gate
        if item.kind == "limit":
            self._hear_limits(gate, item, now)
        elif item.left_s:
            self._note_end((item.kind, item.name), now + item.left_s, now)
            if item.kind == "pause":
                gate.told_pause(item.left_s, now)
            else:
                gate.told_exhausted(item.left_s, now)
                self._queue.shut(line)

    def _hear_limits(self, gate: Gate, item: NewsItem, now: float) -> None:
        known = self._known(gate.name)
        known.at = now
        for name, amount in read_limits(item.detail).items():
            if _differs(known.limits.get(name), amount):
                known.limits[name] = amount
                gate.told_limit(name, *amount, now)

    def _hear_move(self, item: NewsItem) -> None:
        move, breaker = read_move(item.detail), self._breaker(item.name)
        if breaker is None or move is None:
            self._remember(item)
            return
        now, account = self._clock.monotonic(), self._gates.accounts.get(item.name)
        if not move.is_open:
            self._ends.pop(("breaker", item.name), None)
            if account is not None and not breaker.is_by_hand:
                account.is_refused = False
            FleetView(breaker).peer_closed(move.reason, now)
        elif item.left_s:
            if FleetView(breaker).peer_opened(now + item.left_s, move.ejections, move.reason, now, move.rate):
                for line in self._outages.lines_of(item.name):
                    self._queue.shut(line)  # whoever has waited for the probe would wait for the next
            if account is not None and breaker.state == "open":
                account.is_refused = account.is_refused or move.is_refused

    def _hear_hand(self, item: NewsItem) -> None:
        read = read_hand(item.detail)
        if read is None:
            return
        act = _Act(*read, self._clock.monotonic() - max(0.0, HAND_S - item.left_s))
        known = self._hands.get(item.name)
        if known is not None and known.token == act.token:
            self._hands[item.name] = known._replace(at=max(known.at, act.at))
            return
        if known is not None and act.at < known.at - SLACK_S:
            return  # something else was done since
        if not self._lines_named(item.name) and item.name not in self._gates.accounts:
            self._remember(item)
            return
        self._note_act(item.name, act)
        if act.to != "closed":
            self._outages.told_force(item.name, act.to)
        elif act.at < self._began_at - SLACK_S:
            self._unhand(item.name)
        elif self._is_amiss(item.name):
            for line in self._lines_named(item.name):
                self._forget_ends(line.gate.name)
            self._outages.told_force(item.name, act.to)

    def _unhand(self, name: str) -> None:
        """It was closed before this process began: whatever has come since is not what was closed, but for older acts."""
        for breaker in self._breakers_named(name):
            if breaker.is_by_hand:
                breaker.force("closed", self._clock.monotonic())

    def _is_amiss(self, name: str) -> bool:
        """Whether there is anything that closing by hand would change: what is kept of it is heard at each start, too."""
        now = self._clock.monotonic()
        return any(not line.gate.vitals.is_clear or line.gate.paused_until > now for line in self._lines_named(name))

    # Gates that come.

    def _meet(self, line: Line) -> None:
        gate = line.gate
        if self._gates.is_callers(gate.name):
            return
        account = gate.vitals.account
        gate.news = self
        gate.vitals.breaker.ask_leave = self._turns.ask
        self._recall(gate.name)
        if self._is_shared(account) and account.breaker.ask_leave is None:
            account.breaker.ask_leave = self._turns.ask
            self._recall(account.name)

    def _remember(self, item: NewsItem) -> None:
        now, about = self._clock.monotonic(), (item.kind, item.name)
        if not item.left_s:
            self._unmet.pop(about, None)
            return
        if len(self._unmet) >= MOST_KEPT:
            self._unmet = {one: kept for one, kept in self._unmet.items() if kept.ends_at > now}
        if len(self._unmet) < MOST_KEPT:
            self._unmet[about] = _Unmet(now + item.left_s, next(self._orders), item)

    def _recall(self, name: str) -> None:
        if not self._unmet:
            return
        now = self._clock.monotonic()
        kept = [self._unmet.pop((kind, name), None) for kind in ("limit", "pause", "quota", "breaker", "hand")]
        for ends_at, _, item in sorted((one for one in kept if one is not None), key=itemgetter(1)):
            if ends_at > now:
                self.hear(item._replace(left_s=ends_at - now))

    def _known(self, name: str) -> _Known:
        if len(self._limits) >= MOST_KEPT:
            self._limits = {one: known for one, known in self._limits.items() if one in self._gates.lines}
        return self._limits.setdefault(name, _Known())

    def _lines_named(self, name: str) -> list[Line]:
        """Those that an operator means by the name: a gate's, a target's, or an account's."""
        lines = self._gates.meant(name)
        account = self._gates.accounts.get(name)
        return lines or ([] if account is None else self._gates.of_account(account))

    def _breakers_named(self, name: str) -> list[Breaker]:
        """Those that are set when an operator says the name."""
        if name in self._gates.accounts and name not in self._gates.lines:
            return [self._gates.accounts[name].breaker]
        lines = self._lines_named(name)
        return [line.gate.vitals.breaker for line in lines if not self._gates.is_callers(line.gate.name)]

    def _breaker(self, name: str) -> Breaker | None:
        line, account = self._gates.lines.get(name), self._gates.accounts.get(name)
        if line is not None:
            return line.gate.vitals.breaker
        return None if account is None else account.breaker

    def _is_shared(self, account: Account) -> bool:
        """Whether it is one of the config's: a caller's own is nobody else's business."""
        return self._gates.accounts.get(account.name) is account


def _differs(before: Amount | None, now: Amount) -> bool:
    return before is None or before[1] != now[1] or abs(before[0] - now[0]) > CHANGED * before[0]
