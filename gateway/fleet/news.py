"""News that replicas send each other about targets and accounts, and what is done here with those of others.

    pause, quota      a provider's word, or ours where it gave none: everybody keeps away for as long; the latest end wins
    limit             what an answer's headers say of the provider's limits
    breaker           it opened or closed by itself: a replica with its own recent evidence ignores it, the others adopt it
    hand              opened, drained, closed or undone by a person: that holds for all (`HandNews`)

Nothing about a caller's own credential is sent: its gates have names that no other process knows. News of a gate that is
not there yet waits until it is, or is over. First comes the format of news, then what is remembered of them, the acts of
persons, `FleetNews` itself, and the turns at probing. Invariants: what was received is never sent again, but for acts by
hand, to keep them; an end is only ever made later by news; all that is kept here is bounded; what cannot be read (another
release's, garbage) is None or empty, and no number that is read is negative, infinite or not a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf, isfinite
from operator import itemgetter
from secrets import token_hex
from typing import Literal, NamedTuple

from gateway.core.admission.admission import Admission
from gateway.core.admission.gates import Gates, Hand, HealthPropagation
from gateway.core.admission.queue import DelayQueue, WaitingLine
from gateway.core.clock import Clock, Timer
from gateway.core.health.breaker import Breaker
from gateway.core.health.target_health import Account
from gateway.core.limits.headers import Learned
from gateway.core.limits.target_limits import BURST, Gate
from gateway.core.ports import PeerBus, PeerMessage
from gateway.fleet.breakers import FleetView

# --- the format: what news of breakers, hands and limits says in detail, as bytes and back ---


MOST_REASON = 240
_MOST_EJECTIONS, _PERCENT = 255, 100
_HEAD = 3
_OPEN, _CLOSED, _REFUSED = 0x4F, 0x43, 0x52
_HANDS: Mapping[str, Hand] = {"open": "open", "closed": "closed", "drained": "drained", "undone": None}
Amount = tuple[float, float]
"""An amount, and the seconds over which it is counted."""


class BreakerMove(NamedTuple):
    """The move of a breaker that nobody set by hand."""

    is_open: bool
    """True if it is open now, False if it is closed."""
    ejections: int
    reason: str
    is_refused: bool = False
    """True of an account whose credential the provider does not take."""
    rate: float = 1.0
    """The share of failures that was seen, 0 to 1."""


def write_move(move: BreakerMove) -> bytes:
    """One letter, two numbers, the reason."""
    letter = _CLOSED if not move.is_open else _REFUSED if move.is_refused else _OPEN
    reason = move.reason.encode()[:MOST_REASON]
    return bytes((letter, min(move.ejections, _MOST_EJECTIONS), round(move.rate * _PERCENT))) + reason


def read_move(detail: bytes) -> BreakerMove | None:
    if len(detail) < _HEAD or detail[0] not in (_OPEN, _CLOSED, _REFUSED):
        return None
    letter, ejections, percent = detail[:_HEAD]
    reason = detail[_HEAD : _HEAD + MOST_REASON].decode(errors="replace")
    return BreakerMove(letter != _CLOSED, ejections, reason, letter == _REFUSED, min(1.0, percent / _PERCENT))


def write_hand(to: Hand, token: str) -> bytes:
    """`token` sets one act apart from another of the same kind."""
    return f"{to or 'undone'} {token}".encode()


def read_hand(detail: bytes) -> tuple[Hand, str] | None:
    """Returns the act and its token."""
    act, _, token = detail.decode(errors="replace").partition(" ")
    return (_HANDS[act], token) if act in _HANDS and token else None


def write_limits(limits: Mapping[str, Amount]) -> bytes:
    """`name=amount/seconds`, with a `;` between two."""
    return ";".join(f"{name}={amount!r}/{period_s!r}" for name, (amount, period_s) in limits.items()).encode()


def read_limits(detail: bytes) -> dict[str, Amount]:
    """Returns the limits that can be read."""
    limits = {}
    for part in detail.decode(errors="replace").split(";"):
        name, _, value = part.partition("=")
        amount, _, period = value.partition("/")
        try:
            pair = float(amount), float(period)
        except ValueError:
            continue
        if all(isfinite(number) and number > 0 for number in pair):
            limits[name] = pair
    return limits


# --- what a replica has sent and received about targets, as far as it has to be known later ---


CHANGED = 0.01
"""A limit that differs by less than this share is the same."""
MOST_KEPT = 4096
"""The most ends, limits, hands and items of unknown gates that are kept, each."""

About = tuple[str, str]
"""A kind of news, and the name it is about."""


@dataclass(slots=True)
class KnownLimits:
    """What is known of targets' limits, by name, and when it was sent or received last."""

    limits: dict[str, Amount] = field(default_factory=dict)
    at: float = -inf

    def changes(self, name: str, amount: Amount) -> bool:
        """Notes the limit; returns whether it differs from what was known of it."""
        before = self.limits.get(name)
        if before is not None and before[1] == amount[1] and abs(before[0] - amount[0]) <= CHANGED * before[0]:
            return False
        self.limits[name] = amount
        return True


class KnownEnds:
    """The ends of pauses and quotas, as sent or received; of breakers, until when peers keep away (monotonic)."""

    __slots__ = ("ends",)

    def __init__(self) -> None:
        self.ends: dict[About, float] = {}

    def get(self, about: About) -> float:
        """Returns the latest end that is known; -inf: none."""
        return self.ends.get(about, -inf)

    def note(self, about: About, ends_at: float, now: float) -> None:
        """Notes an end; an earlier one than is known changes nothing."""
        if len(self.ends) >= MOST_KEPT:  # half of the room is made at once: seldom, then
            lasting = sorted((one for one in self.ends.items() if one[1] > now), key=itemgetter(1))
            self.ends = dict(lasting[-MOST_KEPT // 2 :])
        self.ends[about] = max(ends_at, self.ends.get(about, -inf))

    def forget(self, *kinds: str, name: str) -> None:
        """Drops these kinds of ends for the name, which are over."""
        for kind in kinds:
            self.ends.pop((kind, name), None)


class _Unmet(NamedTuple):
    """News of a gate that is not there yet."""

    ends_at: float
    order: int
    item: PeerMessage


class UnmetNews:
    """News of gates that are not there yet, kept until they are, or until it is over."""

    __slots__ = ("_orders", "items")

    def __init__(self) -> None:
        self.items: dict[About, _Unmet] = {}
        self._orders = count()

    def keep(self, item: PeerMessage, now: float) -> None:
        """Keeps the item in place of an older one of its kind; one that is over drops that."""
        about = item.kind, item.name
        if not item.left_s:
            self.items.pop(about, None)
            return
        if len(self.items) >= MOST_KEPT:
            self.items = {one: kept for one, kept in self.items.items() if kept.ends_at > now}
        if len(self.items) < MOST_KEPT:
            self.items[about] = _Unmet(now + item.left_s, next(self._orders), item)

    def take(self, name: str, now: float) -> list[PeerMessage]:
        """Takes out what was kept for the name and returns what of it is not over, in the order in which it came."""
        if not self.items:
            return []
        kept = [self.items.pop((kind, name), None) for kind in ("limit", "pause", "quota", "breaker", "hand")]
        present = sorted((one for one in kept if one is not None), key=itemgetter(1))
        return [one.item._replace(left_s=one.ends_at - now) for one in present if one.ends_at > now]


# --- the acts of persons, here and at other replicas ---


HAND_S = 7 * 86_400.0
"""Seconds for which an act by hand is kept for replicas that start later; it is sent anew after half of them."""
REMIND_S = 10.0
"""Seconds until what holds by hand is sent again; a store that still has it passes that on to nobody."""
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
    """The acts of persons on targets and accounts, sent and received; in the loop's thread.

    They hold for all replicas. The last act counts. What still holds is sent again, so that newcomers get it from a store
    which has lost it. Invariants: an act that was received is sent again only to keep it; all that is kept is bounded.
    """

    __slots__ = ("_began_at", "_clock", "_ends", "_gates", "_has_reminder", "_health", "_news", "acts")

    def __init__(self, clock: Clock, news: PeerBus, admission: Admission, ends: KnownEnds) -> None:
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
        """Reports to the other replicas what a person has done here."""
        if self._gates.names.is_callers(name):
            return
        act = _Act(to, token_hex(4), self._clock.monotonic())
        self._note_act(name, act)
        self._publish_act(name, act, HAND_S)
        if to == "closed":
            gates = {
                line.gate.name for line in self.lines_named(name) if not self._gates.names.is_callers(line.gate.name)
            }
            for one in gates | ({name} & self._gates.accounts.keys()):
                self._publish_over(one)

    def _note_act(self, name: str, act: _Act) -> None:
        self.acts.pop(name, None)
        if len(self.acts) >= MOST_KEPT:
            del self.acts[next(iter(self.acts))]
        self.acts[name] = act
        if act.to in HELD and not self._has_reminder:
            self._has_reminder = True
            self._clock.call_at(self._clock.monotonic() + REMIND_S, self._remind)

    def _publish_act(self, name: str, act: _Act, left_s: float) -> None:
        self._news.tell(PeerMessage("hand", name, left_s, write_hand(act.to, act.token)), lasts=True)

    def _remind(self) -> None:
        """Reports to the store again what holds by hand, in case it has lost it; one that has kept it passes nothing on."""
        now = self._clock.monotonic()
        held = [(name, act) for name, act in self.acts.items() if act.to in HELD and self._is_held(name)]
        for name, act in held:
            if now - act.at > HAND_S / 2:
                self.acts[name] = act = act._replace(at=now)
            self._publish_act(name, act, act.at + HAND_S - now - (SLACK_S if act.at < now else 0.0))
        self._has_reminder = bool(held)
        if held:
            self._clock.call_at(now + REMIND_S, self._remind)

    def _is_held(self, name: str) -> bool:
        return any(breaker.is_by_hand for breaker in self._breakers_named(name))

    def _publish_over(self, name: str) -> None:
        """Withdraws news that would keep replicas that start later away."""
        self._ends.forget(*ENDS, name=name)
        self._news.tell(PeerMessage("pause", name, 0.0), lasts=True)
        self._news.tell(PeerMessage("quota", name, 0.0), lasts=True)
        self._news.tell(
            PeerMessage("breaker", name, 0.0, write_move(BreakerMove(False, 0, "closed by hand"))), lasts=True
        )

    def on_item(self, item: PeerMessage) -> bool:
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
            self._health.apply_override(item.name, act.to)
        elif act.at < self._began_at - SLACK_S:
            self._unhand(item.name)
        elif self._is_amiss(item.name):
            for line in self.lines_named(item.name):
                self._ends.forget(*ENDS, name=line.gate.name)
            self._health.apply_override(item.name, act.to)
        return True

    def _unhand(self, name: str) -> None:
        """Undoes older acts on a name that was closed before this process began; what has come since is left as it is."""
        for breaker in self._breakers_named(name):
            if breaker.is_by_hand:
                breaker.force("closed", self._clock.monotonic())

    def _is_amiss(self, name: str) -> bool:
        """Returns whether closing by hand would change anything: an act that is stored is received at each start, too."""
        now = self._clock.monotonic()
        return any(not line.gate.health.is_clear or line.gate.pauses.ends_at > now for line in self.lines_named(name))

    def lines_named(self, name: str) -> list[WaitingLine]:
        """Returns the lines of the gates that an operator means by the name of a gate, a target or an account."""
        lines = self._gates.lines_named(name)
        account = self._gates.accounts.get(name)
        return lines or ([] if account is None else self._gates.of_account(account))

    def _breakers_named(self, name: str) -> list[Breaker]:
        """Returns the breakers that an operator sets by the name."""
        if name in self._gates.accounts and name not in self._gates.lines:
            return [self._gates.accounts[name].breaker]
        lines = self.lines_named(name)
        return [line.gate.health.breaker for line in lines if not self._gates.names.is_callers(line.gate.name)]


# --- news between the gates of this process and the fleet ---

LIMIT_S = 3600.0
"""Seconds for which a learned limit is kept for replicas that start later; it is sent again after half of them."""
LIMIT_GRAIN_S = 1.0
"""Seconds between two reports of a gate's limits, however often they change."""
FIRST_GO = 0.9
"""The part of an ejection that peers hear of: they may try before the replica whose calls have failed."""
GRAIN_S, GRAIN = 0.05, 0.01
"""An end that is later by less than this, or by less than this share of what is left, is no news."""
LEAST_LONGER = 0.5
"""A breaker that opens again before the time that was sent is over is news if it is for longer by this share."""
_MINUTE_S = 60.0
Handler = Callable[[bytes], None]


class FleetNews:
    """Carries news between the gates and breakers of this process and the fleet; used in the loop's thread."""

    def __init__(
        self,
        clock: Clock,
        news: PeerBus,
        admission: Admission,
        draw: Callable[[], float],
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        """`draw` gives uniform numbers from [0, 1); the handlers get, by kind, the details of news that products send."""
        self._clock = clock
        self._news = news
        self._gates = admission.gates
        self._health = admission.health
        self._queue = admission.queue
        self._turns = ProbeTurns(clock, news, self._gates, self._health, self._queue, draw)
        self._handlers = {} if handlers is None else handlers
        self._ends = KnownEnds()
        self._limits: dict[str, KnownLimits] = {}
        self._hands = HandNews(clock, news, admission, self._ends)
        self._unmet = UnmetNews()
        self._gates.on_open = self._meet
        self._health.on_change = self._breaker_changed
        self._health.on_force = self._hands.forced
        for line in self._gates.lines.values():
            self._meet(line)
        news.listen(self.on_item)

    # What is sent.

    def paused(self, name: str, left_s: float, now: float) -> None:
        self._publish_end("pause", name, left_s, now)

    def exhausted(self, name: str, left_s: float, now: float) -> None:
        self._publish_end("quota", name, left_s, now)

    def learned(self, name: str, learned: Learned, now: float) -> None:
        known = self._known(name)
        if now < known.at + LIMIT_GRAIN_S:
            return  # what still differs then goes with a later answer
        is_new = now >= known.at + LIMIT_S / 2
        for limit, reading in learned.by_limit():
            if reading.limit is not None and known.changes(limit, (reading.limit, reading.period_s)):
                is_new = True
        if is_new and known.limits:
            known.at = now
            self._news.tell(PeerMessage("limit", name, LIMIT_S, write_limits(known.limits)), lasts=True)

    def burst(self, name: str, burst: float, now: float) -> None:
        known = self._known(name)
        if known.changes(BURST, (burst, _MINUTE_S)):
            known.at = now
            self._news.tell(PeerMessage("limit", name, LIMIT_S, write_limits(known.limits)), lasts=True)

    def _publish_end(self, kind: Literal["pause", "quota"], name: str, left_s: float, now: float) -> None:
        end = self._ends.get((kind, name))
        if now + left_s > end + max(GRAIN_S, GRAIN * left_s):
            self._ends.note((kind, name), now + left_s, now)
            self._news.tell(PeerMessage(kind, name, left_s), lasts=True)

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
        self._news.tell(PeerMessage("breaker", name, left_s, write_move(move)), lasts=True)

    # What is received.

    def on_item(self, item: PeerMessage) -> None:
        """Acts on the news of another replica."""
        if not 0.0 <= item.left_s < inf:
            return
        handler = self._handlers.get(item.kind)
        if handler is not None:
            handler(item.detail)
        elif item.kind == "breaker":
            self._take_move(item)
        elif item.kind == "hand":
            if not self._hands.on_item(item):
                self._unmet.keep(item, self._clock.monotonic())
        elif item.kind in ("pause", "quota", "limit"):
            self._take_gate(item)

    def _take_gate(self, item: PeerMessage) -> None:
        line = self._gates.lines.get(item.name)
        if line is None:
            self._unmet.keep(item, self._clock.monotonic())
            return
        now, gate = self._clock.monotonic(), line.gate
        if item.kind == "limit":
            self._take_limits(gate, item, now)
        elif item.left_s:
            self._ends.note((item.kind, item.name), now + item.left_s, now)
            if item.kind == "pause":
                gate.peer_paused(item.left_s, now)
            else:
                gate.peer_exhausted(item.left_s, now)
                self._queue.shut(line)

    def _take_limits(self, gate: Gate, item: PeerMessage, now: float) -> None:
        known = self._known(gate.name)
        known.at = now
        for name, amount in read_limits(item.detail).items():
            if known.changes(name, amount):
                gate.peer_learned(name, *amount, now)

    def _take_move(self, item: PeerMessage) -> None:
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
                    if self._queue.shut(line):  # whoever has waited for the probe would wait for the next
                        line.gate.health.probe_for_waiting(now, now * 1e4 % 1.0)
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
            self.on_item(item)

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


# --- turns at probing: of all replicas one tries whether a target that was left alone is well again ---

SLOT_S = 5.0
"""Seconds for which a slot is held unless it is given back: a replica that dies costs the others no more."""
RENEW_S = SLOT_S / 2
LOOK_AGAIN_S = 0.25
"""Seconds, or twice as many, until a slot is asked for again after another replica got it."""
FEW = 100
"""The longest line that a call joins in the hope of a probe; longer ones are of calls that can wait."""


class ProbeTurns:
    """Asks for slots on behalf of breakers, and keeps them while they are of use.

    A breaker whose time is over asks for leave; here that is a slot of the fleet, held while probes are out and given back
    when it is known how they went. Who has a slot and no call to probe with gives it up, and may ask again with the next
    call. Where an account is open, too, its targets probe in the account's turn. Invariants: every ask is answered, sooner
    or later or by asking again; a slot that nobody gives back is free after `SLOT_S`.
    """

    __slots__ = ("_clock", "_draw", "_gates", "_health", "_held", "_news", "_queue")

    def __init__(
        self,
        clock: Clock,
        news: PeerBus,
        gates: Gates,
        health: HealthPropagation,
        queue: DelayQueue,
        draw: Callable[[], float],
    ) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._news = news
        self._gates = gates
        self._health = health
        self._queue = queue
        self._draw = draw
        self._held: dict[str, tuple[str, Timer]] = {}  # by the breaker's name: its slot, and when to look after it

    def ask(self, breaker: Breaker) -> None:
        """Asks the fleet whether this replica may probe the target of the breaker."""
        line = self._gates.lines.get(breaker.name)
        account = None if line is None else line.gate.health.account
        is_accounts = account is not None and account.breaker.state != "closed" and account.name in self._gates.accounts
        slot = f"probe:{account.name if account is not None and is_accounts else breaker.name}"
        answer = self._news.take_slot(slot, SLOT_S)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(lambda done: self._answered(breaker, slot, is_ours=_is_granted(done)))
        else:
            self._answered(breaker, slot, is_ours=answer)

    def state_changed(self, breaker: Breaker) -> None:
        """Gives the slot of a breaker back when its state has changed, because the result of its probes is known."""
        if breaker.state != "half_open":
            self._give_up(breaker)

    def _answered(self, breaker: Breaker, slot: str, *, is_ours: bool) -> None:
        now = self._clock.monotonic()
        if not is_ours:
            self._drop(breaker)
            if FleetView(breaker).retry_probe_at(now + LOOK_AGAIN_S * (1 + self._draw()), now):
                # Not at once: whoever has asked is still busy with this very line.
                self._clock.call_at(now, lambda: self._release_waiters(breaker))
        elif FleetView(breaker).grant_leave(now):
            self._drop(breaker)
            self._held[breaker.name] = slot, self._clock.call_at(now + RENEW_S, lambda: self._look_after(breaker))
        elif not self._is_held(slot):
            self._news.give_slot(slot)

    def _look_after(self, breaker: Breaker) -> None:
        if breaker.probes_out:
            self.ask(breaker)
        else:
            FleetView(breaker).return_permit()
            self._give_up(breaker)

    def _give_up(self, breaker: Breaker) -> None:
        slot = self._drop(breaker)
        if slot is not None and not self._is_held(slot):
            self._news.give_slot(slot)

    def _drop(self, breaker: Breaker) -> str | None:
        slot, timer = self._held.pop(breaker.name, (None, None))
        if timer is not None:
            timer.cancel()
        return slot

    def _is_held(self, slot: str) -> bool:
        return any(slot == held for held, _ in self._held.values())

    def _release_waiters(self, breaker: Breaker) -> None:
        """Releases the calls that wait here for the probe of another replica."""
        if breaker.state == "open":
            for line in self._health.lines_of(breaker.name):
                if len(line.waiters) <= FEW:
                    self._queue.shut(line)


def _is_granted(answer: asyncio.Future[bool]) -> bool:
    """Returns the store's answer; where it gives none, True: this replica probes by itself."""
    return answer.cancelled() or answer.exception() is not None or answer.result()
