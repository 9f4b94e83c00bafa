"""What persons have done by hand to targets and accounts, here and at other replicas: it holds for all of them.

The last act counts. What still holds is told again, so that a store which has lost it still tells newcomers. It must not know
how an act is carried out. Invariants: an act that was heard is told again only to keep it; all that is kept is bounded.
"""

from __future__ import annotations

from secrets import token_hex
from typing import NamedTuple

from gateway.core.admission.admission.admission import Admission
from gateway.core.admission.outcomes.health import Hand
from gateway.core.admission.queue.queue.held import WaitingLine
from gateway.core.clock import Clock
from gateway.core.health.breaker.breaker import Breaker
from gateway.core.ports import News, NewsItem
from gateway.fleet.news.codec import BreakerMove, read_hand, write_hand, write_move
from gateway.fleet.news.news_memory import MOST_KEPT, KnownEnds

HAND_S = 7 * 86_400.0
"""Seconds for which an act by hand is kept for replicas that start later; it is told anew after half of them."""
REMIND_S = 10.0
"""Seconds until what holds by hand is told again; a store that has kept it passes that on to nobody."""
SLACK_S = 1.0
"""Seconds by which the time of an act may be wrong."""
HELD = ("open", "drained")
"""The acts that hold until a person undoes them."""
ENDS = ("pause", "quota", "breaker")
"""The kinds of news that are over when a target is closed by hand."""


class _Act(NamedTuple):
    """The last act by hand, and its time."""

    to: Hand
    token: str
    at: float


class HandNews:
    """The acts of persons, told and heard; in the loop's thread."""

    __slots__ = ("_began_at", "_clock", "_ends", "_gates", "_has_reminder", "_health", "_news", "acts")

    def __init__(self, clock: Clock, news: News, admission: Admission, ends: KnownEnds) -> None:
        """`ends` is what is known of pauses, quotas and breakers: closing by hand ends them."""
        self._clock = clock
        self._news = news
        self._gates = admission.gates
        self._health = admission.health
        self._ends = ends
        self._has_reminder = False
        self._began_at = clock.monotonic()
        self.acts: dict[str, _Act] = {}
        """The last act, by the name that was acted on."""

    def forced(self, name: str, to: Hand) -> None:
        """Tells the other replicas what a person has done here."""
        if self._gates.names.is_callers(name):
            return
        act = _Act(to, token_hex(4), self._clock.monotonic())
        self._note_act(name, act)
        self._tell_act(name, act, HAND_S)
        if to == "closed":
            gates = {
                line.gate.name for line in self.lines_named(name) if not self._gates.names.is_callers(line.gate.name)
            }
            for one in gates | ({name} & self._gates.accounts.keys()):
                self._tell_over(one)

    def _note_act(self, name: str, act: _Act) -> None:
        self.acts.pop(name, None)
        if len(self.acts) >= MOST_KEPT:
            del self.acts[next(iter(self.acts))]
        self.acts[name] = act
        if act.to in HELD and not self._has_reminder:
            self._has_reminder = True
            self._clock.call_at(self._clock.monotonic() + REMIND_S, self._remind)

    def _tell_act(self, name: str, act: _Act, left_s: float) -> None:
        self._news.tell(NewsItem("hand", name, left_s, write_hand(act.to, act.token)), lasts=True)

    def _remind(self) -> None:
        """Tells the store again what holds by hand, in case it has lost it; one that has kept it passes nothing on."""
        now = self._clock.monotonic()
        held = [(name, act) for name, act in self.acts.items() if act.to in HELD and self._is_held(name)]
        for name, act in held:
            if now - act.at > HAND_S / 2:
                self.acts[name] = act = act._replace(at=now)
            self._tell_act(name, act, act.at + HAND_S - now - (SLACK_S if act.at < now else 0.0))
        self._has_reminder = bool(held)
        if held:
            self._clock.call_at(now + REMIND_S, self._remind)

    def _is_held(self, name: str) -> bool:
        return any(breaker.is_by_hand for breaker in self._breakers_named(name))

    def _tell_over(self, name: str) -> None:
        """Withdraws news that would keep replicas that start later away."""
        self._ends.forget(*ENDS, name=name)
        self._news.tell(NewsItem("pause", name, 0.0), lasts=True)
        self._news.tell(NewsItem("quota", name, 0.0), lasts=True)
        self._news.tell(NewsItem("breaker", name, 0.0, write_move(BreakerMove(False, 0, "closed by hand"))), lasts=True)

    def hear(self, item: NewsItem) -> bool:
        """Does what a person has done at another replica; returns False for a name that is not known here."""
        read = read_hand(item.detail)
        if read is None:
            return True
        act = _Act(*read, self._clock.monotonic() - max(0.0, HAND_S - item.left_s))
        known = self.acts.get(item.name)
        if known is not None and known.token == act.token:
            self.acts[item.name] = known._replace(at=max(known.at, act.at))
            return True
        if known is not None and act.at < known.at - SLACK_S:
            return True  # something else was done since
        if not self.lines_named(item.name) and item.name not in self._gates.accounts:
            return False
        self._note_act(item.name, act)
        if act.to != "closed":
            self._health.told_force(item.name, act.to)
        elif act.at < self._began_at - SLACK_S:
            self._unhand(item.name)
        elif self._is_amiss(item.name):
            for line in self.lines_named(item.name):
                self._ends.forget(*ENDS, name=line.gate.name)
            self._health.told_force(item.name, act.to)
        return True

    def _unhand(self, name: str) -> None:
        """Undoes older acts on a name that was closed before this process began; what has come since is left as it is."""
        for breaker in self._breakers_named(name):
            if breaker.is_by_hand:
                breaker.force("closed", self._clock.monotonic())

    def _is_amiss(self, name: str) -> bool:
        """Returns whether closing by hand would change anything: an act that is kept is heard at each start, too."""
        now = self._clock.monotonic()
        return any(not line.gate.health.is_clear or line.gate.pauses.ends_at > now for line in self.lines_named(name))

    def lines_named(self, name: str) -> list[WaitingLine]:
        """Returns the lines of the gates that an operator means by the name of a gate, a target or an account."""
        lines = self._gates.meant(name)
        account = self._gates.accounts.get(name)
        return lines or ([] if account is None else self._gates.of_account(account))

    def _breakers_named(self, name: str) -> list[Breaker]:
        """Returns the breakers that an operator sets by the name."""
        if name in self._gates.accounts and name not in self._gates.lines:
            return [self._gates.accounts[name].breaker]
        lines = self.lines_named(name)
        return [line.gate.health.breaker for line in lines if not self._gates.names.is_callers(line.gate.name)]
