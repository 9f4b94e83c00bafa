"""What replicas tell each other of targets and accounts, and what is done here with what others tell.

    pause, quota      a provider's word, or ours where it gave none: everybody keeps away for as long; the latest end wins
    limit             what an answer has told of the provider's limits
    breaker           it opened or closed by itself: a replica with its own recent evidence ignores it, the others adopt it
    hand              opened, drained, closed or undone by a person: that holds for all; `hand_news.py`

Nothing of a caller's own credential is told: its gates have names that no other process knows. What concerns a gate that is
not there yet is remembered until it is, or is over. Invariants: what was heard is never told again; a pause is only ever
made longer by news; all that is kept here is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Literal

from gateway.core.admission.admission.admission import Admission
from gateway.core.admission.queue.queue.held import WaitingLine
from gateway.core.clock import Clock
from gateway.core.health.breaker.breaker import Breaker
from gateway.core.health.target_health.target_health.fleet_view import FleetView
from gateway.core.health.target_health.target_health.target_health import Account
from gateway.core.limits.headers.provider_headers import Learned
from gateway.core.limits.target_limits.gate.gate import BURST, Gate
from gateway.core.ports import News, NewsItem
from gateway.fleet.leases.probe_turns import ProbeTurns
from gateway.fleet.news.codec import (
    BreakerMove,
    read_limits,
    read_move,
    write_limits,
    write_move,
)
from gateway.fleet.news.hand_news import HandNews
from gateway.fleet.news.news_memory import MOST_KEPT, KnownEnds, KnownLimits, UnmetNews

LIMIT_S = 3600.0
"""Seconds for which a learned limit is kept for replicas that start later; it is told again after half of them."""
LIMIT_GRAIN_S = 1.0
"""Seconds between two reports of a gate's limits, however often they change."""
FIRST_GO = 0.9
"""The part of an ejection that peers are told of: they may try before the replica whose calls have failed."""
GRAIN_S, GRAIN = 0.05, 0.01
"""An end that is later by less than this, or by less than this share of what is left, is no news."""
LEAST_LONGER = 0.5
"""A breaker that opens again before the time that was told is over is news if it is for longer by this share."""
_MINUTE_S = 60.0
Handler = Callable[[bytes], None]


class FleetNews:
    """Carries news between the gates and breakers of this process and the fleet; used in the loop's thread."""

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
        self._health = admission.health
        self._queue = admission.queue
        self._turns = ProbeTurns(clock, news, self._gates, self._health, self._queue, draw)
        self._handlers = {"vector": on_vector, "purge": on_purge}
        self._ends = KnownEnds()
        self._limits: dict[str, KnownLimits] = {}
        self._hands = HandNews(clock, news, admission, self._ends)
        self._unmet = UnmetNews()
        self._gates.on_open = self._meet
        self._health.on_change = self._breaker_changed
        self._health.on_force = self._hands.forced
        for line in self._gates.lines.values():
            self._meet(line)
        news.listen(self.hear)

    # What is told.

    def paused(self, name: str, left_s: float, now: float) -> None:
        """As of `GateNews`."""
        self._tell_end("pause", name, left_s, now)

    def exhausted(self, name: str, left_s: float, now: float) -> None:
        """As of `GateNews`."""
        self._tell_end("quota", name, left_s, now)

    def learned(self, name: str, learned: Learned, now: float) -> None:
        """As of `GateNews`."""
        known = self._known(name)
        if now < known.at + LIMIT_GRAIN_S:
            return  # what still differs then is told with a later answer
        is_new = now >= known.at + LIMIT_S / 2
        for limit, reading in learned.by_limit():
            if reading.limit is not None and known.changes(limit, (reading.limit, reading.period_s)):
                is_new = True
        if is_new and known.limits:
            known.at = now
            self._news.tell(NewsItem("limit", name, LIMIT_S, write_limits(known.limits)), lasts=True)

    def burst(self, name: str, burst: float, now: float) -> None:
        """As of `GateNews`."""
        known = self._known(name)
        if known.changes(BURST, (burst, _MINUTE_S)):
            known.at = now
            self._news.tell(NewsItem("limit", name, LIMIT_S, write_limits(known.limits)), lasts=True)

    def _tell_end(self, kind: Literal["pause", "quota"], name: str, left_s: float, now: float) -> None:
        told = self._ends.get((kind, name))
        if now + left_s > told + max(GRAIN_S, GRAIN * left_s):
            self._ends.note((kind, name), now + left_s, now)
            self._news.tell(NewsItem(kind, name, left_s), lasts=True)

    def _breaker_changed(self, name: str, state: str, reason: str) -> None:
        breaker = self._breaker(name)
        if breaker is None:
            return
        self._turns.state_changed(breaker)
        if not breaker.is_news or self._gates.names.is_callers(name):
            return
        now, account, is_open = self._clock.monotonic(), self._gates.accounts.get(name), state == "open"
        left_s = (breaker.probe_at - now) * FIRST_GO if is_open else 0.0
        if not is_open:
            self._ends.forget("breaker", name=name)
        elif now + left_s <= self._ends.get(("breaker", name)) + LEAST_LONGER * left_s:
            return  # it was tried again in between, in vain, and all keep away already
        else:
            self._ends.note(("breaker", name), now + left_s, now)
        is_refused = account is not None and account.is_refused
        move = BreakerMove(is_open, breaker.ejections, reason, is_refused, breaker.failure_rate(now))
        self._news.tell(NewsItem("breaker", name, left_s, write_move(move)), lasts=True)

    # What is heard.

    def hear(self, item: NewsItem) -> None:
        """Acts on what another replica has told."""
        if not 0.0 <= item.left_s < inf:
            return
        handler = self._handlers.get(item.kind)
        if handler is not None:
            handler(item.detail)
        elif item.kind == "breaker":
            self._hear_move(item)
        elif item.kind == "hand":
            if not self._hands.hear(item):
                self._unmet.keep(item, self._clock.monotonic())
        elif item.kind in ("pause", "quota", "limit"):
            self._hear_of_gate(item)

    def _hear_of_gate(self, item: NewsItem) -> None:
        line = self._gates.lines.get(item.name)
        if line is None:
            self._unmet.keep(item, self._clock.monotonic())
            return
        now, gate = self._clock.monotonic(), line.gate
        if item.kind == "limit":
            self._hear_limits(gate, item, now)
        elif item.left_s:
            self._ends.note((item.kind, item.name), now + item.left_s, now)
            if item.kind == "pause":
                gate.peer_paused(item.left_s, now)
            else:
                gate.peer_exhausted(item.left_s, now)
                self._queue.shut(line)

    def _hear_limits(self, gate: Gate, item: NewsItem, now: float) -> None:
        known = self._known(gate.name)
        known.at = now
        for name, amount in read_limits(item.detail).items():
            if known.changes(name, amount):
                gate.peer_learned(name, *amount, now)

    def _hear_move(self, item: NewsItem) -> None:
        move, breaker = read_move(item.detail), self._breaker(item.name)
        if breaker is None or move is None:
            self._unmet.keep(item, self._clock.monotonic())
            return
        now, account = self._clock.monotonic(), self._gates.accounts.get(item.name)
        if not move.is_open:
            self._ends.forget("breaker", name=item.name)
            if account is not None and not breaker.is_by_hand:
                account.is_refused = False
            FleetView(breaker).peer_closed(move.reason, now)
        elif item.left_s:
            if FleetView(breaker).peer_opened(now + item.left_s, move.ejections, move.reason, now, move.rate):
                for line in self._health.lines_of(item.name):
                    self._queue.shut(line)  # whoever has waited for the probe would wait for the next
            if account is not None and breaker.state == "open":
                account.is_refused = account.is_refused or move.is_refused

    # Gates that come.

    def _meet(self, line: WaitingLine) -> None:
        gate = line.gate
        if self._gates.names.is_callers(gate.name):
            return
        account = gate.health.account
        gate.news = self
        gate.health.breaker.ask_leave = self._turns.ask
        self._recall(gate.name)
        if self._is_shared(account) and account.breaker.ask_leave is None:
            account.breaker.ask_leave = self._turns.ask
            self._recall(account.name)

    def _recall(self, name: str) -> None:
        for item in self._unmet.take(name, self._clock.monotonic()):
            self.hear(item)

    def _known(self, name: str) -> KnownLimits:
        if len(self._limits) >= MOST_KEPT:
            self._limits = {one: known for one, known in self._limits.items() if one in self._gates.lines}
        return self._limits.setdefault(name, KnownLimits())

    def _breaker(self, name: str) -> Breaker | None:
        line, account = self._gates.lines.get(name), self._gates.accounts.get(name)
        if line is not None:
            return line.gate.health.breaker
        return None if account is None else account.breaker

    def _is_shared(self, account: Account) -> bool:
        """Returns whether the account is one of the config's; one that a caller brings concerns no other replica."""
        return self._gates.accounts.get(account.name) is account
